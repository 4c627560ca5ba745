"""Measures two KafkaChannels on one receiver: how a flood for one changes the latency of the other
(CHN-2)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from bench.results import OURS, Results
from bench.targets import External, Running, channels
from bench.world import World

RATE: Final = 100
"""Events a second for the channel whose latency is measured."""
ALONE: Final = "one of two channels, alone"
FLOODS: Final = {f"the other flooded by {count} connections": count for count in (16, 64, 256)}
"""Names of the rows -> connections that flood the other channel."""
STARTING: Final = 0.5
"""Seconds for which the flood comes before what is measured, and after it."""


async def channels_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """Measure the latency of one channel's 202 responses, from the moment that each event was
    due."""
    async with AsyncExitStack() as stack:
        topics = [await stack.enter_async_context(world.topic()) for _ in range(2)]
        quiet, flooded = await stack.enter_async_context(channels(world, topics))
        await world.run("load", url=f"{quiet.url},{flooded.url}", c=64, d="2s")
        for _ in range(world.options.runs):
            results.add(ALONE, OURS, **await _measure(world, quiet))
            for what, connections in FLOODS.items():
                flooding = asyncio.create_task(_flood(world, flooded, connections))
                await asyncio.sleep(STARTING)
                measured = await _measure(world, quiet)
                flood = await flooding
                results.add(what, OURS, **measured, flooded_per_s=flood["per_s"])
    for what in FLOODS:
        ratio = results.to_other(what, ALONE, "p99_ms")
        results.add(what, f"{OURS}, × alone", p99_ms=ratio)


async def _measure(world: World, target: Running) -> dict[str, Any]:
    """Send `RATE` events a second to a channel; return the latency of its answers in ms, the rate,
    and the number of answers other than 202."""
    seconds = world.sized(8, 2)
    load_result = await world.run("load", url=target.url, c=4, rate=RATE, d=f"{seconds}s")
    latency = {f"{name}_ms": value for name, value in load_result["latency_ms"].items()}
    refused = sum(count for code, count in load_result["status"].items() if code != "202")
    return {**latency, "per_s": load_result["per_s"], "not_202": refused}


async def _flood(world: World, target: Running, connections: int) -> dict[str, Any]:
    """Send to a target as fast as it answers, as long as the other channel is measured."""
    seconds = world.sized(8, 2) + 2 * STARTING
    return await world.run("load", url=target.url, c=connections, d=f"{seconds}s")
