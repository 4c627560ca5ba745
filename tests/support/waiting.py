"""Waiting for a condition that nobody announces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from knafka.ports.log import LogAdmin


async def until(condition: Callable[[], object], within: float = 30.0) -> None:
    """Look every 20 ms until `condition` holds; TimeoutError after `within` seconds."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.02)


async def until_found(question: Callable[[], Awaitable[object]], within: float = 30.0) -> None:
    """Ask every 200 ms until the answer is something; TimeoutError after `within` seconds."""
    async with asyncio.timeout(within):
        while not await question():  # noqa: ASYNC110  # who is asked announces nothing
            await asyncio.sleep(0.2)


async def until_settled(admin: LogAdmin, group: str, topic: str, within: float) -> None:
    """Wait until a group has committed everything; TimeoutError after `within` seconds."""

    async def is_settled() -> bool:
        return not (await admin.lags([group], topic))[group].total

    await until_found(is_settled, within)
