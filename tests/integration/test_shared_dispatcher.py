"""Many Triggers in one process on a real Kafka: order, nothing lost, moves between processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from support.functions import FunctionProcess
from support.kafka import Kafka, MakeTopic, fill
from support.traffic import Behaviour, CountingSubscriber, succeed

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.core import contract
from knafka.core.contract import Delivery, Egress, Shard, Sink
from knafka.core.documents import dump
from knafka.settings import DRAIN_AT_START, EGRESS, SHARD

pytestmark = pytest.mark.kafka

KEYS, PER_KEY = 30, 20
ALL = KEYS * PER_KEY
SOON = 60.0


class World:
    """A topic, a Trigger for each behaviour, and the processes that deliver."""

    def __init__(self, bootstrap: str, topic: str, folder: Path, stack: AsyncExitStack) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.subscribers: list[CountingSubscriber] = []
        self.egresses: list[Egress] = []
        self.admin = KafkaAdmin({"bootstrap.servers": bootstrap})
        self._folder = folder
        self._stack = stack
        self._started = 0

    async def triggers(self, *behaviours: Behaviour) -> None:
        for number, behave in enumerate(behaviours):
            subscriber = await self._stack.enter_async_context(CountingSubscriber(behave))
            self.subscribers.append(subscriber)
            egress = Egress(
                namespace="test", broker="b", trigger=f"t-{number}", topic=self.topic,
                group=f"{self.topic}-{number}", dead_letter_topic="unused",
                subscriber=Sink(url=subscriber.url),
                delivery=Delivery(retry=1000, backoff_delay=0.2),
                kafka=contract.Kafka(bootstrap_servers=self.bootstrap),
            )  # fmt: skip
            self.egresses.append(egress)

    def fill(self, per_key: int = PER_KEY) -> None:
        fill(self.bootstrap, self.topic, KEYS, per_key)

    async def shared(self, egresses: Sequence[Egress] | None = None) -> FunctionProcess:
        shard = Shard(group=f"{self.topic}-shard", egresses=tuple(egresses or self.egresses))
        return await self._start({SHARD: json.dumps(dump(shard))})

    async def own(self, egress: Egress) -> FunctionProcess:
        return await self._start({EGRESS: json.dumps(dump(egress))})

    async def _start(self, environment: dict[str, str]) -> FunctionProcess:
        self._started += 1
        log = self._folder / f"log-{self._started}"
        whole = {DRAIN_AT_START: "true", **environment}
        process = FunctionProcess("knafka.dispatcher", whole, log)
        await self._stack.enter_async_context(process)
        await process.ready()
        return process

    async def arrived(self, *which: int, count: int = ALL) -> None:
        """Each of these has got all events, in order per key."""
        for number in which:
            arrivals = self.subscribers[number].arrivals
            await arrivals.reach(count, within=SOON)
            for key in arrivals.by_key:
                first = arrivals.first(key)
                assert first == sorted(first)

    async def lag(self, number: int) -> int:
        group = self.egresses[number].group
        return (await self.admin.lags([group], self.topic))[group].total

    async def without_lag(self, *which: int) -> None:
        async with asyncio.timeout(SOON):
            for number in which:
                while await self.lag(number):  # noqa: ASYNC110  # Kafka tells nobody
                    await asyncio.sleep(0.2)


@pytest.fixture
async def world(kafka: Kafka, topic: MakeTopic, tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        world = World(kafka.bootstrap_servers, topic(partitions=3), tmp_path, stack)
        yield world
        await world.admin.close()


async def fail(key: str, number: int) -> int:
    return 500


async def hang(key: str, number: int) -> int:
    await asyncio.sleep(SOON)
    return 200


async def hesitate(key: str, number: int) -> int:
    await asyncio.sleep(0.02)
    return 200


async def test_triggers_that_fail_or_hang_keep_no_other_from_its_events(world: World) -> None:
    """DSP-2, DSP-3: one dispatcher for many, each with its own group and offsets."""
    world.fill()
    await world.triggers(succeed, fail, hesitate, hang, succeed)
    process = await world.shared()
    await world.arrived(0, 2, 4)
    await world.without_lag(0, 2, 4)
    assert await world.lag(1) == ALL
    assert await world.lag(3) == ALL
    for number in (0, 2, 4):
        assert world.subscribers[number].arrivals.count == ALL, "each once"
    await process.terminate(30)


async def test_what_a_killed_process_had_not_committed_is_delivered_again_in_order(
    world: World,
) -> None:
    world.fill()
    await world.triggers(hesitate, hesitate, succeed)
    process = await world.shared()
    await world.subscribers[0].arrivals.reach(ALL // 3, within=SOON)
    await process.kill()
    await process.start()
    await world.arrived(0, 1, 2)
    await world.without_lag(0, 1, 2)


async def test_partitions_move_to_another_process_without_a_repetition(world: World) -> None:
    await world.triggers(hesitate, hesitate)
    first = await world.shared()
    world.fill()
    await world.subscribers[0].arrivals.reach(ALL // 4, within=SOON)
    second = await world.shared()
    await world.arrived(0, 1)
    await first.terminate(30)
    fill(world.bootstrap, world.topic, KEYS, PER_KEY * 2)
    await world.arrived(0, 1, count=ALL * 2)
    await world.without_lag(0, 1)
    await second.terminate(30)
    for each in world.subscribers:
        assert each.arrivals.count == ALL * 3


async def test_a_trigger_moves_out_and_back_in_under_load(world: World) -> None:
    await world.triggers(hesitate, succeed)
    both = await world.shared()
    world.fill()
    await world.subscribers[0].arrivals.reach(ALL // 4, within=SOON)
    await both.terminate(30)
    rest = await world.shared(world.egresses[1:])
    own = await world.own(world.egresses[0])
    await world.subscribers[0].arrivals.reach(ALL // 2, within=SOON)
    await own.terminate(30)
    await rest.terminate(30)
    both = await world.shared()
    await world.arrived(0, 1)
    await world.without_lag(0, 1)
    await both.terminate(30)
    assert [each.arrivals.count for each in world.subscribers] == [ALL, ALL]


async def test_a_trigger_that_a_dispatcher_of_its_own_still_delivers_is_left_to_it(
    world: World,
) -> None:
    await world.triggers(succeed, succeed)
    own = await world.own(world.egresses[0])
    world.fill()
    await world.arrived(0)
    both = await world.shared()
    await world.arrived(1)
    await world.without_lag(0, 1)
    assert [each.arrivals.count for each in world.subscribers] == [ALL, ALL]
    await own.terminate(30)
    fill(world.bootstrap, world.topic, KEYS, PER_KEY * 2)
    await world.arrived(0, 1, count=ALL * 2)
    await both.terminate(30)
