"""A Sensor's order by time at its edges: what is late, what stalls, and how much may wait."""

from __future__ import annotations

from collections import Counter

import pytest
from support.memory_sensors import BUS, MemorySensor, Send

from knafka.core.documents import parse
from knafka.core.sensor.contract import SensorTrigger
from knafka.core.sensor.order import BEFORE_ALL, InOrder, Place, Taken
from knafka.core.sensor.records import NEVER
from knafka.observability import RateLimitedFilter
from knafka.sensor import bus, ordering, stalls
from knafka.sensor.batch import MAX_BATCH_RECORDS

PAIR = (parse(SensorTrigger, {"name": "pair", "conditions": "a && b"}),)


def paired(partitions: int, *, by_sender: bool = False) -> MemorySensor:
    world = MemorySensor(partitions, by_sender=by_sender)
    world.more = {"triggers": PAIR}
    return world


def test_an_event_of_the_only_partition_waits_for_no_time() -> None:
    world = paired(1)
    for dependency in "ab":
        world.send(Send(dependency, "x", 0))
    processor, _ = world.opened(0)
    for _ in range(3):
        processor.step(world.now)
    assert world.actions() == {"pair: a0 b1": 1}


def test_an_event_that_comes_too_late_is_taken_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Another test may just have had one that was late.
    monkeypatch.setattr(ordering.log, "filters", [RateLimitedFilter(by_wording=True)])
    world = paired(2)
    world.send(Send("b", "x", 60), partition=0)
    world.settle()
    world.send(Send("a", "x", 60), partition=1, at=world.now - 90_000)
    world.settle()
    assert world.actions() == {"pair: a1 b0": 1}
    processor, _ = world.opened(0)
    assert processor.counts.late == Counter(pair=1)
    assert "too late for its order" in caplog.text


def test_a_partition_without_a_leader_is_waited_for_two_minutes() -> None:
    world = paired(2)
    world.memory.unreachable.add((BUS, 1))
    for dependency in "ab":
        world.send(Send(dependency, "x", 0), partition=0)
    waited = 0
    while not world.actions():
        world.run(0)
        world.now += 1000
        waited += 1
        assert waited < 200
    assert waited > stalls.STALLED_PARTITION_TIMEOUT / 1000 - 5
    assert world.opened(0)[0].stalled == {1}
    world.memory.unreachable.clear()
    for _ in range(5):
        world.run(0)
    world.send(Send("a", "x", 0), partition=1)
    for _ in range(5):
        world.run(0)
    assert world.opened(0)[0].stalled == set()


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_what_waits_of_a_backlog_is_bounded(
    processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition's events all come before the other's."""
    monkeypatch.setattr(bus, "MAX_QUEUED_RECORDS", 400)
    monkeypatch.setattr(bus, "MAX_AHEAD_RECORDS", 400)
    world = paired(2)
    began, count = world.now, 4 * MAX_BATCH_RECORDS
    world.now += 2 * count + 60_000
    for number in range(2 * count):
        partition = 1 - number // count
        world.send(Send("ab"[number % 2], "x", 0), at=began + number, partition=partition)
    for each in range(processes):
        world.opened(each)[1].read(0, 0)  # it joins
    most = 0
    while sum(world.run(each) for each in range(processes)) or any(
        world.opened(each)[0].is_waiting for each in range(processes)
    ):
        most = max(most, sum(world.opened(each)[0].waiting for each in range(processes)))
    assert world.actions() == {f"pair: a{2 * one} b{2 * one + 1}": 1 for one in range(count)}
    assert most <= 800 + 3 * MAX_BATCH_RECORDS


def test_what_waits_for_its_reader_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Senders who say the time may be late: two seconds of them wait, but no more than so many."""
    monkeypatch.setattr(ordering, "HELD_BACK_RECORDS", 100)
    world = paired(1, by_sender=True)
    for _ in range(3 * MAX_BATCH_RECORDS):
        for dependency in "ab":
            world.send(Send(dependency, "x", 0))
    most = 0
    while world.run(0):
        most = max(most, sum(map(len, world.opened(0)[0]._ordering._ordered.values())))
    assert most <= 100
    world.settle()
    assert world.actions().total() == 3 * MAX_BATCH_RECORDS


def test_what_was_taken_behind_the_offset_is_taken_once() -> None:
    """A process that is given the partition again goes on where the other was."""
    first: InOrder[str] = InOrder()
    for offset, (at, name) in enumerate([(30, "late"), (10, "a"), (40, "c"), (20, "b")]):
        first.add(offset, Place(at, 0, offset), NEVER, name)
    first.note_read_until(25)
    assert [name for name, _ in first.take(10)] == ["a", "b"]
    assert (first.position(4), first.taken(4)) == (0, Taken(4, Place(20, 0, 3)))
    again: InOrder[str] = InOrder(first.taken(4))
    for offset, (at, name) in enumerate(
        [(30, "late"), (10, "a"), (40, "c"), (20, "b"), (15, "new")]
    ):
        again.add(offset, Place(at, 0, offset), NEVER, name)
    assert list(again.take(10)) == [("new", 5)], "it is behind what was read, so it is late"
    again.note_read_until(100)
    assert [name for name, _ in again.take(10)] == ["late", "c"]
    assert again.taken(5) is None


def test_what_cannot_be_read_waits_for_nothing() -> None:
    ordered: InOrder[str] = InOrder()
    ordered.add(0, Place(10, 0, 0), NEVER, "waits")
    ordered.add(1, BEFORE_ALL, NEVER, "unreadable")
    assert list(ordered.take(10)) == [("unreadable", 0)]
