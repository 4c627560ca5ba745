"""Batches in: checked whole, stored in their order, answered once (CE-H11)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.memory.log import MemoryLog, MemoryWriter
from support.receiver_requests import PATH, ingress

from knafka.core.errors import InvalidEvent, LogError, LogFull
from knafka.core.events import json_format
from knafka.core.events.event import Event
from knafka.core.events.http_binding import MAX_BATCH, record_of
from knafka.core.events.kafka_binding import RecordHeaders
from knafka.ports.log import Reported
from knafka.receiver.answers import Answer
from knafka.receiver.ingest import IngestHandler
from knafka.receiver.limits import Limits

BATCH = (b"content-type", b"application/cloudevents-batch+json")


def event(number: int, **more: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": str(number), "source": "/a", "type": "t", **more}


class HalvingWriter(MemoryWriter):
    """Takes so many records, and then none."""

    def __init__(self, memory: MemoryLog, most: int, error: LogError, *, at_once: bool) -> None:
        super().__init__(memory)
        self._most = most
        self._error = error
        self._at_once = at_once

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders,
        reported: Reported,
    ) -> None:
        self._most -= 1
        if self._most >= 0:
            super().append(topic, key, value, headers, reported)
        elif self._at_once:
            raise self._error
        else:
            reported(self._error)


class World:
    """A receiver of one Broker on a log in memory."""

    def __init__(self, writer: Any = MemoryWriter, **limits: int) -> None:
        self.log = MemoryLog()
        self.log.create("events")
        self.ingest = IngestHandler([ingress()], [writer(self.log)], Limits(**limits))
        self.answers: list[Answer] = []

    async def send(self, body: Any, *headers: tuple[bytes, bytes]) -> tuple[int, str]:
        written = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answers.clear()
        self.ingest.handle(b"POST", PATH, (BATCH, *headers), written, self.answers.append)
        await asyncio.sleep(0.01)
        (answer,) = self.answers
        return answer.status, answer.body.decode()

    @property
    def ids(self) -> list[str]:
        return [dict(each.headers() or ())["ce_id"].decode() for each in self.records]

    @property
    def records(self) -> list[Any]:
        return self.log.topics["events"][0]

    def counted(self) -> dict[str, float]:
        (metric,) = (
            each for each in self.ingest.metrics() if each.name == "knafka_receiver_events_total"
        )
        return {labels["code"]: value for labels, value in metric.samples}  # type: ignore[misc]


async def test_a_batch_is_stored_as_its_events_would_be_one_by_one_in_their_order() -> None:
    world = World()
    events = [event(number, subject="k", data={"n": number}) for number in range(50)]
    status, _ = await world.send(events, (b"traceparent", b"00-1-2-01"), (b"ce-id", b"x"))
    assert status == 202
    assert world.ids == [str(number) for number in range(50)]
    for record, one in zip(world.records, events, strict=True):
        alone = record_of(
            [(b"content-type", b"application/cloudevents+json"), (b"traceparent", b"00-1-2-01")],
            json.dumps(one).encode(),
        )
        assert (record.key(), record.headers(), record.value()) == alone
    assert world.counted() == {"202": 50}


async def test_an_empty_batch_is_accepted() -> None:
    assert (await World().send([]))[0] == 202


async def test_a_batch_is_refused_whole_and_each_wrong_event_is_named_by_its_position() -> None:
    world = World()
    events = [event(0), event(1, source=""), event(2), 5, event(4, id=None)]
    status, text = await world.send(events)
    assert status == 400
    assert "3 of the batch's 5 events are not valid, none is stored" in text
    for told in ("[1]: the attribute source is required", "[3]: ", "[4]: the attribute id"):
        assert told in text
    assert world.records == []
    status, text = await world.send([event(n, source="") for n in range(MAX_BATCH)])
    assert status == 400
    assert text.rstrip().endswith(f" {MAX_BATCH - 1}")


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"5", b"[", b"[{}", b"[1,]", b"[] []", b"[" * 100_000, b"[\xff]"]
)
async def test_what_is_no_array_is_no_batch(body: bytes) -> None:
    world = World()
    assert (await world.send(body))[0] == 400
    assert world.records == []


async def test_one_bound_is_for_the_number_of_events() -> None:
    world = World()
    assert (await world.send([event(n) for n in range(MAX_BATCH)]))[0] == 202
    status, text = await world.send([event(n) for n in range(MAX_BATCH + 1)])
    assert status == 413
    assert f"{MAX_BATCH} events" in text
    assert len(world.records) == MAX_BATCH


async def test_data_keep_their_bytes_also_where_only_the_careful_way_reads_them() -> None:
    """CE-H10"""
    world = World()
    data = b'{ "a" : NaN, "b": "\\ud800", "c": 1e999 }'
    head = b'{"specversion":"1.0","id":"1","source":"/a","type":"t","data": '
    assert (await world.send(b" [ " + head + data + b"} , " + head + data + b"}\n]"))[0] == 202
    assert [each.value() for each in world.records] == [data, data]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("error", [LogError("gone"), LogFull("full")])
async def test_where_kafka_does_not_take_all_the_sender_is_to_send_all_again(
    at_once: bool, error: LogError
) -> None:
    world = World(lambda log: HalvingWriter(log, 3, error, at_once=at_once))
    status, _ = await world.send([event(n) for n in range(10)])
    assert status == 503
    assert world.counted() == {"503": 10}
    assert world.ingest._waiting_bytes == 0


async def test_the_answer_comes_when_kafka_has_all() -> None:
    world = World()
    world.log.hold()
    with pytest.raises(ValueError, match="not enough values"):
        await world.send([event(1), event(2)])
    assert world.ingest._waiting_bytes > 0
    world.log.release()
    await asyncio.sleep(0.01)
    assert [each.status for each in world.answers] == [202]
    assert world.ingest._waiting_bytes == 0


async def test_a_batch_counts_to_what_may_wait_for_kafka() -> None:
    world = World(in_flight=5)
    assert (await world.send([event(n) for n in range(6)]))[0] == 503
    assert world.records == []
    assert (await world.send([event(n) for n in range(5)]))[0] == 202


async def test_the_headers_of_a_batch_count_for_the_bytes_in_flight() -> None:
    """As one event's do: each is kept at a price of its own."""
    world = World(in_flight_bytes=1_000)
    assert (await world.send([event(1), event(2)]))[0] == 503
    assert world.records == []
    assert (await World(in_flight_bytes=2_000).send([event(1), event(2)]))[0] == 202


def test_a_batch_is_written_as_an_array_of_what_is_written_of_each_event() -> None:
    one = Event({"specversion": "1.0", "id": "1", "source": "/a", "type": "t"}, b'{"a":1}')
    one.attributes["datacontenttype"] = "application/json"  # type: ignore[index]
    written = json_format.write_batch([one, one])
    assert json_format.elements_of(written, 10) == [json_format.write(one)] * 2
    with pytest.raises(InvalidEvent):
        json_format.elements_of(b"[1", 10)
