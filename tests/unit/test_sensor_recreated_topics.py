"""What a Sensor holds and fires when one of its topics was deleted and made again."""

from __future__ import annotations

import pytest
from support.memory_sensors import ACTION, BUS, GROUP, TRIGGER, MemorySensor, Send


def recreate(world: MemorySensor, topic: str = TRIGGER) -> None:
    world.settle()
    world.sleep()
    world.memory.topics[topic][0].clear()
    committed = world.memory.groups[GROUP].committed
    for partition in [each for each in committed if each[0] == topic]:
        del committed[partition]


def ids(world: MemorySensor) -> list[str]:
    headers = [dict(record.headers() or ()) for record in world.read(ACTION)]
    return [(each["ce_id"] or b"").decode() for each in headers]


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


def test_firings_of_two_keys_have_two_ids() -> None:
    """A subscriber that recognises duplicates by their ids would drop one of them."""
    world = MemorySensor(1)
    world.without = "one", "two", "late"
    for order in "xy":
        world.send(Send("a", order, 0))
        world.send(Send("b", order, 0))
    recreate(world)
    for order in "xzy":
        world.send(Send("c", order, 0))
    world.settle()
    assert world.actions() == {"three/x: a0 b1 c4": 1, "three/y: a2 b3 c6": 1}
    places = [each.rpartition(".")[0] for each in ids(world)]
    assert places == ["shop.sensor.three.t0.-1", "shop.sensor.three.t0.-3"]


def test_firings_have_ids_of_their_own_if_the_topic_was_created_twice_again() -> None:
    world = MemorySensor(1)
    world.without = "one", "two", "late"
    for dependency in "abc":
        for order in "xy":
            world.send(Send(dependency, order, 0))
        recreate(world)
    assert world.actions() == {"three/x: a0 b2 c4": 1, "three/y: a1 b3 c5": 1}
    assert len(set(ids(world))) == 2
    assert world.changelog() == {}


@pytest.mark.parametrize("topic", [TRIGGER, BUS])
def test_what_fires_at_the_offset_of_an_earlier_firing_has_another_id(topic: str) -> None:
    world = MemorySensor(1)
    world.without = "three", "late"
    for _ in range(2):
        for dependency in "abc":
            world.send(Send(dependency, "x", 1))
        world.settle()
        recreate(world, topic)
    assert set(world.actions()) == {"two: a0 b1", "one: c2", "two: a3 b4", "one: c5"}
    assert len(set(ids(world))) == 4
