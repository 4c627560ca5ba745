"""The scaler among fakes: lags that a test sets, and drains that do what it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from knafka.core.contract import Egress, Kafka, Shard, Sink
from knafka.core.drain import DrainProgress, DrainRequest, Ended, Settled, ShardProgress
from knafka.core.sensor.contract import SensorContract
from knafka.ports.log import Lag, Positions
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.scaler import BUDGET, Scaler

SCALING = Autoscaling()
"""What holds where nobody says otherwise."""
SLOW = Autoscaling(polling_interval=1000)
"""One look at the beginning; the others are for a reason."""


def a_shard(group: str = "shard-0") -> Shard:
    """One of a Broker's shards."""
    return Shard(
        group=group, kafka=Kafka(bootstrap_servers="kafka:9092"), contract_topic="contract"
    )


SHARD = a_shard()


def egress(trigger: str = "mail", topic: str = "orders", url: str = "http://mail/") -> Egress:
    return Egress(
        namespace="shop",
        broker="orders",
        trigger=trigger,
        topic=topic,
        group=f"group-{trigger}",
        dead_letter_topic="dead",
        kafka=Kafka(bootstrap_servers="kafka:9092"),
        subscriber=Sink(url=url),
    )


class FakeLags:
    """Ten partitions; the lag of each group is what the test says, zero if it says nothing."""

    def __init__(self) -> None:
        self.by_group: dict[str, int | None] = {}
        self.asked: list[tuple[float, Sequence[str], str]] = []
        self.errors: dict[str, Exception] = {}
        self.takes = 0.0
        self.noted: list[tuple[Sequence[str], str, Positions, float]] = []
        self.silent: set[str] = set()
        """Topics about which no question is answered."""
        self.members_of: dict[str, Sequence[str]] = {}
        self.members_error: Exception | None = None
        self.looked_for_members: list[float] = []

    async def lags(self, groups: Sequence[str], topic: str) -> Mapping[str, Lag]:
        self.asked.append((now(), groups, topic))
        lags = {group: self.by_group.get(group, 0) for group in groups}
        await asyncio.sleep(self.takes)
        if topic in self.silent:
            await asyncio.Event().wait()
        if topic in self.errors:
            raise self.errors[topic]
        return {
            group: Lag({0: lag} | dict.fromkeys(range(1, 10), 0))
            for group, lag in lags.items()
            if lag is not None
        }

    def note_committed(
        self, groups: Collection[str], topic: str, positions: Positions, seconds: float
    ) -> None:
        self.noted.append((list(groups), topic, positions, round(seconds, 2)))

    async def members(self, group: str) -> Collection[str]:
        self.looked_for_members.append(now())
        if self.members_error is not None:
            raise self.members_error
        return self.members_of.get(group, ())

    def forget_group(self, group: str) -> None:
        raise NotImplementedError

    def times(self) -> list[float]:
        return [time for time, _, _ in self.asked]


@dataclass
class FakeDrain:
    trigger: str
    egress: Egress
    request: DrainRequest
    began: float
    lines: asyncio.Queue[DrainProgress | Exception | None] = field(default_factory=asyncio.Queue)
    over: float | None = None
    told_to_stop: bool = False

    told: dict[str, int] = field(default_factory=dict)

    def tell(self, **counts: int) -> None:
        self.told = counts
        self.lines.put_nowait(DrainProgress.model_validate(counts))

    def end(self, ended: Ended, error: str | None = None, **counts: int) -> None:
        self.lines.put_nowait(
            DrainProgress.model_validate({"ended": ended, "error": error} | counts)
        )

    def break_off(self, error: Exception | None = None) -> None:
        self.lines.put_nowait(error)


@dataclass
class FakeShardDrain:
    """One request of a shard."""

    shard: str
    request: DrainRequest
    began: float
    lines: asyncio.Queue[ShardProgress | Exception | None] = field(default_factory=asyncio.Queue)
    over: float | None = None
    told_to_stop: bool = False
    contract: int = 0
    settled: Settled | None = None
    """What the line tells that ends it."""

    def tell(self, contract: int | None = None, **by_trigger: DrainProgress) -> None:
        """A line with these Triggers'."""
        self.lines.put_nowait(self._line(contract, None, None, by_trigger))

    def end(self, ended: Ended, error: str | None = None, **by_trigger: DrainProgress) -> None:
        self.lines.put_nowait(self._line(None, ended, error, by_trigger))

    def break_off(self, error: Exception | None = None) -> None:
        self.lines.put_nowait(error)

    def _line(
        self,
        contract: int | None,
        ended: Ended | None,
        error: str | None,
        by_trigger: Mapping[str, DrainProgress],
    ) -> ShardProgress:
        self.contract = self.contract if contract is None else contract
        egresses = {f"group-{trigger}": each for trigger, each in by_trigger.items()}
        settled = None if ended is None else self.settled
        return ShardProgress(
            contract=self.contract, egresses=egresses, ended=ended, error=error, settled=settled
        )


class NoSensors:
    """What no test here asks for."""

    def hold_sensor(
        self, sensor_id: str, sensor: SensorContract, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        raise NotImplementedError


class FakeDrains(NoSensors):
    """Each drain tells what the test has it tell; one that is told to stop takes `clean_end`
    seconds."""

    def __init__(self) -> None:
        self.all: list[FakeDrain] = []
        self.of_shards: list[FakeShardDrain] = []
        self.clean_end = 0.0
        self.script: Ended | None = None
        """How every drain ends, at once; None: as the test says."""
        self.shard_script: Mapping[str, DrainProgress] | None = None
        """What every request of a shard tells as it ends idle, at once."""

    def on_open(self) -> None:
        """A drain begins."""

    async def hold(
        self, trigger_id: str, egress: Egress, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        drain = FakeDrain(trigger_id, egress, request, now())
        self.all.append(drain)
        self.on_open()
        if self.script is not None:
            drain.end(self.script)
        stopping = asyncio.create_task(self._stop(drain, stop))
        try:
            while (line := await drain.lines.get()) is not None:
                if isinstance(line, Exception):
                    raise line
                yield line
                if line.ended is not None:
                    break
        finally:
            stopping.cancel()
            drain.over = now()

    async def hold_shard(
        self, shard: Shard, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[ShardProgress]:
        drain = FakeShardDrain(shard.group, request, now())
        self.of_shards.append(drain)
        self.on_open()
        if self.shard_script is not None:
            drain.end(Ended.IDLE, None, **self.shard_script)
        stopping = asyncio.create_task(self._stop_shard(drain, stop))
        try:
            while (line := await drain.lines.get()) is not None:
                if isinstance(line, Exception):
                    raise line
                yield line
                if line.ended is not None:
                    break
        finally:
            stopping.cancel()
            drain.over = now()

    async def _stop_shard(self, drain: FakeShardDrain, stop: asyncio.Event) -> None:
        await stop.wait()
        drain.told_to_stop = True
        await asyncio.sleep(self.clean_end)
        drain.end(Ended.STOPPED)

    async def _stop(self, drain: FakeDrain, stop: asyncio.Event) -> None:
        await stop.wait()
        drain.told_to_stop = True
        await asyncio.sleep(self.clean_end)
        drain.end(Ended.STOPPED, None, **drain.told | {"unsettled": 0})

    @property
    def open(self) -> list[FakeDrain]:
        return [drain for drain in self.all if drain.over is None]

    @property
    def open_shards(self) -> list[FakeShardDrain]:
        return [drain for drain in self.of_shards if drain.over is None]

    def times(self) -> list[float]:
        return [drain.began for drain in self.all]


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.fixture
def lags() -> FakeLags:
    return FakeLags()


@pytest.fixture
def drains() -> FakeDrains:
    return FakeDrains()


@asynccontextmanager
async def running(
    lags: FakeLags, drains: FakeDrains, request_budgets: tuple[float, float] = (BUDGET, BUDGET)
) -> AsyncIterator[Scaler]:
    """Unless it is said how long a request is, a drain has a single one: these drains are told what
    they tell, and don't know how long they may."""
    scaler = Scaler(lags, drains, request_budgets=request_budgets)
    run = asyncio.create_task(scaler.run())
    try:
        yield scaler
    finally:
        run.cancel()
        with suppress(asyncio.CancelledError):
            await run


async def share(scaler: Scaler, *triggers: str, autoscaling: Autoscaling = SCALING) -> None:
    """Have these Triggers in `SHARD`."""
    for each in triggers:
        await scaler.watch(each, egress(each), autoscaling, SHARD)


def counts(scaler: Scaler, trigger: str) -> DrainProgress:
    return scaler.statuses()[trigger].counts


def since(start: float, times: Sequence[float]) -> list[float]:
    return [round(time - start, 2) for time in times]
