"""A Sensor whose processes are killed at random, and the dispatchers of its actions: what fires is
what the events say, exactly once, and is delivered at least once, or at most once (BUS-38, BUS-39).

One combination is part of every run; `make chaos` has them all (KNAFKA_SENSOR_MATRIX=full), and
prints a row of docs/reference/sensor-matrix.md for each.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from support import functions
from support.kafka import Kafka, MakeTopic
from support.listener import Answer, Listener
from support.sensors import Routed, SensorWorld
from support.waiting import until_found, until_settled

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core import contract
from knafka.core.drain import DrainRequest
from knafka.core.sensor.conditions import parse
from knafka.core.sensor.rules import Rule
from knafka_jobs.backtest.firing_model import ArrivedEvent, FiringModel

pytestmark = pytest.mark.kafka

KILL_EVERY = (1.0, 4.0)
"""Seconds between two kills, at random."""
SENDING = 12.0
"""Seconds in which the events come."""
PATIENCE = 180
TAKES = 0.02
"""Seconds that a subscriber takes for an action, so that kills meet some under way."""
QUIET = 1.0
"""Seconds after which nothing is on its way any more."""


class Case(NamedTuple):
    events: int
    dependencies: int
    replicas: int

    def __str__(self) -> str:
        return f"{self.events} events, {self.dependencies} dependencies, {self.replicas} replicas"


FULL = [Case(*each) for each in itertools.product((10, 100, 1000), (2, 3, 4), (1, 2, 4))]
CASES = FULL if os.environ.get("KNAFKA_SENSOR_MATRIX") == "full" else [Case(1000, 3, 2)]


def conditions_of(dependencies: str) -> Mapping[str, str]:
    """Every combination of two and more of them, joined by && (BUS-39)."""
    return {
        "".join(names): " && ".join(names)
        for size in range(2, len(dependencies) + 1)
        for names in itertools.combinations(dependencies, size)
    }


def expected(routed: Mapping[str, Sequence[Routed]]) -> Counter[str]:
    """What fires for these events, trigger by trigger, with the latest event of each dependency."""
    firings: Counter[str] = Counter()
    for trigger, events in routed.items():
        latest: dict[str, Routed] = {}
        for event in events:
            dependency = event.identity[0]
            latest[dependency] = max(event, latest.get(dependency, event))
            if len(latest) == len(trigger):
                used = " ".join(each.identity for each in sorted(latest.values()))
                firings[f"{trigger}: {used}"] += 1
                latest.clear()
    return firings


def backtested(
    conditions: Mapping[str, str], routed: Mapping[str, Sequence[Routed]]
) -> Counter[str]:
    """The same by the model of `knafka sensor test`, which takes events in the order of time."""
    firings: Counter[str] = Counter()
    for trigger, events in routed.items():
        model = FiringModel(Rule(trigger, parse(conditions[trigger])))
        for at, _, offset, identity in events:
            for fired in model.add(ArrivedEvent(identity[0], identity, at, "trigger", 0, offset)):
                firings[f"{trigger}: {' '.join(each.identity for each in fired.events)}"] += 1
    return firings


async def disturbed(
    processes: Sequence[functions.FunctionProcess], over: asyncio.Event, chance: random.Random
) -> int:
    """Kill and start again until it is over; gives how often."""
    kills = 0
    while not over.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(chance.uniform(*KILL_EVERY)):
                await over.wait()
        if not over.is_set():
            victim = chance.choice(processes)
            await victim.kill()
            await victim.start()
            kills += 1
    return kills


async def until_committed(admin: KafkaAdmin, group: str, topic: str) -> None:
    """The broker that is asked may hear of a new topic a moment later."""
    await until_found(lambda: admin.describe_topic(topic))
    await admin.ensure_committed(group, topic)


async def drained(process: functions.FunctionProcess, slot: int) -> None:
    """Ask for its drains again and again, as the scaler does."""
    request = DrainRequest(idle=60, budget=600, slot=slot)
    while True:
        with suppress(OSError, asyncio.IncompleteReadError, AssertionError):
            await process.ready()
            async for _ in functions.drain(process, request):
                pass
        await asyncio.sleep(0.1)  # as the scaler pauses: a dead process refuses at once


class Delivery:
    """All actions, delivered by one semantics to a subscriber of its own: the dispatchers read the
    action topic as those of the Sensor's Triggers do, but for the filter."""

    def __init__(self, world: SensorWorld, kafka: Kafka, at: Listener, *, at_most_once: bool):
        self.group = f"{world.group}-{'at-most-once' if at_most_once else 'at-least-once'}"
        self.egress = contract.Egress(
            namespace="shop",
            broker="default",
            trigger="sensor",
            topic=world.action_topic,
            group=self.group,
            dead_letter_topic=f"{self.group}-dead",
            kafka=contract.Kafka(bootstrap_servers=kafka.bootstrap_servers),
            subscriber=contract.Sink(url=at.url(f"/{self.group}")),
            at_most_once=at_most_once,
        )
        self._at = at
        at.answer(f"/{self.group}", Answer(after=TAKES))

    @property
    def begun(self) -> Counter[str]:
        """How often each action was sent, by its id."""
        return Counter(each.id for each in self._at.at(f"/{self.group}"))


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("KNAFKA_SEED", time.time_ns() % 2**32))
    print(f"KNAFKA_SEED={seed}")
    return random.Random(seed)


@pytest.mark.conformance("BUS-5", "BUS-6", "BUS-38", "BUS-39", "BUS-40", "BUS-S7")
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
async def test_whatever_is_killed_each_condition_fires_exactly_once(
    case: Case, kafka: Kafka, topic: MakeTopic, tmp_path: Path, chance: random.Random
) -> None:
    """BUS-38, BUS-39: into the action topic; and from there at least once never misses, at most
    once never repeats."""
    world = SensorWorld(kafka, topic, case.replicas)
    dependencies = "abcd"[: case.dependencies]
    conditions = conditions_of(dependencies)
    sensor = world.sensor(conditions, dependencies)
    events = [f"{chance.choice(dependencies)}{number}" for number in range(case.events)]
    replicas, over = range(case.replicas), asyncio.Event()
    admin = KafkaAdmin({"bootstrap.servers": kafka.bootstrap_servers})
    subscriber = Listener("127.0.0.1")
    at_least_once, at_most_once = deliveries = [
        Delivery(world, kafka, subscriber, at_most_once=each) for each in (False, True)
    ]
    for each in deliveries:
        await until_committed(admin, each.group, world.action_topic)
    async with AsyncExitStack() as stack:
        stack.callback(subscriber.close)
        stack.push_async_callback(admin.close)
        sensors = [functions.sensor(sensor, tmp_path / f"sensor-{each}") for each in replicas]
        dispatchers = [
            functions.dispatcher(delivery.egress, tmp_path / f"{delivery.group}-{each}")
            for delivery in deliveries
            for each in replicas
        ]
        for process in (*sensors, *dispatchers):
            await stack.enter_async_context(process)
        asking = [
            asyncio.create_task(drained(process, slot))
            for processes in (sensors, dispatchers)
            for slot, process in enumerate(processes)
        ]
        killing = [
            asyncio.create_task(disturbed(each, over, chance)) for each in (sensors, dispatchers)
        ]
        began = time.monotonic()
        size = max(1, len(events) // 20)
        for start in range(0, len(events), size):
            part = events[start : start + size]
            await asyncio.to_thread(world.publish, *part, subject=chance.choice("klmnop"))
            await asyncio.sleep(SENDING / 20)
        over.set()
        kills = sum(await asyncio.gather(*killing))
        wanted = Counter(
            (trigger, identity)
            for trigger in conditions
            for identity in events
            if identity[0] in trigger
        )
        deadline = began + PATIENCE
        while True:
            routed = await asyncio.to_thread(world.routed)
            fired = Counter(await asyncio.to_thread(world.actions))
            if routed_events(routed) == wanted and fired == expected(routed):
                break
            assert time.monotonic() < deadline, (
                f"{(wanted - routed_events(routed)).total()} events aren't routed,"
                f" {(routed_events(routed) - wanted).total()} too often;"
                f" missing: {expected(routed) - fired}, too many: {fired - expected(routed)}"
            )
            await asyncio.sleep(0.5)
        took = time.monotonic() - began
        for delivery in deliveries:
            await until_settled(
                admin, delivery.group, world.action_topic, deadline - time.monotonic()
            )
        # What is behind its commit may still be sent; and nothing comes twice later on.
        await asyncio.sleep(QUIET)
        assert Counter(await asyncio.to_thread(world.actions)) == fired
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    assert fired.total() > 0
    assert backtested(conditions, routed) == expected(routed)
    ids = set(await asyncio.to_thread(world.action_ids))
    assert len(ids) == fired.total()
    assert set(at_least_once.begun) == ids, "at least once misses none"
    assert at_most_once.begun.keys() <= ids
    assert set(at_most_once.begun.values()) <= {1}, "at most once repeats none"
    repeated = at_least_once.begun.total() - len(ids)
    lost = len(ids) - at_most_once.begun.total()
    row = (
        *(case.events, case.dependencies, len(conditions), case.replicas, kills, fired.total()),
        *(repeated, lost, round(took)),
    )
    print("\n|", " | ".join(f"{each:,}" for each in row), "|")


def routed_events(routed: Mapping[str, Sequence[Routed]]) -> Counter[tuple[str, str]]:
    return Counter(
        (trigger, each.identity) for trigger, events in routed.items() for each in events
    )
