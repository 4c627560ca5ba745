"""Declared documents: what is read, and what is refused by path in upstream's words."""

from __future__ import annotations

from typing import Any

import pytest
from support.certificates import PEM

from knafka.core.errors import InvalidDocument
from knafka.core.filters.declared_filters import AttributesFilter, Exact
from knafka_operator.model.resources import (
    BROKER_CLASS,
    BROKER_CLASSES,
    AddressReference,
    Broker,
    ConfigMap,
    Destination,
    Service,
    Trigger,
    is_ours,
    parse_resource,
    parse_whole_number,
)

EVENTING = "eventing.knative.dev/v1"
MAIL = {"uri": "http://mail/"}
REF = {"apiVersion": "v1", "kind": "Service", "name": "mail"}


def document(kind: str = "Trigger", **changes: Any) -> dict[str, Any]:
    spec: object = {"broker": "orders", "subscriber": MAIL} if kind == "Trigger" else {}
    return {"apiVersion": EVENTING, "kind": kind, "metadata": {"name": "mail"}, "spec": spec} | (
        changes
    )


def trigger(**spec: Any) -> Trigger:
    parsed = parse_resource(document(spec={"broker": "orders", "subscriber": MAIL, **spec}))
    assert isinstance(parsed, Trigger)
    return parsed


def refusal(document: object) -> InvalidDocument:
    with pytest.raises(InvalidDocument) as raised:
        parse_resource(document)
    return raised.value


def test_a_trigger_is_read_with_all_its_fields() -> None:
    """naming.md: Trigger."""
    parsed = trigger(
        filter={"attributes": {"type": "a"}},
        filters=[{"exact": {"type": "b"}}],
        subscriber={"ref": REF, "uri": "/in", "CACerts": PEM, "audience": "mail"},
        delivery={
            "deadLetterSink": {"uri": "http://dead/"},
            "retry": 3,
            "backoffPolicy": "linear",
            "backoffDelay": "PT2S",
            "timeout": "PT5S",
            "retryAfterMax": "PT1M",
            "format": "json",
        },
    )
    assert parsed.id == "default/mail"
    assert parsed.spec.filter == AttributesFilter(attributes={"type": "a"})
    assert parsed.spec.filters == (Exact(exact={"type": "b"}),)
    assert parsed.spec.subscriber == Destination(
        ref=AddressReference(api_version="v1", kind="Service", name="mail"),
        uri="/in",
        CACerts=PEM,
        audience="mail",
    )
    assert parsed.spec.delivery.dead_letter_sink == Destination(uri="http://dead/")
    assert (parsed.spec.delivery.retry, parsed.spec.delivery.timeout) == (3, 5.0)


def test_what_the_api_server_adds_is_tolerated() -> None:
    """`kubectl get -o yaml` can be fed back."""
    parsed = parse_resource(
        document(
            metadata={
                "name": "mail",
                "namespace": "shop",
                "uid": "1-2",
                "generation": 4,
                "creationTimestamp": "2025-01-01T00:00:00Z",
                "managedFields": [{"manager": "kubectl"}],
                "labels": {"eventing.knative.dev/broker": "orders"},
            },
            status={"conditions": [], "annotations": {"group.id": "g"}, "subscriberUri": "x"},
        )
    )
    assert isinstance(parsed, Trigger)
    assert (parsed.id, parsed.metadata.uid, parsed.metadata.generation) == ("shop/mail", "1-2", 4)
    assert parsed.status.annotations == {"group.id": "g"}


@pytest.mark.conformance("KN-BRK-15")
def test_a_field_set_to_null_is_left_out() -> None:
    """As by the API server, so `delivery: null` overrides nothing (KN-BRK-15)."""
    parsed = trigger(filter=None, filters=None, delivery=None, brokerRef=None)
    assert parsed == trigger()
    assert not parsed.spec.delivery.is_set
    assert not trigger(delivery={"retry": None}).spec.delivery.is_set


@pytest.mark.conformance("KN-BRK-15")
@pytest.mark.parametrize("delivery", [{"retry": 0}, {"deadLetterSink": {"ref": REF}}])
def test_any_delivery_option_counts_even_one_that_is_the_default(delivery: object) -> None:
    """KN-BRK-15: `retry: 0` on a Trigger wins over the Broker's `retry: 3`."""
    assert trigger(delivery=delivery).spec.delivery.is_set


@pytest.mark.conformance("KN-BRK-16")
def test_a_broker_needs_no_spec() -> None:
    """KN-BRK-16."""
    bare = {key: value for key, value in document("Broker").items() if key != "spec"}
    parsed = parse_resource(bare)
    assert isinstance(parsed, Broker)
    assert (parsed.spec.config, parsed.spec.delivery.is_set) == (None, False)


def test_a_config_map_is_read() -> None:
    parsed = parse_resource(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "kafka-broker-config", "namespace": "knative-eventing"},
            "data": {"default.topic.partitions": "3"},
            "immutable": True,
        }
    )
    assert isinstance(parsed, ConfigMap)
    assert parsed.data == {"default.topic.partitions": "3"}


def test_of_a_knative_service_its_annotations_and_environment_are_read() -> None:
    parsed = parse_resource(
        {
            "apiVersion": "serving.knative.dev/v1",
            "kind": "Service",
            "metadata": {"name": "mail", "annotations": {"a": "service", "b": "service"}},
            "spec": {
                "template": {
                    "metadata": {"annotations": {"b": "template"}},
                    "spec": {
                        "containerConcurrency": 10,
                        "containers": [
                            {
                                "image": "mail:1",
                                "env": [
                                    {"name": "PORT", "value": "1"},
                                    {"name": "SECRET", "valueFrom": {"secretKeyRef": {}}},
                                ],
                            }
                        ],
                    },
                }
            },
        }
    )
    assert isinstance(parsed, Service)
    assert parsed.annotations == {"a": "service", "b": "template"}
    assert parsed.env == {"PORT": "1", "SECRET": ""}


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [
        ("v1", "Service"),
        ("eventing.knative.dev/v1beta1", "Trigger"),
        ("messaging.knative.dev/v1", "Subscription"),
    ],
)
def test_other_kinds_are_none_of_ours(api_version: str, kind: str) -> None:
    assert parse_resource({"apiVersion": api_version, "kind": kind, "spec": 5}) is None


@pytest.mark.conformance("KN-DLV-06", "KN-TRG-05", "KN-TRG-10")
@pytest.mark.parametrize(
    ("broken", "path", "problem"),
    [
        ([], "", "a document is an object with apiVersion, kind and metadata"),
        ({"a": "b"}, "apiVersion", "missing field(s): apiVersion, kind"),
        ({"apiVersion": "v1", "kind": ["x"]}, "kind", "invalid value: want a string"),
        (document(metadata={}), "metadata.name", "missing field(s): metadata.name"),
        (
            document(metadata={"name": "Mail"}),
            "metadata.name",
            "invalid value: Mail: want a-z, 0-9, '-' or '.', at most 253",
        ),
        (
            document(metadata={"name": "mail", "namespace": "a.b"}),
            "metadata.namespace",
            "invalid value: a.b: want a-z, 0-9 or '-', at most 63",
        ),
        (
            document(metadata={"name": "mail", "annotations": {"knafka.dev/max-in-flight": 3}}),
            "metadata.annotations.knafka.dev/max-in-flight",
            "invalid value: 3: want a string",
        ),
        (document(specs={}), "specs", "unknown field"),
        (document(spec=None), "spec", "missing field(s): spec"),
        (document(spec="mail"), "spec", 'invalid value: "mail": want an object'),
        (document(spec={}), "spec.broker", "missing field(s): spec.broker, spec.subscriber"),
        (
            document(spec={"broker": "b"}),
            "spec.subscriber",
            "missing field(s): spec.subscriber",
        ),
        (
            document(spec={"broker": "", "subscriber": MAIL}),
            "spec.broker",
            "missing field(s): spec.broker",
        ),
        (
            document(spec={"broker": "b", "brokerRef": REF, "subscriber": MAIL}),
            "spec.broker",
            "expected exactly one, got both: spec.broker, spec.brokerRef",
        ),
        (
            document(spec={"brokerRef": {**REF, "namespace": "other"}, "subscriber": MAIL}),
            "spec.brokerRef.namespace",
            "invalid value: other, a Trigger's Broker is in its own namespace",
        ),
        (
            document(spec={"broker": "b", "subscriber": {}}),
            "spec.subscriber.ref",
            "expected at least one, got none: spec.subscriber.ref, spec.subscriber.uri",
        ),
        (
            document(spec={"broker": "b", "subscriber": {"uri": "/in"}}),
            "spec.subscriber.uri",
            "relative URL without a ref: /in: want an absolute one",
        ),
        (
            document(spec={"broker": "b", "subscriber": {"uri": "//host/in"}}),
            "spec.subscriber.uri",
            "relative URL without a ref: //host/in: want an absolute one",
        ),
        (
            document(spec={"broker": "b", "subscriber": {"uri": "host:8080/in"}}),
            "spec.subscriber.uri",
            "a URL without a host: host:8080/in: want one such as http://host/path",
        ),
        (
            document(spec={"broker": "b", "subscriber": {"uri": "http://h/", "ref": REF}}),
            "spec.subscriber.uri",
            "absolute URL beside a ref: http://h/: want a relative one",
        ),
        (
            document(spec={"broker": "b", "subscriber": {"uri": "http://[h/"}}),
            "spec.subscriber.uri",
            "invalid value: http://[h/, Invalid IPv6 URL",
        ),
        (
            document(spec={"broker": "b", "subscriber": {"ref": {"name": "mail"}}}),
            "spec.subscriber.ref.apiVersion",
            "missing field(s): spec.subscriber.ref.apiVersion, spec.subscriber.ref.kind",
        ),
        (
            document(spec={"broker": "b", "subscriber": MAIL, "delivery": {"retry": -1}}),
            "spec.delivery.retry",
            "invalid value: -1: want greater than or equal to 0",
        ),
        (
            document(spec={"broker": "b", "subscriber": MAIL, "delivery": {"backoffPolicy": "x"}}),
            "spec.delivery.backoffPolicy",
            "invalid value: x: want 'linear' or 'exponential'",
        ),
        (
            document("Broker", spec={"delivery": {"deadLetterSink": {}}}),
            "spec.delivery.deadLetterSink.ref",
            "expected at least one, got none: "
            "spec.delivery.deadLetterSink.ref, spec.delivery.deadLetterSink.uri",
        ),
        (
            document(spec={"broker": "b", "subscriber": MAIL, "filters": [{"exact": {}}]}),
            "spec.filters[0].exact",
            "invalid value: want at least one entry",
        ),
        (
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "a"},
                "data": {"k.l": 1},
            },
            "data.k.l",
            "invalid value: 1: want a string",
        ),
    ],
)
def test_a_broken_document_is_refused_by_path(broken: object, path: str, problem: str) -> None:
    """KN-DLV-06, KN-TRG-05, KN-TRG-10; the words are upstream's where it has any."""
    error = refusal(broken)
    assert (error.path, error.problem) == (path, problem)


@pytest.mark.parametrize(
    "reference",
    [
        {"apiVersion": EVENTING, "kind": "Broker", "name": "orders"},
        {"name": "orders"},
        {"name": "orders", "namespace": "default"},
    ],
)
def test_a_trigger_may_refer_to_its_broker_by_broker_ref(reference: dict[str, str]) -> None:
    spec = {"brokerRef": reference, "broker": "", "subscriber": MAIL}
    parsed = parse_resource(document(spec=spec))
    assert isinstance(parsed, Trigger)
    assert parsed.spec.broker == "orders"


def test_an_empty_namespace_is_none() -> None:
    parsed = parse_resource(document(metadata={"name": "mail", "namespace": ""}))
    assert isinstance(parsed, Trigger)
    assert parsed.id == "default/mail"
    reference = trigger(subscriber={"ref": {**REF, "namespace": ""}}).spec.subscriber.ref
    assert reference is not None
    assert reference.namespace is None


@pytest.mark.conformance("KN-BRK-04")
@pytest.mark.parametrize(
    ("annotations", "ours"),
    [
        ({BROKER_CLASS: "Kafka"}, True),
        ({BROKER_CLASS: "kafka"}, True),
        ({BROKER_CLASS: "KafkaNamespaced"}, False),
        ({BROKER_CLASS: "MTChannelBasedBroker"}, False),
        ({}, False),
    ],
)
def test_a_broker_is_ours_by_its_class(annotations: dict[str, str], ours: bool) -> None:
    """KN-BRK-04; one of another class is read all the same, to be left alone knowingly."""
    parsed = parse_resource(
        document("Broker", metadata={"name": "orders", "annotations": annotations})
    )
    assert isinstance(parsed, Broker)
    assert is_ours(parsed) is ours


def test_a_broker_without_a_class_is_ours_where_there_is_no_other() -> None:
    broker = parse_resource(document("Broker"))
    assert isinstance(broker, Broker)
    assert is_ours(broker, BROKER_CLASSES | {""})


@pytest.mark.parametrize("text", ["", "-1", "1.5", "1e3", "٣", "0x1", "9" * 99, "0", "101", "1 0"])
def test_what_is_no_whole_number_in_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidDocument, match="want a whole number from 1 to 100") as raised:
        parse_whole_number(text, "data.n", 1, 100)
    assert raised.value.path == "data.n"


@pytest.mark.parametrize("text", ["7", " 7 ", "007"])
def test_a_whole_number_may_be_padded(text: str) -> None:
    assert parse_whole_number(text, "data.n", 1, 100) == 7
