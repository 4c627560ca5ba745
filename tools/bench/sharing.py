"""Measures many Triggers of one Broker: with a process each, and with one process and read for
all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from bench.dispatching import KEYS, PARTITIONS, wait
from bench.growth import JOINING
from bench.results import BEFORE, OURS, Results
from bench.targets import External, Neighbour, Running, dispatcher, neighbours, shard
from bench.usage import cpu_seconds, resident_mb
from bench.world import World

OWN: Final = "own"
TOGETHER: Final = "shared, one read"
HOWS: Final = (OWN, TOGETHER)
NONE_WANT: Final = [{"exact": {"type": "com.example.nobody"}}]
TRIGGERS_PER_EVENT: Final = 4
"""Number of Triggers whose exact filter an event matches."""
STEP: Final = 5.0
"""Seconds for which idle Triggers are measured."""
SETTLING: Final = 3.0
"""Seconds before that in which the Triggers become idle."""


async def sharing_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """Measure Triggers that all take every event of a backlog, and their idle cost afterwards."""
    sizes = (1, 3) if world.options.quick else (1, 10, 50, 200)
    deliveries = int(world.sized(60_000, 6_000))
    for _ in range(world.options.runs):
        for triggers in sizes:
            for how in HOWS:
                if how == OWN and triggers > 50:
                    continue
                results.add(
                    f"{how}: {triggers}", OURS, **await _measure(world, how, deliveries, triggers)
                )
    if (1, 50)[0] in sizes and 50 in sizes:
        many, alone = f"{TOGETHER}: 50", f"{OWN}: 1"
        ratio = results.to_other(many, alone, "cpu_us")
        results.at_most("CPU a delivery of 50 that share, × one alone", ratio, 0.6)
        results.at_most("their memory, MB", results.middle(many, "rss_mb"), 400)


async def filters_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """Measure Triggers with exact filters that share a dispatcher: each event is for four of
    them."""
    few, many = (8, 40) if world.options.quick else (50, 1_000)
    events = int(world.sized(20_000, 4_000))
    names = [OURS, BEFORE] if world.options.before else [OURS]
    for _ in range(world.options.runs):
        for triggers in (few, many):
            for name in names:
                measured = await _filtered(world, name, events, triggers)
                results.add(f"{triggers} Triggers, each event for four", name, **measured)
    ratio = results.to_other(
        f"{many} Triggers, each event for four", f"{few} Triggers, each event for four", "cpu_us"
    )
    results.at_most(f"CPU a delivery of {many}, × that of {few}", ratio, 1.3)


async def _filtered(world: World, name: str, events: int, triggers: int) -> dict[str, Any]:
    """Measure the CPU of each delivery of a backlog, and the CPU that idle Triggers use
    afterwards."""
    types = triggers // TRIGGERS_PER_EVENT
    all_triggers = [
        Neighbour(
            f"/trigger-{number}",
            {"filters": [{"exact": {"type": f"com.example.bench.{number % types}"}}]},
            behind=True,
        )
        for number in range(types * TRIGGERS_PER_EVENT)
    ]
    flags = {"partitions": PARTITIONS, "keys": KEYS, "types": types}
    joining = PARTITIONS * types
    await world.reset_sink(KEYS)
    async with (
        world.topic(PARTITIONS) as topic,
        neighbours(world, topic, all_triggers, name=name) as target,
    ):
        await world.fill(topic, joining, **flags)
        await wait(world, target, joining * TRIGGERS_PER_EVENT)
        await world.fill(topic, events, first_id=joining, **flags)
        metrics: dict[str, Any] = await wait(world, target, (joining + events) * TRIGGERS_PER_EVENT)
        await asyncio.sleep(SETTLING)
        cpu_before = cpu_seconds(target.pids)
        await asyncio.sleep(STEP)
        metrics["idle_ms_per_s"] = (cpu_seconds(target.pids) - cpu_before) / STEP * 1000
    return metrics


async def deliver_together(
    world: World, deliveries: int, triggers: int, **more: Any
) -> dict[str, Any]:
    """Measure `triggers` Egresses that share one read, with a backlog and then idle; `more` are
    fields of each contract."""
    return await _measure(world, TOGETHER, deliveries, triggers, **more)


async def _measure(
    world: World, how: str, deliveries: int, triggers: int, **more: Any
) -> dict[str, Any]:
    """Measure the delivery of a backlog to `triggers` Triggers, in a process each or together
    (`how`), `deliveries` in all, then the idle Triggers; `more` are fields of each contract."""
    # With the order of partitions, a partition is a lane.
    await world.reset_sink(PARTITIONS if more.get("order") == "partition" else KEYS)
    count = max(2_000, deliveries // triggers)
    async with (
        world.topic(PARTITIONS) as topic,
        running(world, how, topic, triggers, **more) as target,
    ):
        await world.fill(topic, JOINING, partitions=PARTITIONS, keys=KEYS)
        await wait(world, target, JOINING * triggers)
        await world.fill(topic, count, first_id=JOINING, partitions=PARTITIONS, keys=KEYS)
        metrics: dict[str, Any] = await wait(world, target, (JOINING + count) * triggers)
        await asyncio.sleep(SETTLING)
        cpu_before = cpu_seconds(target.pids)
        await asyncio.sleep(STEP)
        metrics["idle_ms_per_s"] = (cpu_seconds(target.pids) - cpu_before) / STEP * 1000
        metrics["idle_mb"] = resident_mb(target.pids)
        metrics["threads"] = sum(threads(pid) for pid in target.pids)
    return metrics


@asynccontextmanager
async def running(
    world: World, how: str, topic: str, triggers: int, **more: Any
) -> AsyncIterator[Running]:
    """Run Triggers in a dispatcher each (`OWN`) or in one, until the end of the block."""
    if how != OWN:
        async with shard(world, topic, triggers, **more) as target:
            yield target
        return
    async with AsyncExitStack() as stack:
        targets = [
            await stack.enter_async_context(
                dispatcher(world, OURS, topic, f"/trigger-{number}", **more)
            )
            for number in range(triggers)
        ]
        yield Running(OURS, [pid for each in targets for pid in each.pids])


def threads(pid: int) -> int:
    """Return the number of a process's threads."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[17])
