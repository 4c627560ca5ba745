"""The functions' pods as an installation wants them, by its settings of the pod."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from support.cluster import Cluster
from support.gate import only_chaos
from support.installation import Installation

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("brokers_go")]

TOLERATION: Final = {"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}
POD: Final = {
    "imagePullSecrets": [{"name": "my-registry"}],
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [TOLERATION],
}
RESOURCES: Final = {"requests": {"cpu": "10m", "memory": "48Mi"}, "limits": {"memory": "256Mi"}}
FEATURES: Final = ("kubernetes.podspec-nodeselector", "kubernetes.podspec-tolerations")


@contextmanager
def features(cluster: Cluster, value: str) -> Iterator[None]:
    """Have Knative Serving allow the fields, or not, meanwhile."""

    def patch(to: str | None) -> None:
        body = json.dumps({"data": dict.fromkeys(FEATURES, to)})
        where = ("-n", "knative-serving", "configmap", "config-features")
        cluster.kubectl("patch", *where, "--type=merge", "-p", body)

    patch(value)
    try:
        yield
    finally:
        patch(None)


def pull_secret(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl(
        "create", "secret", "docker-registry", "my-registry", "-n", namespace,
        "--docker-server=registry.example.com", "--docker-username=me", "--docker-password=none",
    )  # fmt: skip


def pod_of(installed: Installation, namespace: str, service: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = installed.cluster.wait_for(
        lambda: installed.cluster.pods(namespace, service), 60, f"a pod of {service}"
    )
    spec: dict[str, Any] = found[0]["spec"]
    return spec


@only_chaos
def test_pods_are_as_the_installation_says_once_knative_allows_it(
    installed: Installation, namespace: str
) -> None:
    cluster = installed.cluster
    subscriber = installed.subscriber(namespace)
    pull_secret(cluster, namespace)
    resources = dict.fromkeys(
        ("KNAFKA_RECEIVER_RESOURCES", "KNAFKA_DISPATCHER_RESOURCES"), json.dumps(RESOURCES)
    )
    with installed.settings(KNAFKA_POD=json.dumps(POD), **resources):
        with features(cluster, "disabled"):
            installed.broker(namespace, ready=False)
            refused = installed.until_condition(
                "broker", "default", namespace, "DataPlaneAvailable", "FunctionRejected"
            )
            assert all(each in refused["message"] for each in FEATURES)
        with features(cluster, "enabled"):
            installed.until_ready("broker", "default", namespace, within=120)
            installed.trigger(namespace, "orders", subscriber.ref)
            address = installed.status("broker", "default", namespace)["address"]["url"]
            assert installed.send(address, "one").status_code == 202
            subscriber.wait_for(1)
            for service in ("default-kn-receiver", "orders-kn-dispatcher"):
                pod = pod_of(installed, namespace, service)
                assert pod["imagePullSecrets"] == POD["imagePullSecrets"]
                assert pod["nodeSelector"] == POD["nodeSelector"]
                assert TOLERATION in pod["tolerations"]
                (function,) = (each for each in pod["containers"] if each["name"] == "function")
                assert function["resources"] == RESOURCES
