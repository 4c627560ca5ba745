"""One object's filters hold up nobody else: limits, and where they are parsed (issue 29)."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.admitted import refusal, trigger
from support.operator_world import condition, running_operator
from typer.testing import CliRunner

from knafka.core import cesql
from knafka.core.contract import Egress
from knafka.core.documents import MAX_PROBLEMS, parse
from knafka.core.errors import InvalidDocument
from knafka.core.filters import declared_filters
from knafka.core.filters.filter_limits import (
    MAX_FILTER_CHARACTERS,
    MAX_FILTER_DEPTH,
    MAX_FILTERS,
    beyond_limits,
)
from knafka_cli.command_line import app
from knafka_operator.model.conditions import MAX_CONDITION_MESSAGE
from knafka_operator.model.resources import Trigger
from knafka_operator.model.sensors import SensorSpec

EXACT: dict[str, Any] = {"exact": {"type": "a"}}


def nested(depth: int, inner: dict[str, Any] = EXACT) -> dict[str, Any]:
    for _ in range(depth - 1):
        inner = {"not": inner}
    return inner


def chain(characters: int) -> str:
    return ("a" + "=a" * (characters // 2))[:characters]


TOO_MUCH: dict[str, tuple[list[Any], str]] = {
    "expressions": ([{"cesql": "a" * 65_536}] * 20, "the filters are too large"),
    "one expression": ([{"cesql": chain(MAX_FILTER_CHARACTERS)}], "the filters are too large"),
    "one value": ([{"exact": {"type": "a" * 40_000}}], "the filters are too large"),
    "names": ([{"prefix": {f"a{n}": "b" for n in range(6_000)}}], "the filters are too large"),
    "an unknown dialect": ([{"a" * 40_000: 1}], "the filters are too large"),
    "many": ([EXACT] * (MAX_FILTERS + 1), "too many filters"),
    "many inside": ([{"any": [EXACT] * 600}, {"all": [EXACT] * 600}], "too many filters"),
    "no filters at all": ([None] * 50_000, "too many filters"),
    "deep": ([nested(MAX_FILTER_DEPTH + 1)], "filters nested too deep"),
    "deep in lists": (
        [{"all": [{"any": [nested(MAX_FILTER_DEPTH - 1)]}]}],
        "filters nested too deep",
    ),
    "deep without an end": ([nested(5_000, {})], "filters nested too deep"),
}


@pytest.mark.parametrize(("filters", "problem"), TOO_MUCH.values(), ids=TOO_MUCH)
def test_a_trigger_with_too_much_is_refused_before_anything_is_parsed(
    filters: list[Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cesql, "compile_expression", lambda text: pytest.fail("it was parsed"))
    message = refusal(trigger(filters=filters))
    assert message.startswith(problem)
    assert "spec.filters" in message
    assert len(message) < 200


def test_as_much_as_the_limits_allow_is_a_trigger() -> None:
    within = [
        [EXACT] * MAX_FILTERS,
        [nested(MAX_FILTER_DEPTH)],
        [{"cesql": "a LIKE '" + "b" * (MAX_FILTER_CHARACTERS - 14) + "'"}],
    ]
    for filters in within:
        assert beyond_limits(filters) is None
        parse(Trigger, trigger(filters=filters))


def test_the_older_form_has_a_limit_too() -> None:
    message = refusal(trigger(filter={"attributes": {"type": "a" * 40_000}}))
    wanted = "want at most 32768 characters in all"
    assert message == f"the attributes are too large: spec.filter\n{wanted}"


def test_a_list_that_is_wrong_in_each_entry_is_refused_in_a_few_lines() -> None:
    """5.5 MB they were, which no status holds."""
    filters = [{"exakt": {"type": "a"}}] * MAX_FILTERS
    with pytest.raises(InvalidDocument) as caught:
        parse(Trigger, trigger(filters=filters))
    assert str(caught.value).endswith(f"and {MAX_FILTERS - MAX_PROBLEMS} more")
    assert len(str(caught.value)) < 4_000
    message = refusal(trigger(filters=filters))
    assert message.endswith(f"and {MAX_FILTERS - MAX_PROBLEMS} more")
    assert len(message) < 4_000


def test_the_dependencies_of_a_sensor_share_the_limits() -> None:
    """The same kind: a hundred dependencies, each with as much as a Trigger may have."""

    def sensor(**first: Any) -> dict[str, Any]:
        dependency = {"name": "a", **first}
        others = [{**dependency, "name": f"b{number}"} for number in range(99)]
        subscriber = {"uri": "http://a/"}
        given = [{"name": "t", "conditions": "a", "subscriber": subscriber}]
        return {"dependencies": [dependency, *others], "triggers": given}

    parse(SensorSpec, sensor(filters=[{"exact": {"type": "a" * 200}}]))
    with pytest.raises(InvalidDocument, match="the filters are too large"):
        parse(SensorSpec, sensor(filters=[{"cesql": "a" * 30_000}]))
    with pytest.raises(InvalidDocument, match="filters, conditions and correlations are too large"):
        parse(SensorSpec, sensor(filter={"attributes": {"type": "a" * 400}}))
    spec = sensor()
    spec["triggers"] = [{**spec["triggers"][0], "correlation": "a" * 40_000}]
    with pytest.raises(InvalidDocument, match="filters, conditions and correlations are too large"):
        parse(SensorSpec, spec)


def test_what_was_promised_before_there_were_limits_is_still_delivered() -> None:
    """A dispatcher's contract has none: a Revision from before goes on with its filters."""
    egress = {
        **{"namespace": "n", "broker": "b", "trigger": "t", "topic": "x", "group": "g"},
        **{"deadLetterTopic": "d", "kafka": {"bootstrapServers": "a:1"}},
        "subscriber": {"url": "http://a/"},
        "filters": [nested(MAX_FILTER_DEPTH + 4), {"cesql": chain(MAX_FILTER_CHARACTERS + 1)}],
    }
    assert len(parse(Egress, egress).filters) == 2


@pytest.mark.looptime
async def test_a_trigger_stored_before_the_limits_has_a_condition_and_goes_on() -> None:
    async with running_operator() as world:
        world.declare_broker("shop")
        await world.reconcile_broker("shop")
        world.declare_trigger("shop", "orders")
        await world.reconcile_trigger("shop", "orders")
        functions = [key for key in world.cluster.objects if key[1] == "Service"]
        assert functions
        world.declare_trigger("shop", "orders", filters=[{"cesql": "a" * 65_536}] * 20)
        found = condition(await world.reconcile_trigger("shop", "orders"), "SubscriptionReady")
        assert (found["status"], found["reason"]) == ("False", "Invalid")
        assert found["message"].startswith("spec.filters: the filters are too large")
        assert [key for key in world.cluster.objects if key[1] == "Service"] == functions


@pytest.mark.looptime
async def test_a_conditions_message_fits_into_a_status() -> None:
    async with running_operator() as world:
        world.declare_broker("shop")
        await world.reconcile_broker("shop")
        unknown: dict[str, Any] = {"unknown" * 100_000: 1}
        world.declare_trigger("shop", "orders", **unknown)
        found = condition(await world.reconcile_trigger("shop", "orders"), "SubscriptionReady")
        assert len(found["message"]) == MAX_CONDITION_MESSAGE
        assert found["message"].endswith("…")


async def test_what_is_large_is_parsed_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsing: set[str] = set()
    compiled = cesql.compile_expression

    def compile_expression(text: str) -> cesql.Expression:
        parsing.add(threading.current_thread().name)
        return compiled(text)

    async with running_operator() as world:
        world.declare_broker("shop")
        await world.reconcile_broker("shop")
        monkeypatch.setattr(cesql, "compile_expression", compile_expression)
        declared_filters._cesql_problem.cache_clear()
        world.declare_trigger("shop", "orders", filters=[{"cesql": chain(8_001)}])
        found = condition(await world.reconcile_trigger("shop", "orders"), "Ready")
        assert found["status"] == "True"
        assert parsing == {"parser_0"}
        parsing.clear()
        declared_filters._cesql_problem.cache_clear()
        await world.restart()
        assert parsing <= {"parser_0"}


def test_knafka_check_tells_of_a_trigger_that_a_cluster_would_refuse(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(yaml.safe_dump(trigger(filters=[nested(40)])))
    result = CliRunner().invoke(app, ["check", str(file)])
    assert result.exit_code == 1
    assert "filters nested too deep: spec.filters" in result.output
    assert "want at most 16 within each other" in result.output


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("trigger.yaml", ("spec",)),
        ("sensors/sensor.yaml", ("spec", "dependencies", "items")),
    ],
)
def test_the_schema_has_the_limits_that_a_schema_can_have(file: str, path: tuple[str, ...]) -> None:
    text = (Path(__file__).parents[2] / "crds" / file).read_text()
    schema = yaml.safe_load(text)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for step in path:
        schema = schema["items"] if step == "items" else schema["properties"][step]
    filters = schema["properties"]["filters"]
    assert filters["maxItems"] == MAX_FILTERS
    dialects = filters["items"]["properties"]
    assert dialects["all"]["maxItems"] == dialects["any"]["maxItems"] == MAX_FILTERS
    assert dialects["cesql"]["maxLength"] == MAX_FILTER_CHARACTERS
    assert json.dumps(schema).count("maxItems") >= 3
