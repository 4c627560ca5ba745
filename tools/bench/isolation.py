"""Measures neighbours in a shard: how a slow, a failing and a flooded one change the latency of the
others.

Triggers of one Broker, or Subscriptions of one KafkaChannel, share one dispatcher. All of them want
the events that are sent, through a receiver, at a steady rate. Then three more are among them: a
subscriber that takes 5 s, one that always answers 500, and one with a backlog that the others have
skipped; that one is also measured in a process of its own, where only the machine is shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from bench.dispatching import PARTITIONS
from bench.results import OURS, Results
from bench.sharing import deliver_together
from bench.targets import External, Neighbour, Running, neighbours, receiver
from bench.world import World


@dataclass(frozen=True, slots=True)
class Shared:
    """Equal Egresses that share one dispatcher."""

    count: int
    rate: int
    """Events a second; each event is for all Egresses."""
    more: Mapping[str, Any]
    """Fields of their contracts."""
    flooded: Neighbour
    """The Egress that has a backlog."""


BACKLOG: Final = "com.example.old"
TRIGGERS: Final = Shared(
    17, 100, {}, Neighbour("/flooded", {"filters": [{"exact": {"type": BACKLOG}}]}, behind=True)
)
SUBSCRIPTION: Final = {"kind": "Subscription", "filters": [], "order": "partition"}
"""Fields of a Subscription's contract. Without filters the one with a backlog also gets what the
others get."""
SUBSCRIPTIONS: Final = Shared(
    197, 20, SUBSCRIPTION, Neighbour("/flooded", SUBSCRIPTION, behind=True)
)
DELIVERIES: Final = 400_000
"""Deliveries for which the CPU of all Subscriptions is measured."""
ALONE: Final = "alone"
FOR_EVER: Final = {"delivery": {"retry": 1_000_000, "backoffDelay": "PT1S"}}
SETTLING: Final = 3.0


async def isolation_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """Measure the latency of equal Triggers, from a sender's POST to the subscribers' receipt."""
    await _compare(world, results, TRIGGERS)


async def subscriptions_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """Measure what a delivery costs with 200 Subscriptions of one KafkaChannel, then their latency
    as in `isolation_case`."""
    count, deliveries = SUBSCRIPTIONS.count + 3, int(world.sized(DELIVERIES, 20_000))
    for _ in range(world.options.runs):
        measured = await deliver_together(world, deliveries, count, **SUBSCRIPTION)
        results.add(f"a backlog for {count}", OURS, **measured)
    await _compare(world, results, SUBSCRIPTIONS)


async def _compare(world: World, results: Results, shared: Shared) -> None:
    """Measure the equal Egresses alone and with each kind of neighbour."""
    slow = Neighbour("/slow", shared.more)
    failing = Neighbour("/broken", {**shared.more, **FOR_EVER})
    cases: Mapping[str, tuple[Sequence[Neighbour], Sequence[Neighbour]]] = {
        ALONE: ((), ()),
        "and one of 5 s": ((slow,), ()),
        "and one of 500s": ((failing,), ()),
        "and one with a backlog": ((shared.flooded,), ()),
        "and that one in another process": ((), (shared.flooded,)),
        "and all three": ((slow, failing, shared.flooded), ()),
    }
    for _ in range(world.options.runs):
        for case, (among, beside) in cases.items():
            measured = await _measure(world, shared, among, beside)
            results.add(f"{shared.count} {case}", OURS, **measured)
    alone, *disturbed = [
        f"{shared.count} {case}" for case, (_, beside) in cases.items() if not beside
    ]
    for what in disturbed:
        ratio = results.to_other(what, alone, "p99_ms")
        results.at_most(f"p99 of {what}, × alone", ratio, 1.1)


async def _measure(
    world: World, shared: Shared, among: Sequence[Neighbour], beside: Sequence[Neighbour]
) -> dict[str, float]:
    """Measure the latency of the equal Egresses, with the Egresses `among` in the same dispatcher
    and those `beside` in another process."""
    flooded = shared.flooded in (*among, *beside)
    backlog = int(world.sized(1_000_000, 20_000)) if flooded else 0
    seconds = world.sized(30, 3)
    await world.reset_sink(PARTITIONS)
    async with world.topic(PARTITIONS) as topic:
        if backlog:
            await world.fill(topic, backlog, partitions=PARTITIONS, size=200, type=BACKLOG)
        async with _all(world, topic, shared, among, beside) as inlet:
            await asyncio.sleep(SETTLING)
            await world.sink_stats(latency=True)
            flooded_before = (await world.sink_stats())["flooded"]
            load_result = await world.run(
                "load", url=inlet.url, c=16, rate=shared.rate, d=f"{seconds}s"
            )
            await asyncio.sleep(SETTLING)
            stats = await world.sink_stats(latency=True)
    latency = {f"{name}_ms": value for name, value in stats["latency_ms"].items()}
    rate = (stats["flooded"] - flooded_before) / (seconds + SETTLING)
    return {**latency, "accepted_per_s": load_result["per_s"], "flooded_per_s": rate}


@asynccontextmanager
async def _all(
    world: World,
    topic: str,
    shared: Shared,
    among: Sequence[Neighbour],
    beside: Sequence[Neighbour],
) -> AsyncIterator[Running]:
    """Run the equal Egresses with those `among` in one dispatcher, those `beside` in another, and a
    receiver; yields the receiver."""
    usual = [Neighbour(f"/trigger-{number}", shared.more) for number in range(shared.count)]
    async with AsyncExitStack() as stack:
        for shard in ([*usual, *among], beside):
            if shard:
                await stack.enter_async_context(neighbours(world, topic, shard))
        yield await stack.enter_async_context(receiver(world, OURS, topic))
