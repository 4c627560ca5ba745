"""`knafka check` of Sensors, and of the annotations that a Trigger may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from knafka_cli.checks.checking import check

EXAMPLE = Path(__file__).parents[2] / "examples" / "sensor" / "sensor.yaml"
SUBSCRIBERS = EXAMPLE.with_name("subscribers.yaml")
BROKER = """
---
apiVersion: eventing.knative.dev/v1
kind: Broker
metadata: {name: default, annotations: {eventing.knative.dev/broker.class: kafka}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sensor.yaml"


def found(file: Path, before: str = "", after: str = "") -> list[str]:
    """What is said of the example, with one thing changed, beside its Broker and subscribers."""
    sensor = EXAMPLE.read_text()
    assert before in sensor
    file.write_text(f"{sensor.replace(before, after, 1)}---\n{SUBSCRIBERS.read_text()}")
    return [str(each) for each in check([file]).findings]


def test_a_sensor_that_is_right_has_nothing_to_be_said_of_it(file: Path) -> None:
    assert found(file) == []


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (
            "order && payment",
            "order && paymnet",
            "spec: the conditions of ship name paymnet",
        ),
        ("order && payment", "order &", "the conditions of ship: '&' has no meaning"),
        ("      within: PT10M\n", "", "wants a time (within) after which it is decided"),
        ("broker: default", "broker: shop", "error: spec.broker: Broker default/shop isn't among"),
        (
            "{exact: {type: com.example.order.placed}}",
            "{cesql: 'FOO(type)'}",
            "error: spec.dependencies[0].filters[0].cesql",
        ),
        (
            "name: mail}",
            "name: post}",
            "error: spec.triggers[1].subscriber.ref: Service default/post isn't among the files",
        ),
        ("broker: default", "broker: default\n  more: 1", "spec.more: unknown field"),
        (
            "order && payment",
            "20 of order && payment",
            "warning: spec.triggers[0].conditions: a firing may have 21 events, and its topic has "
            "room for 16 of the largest",
        ),
        (
            "name: fulfilment,",
            "name: fulfilment, annotations: {knafka.dev/max-held-keys: some},",
            "error: metadata.annotations.knafka.dev/max-held-keys: invalid value: some",
        ),
        (
            "      within: PT10M\n",
            "      within: PT10M\n      rateLimit: {unit: Day, requestsPerUnit: 1}\n",
            "spec.triggers[1].rateLimit.unit",
        ),
        (
            "      within: PT10M\n",
            "      within: PT10M\n      dlqTrigger: {subscriber: {ref: {apiVersion: "
            "serving.knative.dev/v1, kind: Service, name: dead}}}\n",
            "spec.triggers[1].dlqTrigger.subscriber.ref: Service default/dead isn't among",
        ),
    ],
)
def test_a_mistake_in_a_sensor_is_named(file: Path, before: str, after: str, says: str) -> None:
    assert any(says in each for each in found(file, before, after)), found(file, before, after)


CHANNEL = """
---
apiVersion: messaging.knative.dev/v1
kind: KafkaChannel
metadata: {name: orders}
"""


def test_a_sensor_on_a_channel_wants_the_channel_and_where_replies_go(file: Path) -> None:
    said = found(file, "broker: default", "channel: orders")
    assert any("spec.channel: KafkaChannel default/orders isn't among" in each for each in said)
    reply = "      reply: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: lost}}\n"
    sensor = EXAMPLE.read_text().replace("broker: default", "channel: orders", 1)
    more = f"{CHANNEL}---\n{SUBSCRIBERS.read_text()}"
    file.write_text(sensor + more)
    assert check([file]).findings == []
    file.write_text(sensor.replace("      within: PT10M\n", f"      within: PT10M\n{reply}") + more)
    (finding,) = check([file]).findings
    assert "spec.triggers[1].reply.ref: Service default/lost isn't among" in str(finding)


def test_a_dependency_that_no_condition_names_is_doubtful(file: Path) -> None:
    said = found(file, "    - name: payment\n", "    - name: other\n    - name: payment\n")
    assert said == [
        f"{file}, document 1: Sensor default/fulfilment: warning: spec.dependencies[1]: no"
        " trigger's conditions name other"
    ]


def test_the_annotations_of_a_trigger_mean_something(file: Path) -> None:
    file.write_text(
        BROKER
        + """
---
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata:
  name: orders
  annotations:
    knafka.dev/start-position: earliest
    knafka.dev/delivery-semantics: at-most-once
    knafka.dev/consumer.fetch.min.bytes: "1"
    knafka.dev/start-postion: earliest
spec: {broker: default, subscriber: {uri: http://there/}}
"""
    )
    (said,) = (str(each) for each in check([file]).findings)
    assert "[knafka.dev/start-postion] is unknown to Knafka; did you mean" in said
