"""Time goes on for a Sensor's triggers while events never stop coming."""

from __future__ import annotations

import pytest
from support.memory_sensors import WAIT, MemorySensor, Send

from knafka.core.documents import parse
from knafka.core.sensor.contract import SensorTrigger

LATE_BY = 3.0
"""Seconds after which a wait that is over has fired: an event may be read two seconds late."""


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("dependency", ["nobody-wants-it", "a"])
def test_a_wait_that_is_over_fires_while_other_events_never_stop_coming(
    processes: int, dependency: str
) -> None:
    world = MemorySensor(2)
    for _ in range(2 * processes):  # all join, and share the partitions
        for process in range(processes):
            world.run(process)
    world.send(Send("a", "x", 0))
    began = world.now
    while "late/x: a0" not in world.actions():
        assert world.now < began + (WAIT + LATE_BY) * 1000
        for process in range(processes):
            world.send(Send(dependency, f"o{len(world.sent)}", 0), identity=f"{len(world.sent)}")
            world.run(process)


def test_what_no_event_can_use_any_more_is_let_go_of_under_a_load_that_never_stops() -> None:
    """Else the oldest would be dead-lettered once too many keys are held."""
    world = MemorySensor(1)
    document = {"name": "pair", "conditions": "a && b", "within": "PT1S", "correlation": "order"}
    world.more = {"triggers": (parse(SensorTrigger, document),), "max_held_keys": 200}
    for number in range(1000):
        world.send(Send("a", f"o{number}", 0))
        world.run(0)
    assert world.opened(0)[0].held_keys < 150, "of three seconds, with one in 30 ms"
    assert world.letters() == []


def test_a_late_event_waits_for_its_answer_and_holds_up_no_other_key() -> None:
    """A sender whose clock is wrong sends without a pause; the answer to one of its events lies
    unread where another process reads."""
    world = MemorySensor(2, by_sender=True)
    for _ in range(2):
        world.run(0)
        world.run(1)
    world.send(Send("a", "x", 0))
    began = world.now
    while "late/x: a0" not in world.actions():
        assert world.now < began + (WAIT + LATE_BY + 2) * 1000
        for process in (0, 1):
            world.send(Send("a", f"o{len(world.sent)}", 0), at=world.now - 600_000)
            world.run(process)
    order = f"o{len(world.sent)}"
    at = world.now - 600_000
    for dependency in "ab":
        world.send(Send(dependency, order, 0), at=at)
    world.rest()
    assert not any(action.startswith(f"late/{order}:") for action in world.actions())
