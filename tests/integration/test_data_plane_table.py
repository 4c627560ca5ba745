"""The data-plane table (knative.md), by a real dispatcher process, Kafka and HTTP subscriber.

It is played once, by one drain for all its rows and one for the refused connection; each row is
then a test of its own.
"""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections import Counter
from dataclasses import dataclass

import pytest
from support.kafka import Kafka
from support.scripted import CLOSE, Arrival, ScriptedServer, raw
from support.trigger_world import TriggerWorld, drained

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core.contract import Delivery

DELIVERED, FAILED, RETRIED = "delivered", "failed at once", "retried"


@dataclass(frozen=True, slots=True)
class Row:
    """How the subscriber answers, and what must become of the event."""

    answer: bytes | None
    expected: str
    reason: str = "status"
    code: str | None = None


def status_rows(expected: str, *statuses: int) -> dict[str, Row]:
    code = None if expected == DELIVERED else "status"
    return {
        str(status): Row(
            raw(status, b"" if status in (204, 304) else b"a body"),
            expected,
            code=code and str(status),
        )
        for status in statuses
    }


SLOWLY = b"never"
EARLY = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
HALF = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf" + CLOSE
TABLE = {
    "100 then 200": Row(CONTINUE + raw(200), DELIVERED),
    "103 then 204": Row(EARLY + raw(204), DELIVERED),
    "100 then 500": Row(CONTINUE + raw(500), RETRIED, code="500"),
    "101": Row(SWITCHING + CLOSE, FAILED, code="101"),
    **status_rows(DELIVERED, 200, 201, 202, 203, 204, 205, 206, 207, 299),
    **status_rows(FAILED, 300, 301, 302, 303, 304, 307, 308),
    **status_rows(FAILED, 400, 401, 402, 403, 405, 406, 407, 410, 411, 412, 413, 414, 415, 416),
    **status_rows(FAILED, 417, 418, 421, 422, 423, 424, 425, 426, 428, 431, 451, 499),
    **status_rows(RETRIED, 404, 408, 409, 429),
    **status_rows(RETRIED, 500, 501, 502, 503, 504, 505, 507, 508, 511, 599),
    **status_rows(RETRIED, 600, 999),  # KN-DP-03: not in the table
    "no response": Row(None, RETRIED, "broken"),
    "closed within the response": Row(HALF, RETRIED, "broken"),
    "no HTTP": Row(b"SSH-2.0-OpenSSH_9.6\r\n" + CLOSE, RETRIED, "broken"),
    "timeout": Row(SLOWLY, RETRIED, "timeout"),
    "refused": Row(None, RETRIED, "refused"),
    "200 OK in plain text": Row(raw(200, b"OK", content_type="text/html"), DELIVERED),
    "200 with a malformed event": Row(raw(200, ce_id="1"), FAILED, "malformed-reply", "200"),
    "202 with a malformed event": Row(raw(202, ce_id="1"), DELIVERED),
}


@dataclass
class Played:
    """What became of each row's event."""

    arrived: Counter[str]
    letters: dict[str, dict[str, str]]
    lag: int


@pytest.fixture(scope="module")
def played(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The whole table, by two dispatchers; retry 1. The `topic` fixture lasts for one test only."""
    names = list[str]()

    def make(partitions: int = 1) -> str:
        names.append(f"test-table-{uuid.uuid4().hex}")
        return names[-1]

    async def play() -> Played:
        table = TriggerWorld(kafka, make, tmp_path_factory.mktemp("table"))
        refused = TriggerWorld(kafka, make, tmp_path_factory.mktemp("refused"))
        admin = KafkaAdmin({"bootstrap.servers": kafka.bootstrap_servers})
        for name in names:
            await admin.ensure_topic(name, 1, 1, {})
        rows = dict(enumerate(TABLE))

        async def script(arrival: Arrival) -> bytes | None:
            answer = TABLE[rows[int(arrival.id)]].answer
            if answer == SLOWLY:
                await asyncio.sleep(60)
            return answer

        for number, row in rows.items():
            (refused if row == "refused" else table).send(str(number), key=str(number))
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            nowhere = f"http://127.0.0.1:{nobody.getsockname()[1]}/"
            delivery = Delivery(retry=1, backoff_delay=0.05, timeout=1.5)
            async with (
                ScriptedServer(script) as server,
                table.dispatcher(server.url, delivery=delivery) as first,
                refused.dispatcher(nowhere, delivery=delivery) as second,
            ):
                await asyncio.gather(drained(first), drained(second))
        letters = await table.letters() | await refused.letters()
        lag = await table.lag() + await refused.lag()
        for name in names:
            await admin.delete_topic(name)
        return Played(
            Counter(rows[int(each.id)] for each in server.arrivals),
            {rows[int(number)]: letter for number, letter in letters.items()},
            lag,
        )

    return asyncio.run(play())


@pytest.mark.conformance("KN-DP-03", "KN-DP-08")
@pytest.mark.parametrize("row", TABLE)
def test_data_plane_table(played: Played, row: str) -> None:
    expected = TABLE[row]
    letter = played.letters.get(row)
    if expected.expected == DELIVERED:
        assert (played.arrived[row], letter) == (1, None)
        return
    assert letter is not None
    assert letter["knafkaattempts"] == ("2" if expected.expected == RETRIED else "1")
    assert letter["knafkareason"] == expected.reason
    assert letter.get("knativeerrorcode") == expected.code
    assert letter["knativeerrordest"].startswith("http://127.0.0.1:")


def test_after_the_whole_table_nothing_is_left_uncommitted(played: Played) -> None:
    assert played.lag == 0
