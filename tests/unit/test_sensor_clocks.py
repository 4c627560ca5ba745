"""A Sensor's process whose own clock is set back."""

from __future__ import annotations

import pytest
from support.memory_sensors import WAIT, MemorySensor, Send


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
