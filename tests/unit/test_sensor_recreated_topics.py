"""What a Sensor holds when its trigger topic was deleted and the operator has made it again."""

from __future__ import annotations

from support.memory_sensors import GROUP, TRIGGER, MemorySensor, Send


def test_what_is_held_of_both_topics_is_held_after_a_restart() -> None:
    """The offsets of the new topic begin anew, and the changelog has the old ones."""
    world = MemorySensor(1)
    world.send(Send("a", "x", 0))
    world.settle()
    world.sleep()
    world.memory.topics[TRIGGER][0].clear()
    committed = world.memory.groups[GROUP].committed
    for partition in [each for each in committed if each[0] == TRIGGER]:
        del committed[partition]
    world.send(Send("b", "x", 0))
    world.settle()
    world.sleep()
    world.send(Send("c", "x", 0))
    world.settle()
    world.rest()
    assert world.actions() == {"two: a0 b1": 1, "one: c2": 1, "three/x: a0 b1 c2": 1}
    assert world.changelog() == {}
