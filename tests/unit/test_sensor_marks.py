"""How many marks of events a Sensor's process holds to recognise duplicates."""

from __future__ import annotations

import pytest
from support.memory_sensors import MemorySensor, Send

MAX_KEYS = 100


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_process_holds_as_many_marks_as_keys_in_all_its_partitions(partitions: int) -> None:
    """Its memory has a limit, however many partitions it has."""
    world = MemorySensor(partitions)
    world.without = ("two", "one", "late")
    world.more = {"dedupe": 3600.0, "max_held_keys": MAX_KEYS}
    for number in range(300):
        world.send(Send("a", f"o{number}", 0), identity=f"a{number}")
    world.settle()
    world.send(Send("a", "last", 1), identity="last")
    world.settle()
    marks = [key for key in world.changelog() if key.partition("/")[2].startswith("@")]
    assert MAX_KEYS <= len(marks) <= MAX_KEYS + 1
    for order, identity in (("o299", "a299"), ("last", "last")):
        world.send(Send("a", order, 0), identity=identity)
    world.settle()
    assert world.opened(0)[0].counts.duplicates == 2, "the oldest have gone"
