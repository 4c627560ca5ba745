"""Sensors of Argo Events become ours, and what can't be carried over is said (BUS-S1, S5, S13)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka_cli.command_line import app
from knafka_cli.sensors.argo import ArgoConversion, convert_sensor
from knafka_operator.model.sensors import Sensor, parse_go_duration

WEBHOOK = """
apiVersion: argoproj.io/v1alpha1
kind: Sensor
metadata: {name: webhook, namespace: argo}
spec:
  eventBusName: kafka
  dependencies:
    - {name: order, eventSourceName: shop, eventName: placed}
    - {name: payment, eventSourceName: bank, eventName: received, filters: {context: {type: paid}}}
  triggers:
    - template:
        name: ship
        conditions: order && payment
        conditionsReset: [{byTime: {cron: 59 23 * * *, timezone: America/Los_Angeles}}]
        http: {url: 'http://shipping/', method: POST}
      atLeastOnce: true
      retryStrategy: {steps: 3, duration: 1m30s, factor: 2}
"""


def sensor(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(WEBHOOK)
    return {**document, "spec": {**document["spec"], **changes}}


def converted(**trigger: Any) -> ArgoConversion:
    template = {"name": "t", "http": {"url": "http://t/"}}
    return convert_sensor(
        sensor(triggers=[{"template": {**template, **trigger.pop("template", {})}, **trigger}])
    )


@pytest.mark.conformance("BUS-S1", "BUS-S5", "BUS-S13")
def test_what_can_be_carried_over_is() -> None:
    """BUS-S1, BUS-S5, BUS-S13."""
    found = convert_sensor(sensor(), "main")
    assert found.lost == []
    assert found.changed == ["spec.eventBusName: kafka; here the bus is the Broker main"]
    assert found.document == {
        "apiVersion": "knafka.dev/v1alpha1",
        "kind": "Sensor",
        "metadata": {"name": "webhook", "namespace": "argo"},
        "spec": {
            "broker": "main",
            "dependencies": [
                {"name": "order", "filters": [{"exact": {"source": "shop", "subject": "placed"}}]},
                {
                    "name": "payment",
                    "filters": [
                        {"exact": {"source": "bank", "subject": "received", "type": "paid"}}
                    ],
                },
            ],
            "triggers": [
                {
                    "name": "ship",
                    "conditions": "order && payment",
                    "conditionsReset": [
                        {"byTime": {"cron": "59 23 * * *", "timezone": "America/Los_Angeles"}}
                    ],
                    "atLeastOnce": True,
                    "subscriber": {"uri": "http://shipping/"},
                    "retryStrategy": {"steps": 3, "duration": "1m30s", "factor": 2},
                }
            ],
        },
    }
    parse(Sensor, found.document)


@pytest.mark.conformance("BUS-5")
def test_argos_default_is_at_most_once_and_is_written_out() -> None:
    """BUS-5."""
    assert converted().document["spec"]["triggers"][0]["atLeastOnce"] is False


def test_a_dead_letter_trigger_stays_one() -> None:
    """BUS-S13."""
    dead_letters = {
        "template": {"name": "dlq", "http": {"url": "http://dlq/"}},
        "atLeastOnce": True,
    }
    found = converted(dlqTrigger=dead_letters, atLeastOnce=True)
    assert found.document["spec"]["triggers"][0]["dlqTrigger"] == {
        "subscriber": {"uri": "http://dlq/"}
    }
    assert found.lost == []


@pytest.mark.conformance("BUS-S13")
def test_a_rate_limit_stays_one() -> None:
    limit = {"unit": "Minute", "requestsPerUnit": 5}
    found = converted(rateLimit=limit)
    assert found.document["spec"]["triggers"][0]["rateLimit"] == limit
    assert found.lost == []
    parse(Sensor, found.document)


@pytest.mark.parametrize(
    ("duration", "delay"),
    [
        ("10s", 10),
        (500_000_000, 0.5),
        ({"strVal": "1.5s"}, 1.5),
        ("100ms", 0.1),
    ],
)
def test_a_duration_may_be_written_in_three_ways(duration: object, delay: float) -> None:
    found = converted(retryStrategy={"steps": 2, "duration": duration, "factor": {"value": "2.0"}})
    retries = found.document["spec"]["triggers"][0]["retryStrategy"]
    assert parse_go_duration(retries["duration"]) == pytest.approx(delay)
    assert retries["factor"] == 2


@pytest.mark.parametrize(
    ("trigger", "lost"),
    [
        ({"rateLimit": {"requestsPerUnit": 1, "more": 1}}, "trigger t.rateLimit.more: not carried"),
        (
            {"retryStrategy": {"steps": 5, "factor": 1.5}},
            "trigger t.retryStrategy.factor: 1.5; here",
        ),
        ({"retryStrategy": {"steps": 2, "jitter": 0.1}}, "trigger t.retryStrategy.jitter: not"),
        (
            {"template": {"http": {"url": "http://t/", "method": "GET"}}},
            "t.http.method: events are",
        ),
        (
            {"template": {"http": {"url": "http://t/", "payload": [{}]}}},
            "t.http.payload: the body is always the array of the whole events",
        ),
        (
            {"template": {"http": {"url": "http://t/", "secureHeaders": [{}]}}},
            "trigger t.http.secureHeaders: not carried over",
        ),
        ({"template": {"conditionsReset": [{"byEvent": {}}]}}, "only byTime is carried over"),
    ],
)
def test_what_is_lost_of_a_trigger_is_said(trigger: Mapping[str, Any], lost: str) -> None:
    found = converted(**trigger)
    assert any(lost in each for each in found.lost), found.lost


@pytest.mark.parametrize(
    ("filters", "lost"),
    [
        ({"data": [{"path": "a"}]}, "dependency a.filters.data: filters see attributes only"),
        ({"exprs": [{}]}, "dependency a.filters.exprs: filters see attributes only"),
        ({"script": "x"}, "dependency a.filters.script: filters see attributes only"),
        ({"time": {"start": "02:30:00"}}, "dependency a.filters.time: not carried over"),
        ({"context": {"time": "now"}}, "dependency a.filters.context.time: not carried over"),
    ],
)
def test_what_is_lost_of_a_dependency_is_said(filters: object, lost: str) -> None:
    dependency = {"name": "a", "eventSourceName": "s", "eventName": "e", "filters": filters}
    found = convert_sensor(sensor(dependencies=[dependency]))
    assert any(lost in each for each in found.lost), found.lost


def test_a_trigger_that_does_something_else_is_left_out() -> None:
    found = convert_sensor(sensor(triggers=[{"template": {"name": "job", "k8s": {}}}]))
    assert found.document["spec"]["triggers"] == []
    assert found.lost == [
        "trigger job: it does k8s, but only http can be converted",
        "spec.triggers: none could be converted, so add one by hand",
    ]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"kind": "Sensor"}, "must be a Sensor of argoproj.io/v1alpha1"),
        ({**sensor(), "metadata": {}}, "metadata.name: is not set"),
        (sensor(triggers=None), "spec.triggers: must be a list of objects"),
        (sensor(dependencies=["a"]), "spec.dependencies: must be a list of objects"),
    ],
)
def test_what_is_no_sensor_of_argos_is_refused(document: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(InvalidDocument) as refused:
        convert_sensor(document)
    assert str(refused.value) == problem


def only_trigger(found: ArgoConversion) -> Mapping[str, Any]:
    parse(Sensor, found.document)
    (trigger,) = found.document["spec"]["triggers"]
    assert isinstance(trigger, dict)
    return trigger


@pytest.mark.conformance("BUS-S13")
@pytest.mark.parametrize(
    ("declared", "steps"), [({}, 1), ({"duration": "1s"}, 5), ({"steps": None, "factor": 2}, 5)]
)
def test_as_many_attempts_are_made_as_argo_makes(declared: object, steps: int) -> None:
    """BUS-S13: one without a retryStrategy, where a delivery of ours has eleven."""
    found = converted(retryStrategy=declared)
    assert only_trigger(found)["retryStrategy"]["steps"] == steps
    assert found.lost == []


def test_a_context_filter_stands_beside_its_event_source() -> None:
    dependency = {
        "name": "order",
        "eventSourceName": "shop",
        "eventName": "placed",
        "filters": {"context": {"source": "other", "subject": "placed"}},
    }
    trigger = {"template": {"name": "t", "http": {"url": "http://t/"}}}
    found = convert_sensor(sensor(dependencies=[dependency], triggers=[trigger]))
    assert found.document["spec"]["dependencies"][0]["filters"] == [
        {"exact": {"source": "shop", "subject": "placed"}},
        {"exact": {"source": "other"}},
    ]
    assert any("no event matches both" in each for each in found.changed)


@pytest.mark.parametrize(
    ("cron", "written"),
    [
        ("0 0 */2 * 1", "0 0 1-31/2 * 1"),
        ("0 0 1 * */3", "0 0 1 * 0-6/3"),
        ("0 0 */2 * *", "0 0 */2 * *"),
        ("*/5 * * * *", "*/5 * * * *"),
    ],
)
def test_a_cron_expression_goes_on_to_mean_the_same_times(cron: str, written: str) -> None:
    """Of a day and a weekday Argo takes either unless one is a plain `*`."""
    found = converted(template={"conditionsReset": [{"byTime": {"cron": cron}}]})
    assert only_trigger(found)["conditionsReset"] == [{"byTime": {"cron": written}}]
    assert any("byTime.cron" in each for each in found.changed) is (cron != written)


@pytest.mark.parametrize(
    ("argo", "told"),
    [
        ({"retryStrategy": {"steps": 4}}, "factor: 1; with Argo all waits are equal"),
    ],
)
def test_what_means_something_else_here_is_said(argo: Mapping[str, Any], told: str) -> None:
    assert any(told in each for each in converted(**argo).changed)


def test_labels_and_annotations_that_are_left_out_are_said() -> None:
    metadata = {"name": "s", "labels": {"a": "b"}, "annotations": {"c": "d"}}
    found = convert_sensor({**sensor(), "metadata": metadata})
    for each in ("labels", "annotations"):
        assert any(one.startswith(f"metadata.{each}: left out") for one in found.changed)


_WRONG = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3),
    st.just([]), st.just({}), st.just([[]]),
)  # fmt: skip


def _places(document: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = document.items() if isinstance(document, dict) else enumerate(document)
    found = [place] if place else []
    for key, each in inner if isinstance(document, dict | list) else ():
        found += _places(each, (*place, key)) if isinstance(each, dict | list) else [(*place, key)]
    return found


FULL = {
    **sensor(),
    "metadata": {"name": "full", "namespace": "n", "labels": {}},
    "spec": {
        **sensor()["spec"],
        "triggers": [
            {
                **sensor()["spec"]["triggers"][0],
                "rateLimit": {"unit": "Second", "requestsPerUnit": 3},
                "dlqTrigger": {"template": {"name": "d", "http": {"url": "http://d/"}}},
            }
        ],
    },
}


@given(st.sampled_from(_places(FULL)), _WRONG)
def test_whatever_is_wrong_in_a_document_it_is_refused_by_its_place(
    place: tuple[Any, ...], wrong: object
) -> None:
    """Or what it means is carried over; nothing else is ever raised."""
    document = copy.deepcopy(FULL)
    inner: Any = document
    for each in place[:-1]:
        inner = inner[each]
    inner[place[-1]] = wrong
    try:
        found = convert_sensor(document)
        parse(Sensor, found.document)
    except InvalidDocument:
        return
    assert yaml.safe_load(yaml.safe_dump(found.document)) == found.document


def test_a_duration_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidDocument, match="invalid value: soon: give one such as 10s"):
        converted(retryStrategy={"steps": 2, "duration": "soon"})


def run(file: Path, *options: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["convert", "sensor", str(file), *options])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_prints_yaml_that_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "argo.yaml"
    file.write_text(WEBHOOK)
    code, output, problems = run(file)
    told = "knafka: webhook: spec.eventBusName: kafka; here the bus is the Broker default\n"
    assert (code, problems) == (0, told)
    assert yaml.safe_load(output) == convert_sensor(sensor()).document


def test_the_command_may_name_another_bus(tmp_path: Path) -> None:
    file = tmp_path / "argo.yaml"
    file.write_text(WEBHOOK)
    code, output, _ = run(file, "--channel", "orders")
    assert code == 0
    assert yaml.safe_load(output) == convert_sensor(sensor(), channel="orders").document
    assert "broker" not in yaml.safe_load(output)["spec"]
    code, _, problems = run(file, "--channel", "orders", "--broker", "shop")
    assert code == 2
    assert "give --broker or --channel, not both" in problems


def test_the_command_says_what_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "argo.yaml"
    file.write_text(yaml.safe_dump(sensor(errorOnFailedRound=True)))
    code, output, problems = run(file)
    assert code == 1
    assert problems.splitlines() == [
        "knafka: webhook: spec.eventBusName: kafka; here the bus is the Broker default",
        "knafka: webhook: spec.errorOnFailedRound: not carried over",
    ]
    assert yaml.safe_load(output)["kind"] == "Sensor"


def test_the_command_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    assert run(tmp_path / "none.yaml")[0] == 2
    file = tmp_path / "broker.yaml"
    file.write_text("kind: !!bool maybe")
    assert run(file)[0] == 2
    file.write_text("kind: Broker\n")
    code, _, problems = run(file)
    assert code == 2
    assert "has no Sensor" in problems


@pytest.mark.parametrize(
    ("operator", "filters", "lost"),
    [
        pytest.param("or", {"context": {"type": "paid"}, "data": [{}]}, True, id="or of two"),
        pytest.param("or", {"data": [{}]}, True, id="or of one that is lost"),
        pytest.param("OR", {"exprs": [{}], "script": "x"}, True, id="in capitals"),
        pytest.param(
            "xor", {"context": {"type": "paid"}, "time": {}, "data": [{}]}, True, id="xor"
        ),
        pytest.param("or", {"context": {"type": "paid"}}, False, id="or of the only one"),
        pytest.param("or", {}, False, id="or of none"),
        pytest.param("and", {"context": {"type": "paid"}, "data": [{}]}, False, id="and"),
        pytest.param("", {"context": {"type": "paid"}, "data": [{}]}, False, id="empty: and"),
    ],
)
def test_a_logical_operator_that_changes_what_matches_is_said(
    operator: str, filters: Mapping[str, Any], lost: bool
) -> None:
    dependency = {"name": "a", "eventSourceName": "s", "eventName": "e", "filters": filters}
    found = convert_sensor(
        sensor(dependencies=[{**dependency, "filtersLogicalOperator": operator}])
    )
    told = [each for each in found.lost if "filtersLogicalOperator" in each]
    assert bool(told) is lost, found.lost
    if lost:
        assert told[0].startswith("dependency a.filtersLogicalOperator: ")
        assert told[0].endswith("here all converted filters must match")
