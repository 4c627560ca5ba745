"""What the webhooks refuse, in Knative's words; of changes, see test_admission_changes."""

from __future__ import annotations

import copy
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from support.admitted import (
    CONFIG,
    DEAD,
    EVENTING,
    MAIL,
    broker,
    refusal,
    trigger,
    without,
)

from knafka.core.errors import InvalidDocument
from knafka_operator.brokers.admission import class_warnings
from knafka_operator.dispatchers.conditions import (
    DEPENDENCY,
    TriggerDependency,
    declared_dependency,
)
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.maxima import UNLIMITED_MAXIMA, Maxima
from knafka_operator.model.resources import (
    AUTOSCALING,
    BROKER_CLASS,
    DELIVERY_ORDER,
    EXTERNAL_TOPIC,
    MAX_IN_FLIGHT,
    Metadata,
)
from knafka_operator.triggers.admission import INJECTION, check_trigger, trigger_warnings
from knafka_operator.webhooks import handlers


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(trigger(), id="trigger"),
        pytest.param(trigger(filter={"attributes": {"type": ""}}), id="any-value"),
        pytest.param(trigger(filters=[]), id="no-filters"),
        pytest.param(trigger(filters=[{"exact": {"type": "a", "source": "b"}}]), id="two-keys"),
        pytest.param(trigger(filters=[{"not": {"cesql": "type = 'a'"}}]), id="nested"),
        pytest.param(trigger({DELIVERY_ORDER: "ordered"}), id="order"),
        pytest.param(trigger({MAX_IN_FLIGHT: "10"}), id="max-in-flight"),
        pytest.param(trigger({AUTOSCALING + "max-scale": "4"}), id="autoscaling"),
        pytest.param(trigger({"knafka.dev/consumer.client.rack": "a"}), id="rack"),
        pytest.param(trigger({"knafka.dev/start-position": "earliest"}), id="start"),
        pytest.param(trigger({INJECTION: "enabled"}, broker="default"), id="injection"),
        pytest.param(trigger(delivery={"retry": 0, "timeout": "PT1S"}), id="delivery"),
        pytest.param(trigger(subscriber={"uri": "bad://uri"}), id="any-scheme"),
        pytest.param({**trigger(), "status": {"annotations": 1}}, id="odd-status"),
        pytest.param(broker(), id="broker"),
        pytest.param(broker({}), id="no-class"),
        pytest.param(broker({EXTERNAL_TOPIC: "orders.v1"}), id="external-topic"),
        pytest.param(broker(config=CONFIG, delivery={"retry": 3}), id="config"),
        pytest.param(
            broker(config={**CONFIG, "namespace": "knative-eventing"}), id="config-elsewhere"
        ),
    ],
)
def test_what_is_well_formed_is_let_pass(document: dict[str, Any]) -> None:
    assert refusal(document) == ""


@pytest.mark.conformance("KN-TRG-09")
@pytest.mark.parametrize(
    "name",
    [
        *("source", "id", "specversion", "type", "subject", "time", "datacontenttype"),
        *("dataschema", "aaa", "c1d2e3", "abcdefghijklmnopqrst"),
    ],
)
def test_the_conformance_tests_positive_names_are_let_pass(name: str) -> None:
    """KN-TRG-09."""
    assert refusal(trigger(filter={"attributes": {name: "x"}})) == ""
    assert refusal(trigger(filters=[{"prefix": {name: "x"}}])) == ""


@pytest.mark.conformance("KN-TRG-09")
@pytest.mark.parametrize(
    "name",
    [
        *("SOURCE", "Source", "souRce", "s pace s", "s_pace_s", "s-pace-s", "123", "😊"),
        *("!@#$%^&*()-_=_`~+\\", "{}[];':\"<>,./?"),
    ],
)
def test_the_conformance_tests_negative_names_are_refused(name: str) -> None:
    """KN-TRG-09."""
    quoted = json.dumps(name, ensure_ascii=False)
    wanted = "want a-z, then a-z or 0-9 (^[a-z][a-z0-9]*$)"
    assert refusal(trigger(filter={"attributes": {name: "x"}})) == (
        f"invalid key name {quoted}: spec.filter.attributes[{name}]\n{wanted}"
    )
    assert refusal(trigger(filters=[{"all": [{"exact": {name: "x"}}]}])) == (
        f"invalid key name {quoted}: spec.filters[0].all[0].exact[{name}]\n{wanted}"
    )


def sentence(text: str) -> str:
    return f"The provided annotation was not a corev1.ObjectReference: {text}: " + AT_DEPENDENCY


AT_DEPENDENCY = "metadata.annotations[knative.dev/dependency]"
REFUSED = [
    pytest.param(
        without(trigger(), "subscriber"), "missing field(s): spec.subscriber", id="no-subscriber"
    ),
    pytest.param(
        {**trigger(), "spec": {}},
        "missing field(s): spec.broker, spec.subscriber",
        id="nothing-said",
    ),
    pytest.param(trigger(broker=""), "missing field(s): spec.broker", id="empty-broker"),
    pytest.param(
        trigger(brokerRef={"apiVersion": EVENTING, "kind": "Broker", "name": "orders"}),
        "expected exactly one, got both: spec.broker, spec.brokerRef",
        id="two-brokers",
    ),
    pytest.param(
        trigger(subscriber={}),
        "expected at least one, got none: spec.subscriber.ref, spec.subscriber.uri",
        id="empty-subscriber",
    ),
    pytest.param(
        trigger(subscriber={"ref": {"name": "mail"}}),
        "missing field(s): spec.subscriber.ref.apiVersion, spec.subscriber.ref.kind",
        id="half-a-reference",
    ),
    pytest.param(
        trigger(subscriber={**MAIL, "CACerts": "no PEM"}),
        "invalid value: CA Cert provided is invalid: spec.subscriber.CACerts",
        id="broken-certificate",
    ),
    pytest.param(
        broker(delivery={"deadLetterSink": {**DEAD, "CACerts": "no PEM"}}),
        "invalid value: CA Cert provided is invalid: spec.delivery.deadLetterSink.CACerts",
        id="broken-certificate-of-the-sink",
    ),
    pytest.param(trigger(subscribr=MAIL), "unknown field: spec.subscribr", id="unknown-field"),
    pytest.param(
        trigger(filters=[{"exact": {"type": "a"}, "suffix": {"type": "b"}}]),
        "multiple dialects found, filters can have only one dialect set: spec.filters[0]",
        id="two-dialects",
    ),
    pytest.param(
        trigger(filters=[{"any": [{"cesql": "TRUE"}, {"all": [], "cesql": "TRUE"}]}]),
        "multiple dialects found, filters can have only one dialect set: spec.filters[0].any[1]",
        id="two-dialects-within",
    ),
    pytest.param(
        trigger(filters=[{"cesql": "TRUE"}, {"cesql": "this is wrong"}]),
        "invalid value: this is wrong: spec.filters[1].cesql\n"
        "invalid CESQL expression: expected an operator or the end, found is (at character 5)",
        id="broken-cesql",
    ),
    pytest.param(
        trigger(filters=[{"exact": {"type": ""}}]),
        "invalid value: : spec.filters[0].exact.type\nwant a string that is not empty",
        id="empty-value",
    ),
    pytest.param(
        trigger(filters=[{"prefix": {"": "a"}}]),
        'invalid key name "": spec.filters[0].prefix[]\n'
        "want a-z, then a-z or 0-9 (^[a-z][a-z0-9]*$)",
        id="empty-key",
    ),
    pytest.param(
        trigger(filters=[{"suffix": {}}]),
        "invalid value: spec.filters[0].suffix\nwant at least one entry",
        id="empty-dialect",
    ),
    pytest.param(
        trigger(delivery={"retry": -1}),
        "invalid value: -1: spec.delivery.retry\nwant greater than or equal to 0",
        id="negative-retry",
    ),
    pytest.param(
        trigger(delivery={"backoffPolicy": "x"}),
        "invalid value: x: spec.delivery.backoffPolicy\nwant 'linear' or 'exponential'",
        id="unknown-policy",
    ),
    pytest.param(
        broker(delivery={"backoffDelay": "1s"}),
        "invalid value: 1s: spec.delivery.backoffDelay\n"
        "want an ISO-8601 duration, such as PT0.2S or PT5M",
        id="invalid-delay",
    ),
    pytest.param(
        trigger(delivery={"timeout": "PT0S"}),
        "invalid value: PT0S: spec.delivery.timeout\nwant greater than 0",
        id="zero-timeout",
    ),
    pytest.param(
        trigger(delivery={"retryAfterMax": "-PT1S"}),
        "invalid value: -PT1S: spec.delivery.retryAfterMax\n"
        "want an ISO-8601 duration, such as PT0.2S or PT5M",
        id="negative-retry-after",
    ),
    pytest.param(
        trigger(delivery={"format": "JSON"}),
        "invalid value: JSON: spec.delivery.format\nwant 'json' or 'binary'",
        id="unknown-format",
    ),
    pytest.param(
        trigger({DELIVERY_ORDER: "sorted"}),
        "invalid value: sorted: "
        "metadata.annotations[kafka.eventing.knative.dev/delivery.order]\n"
        "want ordered, unordered, key",
        id="unknown-order",
    ),
    pytest.param(
        trigger({MAX_IN_FLIGHT: "0"}),
        "invalid value: 0: metadata.annotations[knafka.dev/max-in-flight]\n"
        "want a whole number from 1 to 10000",
        id="nothing-in-flight",
    ),
    pytest.param(
        trigger({"knafka.dev/producer.compression.type": "brotli"}),
        "invalid value: brotli: metadata.annotations[knafka.dev/producer.compression.type]\n"
        "want one of none, gzip, snappy, lz4, zstd",
        id="client-setting",
    ),
    pytest.param(
        trigger({"knafka.dev/start-position": "yesterday"}),
        "invalid value: yesterday: metadata.annotations[knafka.dev/start-position]\n"
        "want latest, earliest, or a time with its zone, such as 2026-01-31T12:00:00Z",
        id="start",
    ),
    pytest.param(
        trigger({AUTOSCALING + "min-scale": "many"}),
        "invalid value: many: metadata.annotations[autoscaling.eventing.knative.dev/min-scale]\n"
        "want a whole number from 0 to 2147483647",
        id="autoscaling",
    ),
    pytest.param(
        trigger({DEPENDENCY: "mail"}),
        sentence('"mail"') + "\nExpecting value: line 1 column 1 (char 0)",
        id="dependency-no-json",
    ),
    pytest.param(
        trigger({DEPENDENCY: "[1]"}), sentence('"[1]"') + "\nwant an object", id="dependency-list"
    ),
    pytest.param(
        trigger({DEPENDENCY: "{}"}),
        f"missing field(s): {AT_DEPENDENCY}.apiVersion, {AT_DEPENDENCY}.kind, {AT_DEPENDENCY}.name",
        id="dependency-empty",
    ),
    pytest.param(
        trigger({DEPENDENCY: '{"apiVersion":"v1","kind":"A","name":"a","namespace":"else"}'}),
        'Namespace must be empty or equal to the trigger namespace "shop": '
        f"{AT_DEPENDENCY}.namespace",
        id="dependency-elsewhere",
    ),
    pytest.param(
        trigger({INJECTION: "yes"}, broker="default"),
        'The provided injection annotation value can only be "enabled" or "disabled", not "yes": '
        "metadata.annotations[eventing.knative.dev/injection]",
        id="injection-value",
    ),
    pytest.param(
        trigger({INJECTION: "enabled"}),
        "The provided injection annotation is only used for default broker, but non-default broker "
        'specified here: "orders": metadata.annotations[eventing.knative.dev/injection]',
        id="injection-of-another-broker",
    ),
    pytest.param(
        broker({EXTERNAL_TOPIC: "my orders"}),
        "invalid value: my orders: metadata.annotations[kafka.eventing.knative.dev/external.topic]"
        "\nwant a topic's name, at most 249 of A-Z, a-z, 0-9, '.', '_' and '-'",
        id="external-topic",
    ),
    pytest.param(
        broker({EXTERNAL_TOPIC: "knative-broker-prod-default"}),
        "invalid value: knative-broker-prod-default: "
        "metadata.annotations[kafka.eventing.knative.dev/external.topic]"
        "\ntopics whose names begin with knative-broker- are the topics of Brokers",
        id="topic-of-a-broker",
    ),
    pytest.param(
        broker({EXTERNAL_TOPIC: "__consumer_offsets"}),
        "invalid value: __consumer_offsets: "
        "metadata.annotations[kafka.eventing.knative.dev/external.topic]"
        "\ntopics whose names begin with __ are internal to Kafka",
        id="internal-topic",
    ),
    pytest.param(
        broker(config={"kind": "ConfigMap"}),
        "missing field(s): spec.config.apiVersion, spec.config.name",
        id="half-a-config",
    ),
]


@pytest.mark.conformance("KN-TRG-05", "KN-TRG-09", "KN-TRG-10", "KN-TRG-13", "KN-DLV-06", "BUS-30")
@pytest.mark.parametrize(("document", "told"), REFUSED)
def test_what_is_wrong_is_told_as_upstream_tells_it(document: dict[str, Any], told: str) -> None:
    """KN-TRG-05, KN-TRG-09, KN-TRG-10, KN-TRG-13, KN-DLV-06."""
    assert refusal(document) == told


@pytest.mark.parametrize(("document", "told"), REFUSED)
def test_a_stored_document_may_stay_as_wrong_as_it_was(document: dict[str, Any], told: str) -> None:
    """Else the operator could neither put its finaliser on it nor take it off."""
    finalised = copy.deepcopy(document)
    finalised["metadata"]["finalizers"] = ["brokers.eventing.knative.dev"]
    assert refusal(finalised, document) == ""


def test_everything_wrong_is_told_at_once() -> None:
    document = trigger(
        {DELIVERY_ORDER: "sorted", INJECTION: "enabled"},
        filters=[{"cesql": "("}, {"equals": {}}],
        delivery={"retry": -1, "timeout": "soon"},
    )
    with pytest.raises(InvalidDocument) as raised:
        check_trigger(document)
    lines = str(raised.value).splitlines()
    for part in (
        "spec.filters[0].cesql",
        "spec.filters[1]",
        "spec.delivery.retry",
        "spec.delivery.timeout",
        "delivery.order]",
        "injection]",
    ):
        assert sum(part in line for line in lines) == 1, part
    assert raised.value.path == "metadata.annotations[eventing.knative.dev/injection]"


def test_autoscaling_annotations_stand_over_the_installations_defaults() -> None:
    document = trigger({AUTOSCALING + "min-scale": "4"})
    check_trigger(document)
    with pytest.raises(InvalidDocument, match=r"invalid value: 4: .*min-scale\]\nwant at most"):
        check_trigger(document, autoscaling=Autoscaling(max_scale=3))


@pytest.mark.conformance("KN-TRG-13")
def test_a_dependency_is_read() -> None:
    """KN-TRG-13; an ObjectReference has more fields than we read."""
    reference = {"apiVersion": "v1", "kind": "A", "name": "a", "uid": "1", "fieldPath": ""}
    document = trigger({DEPENDENCY: json.dumps(reference)})
    assert refusal(document) == ""
    metadata = Metadata(
        name="mail", namespace="shop", annotations={DEPENDENCY: json.dumps(reference)}
    )
    assert declared_dependency(metadata) == TriggerDependency(api_version="v1", kind="A", name="a")
    assert declared_dependency(Metadata(name="mail")) is None


@pytest.mark.conformance("KN-TRG-13")
@pytest.mark.parametrize("text", ["{", "null", "[" * 200_000, '{"kind": "A"}'], ids=len)
def test_a_broken_dependency_is_refused(text: str) -> None:
    """KN-TRG-13, for the condition where webhooks are off."""
    with pytest.raises(InvalidDocument, match=re.escape(DEPENDENCY)):
        declared_dependency(Metadata(name="mail", annotations={DEPENDENCY: text}))


def test_a_filter_that_can_never_be_true_is_warned_of() -> None:
    assert trigger_warnings(trigger(filters=[{"cesql": "type = 'a'"}])) == []
    assert trigger_warnings(trigger(filters=[{"not": {"cesql": "LENGTH(type)"}}])) == [
        "spec.filters[0].not.cesql: LENGTH(type) returns an integer, which no filter takes for true"
    ]
    assert trigger_warnings(trigger(filters=[{"cesql": "("}])) == [], "refused for its own reason"


@pytest.mark.parametrize(
    "class_", ["KAFKA", "kafKa", " kafka", "kafka ", "Kakfa", "knafka", "kafk", "kafkas"]
)
def test_a_near_miss_of_our_classes_is_warned_of(class_: str) -> None:
    """Issue 30: such a Broker had no status, no warning, and nobody who served it."""
    (told,) = class_warnings(broker({BROKER_CLASS: class_}), frozenset({"Kafka", "kafka"}))
    assert f": {class_} is no class" in told
    assert "Kafka or kafka" in told


@pytest.mark.parametrize("annotations", [{}, {BROKER_CLASS: ""}, {"broker.class": "kafka"}])
def test_a_broker_without_a_class_is_warned_of(annotations: dict[str, str]) -> None:
    (told,) = class_warnings(broker(annotations), frozenset({"Kafka", "kafka"}))
    assert "is not set" in told


@pytest.mark.parametrize(
    "class_", ["MTChannelBasedBroker", "KafkaNamespaced", "RabbitMQBroker", "GoogleCloud", "x"]
)
def test_other_implementations_classes_are_none_of_our_business(class_: str) -> None:
    assert class_warnings(broker({BROKER_CLASS: class_}), frozenset({"Kafka", "kafka"})) == []


def test_the_webhook_warns_of_brokers_that_are_not_ours_only() -> None:
    classes = frozenset({"Kafka", "kafka"})
    for class_, warned in [("kafka", False), ("KAFKA", True), ("MTChannelBasedBroker", False)]:
        brokers = SimpleNamespace(
            is_ours=lambda document: document["metadata"]["annotations"][BROKER_CLASS] in classes,
            settings=SimpleNamespace(broker_classes=classes),
        )
        told: list[str] = []
        settings = SimpleNamespace(maxima=UNLIMITED_MAXIMA)
        memo: Any = SimpleNamespace(operator=SimpleNamespace(brokers=brokers, settings=settings))
        document: Any = broker({BROKER_CLASS: class_})
        check: Any = handlers.check_broker
        check(document, memo=memo, warnings=told)
        assert bool(told) is warned


def test_the_webhook_passes_warnings_on() -> None:
    told: list[str] = []
    document = trigger(filters=[{"cesql": "subject"}])
    settings = SimpleNamespace(maxima=Maxima())
    operator = SimpleNamespace(may_be_ours=lambda _: True, settings=settings)
    check: Any = handlers.check_trigger
    check(document, memo=SimpleNamespace(operator=operator), warnings=told)
    assert len(told) == 1
