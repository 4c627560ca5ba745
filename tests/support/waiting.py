"""Waiting for a condition that nobody announces, with one patience for all tests.

A bound is there to end a test that hangs, not to measure: `KNAFKA_TEST_PATIENCE` stretches all of
them, on a machine that does other things as well.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import looptime

from knafka.core.errors import LogError
from knafka.ports.log import LogAdmin

PATIENCE: Final = float(os.environ.get("KNAFKA_TEST_PATIENCE", "3"))
"""What every bound in real time is multiplied by; the tests share two cores with each other."""


async def until(condition: Callable[[], object], within: float = 30.0) -> None:
    """Look every 20 ms until `condition` holds; TimeoutError after `within` seconds."""
    async with asyncio.timeout(stretched(within)):
        while not condition():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.02)


async def until_found(question: Callable[[], Awaitable[object]], within: float = 30.0) -> None:
    """Ask every 200 ms until the answer is something; TimeoutError after `within` seconds."""
    async with asyncio.timeout(stretched(within)):
        while not await question():  # noqa: ASYNC110  # who is asked announces nothing
            await asyncio.sleep(0.2)


async def until_settled(admin: LogAdmin, group: str, topic: str, within: float) -> None:
    """Wait until a group has committed everything; TimeoutError after `within` seconds."""

    async def is_settled() -> bool:
        with suppress(LogError):  # a Kafka that is busy with the test may not answer in time
            return not (await admin.lags([group], topic))[group].total
        return False

    await until_found(is_settled, within)


async def until_frozen(pid: int) -> None:
    """Wait until SIGSTOP has reached all threads of a process, which go on for a moment under load;
    TimeoutError after 30 s."""
    threads = Path(f"/proc/{pid}/task")

    def is_frozen() -> bool:
        try:
            stats = [(thread / "stat").read_text() for thread in threads.iterdir()]
        except OSError:  # a thread has ended meanwhile
            return False
        return {stat.rpartition(")")[2].split()[0] for stat in stats} == {"T"}

    await until(is_frozen)


def stretched(seconds: float) -> float:
    """`PATIENCE` times as long in real time, and as long as that by looptime's clock."""
    is_real = not isinstance(asyncio.get_running_loop(), looptime.LoopTimeEventLoop)
    return PATIENCE * seconds if is_real else seconds
