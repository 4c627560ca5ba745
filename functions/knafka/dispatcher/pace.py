"""Pace: how much one Egress does in one turn of the event loop that it shares with others.

    take --some are left--> go on
    take --none are left--> wait --next turn--> go on

A turn with a hundred attempts takes milliseconds, in which no neighbour's event moves on.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Pace:
    """`limit` attempts begin in one turn; the others wait in their order."""

    def __init__(self, limit: int) -> None:
        self._limit = self._left = limit
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._loop = asyncio.get_running_loop()
        self._is_counting = False

    async def take(self) -> None:
        """Returns in this turn, or in a later one."""
        if not self._is_counting:
            self._is_counting = True
            self._loop.call_soon(self._next_turn)
        if self._left > 0 and not self._waiting:
            self._left -= 1
            return
        waiting = self._loop.create_future()
        self._waiting.append(waiting)
        await waiting

    def _next_turn(self) -> None:
        self._left = self._limit
        while self._waiting and self._left > 0:
            waiting = self._waiting.popleft()
            if not waiting.done():  # cancelled
                waiting.set_result(None)
                self._left -= 1
        self._is_counting = bool(self._waiting) or self._left < self._limit
        if self._is_counting:
            self._loop.call_soon(self._next_turn)
