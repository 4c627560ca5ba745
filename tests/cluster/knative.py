"""Knative Serving on the running node, from its modules' own manifests, with our few settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from cluster.build import module_directory
from cluster.node import start_ingress
from cluster.settings import HERE, REGISTRY, SERVING_VERSION, say
from cluster.shell import apply, kubectl

DEPLOYMENTS: Final = ("controller", "webhook", "autoscaler", "activator")


def install() -> None:
    """Apply everything, again if need be, and return once Knative runs."""
    serving = module_directory("knative.dev/serving") / "config" / "core"
    networking = module_directory("knative.dev/networking") / "config"
    # Modules leave symbolic links out: what Serving links to comes from where it lies.
    resources = [
        *serving.glob("300-resources/*.yaml"),
        *(networking / f"{name}.yaml" for name in (
            "certificate", "domain-claim", "ingress", "serverlessservice",
        )),
        module_directory("knative.dev/caching") / "config" / "image.yaml",
    ]  # fmt: skip
    parts = [
        serving / "100-namespace.yaml",
        serving / "200-serviceaccount.yaml",
        *serving.glob("200-roles/*.yaml"),
        *serving.glob("configmaps/*.yaml"),
        networking / "config-network.yaml",
        *serving.glob("webhooks/*.yaml"),
        *(serving / "deployments" / f"{name}.yaml" for name in DEPLOYMENTS),
    ]
    apply(_manifests(resources))
    kubectl(
        "wait", "--for=condition=Established", "crd", "-l", "knative.dev/crd-install=true",
        "--timeout=60s",
    )  # fmt: skip
    start_ingress()
    apply(_manifests(parts))
    for name in DEPLOYMENTS:
        kubectl("-n", "knative-serving", "rollout", "status", f"deploy/{name}", "--timeout=180s")
    # Only now: Knative's webhook judges these.
    apply((HERE / "config" / "knative.yaml").read_text())
    apply(_manifests([serving / "999-cache.yaml"]))
    say("Knative Serving is ready")


def _manifests(files: list[Path]) -> str:
    text = "\n---\n".join(file.read_text() for file in files)
    image = rf"{REGISTRY}/knative/\1:{SERVING_VERSION}"
    text = re.sub(r"ko://knative\.dev/serving/cmd/([a-z]+)", image, text)
    version = f'app.kubernetes.io/version: "{SERVING_VERSION.removeprefix("v")}"'
    return text.replace("app.kubernetes.io/version: devel", version)
