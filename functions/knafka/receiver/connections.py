"""State that the connections of one server share: their number, the bytes that they are receiving,
and timeouts.

Not here: HTTP; see `protocol`, which defines one connection.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from knafka.receiver.ingest import IngestHandler

SWEEP_INTERVAL: Final = 5.0
"""Seconds between checks for silent connections, by one timer for all."""
SLOW_REQUEST_SECONDS: Final = 2.0
"""Seconds without progress (`protocol.PROGRESS_BYTES`) after which a request may be refused to free
memory."""
SLOW_CHECK_INTERVAL: Final = 0.1
"""Seconds between checks for slow requests: one takes milliseconds with 10,000 connections."""
FREED_SHARE: Final = 4
"""Divisor of the shared receive memory: 4 means that a quarter of it is freed at a time."""


class Expiring(Protocol):
    """The methods of a connection that `Connections` uses."""

    def expire(self, now: float) -> None:
        """Close the connection, or refuse its request, if it has been silent for too long."""
        ...

    @property
    def slow_since(self) -> float | None:
        """When the request being received last made progress; None: none is being received."""
        ...

    def give_up_request(self) -> None:
        """Refuse the request being received, to free its memory."""
        ...

    def forget_route(self) -> None:
        """Look the route up again for the next request, as the served Ingresses have changed."""
        ...


class Connections:
    """The open connections of one server, and the bytes that they are receiving together."""

    def __init__(self, ingest: IngestHandler, loop: asyncio.AbstractEventLoop) -> None:
        """Begin without connections, and start the timer on `loop` that closes silent ones.
        `ingest` answers their requests."""
        self.ingest = ingest
        self.loop = loop
        self.receiving_bytes = 0
        """Bytes of all requests that are being received."""
        self.direct_requests = 0
        """Number of requests that came straight to this port, past Knative's proxy."""
        self.open: set[Expiring] = set()
        self._checked_until = 0.0
        """The loop's time before which `make_room` doesn't look for slow requests again."""
        self._sweeper = loop.call_later(SWEEP_INTERVAL, self._sweep)

    @property
    def has_too_many(self) -> bool:
        """Whether more connections are open than the limit."""
        return len(self.open) > self.ingest.limits.connections

    def make_room(self) -> None:
        """Refuse slow requests (`SLOW_REQUEST_SECONDS`), the slowest first, until a share of the
        memory is free; their senders are told to send again. If no request is slow, nothing is
        refused."""
        now, limit = self.loop.time(), self.ingest.limits.in_flight_bytes
        if now < self._checked_until:
            return
        self._checked_until = now + SLOW_CHECK_INTERVAL
        # The number is only there for sorting: connections can't be compared.
        slow_connections = [
            (since, number, connection)
            for number, connection in enumerate(self.open)
            if (since := connection.slow_since) is not None and now - since > SLOW_REQUEST_SECONDS
        ]
        for _, _, connection in sorted(slow_connections):
            if self.receiving_bytes <= limit - limit // FREED_SHARE:
                break
            connection.give_up_request()

    def _sweep(self) -> None:
        """Close connections that have been silent for too long, and set the timer for the next
        time."""
        now = self.loop.time()
        for connection in list(self.open):
            connection.expire(now)
        self._sweeper = self.loop.call_later(SWEEP_INTERVAL, self._sweep)

    def forget_routes(self) -> None:
        """Make all connections look their routes up again, as `ingest` serves other Ingresses
        now."""
        for connection in self.open:
            connection.forget_route()

    def close(self) -> None:
        """Stop the timer of `_sweep`."""
        self._sweeper.cancel()
