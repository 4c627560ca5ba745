"""Which producer takes a record, and on which thread its report is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from queue import Empty, SimpleQueue
from typing import Any, cast

import pytest
from support.memory.records import MemoryRecord
from support.waiting import until

from knafka.clients.kafka.producers import kafka_writer, kafka_writer_producers
from knafka.clients.kafka.producers.kafka_producer import ReplaceableProducer
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.clients.kafka.producers.kafka_writer_producers import LINGER_MS
from knafka.core.errors import LogError, LogFull
from knafka.core.events.kafka_binding import Draft

SOON = 10.0
TOO_LARGE = 3


SENT = MemoryRecord("events", 0, 0, None, None, None)
"""What every report is about."""


class Scripted:
    """A producer that reports within a poll what `report` was asked to."""

    failure = None

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.purged: list[bool] = []
        self.is_retired = False
        self._reports: SimpleQueue[Any] = SimpleQueue()

    def __len__(self) -> int:
        """As librdkafka counts: also those whose reports aren't polled yet."""
        return len(self.taken) + self._reports.qsize()

    def retire(self) -> None:
        self.is_retired = True

    def produce(self, *arguments: Any) -> None:
        if self.is_retired:
            raise LogError("retired")
        self.taken.append(arguments[-1])

    def report(self, count: int | None = None) -> None:
        count = len(self.taken) if count is None else count
        for each in self.taken[:count]:
            self._reports.put(each)
        del self.taken[:count]

    def poll(self, timeout: float) -> None:
        try:
            self._reports.get(timeout=min(timeout, 0.01) or None, block=timeout > 0)(None, SENT)
            while True:
                self._reports.get_nowait()(None, SENT)
        except Empty:
            pass

    def purge(self, *, in_flight: bool) -> None:
        self.purged.append(in_flight)
        if in_flight:
            self.report()


class World:
    """A writer on scripted producers: one for each linger time, as they are opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: dict[float, Scripted] = {}

        def open_(_: object, linger_ms: float, __: object) -> ReplaceableProducer:
            self.opened[linger_ms] = Scripted()
            return cast(ReplaceableProducer, self.opened[linger_ms])

        monkeypatch.setattr(kafka_writer_producers, "ReplaceableProducer", open_)
        self.writer = KafkaWriter({})
        self.told: list[threading.Thread] = []

    def append(self, count: int = 1, key: bytes | None = None) -> None:
        for _ in range(count):
            self.writer.append("t", key, b"x", [], self._reported)

    def _reported(self, error: LogError | None) -> None:
        assert error is None
        self.told.append(threading.current_thread())

    @property
    def taken(self) -> dict[float, int]:
        return {linger: len(each.taken) for linger, each in self.opened.items()}


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = World(monkeypatch)
    yield made
    await made.writer.close(0)


async def test_while_few_are_in_flight_records_go_to_a_producer_that_does_not_linger(
    world: World,
) -> None:
    world.append(kafka_writer.MANY_IN_FLIGHT)
    assert world.taken == {0: kafka_writer.MANY_IN_FLIGHT}


async def test_while_many_are_in_flight_they_are_gathered_and_a_while_longer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_writer, "GATHERING_TIME", 3600)
    many = kafka_writer.MANY_IN_FLIGHT
    world.append(many + 3)
    assert world.taken == {0: many, LINGER_MS: 3}
    for each in world.opened.values():
        each.report()
    await until(lambda: world.writer.in_flight == 0)
    world.append()
    assert world.taken == {0: 0, LINGER_MS: 1}


async def test_after_a_while_with_few_in_flight_none_lingers_any_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_writer, "GATHERING_TIME", 0)
    many = kafka_writer.MANY_IN_FLIGHT
    world.append(many)
    monkeypatch.setattr(kafka_writer, "GATHERING_TIME", 0.001)
    world.append(2)
    for each in world.opened.values():
        each.report()
    await until(lambda: world.writer.in_flight == 0)
    await asyncio.sleep(0.01)
    world.append()
    assert world.taken[0] >= 1


async def test_records_of_one_key_that_are_in_flight_stay_with_one_producer(world: World) -> None:
    """Or they would overtake each other (CE-K9)."""
    many = kafka_writer.MANY_IN_FLIGHT
    world.append(1, b"early")
    world.append(many)
    world.append(1, b"early")
    world.append(2, b"late")
    assert world.taken == {0: many + 1, LINGER_MS: 3}
    for each in world.opened.values():
        each.report()
    await until(lambda: world.writer.in_flight == 0)
    assert len(world.writer._keys) == 0


async def test_many_that_come_together_are_gathered_but_for_keys_that_are_in_flight_elsewhere(
    world: World,
) -> None:
    """CE-K9"""
    world.append(1, b"early")
    records = [Draft(b"early", [], b"x"), *[Draft(None, [], b"x")] * kafka_writer.MANY_IN_FLIGHT]
    world.writer.append_all("t", records, world._reported)
    assert world.taken == {0: 2, LINGER_MS: kafka_writer.MANY_IN_FLIGHT}
    world.opened[LINGER_MS].report()
    await until(lambda: world.writer.in_flight == 2)
    assert world.told == []
    world.opened[0].report()
    await until(lambda: world.writer.in_flight == 0)
    assert world.told == [threading.current_thread()] * 2
    assert len(world.writer._keys) == 0


async def test_few_that_come_together_do_not_linger(world: World) -> None:
    world.writer.append_all("t", [Draft(None, [], b"x")] * 3, world._reported)
    assert world.taken == {0: 3}
    world.opened[0].report()
    await until(lambda: len(world.told) == 1)


async def test_what_is_not_taken_is_reported_with_what_was(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind it none is: the sender is to send them all again, in their order."""
    errors: list[LogError | None] = []
    taken = world.opened[0].produce

    def full(*arguments: Any) -> None:
        if len(world.opened[0].taken) == 2:
            raise LogFull("full")
        taken(*arguments)

    monkeypatch.setattr(world.opened[0], "produce", full)
    world.writer.append_all("t", [Draft(b"k", [], b"x")] * 5, errors.append)
    assert (world.taken, world.writer.in_flight, errors) == ({0: 2}, 2, [])
    world.opened[0].report()
    await until(lambda: world.writer.in_flight == 0)
    assert [type(error) for error in errors] == [LogFull]
    await world.writer.close(0)
    world.writer.append_all("t", [Draft(None, [], b"x")], errors.append)
    assert "closed" in str(errors[1])


async def test_all_reports_are_told_on_the_loop(world: World) -> None:
    world.append(kafka_writer.MANY_IN_FLIGHT + 5)
    for each in world.opened.values():
        each.report()
    await until(lambda: world.writer.in_flight == 0)
    assert world.told == [threading.current_thread()] * (kafka_writer.MANY_IN_FLIGHT + 5)


async def test_a_callback_that_breaks_does_not_silence_those_that_follow(world: World) -> None:
    def broken(_: LogError | None) -> None:
        raise ZeroDivisionError

    heard: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    world.writer.append("t", None, b"x", [], broken)
    world.append()
    world.opened[0].report()
    await until(lambda: len(world.told) == 1)
    assert isinstance(heard[0]["exception"], ZeroDivisionError)


async def test_what_never_comes_back_is_given_up_at_the_end(world: World) -> None:
    world.append()
    await world.writer.close(0)
    assert len(world.told) == 1
    with pytest.raises(LogError, match="closed"):
        world.append()


async def test_a_key_goes_to_a_new_producer_when_none_of_its_records_is_in_flight_in_the_former_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what the former one has could be stored behind it (CE-K9)."""
    monkeypatch.setattr(kafka_writer_producers, "RETIREMENT_TIME", 0.01)
    world.append(1, b"early")
    former = world.opened[0]
    await world.writer._producers.replace()
    with pytest.raises(LogError):
        world.append(1, b"early")
    world.append(1, b"late")
    await until(lambda: former.purged)
    assert (len(former.taken), world.taken) == (1, {0: 1})
    former.report()
    await until(lambda: world.writer.in_flight == 1)
    world.append(1, b"early")
    assert world.taken == {0: 2}
    await until(lambda: not world.writer._producers._retired)
    world.opened[0].report()
    await until(lambda: world.writer.in_flight == 0)
