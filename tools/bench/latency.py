"""Measures latency and CPU at several rates, without and with keys, and end to end.

With `--before FOLDER` a checkout of another state is measured beside ours, run by run on the same
Kafka, so that one command shows what a change did.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

from bench.receiving import load
from bench.results import BEFORE, OURS, Results
from bench.targets import External, Running, receiver
from bench.through import both, settled
from bench.world import World

RATES: Final = (10, 100, 1000, 2000, 5000, 10_000)
"""Events a second."""
KEYS: Final = 10_000
LOADS: Final = (("", {}), (f", {KEYS:,} keys", {"keys": KEYS}))
SATURATED: Final = "64 connections"
END_TO_END: Final = 2000
"""Events a second where latency is measured from a sender's POST to the subscriber's receipt."""


async def latency_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """Measure the receiver at several rates and at saturation, and both functions end to end."""
    names = [OURS, BEFORE] if world.options.before else [OURS]
    async with AsyncExitStack() as stack:
        targets = []
        for name in names:
            topic = await stack.enter_async_context(world.topic())
            targets.append(await stack.enter_async_context(receiver(world, name, topic)))
        targets += [
            Running(external.name, [external.pid] if external.pid else [], external.url)
            for external in externals
            if external.url
        ]
        for target in targets:
            await load(world, target, seconds=world.sized(5, 1.5), c=64)
        for run in range(world.options.runs):
            await _rates(world, results, targets[:: -1 if run % 2 else 1])
    what = f"end to end, {END_TO_END:,} a second"
    for run in range(world.options.runs):
        for name in names[:: -1 if run % 2 else 1]:
            results.add(what, name, **await _end_to_end(world, name))
    at_2000 = f"{END_TO_END:,} a second"
    results.at_most("p50 at 2,000/s, ms", results.middle(at_2000, "p50_ms"), 0.9)
    results.at_most("p50 end to end at 2,000/s, ms", results.middle(what, "p50_ms"), 1.3)
    for metric, word in (("p99_ms", "p99"), ("cpu_us", "CPU")):
        ratio = results.to(BEFORE, at_2000, metric)
        results.at_most(f"{word} at 2,000/s, × before", ratio, 1.0)
    ratio = results.to(BEFORE, SATURATED, "cpu_us")
    results.at_most("CPU at 64 connections, × before", ratio, 1.03)
    ratio = results.to(BEFORE, SATURATED, "per_s")
    results.at_least("throughput at 64 connections, × before", ratio, 0.97)


async def _rates(world: World, results: Results, targets: Sequence[Running]) -> None:
    """Measure receivers at each rate and at saturation, without and with keys."""
    for suffix, flags in LOADS:
        for rate in RATES:
            seconds = world.sized(10 if rate < 100 else 5, 1.5)
            for target in targets:
                measured = await load(
                    world, target, seconds=seconds, c=min(64, rate), rate=rate, **flags
                )
                results.add(f"{rate:,} a second{suffix}", target.name, **measured)
        for target in targets:
            measured = await load(world, target, seconds=world.sized(5, 1.5), c=64, **flags)
            results.add(SATURATED + suffix, target.name, **measured)


async def _end_to_end(world: World, name: str) -> dict[str, float]:
    """Return the latency from a sender's POST to the subscriber's receipt, through both
    functions."""
    async with both(world, name) as (inlet, _):
        await world.run("load", url=inlet.url, c=32, rate=END_TO_END, d="2s")
        await settled(world)
        await world.sink_stats(latency=True)
        seconds = world.sized(10, 2)
        await world.run("load", url=inlet.url, c=32, rate=END_TO_END, d=f"{seconds}s")
        await settled(world)
        latency = (await world.sink_stats(latency=True))["latency_ms"]
        return {f"{percentile}_ms": value for percentile, value in latency.items()}
