"""The subscriber over HTTP/1.1: asyncio protocols, httptools, a keep-alive pool per origin.

Our own, because the libraries cost more for one POST than the dispatcher may spend on one event
(docs/decisions/0003). Below `post` there is one future per request and no task. Two rules carry it:
a connection is either idle in its pool or owned by exactly one exchange, and it goes back only when
a response has ended cleanly; everything else drops it. Refused here: pipelining, HTTP/2, redirects,
proxies, cookies, content decoding, and retries, but for the one below.

The keep-alive race: a server may close an idle connection while a request is on its way. When a
reused connection ends before any byte of a response, the post goes once more, over a new
connection; it may arrive twice, as at-least-once allows, and counts as one attempt.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final, cast

import httptools

from knafka.clients.subscriber import Origin, Response, Target
from knafka.core.errors import DeliveryError

MAX_RESPONSE_BYTES: Final = 1_048_576 + 65_536
"""Largest response body: no event above 1 MiB fits into Kafka, and JSON needs some room."""

MAX_HEAD_BYTES: Final = 65_536
"""Largest response head, interim responses included; servers stop at 8 to 32 KiB."""

IDLE_SECONDS: Final = 4.0
"""How long a connection stays idle: below the 5 s after which uvicorn and Node.js close theirs,
so that the race above stays rare."""

_JOINED_BYTES: Final = 65_536
"""Up to here a copy of the body is cheaper than a second write."""

_CLOCK_STEP: Final = 0.001
"""Seconds; uvloop's clock ticks in ms, so a timer may see a time just before its own."""


class HttpSubscriber:
    """A `Subscriber` that keeps at most `limit` connections, so `limit` posts, per origin.

    `tls` makes the context for an https origin; the origin's own CA certificates are added to it.
    """

    def __init__(
        self,
        *,
        limit: int = 100,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> None:
        self._limit = limit
        self._max_response_bytes = max_response_bytes
        self._tls = tls
        self._pools: dict[Origin, _Pool] = {}
        self._closed = False

    async def post(self, target: Target, head: bytes, body: bytes, timeout: float) -> Response:
        if target.problem:
            raise DeliveryError("refused", target.problem)
        pool = self._pools.get(target.origin) or self._open(target.origin)
        deadline = pool.loop.time() + timeout
        size = len(body)
        if size <= _JOINED_BYTES:
            first = b"%b%bcontent-length: %d\r\n\r\n%b" % (target.start, head, size, body)
            body = b""
        else:
            first = b"%b%bcontent-length: %d\r\n\r\n" % (target.start, head, size)
        if pool.free:
            pool.free -= 1
        else:
            await pool.wait_for_slot(deadline)
        try:
            is_new = False
            while True:
                if not pool.idle:
                    is_new = True
                connection = await pool.connect(deadline) if is_new else pool.idle.pop()
                try:
                    waiter = connection.send(first, body, deadline)
                    try:
                        return await waiter
                    finally:
                        connection.leave(waiter)
                        # It holds the error whose traceback holds this frame and its request.
                        del waiter
                except _Unanswered:
                    if is_new:
                        raise
                    is_new = True
        finally:
            pool.give_slot()

    def _open(self, origin: Origin) -> _Pool:
        if self._closed:
            raise _client_closed()
        pool = _Pool(origin, self._limit, self._max_response_bytes, self._context(origin))
        self._pools[origin] = pool
        return pool

    def _context(self, origin: Origin) -> ssl.SSLContext | None:
        if not origin.tls:
            return None
        try:
            context = self._tls()
            if origin.ca_certs is not None:
                context.load_verify_locations(cadata=origin.ca_certs)
        except (ValueError, OSError) as error:
            problem = f"the CA certificates for {origin} can't be read: {error}"
            raise DeliveryError("refused", problem) from error
        return context

    async def close(self) -> None:
        self._closed = True
        lost = [each for pool in self._pools.values() for each in pool.close()]
        if lost:
            await asyncio.wait(lost)


class _Unanswered(DeliveryError):
    """The connection ended before any byte of a response."""


def _client_closed() -> DeliveryError:
    return DeliveryError("broken", "the client is closed")


class _Pool:
    """The connections of one origin.

    A slot is held for the whole of a post, and a connection is only made when none is idle, so
    connections never outnumber slots. Idle ones are used last in, first out: what a burst left
    over grows old and closes.
    """

    def __init__(
        self, origin: Origin, limit: int, max_response_bytes: int, context: ssl.SSLContext | None
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.free = limit
        self.idle: list[_Connection] = []
        self.connections: set[_Connection] = set()
        self.origin = origin
        self.max_response_bytes = max_response_bytes
        self.closed = False
        self._context = context
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def wait_for_slot(self, deadline: float) -> None:
        """Queue for a slot that another post gives; taking a free one needs no call."""
        waiter = self.loop.create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except BaseException as error:
            if not waiter.cancel() and not waiter.cancelled():
                # The slot came together with the cancellation.
                self.give_slot()
            if isinstance(error, TimeoutError):
                problem = f"every connection to {self.origin} stayed busy"
                raise DeliveryError("timeout", problem) from None
            raise

    def give_slot(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.free += 1

    async def connect(self, deadline: float) -> _Connection:
        if self.closed:
            raise _client_closed()
        host, port, context = self.origin.host, self.origin.port, self._context
        try:
            async with asyncio.timeout_at(deadline):
                _, connection = await self.loop.create_connection(
                    lambda: _Connection(self), host, port, ssl=context
                )
        except TimeoutError as error:
            problem = f"no connection to {self.origin} in time"
            raise DeliveryError("timeout", problem) from error
        except OSError as error:
            problem = f"no connection to {self.origin}: {error}"
            raise DeliveryError("refused", problem) from error
        if self.closed:
            connection.drop()
            raise _client_closed()
        return connection

    def forget(self, connection: _Connection) -> None:
        """Keep it from being used again."""
        if connection in self.idle:
            self.idle.remove(connection)

    def close(self) -> list[asyncio.Future[None]]:
        """Drop all connections; the futures are done when their sockets are closed."""
        self.closed = True
        for connection in list(self.connections):
            connection.fail(_client_closed())
        return [connection.lost for connection in self.connections]


class _Connection(asyncio.Protocol):
    """One connection; `_waiter` is the exchange that owns it, None while it is idle or dropped.

    One timer serves every deadline: it is only set anew for an earlier one, and asks when it
    fires whether the deadline has moved on since. So most requests touch no timer.
    """

    __slots__ = (
        "_body",
        "_deadline",
        "_headers",
        "_keep_alive",
        "_parser",
        "_pool",
        "_received",
        "_response",
        "_status",
        "_timer",
        "_transport",
        "_waiter",
        "_wakes_at",
        "lost",
    )

    def __init__(self, pool: _Pool) -> None:
        self.lost: asyncio.Future[None] = pool.loop.create_future()
        self._pool = pool
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[Response] | None = None
        self._deadline = self._wakes_at = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._reset()

    def _reset(self) -> None:
        """Forget the last response, so that an idle connection holds no memory."""
        self._status = self._received = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: bytes | bytearray = b""
        self._response: Response | None = None

    def send(self, first: bytes, rest: bytes, deadline: float) -> asyncio.Future[Response]:
        """Send one request; the response, or a `DeliveryError`. Call `leave` when done with it.

        The connection must be new or just idle.
        """
        if self._transport.is_closing():
            # Its end came before this exchange began, and nothing more will.
            raise _Unanswered("broken", f"{self._pool.origin} closed the connection")
        waiter: asyncio.Future[Response] = self._pool.loop.create_future()
        self._waiter = waiter
        self._expire_at(deadline)
        self._transport.write(first)
        if rest:
            self._transport.write(rest)
        return waiter

    def leave(self, waiter: asyncio.Future[Response]) -> None:
        """Whoever sent has a response, or waits no longer: then the connection is dropped."""
        if self._waiter is waiter:
            self.drop()

    def drop(self) -> None:
        """Close at once, whatever is still to be written or read."""
        self._waiter = None
        self._pool.forget(self)
        self._transport.abort()

    def fail(self, error: DeliveryError) -> None:
        """Drop, and end the exchange under way, if any, with `error`."""
        waiter = self._waiter
        self.drop()
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def _expire_at(self, deadline: float) -> None:
        self._deadline = deadline
        if deadline < self._wakes_at:
            if self._timer is not None:
                self._timer.cancel()
            self._wakes_at = deadline
            self._timer = self._pool.loop.call_at(deadline, self._wake)

    def _wake(self) -> None:
        self._timer, self._wakes_at = None, math.inf
        if self._pool.loop.time() + _CLOCK_STEP < self._deadline:
            self._expire_at(self._deadline)
            return
        part = "only a part of a response" if self._waiter and self._received else "no response"
        self.fail(DeliveryError("timeout", f"{part} from {self._pool.origin} in time"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._pool.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._waiter is None or self._parser is None:
            # Nobody asked, so nothing that comes now could be told from the next response.
            self.drop()
            return
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # Bytes after a complete response spoil the connection, not the response.
            self._keep_alive = False
            if self._response is None:
                self.fail(self._unusable(error))
                return
        if self._response is not None:
            self._finish(self._response)
        elif self._received > MAX_HEAD_BYTES and not self._status:
            self.fail(self._broken(f"sent a response head longer than {MAX_HEAD_BYTES} bytes"))
        elif self._received > MAX_HEAD_BYTES + 2 * self._pool.max_response_bytes:
            # Chunk framing and trailers; twice the body leaves room for chunks of a few bytes.
            self.fail(self._broken("wrapped its response in too many bytes"))

    def on_message_begin(self) -> None:
        if self._response is not None:
            raise self._broken("sent more than its response")

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers are not headers (RFC 9110, 6.5.1).
        if not self._status:
            self._headers.append((name.lower(), value.rstrip()))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._status = self._parser.get_status_code()
        if self._status == 101:
            # Final, unlike the other 1xx: what follows is no HTTP (data-plane table).
            self._keep_alive = False
            self._response = Response(101, self._headers, b"")

    def on_body(self, data: bytes) -> None:
        if len(self._body) + len(data) > self._pool.max_response_bytes:
            limit = self._pool.max_response_bytes
            raise self._broken(f"sent a response body longer than {limit} bytes")
        if not self._body:
            self._body = data
        elif isinstance(self._body, bytearray):
            self._body += data
        else:
            self._body = bytearray(self._body + data)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if 100 <= self._status <= 199:
            self._status = 0
            self._headers = []
            return
        self._keep_alive = self._parser.should_keep_alive()
        self._response = Response(self._status, self._headers, bytes(self._body))

    def _finish(self, response: Response) -> None:
        waiter, self._waiter = self._waiter, None
        if (
            self._keep_alive
            and not self._transport.get_write_buffer_size()
            and not self._transport.is_closing()
        ):
            self._reset()
            self._expire_at(self._pool.loop.time() + IDLE_SECONDS)
            self._pool.idle.append(self)
        else:
            # Also when the answer came before the request was sent, such as an early 413.
            self._transport.abort()
        if waiter is not None and not waiter.done():
            waiter.set_result(response)

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)
        if self._timer is not None:
            self._timer.cancel()
        # The parser holds methods of this object: let the cycle go now, not when it is collected.
        self._parser = None
        self._pool.connections.discard(self)
        self.lost.set_result(None)

    def _end(self, error: Exception | None) -> None:
        if self._waiter is None:
            self._pool.forget(self)
        elif error is None and self._status and not self._is_framed():
            self._keep_alive = False
            self._finish(Response(self._status, self._headers, bytes(self._body)))
        else:
            problem = f"{self._pool.origin} closed the connection before its response ended"
            kind = DeliveryError if self._received else _Unanswered
            self.fail(kind("broken", f"{problem}: {error}" if error is not None else problem))

    def _is_framed(self) -> bool:
        """Whether the response says where it ends; otherwise it ends with the connection."""
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self._headers)

    def _unusable(self, error: Exception) -> DeliveryError:
        if isinstance(error.__context__, DeliveryError):
            return error.__context__
        return self._broken(f"sent no valid HTTP response: {error}")

    def _broken(self, problem: str) -> DeliveryError:
        return DeliveryError("broken", f"{self._pool.origin} {problem}")
