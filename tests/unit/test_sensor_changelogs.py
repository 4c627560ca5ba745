"""A Sensor one of whose changelog's partitions has no leader: only what it holds there waits."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from support.memory.records import MemoryRecord
from support.memory.transactions import Interruption
from support.memory_sensors import ACTION, CHANGELOG, TRIGGER, MemorySensor, Send

from knafka.core.documents import parse
from knafka.core.sensor.contract import SensorTrigger

PAIR, GONE = (
    parse(SensorTrigger, {"name": name, "conditions": "a && b", "correlation": "order"})
    for name in ("pair", "gone")
)
ORDERS = [f"order-{number}" for number in range(8)]
AWAY = 1
"""The partition that loses its leader."""


@pytest.fixture
def world() -> MemorySensor:
    made = MemorySensor(2)
    made.more = {"triggers": (PAIR,)}
    for order in ORDERS:
        made.send(Send("a", order, 0))
    made.settle()
    held = orders_in(made, CHANGELOG)
    assert 0 < len(held[AWAY]) < len(ORDERS)
    return made


def orders_in(world: MemorySensor, topic: str) -> list[Collection[str]]:
    """The orders in each partition of a topic."""
    return [
        {
            each
            for each in ORDERS
            for record in records
            if isinstance(record, MemoryRecord) and each in str(record.key())
        }
        for records in world.memory.topics[topic]
    ]


def fired(world: MemorySensor) -> set[str]:
    """The orders for which the trigger has fired, each once."""
    assert set(world.actions().values()) <= {1}
    return {each.split("/")[1].split(":")[0] for each in world.actions()}


def complete(world: MemorySensor, steps: int = 12) -> None:
    """Send what every order waits for, and have one process handle it."""
    for order in ORDERS:
        world.send(Send("b", order, 0))
    for _ in range(steps):
        world.run(0)
        world.now += 1000


def test_a_changelog_without_a_leader_at_the_start_holds_up_no_other(world: MemorySensor) -> None:
    world.sleep()
    world.memory.unreachable.add((CHANGELOG, AWAY))
    complete(world)
    held = orders_in(world, TRIGGER)
    assert fired(world) == set(ORDERS) - set(held[AWAY])
    world.memory.unreachable.clear()
    world.settle()
    assert fired(world) == set(ORDERS)


def test_a_changelog_that_loses_its_leader_later_holds_up_no_other(world: MemorySensor) -> None:
    world.memory.unreachable.add((CHANGELOG, AWAY))
    complete(world)
    held = orders_in(world, TRIGGER)
    assert fired(world) == set(ORDERS) - set(held[AWAY])
    world.memory.unreachable.clear()
    world.settle()
    assert fired(world) == set(ORDERS)
    assert len(world.read(ACTION)) == len(ORDERS)


def test_tombstones_that_can_not_be_written_hold_up_no_other(world: MemorySensor) -> None:
    """Those of a trigger that an edit has removed, when the changelog loses its leader after it was
    read."""
    held = orders_in(world, CHANGELOG)
    world.more = {"triggers": (PAIR, GONE)}
    world.sleep()
    for order in ORDERS:
        world.send(Send("a", order, 0))
    world.settle()
    world.sleep()
    world.more, world.generation = {"triggers": (PAIR,)}, 2
    world.opened(0)[1].interrupt(Interruption.ABORT)
    world.run(0)
    world.memory.unreachable.add((CHANGELOG, AWAY))
    complete(world)
    assert fired(world) == set(ORDERS) - set(held[AWAY])
    world.memory.unreachable.clear()
    world.settle()
    assert fired(world) == set(ORDERS)
