"""What the connections of one server share: how many there may be, how many bytes they receive at a
time, and one eye on their clocks.

Not here: HTTP; see `protocol`, whose connections these are.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from knafka.receiver.ingest import IngestHandler

SWEEP_INTERVAL: Final = 5.0
"""Seconds between looks for silent connections: one timer for all of them."""
SLOW_AFTER: Final = 2.0
"""Seconds without progress (`protocol.PROGRESS_BYTES`) after which a request makes way for others
when there is no room for all."""
LOOK_INTERVAL: Final = 0.1
"""Seconds between looks for slow requests: one at 10,000 connections takes milliseconds."""
FREED_SHARE: Final = 4
"""One of so many parts of what may be received together is freed at a time."""


class Expiring(Protocol):
    """A connection."""

    def expire(self, now: float) -> None:
        """End if it has been silent for too long."""
        ...

    @property
    def slow_since(self) -> float | None:
        """When the request that it receives has last made progress; None: it receives none."""
        ...

    def make_way(self) -> None:
        """Give up the request that it receives."""
        ...

    def forget_route(self) -> None:
        """Another Broker, or none, may be at the address of its last request."""
        ...


class Connections:
    """Who handles their requests, and the bytes that they are receiving together."""

    def __init__(self, ingest: IngestHandler, loop: asyncio.AbstractEventLoop) -> None:
        self.ingest = ingest
        self.loop = loop
        self.receiving_bytes = 0
        self.direct_requests = 0
        """Of senders that have come straight to this port, past Knative's proxy."""
        self.open: set[Expiring] = set()
        self._look_at = 0.0
        self._sweeper = loop.call_later(SWEEP_INTERVAL, self._sweep)

    @property
    def are_too_many(self) -> bool:
        return len(self.open) > self.ingest.limits.connections

    def make_room(self) -> None:
        """Give up requests that stand still or drip, the slowest first: their senders are told to
        send again. Where nobody is slow, no room is made."""
        now, limit = self.loop.time(), self.ingest.limits.in_flight_bytes
        if now < self._look_at:
            return
        self._look_at = now + LOOK_INTERVAL
        slow = [
            (since, number, connection)
            for number, connection in enumerate(self.open)
            if (since := connection.slow_since) is not None and now - since > SLOW_AFTER
        ]
        for _, _, connection in sorted(slow):
            if self.receiving_bytes <= limit - limit // FREED_SHARE:
                break
            connection.make_way()

    def _sweep(self) -> None:
        now = self.loop.time()
        for connection in list(self.open):
            connection.expire(now)
        self._sweeper = self.loop.call_later(SWEEP_INTERVAL, self._sweep)

    def forget_routes(self) -> None:
        """What `ingest` serves has changed."""
        for connection in self.open:
            connection.forget_route()

    def close(self) -> None:
        self._sweeper.cancel()
