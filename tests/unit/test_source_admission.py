"""KafkaSources as they are admitted: upstream's defaults, and what is refused in its words."""

from __future__ import annotations

from typing import Any

import pytest

from knafka.core.errors import InvalidDocument
from knafka_operator.model.sources import KEY_TYPE
from knafka_operator.sources.admission import check_source, with_source_defaults

REF = {"apiVersion": "v1", "kind": "Service", "name": "sink"}
KEY = {"secretKeyRef": {"name": "s", "key": "k", "optional": False}}
SPEC: dict[str, Any] = {
    "topics": ["raw"],
    "bootstrapServers": ["kafka:9092"],
    "consumerGroup": "readers",
    "initialOffset": "latest",
    "ordering": "ordered",
    "sink": {"uri": "http://sink/"},
}


def source(labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"namespace": "shop", "name": "orders", "labels": labels or {}}
    kind = {"apiVersion": "sources.knative.dev/v1", "kind": "KafkaSource"}
    return {**kind, "metadata": metadata, "spec": {**SPEC, **spec}}


def test_what_is_left_out_is_filled_in_as_upstream_does_and_once() -> None:
    declared = source(sink={"ref": REF}, delivery={"deadLetterSink": {"ref": REF}})
    for name in ("consumerGroup", "initialOffset", "ordering"):
        del declared["spec"][name]
    found = with_source_defaults(declared, unique="1")["spec"]
    here = {**REF, "namespace": "shop"}
    assert found == {
        **SPEC,
        "consumerGroup": "knative-kafka-source-1",
        "sink": {"ref": here},
        "delivery": {"deadLetterSink": {"ref": here}},
    }
    again = {**declared, "spec": found}
    assert with_source_defaults(again, again, unique="2") == again
    assert with_source_defaults(declared, again, unique="2")["spec"] == found, "it keeps its group"


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"topics": ["a", "b"], "initialOffset": "", "ordering": "", "consumers": 0},
        {"net": {"sasl": {"enable": True, "user": KEY, "password": KEY, "type": KEY}}},
        {"net": {"sasl": {"enable": False}, "tls": {"enable": True, "caCert": KEY}}},
        {"net": {"sasl": {"user": {}}, "tls": {"enable": True}}},
        {"ceOverrides": {"extensions": {"team": "a"}}, "delivery": {"retry": 1}},
    ],
)
def test_what_upstream_takes_is_taken(spec: dict[str, Any]) -> None:
    check_source(source({KEY_TYPE: "byte-array"}, **spec))


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"topics": None}, "missing field(s): spec.topics"),
        ({"topics": []}, "spec.topics"),
        ({"topics": ["a/b"]}, "invalid value: a/b: spec.topics\nwant a topic's name"),
        ({"topics": ["raw", "knative-broker-b-default"]}, "spec.topics\nwant no topic of a Broker"),
        ({"topics": ["knafka-dead-letters-x"]}, "spec.topics"),
        ({"bootstrapServers": None}, "missing field(s): spec.bootstrapServers"),
        ({"initialOffset": "middle"}, "spec.initialOffset"),
        ({"ordering": "sorted"}, "spec.ordering"),
        ({"sink": None}, "missing field(s): spec.sink"),
        ({"sink": {}}, "expected at least one, got none: spec.sink.ref, spec.sink.uri"),
        ({"consumers": -1}, "spec.consumers"),
        ({"consumerGroup": "knative-trigger-shop-all"}, "spec.consumerGroup"),
        (
            {"consumerGroup": "kafka.shop.c.0d9e4a3c-1111-2222-3333-444455556666"},
            "spec.consumerGroup",
        ),
        ({"ceOverrides": {"extensions": {"Team": "a"}}}, "spec.ceOverrides.extensions"),
        ({"ceOverrides": {"extensions": {"type": "a"}}}, "spec.ceOverrides.extensions"),
        (
            {"ceOverrides": {"extensions": {"team": "payments\n"}}},
            "'payments\\n': spec.ceOverrides.extensions.team\nwant no control or non-characters",
        ),
        (
            {"net": {"sasl": {"enable": True, "user": KEY}}},
            "missing field(s): spec.net.sasl.password.secretKeyRef",
        ),
        (
            {"net": {"tls": {"enable": True, "cert": KEY}}},
            "missing field(s): spec.net.tls.key.secretKeyRef",
        ),
        ({"delivery": {"retry": -1}}, "spec.delivery.retry"),
    ],
)
def test_what_is_wrong_is_refused_and_named(spec: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidDocument) as refused:
        check_source(source(**spec))
    assert told in str(refused.value)


def test_a_key_type_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidDocument, match="want string, int, float, byte-array"):
        check_source(source({KEY_TYPE: "long"}))


def test_the_group_may_not_change_and_the_rest_may() -> None:
    check_source(source(topics=["b"], sink={"uri": "http://b/"}), source())
    with pytest.raises(InvalidDocument, match="Immutable fields changed"):
        check_source(source(consumerGroup="others"), source())
    check_source(source(), source(consumerGroup=""))


def test_what_was_wrong_before_keeps_nobody_from_taking_a_finalizer_off() -> None:
    check_source(source(topics=[]), source(topics=[]))
