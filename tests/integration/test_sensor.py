"""A Sensor's processes on real Kafka (BUS-14 to BUS-17)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event
from typing import cast

import pytest
from support.kafka import Kafka, MakeTopic
from support.sensors import SensorWorld, process, rest

from knafka.ports.log import Record
from knafka.sensor.processor import Processor

pytestmark = pytest.mark.kafka


@pytest.fixture
def world(kafka: Kafka, topic: MakeTopic) -> SensorWorld:
    return SensorWorld(kafka, topic)


@pytest.fixture
def started() -> Iterator[Callable[[Processor], Processor]]:
    """Closes what was started when the test is over."""
    with ExitStack() as stack:

        def start(processor: Processor) -> Processor:
            stack.callback(processor.close, 10)
            return processor

        yield start


TWO = {"t1": "a && b", "t2": "c && d"}


@pytest.mark.conformance("BUS-3", "BUS-14", "BUS-16")
def test_a_trigger_fires_once_while_another_waits(
    world: SensorWorld, started: Callable[[Processor], Processor]
) -> None:
    """BUS-14, BUS-16: a, c and d have come; t2 is invoked exactly once, and t1 waits."""
    processor = started(world.processor(world.sensor(TWO)))
    world.publish("a1", "c1", "d1")
    process([processor], lambda: world.actions() != [])
    rest([processor])
    assert world.actions() == ["t2: c1 d1"]
    committed = world.committed(world.trigger_topic)[0]
    needed = json.loads(committed.metadata)
    assert needed == {"t1": 0, "t2": committed.offset}
    assert committed.offset >= 3


@pytest.mark.conformance("BUS-13", "BUS-15", "BUS-17")
def test_a_restart_doesnt_fire_again_and_has_what_was_held(
    world: SensorWorld, started: Callable[[Processor], Processor]
) -> None:
    """BUS-15, BUS-17: t2 is not invoked anew, also by another c alone; and BUS-13: b completes t1
    with the a of before."""
    processor = world.processor(world.sensor(TWO))
    world.publish("a1", "c1")
    process([processor], lambda: processor.held_keys == 2)
    world.publish("d1")
    process([processor], lambda: world.actions() != [])
    rest([processor])
    processor.close(10)
    processor = started(world.processor(world.sensor(TWO)))
    rest([processor])
    assert world.actions() == ["t2: c1 d1"]
    world.publish("c2")
    process([processor], lambda: processor.held_keys == 2)
    world.publish("b1")
    process([processor], lambda: len(world.actions()) == 2)
    assert world.actions() == ["t2: c1 d1", "t1: a1 b1"]


@pytest.mark.conformance("BUS-2", "BUS-12")
def test_a_simple_condition_fires_without_the_trigger_topic(
    world: SensorWorld, started: Callable[[Processor], Processor]
) -> None:
    """BUS-12."""
    processor = started(world.processor(world.sensor({"t1": "a || b"})))
    world.publish("a1", "b1", "c1")
    process([processor], lambda: len(world.actions()) == 2)
    assert world.actions() == ["t1: a1", "t1: b1"]
    assert world.read(world.trigger_topic) == []


@pytest.mark.conformance("BUS-20")
def test_what_a_trigger_waits_for_is_no_lag(
    world: SensorWorld, started: Callable[[Processor], Processor]
) -> None:
    """So that a Sensor may wait for a week and sleep: against BUS-14's and BUS-20's letter the
    offset moves on, as the changelog has what is held."""
    processor = started(world.processor(world.sensor(TWO)))
    world.publish("a1", "a2", "a3")
    process([processor], lambda: processor.counts.matched == 3)
    rest([processor])
    for topic in (world.bus, world.trigger_topic):
        assert world.committed(topic)[0].offset == world.end(topic)


def test_what_does_not_come_fires_after_its_time(
    world: SensorWorld, started: Callable[[Processor], Processor]
) -> None:
    trigger = {"name": "late", "conditions": "a && !b", "within": "PT1S", "correlation": "order"}
    processor = started(world.processor(world.sensor([trigger])))
    world.publish("a1", order="one")
    world.publish("a2", order="two")
    world.publish("b1", order="one")
    process([processor], lambda: world.actions() != [])
    rest([processor])
    assert world.actions() == ["late: a2"]
    assert processor.held() == {}


@pytest.mark.parametrize("partitions", [1, 3])
def test_what_does_not_come_fires_while_other_events_never_stop_coming(
    kafka: Kafka,
    topic: MakeTopic,
    started: Callable[[Processor], Processor],
    partitions: int,
) -> None:
    world = SensorWorld(kafka, topic, partitions)
    trigger = {"name": "late", "conditions": "a && !b", "within": "PT1S", "correlation": "order"}
    processors = [started(world.processor(world.sensor([trigger]))) for _ in range(partitions)]
    fired, quiet = Event(), Event()

    def publish() -> None:
        number = 0
        while not fired.is_set():
            number += 1
            world.publish(f"a{number}", f"d{number}", order=str(number))
            quiet.wait(0.005)

    with ThreadPoolExecutor() as pool:
        publishing = pool.submit(publish)
        try:
            process(processors, lambda: "late: a1" in world.actions())
        finally:
            fired.set()
        publishing.result()


def test_one_record_of_an_impossible_time_or_size_stops_no_sensor(
    kafka: Kafka, topic: MakeTopic, started: Callable[[Processor], Processor]
) -> None:
    """A sender's clock in the year 0, and twenty events that no action has room for."""
    world = SensorWorld(kafka, topic, by_sender=True)
    processor = started(world.processor(world.sensor({"t1": "a && b", "t2": "20 of c"})))
    world.publish("a1", at=-62_135_600_400_000)
    world.publish(*(f"c{number}" for number in range(20)), data=b"x" * 90_000)
    world.publish("b1")
    process([processor], lambda: world.actions() != [])
    world.publish("a2", "b2")
    process([processor], lambda: len(world.actions()) == 2)
    # The first is taken to be as old as its reading, and may be either's junior.
    assert [sorted(each.split()) for each in world.actions()] == [
        ["a1", "b1", "t1:"],
        ["a2", "b2", "t1:"],
    ]
    (letter,) = world.read(world.dead_letter_topic)
    about = dict(cast(Record, letter).headers() or ())
    assert (about["ce_knafkareason"], about["ce_sensortrigger"]) == (b"record-too-large", b"t2")
    named = json.loads(letter.value() or b"")["events"]
    assert [each["id"] for each in named] == [f"c{number}" for number in range(20)]
    assert world.committed(world.bus)[0].offset == world.end(world.bus)
