"""The test cluster itself: what our own tests lean on holds there."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import httpx
import pytest
from support.cluster import Cluster
from support.gate import only_chaos
from support.secure_kafka import KafkaAccess

EVENT = {"ce-specversion": "1.0", "ce-source": "/tests", "ce-type": "made", "ce-subject": "k"}


def service(name: str, image: str, **annotations: str) -> dict[str, Any]:
    """A Knative Service that scales to zero as soon as Knative allows."""
    scaling = {"window": "6s", "scale-to-zero-pod-retention-period": "0s", **annotations}
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "template": {
                "metadata": {
                    "annotations": {
                        f"autoscaling.knative.dev/{key.replace('_', '-')}": value
                        for key, value in scaling.items()
                    }
                },
                "spec": {
                    "containerConcurrency": 1,
                    "containers": [
                        {
                            "name": "user-container",
                            "image": image,
                            "resources": {"requests": {"cpu": "10m"}},
                        }
                    ],
                },
            }
        },
    }


@pytest.fixture
def subscriber(cluster: Cluster, namespace: str) -> str:
    """A subscriber that started from zero; the host of its route."""
    image = cluster.image("knafka-test")
    cluster.apply(
        service("subscriber", image, max_scale="1", initial_scale="0"), namespace=namespace
    )
    cluster.wait_for(
        lambda: cluster.is_ready("ksvc", "subscriber", namespace), 60, "the subscriber is Ready"
    )
    return f"subscriber.{namespace}.svc.cluster.local"


@only_chaos
def test_a_request_starts_a_service_that_was_at_zero_and_it_returns_to_zero(
    cluster: Cluster, namespace: str, subscriber: str
) -> None:
    assert cluster.pods(namespace) == []
    answer = cluster.request(subscriber, "/", headers={**EVENT, "ce-id": "1"}, content=b"{}")
    assert answer.status_code == 202
    seen = cluster.request(subscriber, "/seen", method="GET").json()
    assert [event["id"] for event in seen] == ["1"]
    cluster.wait_for(lambda: not cluster.pods(namespace), 60, "the subscriber is at zero again")


@only_chaos
def test_a_request_that_is_held_keeps_its_pod_and_the_ingress_keeps_the_request(
    cluster: Cluster, namespace: str, subscriber: str
) -> None:
    """A drain is one long request, whatever the autoscaler's window says."""
    body = json.dumps({"delay": 20}).encode()
    assert cluster.request(subscriber, "/control", content=body).status_code == 200
    answers: list[httpx.Response] = []
    headers = {**EVENT, "ce-id": "held"}
    held = threading.Thread(
        target=lambda: answers.append(cluster.request(subscriber, "/", headers=headers))
    )
    began = time.monotonic()
    held.start()
    # Another route appears meanwhile, and the ingress's configuration with it.
    cluster.apply(service("other", cluster.image("knafka-test")), namespace=namespace)
    held.join()
    assert time.monotonic() - began > 19
    assert [answer.status_code for answer in answers] == [202]


def test_pods_reach_kafka_at_the_address_that_tests_use(
    cluster: Cluster, namespace: str, cluster_kafka: KafkaAccess
) -> None:
    host, _, port = cluster_kafka.bootstrap("PLAINTEXT").partition(":")
    probe = f"import socket; socket.create_connection(('{host}', {port}), 10)"
    cluster.run_once(namespace, "probe", "knafka-test", "python3", "-c", probe)


@only_chaos
def test_a_route_splits_its_traffic_and_a_tag_has_a_host_of_its_own(
    cluster: Cluster, namespace: str
) -> None:
    made = service("split", cluster.image("knafka-test"), min_scale="1")
    for status in ("202", "204"):
        container = made["spec"]["template"]["spec"]["containers"][0]
        container["env"] = [{"name": "SUBSCRIBER_STATUS", "value": status}]
        made["spec"]["template"]["metadata"]["name"] = f"split-{status}"
        cluster.apply(made, namespace=namespace)
        cluster.wait_for(
            lambda: cluster.is_ready("ksvc", "split", namespace), 60, "the Revision is Ready"
        )
    traffic = [
        {"revisionName": "split-202", "percent": 50, "tag": "old"},
        {"revisionName": "split-204", "percent": 50},
    ]
    patch = json.dumps({"spec": {"traffic": traffic}})
    cluster.kubectl("patch", "ksvc", "split", "-n", namespace, "--type=merge", "-p", patch)
    cluster.wait_for(lambda: cluster.is_ready("ksvc", "split", namespace), 60, "the Route is split")

    def answers(host: str, count: int) -> set[int]:
        headers = {**EVENT, "ce-id": "1"}
        return {cluster.request(host, "/", headers=headers).status_code for _ in range(count)}

    assert answers(f"split.{namespace}.knafka.test", 40) == {202, 204}
    assert answers(f"old-split.{namespace}.knafka.test", 10) == {202}
    assert answers(f"nobody.{namespace}.knafka.test", 1) == {404}
