"""What a Broker's ConfigMap and a Trigger's annotations declare of clients, topic and start."""

from __future__ import annotations

from typing import Any

import pytest

from knafka.core.contract import Ingress, Kafka, Sink
from knafka.core.documents import dump, parse
from knafka.core.errors import InvalidDocument
from knafka_operator.kafka import desired, egresses, shards
from knafka_operator.kafka.desired import Defaults
from knafka_operator.kafka.kafka_settings import (
    check_start_unchanged,
    check_trigger_settings,
    required_isolation,
    start_position,
)
from knafka_operator.model.isolation import Isolation
from knafka_operator.model.resources import Broker, ConfigMap, Trigger, parse_resource
from knafka_operator.model.topics import Topic

KAFKA = Kafka(bootstrap_servers="k:9092")
DEFAULTS = Defaults(kafka=KAFKA)
TOPIC = Topic("t", 6, 3)
START = "knafka.dev/start-position"


def config(data: dict[str, str]) -> ConfigMap:
    found = parse_resource(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}
    )
    assert isinstance(found, ConfigMap)
    return found


def document(
    kind: str, annotations: dict[str, str], status: dict[str, str] | None = None
) -> dict[str, Any]:
    spec = {"broker": "orders", "subscriber": {"uri": "http://mail/"}} if kind == "Trigger" else {}
    return {
        "apiVersion": "eventing.knative.dev/v1",
        "kind": kind,
        "metadata": {"name": "orders", "namespace": "shop", "annotations": annotations},
        "spec": spec,
        "status": {"annotations": status or {}},
    }


BROKER = parse(Broker, document("Broker", {}))


def egress(data: dict[str, str], annotations: dict[str, str]) -> Kafka:
    trigger = parse(Trigger, document("Trigger", annotations))
    defaults = desired.defaults_with_config(config(data), DEFAULTS)
    sink = Sink(url="http://mail/")
    return egresses.trigger_egress(
        trigger, BROKER, TOPIC, egresses.TriggerDestinations(sink), defaults
    ).kafka


def ingress(data: dict[str, str]) -> Ingress:
    return desired.broker_ingress(
        BROKER, TOPIC, {}, desired.defaults_with_config(config(data), DEFAULTS)
    )


BROKERS = {
    "producer.compression.type": "lz4",
    "consumer.client.rack": "zone-a",
    "consumer.fetch.min.bytes": "1024",
}


def test_what_a_config_map_sets_holds_for_receiver_and_dispatchers() -> None:
    assert ingress(BROKERS).kafka.producer == {"compression.type": "lz4"}
    found = egress(BROKERS, {})
    assert found.producer == {"compression.type": "lz4"}
    assert found.consumer == {"client.rack": "zone-a", "fetch.min.bytes": "1024"}


def test_what_is_set_of_consumers_makes_no_new_receiver() -> None:
    assert ingress({"consumer.client.rack": "zone-a"}) == ingress({})


def test_what_a_trigger_sets_goes_over_its_brokers() -> None:
    annotations = {
        "knafka.dev/consumer.client.rack": "zone-b",
        "knafka.dev/producer.linger.ms": "5",
        "knafka.dev/max-in-flight": "7",
    }
    found = egress(BROKERS, annotations)
    assert found.consumer == {"client.rack": "zone-b", "fetch.min.bytes": "1024"}
    assert found.producer == {"compression.type": "lz4", "linger.ms": "5"}


def test_where_nothing_is_set_the_contract_is_what_it_always_was() -> None:
    """Else every function would get a new Revision with a new operator."""
    plain = {"bootstrapServers": "k:9092"}
    assert dump(ingress({}))["kafka"] == dump(egress({}, {})) == plain
    assert dump(ingress(BROKERS))["kafka"] == {
        "bootstrapServers": "k:9092",
        "producer": {"compression.type": "lz4"},
    }


def test_kafkas_that_differ_in_a_setting_only_are_two() -> None:
    """A receiver has a writer for each: by the contract's Kafka."""
    one, same = ingress(BROKERS).kafka, ingress(BROKERS).kafka
    assert len({one, same, KAFKA}) == 2


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("producer.acks", "1", "can't be set: an event is answered with success once all"),
        ("consumer.enable.auto.commit", "true", "can't be set: Knafka commits what was delivered"),
        ("consumer.fetch.min.bytes", "many", "invalid value: many: want a whole number"),
        ("consumer.max.poll.records", "5", "unknown setting: want one of client.rack, "),
        ("default.topic.config.cleanup.policy", "compact", "can't be compact: compaction keeps"),
        ("default.topic.config.cleanup.policy", "delete,compact", "without data for a tombstone"),
    ],
)
def test_what_a_config_map_cannot_set_is_refused_by_its_key(key: str, value: str, why: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        desired.defaults_with_config(config({key: value}), DEFAULTS)
    assert caught.value.path == f"data.{key}"
    assert why in caught.value.problem


def test_a_topic_may_say_that_it_deletes() -> None:
    deleting = config({"default.topic.config.cleanup.policy": "delete"})
    assert desired.defaults_with_config(deleting, DEFAULTS).topic_config == {
        "cleanup.policy": "delete"
    }


def test_what_a_trigger_cannot_set_is_refused_by_its_annotation() -> None:
    with pytest.raises(InvalidDocument) as caught:
        egress({}, {"knafka.dev/consumer.auto.offset.reset": "earliest"})
    assert caught.value.path == "metadata.annotations.knafka.dev/consumer.auto.offset.reset"
    assert START in caught.value.problem


@pytest.mark.parametrize(
    ("annotations", "start"),
    [
        ({}, "latest"),
        ({START: "latest"}, "latest"),
        ({START: "earliest"}, "earliest"),
        ({START: "1970-01-01T00:00:01.5Z"}, 1500),
        ({START: "1970-01-01T01:00:02+01:00"}, 2000),
        ({START: "2026-01-31T12:00:00Z"}, 1769860800000),
    ],
    ids=str,
)
def test_a_trigger_says_where_it_begins(annotations: dict[str, str], start: object) -> None:
    assert start_position(annotations) == start


@pytest.mark.parametrize(
    "declared",
    ["", "Latest", "beginning", "2026-01-31", "2026-01-31T12:00:00", "1969-12-31T23:00:00Z", "17"],
)
def test_a_start_that_says_nothing_is_refused(declared: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        start_position({START: declared})
    assert caught.value.path == f"metadata.annotations.{START}"
    assert "want latest, earliest, or a time with its zone" in caught.value.problem


BEGUN = {"group.id": "g"}


@pytest.mark.parametrize(
    ("was", "status", "is_"),
    [
        ({}, {}, {START: "earliest"}),
        ({START: "earliest"}, {}, {START: "latest"}),
        ({}, BEGUN, {}),
        ({START: "earliest"}, BEGUN, {START: "earliest"}),
        ({START: "earliest"}, BEGUN, {}),
        ({}, {**BEGUN, START: "earliest"}, {START: "earliest"}),
    ],
    ids=["before it began", "changed before", "none", "the same", "taken away", "put back"],
)
def test_a_start_may_change_until_the_trigger_has_begun(
    was: dict[str, str], status: dict[str, str], is_: dict[str, str]
) -> None:
    check_start_unchanged(document("Trigger", was, status), document("Trigger", is_, status))


@pytest.mark.parametrize(
    ("was", "status", "began"),
    [
        ({}, BEGUN, "latest"),
        ({START: "latest"}, {**BEGUN, START: "latest"}, "latest"),
        ({}, {**BEGUN, START: "2026-01-31T12:00:00Z"}, "2026-01-31T12:00:00Z"),
    ],
)
def test_another_start_for_one_that_has_begun_is_refused(
    was: dict[str, str], status: dict[str, str], began: str
) -> None:
    """It would look like having an effect, and no event would come of it."""
    new = document("Trigger", {START: "earliest"}, status)
    with pytest.raises(InvalidDocument, match=f"can't be changed: this Trigger began at {began}"):
        check_start_unchanged(document("Trigger", was, status), new)


RACK = {"knafka.dev/consumer.client.rack": "a"}
ISOLATION = "knafka.dev/isolation"


@pytest.mark.parametrize(
    ("annotations", "isolation"),
    [
        ({}, None),
        ({ISOLATION: "shared"}, Isolation.SHARED),
        (RACK, Isolation.OWN),
        ({**RACK, ISOLATION: "own"}, Isolation.OWN),
    ],
    ids=str,
)
def test_a_trigger_with_settings_of_its_own_has_a_dispatcher_of_its_own(
    annotations: dict[str, str], isolation: Isolation | None
) -> None:
    """A shared one reads once for all, as the Broker says."""
    check_trigger_settings(annotations)
    assert required_isolation(annotations) is isolation
    trigger = parse(Trigger, document("Trigger", annotations))
    assert shards.effective_isolation(trigger, BROKER, Isolation.SHARED) is (
        isolation or Isolation.SHARED
    )


def test_to_share_with_settings_of_its_own_is_refused() -> None:
    with pytest.raises(InvalidDocument) as caught:
        check_trigger_settings({**RACK, ISOLATION: "shared"})
    assert caught.value.path == f"metadata.annotations.{ISOLATION}"
    assert "can't be shared beside knafka.dev/consumer.client.rack" in caught.value.problem
