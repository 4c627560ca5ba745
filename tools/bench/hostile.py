"""Measures how long a good sender's events wait while a hostile sender uses the same receiver.

The good sender's events have 300 kB, more than one read, and come 10 a second at the same receiver.
With `--before FOLDER` the receiver of another checkout is measured in turn. Not here: the hostile
sender (`hostile_sender`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

from bench.hostile_sender import KINDS
from bench.results import BEFORE, OURS, Results
from bench.targets import External, Running, receiver
from bench.usage import resident_mb
from bench.world import HERE, PYTHON, World

SECONDS: Final = 60.0
RATE: Final = 10
SIZE: Final = 300_000
ALONE: Final = "alone"


async def hostile_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """Measure for each kind of hostile sender how long a good sender's events wait, and how many
    weren't answered with 202."""
    names = (OURS, BEFORE) if world.options.before else (OURS,)
    for _ in range(world.options.runs):
        for kind in (ALONE, *KINDS):
            for name in names:
                results.add(kind, name, **await _measure(world, name, kind))
    for kind in KINDS:
        longest, lost = results.middle(kind, "max_ms"), results.middle(kind, "not_202")
        results.at_most(f"{kind}: the longest wait, ms", longest, 2_000)
        # Some good events may be refused until the receiver has refused the requests that drip.
        most = 0.05 * RATE * world.sized(SECONDS, 20) if kind == "drips" else 0
        results.at_most(f"{kind}: good events that weren't accepted", lost, most)


async def _measure(world: World, name: str, kind: str) -> dict[str, float | None]:
    """Measure a good sender's events at a new receiver while a hostile sender of this kind runs,
    unless it is `ALONE`."""
    seconds = world.sized(SECONDS, 20)
    async with AsyncExitStack() as stack:
        topic = await stack.enter_async_context(world.topic())
        # A new receiver for each kind, so that none inherits the memory that the one before needed.
        target = await stack.enter_async_context(receiver(world, name, topic))
        if kind != ALONE:
            await stack.enter_async_context(_run_hostile_sender(world, target, kind))
        load_result = await world.run(
            "load", {"target": target.pids}, url=target.url, warm="2s", d=f"{seconds}s",
            c=8, rate=RATE, size=SIZE,
        )  # fmt: skip
        latency = load_result["latency_ms"]
        refused = sum(count for code, count in load_result["status"].items() if code != "202")
        return {
            "p50_ms": latency.get("p50"),
            "p99_ms": latency.get("p99"),
            "max_ms": latency.get("max"),
            "not_202": float(refused + sum(load_result["errors"].values())),
            "rss_mb": resident_mb(target.pids),
        }


@asynccontextmanager
async def _run_hostile_sender(world: World, target: Running, kind: str) -> AsyncIterator[None]:
    """Run a hostile sender of this kind until the end of the block."""
    parts = urlsplit(target.url)
    sender = str(HERE / "hostile_sender.py")
    async with world.process(PYTHON, sender, parts.netloc, parts.path, kind):
        yield
