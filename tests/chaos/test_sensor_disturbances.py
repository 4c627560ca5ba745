"""A Sensor whose processes are killed at random: what fires is what the events say, exactly once
(BUS-38, BUS-39).

One combination is part of every run; `make chaos` has them all (KNAFKA_SENSOR_MATRIX=full).
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
from support.sensors import Routed, SensorWorld

from knafka.core.drain import DrainRequest

pytestmark = pytest.mark.kafka

KILL_EVERY = (1.0, 4.0)
"""Seconds between two kills, at random."""
SENDING = 12.0
"""Seconds in which the events come."""
PATIENCE = 180


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


async def drained(process: functions.FunctionProcess, slot: int) -> None:
    """Ask for its drains again and again, as the scaler does."""
    request = DrainRequest(idle=60, budget=600, slot=slot)
    while True:
        with suppress(OSError, asyncio.IncompleteReadError, AssertionError):
            await process.ready()
            async for _ in functions.drain(process, request):
                pass
        await asyncio.sleep(0.1)


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("KNAFKA_SEED", time.time_ns() % 2**32))
    print(f"KNAFKA_SEED={seed}")
    return random.Random(seed)


@pytest.mark.conformance("BUS-6", "BUS-38", "BUS-39", "BUS-40")
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
async def test_whatever_is_killed_each_condition_fires_exactly_once(
    case: Case, kafka: Kafka, topic: MakeTopic, tmp_path: Path, chance: random.Random
) -> None:
    """BUS-38, BUS-39: into the action topic."""
    world = SensorWorld(kafka, topic, case.replicas)
    dependencies = "abcd"[: case.dependencies]
    conditions = conditions_of(dependencies)
    sensor = world.sensor(conditions, dependencies)
    events = [f"{chance.choice(dependencies)}{number}" for number in range(case.events)]
    over = asyncio.Event()
    async with AsyncExitStack() as stack:
        processes = [
            await stack.enter_async_context(functions.sensor(sensor, tmp_path / f"log{number}"))
            for number in range(case.replicas)
        ]
        asking = [asyncio.create_task(drained(each, slot)) for slot, each in enumerate(processes)]
        killing = asyncio.create_task(disturbed(processes, over, chance))
        began = time.monotonic()
        size = max(1, len(events) // 20)
        for start in range(0, len(events), size):
            part = events[start : start + size]
            await asyncio.to_thread(world.publish, *part, subject=chance.choice("klmnop"))
            await asyncio.sleep(SENDING / 20)
        over.set()
        kills = await killing
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
        # Nothing comes twice later on.
        await asyncio.sleep(1)
        assert Counter(await asyncio.to_thread(world.actions)) == fired
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    print(f"{case}: {kills} kills, {fired.total()} firings, each once, in {took:.0f} s")
    assert fired.total() > 0


def routed_events(routed: Mapping[str, Sequence[Routed]]) -> Counter[tuple[str, str]]:
    return Counter(
        (trigger, each.identity) for trigger, events in routed.items() for each in events
    )
