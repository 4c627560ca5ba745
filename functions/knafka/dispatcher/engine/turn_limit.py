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
        self._limit = self._attempts_left = limit
        self._waiting: deque[asyncio.Future[None]] = deque()
        """One future for each attempt that waits for a later turn, in the order of arrival."""
        self._loop = asyncio.get_running_loop()
        self._next_turn_is_scheduled = False
        """Whether the loop will call `_begin_turn`; False while no attempts begin."""

    async def wait_for_turn(self) -> None:
        """Wait until the caller may begin an attempt, and count that attempt: return at once if
        this turn has an attempt left and no other caller waits, else in a later turn."""
        if not self._next_turn_is_scheduled:
            self._next_turn_is_scheduled = True
            self._loop.call_soon(self._begin_turn)
        if self._attempts_left > 0 and not self._waiting:
            self._attempts_left -= 1
            return
        waiter = self._loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def _begin_turn(self) -> None:
        """Begin a turn: let up to `limit` waiting attempts begin. Schedule the next turn if an
        attempt began or still waits."""
        self._attempts_left = self._limit
        while self._waiting and self._attempts_left > 0:
            waiter = self._waiting.popleft()
            if not waiter.done():  # a cancelled waiter uses up no attempt
                waiter.set_result(None)
                self._attempts_left -= 1
        self._next_turn_is_scheduled = bool(self._waiting) or self._attempts_left < self._limit
        if self._next_turn_is_scheduled:
            self._loop.call_soon(self._begin_turn)
