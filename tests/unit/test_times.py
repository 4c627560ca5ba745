"""Times that came from outside: whatever a record, a clock or a declaration says can be shown."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
from support.memory.records import MemoryRecord
from support.memory_sensors import sensor
from typer.testing import CliRunner

from knafka.core import times
from knafka.core.dead_letter import timestamp
from knafka.core.documents import parse
from knafka.core.drain import Waiting
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import to_record
from knafka.core.sensor import rules
from knafka.core.sensor.contract import Conditions
from knafka.core.sensor.held import HeldEvent
from knafka.core.sensor.resets import Reset
from knafka_cli.command_line import app
from knafka_cli.events import tailing
from knafka_cli.shared import moments
from knafka_client.topics import dead_letters
from knafka_operator.dispatchers import dead_letters as letters_of_triggers
from knafka_operator.sensors import waiting as sensor_waiting

MILLISECONDS: Final = (-62_135_600_400_000, 1_764_096_000_000_000_000, 2**63 - 1, -(2**63))
TEN_THOUSAND_YEARS: Final = 10_000 * 31_556_952


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-62_135_600_400, "0001-01-02T00:00:00.000Z"),
        (float(2**63), "9999-12-30T23:59:59.000Z"),
        (float("inf"), "9999-12-30T23:59:59.000Z"),
        (1_000.5, "1970-01-01T00:16:40.500Z"),
    ],
)
def test_a_time_out_of_range_is_the_nearest_that_every_zone_has(seconds: float, text: str) -> None:
    assert timestamp(seconds) == times.rfc3339(seconds) == text
    assert times.utc_datetime(seconds).astimezone() == times.utc_datetime(seconds)


@pytest.mark.parametrize(
    ("kind", "at", "taken"),
    [
        (1, 900, 900),
        (1, 1_001, 1_000),
        (2, 1_001, 1_001),
        (2, 1_000 + times.MAX_CLOCK_SKEW_MS + 1, 1_000),
        (1, -1, 1_000),
        (0, -1, 1_000),
    ],
)
def test_the_logs_own_time_counts_and_a_senders_up_to_now(kind: int, at: int, taken: int) -> None:
    assert times.taken_at((kind, at), 1_000) == taken


@pytest.mark.parametrize("at", MILLISECONDS)
def test_a_sensors_status_is_written_whatever_it_holds(at: int) -> None:
    waiting = Waiting(trigger="two", partition=0, keys=1, since=at, has=("a",))
    (line,) = sensor_waiting.waiting_lines(sensor_waiting.waiting_status(sensor(1), [waiting]))
    assert line.startswith("two has a, waits for b since ")


@pytest.mark.parametrize("at", MILLISECONDS)
def test_a_dead_letters_condition_is_written_whatever_its_time(at: int) -> None:
    waiting = letters_of_triggers.WaitingDeadLetters("topic", 2, at / 1000)
    assert "2 dead letters wait" in letters_of_triggers.dead_letters_condition(waiting, 0.0).message


@pytest.mark.parametrize("at", MILLISECONDS)
def test_tail_and_dead_letters_show_a_record_of_any_time(at: int) -> None:
    about = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order"}
    draft = to_record(Event(about, b"data"))
    record = MemoryRecord("main", 0, 0, draft.key, draft.value, draft.headers, at)
    said = tailing.line_of(record, None, tailing.OutputFormat.TEXT)
    assert said is not None
    assert "order 1 from /shop" in said
    assert "order" in dead_letters.parse_dead_letter(record, at).text()


@pytest.mark.parametrize("at", MILLISECONDS)
@pytest.mark.parametrize("cron", ["59 23 * * *", "0 0 29 2 *"])
def test_a_reset_has_an_answer_for_any_time(cron: str, at: int) -> None:
    reset = Reset(cron, "Pacific/Kiritimati")
    last, following = reset.last(at), reset.next(at)
    assert last is None or last <= at
    assert following is None or following >= at


def test_a_window_of_ten_thousand_years_ends_no_sensor() -> None:
    """With a reset its end was looked for in a calendar that has no such year."""
    declared = {
        "dependencies": [{"name": "a"}, {"name": "b"}],
        "triggers": [
            {
                "name": "t",
                "conditions": "a && !b",
                "within": "P10000Y",
                "conditionsReset": [{"byTime": {"cron": "0 0 * * *"}}],
            }
        ],
    }
    (rule,) = parse(Conditions, declared).rules()
    now = 1_764_096_000_000
    held = rules.step(rule, (), HeldEvent("a", "/s 1", now, 0, b"{}")).held
    assert rules.expiry_time(rule, held) == now + TEN_THOUSAND_YEARS * 1000 + 1
    after = rules.expire(rule, held, now + 2 * TEN_THOUSAND_YEARS * 1000)
    assert after.held == ()


def test_sensor_test_plays_events_of_the_first_and_the_last_day(tmp_path: Path) -> None:
    document = {
        "apiVersion": "knafka.dev/v1alpha1",
        "kind": "Sensor",
        "metadata": {"name": "s", "namespace": "default"},
        "spec": {
            "broker": "default",
            "dependencies": [{"name": "a"}],
            "triggers": [
                {
                    "name": "t",
                    "conditions": "2 of a",
                    "within": "P10000Y",
                    "conditionsReset": [{"byTime": {"cron": "0 0 * * *"}}],
                    "subscriber": {"uri": "http://there/"},
                },
                {"name": "u", "conditions": "a", "subscriber": {"uri": "http://there/"}},
            ],
        },
    }
    declared, events = tmp_path / "sensor.yaml", tmp_path / "events.ndjson"
    declared.write_text(json.dumps(document))
    about = {"specversion": "1.0", "source": "/s", "type": "a"}
    days = ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00")
    events.write_text(
        "".join(
            json.dumps({**about, "id": str(number), "time": time}) + "\n"
            for number, time in enumerate((*days, *days))
        )
    )
    given = ["sensor", "test", str(declared), "--events", str(events)]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    assert "4 events" in result.output
    assert datetime.now(UTC) < times.utc_datetime(times.LATEST)


@pytest.mark.parametrize("ago", ["99999999999999999d", "9" * 400 + "s"])
def test_as_long_ago_as_nobody_can_count_is_the_start(ago: str) -> None:
    """Kafka's client takes times of 64 bits."""
    assert moments.parse_moment(ago, 1_764_096_000.0) == moments.START_OF_TOPIC
