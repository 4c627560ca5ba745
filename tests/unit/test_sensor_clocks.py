"""A Sensor's process whose own clock is set back."""

from __future__ import annotations

import pytest
from support.memory_sensors import WAIT, MemorySensor, Send

from knafka.core.documents import parse
from knafka.core.sensor.contract import SensorTrigger


@pytest.mark.parametrize("set_back", [2_000, 40_000])
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_clock_that_is_set_back_holds_up_nothing(partitions: int, set_back: int) -> None:
    """It asks Kafka how far it has read, and did so again only at the time at which it last had."""
    world = MemorySensor(partitions)
    for dependency in "ab":
        world.send(Send(dependency, "x", 1))
        world.settle()
    began = world.now
    world.clocks[0] = -set_back
    for dependency in "aba":
        world.send(Send(dependency, "y" if len(world.sent) < 4 else "z", 0))
    while "two: a2 b3" not in world.actions():
        world.run(0)
        assert world.now < began + 1_000
    while "late/z: a4" not in world.actions():
        world.run(0)
        assert world.now < began + set_back + (WAIT + 3) * 1000


def test_a_clock_that_was_ahead_for_a_moment_leaves_later_events_in_order() -> None:
    """What it committed meanwhile says that all events up to a future time were read."""
    world = MemorySensor(2)
    world.more = {
        "triggers": (
            parse(SensorTrigger, {"name": "pair", "conditions": "a && b", "within": "PT3S"}),
        )
    }
    world.send(Send("c", "w", 1), partition=0)
    world.settle()
    world.clocks[0] = 10 * 3_600_000
    world.send(Send("a", "v", 1), partition=0)
    world.send(Send("b", "v", 1), partition=1)
    for _ in range(10):
        world.run(0)
    world.clocks[0] = 0
    for _ in range(10):
        world.run(0)
    world.sleep()
    fired = world.actions().total()
    for _ in range(1_200):  # more than one read: each `a` one second before its `b`
        world.send(Send("a", "x", 9), partition=0)
        world.send(Send("b", "x", 1), partition=1)
    world.now += 60_000
    world.settle()
    assert (world.actions().total() - fired, world.late()) == (1_200, 0)
