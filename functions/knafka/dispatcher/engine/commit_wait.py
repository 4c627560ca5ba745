"""The wait between two commits of a drain that holds no unsettled records.

Many drains of one event loop wait like this at once, so that a wait has one timer and no task.
"""

from __future__ import annotations

import asyncio


class CommitWait:
    """Waits up to `quiet_interval` seconds; once a record has come, only until this drain's next
    moment to commit, of which there is one in each `interval` seconds. `share`, from 0 to 1, says
    which: drains with different shares commit at different moments."""

    __slots__ = ("_due", "_interval", "_is_due", "_loop", "_share", "_timer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, interval: float, quiet_interval: float, share: float
    ) -> None:
        self._loop = loop
        self._interval = interval
        self._share = share
        self._is_due: asyncio.Future[None] = loop.create_future()
        self._due = loop.time() + quiet_interval
        self._timer = loop.call_at(self._due, self._end)

    async def wait(self) -> None:
        """Wait until the next commit is due."""
        try:
            await self._is_due
        finally:
            self._timer.cancel()

    def note_record(self) -> None:
        """Note that a record has come since the last commit."""
        now, interval = self._loop.time(), self._interval
        due = now + ((self._share * interval - now) % interval or interval)
        if due < self._due:
            self._timer.cancel()
            self._due = due
            self._timer = self._loop.call_at(due, self._end)

    def _end(self) -> None:
        """End the wait."""
        if not self._is_due.done():
            self._is_due.set_result(None)
