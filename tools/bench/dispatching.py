"""Cases whose load waits in a topic: the dispatcher in each order, and what a filter costs.

Each run takes a new process and a new consumer group. What is measured begins when a fifth of the
backlog is through, so that starting and joining are not part of it (see `starting`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from bench.results import BEFORE, FLOOR, OURS, Results
from bench.targets import External, Running, dispatcher
from bench.world import World, sink

PARTITIONS: Final = 10
KEYS: Final = 10_000
WARM: Final = 0.2
"""The share of a backlog that is delivered before measuring begins: meanwhile a dispatcher joins
its group, connects and warms up."""

PER_KEY: Final = "in order per key"
PER_PARTITION: Final = "in order per partition"
UNORDERED: Final = "unordered"
ORDERS: Final = {PER_KEY: "key", PER_PARTITION: "partition", UNORDERED: "none"}

FIVE_CLAUSES: Final = [
    {
        "cesql": "type = 'com.example.bench' AND source LIKE '/kb%' AND EXISTS time"
        " AND NOT (id = 'none') AND LENGTH(partitionkey) > 3"
    }
]


async def dispatcher_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """Measure the delivery of a backlog to one Trigger with a filter, in each order."""
    count = int(world.sized(200_000, 20_000))
    async with world.topic(PARTITIONS) as topic:
        await world.fill(topic, count, partitions=PARTITIONS, keys=KEYS)
        for _ in range(world.options.runs):
            for what, order in ORDERS.items():
                measured = await deliver(world, OURS, topic, count, order=order)
                results.add(what, OURS, **measured)
                other_targets = [BEFORE] if world.options.before else []
                for name in other_targets + ([FLOOR] if order == "key" else []):
                    more = {} if name == FLOOR else {"order": order}
                    results.add(what, name, **await deliver(world, name, topic, count, **more))
    for external in externals:
        if external.topic:
            await _external(world, results, external, count)
    results.at_most("CPU in order per key, × floor", results.to_floor(PER_KEY, "cpu_us"), 1.4)
    results.at_least("its throughput, × floor", results.to_floor(PER_KEY, "per_s"), 0.7)
    if world.options.before:
        for what in ORDERS:
            results.at_most(f"CPU {what}, × before", results.to(BEFORE, what, "cpu_us"), 1.03)
    for what in (PER_PARTITION, UNORDERED):
        ratio = results.to_other(what, PER_KEY, "cpu_us")
        results.at_most(f"CPU {what}, × per key", ratio, 1.1)
    slowest = min((results.middle(what, "per_s") or 0.0 for what in ORDERS), default=None)
    results.at_least("deliveries a second in the slowest order", slowest, 10_000)
    peak = max((results.middle(what, "rss_mb") or 0.0 for what in ORDERS), default=None)
    results.at_most("resident, MB", peak, 120)
    wrong = [
        results.middle(what, metric) or 0.0
        for what in (PER_KEY, PER_PARTITION)
        for metric in ("duplicates", "out_of_order")
    ]
    results.at_most("events repeated or out of order", sum(wrong), 0)


async def _external(world: World, results: Results, external: External, count: int) -> None:
    """Measure a dispatcher that runs already: fill its topic while a sink is open at its
    address."""
    for _ in range(world.options.runs):
        async with sink(world, external.sink):
            await world.reset_sink(PARTITIONS)
            pids = [external.pid] if external.pid else []
            waiting = asyncio.create_task(wait(world, Running(external.name, pids), count))
            await world.fill(external.topic, count, partitions=PARTITIONS, keys=KEYS)
            results.add("as it is configured", external.name, **await waiting)


async def cesql_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """Measure a filter of five CESQL clauses and one of one exact match."""
    count = int(world.sized(100_000, 20_000))
    exact, clauses = "exact, one attribute", "CESQL, five clauses"
    async with world.topic(PARTITIONS) as topic:
        await world.fill(topic, count, partitions=PARTITIONS, keys=KEYS)
        for _ in range(world.options.runs):
            results.add(exact, OURS, **await deliver(world, OURS, topic, count))
            measured = await deliver(world, OURS, topic, count, filters=FIVE_CLAUSES)
            results.add(clauses, OURS, **measured)
    results.at_most("what CESQL adds, µs", results.added(clauses, exact, "cpu_us"), 5)


async def deliver(
    world: World, name: str, topic: str, count: int, *, lanes: int = KEYS, **more: Any
) -> dict[str, float | None]:
    """Deliver a whole topic of `count` events by a new dispatcher, and return its metrics; `lanes`
    as in `World.reset_sink`."""
    await world.reset_sink(PARTITIONS if more.get("order") == "partition" else lanes)
    async with dispatcher(world, name, topic, **more) as target:
        return await wait(world, target, count)


async def wait(
    world: World, target: Running, count: int, *, share_before: float = WARM
) -> dict[str, float | None]:
    """Measure `target` from the arrival of `share_before` of `count` distinct events at the sink
    until all have arrived; returns its metrics."""
    result = await world.run(
        "wait",
        {"target": target.pids},
        sink=f"http://{world.sink}",
        **{"from": int(count * share_before)},
        count=count,
    )
    arrived, cpu = result["sink"], result["cpu_us"]
    return {
        "cpu_us": cpu.get("target"),
        "per_s": result["per_s"],
        "rss_mb": result["rss_peak_mb"].get("target"),
        "kafka_cpu_us": cpu.get("kafka"),
        "load_cpu_us": cpu.get("sink"),
        "other_cores": result["other_cpu_s"] / result["wall_s"],
        "duplicates": arrived["duplicates"],
        "out_of_order": arrived["out_of_order"],
    }
