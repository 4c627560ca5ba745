"""What a Sensor would have fired: the backtest, and the command that prints it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka.core.sensor.backtest import Backtest, PastEvent
from knafka.core.sensor.contract import Conditions
from knafka_cli.command_line import app

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "sensor"


def conditions(*triggers: Mapping[str, object], dependencies: str = "abc") -> Conditions:
    return parse(
        Conditions,
        {
            "dependencies": [
                {"name": each, "filter": {"attributes": {"type": each}}} for each in dependencies
            ],
            "triggers": list(triggers),
        },
    )


def played(sensor: Conditions, events: str) -> Sequence[str]:
    """What fires for `a1@5/key`: the type's letter and a number, the time, the correlation key."""
    errors: list[str] = []
    backtest = Backtest(sensor, errors.append)
    past = []
    for text in events.split():
        identity, _, rest = text.partition("@")
        at, _, key = rest.partition("/")
        attributes = {"specversion": "1.0", "id": identity, "source": "/s", "type": identity[0]}
        if key:
            attributes["order"] = key
        past.append(PastEvent(int(at), attributes, identity.encode()))
    fired = [*backtest.play(past), *backtest.advance_to(10**12)]
    return [
        f"{each.key}@{each.at}: {' '.join(one.document.decode() for one in each.firing.events)}"
        for each in fired
    ]


def test_each_correlation_key_waits_for_itself() -> None:
    sensor = conditions({"name": "t", "conditions": "a && b", "correlation": "order"})
    assert played(sensor, "a1@1/x a2@2/y b1@3/y b2@4/z b3@5/x") == ["t/y@3: a2 b1", "t/x@5: a1 b3"]


def test_an_event_that_has_no_correlation_key_counts_for_none() -> None:
    sensor = conditions({"name": "t", "conditions": "a && b", "correlation": "order"})
    assert played(sensor, "a1@1 b1@2") == []


@pytest.mark.conformance("BUS-21")
def test_an_event_counts_for_every_trigger_that_names_its_dependency() -> None:
    """BUS-21."""
    sensor = conditions({"name": "t1", "conditions": "a && b"}, {"name": "t2"})
    assert played(sensor, "a1@1 b1@2 c1@3") == ["t1@2: a1 b1", "t2@3: a1 b1 c1"]


@pytest.mark.conformance("BUS-12")
def test_a_simple_condition_fires_once_for_an_event_of_two_dependencies() -> None:
    """BUS-12."""
    document = {
        "dependencies": [{"name": "a"}, {"name": "b"}],
        "triggers": [{"name": "t", "conditions": "a || b"}],
    }
    assert played(parse(Conditions, document), "x1@1") == ["t@1: x1"]


def test_what_does_not_come_fires_at_the_end_of_its_time() -> None:
    trigger = {"name": "t", "conditions": "a && !b", "within": "PT1S", "correlation": "order"}
    sensor = conditions(trigger)
    assert played(sensor, "a1@1/x a2@2/y b1@900/y a3@5000/z") == ["t/x@1001: a1", "t/z@6000: a3"]


@pytest.mark.parametrize(
    ("trigger", "problem"),
    [
        ({"name": "t", "conditions": "a && d"}, "the conditions of t name d, which is no"),
        ({"name": "t", "conditions": "a &&"}, "the conditions of t: want the name of a dependency"),
        ({"name": "t", "conditions": "a && !b"}, "the trigger t wants a time (within) after which"),
        ({"name": "a b"}, "triggers[0].name: "),
        ({"name": "t", "correlation": "order +"}, "invalid CESQL expression"),
        (
            {"name": "t", "conditionsReset": [{"byTime": {"cron": "99 * * * *"}}]},
            "invalid cron expression '99 * * * *'",
        ),
    ],
)
def test_what_is_no_sensor_is_refused(trigger: Mapping[str, object], problem: str) -> None:
    with pytest.raises(InvalidDocument) as refused:
        conditions(trigger)
    assert problem in str(refused.value)


def test_two_triggers_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidDocument, match="t: there is more than one of that name"):
        conditions({"name": "t"}, {"name": "t"})


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["sensor", "test", *map(str, arguments)])
    return result.exit_code, result.output


def test_the_command_prints_what_fires_and_what_waits() -> None:
    code, output = run(EXAMPLE / "sensor.yaml", "--events", EXAMPLE / "events.ndjson")
    assert code == 0
    assert output.splitlines() == [
        "2026-11-23T09:04:00.000Z ship/2 fires with order o-2, payment p-2",
        "2026-11-23T09:10:00.000Z remind/1 fires with order o-1",
        "4 events: 2 firings, 3 wait",
        "  remind/3 has order o-3",
        "  ship/1 has order o-1",
        "  ship/3 has order o-3",
    ]


def test_events_without_a_time_come_in_the_order_of_their_lines(tmp_path: Path) -> None:
    events = tmp_path / "events.ndjson"
    lines = [
        {"specversion": "1.0", "id": "o", "source": "/s", "type": "com.example.order.placed"},
        {"specversion": "1.0", "id": "p", "source": "/s", "type": "com.example.payment.received"},
    ]
    events.write_text("".join(json.dumps({**each, "orderid": "1"}) + "\n" for each in lines))
    code, output = run(EXAMPLE / "sensor.yaml", "--events", events)
    assert code == 0
    assert "ship/1 fires with order o, payment p" in output


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kind": "Broker"}, "has 0 Sensors of knafka.dev/v1alpha1: it must have one"),
        ({"spec": {"dependencies": []}}, "spec"),
    ],
)
def test_a_file_without_a_usable_sensor_is_refused(
    tmp_path: Path, change: Mapping[str, object], problem: str
) -> None:
    file = tmp_path / "sensor.yaml"
    file.write_text(
        yaml.safe_dump({**yaml.safe_load((EXAMPLE / "sensor.yaml").read_text()), **change})
    )
    code, output = run(file, "--events", EXAMPLE / "events.ndjson")
    assert code == 2
    assert problem in output


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert run(tmp_path / "none.yaml", "--events", EXAMPLE / "events.ndjson")[0] == 2
    assert run(EXAMPLE / "sensor.yaml", "--events", tmp_path / "none.ndjson")[0] == 2
