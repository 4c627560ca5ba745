"""A backlog of several partitions on real Kafka fires what its events fire in order (issue 34)."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any, Final

import pytest
from support.kafka import Kafka, MakeTopic
from support.sensors import SensorWorld, process, rest

from knafka.core.sensor.backtest import Backtest
from knafka.core.sensor.contract import SensorContract

pytestmark = pytest.mark.kafka

PARTITIONS: Final = 4
PAIRS: Final = 1_000
TRIGGERS: Final[Sequence[dict[str, Any]]] = (
    {"name": "pair", "conditions": "a && b"},
    {"name": "window", "conditions": "a && b", "within": "PT2S"},
    {
        "name": "reset",
        "conditions": "a && b",
        "conditionsReset": [{"byTime": {"cron": "*/5 * * * *"}}],
    },
)


def backtested(world: SensorWorld, sensor: SensorContract) -> list[str]:
    """What `knafka sensor test` says of what is on the bus."""
    fired = Backtest(sensor, lambda kind: None).play(world.past())
    return sorted(
        f"{each.key}: {' '.join(one.identity.split()[1] for one in each.firing.events)}"
        for each in fired
    )


def test_a_backlog_of_several_partitions_fires_what_order_would_have_fired(
    kafka: Kafka, topic: MakeTopic
) -> None:
    """The issue's table: pairs of events a second apart, by their senders' clocks."""
    world = SensorWorld(kafka, topic, PARTITIONS, by_sender=True)
    sensor = world.sensor(TRIGGERS, "ab")
    chance, began = random.Random(34), round(time.time() * 1000) - 2 * PAIRS * 1000 - 60_000
    world.append(
        (f"{'ab'[number % 2]}{number // 2}", chance.randrange(PARTITIONS), began + number * 1000)
        for number in range(2 * PAIRS)
    )
    processor = world.processor(sensor)
    try:
        process([processor], lambda: processor.counts.read == 2 * PAIRS)
        rest([processor])
    finally:
        processor.close(10)
    fired = sorted(world.actions())
    assert fired == backtested(world, sensor)
    assert sum(each.startswith("pair: ") for each in fired) == PAIRS
    assert set(fired) >= {f"pair: a{number} b{number}" for number in range(PAIRS)}
    assert processor.counts.late.total() == 0


def test_several_processes_fire_what_order_would_have_fired(kafka: Kafka, topic: MakeTopic) -> None:
    """As it comes, by the log's own time; one of them ends and another comes meanwhile."""
    world = SensorWorld(kafka, topic, PARTITIONS)
    sensor = world.sensor(TRIGGERS, "ab")
    chance = random.Random(34)
    first, second = world.processor(sensor), world.processor(sensor)
    opened = [first, second]
    try:
        process(opened, lambda: all(each.partitions for each in opened))
        for part in range(3):
            for number in range(40):
                identity = f"{'ab'[number % 2]}{part}-{number // 2}"
                world.append([(identity, chance.randrange(PARTITIONS), 0)])
                for each in opened:
                    each.step(round(time.time() * 1000), 0.01)
            if part == 0:
                opened.remove(second)
                second.close(10)
            elif part == 1:
                opened.append(third := world.processor(sensor))
                process(opened, lambda: bool(third.partitions))
        rest(opened)
    finally:
        for each in opened:
            each.close(10)
    assert sorted(world.actions()) == backtested(world, sensor)
