"""The wait between two commits of a drain that holds no unsettled records.

Many drains of one event loop wait like this at once, so that a wait has one timer and no task.
"""

from __future__ import annotations

import asyncio
from typing import Final

COMMIT_INTERVAL: Final = 1.0
"""Seconds between commits: a killed dispatcher delivers about as many seconds of events again."""


class CommitWait:
    """Waits up to `interval` seconds; once a record has come, only until the next `phase`, a moment
    within `COMMIT_INTERVAL` at which this drain commits."""

    __slots__ = ("_due", "_is_due", "_loop", "_phase", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, interval: float, phase: float) -> None:
        self._loop = loop
        self._phase = phase
        self._is_due: asyncio.Future[None] = loop.create_future()
        self._due = loop.time() + interval
        self._timer = loop.call_at(self._due, self._end)

    async def wait(self) -> None:
        """Wait until the next commit is due."""
        try:
            await self._is_due
        finally:
            self._timer.cancel()

    def note_record(self) -> None:
        """Note that a record has come since the last commit."""
        now = self._loop.time()
        due = now + ((self._phase - now) % COMMIT_INTERVAL or COMMIT_INTERVAL)
        if due < self._due:
            self._timer.cancel()
            self._due = due
            self._timer = self._loop.call_at(due, self._end)

    def _end(self) -> None:
        """End the wait."""
        if not self._is_due.done():
            self._is_due.set_result(None)
