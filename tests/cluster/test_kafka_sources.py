"""A KafkaSource on the cluster (issue 39, item 2): from zero and back, killed and edited on the
way, with nothing lost."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.cluster import Cluster
from support.gate import only_chaos
from support.installation import Installation, Subscriber

RECORDS: Final = int(os.environ.get("KNAFKA_SOURCE_RECORDS", "20000"))
KEYS: Final = 40
PARTITIONS: Final = 4
SOURCE: Final = "orders"
DISPATCHER: Final = f"{SOURCE}-kn-source-dispatcher"
KILL: Final = """
import os, signal
for each in os.listdir("/proc"):
    if each.isdigit() and int(each) not in (1, os.getpid()):  # tini ends by itself
        os.kill(int(each), signal.SIGKILL)
"""
WITHIN: Final = 300.0
ASLEEP: Final = 120.0

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("sources_go")]


@pytest.fixture(scope="module")
def sources(installed: Installation) -> Installation:
    """The component operator/deploy/sources, which `installed` has added."""
    return installed


@pytest.fixture
def sources_go(sources: Installation, namespace: str) -> Iterator[None]:
    """Delete the namespace's sources before it, so that their groups go."""
    yield
    sources.cluster.delete("kafkasources", namespace)


@pytest.fixture
def topics(sources: Installation, namespace: str) -> Iterator[tuple[str, str]]:
    """Two topics of somebody's."""
    admin = AdminClient({"bootstrap.servers": sources.kafka.bootstrap("PLAINTEXT")})
    names = f"{namespace}.raw", f"{namespace}.more"
    for each in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        each.result(30)
    yield names
    for each in admin.delete_topics(list(names)).values():
        each.result(30)


def declared(
    sources: Installation, namespace: str, topics: tuple[str, str], sink: Any
) -> dict[str, Any]:
    annotations = {"autoscaling.eventing.knative.dev/cooldown-period": "1"}
    return {
        "apiVersion": "sources.knative.dev/v1",
        "kind": "KafkaSource",
        "metadata": {"name": SOURCE, "namespace": namespace, "annotations": annotations},
        "spec": {
            "topics": list(topics),
            "bootstrapServers": [sources.kafka.bootstrap("PLAINTEXT")],
            "initialOffset": "earliest",
            "consumers": 2,
            "delivery": {"retry": 20, "backoffDelay": "PT0.2S"},
            "sink": sink,
        },
    }


def produce(sources: Installation, topics: tuple[str, str], begin: int, end: int) -> None:
    """Records numbered in each topic, that no CloudEvent is; their key is a number's remainder."""
    producer = Producer({"bootstrap.servers": sources.kafka.bootstrap("PLAINTEXT")})
    for number in range(begin, end):
        for topic in topics:
            producer.produce(topic, key=str(number % KEYS), value=b"%d" % number)
        producer.poll(0)
    assert producer.flush(60) == 0


def order_of(events: list[dict[str, Any]]) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Partition and offset of each event, by source and key, in the order of first arrival."""
    found: dict[tuple[str, str], dict[tuple[int, int], None]] = defaultdict(dict)
    for event in events:
        partition, offset = event["id"].removeprefix("partition:").split("/offset:")
        found[event["source"], event["key"]].setdefault((int(partition), int(offset)))
    return {key: list(places) for key, places in found.items()}


def unsettled(sources: Installation, group: str, topics: tuple[str, str]) -> int:
    """What any client of Kafka finds uncommitted."""
    servers = {"bootstrap.servers": sources.kafka.bootstrap("PLAINTEXT")}
    consumer = Consumer({**servers, "group.id": group})
    try:
        of = [TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS)]
        return sum(
            consumer.get_watermark_offsets(each, 10)[1] - max(each.offset, 0)
            for each in consumer.committed(of, timeout=10)
        )
    finally:
        consumer.close()


def arrived(*subscribers: Subscriber) -> int:
    return sum(int(each.summary()["received"]) for each in subscribers)


def kill_a_dispatcher(cluster: Cluster, namespace: str) -> None:
    """kill -9 of the function in the pod that has been there for longest, from within: nothing is
    told of its end, and its container starts anew."""
    pods = cluster.wait_for(
        lambda: cluster.pods(namespace, DISPATCHER), WITHIN, "a dispatcher runs"
    )
    pod = min(pods, key=lambda each: str(each["metadata"]["creationTimestamp"]))["metadata"]["name"]
    cluster.kubectl("exec", "-n", namespace, pod, "-c", "function", "--", "python3", "-c", KILL)

    def has_restarted() -> bool:
        found = cluster.get("pod", pod, namespace) or {}
        statuses = found.get("status", {}).get("containerStatuses") or ()
        return any(each["name"] == "function" and each["restartCount"] for each in statuses)

    cluster.wait_for(has_restarted, WITHIN, "its container has started anew")


@only_chaos
def test_a_source_from_zero_and_back_loses_nothing_by_a_kill_and_an_edit(
    sources: Installation, cluster: Cluster, namespace: str, topics: tuple[str, str]
) -> None:
    first = sources.subscriber(namespace, "first")
    second = sources.subscriber(namespace, "second")
    cluster.apply(declared(sources, namespace, topics, first.ref))
    sources.until_ready("kafkasource", SOURCE, namespace)
    stored = cluster.get("kafkasource", SOURCE, namespace)
    assert stored is not None
    group = stored["spec"]["consumerGroup"]
    assert group.startswith("knative-kafka-source-"), "the webhook has filled it in"
    sources.until_zero(namespace, DISPATCHER, ASLEEP)

    half = RECORDS // 2 // len(topics)
    began = time.monotonic()
    first.behave(delay=0.02)  # else all has arrived before the edit is rolled out
    produce(sources, topics, 0, half)
    cluster.wait_for(lambda: arrived(first) > RECORDS // 8, WITHIN, "some have arrived")
    kill_a_dispatcher(cluster, namespace)
    cluster.wait_for(lambda: arrived(first) > RECORDS // 4, WITHIN, "more have arrived")
    cluster.apply(declared(sources, namespace, topics, second.ref))
    sources.until_ready("kafkasource", SOURCE, namespace, WITHIN)
    produce(sources, topics, half, 2 * half)
    cluster.wait_for(
        lambda: unsettled(sources, group, topics) == 0, WITHIN, "all of it is committed"
    )
    took = time.monotonic() - began
    slept = sources.until_zero(namespace, DISPATCHER, ASLEEP)

    at_first, at_second = first.seen(), second.seen()
    assert at_second, "the edit counts"
    places = {(each["source"], each["id"]) for each in (*at_first, *at_second)}
    assert len(places) == 2 * half * len(topics), "none is lost"
    for events in (at_first, at_second):
        for found in order_of(events).values():
            assert found == sorted(found), "in order by key"
    print(
        f"\n{len(places)} records, {len(at_first)} + {len(at_second)} deliveries in {took:.0f} s,"
        f" no pod {slept:.0f} s after"
    )
    status = sources.status("kafkasource", SOURCE, namespace)
    scale = json.loads(
        cluster.kubectl(
            "get", "--raw",
            f"/apis/sources.knative.dev/v1/namespaces/{namespace}/kafkasources/{SOURCE}/scale",
        )
    )  # fmt: skip
    assert scale["spec"]["replicas"] == 2
    assert scale["status"]["selector"] == status["selector"]

    cluster.kubectl("delete", "kafkasource", SOURCE, "-n", namespace, "--timeout=90s")
    admin = AdminClient({"bootstrap.servers": sources.kafka.bootstrap("PLAINTEXT")})
    left = {each.group_id for each in admin.list_consumer_groups().result().valid}
    assert group not in left, "it was given that group"


def test_what_a_source_misses_is_said_and_admission_names_what_is_wrong(
    sources: Installation, cluster: Cluster, namespace: str, topics: tuple[str, str]
) -> None:
    missing = (topics[0], f"{namespace}.gone")
    document = declared(sources, namespace, missing, {"uri": "http://nowhere/"})
    cluster.apply(document)
    told = sources.until_condition(
        "kafkasource", SOURCE, namespace, "ConnectionEstablished", "TopicNotFound"
    )
    assert f"{namespace}.gone" in told["message"]
    document["spec"]["topics"] = []
    refused = cluster.kubectl("apply", "-f", "-", text=json.dumps(document), check=False)
    assert "spec.topics" in refused
