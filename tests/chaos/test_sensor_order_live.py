"""A Sensor's process on real Kafka, as events come and as a backlog after a sleep: what fires is
what `knafka sensor test` says of its bus (issue 34; `make chaos`)."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest
from support import functions
from support.gate import only_chaos
from support.kafka import Kafka, MakeTopic
from support.sensors import SensorWorld

from knafka.core.drain import DrainRequest
from knafka.core.sensor.backtest import Backtest
from knafka.core.sensor.contract import SensorContract

pytestmark = pytest.mark.kafka

PARTITIONS = 10
PAIRS = 150
"""Of each half: the first as it comes, the second while the process sleeps."""
TRIGGERS = (
    {"name": "pair", "conditions": "a && b"},
    {"name": "window", "conditions": "a && b", "within": "PT2S"},
    {
        "name": "reset",
        "conditions": "a && b",
        "conditionsReset": [{"byTime": {"cron": "* * * * *"}}],
    },
)
IDLE = 1.0
"""Seconds after which it sleeps."""


def backtested(world: SensorWorld, sensor: SensorContract) -> list[str]:
    """What `knafka sensor test` says of what is on the bus."""
    fired = Backtest(sensor, lambda kind: None).play(world.past())
    return sorted(
        f"{each.key}: {' '.join(one.identity.split()[1] for one in each.firing.events)}"
        for each in fired
    )


async def awake(process: functions.FunctionProcess) -> None:
    """Until it sleeps."""
    async for _ in functions.drain(process, DrainRequest(idle=IDLE, budget=600, slot=0)):
        pass


@only_chaos
@pytest.mark.parametrize("rate", [20, 2_000])
async def test_as_it_comes_and_after_a_sleep_it_fires_what_order_would_have_fired(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path, rate: int
) -> None:
    world = SensorWorld(kafka, topic, PARTITIONS)
    sensor = world.sensor(TRIGGERS, "ab")
    chance = random.Random(34)

    def send(first: int, count: int) -> None:
        began = time.monotonic()
        for number in range(count):
            if rate > 100 and number % 100:
                continue  # by the hundred: one request for each would be slower
            these = range(first + number, first + number + (100 if rate > 100 else 1))
            world.append(
                (f"{'ab'[each % 2]}{each // 2}", chance.randrange(PARTITIONS), 0) for each in these
            )
            # Two in one millisecond are in the order of their partitions.
            time.sleep(max(0.003, began + number / rate - time.monotonic()))

    count = 2 * PAIRS if rate <= 100 else 40 * PAIRS
    async with functions.sensor(sensor, tmp_path / "sensor") as process:
        await process.ready()
        drain = asyncio.create_task(awake(process))
        await asyncio.to_thread(send, 0, count)
        await drain
        await asyncio.to_thread(send, count, count)
        await awake(process)

        fired = sorted(await asyncio.to_thread(world.actions))
        assert fired == await asyncio.to_thread(backtested, world, sensor)
    if rate <= 100:
        pairs = [f"pair: a{number} b{number}" for number in range(count)]
        assert set(fired) >= set(pairs), "each was sent when the one before was stored"
