"""The connections of one server, the bytes that they are receiving together, and the timer that
closes silent ones.

Not here: HTTP; `protocol` defines one connection.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from knafka.observability import RateLimitedFilter
from knafka.receiver.ingest import IngestHandler

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter())

SWEEP_INTERVAL: Final = 5.0
"""Seconds between checks for silent connections, by one timer for all."""
SLOW_REQUEST_SECONDS: Final = 2.0
"""Seconds without progress (`protocol.PROGRESS_BYTES`) after which a request may be refused to free
memory."""
SLOW_CHECK_INTERVAL: Final = 0.1
"""Seconds between checks for slow requests: one takes milliseconds with 10,000 connections."""
FREED_DIVISOR: Final = 4
"""`Connections.make_room` frees the limit divided by this number: 4 stands for a quarter."""


class OpenConnection(Protocol):
    """The methods of a connection that `Connections` uses. All times are the event loop's."""

    def expire(self, now: float) -> None:
        """Close the connection, or refuse its request, if at `now` it has been silent for too
        long."""
        ...

    @property
    def last_progress_at(self) -> float | None:
        """When the request being received last made progress; None: none is being received."""
        ...

    def give_up_request(self) -> None:
        """Refuse the request being received, to free its memory."""
        ...

    def abort(self) -> None:
        """Cut the connection without an answer."""
        ...

    def forget_route(self) -> None:
        """Look up the route of the next request again, as the served Ingresses have changed."""
        ...


class Connections:
    """The open connections of one server, and the bytes that they are receiving together."""

    def __init__(self, ingest: IngestHandler, loop: asyncio.AbstractEventLoop) -> None:
        """Begin without connections, and start the timer on `loop` that closes silent ones.
        `ingest` answers their requests."""
        self.ingest = ingest
        self.loop = loop
        self.receiving_bytes = 0
        """Bytes held of all requests that are being received; the connections count them."""
        self.direct_requests = 0
        """Number of requests that came straight to this port, past Knative's proxy."""
        self.open: set[OpenConnection] = set()
        """The open connections, which add and remove themselves."""
        self._next_slow_check = 0.0
        """The loop's time before which `make_room` doesn't look for slow requests again."""
        self._sweeper = loop.call_later(SWEEP_INTERVAL, self._sweep)

    @property
    def has_too_many(self) -> bool:
        """Whether more connections are open than `Limits.connections` allows."""
        return len(self.open) > self.ingest.limits.connections

    def make_room(self) -> None:
        """Refuse slow requests (`SLOW_REQUEST_SECONDS`), the slowest first, until a quarter of
        `Limits.in_flight_bytes` is free; their senders are told to send again. Does nothing if no
        request is slow, or within `SLOW_CHECK_INTERVAL` of the last check."""
        now, limit = self.loop.time(), self.ingest.limits.in_flight_bytes
        if now < self._next_slow_check:
            return
        self._next_slow_check = now + SLOW_CHECK_INTERVAL
        # The number decides between equal times when sorting: connections can't be compared.
        slow_connections = [
            (progress_at, number, connection)
            for number, connection in enumerate(self.open)
            if (progress_at := connection.last_progress_at) is not None
            and now - progress_at > SLOW_REQUEST_SECONDS
        ]
        for _, _, connection in sorted(slow_connections):
            if self.receiving_bytes <= limit - limit // FREED_DIVISOR:
                break
            try:
                connection.give_up_request()
            except Exception:  # it must not end the connection that needs the room
                log.exception("a slow request can't be refused")
                connection.abort()

    def _sweep(self) -> None:
        """Close connections that have been silent for too long (`OpenConnection.expire`), and set
        the timer for the next time."""
        self._sweeper = self.loop.call_later(SWEEP_INTERVAL, self._sweep)
        now = self.loop.time()
        for connection in list(self.open):
            try:
                connection.expire(now)
            except Exception:  # all other connections must still be looked at
                log.exception("a silent connection can't be closed")
                connection.abort()

    def forget_routes(self) -> None:
        """Make all connections look their routes up again, as `ingest` serves other Ingresses
        now."""
        for connection in self.open:
            connection.forget_route()

    def close(self) -> None:
        """Stop the timer of `_sweep`."""
        self._sweeper.cancel()
