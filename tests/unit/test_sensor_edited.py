"""What becomes of held events when their Sensor is edited."""

from __future__ import annotations

from typing import Any

import pytest
from support.memory.transactions import Interruption
from support.memory_sensors import MemorySensor, Send

from knafka.core.documents import parse
from knafka.core.sensor.contract import SensorTrigger


def edit(world: MemorySensor, **fields: Any) -> None:
    """Give the Sensor one trigger, and end its process."""
    world.sleep()
    world.generation += 1
    world.more = {"triggers": (parse(SensorTrigger, {"name": "t", **fields}),)}


@pytest.mark.parametrize(
    ("before", "after"),
    [("a && b && c", "a && b"), ("a && c", "a || b"), ("3 of a", "a"), ("a && c", "a || (b && c)")],
)
@pytest.mark.parametrize("correlation", [{}, {"correlation": "order"}], ids=["", "correlated"])
def test_what_is_held_fires_when_an_edited_condition_is_true_of_it(
    before: str, after: str, correlation: dict[str, str]
) -> None:
    """Its events may all have come, and with a correlation none would ever come again."""
    world = MemorySensor(1)
    edit(world, conditions=before, **correlation)
    for dependency in "ab":
        world.send(Send(dependency, "x", 0))
    world.settle()
    assert world.actions() == {}
    edit(world, conditions=after, **correlation)
    world.opened(0)[1].interrupt(Interruption.ABORT)
    world.settle()
    name = "t/x" if correlation else "t"
    assert world.actions() == {f"{name}: a0 b1" if after == "a && b" else f"{name}: a0": 1}
    assert world.changelog() == {}
    assert world.opened(0)[0].held() == {}


@pytest.mark.parametrize("correlated", [True, False])
def test_what_is_held_goes_when_its_trigger_gets_or_loses_its_correlation(
    correlated: bool,
) -> None:
    """No event has its key any more: it would be held for ever, and `a && !b` fire whatever
    comes."""
    world = MemorySensor(1)
    condition = {"conditions": "a && !b", "within": "PT3S"}
    fields = [condition, {**condition, "correlation": "order"}]
    edit(world, **fields[not correlated])
    world.send(Send("a", "x", 0))
    world.settle()
    world.send(Send("a", "y", 0))
    world.run(0)  # its event for the trigger isn't read yet
    edit(world, **fields[correlated])
    world.send(Send("b", "x", 0))
    world.settle()
    world.rest()
    assert world.actions() == {}
    assert world.changelog() == {}
