"""A real API server, and Knative Eventing's real controller on it: no kubelet, nothing else.

Both are programs of the test cluster's (`tools/testcluster eventing` builds them).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import kubernetes

from knafka_client.sockets import free_port
from testcluster import settings

KIT: Final = settings.BIN / "kit"
CONTROLLER: Final = settings.BIN / "eventing-controller"
CONFIG: Final = settings.EVENTING_CONFIG
NAMESPACE: Final = "knative-eventing"
TOKEN: Final = "of-a-test"
SERVING: Final = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "services.serving.knative.dev"},
    "spec": {
        "group": "serving.knative.dev",
        "scope": "Namespaced",
        "names": {"kind": "Service", "plural": "services", "singular": "service"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}
"""Enough of Knative Serving for Services to be stored."""


class Kubernetes:
    """An API server on this machine, whom everybody may ask for everything."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        self.port = free_port()
        self.kubeconfig = folder / "kubeconfig"

    def start(self) -> None:
        folder, etcd, peer = self._folder, free_port(), free_port()
        key = folder / "sa.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        (folder / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
        self._run(
            "etcd", KIT, "etcd", "--name", "test", "--data-dir", folder / "etcd",
            "--unsafe-no-fsync", "--log-level", "warn",
            "--listen-client-urls", f"http://127.0.0.1:{etcd}",
            "--advertise-client-urls", f"http://127.0.0.1:{etcd}",
            "--listen-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-cluster", f"test=http://127.0.0.1:{peer}",
        )  # fmt: skip
        self._run(
            "kube-apiserver", KIT, "kube-apiserver", "--etcd-servers", f"http://127.0.0.1:{etcd}",
            "--bind-address", "127.0.0.1", "--secure-port", self.port, "--cert-dir", folder,
            "--service-account-issuer", "https://kubernetes.default.svc",
            "--service-account-key-file", key, "--service-account-signing-key-file", key,
            "--authorization-mode", "AlwaysAllow", "--token-auth-file", folder / "tokens.csv",
            "--service-cluster-ip-range", "10.0.0.0/24",
            "--disable-admission-plugins", "ServiceAccount",
        )  # fmt: skip
        cluster = {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        self.kubeconfig.write_text(json.dumps(config))
        until(lambda: self.kubectl("get", "--raw", "/readyz", check=False) == "ok", 120)

    def start_eventing(self) -> subprocess.Popen[bytes]:
        """Its controller, as its Deployment runs it."""
        environment = {
            "SYSTEM_NAMESPACE": NAMESPACE,
            "CONFIG_LOGGING_NAME": "config-logging",
            "CONFIG_OBSERVABILITY_NAME": "config-observability",
            "METRICS_DOMAIN": "knative.dev/eventing",
            "APISERVER_RA_IMAGE": "none",
            "POD_NAME": "eventing-controller",
            "METRICS_PROMETHEUS_PORT": str(free_port()),
            "PROBES_PORT": str(free_port()),
            "KUBECONFIG": str(self.kubeconfig),
        }
        return self._run("eventing", CONTROLLER, environment=environment)

    def stop(self, started: subprocess.Popen[bytes]) -> None:
        started.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(10)
        started.kill()
        started.wait()
        self._started.remove(started)

    def close(self) -> None:
        for each in reversed(list(self._started)):
            self.stop(each)

    def client(self) -> kubernetes.client.ApiClient:
        configuration = kubernetes.client.Configuration()
        configuration.host = f"https://127.0.0.1:{self.port}"
        configuration.verify_ssl = False
        configuration.api_key = {"authorization": f"Bearer {TOKEN}"}
        configuration.connection_pool_maxsize = 64
        return kubernetes.client.ApiClient(configuration)

    def kubectl(self, *arguments: str, given: str | None = None, check: bool = True) -> str:
        done = subprocess.run(
            ["kubectl", "--kubeconfig", str(self.kubeconfig), *arguments],
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, *documents: Any) -> None:
        texts = [each if isinstance(each, str) else json.dumps(each) for each in documents]
        for each in texts:
            self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", given=each)

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        """An object; without a name, a list of all."""
        fields = ("-o", "json", "--show-managed-fields")
        text = self.kubectl(
            "get", kind, "-n", namespace, *filter(None, [name]), *fields, check=False
        )
        found: dict[str, Any] = json.loads(text) if text else {}
        return found

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def _run(
        self, name: str, *command: object, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            started = subprocess.Popen(
                [str(each) for each in command],
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
            )
        self._started.append(started)
        return started


@contextlib.contextmanager
def kubernetes_with_eventing(folder: Path, root: Path) -> Iterator[Kubernetes]:
    """With Knative Eventing's CRDs, and ours of channels over them, as they are installed."""
    found = Kubernetes(folder)
    try:
        found.start()
        for each in (NAMESPACE, "knafka", "shop"):
            found.kubectl("create", "namespace", each)
        for folder_of in ("configmaps", "resources"):
            for path in sorted((CONFIG / folder_of).glob("*.yaml")):
                found.apply(path.read_text())
        found.apply(SERVING, found.kubectl("kustomize", str(root / "crds" / "messaging")))
        until(lambda: _are_established(found), 60)
        yield found
    finally:
        found.close()


def _are_established(kubernetes: Kubernetes) -> bool:
    """`kubectl wait` fails at once where a definition is so new that it has no conditions yet."""
    try:
        kubernetes.kubectl("wait", "--for=condition=Established", "--timeout=10s", "crd", "--all")
    except AssertionError:
        return False
    return True


def until(holds: Any, within: float) -> None:
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < within
        time.sleep(0.1)
