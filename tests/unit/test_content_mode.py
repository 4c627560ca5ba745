"""How a receiver writes the events of a KafkaSink, without sockets and without Kafka."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.memory.log import MemoryLog, MemoryWriter
from support.receiver_requests import PATH, VALID, Headers, Request, attributes, ingress
from support.spans import Recorded
from support.waiting import until

from knafka.core.contract import Ingress
from knafka.core.documents import dump
from knafka.core.events.http_binding import record_of
from knafka.core.events.kafka_binding import read
from knafka.observability import ingress_labels
from knafka.receiver.answers import Answer
from knafka.receiver.ingest import IngestHandler
from knafka.receiver.observing import ReceiverObservers
from knafka.receiver.tracing import IngestTracing

CLOUD_EVENT = (b"content-type", b"application/cloudevents+json")
BATCH = (b"content-type", b"application/cloudevents-batch+json")


class World:
    """An ingest handler for a KafkaSink on a log in memory."""

    def __init__(self, tracing: IngestTracing | None = None, **of_ingress: Any) -> None:
        self.log = MemoryLog()
        self.log.create("events")
        declared = ingress(kind="KafkaSink", content_mode="structured", **of_ingress)
        observers = ReceiverObservers(tracing=tracing)
        self.ingest = IngestHandler([declared], [MemoryWriter(self.log)], observers=observers)
        self.answers: list[Answer] = []

    async def send(self, headers: Headers, body: bytes = b"") -> int:
        self.answers = []
        self.ingest.handle(b"POST", PATH, headers, body, self.answers.append)
        await until(lambda: self.answers)
        return self.answers[0].status

    def records(self) -> list[tuple[bytes | None, dict[str, bytes], bytes | None]]:
        stored = self.log.topics["events"][0]
        return [(each.key(), dict(each.headers() or ()), each.value()) for each in stored]


@pytest.mark.parametrize("request_", VALID, ids=lambda each: each.id)
async def test_any_event_is_written_as_one_json_document(request_: Request) -> None:
    """CE-K7."""
    world = World()
    assert await world.send(request_.headers, request_.body) == 202
    ((key, headers, value),) = world.records()
    draft = record_of(request_.headers, request_.body)
    binary, structured = read(draft.headers, draft.value), read([*headers.items()], value)
    assert structured.document == value
    assert structured.event == binary.event
    assert key == draft.key
    assert headers.pop("content-type") == b"application/cloudevents+json"
    assert headers == dict(binary.passed), "nothing else of ours"


async def test_json_data_stay_json_and_others_are_base64() -> None:
    world = World()
    await world.send((*attributes(), (b"content-type", b"application/json")), b'{"a": [1]}')
    await world.send((*attributes(), (b"content-type", b"text/plain")), b"\xff")
    documents = [json.loads(value or b"") for _, _, value in world.records()]
    assert [each.get("data") or each["data_base64"] for each in documents] == [{"a": [1]}, "/w=="]


async def test_events_of_a_batch_are_written_each_by_itself() -> None:
    world = World()
    of_each = {"specversion": "1.0", "source": "/s", "type": "t"}
    events = [{**of_each, "id": str(number), "data": {"n": number}} for number in range(3)]
    assert await world.send((BATCH,), json.dumps(events).encode()) == 202
    found = [json.loads(value or b"") for _, _, value in world.records()]
    assert [(each["id"], each["data"]) for each in found] == [
        (str(number), {"n": number}) for number in range(3)
    ]


async def test_a_trace_goes_on_beside_the_document() -> None:
    recorded = Recorded()
    world = World(IngestTracing(recorded.tracer))
    await world.send(attributes())
    ((_, headers, value),) = world.records()
    assert headers.keys() == {"content-type", "traceparent"}
    assert b"traceparent" not in (value or b"")
    receive = next(each for each in recorded.spans if each.name == "receive")
    assert receive.attributes["messaging.destination"] == "sink:broker.ns"


def test_what_is_of_a_sink_is_labelled_so_and_a_brokers_entry_stays_as_it_was() -> None:
    """Receivers of an earlier release know no content mode."""
    sink = ingress(kind="KafkaSink")
    assert ingress_labels(sink) == {"namespace": "ns", "sink": "broker"}
    assert "contentMode" not in dump(sink)
    assert Ingress.model_validate(dump(ingress(content_mode="structured"))).content_mode == (
        "structured"
    )


@pytest.mark.parametrize("data", [b"no base64", b"\x00\x01", b"YQ="])
async def test_an_old_event_that_declares_base64_wrongly_can_be_read_back(data: bytes) -> None:
    """It was answered 202, and its record was none that any reader takes."""
    old = attributes(specversion="0.3", datacontentencoding="base64")
    world = World()
    assert await world.send(old, data) == 202
    ((_, headers, value),) = world.records()
    assert read([*headers.items()], value).data == data
