"""Installs Knative Serving on the running node, from its modules' own manifests and our few
settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from testcluster.build import module_directory
from testcluster.node import start_ingress
from testcluster.settings import HERE, REGISTRY, SERVING_VERSION, STATE, say
from testcluster.shell import ClusterError, apply, kubectl, wait_until

DEPLOYMENTS: Final = ("controller", "webhook", "autoscaler", "activator")
INSTALLED: Final = STATE / "knative.yaml"
"""The file with the manifests that were applied last; a resumed cluster has them already."""


def install() -> None:
    """Apply the manifests unless they were applied already, and return once Knative runs."""
    serving = module_directory("knative.dev/serving") / "config" / "core"
    networking = module_directory("knative.dev/networking") / "config"
    # Go modules have no symbolic links: the files that Serving links to come from the module
    # networking.
    linked = ("certificate", "domain-claim", "ingress", "serverlessservice")
    resources = _manifests(
        *serving.glob("300-resources/*.yaml"),
        *(networking / f"{name}.yaml" for name in linked),
        module_directory("knative.dev/caching") / "config" / "image.yaml",
    )
    # Settings come before the programs that read them, and before the webhook that would validate
    # them.
    settings = _manifests(
        serving / "100-namespace.yaml",
        serving / "200-serviceaccount.yaml",
        *serving.glob("200-roles/*.yaml"),
        *serving.glob("configmaps/*.yaml"),
        networking / "config-network.yaml",
    )
    ours = (HERE / "config" / "knative.yaml").read_text()
    programs = _manifests(
        *serving.glob("webhooks/*.yaml"),
        *(serving / "deployments" / f"{name}.yaml" for name in DEPLOYMENTS),
    )
    images = _manifests(serving / "999-cache.yaml")

    everything = "\n---\n".join((resources, settings, ours, programs, images))
    applied = INSTALLED.read_text() if INSTALLED.exists() else None
    if applied is not None:
        start_ingress()
        _await_programs()
    if applied != everything:
        apply(resources)
        wait_until(_are_established, "Knative's definitions are established", 60)
        start_ingress()
        apply(settings)
        apply(ours)
        apply(programs)
        _await_programs()
        apply(images)
        INSTALLED.write_text(everything)
    say("Knative Serving is ready")


def _are_established() -> bool:
    """Whether the API server serves Knative's kinds.

    `kubectl wait` fails at once where a definition is so new that it has no conditions yet.
    """
    selected = ("crd", "-l", "knative.dev/crd-install=true")
    try:
        kubectl("wait", "--for=condition=Established", *selected, "--timeout=10s")
    except ClusterError:
        return False
    return True


def _await_programs() -> None:
    """Wait until Serving's Deployments are rolled out. Raises `ClusterError` after 180 s for
    each."""
    for name in DEPLOYMENTS:
        kubectl("-n", "knative-serving", "rollout", "status", f"deploy/{name}", "--timeout=180s")


def _manifests(*files: Path) -> str:
    """Return the files as one YAML text, with our images and Serving's version filled in."""
    text = "\n---\n".join(file.read_text() for file in files)
    image = rf"{REGISTRY}/knative/\1:{SERVING_VERSION}"
    text = re.sub(r"ko://knative\.dev/serving/cmd/([a-z]+)", image, text)
    version = f'app.kubernetes.io/version: "{SERVING_VERSION.removeprefix("v")}"'
    return text.replace("app.kubernetes.io/version: devel", version)
