"""What a Sensor's triggers hold and wait for, as its status says it."""

from __future__ import annotations

from support.memory_sensors import MemorySensor, Send, sensor

from knafka.core.drain import Waiting
from knafka_operator.sensors import waiting as sensor_waiting

SENSOR = sensor(1)


def test_each_trigger_says_what_it_has_and_waits_for_since_when() -> None:
    world = MemorySensor(1)
    world.send(Send("a", "x", 0))
    world.send(Send("a", "y", 1))
    for _ in range(4):
        world.run(0)
    holding = world.opened(0)[0].holding()
    assert holding.partitions == (0,)
    shown = sensor_waiting.waiting_status(SENSOR, holding.triggers)
    assert sensor_waiting.waiting_lines(shown) == [
        "late/x has a, waits for !b since 1970-01-01T00:16:40Z",
        "late holds 1 more keys",
        "three/x has a, waits for b, c since 1970-01-01T00:16:40Z",
        "three holds 1 more keys",
        "two has a, waits for b since 1970-01-01T00:16:41Z",
    ]


def test_a_million_keys_are_a_few_lines() -> None:
    held = [
        Waiting(
            trigger=trigger, partition=each, keys=10_000, since=each, key=f"k{each}", has=("a",)
        )
        for trigger in ("three", "late", "removed")
        for each in range(100)
    ]
    shown = sensor_waiting.waiting_status(SENSOR, held)
    assert [(each["trigger"], each["keys"]) for each in shown] == [
        ("late", 1_000_000),
        ("three", 1_000_000),
    ]
    assert [each["key"] for each in shown[0]["oldest"]] == ["k0", "k1", "k2"]
