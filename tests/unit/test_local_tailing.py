"""`knafka tail` and `rewind`: an event as a line, and times as people say them."""

from __future__ import annotations

import json

import pytest
from support.memory.records import MemoryRecord

from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import to_record
from knafka_cli.events import tailing
from knafka_cli.events.tailing import OutputFormat, line_of, problem_of
from knafka_cli.shared.event_input import BadInput
from knafka_cli.shared.moments import START_OF_TOPIC, parse_moment

ATTRIBUTES = {
    "specversion": "1.0",
    "id": "1",
    "source": "/shop",
    "type": "order",
    "subject": "ada",
    "datacontenttype": "application/json",
}

NOW = 1_000_000.0


def record(data: bytes | None = b'{"n": 1}', **attributes: str) -> MemoryRecord:
    draft = to_record(Event({**ATTRIBUTES, **attributes}, data))
    return MemoryRecord("t", 0, 7, draft.key, draft.value, draft.headers, 1_700_000_000_123)


def test_an_event_is_a_line_for_a_person() -> None:
    line = line_of(record(), None, OutputFormat.TEXT)
    assert line is not None
    assert line.endswith('.123 order 1 from /shop about ada: {"n": 1}')


def test_an_event_is_a_structured_event_for_machines() -> None:
    line = line_of(record(), None, OutputFormat.JSON)
    assert line is not None
    assert json.loads(line) == {**ATTRIBUTES, "data": {"n": 1}}


def test_no_event_can_move_the_cursor_or_break_its_line() -> None:
    line = line_of(record(b"\x1b[2J\nbank", id="a b"), None, OutputFormat.TEXT)
    assert line is not None
    assert "\x1b" not in line
    assert "\n" not in line


@pytest.mark.parametrize(("count", "kept"), [(1, [2]), (3, [0, 1, 2]), (5, [0, 1, 2]), (0, [])])
def test_the_newest_existing_records_are_kept_however_few_there_are(
    count: int, kept: list[int]
) -> None:
    records = [MemoryRecord("t", 0, offset, None, b"", [], offset) for offset in range(4)]
    ends = {("t", 0): 3}  # the last record is new
    newest = tailing._keep_newest(list(records), ends, count)
    assert [record.offset() for record in newest] == [*kept, 3]


def test_only_what_is_wanted_is_shown() -> None:
    assert line_of(record(), lambda event: event["type"] == "payment", OutputFormat.TEXT) is None
    assert line_of(record(), lambda event: event["type"] == "order", OutputFormat.TEXT) is not None


def test_what_is_no_event_is_said_by_its_place() -> None:
    broken = MemoryRecord("t", 3, 7, None, b"", [("ce_id", b"\xff")])
    problem = problem_of(broken)
    assert problem is not None
    assert "no event at t/3/7: " in problem
    assert problem_of(record()) is None


def test_a_wide_line_has_the_place_the_key_and_all_attributes() -> None:
    line = line_of(record(partitionkey="ada"), None, OutputFormat.WIDE)
    assert line is not None
    assert "order 1 from /shop about ada [t/0/7] key=ada " in line
    assert "datacontenttype=application/json" in line
    assert "partitionkey=ada" in line
    assert line.endswith(': {"n": 1}')


def test_a_dead_letter_says_how_it_failed() -> None:
    line = line_of(
        record(knafkareason="status", knativeerrorcode="500", knafkaattempts="3"),
        None, OutputFormat.TEXT,
    )  # fmt: skip
    assert line is not None
    assert "order 1 from /shop about ada (status 500 after 3 attempts): " in line


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("start", START_OF_TOPIC),
        ("90s", NOW - 90),
        ("15m", NOW - 900),
        ("0.5h", NOW - 1800),
        ("1d", NOW - 86400),
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T02:00:00+02:00", 0.0),
    ],
)
def test_a_time_is_said_as_people_say_it(text: str, seconds: float) -> None:
    assert parse_moment(text, NOW) == seconds


@pytest.mark.parametrize("text", ["", "yesterday", "15", "m", "2026-13-01"])
def test_what_is_no_time_is_refused_with_one_that_is(text: str) -> None:
    with pytest.raises(BadInput, match="15m"):
        parse_moment(text, 1000.0)
