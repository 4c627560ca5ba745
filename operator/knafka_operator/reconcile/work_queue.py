"""Wakes: who is to be reconciled, now or after a while.

Everything that is kept has a loop of its own that sleeps here. What concerns it wakes it: its own
document, its Broker's, its Service's, its subscriber's. Between two looks lies a pause, so that a
burst of changes is one reconciliation.

Refused here: what is done when somebody wakes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeAlias

from knafka.core.errors import KnafkaError

log = logging.getLogger(__name__)

Key: TypeAlias = tuple[str, str, str]
"""Kind, namespace and name."""

PAUSE: Final = 0.05
"""Seconds between two looks at the same thing."""


async def repeat(
    what: str, look: Callable[[], Awaitable[None]], every: float, first: float | None = None
) -> None:
    """Call `look` for ever, with `every` seconds between, the first time after `first`, or `every`.

    What goes wrong is told, and tried again. Whatever it is, a bug included: a loop that ended
    would be missed only when events wait.
    """
    pause = every if first is None else first
    while True:
        await asyncio.sleep(pause)
        pause = every
        try:
            await look()
        except KnafkaError as error:
            log.warning("%s: %s", what, error)
        except Exception:
            log.exception("%s", what)


class Wakes:
    """One event for each loop."""

    def __init__(self) -> None:
        self._events: dict[Key, asyncio.Event] = {}

    def wake(self, key: Key) -> None:
        """Have it reconciled now, if it is kept."""
        if event := self._events.get(key):
            event.set()

    def keys(self, kind: str) -> list[Key]:
        """What of this kind is kept."""
        return [key for key in self._events if key[0] == kind]

    async def keep(self, key: Key, look: Callable[[], Awaitable[float]]) -> None:
        """Call `look` for ever: at once, when woken, and after the seconds it gave."""
        event = self._events[key] = asyncio.Event()
        try:
            while True:
                event.clear()
                pause = await look()
                await asyncio.sleep(PAUSE)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await event.wait()
        finally:
            if self._events.get(key) is event:
                del self._events[key]
