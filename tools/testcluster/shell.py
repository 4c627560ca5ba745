"""Runs other programs, and waits for conditions, for all modules of the test cluster."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping

from testcluster.settings import KUBECONFIG, NETWORK_NAMESPACE, NODE_IP


class ClusterError(Exception):
    """The cluster can't be built or run; the text says why and what to do."""


def run(
    *command: object, text: str | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """Run a command to its end and return its output. Raises `ClusterError` with its last lines if
    it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, input=text, env={**os.environ, **(environment or {})}, capture_output=True, text=True
    )
    if done.returncode:
        tail = "\n  ".join((done.stderr or done.stdout).strip().splitlines()[-15:])
        raise ClusterError(f"{' '.join(words)[:200]}: code {done.returncode}\n  {tail}")
    return done.stdout


def succeeds(*command: object) -> bool:
    """Run a command, and return whether its exit code is 0."""
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True).returncode == 0


def in_namespace(*command: object) -> list[str]:
    """Return the words that run `command` in the cluster's network; unlike with `ip netns exec` it
    sees the cgroups."""
    return ["nsenter", f"--net=/run/netns/{NETWORK_NAMESPACE}", *map(str, command)]


def kubectl(*arguments: str, text: str | None = None) -> str:
    """Run kubectl against the cluster with `text` as its input, and return its output. Raises
    `ClusterError`."""
    # No proxy of the machine is used for the cluster.
    environment = {"KUBECONFIG": str(KUBECONFIG), "NO_PROXY": NODE_IP, "no_proxy": NODE_IP}
    return run("kubectl", *arguments, text=text, environment=environment)


def apply(manifests: str) -> None:
    """Apply manifests (YAML) to the cluster, server-side."""
    kubectl(
        "apply", "--server-side", "--force-conflicts", "--field-manager=knafka", "-f-",
        text=manifests,
    )  # fmt: skip


def wait_until(condition: Callable[[], object], what: str, within: float) -> None:
    """Wait until the condition is true; raises `ClusterError`, which names `what`, after `within`
    seconds."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not within {within:.0f} s")
        time.sleep(0.1)
