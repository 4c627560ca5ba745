"""Prints which files and functions of the data plane one event enters on its way out.

    python tools/event_paths.py [-v]

Kafka and the subscriber are in memory, so their clients (`knafka.clients`) are not counted. The
dispatcher runs and has delivered an event before; what the next event enters, from the read of its
record to the commit of its offset, is counted. `docs/design/house.md` has the figures.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT / "tests")

from support.drains import World  # noqa: E402
from support.shards import Shard  # noqa: E402
from support.waiting import until  # noqa: E402

PRODUCT: Final = ROOT / "functions" / "knafka"
BESIDE: Final = {
    *("own", "shared"),
    *("ContractFollower.follow", "DrainingFunction.handle", "ShardDrain.run"),
}
"""Tasks that handle no event: those of this tool, and those that follow a contract or report."""


def _task_name() -> str:
    """Return the name of the coroutine that runs now; empty in a callback of the event loop."""
    task = asyncio.current_task()
    return "" if task is None else task.get_coro().__qualname__  # type: ignore[union-attr]


class EnteredFunctions:
    """A profile function that counts the calls of the data plane's functions."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        """Calls by file (from `PRODUCT`) and function."""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call, if it is one of a function of the data plane that handles the event."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PRODUCT)):
            if "<" not in code.co_name and _task_name() not in BESIDE:
                file = str(Path(code.co_filename).relative_to(PRODUCT))
                self.calls[file, code.co_qualname] += 1

    @property
    def files(self) -> list[str]:
        """The files of the called functions, sorted."""
        return sorted({file for file, _ in self.calls})


@contextmanager
def counting() -> Iterator[EnteredFunctions]:
    """Count the calls of functions within this block."""
    entered = EnteredFunctions()
    sys.setprofile(entered)
    try:
        yield entered
    finally:
        sys.setprofile(None)


def show(dispatcher: str, entered: EnteredFunctions) -> None:
    """Print one dispatcher's figures; with -v, the files too."""
    print(f"{dispatcher:7} {len(entered.files):3} files {len(entered.calls):4} functions")
    if "-v" in sys.argv:
        print("    " + " ".join(entered.files))


async def own() -> EnteredFunctions:
    """Deliver two events by a dispatcher of one Trigger; returns what the second one entered."""
    world = World()
    running = world.begin(world.drain(), idle=60)
    world.send("1", "key")
    await until(lambda: sum(world.committed.values()) == 1)
    with counting() as entered:
        world.send("2", "key")
        await until(lambda: sum(world.committed.values()) == 2)
    await world.kill(running)
    return entered


async def shared() -> EnteredFunctions:
    """Deliver two events by a shared dispatcher; returns what the second one entered."""
    shard = Shard(World())
    shard.add(0)
    await shard.start()
    exchange = shard.drain(idle="PT1H", budget="PT10M")
    shard.world.send("1", "key")
    await until(lambda: shard.committed(0) == 1)
    with counting() as entered:
        shard.world.send("2", "key")
        await until(lambda: shard.committed(0) == 2)
    exchange.task.cancel()
    return entered


if __name__ == "__main__":
    show("own", asyncio.run(own()))
    show("shared", asyncio.run(shared()))
