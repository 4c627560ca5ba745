"""Direct events: events that bypass Knative's proxy, shown to Knative's autoscaler as load (issue
37).

    direct events a second -> requests held at the receiver's own Service, in proportion
    held requests pass Knative's proxy -> the autoscaler counts them -> pods

Knative scales by the requests that its proxy sees, and the proxy sees no event that is sent
straight to a pod's own port. A held request costs the proxy nothing while it waits.

Not here: counting them (`protocol`), and where senders get that address (the operator).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from knafka.core.addresses import is_loopback

LOAD_PATH: Final = b"/load"
"""Path of held requests: a request to it does nothing, and is answered after `HOLD_SECONDS`."""
EVENTS_PER_HOLD: Final = 50.0
"""Direct events per second for which one request is held."""
HOLD_SECONDS: Final = 5.0
"""Seconds until a held request is answered. They are few, as a Knative pod that ends waits for its
open requests."""
HOLD_TIMEOUT: Final = 30.0
"""Seconds to wait for the answer of a held request: a pod may first have to start."""
RATE_INTERVAL: Final = 1.0
"""Seconds over which the rate of direct events is measured."""
MAX_HOLDS: Final = 1_000
"""Requests held at once, at most."""

HoldRequest = Callable[[], Awaitable[object]]
"""Sends one request to the receiver's own Service; returns when it is answered or has failed."""


def is_direct(transport: asyncio.BaseTransport) -> bool:
    """Whether the events of a connection are direct: its other end has an IP address that isn't
    loopback. Knative's proxy and func's host connect by loopback or a Unix socket."""
    host = _peer_address(transport)
    return bool(host) and not is_loopback(host)


def _peer_address(transport: asyncio.BaseTransport) -> str:
    """Return the sender's IP address; empty for a Unix socket."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""


class DirectLoad:
    """Holds requests to the receiver's own Service in proportion to its direct events."""

    def __init__(self, count_events: Callable[[], int], hold_request: HoldRequest) -> None:
        """`count_events` returns the number of direct events since the start. `hold_request` sends
        one request, and returns when it has ended."""
        self._count_events = count_events
        self._hold_request = hold_request
        self._held_requests: set[asyncio.Task[object]] = set()
        """The requests under way."""

    async def follow(self) -> None:
        """Measure the rate of direct events every `RATE_INTERVAL` seconds, and hold as many
        requests as this rate requires (`_hold_for_rate`), until cancelled."""
        loop = asyncio.get_running_loop()
        last_count, counted_at = self._count_events(), loop.time()
        try:
            while True:
                await asyncio.sleep(RATE_INTERVAL)
                count, now = self._count_events(), loop.time()
                self._hold_for_rate((count - last_count) / (now - counted_at))
                last_count, counted_at = count, now
        finally:
            for request in self._held_requests:
                request.cancel()

    def _hold_for_rate(self, rate: float) -> None:
        """Send requests until as many are held as `rate` (direct events per second) requires: one
        for each `EVENTS_PER_HOLD`, at most `MAX_HOLDS`. If more are held already, they end by
        themselves."""
        desired_count = min(round(rate / EVENTS_PER_HOLD), MAX_HOLDS)
        for _ in range(desired_count - len(self._held_requests)):
            request = asyncio.ensure_future(self._hold_request())
            self._held_requests.add(request)
            request.add_done_callback(self._held_requests.discard)


class HeldRequests:
    """Requests to `LOAD_PATH` under way: each is answered after `HOLD_SECONDS`, or when the
    receiver stops."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin without requests; `loop` runs their timers."""
        self._loop = loop
        self._waiting: dict[Callable[[], None], asyncio.TimerHandle] = {}
        """The timer of each held request, by the function that answers it."""

    @property
    def count(self) -> int:
        """Number of requests under way."""
        return len(self._waiting)

    def add(self, answer: Callable[[], None]) -> None:
        """Hold a request: `answer` is called after `HOLD_SECONDS`, or by `close`."""
        self._waiting[answer] = self._loop.call_later(HOLD_SECONDS, self._answer, answer)

    def close(self) -> None:
        """Answer all held requests now."""
        for answer in list(self._waiting):
            self._answer(answer)

    def _answer(self, answer: Callable[[], None]) -> None:
        """Answer a held request, and cancel its timer."""
        self._waiting.pop(answer).cancel()
        answer()
