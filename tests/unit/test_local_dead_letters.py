"""Dead letters as they are shown: what went wrong, fit for a terminal."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from knafka.clients.memory_admin import MemoryAdmin
from knafka.clients.memory_log import MemoryLog
from knafka.core.contract import Egress, Kafka, Sink
from knafka.core.dead_letter import Failure, Origin, dead_letter_of, stub_of
from knafka.core.delivery import Reason
from knafka.core.event import Event
from knafka.core.kafka_binding import Draft, RecordHeaders, to_record
from knafka_local.dead_letters import PREVIEW, letter, letters, overview, shown

ORIGIN = Origin("default", "shop", "orders", "topic", 2, 42)
FAILURE = Failure("http://127.0.0.1:1/", Reason.STATUS, 3, 0.0, 1.5, 500, b"no\x1b[2J\nbank")
EVENT = Event({"specversion": "1.0", "id": "1", "source": "/shop", "type": "order"}, b'{"n": 1}')


@dataclass
class FakeRecord:
    recorded_headers: RecordHeaders | None
    recorded_value: bytes | None = None
    written: int = field(default=1_700_000_000_000)

    def topic(self) -> str:
        return "dead"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 0

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return self.recorded_value

    def headers(self) -> RecordHeaders | None:
        return self.recorded_headers

    def timestamp(self) -> tuple[int, int]:
        return 1, self.written


@pytest.mark.conformance("KN-DLV-08")
def test_a_dead_letter_tells_its_whole_story() -> None:
    """KN-DLV-08."""
    draft = to_record(EVENT)
    found = letter(FakeRecord(*dead_letter_of(draft.headers, draft.value, FAILURE, ORIGIN)))
    assert (found.type, found.id, found.source) == ("order", "1", "/shop")
    assert (found.reason, found.code, found.attempts) == ("status", "500", "3")
    assert (found.first_time, found.last_time) == (
        "1970-01-01T00:00:00.000Z",
        "1970-01-01T00:00:01.500Z",
    )
    assert found.destination == "http://127.0.0.1:1/"
    assert found.position == "topic/2/42"
    assert found.data == '{"n": 1}'
    assert found.error == "no [2J bank"
    assert json.loads(found.json())["error"] == "no [2J bank"
    assert "status 500 after 3 attempts at http://127.0.0.1:1/" in found.text()


def test_what_is_no_event_at_all_is_shown_too() -> None:
    """CE-K8: an undecodable record is buried as it is."""
    found = letter(FakeRecord(None, b"\xff\x00raw"))
    assert found.id == ""
    assert found.last_time == "2023-11-14T22:13:20.000Z"
    assert found.data.endswith("raw")


def test_nothing_that_is_shown_is_long_or_moves_the_cursor() -> None:
    assert shown("a\r\nb\x07") == "a  b"
    assert len(shown("x" * 10_000)) == PREVIEW


async def test_a_trigger_without_a_dead_letter_topic_has_no_dead_letters() -> None:
    """It is made for the first."""
    admin = MemoryAdmin(MemoryLog())
    egress = Egress(
        namespace="shop", broker="main", trigger="mail", topic="t", group="g",
        dead_letter_topic="dead", kafka=Kafka(bootstrap_servers="k:1"),
        subscriber=Sink(url="http://mail/"),
    )  # fmt: skip
    assert await letters(admin, egress, 10) == []
    assert (await overview(admin, egress)).counted == "0"


def test_a_stub_says_what_is_missing() -> None:
    headers, value = dead_letter_of(*to_record(EVENT)[1:], FAILURE, ORIGIN)
    stub = stub_of(Draft(None, headers, value))
    assert "  too large to be kept: data\n" in letter(FakeRecord(stub.headers)).text() + "\n"
