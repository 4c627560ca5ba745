"""Measures the CPU per event of our functions and of those of another checkout, under the same load
at the same time.

Whatever else the machine does then slows down both. Measured in turns, as in other cases, a ratio
varies between 0.8 and 1.2 on a busy machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, TypeAlias

from bench.dispatching import KEYS, PARTITIONS, wait
from bench.results import BEFORE, OURS, Results
from bench.targets import External, Running, dispatcher, receiver
from bench.usage import cpu_seconds
from bench.world import BenchError, World

MEASURING: Final = 20.0
"""Seconds for each run and each of the two functions, in turns of a second or two."""
NAMES: Final = (OURS, BEFORE)
AT_64: Final = "receiver, 64 connections"
PER_KEY: Final = "dispatcher, in order per key"
WITHOUT_POSITION: Final = "dispatcher, without positions of records"
"""Our dispatcher without the two attributes that say where a record lies, beside the unchanged
dispatcher of `--before`."""

Turn: TypeAlias = Callable[[], Awaitable[Any]]


async def beside_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """Measure receivers at 64 connections each, then dispatchers with a backlog each."""
    if world.options.before is None:
        raise BenchError("the case beside wants --before FOLDER")
    count = int(world.sized(20_000, 5_000))
    cases = (
        (AT_64, _receivers),
        (PER_KEY, _dispatchers),
        (WITHOUT_POSITION, partial(_dispatchers, recordPosition=False)),
    )
    for what, serving in cases:
        async with AsyncExitStack() as stack:
            targets, turn = await serving(world, stack, count)
            await turn()  # joining, connecting, warming up
            until = time.monotonic() + world.sized(MEASURING, 4) * world.options.runs
            while time.monotonic() < until:
                cpu_before = [cpu_seconds(running.pids) for running in targets]
                await turn()
                for target, spent in zip(targets, cpu_before, strict=True):
                    used = cpu_seconds(target.pids) - spent
                    results.add(what, target.name, cpu_us=used * 1e6 / count)
        ratio, error = results.to(BEFORE, what, "cpu_us"), results.error_to(BEFORE, what, "cpu_us")
        results.add(what, f"ours, × {BEFORE}", cpu_us=ratio, standard_error=error)
        results.at_most(f"CPU, {what}, × before", ratio, 1.03)


async def _receivers(
    world: World, stack: AsyncExitStack, count: int
) -> tuple[Sequence[Running], Turn]:
    """Start two receivers and return them, and a function that sends `count` events to each of them
    at the same time."""
    targets = []
    for name in NAMES:
        topic = await stack.enter_async_context(world.topic())
        targets.append(await stack.enter_async_context(receiver(world, name, topic)))

    async def turn() -> None:
        """Send the events; raises `BenchError` unless all are accepted."""
        loads = [world.run("load", url=target.url, c=64, n=count) for target in targets]
        for load_result in await asyncio.gather(*loads):
            if load_result["ok"] != count:
                raise BenchError(f"of {count} events {load_result['ok']} were accepted")

    return targets, turn


async def _dispatchers(
    world: World, stack: AsyncExitStack, count: int, **more: Any
) -> tuple[Sequence[Running], Turn]:
    """Start two dispatchers and return them, and a function that makes them deliver `count` events
    each; `more` are fields of the contract of ours only."""
    topics, targets, filled = [], [], 0
    for name in NAMES:
        topics.append(await stack.enter_async_context(world.topic(PARTITIONS)))
        fields = more if name == OURS else {}
        target = dispatcher(world, name, topics[-1], f"/{name}", **fields)
        targets.append(await stack.enter_async_context(target))

    async def turn() -> None:
        """Fill both topics, and wait until all events have arrived at the sink."""
        nonlocal filled
        await world.reset_sink(KEYS)
        flags = {"first_id": filled, "partitions": PARTITIONS, "keys": KEYS}
        await asyncio.gather(
            wait(world, Running("both", []), len(NAMES) * count),
            *(world.fill(topic, count, **flags) for topic in topics),
        )
        filled += count

    return targets, turn
