"""Which types of events a receiver tells its operator of (`eventtype-auto-create`)."""

from __future__ import annotations

import json

from support.memory.log import MemoryLog, MemoryWriter
from support.receiver_requests import PATH, Headers, attributes, ingress
from support.waiting import until

from knafka.core.errors import LogError
from knafka.core.tokens.caller_tokens import CALLERS, EVERYBODY, Callers, verifiers_of
from knafka.receiver import event_types
from knafka.receiver.answers import Answer
from knafka.receiver.event_types import (
    LISTED_SECONDS,
    MAX_KNOWN_TYPES,
    MAX_NEW_TYPES,
    MAX_PER_PATH,
    SeenTypes,
)
from knafka.receiver.ingest import IngestHandler
from knafka.receiver.observing import ReceiverObservers
from knafka.settings import EVENT_TYPES

BATCH = (b"content-type", b"application/cloudevents-batch+json")
ONE = {"path": "/ns/broker", "type": "t", "source": "/s"}


class World:
    """An ingest handler for a Broker on a log in memory."""

    def __init__(self, types: SeenTypes | None, callers: Callers = EVERYBODY) -> None:
        self.log = MemoryLog()
        self.log.create("events")
        self.writer = MemoryWriter(self.log)
        self.ingest = IngestHandler(
            [ingress()], [self.writer], observers=ReceiverObservers(types=types, callers=callers)
        )

    async def ask(
        self, method: bytes, path: bytes, headers: Headers = (), body: bytes = b""
    ) -> Answer:
        answers: list[Answer] = []
        self.ingest.handle(method, path, headers, body, answers.append)
        await until(lambda: answers)
        return answers[0]

    async def send(self, headers: Headers, body: bytes = b"") -> int:
        return (await self.ask(b"POST", PATH, headers, body)).status

    async def told(self) -> list[dict[str, str]]:
        answer = await self.ask(b"GET", b"/event-types")
        found: list[dict[str, str]] = json.loads(answer.body)["eventTypes"]
        return found


def note(types: SeenTypes, type_: str, source: str = "/s", path: str = "/ns/broker") -> None:
    types.note_event(path, [("ce_type", type_.encode()), ("ce_source", source.encode())])


def told(types: SeenTypes) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(types.next_answer())["eventTypes"]
    return found


async def test_what_was_stored_is_told_once_for_each_type_and_source() -> None:
    world = World(SeenTypes())
    for headers in (attributes(), attributes(id="2"), attributes(source="/other")):
        assert await world.send(headers) == 202
    await world.send(attributes(type="typed", dataschema="http://schemas/one"))
    assert await world.told() == [
        ONE,
        {**ONE, "source": "/other"},
        {**ONE, "type": "typed", "schema": "http://schemas/one"},
    ]


async def test_events_of_a_batch_and_structured_ones_are_told_too() -> None:
    world = World(SeenTypes())
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "a"}
    await world.send((BATCH,), json.dumps([event, {**event, "type": "b"}]).encode())
    of_json = (b"content-type", b"application/cloudevents+json")
    await world.send((of_json,), json.dumps({**event, "type": "c"}).encode())
    assert [each["type"] for each in await world.told()] == ["a", "b", "c"]


async def test_what_was_not_stored_is_not_told() -> None:
    world = World(SeenTypes())
    world.log.fail(LogError("Kafka is away"))
    assert await world.send(attributes()) == 503
    assert await world.send(attributes(source=None)) == 400
    assert await world.told() == []


async def test_without_the_feature_there_is_no_such_path() -> None:
    world = World(None)
    assert (await world.ask(b"GET", b"/event-types")).status == 404


async def test_only_its_operator_is_told() -> None:
    callers = Callers.parse(verifiers_of(["secret"]), CALLERS)
    world = World(SeenTypes(), callers=callers)
    assert (await world.ask(b"GET", b"/event-types")).status == 401
    asked = await world.ask(b"GET", b"/event-types", ((b"authorization", b"Bearer secret"),))
    assert asked.status == 200


def test_what_was_asked_for_is_told_for_a_while_and_never_again() -> None:
    now = [0.0]
    types = SeenTypes(lambda: now[0])
    note(types, "t")
    now[0] = 1000.0
    assert told(types) == [ONE], "however late it is asked for"
    now[0] += LISTED_SECONDS / 2
    assert told(types) == [ONE], "an answer may be lost"
    now[0] += LISTED_SECONDS / 2
    assert told(types) == []
    note(types, "t")
    assert told(types) == []


def test_as_many_are_kept_as_are_asked_for_and_the_rest_come_again() -> None:
    now = [1.0]
    types = SeenTypes(lambda: now[0])
    for number in range(2 * MAX_NEW_TYPES):
        note(types, f"t{number}")
    asked = [each["type"] for _ in range(MAX_NEW_TYPES // MAX_PER_PATH) for each in told(types)]
    assert asked == [f"t{number}" for number in range(MAX_NEW_TYPES)]
    now[0] += LISTED_SECONDS
    note(types, f"t{MAX_NEW_TYPES}")
    assert [each["type"] for each in told(types)] == [f"t{MAX_NEW_TYPES}"]


def test_no_sender_has_a_receiver_remember_more_than_so_many_types() -> None:
    now = [1.0]
    types = SeenTypes(lambda: now[0])
    count = 0
    for number in range(2 * MAX_KNOWN_TYPES):
        note(types, f"t{number}")
        count += len(told(types))
        now[0] += LISTED_SECONDS
    assert count == MAX_KNOWN_TYPES


def test_large_texts_are_never_told() -> None:
    types = SeenTypes()
    note(types, "t" * event_types.MAX_TYPE_BYTES)
    types.note_event("/ns/broker", [("content-type", b"application/cloudevents+json")])
    assert told(types) == []
    note(types, "t")
    types.note_event(
        "/ns/broker",
        [("ce_type", b"u"), ("ce_source", b"/s"), ("ce_dataschema", b"s" * 1000)],
    )
    assert told(types) == [ONE, {**ONE, "type": "u"}]


def test_whoever_sends_many_types_keeps_nobody_elses_from_being_told() -> None:
    types = SeenTypes()
    for number in range(1000):
        for noisy in range(500):
            note(types, f"t{number % 60}" + "x" * 300, path=f"/noisy/{noisy}")
        if number > 60:
            break
    note(types, "t", path="/ns/broker")
    found = [each for _ in range(100) for each in told(types)]
    assert ONE in found


def test_an_answer_has_a_bound() -> None:
    types = SeenTypes()
    for path in range(300):
        for number in range(MAX_NEW_TYPES):
            note(types, f"{number}" + "x" * 400, path=f"/ns/{path}")
    assert len(types.next_answer()) < 80_000


def test_another_broker_at_a_path_begins_anew() -> None:
    types = SeenTypes()
    note(types, "t")
    types.keep_paths(["/ns/other"])
    note(types, "t")
    assert told(types) == [ONE]


def test_the_variable_is_the_operators() -> None:
    assert EVENT_TYPES == "KNAFKA_EVENT_TYPES"
