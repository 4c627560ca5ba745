"""Neighbours in a shard: what a slow, a failing and a flooded Trigger do to the others.

`SHARED` Triggers share one dispatcher. All of them want the events that are sent, through a
receiver, at a steady rate. Then three more are among them: a subscriber that takes 5 s, one that
answers 500 for ever, and one with a backlog that the others have behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from bench.dispatching import PARTITIONS
from bench.results import OURS, Results
from bench.targets import External, Neighbour, Running, neighbours, receiver
from bench.world import World

SHARED: Final = 17
RATE: Final = 100
"""Events a second, each for every one of them."""
BACKLOG: Final = "com.example.old"
ALONE: Final = "17 alone"
SLOW: Final = Neighbour("/slow")
FAILING: Final = Neighbour("/broken", {"delivery": {"retry": 1_000_000, "backoffDelay": "PT1S"}})
FLOODED: Final = Neighbour("/flooded", {"filters": [{"exact": {"type": BACKLOG}}]}, behind=True)
CASES: Final[dict[str, tuple[Neighbour, ...]]] = {
    ALONE: (),
    "and one of 5 s": (SLOW,),
    "and one of 500s": (FAILING,),
    "and one with a backlog": (FLOODED,),
    "and all three": (SLOW, FAILING, FLOODED),
}
SETTLING: Final = 3.0


async def isolation_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """Latency from a sender's POST to the subscribers' receipt, of the 17 only."""
    for _ in range(world.options.runs):
        for what, others in CASES.items():
            results.add(what, OURS, **await _measure(world, others))
    for what in CASES:
        if what != ALONE:
            ratio = results.to_other(what, ALONE, "p99_ms")
            results.at_most(f"p99 of the others, {what}, × alone", ratio, 1.1)


async def _measure(world: World, others: Sequence[Neighbour]) -> dict[str, float]:
    backlog = int(world.sized(1_000_000, 20_000)) if FLOODED in others else 0
    seconds = world.sized(20, 3)
    await world.reset_sink(PARTITIONS)
    async with world.topic(PARTITIONS) as topic:
        if backlog:
            await world.fill(topic, backlog, partitions=PARTITIONS, size=200, type=BACKLOG)
        async with _both(world, topic, others) as inlet:
            await asyncio.sleep(SETTLING)
            await world.sink_stats(latency=True)
            before = (await world.sink_stats())["flooded"]
            found = await world.run("load", url=inlet.url, c=16, rate=RATE, d=f"{seconds}s")
            await asyncio.sleep(SETTLING)
            stats = await world.sink_stats(latency=True)
    latency = {f"{name}_ms": value for name, value in stats["latency_ms"].items()}
    flooded = (stats["flooded"] - before) / (seconds + SETTLING)
    return {**latency, "accepted_per_s": found["per_s"], "flooded_per_s": flooded}


@asynccontextmanager
async def _both(world: World, topic: str, others: Sequence[Neighbour]) -> AsyncIterator[Running]:
    usual: list[Any] = [Neighbour(f"/trigger-{number}") for number in range(SHARED)]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(neighbours(world, topic, [*usual, *others]))
        yield await stack.enter_async_context(receiver(world, OURS, topic))
