"""A Sensor on the cluster (issue 17): it acts once, and has no pod while it waits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from confluent_kafka.admin import AdminClient
from support.channels import SMOKE_TEST, Channels
from support.cluster import OPERATOR_NAMESPACE, Cluster
from support.gate import only_chaos
from support.installation import READY, Installation

from knafka_operator.model.family import BROKERS
from knafka_operator.model.identity import Identity
from knafka_operator.sensors.manifests import function_name

SENSOR: Final = "orders"
ASLEEP: Final = 90.0
"""Seconds until it has no pod: cooldown, and Knative's own grace."""

pytestmark = [
    pytest.mark.usefixtures("channels_go", "brokers_go", "sensors_go"),
]


@pytest.fixture(scope="module")
def sensors(installed: Installation) -> Installation:
    """The component operator/deploy/sensors, which `installed` has added."""
    return installed


@pytest.fixture
def sensors_go(sensors: Installation, namespace: str) -> Iterator[None]:
    """Delete the namespace's Sensors before their bus."""
    yield
    sensors.cluster.delete("sensors", namespace, within=120)


def declared(
    namespace: str, subscriber: Any, bus: Mapping[str, str], **trigger: Any
) -> dict[str, Any]:
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
            **bus,
            "dependencies": [
                {"name": each, "filters": [{"exact": {"type": each}}]} for each in ("a", "b")
            ],
            "triggers": [
                {
                    "name": "both",
                    "conditions": "a && b",
                    "correlation": "orderid",
                    "subscriber": subscriber,
                    **trigger,
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
    cluster.apply(declared(namespace, subscriber.ref, {"broker": "default"}))
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
    # Kafka's broker lists a topic until it has heard of the deletion from its controller.
    until_nothing_is_left(cluster, kafka, namespace, before)
    left = cluster.kubectl("get", "triggers,ksvc", "-n", namespace, "-oname").split()
    assert [each for each in left if SENSOR in each] == []


@only_chaos
@pytest.mark.conformance("BUS-13")
def test_a_sensor_on_a_channel_acts_and_its_reply_goes_where_it_says(
    sensors: Installation, channels: Channels, cluster: Cluster, namespace: str
) -> None:
    """BUS-13: by a Subscription of its own. Deleted, it leaves nothing, and its function, which is
    in the operator's namespace, goes too. A Sensor on two buses is refused."""
    asked = sensors.subscriber(namespace, "asked", SUBSCRIBER_REPLY_TYPE="answered")
    replies = sensors.subscriber(namespace, "replies")
    address = channels.channel(namespace, "events")
    kafka = AdminClient({"bootstrap.servers": sensors.kafka.bootstrap("PLAINTEXT")})
    before = topics_and_groups(kafka, namespace)
    both = declared(namespace, asked.ref, {"broker": "default", "channel": "events"})
    said = cluster.kubectl("apply", "-f-", text=json.dumps(both), check=False)
    assert "expected exactly one, got both: broker, channel" in said

    def functions() -> list[str]:
        """Those of this Sensor; other tests have channels meanwhile."""
        listed = cluster.kubectl("get", "ksvc", "-n", OPERATOR_NAMESPACE, "-oname").split()
        return [each for each in listed if namespace in each and SENSOR in each]

    bus = {"channel": "events"}
    cluster.apply(declared(namespace, asked.ref, bus, reply=replies.ref))
    sensors.until_ready("sensor", SENSOR, namespace)
    assert functions()
    for identity in ("a1", "b1"):
        headers = {**SMOKE_TEST, "ce-id": identity, "ce-type": identity[0], "ce-orderid": "1"}
        assert sensors.post(f"{address}/", headers, b"{}").status_code == 202
    (action,) = asked.wait_for(1)
    assert action["id"].startswith(f"{namespace}.{SENSOR}.both.")
    (reply,) = replies.wait_for(1)
    assert reply["id"] == f"reply-to-{action['id']}"

    cluster.kubectl("delete", "sensor", SENSOR, "-n", namespace, "--timeout=90s")
    # Kafka's broker lists a topic until it has heard of the deletion from its controller.
    until_nothing_is_left(cluster, kafka, namespace, before)
    left = cluster.kubectl("get", "subscriptions.messaging.knative.dev", "-n", namespace, "-oname")
    assert SENSOR not in left
    assert functions() == []


def until_nothing_is_left(
    cluster: Cluster, kafka: AdminClient, namespace: str, before: set[str]
) -> None:
    """Wait until Kafka has the topics and groups that it had before, and say which it hasn't."""
    differing: set[str] = set()

    def is_as_before() -> bool:
        differing.clear()
        differing.update(topics_and_groups(kafka, namespace) ^ before)
        return not differing

    try:
        cluster.wait_for(is_as_before, READY, "it leaves nothing in Kafka")
    except pytest.fail.Exception as error:
        pytest.fail(f"{error}: {sorted(differing)}")


def topics_and_groups(kafka: AdminClient, namespace: str) -> set[str]:
    """Those of the namespace, but for a channel's contract topic: it has one from when one of its
    Subscriptions was shared for the first time until it is deleted."""
    topics = kafka.list_topics(timeout=30).topics
    groups = kafka.list_consumer_groups().result().valid
    there = {each for each in (*topics, *(one.group_id for one in groups)) if namespace in each}
    return {each for each in there if not each.startswith(f"knafka-contract-{namespace}-")}
