"""Measures how cost grows with one quantity at a time: Triggers, bytes of data, partitions,
keys."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

from bench.dispatching import KEYS, PARTITIONS, deliver, wait
from bench.receiving import load, receivers
from bench.results import FLOOR, OURS, Results
from bench.targets import External, Running, dispatcher
from bench.world import PYTHON, World

SIZES: Final = {100: 1, 1024: 1, 16_384: 2, 65_536: 6, 262_144: 20}
"""Bytes of data -> the number by which the count of events of that size is divided."""
SINGLE_FILE: Final = 6
"""The number by which the count of events is divided where only one can be under way."""
ALL_PARTITIONS: Final = 64 * 100
"""Number of keys in the steps that add partitions: a multiple of each number of partitions."""
COPYING: Final = """
import os
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
block = bytearray(24 * 1024 * 1024)
while True:
    bytes(block)
"""
"""A script that uses all idle CPU time, and the cores' caches, as many dispatchers would."""
JOINING: Final = 200
"""Events that every Trigger delivers before its cost is measured."""


async def growth_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """Measure each step as a row whose name ends in the size of the quantity that grows."""
    results.plot_by = "cpu_us"
    runs = world.options.runs
    count = int(world.sized(60_000, 6_000))
    for _ in range(runs):
        for triggers in (1, 3) if world.options.quick else (1, 2, 10, 50):
            what = f"dispatcher, Triggers: {triggers}"
            for name in (OURS, FLOOR):
                results.add(what, name, **await _triggers(world, name, count // 3, triggers))
        for name in (OURS, FLOOR):
            async with world.process(PYTHON, "-c", COPYING):
                measured = await _triggers(world, name, count // 3, 1)
            results.add("dispatcher, one Trigger, no core idle", name, **measured)
    seconds = world.sized(3, 1)
    async with receivers(world, ()) as targets:
        for _ in range(runs):
            for size in SIZES:
                for target in targets:
                    measured = await load(world, target, seconds=seconds, size=size, c=16)
                    results.add(f"receiver, bytes of data: {size}", target.name, **measured)
    for size, fewer in SIZES.items():
        what = f"dispatcher, bytes of data: {size}"
        await _backlog(world, results, what, count // fewer, runs, size=size)
    for partitions in (1, 8, 64):
        what = f"dispatcher, partitions: {partitions}"
        await _backlog(world, results, what, count, runs, partitions, ALL_PARTITIONS)
    for keys in (1, 100, 1_000, 10_000):
        what, fewer = f"dispatcher, keys: {keys}", SINGLE_FILE if keys == 1 else 1
        await _backlog(world, results, what, count // fewer, runs, keys=keys)
    one, many = "dispatcher, Triggers: 1", "dispatcher, Triggers: 50"
    ratio = results.to_other(many, one, "cpu_us")
    results.at_most("CPU a delivery with 50 Triggers, × one", ratio, 1.2)


async def _backlog(
    world: World,
    results: Results,
    what: str,
    count: int,
    runs: int,
    partitions: int = PARTITIONS,
    keys: int = KEYS,
    size: int = 1024,
) -> None:
    """Measure the delivery of a backlog, of `count` events of `size` bytes, by ours and the
    floor."""
    async with world.topic(partitions) as topic:
        await world.fill(topic, count, partitions=partitions, keys=keys, size=size)
        for _ in range(runs):
            for name in (OURS, FLOOR):
                results.add(what, name, **await deliver(world, name, topic, count, lanes=keys))


async def _triggers(world: World, name: str, count: int, triggers: int) -> dict[str, float | None]:
    """Measure the delivery of `count` events to each of `triggers` Triggers, with a dispatcher
    each."""
    await world.reset_sink(KEYS)
    async with world.topic(PARTITIONS) as topic, AsyncExitStack() as stack:
        targets = [
            await stack.enter_async_context(dispatcher(world, name, topic, f"/trigger-{number}"))
            for number in range(triggers)
        ]
        together = Running(name, [pid for target in targets for pid in target.pids])
        await world.fill(topic, JOINING, partitions=PARTITIONS, keys=KEYS)
        await wait(world, together, JOINING * triggers)
        await world.fill(topic, count, first_id=JOINING, partitions=PARTITIONS, keys=KEYS)
        everything = (JOINING + count) * triggers
        return await wait(world, together, everything)
