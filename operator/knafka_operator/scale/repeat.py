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
    work: str,
    run: Callable[[], Awaitable[None]],
    interval: float,
    first_pause: float | None = None,
) -> None:
    """Call `run` until cancelled, with `interval` seconds between the end of a call and the next
    one; the first call comes after `first_pause` seconds (None: after `interval`). An error is
    logged after `work`, which names the task, and the calls go on."""
    pause = interval if first_pause is None else first_pause
    while True:
        await asyncio.sleep(pause)
        pause = interval
        try:
            await run()
        except KnafkaError as error:
            log.warning("%s: %s", work, error)
        except Exception:
            log.exception("%s", work)
