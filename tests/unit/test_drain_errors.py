"""What a drain does with what one record raises: it is dead-lettered, and the others go on."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from support.drains import DEAD, SUBSCRIBER, TOPIC, Request, World, id_of, response
from support.memory.log import MemoryWriter
from support.memory.records import MemoryRecord

from knafka.core.contract import Delivery
from knafka.core.dead_letter import ATTEMPT_LOG, dead_letter_of, parse_attempt_log
from knafka.core.events.kafka_binding import RecordHeaders
from knafka.core.offsets import OffsetTracker
from knafka.dispatcher.engine import intake
from knafka.dispatcher.engine.pending import AssignedPartition, PendingEvent
from knafka.dispatcher.engine.sending import dead_letter_delivery
from knafka.ports.log import OffsetAndMetadata
from knafka.ports.subscriber import Response

pytestmark = pytest.mark.looptime

BAD = "2"
"""The id of the event that something breaks on."""


class Unreadable(MemoryRecord):
    """Raises once, as confluent-kafka does for a header name that isn't UTF-8, and then crashes."""

    __slots__ = ("_asked",)

    def headers(self) -> RecordHeaders | None:
        assert not hasattr(self, "_asked"), "whoever asks again ends the process"
        self._asked = True
        raise SystemError("headers returned a result with an exception set")


def breaks(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    """Have a function of `module` raise for the bad event."""
    function: Callable[..., Any] = getattr(module, name)

    def broken(*arguments: Any) -> Any:
        if b"bad data" in repr(arguments).encode():
            raise ZeroDivisionError("a bug")
        return function(*arguments)

    monkeypatch.setattr(module, name, broken)


def world_with_a_bad_event(**options: Any) -> World:
    world = World(**options)
    world.send("1", "k")
    world.send(BAD, "k", b"bad data")
    world.send("3", "k")
    world.send("4", "other")
    return world


def story(world: World) -> dict[str, bytes]:
    (letter,) = world.records_of(DEAD)
    assert (letter.key(), letter.value()) == (b"k", b"bad data")
    return {name: value for name, value in letter.headers() or []}


def why(told: dict[str, bytes]) -> bytes:
    return base64.b64decode(told["ce_knativeerrordata"])


async def test_a_record_whose_headers_can_not_be_read_is_dead_lettered_without_them() -> None:
    """CE-K8."""
    world = World()
    world.send("1", "k")
    world.log.topics[TOPIC][0].append(Unreadable(TOPIC, 0, 1, b"k", b"bad data", []))
    world.send("3", "k")
    drain = world.drain()
    progress = await world.begin(drain)
    assert (progress.delivered, progress.dead_lettered) == (2, 1)
    assert drain.counts.failures == {"undecodable-record": 1}
    told = story(world)
    assert told["ce_knafkareason"] == b"undecodable-record"
    assert why(told).startswith(b"the record's headers can't be read: ")
    assert (told["ce_knafkatopic"], told["ce_knafkaoffset"]) == (TOPIC.encode(), b"1")
    assert world.committed == {0: 3}


@pytest.mark.parametrize("sink", [False, True], ids=["no sink", "sink"])
@pytest.mark.parametrize("step", ["read", "filter", "prepare", "carry"])
async def test_an_event_that_a_bug_breaks_is_dead_lettered_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, step: str, sink: bool
) -> None:
    async def answer(request: Request) -> Response:
        if step == "carry" and id_of(request) == BAD:
            raise ZeroDivisionError("a bug")
        return response()

    world = world_with_a_bad_event(answer=answer, sink=sink)
    if step == "read":
        breaks(monkeypatch, intake, "read")
    elif step == "prepare":
        breaks(monkeypatch, intake, "located_request_of")
        breaks(monkeypatch, dead_letter_delivery, "request_of")
    running = world.drain()
    if step == "filter":
        running._intake._matches_filter = lambda event: event["id"] != BAD or bool(1 / 0)
    progress = await world.begin(running)
    assert (progress.delivered, progress.dead_lettered) == (3, 1)
    assert running.counts.failures == {"internal-error": 1}
    told = story(world)
    assert told["ce_knafkareason"] == b"internal-error"
    assert told["ce_id"] == BAD.encode()
    assert why(told).startswith(b"ZeroDivisionError: ")
    assert told["ce_knafkaattempts"] == (b"1" if step == "carry" else b"0")
    assert told["ce_knafkalasttime"].endswith(b"Z")
    assert [each for each in world.subscriber.ids if each != BAD] == ["1", "4", "3"]
    assert world.committed == {0: 4}


async def test_an_event_that_a_bug_breaks_in_its_backoff_is_dead_lettered_with_its_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What an earlier dispatcher stored of it doesn't send it to its subscriber without data."""

    async def refuse(request: Request) -> Response:
        return response(500)

    world = World(refuse, delivery=Delivery(retry=5, backoff_delay=100))
    world.send(BAD, "k", b"bad data")
    await world.run(stop_after=5)
    breaks(monkeypatch, intake, "read")
    progress = await world.run()
    assert (progress.retried, progress.dead_lettered) == (0, 1)
    told = story(world)
    assert (told["ce_knafkareason"], told["ce_knafkaattempts"]) == (b"internal-error", b"1")
    assert world.subscriber.ids == [BAD]
    assert world.committed == {0: 1}


async def test_a_bug_in_a_later_attempt_is_told_after_the_attempts_before_it() -> None:
    attempts = iter([response(503), None])

    async def answer(request: Request) -> Response:
        if id_of(request) != BAD:
            return response()
        if (given := next(attempts)) is None:
            raise ZeroDivisionError("a bug")
        return given

    world = world_with_a_bad_event(answer=answer, delivery=Delivery(retry=3))
    progress = await world.run()
    assert (progress.delivered, progress.dead_lettered) == (3, 1)
    told = story(world)
    assert told["ce_knafkaattempts"] == b"2"
    results = [result for _, result in parse_attempt_log(told[f"ce_{ATTEMPT_LOG}"].decode())]
    assert results == ["503", "internal-error"]


@pytest.mark.parametrize("sink", [False, True], ids=["no sink", "sink"])
async def test_a_dead_letter_that_can_not_be_made_with_the_records_headers_has_the_story_alone(
    monkeypatch: pytest.MonkeyPatch, sink: bool
) -> None:
    async def answer(request: Request) -> Response:
        return response(422 if id_of(request) == BAD else 200)

    def broken(headers: RecordHeaders, *more: Any) -> Any:
        if headers:
            raise ZeroDivisionError("a bug")
        return dead_letter_of(headers, *more)

    monkeypatch.setattr(dead_letter_delivery, "dead_letter_of", broken)
    world = world_with_a_bad_event(answer=answer, sink=sink)
    progress = await world.run()
    assert (progress.delivered, progress.dead_lettered) == (3, 1)
    told = story(world)
    assert told["ce_knafkareason"] == b"undecodable-record", "without its headers it is no event"
    assert told["ce_knativeerrorcode"] == b"422"
    assert told["ce_knativeerrordest"] == SUBSCRIBER.encode()
    assert "ce_id" not in told
    assert world.committed == {0: 4}


async def test_a_dead_letter_that_a_writer_chokes_on_is_written_without_its_headers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def answer(request: Request) -> Response:
        return response(422 if id_of(request) == BAD else 200)

    append = MemoryWriter.append

    def choking(
        self: MemoryWriter, topic: str, key: Any, value: Any, headers: RecordHeaders, reported: Any
    ) -> None:
        if "ce_id" in dict(headers):
            raise ValueError("embedded null character")
        append(self, topic, key, value, headers, reported)

    monkeypatch.setattr(MemoryWriter, "append", choking)
    world = world_with_a_bad_event(answer=answer)
    progress = await world.run()
    assert (progress.delivered, progress.dead_lettered) == (3, 1)
    assert story(world)["ce_knativeerrorcode"] == b"422"
    assert world.committed == {0: 4}


async def test_an_event_whose_dead_letter_always_breaks_stays_unsettled_and_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def answer(request: Request) -> Response:
        return response(422 if id_of(request) == BAD else 200)

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(dead_letter_delivery, "dead_letter_of", broken)
    world = world_with_a_bad_event(answer=answer)
    drain = world.drain()
    progress = await world.begin(drain, stop_after=60)
    assert (progress.delivered, progress.dead_lettered) == (2, 0)
    assert drain.counts.failures["internal-error"] < 20, "it waits between attempts"
    assert world.committed == {0: 1}


async def test_a_bug_of_the_drain_itself_ends_it_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    """What isn't one record's is not to be dead-lettered event by event."""
    settle = OffsetTracker.settle

    def broken(self: OffsetTracker[PendingEvent], offset: int) -> None:
        if offset == 1:
            raise ZeroDivisionError
        settle(self, offset)

    monkeypatch.setattr(OffsetTracker, "settle", broken)
    world = world_with_a_bad_event()
    with pytest.raises(ZeroDivisionError):
        await world.run()
    assert world.committed == {0: 1}
    assert world.records_of(DEAD) == []
    assert world.log.groups["group"].members == [], "it has left"


async def test_a_bug_in_a_commit_ends_the_drain_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without commits, it would deliver on and on what the next one delivers again."""

    def broken(self: AssignedPartition, policy: int) -> OffsetAndMetadata | None:
        monkeypatch.undo()  # the last commit succeeds
        raise ZeroDivisionError

    monkeypatch.setattr(AssignedPartition, "to_commit", broken)
    world = World()
    world.send("1", "k")
    with pytest.raises(ZeroDivisionError):
        await world.begin(world.drain(), idle=60)
    assert world.committed == {0: 1}
    assert world.log.groups["group"].members == [], "it has left"
