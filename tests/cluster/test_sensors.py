"""A Sensor on the cluster (issue 17): it acts once, and has no pod while it waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from confluent_kafka.admin import AdminClient
from support.cluster import Cluster
from support.installation import READY, ROOT, Installation

from knafka_operator.decide.sensor_manifests import function_name
from knafka_operator.model.family import BROKERS
from knafka_operator.model.identity import Identity

DEPLOY: Final = ROOT / "operator" / "deploy" / "sensors"
SENSOR: Final = "orders"
ASLEEP: Final = 90.0
"""Seconds until it has no pod: cooldown, and Knative's own grace."""

pytestmark = [pytest.mark.timeout(420), pytest.mark.usefixtures("brokers_go")]


@pytest.fixture
def sensors(installed: Installation, namespace: str) -> Iterator[Installation]:
    """The component operator/deploy/sensors, on the installation of the run; with it go the
    namespace's Sensors, which nobody would let go of afterwards."""
    cluster = installed.cluster
    cluster.apply(cluster.kubectl("kustomize", str(ROOT / "crds" / "sensors")))
    cluster.kubectl(
        "wait", "--for=condition=Established", "--timeout=60s", "crd/sensors.knafka.dev"
    )
    cluster.apply(DEPLOY / "rbac.yaml")
    with installed.settings(KNAFKA_SENSORS="enabled"):
        yield installed
        cluster.kubectl(
            "delete", "sensors", "--all", "-n", namespace, "--timeout=120s", check=False
        )


def declared(namespace: str, subscriber: Any) -> dict[str, Any]:
    """An order and its payment."""
    return {
        "apiVersion": "knafka.dev/v1alpha1",
        "kind": "Sensor",
        "metadata": {
            "name": SENSOR,
            "namespace": namespace,
            "annotations": {"autoscaling.eventing.knative.dev/cooldown-period": "1"},
        },
        "spec": {
            "broker": "default",
            "dependencies": [
                {"name": each, "filters": [{"exact": {"type": each}}]} for each in ("a", "b")
            ],
            "triggers": [
                {
                    "name": "both",
                    "conditions": "a && b",
                    "correlation": "orderid",
                    "subscriber": subscriber,
                }
            ],
        },
    }


@pytest.mark.conformance("BUS-3", "BUS-13", "BUS-14", "BUS-15")
def test_a_sensor_acts_once_and_has_no_pod_while_it_waits(
    sensors: Installation, cluster: Cluster, namespace: str
) -> None:
    """BUS-3, BUS-13 to BUS-15: also after a sleep, in which one event is held and no pod runs.
    Deleted, it leaves no topic, no group and no Trigger."""
    subscriber = sensors.subscriber(namespace)
    address = sensors.broker(namespace, partitions=2)
    kafka = AdminClient({"bootstrap.servers": sensors.kafka.bootstrap("PLAINTEXT")})
    before = topics_and_groups(kafka, namespace)
    cluster.apply(declared(namespace, subscriber.ref))
    sensors.until_ready("sensor", SENSOR, namespace)
    function = function_name(BROKERS, Identity(namespace, SENSOR))
    sensors.until_zero(namespace, function, ASLEEP)

    for identity, order in (("a1", "1"), ("b1", "1"), ("a2", "2")):
        sent = sensors.send(address, identity, identity[0], orderid=order)
        assert sent.status_code == 202
    (action,) = subscriber.wait_for(1)
    assert action["id"].startswith(f"{namespace}.{SENSOR}.both.")
    slept = sensors.until_zero(namespace, function, ASLEEP)

    def waiting() -> list[dict[str, Any]]:
        status = sensors.status("sensor", SENSOR, namespace)
        return list(status.get("waiting") or ())

    (shown,) = cluster.wait_for(waiting, READY, "the status says what it waits for")
    assert (shown["trigger"], shown["keys"]) == ("both", 1)
    (oldest,) = shown["oldest"]
    assert (oldest["key"], oldest["has"], oldest["waitsFor"]) == ("2", ["a"], ["b"])
    assert cluster.pods(namespace, function) == []

    assert sensors.send(address, "b2", "b", orderid="2").status_code == 202
    subscriber.wait_for(2)
    cluster.wait_for(lambda: not waiting(), READY, "it waits for nothing")
    assert subscriber.summary()["received"] == 2, "nobody was told twice"
    print(f"\nno pod {slept:.0f} s after it had acted, with one event held")

    cluster.kubectl("delete", "sensor", SENSOR, "-n", namespace, "--timeout=90s")
    assert topics_and_groups(kafka, namespace) == before
    left = cluster.kubectl("get", "triggers,ksvc", "-n", namespace, "-oname").split()
    assert [each for each in left if SENSOR in each] == []


def topics_and_groups(kafka: AdminClient, namespace: str) -> set[str]:
    """Those of the namespace."""
    topics = kafka.list_topics(timeout=30).topics
    groups = kafka.list_consumer_groups().result().valid
    return {each for each in (*topics, *(one.group_id for one in groups)) if namespace in each}
