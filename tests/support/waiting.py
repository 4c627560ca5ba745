"""Waiting for a condition that nobody announces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], within: float = 30.0) -> None:
    """Look every 20 ms until `condition` holds; TimeoutError after `within` seconds."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.02)
