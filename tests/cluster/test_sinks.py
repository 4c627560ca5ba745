"""KafkaSinks on the cluster (issue 39, item 2): both content modes, a topic of somebody's and one
that is the sink's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.cluster import Cluster
from support.installation import READY, Installation

WITHIN: Final = 60.0
ATTRIBUTES: Final = {
    **{"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "order"},
    **{"ce-subject": "a", "ce-team": "x"},
}

pytestmark = pytest.mark.usefixtures("sinks_go")


@pytest.fixture(scope="module")
def sinks(installed: Installation) -> Installation:
    """The component operator/deploy/sinks, which `installed` has added."""
    return installed


@pytest.fixture
def sinks_go(sinks: Installation, namespace: str) -> Iterator[None]:
    """Delete the namespace's sinks before it, so that their topics go."""
    yield
    sinks.cluster.delete("kafkasinks", namespace)


@pytest.fixture
def admin(sinks: Installation) -> AdminClient:
    return AdminClient({"bootstrap.servers": sinks.kafka.bootstrap("PLAINTEXT")})


@pytest.fixture
def theirs(admin: AdminClient, namespace: str) -> Iterator[str]:
    """A topic of somebody's."""
    name = f"{namespace}.theirs"
    for each in admin.create_topics([NewTopic(name, 1, 1)]).values():
        each.result(30)
    yield name
    for each in admin.delete_topics([name]).values():
        each.result(30)


def declare(sinks: Installation, namespace: str, name: str, **spec: Any) -> dict[str, Any]:
    servers = [sinks.kafka.bootstrap("PLAINTEXT")]
    document = {
        "apiVersion": "eventing.knative.dev/v1alpha1",
        "kind": "KafkaSink",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"bootstrapServers": servers, **spec},
    }
    sinks.cluster.apply(document)
    return document


def headers_of(record: Any) -> dict[str, Any]:
    return dict(record.headers() or ())


def read(sinks: Installation, topic: str) -> list[tuple[Any, dict[str, Any], Any]]:
    """Key, headers and value of each record, as any client of Kafka reads them."""
    servers = {"bootstrap.servers": sinks.kafka.bootstrap("PLAINTEXT")}
    consumer = Consumer({**servers, "group.id": "unused"})
    try:
        place = TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(place, 10)
        consumer.assign([place])
        found = consumer.consume(end, 30) if end else []
        return [(each.key(), headers_of(each), each.value()) for each in found]
    finally:
        consumer.close()


def test_events_lie_in_the_topic_in_the_mode_that_is_asked_for_and_only_an_own_topic_goes(
    sinks: Installation, cluster: Cluster, namespace: str, admin: AdminClient, theirs: str
) -> None:
    own = f"{namespace}.own"
    declare(sinks, namespace, "binary", topic=theirs)
    declare(
        sinks, namespace, "structured", topic=own, contentMode="structured", numPartitions=1,
        replicationFactor=1,
    )  # fmt: skip
    missing = declare(sinks, namespace, "missing", topic=f"{namespace}.gone")
    told = sinks.until_condition("kafkasink", "missing", namespace, "TopicReady", "TopicNotFound")
    assert f"has no topic {namespace}.gone: create it" in told["message"]
    assert not cluster.get("ksvc", "missing-kn-sink-receiver", namespace)

    for name in ("binary", "structured"):
        sinks.until_ready("kafkasink", name, namespace, WITHIN)
        url = str(sinks.status("kafkasink", name, namespace)["address"]["url"])
        headers = {**ATTRIBUTES, "content-type": "application/json"}
        assert sinks.post(url, headers, b'{"n": 1}').status_code == 202
    ((key, headers_of, value),) = read(sinks, theirs)
    assert (key, value) == (b"a", b'{"n": 1}')
    assert headers_of == {
        **{name.replace("-", "_"): text.encode() for name, text in ATTRIBUTES.items()},
        "content-type": b"application/json",
    }
    ((key, headers_of, value),) = read(sinks, own)
    assert (key, headers_of) == (b"a", {"content-type": b"application/cloudevents+json"})
    assert json.loads(value) == {
        **{name.removeprefix("ce-"): text for name, text in ATTRIBUTES.items()},
        "datacontenttype": "application/json",
        "data": {"n": 1},
    }

    owner = "eventing.knative.dev/topic.owner"
    statuses = [sinks.status("kafkasink", each, namespace) for each in ("binary", "structured")]
    assert [each["annotations"][owner] for each in statuses] == ["external", "kafkasink-controller"]
    cluster.kubectl("delete", "kafkasinks", "--all", "-n", namespace, "--timeout=90s")
    # Kafka's broker lists a topic until it has heard of the deletion from its controller.
    cluster.wait_for(
        lambda: own not in admin.list_topics(timeout=10).topics, READY, "its own topic is gone"
    )
    assert theirs in admin.list_topics(timeout=10).topics
    missing["spec"]["contentMode"] = "compact"
    refused = cluster.kubectl("apply", "-f", "-", text=json.dumps(missing), check=False)
    assert "spec.contentMode" in refused
