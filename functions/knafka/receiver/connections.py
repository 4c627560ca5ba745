"""What the connections of one server share: how many there may be, and one eye on their clocks.

Not here: HTTP; see `protocol`, whose connections these are.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from knafka.receiver.ingest import IngestHandler

SWEEP_INTERVAL: Final = 5.0
"""Seconds between looks for silent connections: one timer for all of them."""


class Expiring(Protocol):
    """A connection."""

    def expire(self, now: float) -> None:
        """End if it has been silent for too long."""
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
        self.open: set[Expiring] = set()
        self._sweeper = loop.call_later(SWEEP_INTERVAL, self._sweep)

    @property
    def are_too_many(self) -> bool:
        return len(self.open) > self.ingest.limits.connections

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
