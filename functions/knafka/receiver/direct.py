"""Direct: events that come past Knative's proxy, shown to its autoscaler as load (issue 37).

    direct events a second -> so many requests held against the receiver's own Service
    Knative's proxy sees those under way -> the autoscaler counts them -> pods

Knative scales by the requests that its proxy sees, and it sees none of the events that come
straight to a pod's own port. A held request costs the proxy nothing while it waits.

Not here: which events are direct (`protocol`), and where senders get that address (the operator).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

LOAD: Final = b"/load"
"""Path of a request that is answered late, and does nothing else."""
EVENTS_PER_HOLD: Final = 50.0
"""Direct events a second for which one request is held."""
HOLD_TIME: Final = 5.0
"""Seconds until a held request is answered: Knative has a pod that ends wait for those it has."""
HOLD_TIMEOUT: Final = 30.0
"""Seconds for which one is waited for: a pod may have to start to take it."""
LOOK_INTERVAL: Final = 1.0
"""Seconds between two looks at how many events came."""
MAX_HOLDS: Final = 1_000

Hold = Callable[[], Awaitable[object]]
"""One request to the own Service; returns when it is answered or has failed."""


class DirectLoad:
    """Holds requests in proportion to the events that `events` counts."""

    def __init__(self, events: Callable[[], int], hold: Hold) -> None:
        """`events`: direct ones since the start."""
        self._events = events
        self._hold = hold
        self._holds: set[asyncio.Task[object]] = set()

    async def follow(self) -> None:
        """Hold as many as the last second's events ask for, until cancelled; where there are more
        than those, they end by themselves."""
        loop = asyncio.get_running_loop()
        events, at = self._events(), loop.time()
        try:
            while True:
                await asyncio.sleep(LOOK_INTERVAL)
                count, now = self._events(), loop.time()
                self._hold_for((count - events) / (now - at))
                events, at = count, now
        finally:
            for hold in self._holds:
                hold.cancel()

    def _hold_for(self, rate: float) -> None:
        desired = min(round(rate / EVENTS_PER_HOLD), MAX_HOLDS)
        for _ in range(desired - len(self._holds)):
            hold = asyncio.ensure_future(self._hold())
            self._holds.add(hold)
            hold.add_done_callback(self._holds.discard)


class HeldRequests:
    """Requests to `LOAD` that are under way: each is answered after `HOLD_TIME`, or at the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Callable[[], None], asyncio.TimerHandle] = {}

    @property
    def count(self) -> int:
        return len(self._waiting)

    def add(self, answer: Callable[[], None]) -> None:
        self._waiting[answer] = self._loop.call_later(HOLD_TIME, self._answer, answer)

    def close(self) -> None:
        """Answer all of them now."""
        for answer in list(self._waiting):
            self._answer(answer)

    def _answer(self, answer: Callable[[], None]) -> None:
        self._waiting.pop(answer).cancel()
        answer()
