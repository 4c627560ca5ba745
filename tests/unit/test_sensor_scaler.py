"""A Sensor's drains: woken by lag in either topic and by what is due, each in a slot of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
from support.memory_sensors import BUS, GROUP, TRIGGER
from support.memory_sensors import sensor as sensor_at

from knafka.core.contract import Egress, Shard
from knafka.core.drain import (
    DrainProgress,
    DrainRequest,
    Ended,
    Holding,
    ShardProgress,
    Waiting,
)
from knafka.core.errors import LogError
from knafka.core.sensor.contract import SensorContract
from knafka.ports.log import Lag, Positions
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.scaler import Scaler

pytestmark = pytest.mark.looptime

SENSOR = sensor_at(1)
SCALING = Autoscaling(lag_threshold=10)
SLOW = Autoscaling(lag_threshold=10, polling_interval=1e6)
"""One look at the beginning; the others are for a reason."""
START = 1_000_000.0
"""Seconds since the Unix epoch, when each test begins."""
DAY = 24 * 3600.0


class Group:
    """Three partitions of each topic."""

    def __init__(self) -> None:
        self.lag = {BUS: 0, TRIGGER: 0}
        self.due: float | None = None
        """Seconds since the test began."""
        self.others: set[str] = set()
        """Client ids of members that no request here is held by."""
        self.asked: list[str] = []
        self.forgotten = 0
        self.error: LogError | None = None

    async def lags(self, groups: Sequence[str], topic: str) -> Mapping[str, Lag]:
        self.asked.append(topic)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        said = {}
        if topic == TRIGGER and self.due is not None:
            said = {1: json.dumps({"late": 7, "@due": round((START + self.due) * 1000)})}
        return {GROUP: Lag({0: self.lag[topic], 1: 0, 2: 0}, metadata=said)}

    async def members(self, group: str) -> Collection[str]:
        assert group == GROUP
        await asyncio.sleep(0)
        return self.others

    def forget_group(self, group: str) -> None:
        self.forgotten += 1

    def note_committed(
        self, groups: Collection[str], topic: str, positions: Positions, seconds: float
    ) -> None:
        raise NotImplementedError


class NoTriggers:
    """What no test here asks for."""

    def hold(
        self, trigger_id: str, egress: Egress, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        raise NotImplementedError

    def hold_shard(
        self, shard: Shard, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[ShardProgress]:
        raise NotImplementedError


@dataclass
class Drain:
    sensor: SensorContract
    request: DrainRequest
    began: float
    lines: asyncio.Queue[DrainProgress | Exception] = field(default_factory=asyncio.Queue)
    is_open: bool = True

    def end(self, ended: Ended) -> None:
        self.lines.put_nowait(DrainProgress(ended=ended))

    def kill(self) -> None:
        self.lines.put_nowait(ConnectionResetError("connection reset"))


class Drains(NoTriggers):
    def __init__(self) -> None:
        self.all: list[Drain] = []
        self.find_nothing = False
        """Whether each ends as soon as it has been idle for as long as it may be."""

    @property
    def open(self) -> list[Drain]:
        return [each for each in self.all if each.is_open]

    @property
    def slots(self) -> list[int | None]:
        return [each.request.slot for each in self.open]

    async def hold_sensor(
        self, sensor_id: str, sensor: SensorContract, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        drain = Drain(sensor, request, now())
        self.all.append(drain)
        if self.find_nothing:
            asyncio.get_running_loop().call_later(request.idle, drain.end, Ended.IDLE)
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: drain.end(Ended.STOPPED))
        try:
            while True:
                line = await drain.lines.get()
                if isinstance(line, Exception):
                    raise line
                yield line
                if line.ended is not None:
                    return
        finally:
            drain.is_open = False
            stopping.cancel()


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture
def drains() -> Drains:
    return Drains()


@asynccontextmanager
async def running(group: Group, drains: Drains) -> AsyncIterator[Scaler]:
    began = now()
    clock: Callable[[], float] = lambda: START + now() - began  # noqa: E731
    scaler = Scaler(group, drains, now=clock)
    run = asyncio.create_task(scaler.run())
    try:
        yield scaler
    finally:
        run.cancel()
        with suppress(asyncio.CancelledError):
            await run


async def watched(scaler: Scaler, autoscaling: Autoscaling = SCALING) -> None:
    await scaler.watch_sensor("paid", SENSOR, autoscaling)
    await asyncio.sleep(0.1)


async def test_a_sensor_that_waits_for_an_event_sleeps(group: Group, drains: Drains) -> None:
    async with running(group, drains) as scaler:
        await watched(scaler, Autoscaling(polling_interval=600))
        await asyncio.sleep(DAY / 3)
        assert drains.all == []
        status = scaler.status("paid")
        assert status is not None
        assert (status.lag, status.replicas, status.error) == (0, 0, None)


@pytest.mark.parametrize("topic", [BUS, TRIGGER])
async def test_lag_in_either_topic_wakes_it(group: Group, drains: Drains, topic: str) -> None:
    async with running(group, drains) as scaler:
        await watched(scaler, SLOW)
        group.lag[topic] = 1
        scaler.wake(topic)
        await asyncio.sleep(1)
        assert drains.slots == [0]


@pytest.mark.conformance("BUS-6")
async def test_as_many_drains_as_the_lag_asks_for_each_in_a_slot_of_its_own(
    group: Group, drains: Drains
) -> None:
    """BUS-6: no more than there are partitions."""
    group.lag = {BUS: 15, TRIGGER: 4}
    async with running(group, drains) as scaler:
        await watched(scaler)
        assert drains.slots == [0, 1]
        group.lag[BUS] = 1000
        await asyncio.sleep(SCALING.polling_interval)
        assert drains.slots == [0, 1, 2]


async def test_what_is_due_wakes_it_at_its_time(group: Group, drains: Drains) -> None:
    group.due = 1234.5
    async with running(group, drains) as scaler:
        began = now()
        await watched(scaler, SLOW)
        await asyncio.sleep(1300)
        assert drains.all[0].began - began == pytest.approx(1234.5, abs=0.1)
        status = scaler.status("paid")
        assert status is not None
        assert status.scale.reason == "nothing waits, but something is due"


async def test_what_was_due_while_the_operator_was_away_wakes_it_at_once(
    group: Group, drains: Drains
) -> None:
    group.due = -3600
    async with running(group, drains) as scaler:
        await watched(scaler, SLOW)
        assert len(drains.open) == 1


async def test_a_drain_has_changed_what_is_due_so_that_is_asked_for_anew(
    group: Group, drains: Drains
) -> None:
    group.due = 0
    async with running(group, drains) as scaler:
        await watched(scaler, SLOW)
        group.due, forgotten = None, group.forgotten
        drains.open[0].end(Ended.IDLE)
        await asyncio.sleep(3600)
        assert group.forgotten == forgotten + 1
        assert drains.open == []
        assert len(drains.all) == 1


async def test_what_is_due_while_kafka_is_away_wakes_it_when_that_is_back(
    group: Group, drains: Drains
) -> None:
    group.due = 60
    async with running(group, drains) as scaler:
        await watched(scaler)
        group.error = LogError("nobody answers")
        await asyncio.sleep(120)
        assert drains.all == []
        status = scaler.status("paid")
        assert status is not None
        assert status.error == "the lag is not known: nobody answers"
        group.error = None
        await asyncio.sleep(SCALING.polling_interval + 1)
        assert len(drains.open) == 1


async def test_the_successor_of_a_killed_drain_has_its_slot(group: Group, drains: Drains) -> None:
    """Its transaction is ended at once, and not by its timeout."""
    group.lag[BUS] = 25
    async with running(group, drains) as scaler:
        await watched(scaler, SLOW)
        assert drains.slots == [0, 1, 2]
        # Its session goes on for some seconds.
        group.others = {SENSOR.transactional_id(str(each)) for each in range(3)}
        drains.open[1].kill()
        await asyncio.sleep(5)
        assert sorted(map(str, drains.slots)) == ["0", "1", "2"]
        assert drains.all[-1].request.slot == 1


async def test_slots_of_drains_that_another_operator_has_opened_are_left_to_them(
    group: Group, drains: Drains
) -> None:
    """They go on when it ends, and ask for themselves."""
    group.others = {
        SENSOR.transactional_id("0"),
        SENSOR.transactional_id("2"),
        SENSOR.transactional_id("a0b1c2d3e4f5"),
        "rdkafka",
    }
    group.lag[BUS] = 25
    async with running(group, drains) as scaler:
        await watched(scaler, SLOW)
        assert drains.slots == [1, 3, 4]


async def test_a_request_that_finds_a_drain_under_way_has_its_slot_from_then_on(
    group: Group, drains: Drains
) -> None:
    group.lag[BUS] = 15
    async with running(group, drains) as scaler:
        await watched(scaler, SLOW)
        first, second = drains.open
        first.lines.put_nowait(DrainProgress(slot=1))
        second.lines.put_nowait(DrainProgress(slot=0))
        await asyncio.sleep(0.1)
        first.kill()
        await asyncio.sleep(5)
        assert drains.all[-1].request.slot == 1, "that of the drain that was killed"


async def test_an_edit_ends_the_drains_of_what_it_was(group: Group, drains: Drains) -> None:
    group.lag[BUS] = 1
    async with running(group, drains) as scaler:
        await watched(scaler, SLOW)
        edited = sensor_at(2)
        await scaler.watch_sensor("paid", edited, SLOW)
        assert drains.open == []
        await asyncio.sleep(1)
        assert [each.sensor for each in drains.open] == [edited]


async def test_an_edit_waits_for_processes_that_nobody_holds(group: Group, drains: Drains) -> None:
    """They go on by what was before until their own Service refuses them."""
    group.lag[BUS] = 1
    async with running(group, drains) as scaler:
        await watched(scaler, SLOW)
        loop, group.others = asyncio.get_running_loop(), {"rdkafka"}
        began = loop.time()
        loop.call_later(17, group.others.clear)
        await scaler.watch_sensor("paid", sensor_at(2), SLOW)
        assert loop.time() - began == pytest.approx(17, abs=1)
        assert drains.open == []


async def test_a_paused_sensor_is_woken_by_nothing(group: Group, drains: Drains) -> None:
    group.lag[BUS], group.due = 100, 1
    async with running(group, drains) as scaler:
        await watched(scaler)
        assert drains.open
        await watched(scaler, Autoscaling(paused=True))
        assert drains.open == []
        await asyncio.sleep(600)
        assert drains.open == []
        status = scaler.status("paid")
        assert status is not None
        assert (status.lag, status.paused) == (100, True)
        await watched(scaler)
        assert drains.open


async def test_a_forgotten_sensor_has_no_drains(group: Group, drains: Drains) -> None:
    group.lag[BUS] = 1
    async with running(group, drains) as scaler:
        await watched(scaler)
        await scaler.forget("paid")
        await asyncio.sleep(60)
        assert drains.open == []
        assert scaler.status("paid") is None


async def test_a_week_of_waiting_costs_seconds_of_a_pod(group: Group, drains: Drains) -> None:
    """A drain or two a day, until it is idle, so that Kafka keeps its offsets."""
    drains.find_nothing = True
    async with running(group, drains) as scaler:
        await watched(scaler, Autoscaling(polling_interval=3600))
        await asyncio.sleep(7 * DAY)
    assert 7 <= len(drains.all) <= 14
    assert sum(each.request.idle for each in drains.all) / (7 * DAY) < 0.001


async def test_one_drain_a_day_keeps_its_offsets(group: Group, drains: Drains) -> None:
    """Kafka forgets those of a group that nobody has joined for a week."""
    async with running(group, drains) as scaler:
        await watched(scaler, Autoscaling(polling_interval=600))
        await asyncio.sleep(DAY)
        drains.open[0].end(Ended.IDLE)
        await asyncio.sleep(DAY / 3)
        assert drains.open == []


async def test_what_is_held_is_known_by_partition_also_when_nobody_drains(
    group: Group, drains: Drains
) -> None:
    def of(partition: int, since: int) -> Waiting:
        return Waiting(trigger="two", partition=partition, keys=1, since=since, has=("a",))

    group.lag[BUS] = 15
    async with running(group, drains) as scaler:
        await watched(scaler, SLOW)
        first, second = drains.open
        assert scaler.held_events("paid") is None
        both = Holding(partitions=(0, 1), triggers=(of(0, 5), of(1, 6)))
        first.lines.put_nowait(DrainProgress(holding=both))
        await asyncio.sleep(0.1)
        first.lines.put_nowait(DrainProgress(holding=Holding(partitions=(0,))))
        second.lines.put_nowait(DrainProgress(holding=Holding(partitions=(2,))))
        group.lag[BUS] = 0
        await asyncio.sleep(0.1)
        for each in (first, second):
            each.end(Ended.IDLE)
        await asyncio.sleep(5)
        assert drains.open == []
        assert scaler.held_events("paid") == [of(1, 6)]
