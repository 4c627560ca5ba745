"""What a Sensor holds when its trigger topic was deleted and the operator has made it again."""

from __future__ import annotations

from support.memory_sensors import ACTION, GROUP, TRIGGER, MemorySensor, Send


def recreate_trigger_topic(world: MemorySensor) -> None:
    world.settle()
    world.sleep()
    world.memory.topics[TRIGGER][0].clear()
    committed = world.memory.groups[GROUP].committed
    for partition in [each for each in committed if each[0] == TRIGGER]:
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
    recreate_trigger_topic(world)
    for order in "xzy":
        world.send(Send("c", order, 0))
    world.settle()
    assert world.actions() == {"three/x: a0 b1 c4": 1, "three/y: a2 b3 c6": 1}
    assert ids(world) == ["shop.sensor.three.t0.-1", "shop.sensor.three.t0.-3"]


def test_firings_have_ids_of_their_own_if_the_topic_was_created_twice_again() -> None:
    world = MemorySensor(1)
    world.without = "one", "two", "late"
    for dependency in "abc":
        for order in "xy":
            world.send(Send(dependency, order, 0))
        recreate_trigger_topic(world)
    assert world.actions() == {"three/x: a0 b2 c4": 1, "three/y: a1 b3 c5": 1}
    assert len(set(ids(world))) == 2
    assert world.changelog() == {}
