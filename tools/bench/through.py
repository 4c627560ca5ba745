"""Cases that go through both functions: latency end to end, and the soak."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from bench.receiving import load
from bench.results import FLOOR, OURS, Results, slope
from bench.targets import External, Running, dispatcher, receiver
from bench.usage import resident_mb
from bench.world import BenchError, World

RATE: Final = 100
"""Events a second where latency is measured: the rate of the peer's own measurements."""
SOAK_STEP: Final = 10.0
"""Seconds between two measurements of memory."""
CATCH_UP: Final = 60.0
"""Seconds in which the last events must arrive."""
KEYS: Final = 1000


async def e2e_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """Measure the latency from a sender's POST to the subscriber's receipt."""
    seconds = world.sized(15, 4)
    what = f"{RATE} events a second"
    for _ in range(world.options.runs):
        for name in (OURS, FLOOR):
            async with both(world, name) as (inlet, _):
                await world.run("load", url=inlet.url, c=4, rate=RATE, d="2s")
                await settled(world)
                await world.sink_stats(latency=True)
                await world.run("load", url=inlet.url, c=4, rate=RATE, d=f"{seconds}s")
                await settled(world)
                latency = (await world.sink_stats(latency=True))["latency_ms"]
                results.add(
                    what,
                    name,
                    **{f"{percentile}_ms": value for percentile, value in latency.items()},
                )
    results.at_most("p50, ms", results.middle(what, "p50_ms"), 3.8)
    results.at_most("p99, ms", results.middle(what, "p99_ms"), 25)


async def soak_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """Send half of the rate that both functions can take together, for long; measure memory, loss
    and latency."""
    minutes = world.sized(world.options.soak_minutes, 0.5)
    window = max(15.0, minutes * 60 / 6)
    async with both(world, OURS) as (inlet, outlet):
        fastest = await load(world, inlet, seconds=world.sized(10, 3), keys=KEYS)
        await settled(world)
        rate = int((fastest["per_s"] or 0) / 2)
        await world.reset_sink(KEYS)
        sending = asyncio.create_task(
            world.run("load", url=inlet.url, rate=rate, n=int(rate * minutes * 60), keys=KEYS)
        )
        memory: dict[str, list[tuple[float, float]]] = {"receiver": [], "dispatcher": []}
        latencies: list[dict[str, float]] = []
        began, asked_at = time.monotonic(), time.monotonic()
        while not sending.done():
            await asyncio.wait({sending}, timeout=SOAK_STEP)
            hours = (time.monotonic() - began) / 3600
            memory["receiver"].append((hours, resident_mb(inlet.pids)))
            memory["dispatcher"].append((hours, resident_mb(outlet.pids)))
            if time.monotonic() - asked_at >= window or sending.done():
                asked_at = time.monotonic()
                latencies.append((await world.sink_stats(latency=True))["latency_ms"])
        sent = sending.result()
        await settled(world)
        arrived = await world.sink_stats()
    latencies = [percentiles for percentiles in latencies if percentiles]
    for name, points in memory.items():
        # The first sixth is warming up: pools grow to what the rate needs.
        steady = points[len(points) // 6 :]
        growth, error = slope(steady)
        results.add(
            f"{name}'s memory", OURS, first_mb=steady[0][1], last_mb=points[-1][1],
            mb_an_hour=growth, standard_error=error,
        )  # fmt: skip
        per_hour = results.middle(f"{name}'s memory", "mb_an_hour")
        margin = max(2 * error, 0.02 * steady[0][1] / (minutes / 60))
        results.at_most(f"growth of the {name}'s memory, MB an hour", per_hour, margin)
    first, last = latencies[0], latencies[-1]
    results.add("latency, first sixth", OURS, p50_ms=first["p50"], p99_ms=first["p99"])
    results.add("latency, last sixth", OURS, p50_ms=last["p50"], p99_ms=last["p99"])
    lost = sent["ok"] - arrived["distinct"]
    results.add(
        f"{minutes:g} minutes at {rate} a second", OURS, sent=sent["ok"], lost=lost,
        duplicates=arrived["duplicates"], out_of_order=arrived["out_of_order"],
    )  # fmt: skip
    results.at_most("lost events", lost, 0)
    results.at_most("p50 at the end, × at the start", last["p50"] / max(first["p50"], 0.1), 1.5)


@asynccontextmanager
async def both(world: World, name: str) -> AsyncIterator[tuple[Running, Running]]:
    """Run a receiver and a dispatcher on one topic; yields them once the dispatcher has
    delivered."""
    await world.reset_sink(KEYS)
    async with (
        world.topic() as topic,
        receiver(world, name, topic) as inlet,
        dispatcher(world, name, topic) as outlet,
    ):
        await world.run("load", url=inlet.url, c=4, n=100)
        await settled(world, at_least=100)
        yield inlet, outlet


async def settled(world: World, at_least: int = 0) -> None:
    """Wait until the sink gets nothing more."""
    deadline = time.monotonic() + CATCH_UP
    total_before: Any = None
    while (total := (await world.sink_stats())["total"]) != total_before or total < at_least:
        if time.monotonic() > deadline:
            raise BenchError(f"after {CATCH_UP:g} s only {total} of {at_least} events arrived")
        total_before = total
        await asyncio.sleep(0.5)
