"""Turn limit: how many attempts an Egress may begin in one turn of an event loop that it shares.

    `wait_for_turn` returns at once while attempts are left in this turn, else in a later turn.

A turn with a hundred attempts takes milliseconds, during which the loop does nothing for other
Egresses.
"""

from __future__ import annotations

import asyncio
from collections import deque


class TurnLimit:
    """Lets `limit` attempts begin in one turn of the event loop; the others wait in order."""

    def __init__(self, limit: int) -> None:
        """Begin the first turn, on the running event loop."""
        self._limit = self._left = limit
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._loop = asyncio.get_running_loop()
        self._next_turn_is_scheduled = False

    async def wait_for_turn(self) -> None:
        """Wait until an attempt may begin: return in this turn of the loop if it has one left, else
        in a later turn."""
        if not self._next_turn_is_scheduled:
            self._next_turn_is_scheduled = True
            self._loop.call_soon(self._begin_turn)
        if self._left > 0 and not self._waiting:
            self._left -= 1
            return
        turn = self._loop.create_future()
        self._waiting.append(turn)
        await turn

    def _begin_turn(self) -> None:
        """Begin a turn: let up to `limit` waiting attempts begin, and schedule the next turn if any
        began."""
        self._left = self._limit
        while self._waiting and self._left > 0:
            turn = self._waiting.popleft()
            if not turn.done():  # cancelled
                turn.set_result(None)
                self._left -= 1
        self._next_turn_is_scheduled = bool(self._waiting) or self._left < self._limit
        if self._next_turn_is_scheduled:
            self._loop.call_soon(self._begin_turn)
