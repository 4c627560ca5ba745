"""KafkaSinks as they are admitted: upstream's defaults, and what is refused in its words."""

from __future__ import annotations

from typing import Any

import pytest

from knafka.core.errors import InvalidDocument
from knafka_operator.model.maxima import Maxima
from knafka_operator.sinks.admission import check_sink, with_sink_defaults

SPEC: dict[str, Any] = {
    "topic": "raw",
    "bootstrapServers": ["kafka:9092"],
    "contentMode": "binary",
}


def sink(annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"namespace": "shop", "name": "orders", "annotations": annotations or {}}
    kind = {"apiVersion": "eventing.knative.dev/v1alpha1", "kind": "KafkaSink"}
    return {**kind, "metadata": metadata, "spec": {**SPEC, **spec}}


@pytest.mark.parametrize("mode", [None, ""])
def test_what_is_left_out_is_filled_in_as_upstream_does_and_once(mode: str | None) -> None:
    found = with_sink_defaults(sink(contentMode=mode))
    assert found == sink()
    assert with_sink_defaults(found) == found
    assert with_sink_defaults(sink(contentMode="structured")) == sink(contentMode="structured")


@pytest.mark.parametrize("spec", [{}, None, "x"])
def test_what_is_no_spec_is_no_reason_to_fail(spec: Any) -> None:
    document = {**sink(), "spec": spec}
    assert with_sink_defaults(document)["spec"] == (
        "x" if spec == "x" else {"contentMode": "binary"}
    )
    with pytest.raises(InvalidDocument):
        check_sink(document)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"contentMode": "structured", "numPartitions": 3, "replicationFactor": 1},
        {"contentMode": "", "bootstrapServers": ["a:1", "b:2"]},
        {"numPartitions": 3},
        {"auth": {}},
        {"auth": {"secret": {"ref": {"name": "kafka"}}}},
        {"auth": {"secret": {}}},
    ],
)
def test_what_upstream_takes_is_taken(spec: dict[str, Any]) -> None:
    check_sink(sink(**spec))


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"topic": None}, "missing field(s): spec.topic"),
        ({"topic": ""}, "spec.topic"),
        ({"topic": "a/b"}, "invalid value: a/b: spec.topic\nwant a topic's name"),
        ({"topic": "knative-broker-b-default"}, "spec.topic\nwant no topic of a Broker"),
        ({"topic": "knafka-contract-x"}, "spec.topic\nwant no topic of a Broker"),
        ({"topic": "__consumer_offsets"}, "spec.topic\nwant no topic of a Broker"),
        ({"bootstrapServers": None}, "missing field(s): spec.bootstrapServers"),
        ({"bootstrapServers": []}, "spec.bootstrapServers"),
        ({"bootstrapServers": "kafka:9092"}, "spec.bootstrapServers"),
        ({"contentMode": "compact"}, "spec.contentMode"),
        ({"numPartitions": 0}, "spec.numPartitions"),
        ({"replicationFactor": -1}, "spec.replicationFactor"),
        ({"numPartitions": 11}, "KNAFKA_MAX_PARTITIONS"),
        ({"auth": {"secret": {"ref": {}}}}, "missing field(s): spec.auth.secret.ref.name"),
        ({"auth": {"user": "me"}}, "spec.auth.user"),
        ({"deliver": {}}, "spec.deliver"),
    ],
)
def test_what_is_wrong_is_refused_and_named(spec: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidDocument) as refused:
        check_sink(sink(**spec), maxima=Maxima(partitions=10))
    assert told in str(refused.value)


def test_pods_that_its_annotations_ask_for_are_within_what_is_allowed() -> None:
    with pytest.raises(InvalidDocument, match="KNAFKA_MAX_SCALE"):
        check_sink(sink({"autoscaling.knative.dev/min-scale": "1000"}), maxima=Maxima())


@pytest.mark.parametrize("field", ["topic", "numPartitions", "replicationFactor"])
def test_the_topic_may_not_change(field: str) -> None:
    changed: dict[str, Any] = {field: "other" if field == "topic" else 3}
    with pytest.raises(InvalidDocument, match="Immutable fields changed") as refused:
        check_sink(sink(**changed), sink())
    assert f"spec.{field}" in str(refused.value)


def test_all_else_may_change() -> None:
    secret = {"secret": {"ref": {"name": "kafka"}}}
    check_sink(sink(contentMode="structured", bootstrapServers=["b:1"], auth=secret), sink())


def test_what_was_wrong_before_keeps_nobody_from_taking_a_finalizer_off() -> None:
    check_sink(sink(topic="a/b"), sink(topic="a/b"))
