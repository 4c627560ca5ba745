"""Cases whose load comes by HTTP: one receiver, and several of them.

Each measures its targets in turn in every run, so that consecutive figures have the same
conditions.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from bench.results import BEFORE, FLOOR, OURS, Results
from bench.targets import External, Running, receiver
from bench.usage import resident_mb
from bench.world import World, limited

FIXED_RATE: Final = 2000
"""Events a second where latency is compared: far below what receiver and floor can do."""
MANY_EVENTS: Final = 1_000_000
"""Number of events after which the receiver's memory is judged."""

SHARE: Final = 0.1
"""Cores that a receiver may use where several are compared with one: few enough that four, Kafka
and the load generator leave some of two cores idle."""

ONE: Final = "one receiver"
TWO: Final = "two receivers"
FOUR: Final = "four receivers"
SEVERAL: Final = {ONE: 1, TWO: 2, FOUR: 4}
AT_64: Final = "64 connections"
AT_256: Final = "256 connections"
AT_RATE: Final = f"{FIXED_RATE:,} a second"
STRUCTURED: Final = "structured mode, 64 connections"
KEYED: Final = "10,000 keys, 64 connections"


async def receiver_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """Measure CPU, throughput and latency at 64 and 256 connections and at a fixed rate, and
    memory."""
    seconds = world.sized(5, 1.5)
    async with receivers(world, externals) as targets:
        for target in targets:
            await load(world, target, seconds=seconds, c=64)
        for _ in range(world.options.runs):
            for target in targets:
                if target.name == FLOOR:  # it has neither keys nor structured mode
                    continue
                measured = await load(world, target, seconds=seconds, keys=10_000)
                results.add(KEYED, target.name, **measured)
                measured = await load(world, target, seconds=seconds, structured="true")
                results.add(STRUCTURED, target.name, **measured)
            for target in targets:
                results.add(AT_64, target.name, **await load(world, target, seconds=seconds))
            for target in targets:
                measured = await load(world, target, seconds=seconds, c=256)
                results.add(AT_256, target.name, **measured)
            for target in targets:
                measured = await load(world, target, seconds=seconds, c=32, rate=FIXED_RATE)
                results.add(AT_RATE, target.name, **measured)
        many = int(world.sized(MANY_EVENTS, 50_000))
        what = f"after {many:,} more events"
        for target in targets:
            if target.pids and target.name != FLOOR:
                await world.run("load", url=target.url, n=many, c=64)
                results.add(what, target.name, rss_mb=resident_mb(target.pids))
    results.at_most("CPU at 64 connections, × floor", results.to_floor(AT_64, "cpu_us"), 1.2)
    results.at_most("p99 at 2,000/s, × floor", results.to_floor(AT_RATE, "p99_ms"), 1.5)
    results.at_most("resident after a million events, MB", results.middle(what, "rss_mb"), 90)
    if world.options.before:
        results.at_most(
            "CPU at 64 connections, × before", results.to(BEFORE, AT_64, "cpu_us"), 1.03
        )
    results.at_most(
        "structured mode's CPU, × binary", results.to_other(STRUCTURED, AT_64, "cpu_us"), 2.0
    )


async def scale_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """Compare the throughput of two and four receivers with that of one (CHN-25). So that a small
    machine leaves CPU for all, each receiver's CPU is also limited.
    """
    seconds = world.sized(5, 1.5)
    share = f", {SHARE:g} cores each"
    async with world.topic() as topic, AsyncExitStack() as stack:
        targets = [
            await stack.enter_async_context(receiver(world, OURS, topic))
            for _ in range(max(SEVERAL.values()))
        ]
        cases = {what: _as_one_target(targets[:count]) for what, count in SEVERAL.items()}
        await load(world, _as_one_target(targets), seconds=seconds)
        for _ in range(world.options.runs):
            for what in (ONE, TWO):
                results.add(what, OURS, **await load(world, cases[what], seconds=seconds))
        for each in targets:
            stack.enter_context(limited(each.pids, SHARE))
        for _ in range(world.options.runs):
            for what, target in cases.items():
                # As many connections for each receiver: with few events in flight it would not
                # batch them.
                measured = await load(world, target, seconds=seconds, c=64 * SEVERAL[what])
                results.add(what + share, OURS, **measured)
    for what, least in ((TWO, 1.7), (FOUR, 3.4)):
        ratio = results.to_other(what + share, ONE + share, "per_s")
        results.at_least(f"throughput of {what}{share}, × one", ratio, least)


def _as_one_target(targets: Sequence[Running]) -> Running:
    """Return several receivers as one target: the load's connections are shared among them."""
    pids = [pid for each in targets for pid in each.pids]
    return Running(OURS, pids, ",".join(each.url for each in targets))


@asynccontextmanager
async def receivers(
    world: World, externals: Sequence[External]
) -> AsyncIterator[Sequence[Running]]:
    """Start our receiver, that of `--before` and the floor, each with a topic of its own; yields
    them and the external receivers."""
    async with AsyncExitStack() as stack:
        targets = []
        for name in (OURS, BEFORE, FLOOR) if world.options.before else (OURS, FLOOR):
            topic = await stack.enter_async_context(world.topic())
            targets.append(await stack.enter_async_context(receiver(world, name, topic)))
        targets += [
            Running(external.name, [external.pid] if external.pid else [], external.url)
            for external in externals
            if external.url
        ]
        yield targets


async def load(
    world: World, target: Running, *, seconds: float, **flags: Any
) -> dict[str, float | None]:
    """Send load to a target for `seconds`, after half a second to warm up, and return its
    metrics."""
    result = await world.run(
        "load", {"target": target.pids}, url=target.url, warm="500ms", d=f"{seconds}s", **flags
    )
    problems = {code: count for code, count in result["status"].items() if code != "202"}
    cpu, latency = result["cpu_us"], result["latency_ms"]
    return {
        "cpu_us": cpu.get("target"),
        "per_s": result["per_s"],
        "p50_ms": latency.get("p50"),
        "p99_ms": latency.get("p99"),
        "rss_mb": result["rss_mb"].get("target"),
        "kafka_cpu_us": cpu.get("kafka"),
        "load_cpu_us": cpu.get("load"),
        "idle_cores": (os.cpu_count() or 1) - result["machine_cpu_s"] / result["wall_s"],
        "other_cores": result["other_cpu_s"] / result["wall_s"],
        "not_202": float(sum(problems.values()) + sum(result["errors"].values())),
    }
