"""The subscriber over HTTP/1.1: asyncio protocols, httptools, a keep-alive pool per origin.

This client is our own, as a library's POST costs more than the dispatcher may spend on one event
(docs/decisions/0003). `post` needs one future per request and no task. The pool is in `http_pool`,
a connection in `http_connection`. Not supported: pipelining, HTTP/2, redirects, proxies, cookies,
content decoding, and retries except after the keep-alive race.

The keep-alive race: a server may close an idle connection while a request is on its way. If a
reused connection ends before any byte of a response, the request is sent once more, over a new
connection; it may arrive twice, as at-least-once allows, and counts as one attempt.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from typing import Final

from knafka.clients.http.http_connection import Unanswered
from knafka.clients.http.http_pool import Pool, Refusal, client_closed_error
from knafka.clients.http.trust_bundles import TlsContext, TrustBundles
from knafka.core.errors import DeliveryError
from knafka.ports.subscriber import HttpOrigin, Response, Target

MAX_RESPONSE_BYTES: Final = 1_048_576 + 65_536
"""Most bytes of a response's body that are kept: no event above 1 MiB fits into Kafka, and JSON
needs some room."""

MAX_CONNECTION_AGE: Final = 60.0
"""Approximate seconds for which a connection is used, so that a pod that is added behind a plain
Service gets its share of requests after a minute. The age varies, so that not all connections end
at once."""

_MAX_JOINED_BYTES: Final = 65_536
"""Most bytes of a body that is copied behind the request's head and sent with it: up to this size,
the copy is cheaper than a second write."""


def random_max_age() -> float:
    """Return a random maximum age of a connection in seconds, near `MAX_CONNECTION_AGE`."""
    return MAX_CONNECTION_AGE * random.uniform(0.75, 1.25)


class HttpSubscriber:
    """A `Subscriber` with at most `limit` connections, and so `limit` posts at once, per origin.

    `tls` returns a new context for an https origin, to which the origin's own CA certificates and
    those of `bundles` are added. `max_age` returns the seconds for which a new connection may be
    used. `refusal` checks a host's addresses when a connection is opened (None: all are allowed);
    use `core.addresses.refusal` if users name the hosts.
    """

    def __init__(
        self,
        *,
        limit: int = 100,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        max_age: Callable[[], float] = random_max_age,
        refusal: Refusal | None = None,
        bundles: TrustBundles | None = None,
    ) -> None:
        """Create the subscriber without connections; the body of a response is cut at
        `max_response_bytes`."""
        self._limit = limit
        self._max_response_bytes = max_response_bytes
        self._tls = tls
        self._max_age = max_age
        self._refusal = refusal
        self._bundles = bundles
        self._pools: dict[HttpOrigin, Pool] = {}
        self._closed = False

    async def post(self, target: Target, head: bytes, body: bytes, timeout: float) -> Response:
        """POST `body` to `target` within `timeout` seconds, and return the response, whose body may
        be cut at `max_response_bytes`. `head`: header lines, each with its CRLF, without
        content-length. Raises `DeliveryError`."""
        if target.problem:
            raise DeliveryError("refused", target.problem)
        pool = self._pools.get(target.origin) or self._open_pool(target.origin)
        deadline = pool.loop.time() + timeout
        size = len(body)
        if size <= _MAX_JOINED_BYTES:
            first_part = b"%b%bcontent-length: %d\r\n\r\n%b" % (target.start, head, size, body)
            body_rest = b""
        else:
            first_part = b"%b%bcontent-length: %d\r\n\r\n" % (target.start, head, size)
            body_rest = body
        if pool.free_slots:
            pool.free_slots -= 1
        else:
            await pool.wait_for_slot(deadline)
        try:
            is_new = False  # whether the connection was opened for this post
            while True:  # a second time only if the server has closed an idle connection
                if not pool.idle:
                    is_new = True
                connection = await pool.connect(deadline) if is_new else pool.idle.pop()
                try:
                    waiter = connection.send(first_part, body_rest, deadline)
                    try:
                        return await waiter
                    finally:
                        connection.end_exchange(waiter)
                        # The future holds the error, whose traceback holds this frame and its
                        # request.
                        del waiter
                except Unanswered:
                    if is_new:
                        raise
                    is_new = True
        finally:
            pool.release_slot()

    def _open_pool(self, origin: HttpOrigin) -> Pool:
        """Create and return the pool of an origin, without connections. Raises `DeliveryError` if
        the client is closed."""
        if self._closed:
            raise client_closed_error()
        pool = Pool(
            origin,
            self._limit,
            self._max_response_bytes,
            self._max_age,
            self._tls_context(origin),
            self._refusal,
        )
        self._pools[origin] = pool
        return pool

    def _tls_context(self, origin: HttpOrigin) -> TlsContext | None:
        """Return the TLS context for an https origin; None for an http one."""
        return TlsContext(self._tls, origin.ca_certs, self._bundles) if origin.tls else None

    async def close(self) -> None:
        """Close all connections, and wait until their sockets are closed; posts under way raise
        `DeliveryError`."""
        self._closed = True
        closings = [closing for pool in self._pools.values() for closing in pool.close()]
        if closings:
            await asyncio.wait(closings)
