"""From what is declared to topics and the contract's entries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from knafka.core import documents, names
from knafka.core.contract import (
    MAX_RECORD_BYTES,
    BackoffPolicy,
    Delivery,
    Kafka,
    Order,
    Sink,
    TopicSettings,
)
from knafka.core.errors import InvalidDocument
from knafka.core.filters.declared_filters import AttributesFilter, Exact
from knafka.ports.log import TopicDescription
from knafka_operator.kafka import desired, egresses, topics
from knafka_operator.kafka.dead_letter_topics import FAILURE_ATTRIBUTES_BYTES, RETENTION_ANNOTATION
from knafka_operator.kafka.desired import Defaults
from knafka_operator.model.resources import (
    DELIVERY_ORDER,
    EXTERNAL_TOPIC,
    MAX_IN_FLIGHT,
    Broker,
    ConfigMap,
    Destination,
    Trigger,
    parse_resource,
)
from knafka_operator.model.topics import Topic

DEFAULTS = Defaults(kafka=Kafka(bootstrap_servers="local:9092"))
MAIL = Sink(url="http://mail.shop.svc/")
TO_MAIL = egresses.TriggerDestinations(MAIL)
TOPIC = Topic("t", 6, 3)


def broker(
    spec: dict[str, Any] | None = None,
    status: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    name: str = "orders",
) -> Broker:
    parsed = parse_resource(
        {
            "apiVersion": "eventing.knative.dev/v1",
            "kind": "Broker",
            "metadata": {"name": name, "namespace": "shop", "annotations": annotations or {}},
            "spec": spec or {},
            "status": {"annotations": status or {}},
        }
    )
    assert isinstance(parsed, Broker)
    return parsed


def trigger(
    spec: dict[str, Any] | None = None,
    status: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Trigger:
    parsed = parse_resource(
        {
            "apiVersion": "eventing.knative.dev/v1",
            "kind": "Trigger",
            "metadata": {"name": "mail", "namespace": "shop", "annotations": annotations or {}},
            "spec": {"broker": "orders", "subscriber": {"uri": "http://mail/"}, **(spec or {})},
            "status": {"annotations": status or {}},
        }
    )
    assert isinstance(parsed, Trigger)
    return parsed


def config(**data: str) -> ConfigMap:
    parsed = parse_resource(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "kafka-broker-config"},
            "data": {key.replace("_", "."): value for key, value in data.items()},
        }
    )
    assert isinstance(parsed, ConfigMap)
    return parsed


def egress_of(of_trigger: Trigger, of_broker: Broker | None = None) -> Any:
    return egresses.trigger_egress(of_trigger, of_broker or broker(), TOPIC, TO_MAIL, DEFAULTS)


def test_a_broker_without_config_gets_the_defaults() -> None:
    topic = desired.broker_topic(broker(), None, DEFAULTS)
    by_the_log = {"min.insync.replicas": "2", "message.timestamp.type": "LogAppendTime"}
    assert topic == Topic("knative-broker-shop-orders", 10, 3, by_the_log, external=False)


def test_whose_time_counts_may_be_declared_and_is_not_told_of_older_topics() -> None:
    """What was made before Knafka set it has its senders' times, and is left as it is."""
    declared = config(default_topic_config_message_timestamp_type="CreateTime")
    topic = desired.broker_topic(broker(), declared, DEFAULTS)
    assert topic.config["message.timestamp.type"] == "CreateTime"
    older = TopicDescription("id", 10, 3, {"min.insync.replicas": "2"})
    assert topics.drift(desired.broker_topic(broker(), None, DEFAULTS), older) == []
    altered = replace(older, config={**older.config, "message.timestamp.type": "CreateTime"})
    (drifted,) = topics.drift(desired.broker_topic(broker(), None, DEFAULTS), altered)
    assert drifted == "message.timestamp.type: CreateTime, declared LogAppendTime"


def test_a_config_map_sets_the_topic_up() -> None:
    """naming.md: Broker config map."""
    data = config(
        default_topic_partitions="4",
        default_topic_replication_factor="2",
        default_topic_config_retention_ms="1000",
    )
    defaults = Defaults(DEFAULTS.kafka, topic_config={"min.insync.replicas": "2"})
    assert desired.broker_topic(broker(), data, defaults) == Topic(
        "knative-broker-shop-orders",
        4,
        2,
        {
            "min.insync.replicas": "2",
            "message.timestamp.type": "LogAppendTime",
            "retention.ms": "1000",
        },
    )


def test_a_single_node_gets_no_more_copies_than_it_can_keep() -> None:
    """The local mode runs a cluster's manifests unchanged."""
    data = config(default_topic_replication_factor="3")
    local = Defaults(DEFAULTS.kafka, max_replication=1)
    assert desired.broker_topic(broker(), data, local).replication == 1
    assert desired.broker_topic(broker(), None, local).replication == 1


@pytest.mark.conformance("KN-BRK-19")
def test_the_name_that_a_broker_got_once_is_kept() -> None:
    """KN-BRK-19: for life, also when the usual one has become free."""
    name = names.distinct_broker_topic("shop", "orders")
    kept = broker(status={"default.topic": name})
    assert desired.broker_topic(kept, None, DEFAULTS).name == name


@pytest.mark.parametrize("other", ["legacy", "knative-broker-shop-mail", "knafka-x", "__x", ""])
def test_a_status_never_gives_a_broker_a_topic_that_is_not_its_own(other: str) -> None:
    """One that was external, or that was written there by somebody else."""
    changed = broker(status={"default.topic": other})
    assert desired.broker_topic(changed, None, DEFAULTS).name == "knative-broker-shop-orders"


def test_an_external_topic_is_used_and_never_made() -> None:
    external = broker(annotations={EXTERNAL_TOPIC: "legacy"}, status={"default.topic": "other"})
    topic = desired.broker_topic(external, None, DEFAULTS)
    assert (topic.name, topic.external) == ("legacy", True)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("default_topic_partitions", "0", "0: want a whole number from 1 to 2147483647"),
        ("default_topic_partitions", "many", "many: want a whole number from 1 to 2147483647"),
        ("default_topic_partitions", "", ": want a whole number from 1 to 2147483647"),
        ("default_topic_replication_factor", "-1", "-1: want a whole number from 1 to 32767"),
        ("default_topic_replication_factor", "32768", "32768: want a whole number from 1 to 32767"),
    ],
)
def test_garbage_in_a_config_map_is_refused_by_its_key(key: str, value: str, problem: str) -> None:
    with pytest.raises(InvalidDocument) as raised:
        desired.broker_topic(broker(), config(**{key: value}), DEFAULTS)
    assert raised.value.path == "data." + key.replace("_", ".")
    assert raised.value.problem == f"invalid value: {problem}"


def test_a_config_maps_kafka_is_used_once_it_is_applied() -> None:
    applied = desired.defaults_with_config(config(bootstrap_servers=" a:9092 , b:9092,"), DEFAULTS)
    assert applied.kafka.bootstrap_servers == "a:9092,b:9092"
    assert desired.broker_ingress(broker(), TOPIC, {}, applied).kafka == applied.kafka
    assert desired.defaults_with_config(None, DEFAULTS) == DEFAULTS


def test_a_config_map_that_names_no_server_is_refused() -> None:
    with pytest.raises(InvalidDocument, match=r"data\.bootstrap\.servers: want host:port"):
        desired.defaults_with_config(config(bootstrap_servers=" , "), DEFAULTS)


@pytest.mark.parametrize(
    ("bad", "path"),
    [
        (broker(name="x" * 240), "metadata.name"),
        (broker(annotations={EXTERNAL_TOPIC: "a topic"}), f"metadata.annotations.{EXTERNAL_TOPIC}"),
        (broker(annotations={EXTERNAL_TOPIC: ""}), f"metadata.annotations.{EXTERNAL_TOPIC}"),
    ],
)
def test_a_name_that_kafka_would_refuse_is_refused_first(bad: Broker, path: str) -> None:
    with pytest.raises(InvalidDocument, match="want a topic's name") as raised:
        desired.broker_topic(bad, None, DEFAULTS)
    assert raised.value.path == path


@pytest.mark.conformance("KN-BRK-15")
def test_a_brokers_config_is_a_config_map_in_its_namespace_unless_it_says_otherwise() -> None:
    """KN-BRK-15."""
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c"}
    assert desired.config_reference(broker()) is None
    assert desired.config_reference(broker({"config": reference})) == ("shop", "c")
    elsewhere = broker({"config": {**reference, "namespace": "knative-eventing"}})
    assert desired.config_reference(elsewhere) == ("knative-eventing", "c")


def test_a_config_of_another_kind_is_refused() -> None:
    other = broker({"config": {"apiVersion": "v1", "kind": "Secret", "name": "c"}})
    with pytest.raises(InvalidDocument, match=r"spec\.config\.kind: .* want v1 ConfigMap"):
        desired.config_reference(other)


def test_an_ingress_says_where_a_brokers_events_go() -> None:
    entry = desired.broker_ingress(broker(), TOPIC, {}, DEFAULTS)
    assert (entry.path, entry.topic, entry.kafka) == ("/shop/orders", "t", DEFAULTS.kafka)


@pytest.mark.parametrize(
    ("config", "batch", "event"),
    [
        ({}, None, 1_000_000),
        ({"max.message.bytes": "100000"}, 100_000, 95_366),
        ({"max.message.bytes": "5242940"}, 5_242_940, 5_000_000),
    ],
)
def test_an_ingress_has_the_limits_of_its_topic_as_kafka_describes_it(
    config: dict[str, str], batch: int | None, event: int
) -> None:
    entry = desired.broker_ingress(broker(), TOPIC, config, DEFAULTS)
    assert (entry.max_batch_bytes, entry.max_event_bytes) == (batch, event)


def test_an_egress_says_all_about_a_trigger() -> None:
    dead = Sink(url="http://dead/")
    declared = trigger(
        {"filter": {"attributes": {"type": "a"}}, "filters": [{"exact": {"a": "b"}}]}
    )
    egress = egresses.trigger_egress(
        declared, broker(), TOPIC, egresses.TriggerDestinations(MAIL, dead), DEFAULTS
    )
    assert (egress.namespace, egress.broker, egress.trigger) == ("shop", "orders", "mail")
    assert (egress.topic, egress.group) == ("t", "knative-trigger-shop-mail")
    assert egress.dead_letter_topic == names.dead_letter_topic("shop", "orders", "mail")
    assert (egress.subscriber, egress.dead_letter_sink) == (MAIL, dead)
    assert egress.filter == AttributesFilter(attributes={"type": "a"})
    assert egress.filters == (Exact(exact={"a": "b"}),)


@pytest.mark.conformance("KN-BRK-19")
def test_the_group_that_a_trigger_got_once_is_kept() -> None:
    """KN-BRK-19: another group would begin elsewhere."""
    name = names.distinct_trigger_group("shop", "mail")
    assert egress_of(trigger(status={"group.id": name})).group == name


@pytest.mark.parametrize("other", ["payments", "knative-trigger-shop-other", ""])
def test_a_status_never_gives_a_trigger_a_group_that_is_not_its_own(other: str) -> None:
    changed = trigger(status={"group.id": other})
    assert egress_of(changed).group == "knative-trigger-shop-mail"


BROKERS = {"retry": 3, "timeout": "PT5S", "deadLetterSink": {"uri": "http://brokers/"}}


@pytest.mark.conformance("KN-BRK-15", "KN-DLV-01")
@pytest.mark.parametrize(
    ("triggers", "brokers", "want"),
    [
        pytest.param(
            {},
            {},
            Delivery(retry=10, backoff_policy=BackoffPolicy.EXPONENTIAL, backoff_delay=0.2),
            id="neither: KN-DLV-01's defaults",
        ),
        pytest.param({}, BROKERS, Delivery(retry=3, timeout=5), id="the Broker's"),
        pytest.param(
            {"backoffDelay": "PT1S"}, BROKERS, Delivery(backoff_delay=1), id="replaced as a whole"
        ),
        pytest.param({"retry": 0}, BROKERS, Delivery(retry=0), id="retry 0 wins"),
        pytest.param(
            {"deadLetterSink": {"uri": "http://triggers/"}}, BROKERS, Delivery(), id="a sink counts"
        ),
    ],
)
def test_any_option_on_the_trigger_replaces_the_brokers_delivery(
    triggers: dict[str, Any], brokers: dict[str, Any], want: Delivery
) -> None:
    """KN-BRK-15."""
    egress = egress_of(trigger({"delivery": triggers}), broker({"delivery": brokers}))
    assert egress.delivery == want
    assert type(egress.delivery) is Delivery


@pytest.mark.conformance("KN-BRK-15", "KN-DLV-07")
@pytest.mark.parametrize(
    ("triggers", "brokers", "want"),
    [
        ({}, {}, None),
        ({}, BROKERS, "http://brokers/"),
        ({"retry": 1}, BROKERS, None),
        ({"deadLetterSink": {"uri": "http://triggers/"}}, BROKERS, "http://triggers/"),
    ],
)
def test_the_dead_letter_sink_follows_the_same_rule(
    triggers: dict[str, Any], brokers: dict[str, Any], want: str | None
) -> None:
    """KN-BRK-15, KN-DLV-07."""
    found = egresses.dead_letter_destination(
        trigger({"delivery": triggers}), broker({"delivery": brokers})
    )
    assert found == (None if want is None else Destination(uri=want))


@pytest.mark.parametrize(
    ("annotations", "order"),
    [
        ({}, Order.KEY),
        ({DELIVERY_ORDER: "key"}, Order.KEY),
        ({DELIVERY_ORDER: "ordered"}, Order.PARTITION),
        ({DELIVERY_ORDER: "unordered"}, Order.NONE),
    ],
)
def test_the_annotation_chooses_the_order(annotations: dict[str, str], order: Order) -> None:
    assert egress_of(trigger(annotations=annotations)).order is order


def test_an_order_that_there_isnt_is_refused() -> None:
    with pytest.raises(InvalidDocument) as raised:
        egress_of(trigger(annotations={DELIVERY_ORDER: "Ordered"}))
    assert raised.value.path == f"metadata.annotations.{DELIVERY_ORDER}"
    assert raised.value.problem == "invalid value: Ordered: want ordered, unordered, key"


def test_a_trigger_may_bound_its_attempts_in_flight() -> None:
    assert egress_of(trigger(annotations={MAX_IN_FLIGHT: "7"})).max_in_flight == 7
    assert egress_of(trigger()).max_in_flight == 100


@pytest.mark.parametrize("bound", ["0", "10001", "lots"])
def test_a_bound_that_the_contract_would_refuse_is_refused_by_its_annotation(bound: str) -> None:
    with pytest.raises(InvalidDocument, match="want a whole number from 1 to 10000") as raised:
        egress_of(trigger(annotations={MAX_IN_FLIGHT: bound}))
    assert raised.value.path == f"metadata.annotations.{MAX_IN_FLIGHT}"


def settings_of(topic: Topic) -> TopicSettings:
    egress = egresses.trigger_egress(trigger(), broker(), topic, TO_MAIL, DEFAULTS)
    return egress.dead_letter_settings


def test_a_dead_letter_topic_is_bounded_in_time_alone_and_never_compacted() -> None:
    """Trap 9: an event without data is a tombstone to compaction."""
    declared = {"cleanup.policy": "compact,delete", "retention.ms": "60000", "retention.bytes": "1"}
    declared |= {"message.timestamp.type": "CreateTime"}
    config = settings_of(Topic("t", 6, 2, {**declared, "min.insync.replicas": "2"})).config
    assert (config.pop("max.message.bytes"), config) == (
        str(MAX_RECORD_BYTES + FAILURE_ATTRIBUTES_BYTES),
        {
            "cleanup.policy": "delete",
            "retention.ms": "2592000000",
            "retention.bytes": "-1",
            "min.insync.replicas": "2",
            # One record's time can't stop the compaction of all.
            "message.timestamp.type": "LogAppendTime",
        },
    )


@pytest.mark.parametrize(
    ("of_trigger", "of_broker", "configured", "kept"),
    [
        ("P90D", "P60D", "P10D", 90 * 86_400_000),
        (None, "P60D", "P10D", 60 * 86_400_000),
        (None, None, "P10D", 10 * 86_400_000),
        (None, None, None, 30 * 86_400_000),
        ("forever", "P60D", "P10D", -1),
        (None, None, "forever", -1),
        ("PT90M", None, None, 5_400_000),
    ],
)
def test_dead_letters_are_kept_as_long_as_the_nearest_says(
    of_trigger: str | None, of_broker: str | None, configured: str | None, kept: int
) -> None:
    declared = config(**({"dead_letter_topic_retention": configured} if configured else {}))
    mine, brokers = (
        {} if each is None else {RETENTION_ANNOTATION: each} for each in (of_trigger, of_broker)
    )
    egress = egresses.trigger_egress(
        trigger(annotations=mine),
        broker(annotations=brokers),
        Topic("t", 6, 3),
        TO_MAIL,
        desired.defaults_with_config(declared, DEFAULTS),
    )
    assert egress.dead_letter_settings.config["retention.ms"] == str(kept)


def test_a_brokers_own_dead_letters_are_kept_as_long_as_it_says_whatever_its_triggers_do() -> None:
    """Decision 0031: of records that hold no event."""
    egress = egresses.trigger_egress(
        trigger(annotations={RETENTION_ANNOTATION: "P1D"}),
        broker(annotations={RETENTION_ANNOTATION: "P2D"}),
        Topic("t", 6, 3),
        TO_MAIL,
        DEFAULTS,
    )
    name, settings = egress.broker_dead_letter_topic, egress.broker_dead_letter_settings
    assert settings is not None
    assert name == names.dead_letter_topic("shop", "orders", "")
    assert names.is_dead_letter_topic(name, "shop", "orders")
    assert (settings.replication, settings.config["retention.ms"]) == (3, str(2 * 86_400_000))


def test_a_contract_says_nothing_of_them_where_its_trigger_says_nothing_of_its_own() -> None:
    """Dispatchers of an earlier release read it, too, and refuse what they don't know."""
    said = documents.dump(egress_of(trigger()))
    assert not {"sharesTopic", "brokerDeadLetterSettings"} & said.keys()


def test_what_one_trigger_alone_reads_has_no_dead_letters_of_its_broker() -> None:
    assert egresses.replay_egress(egress_of(trigger())).broker_dead_letter_topic is None


@pytest.mark.parametrize("text", ["", "30", "PT59S", "P36501D", "-1", "never", "P30"])
def test_a_retention_that_means_nothing_is_refused_by_its_name(text: str) -> None:
    wanted = "want P30D, PT12H or the like, from PT1M to P36500D, or forever"
    with pytest.raises(InvalidDocument, match=wanted) as raised:
        egress_of(trigger(annotations={RETENTION_ANNOTATION: text}))
    assert raised.value.path == f"metadata.annotations.{RETENTION_ANNOTATION}"
    with pytest.raises(InvalidDocument, match=wanted) as raised:
        desired.defaults_with_config(config(dead_letter_topic_retention=text), DEFAULTS)
    assert raised.value.path == "data.dead.letter.topic.retention"


def test_a_dead_letter_topic_has_few_partitions_and_the_brokers_replication() -> None:
    settings = settings_of(Topic("t", 60, 2))
    assert (settings.partitions, settings.replication) == (1, 2)


def test_how_an_external_topic_is_replicated_is_no_model_for_its_dead_letters() -> None:
    assert settings_of(Topic("t", 60, 3, external=True)).replication == -1


def test_a_dead_letter_topic_has_room_for_the_story_of_the_failure() -> None:
    """An event as large as its topic takes must still be buriable."""
    config = settings_of(Topic("t", 6, 2, {"max.message.bytes": "1000"})).config
    assert int(config["max.message.bytes"]) == 1000 + FAILURE_ATTRIBUTES_BYTES
    most = settings_of(Topic("t", 6, 2, {"max.message.bytes": str(2**31 - 1)})).config
    assert int(most["max.message.bytes"]) == 2**31 - 1


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        ({"default_topic_replication_factor": "3"}, "2"),
        ({"default_topic_replication_factor": "5"}, "2"),
        ({"default_topic_replication_factor": "2"}, None),
        (
            {
                "default_topic_replication_factor": "3",
                "default_topic_config_min_insync_replicas": "1",
            },
            "1",
        ),
    ],
)
def test_where_there_are_three_replicas_two_acknowledge(
    data: dict[str, str], wanted: str | None
) -> None:
    """Else a broker that dies right after an acknowledgement takes the event with it."""
    topic = desired.broker_topic(broker(), config(**data), DEFAULTS)
    assert topic.config.get("min.insync.replicas") == wanted
    assert settings_of(topic).config.get("min.insync.replicas") == wanted


def test_nothing_is_said_of_replicas_that_a_single_node_does_not_have() -> None:
    one = replace(DEFAULTS, max_replication=1)
    assert "min.insync.replicas" not in desired.broker_topic(broker(), None, one).config
