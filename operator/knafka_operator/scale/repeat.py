"""Repeat: runs a periodic task that continues after any error.

Not here: back-off for each object (`engine.work_queue`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from knafka.core.errors import KnafkaError

log = logging.getLogger(__name__)


async def run_repeatedly(
    work: str, run: Callable[[], Awaitable[None]], every: float, first: float | None = None
) -> None:
    """Call `run` until cancelled, with `every` seconds between the end of a call and the next one;
    the first call comes after `first` seconds (None: after `every`). An error is logged with
    `work`, which names the task, and the calls go on."""
    pause = every if first is None else first
    while True:
        await asyncio.sleep(pause)
        pause = every
        try:
            await run()
        except KnafkaError as error:
            log.warning("%s: %s", work, error)
        except Exception:
            log.exception("%s", work)
