"""One HTTP/1.1 connection of the subscriber: a request, then its response, again and again.

An asyncio protocol around httptools. A connection is either idle in its pool or owned by exactly
one exchange. It returns to the pool only after a response that ended cleanly, else it is dropped.
Not here: the number of connections, and which exchange gets one (`http_pool`).
"""

from __future__ import annotations

import asyncio
import math
import socket
from contextlib import suppress
from typing import Final, Protocol, cast

import httptools

from knafka.core.errors import DeliveryError
from knafka.ports.subscriber import HttpOrigin, Response

MAX_HEAD_BYTES: Final = 65_536
"""Most bytes of a response's head, interim responses included; servers send at most 8 to 32
KiB."""

IDLE_SECONDS: Final = 4.0
"""Seconds that a connection stays idle at most: below the 5 s after which uvicorn and Node.js close
theirs, so that the keep-alive race stays rare."""

KEEPALIVE_IDLE: Final = 15
"""Seconds of silence before TCP sends the first keep-alive probe."""
KEEPALIVE_INTERVAL: Final = 5
"""Seconds between two keep-alive probes."""
KEEPALIVE_PROBES: Final = 3
"""Unanswered keep-alive probes after which the connection ends. With these three settings, a peer
that vanishes, such as a node without power, is noticed after 30 s, not at the attempt's timeout."""
USER_TIMEOUT: Final = 30_000
"""Milliseconds for which sent data may stay unacknowledged before TCP ends the connection."""

MAX_BODY_FACTOR: Final = 16
"""A body up to this many times `max_response_bytes` is read to its end, so that the connection can
be used again. If a body is longer, its connection is closed, and only the response's status
counts."""

MAX_FRAMING_FACTOR: Final = 16
"""Bytes that may be received for each byte of a body; even chunks of one byte take fewer."""

_CLOCK_STEP: Final = 0.001
"""Seconds by which a timer may fire early, as uvloop's clock ticks in ms."""

_SOCKET_OPTIONS: Final = tuple(
    (level, getattr(socket, name), value)
    for level, name, value in (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", KEEPALIVE_IDLE),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", KEEPALIVE_INTERVAL),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", KEEPALIVE_PROBES),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", USER_TIMEOUT),
    )
    if hasattr(socket, name)  # not every system has all options
)
"""Arguments of `setsockopt` for each connection."""


class ConnectionOwner(Protocol):
    """The parts of a pool that its connections use."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that runs the pool and its connections."""
        ...

    @property
    def origin(self) -> HttpOrigin:
        """Where all connections of the pool lead."""
        ...

    @property
    def max_response_bytes(self) -> int:
        """Bytes of a response's body that are kept; the others are dropped."""
        ...

    @property
    def idle(self) -> list[Connection]:
        """Open connections that no exchange uses."""
        ...

    @property
    def connections(self) -> set[Connection]:
        """All open connections."""
        ...

    def forget(self, connection: Connection) -> None:
        """Remove a connection from `idle`, if it is there."""
        ...


class Unanswered(DeliveryError):
    """Raised if the connection has ended before any byte of a response came."""


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection, idle or used by one exchange."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_deadline",
        "_exchange",
        "_expires_at",
        "_headers",
        "_keep_alive",
        "_parser",
        "_pool",
        "_received_bytes",
        "_response",
        "_status",
        "_timer",
        "_timer_at",
        "_transport",
        "lost",
    )

    def __init__(self, pool: ConnectionOwner, expires_at: float) -> None:
        """Create a connection of `pool`; no request begins on it after `expires_at` (the event
        loop's clock)."""
        self.lost: asyncio.Future[None] = pool.loop.create_future()
        """Done once the socket is closed."""
        self._pool = pool
        self._expires_at = expires_at
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._exchange: asyncio.Future[Response] | None = None
        """The future of the exchange that uses the connection; None: it is idle or dropped."""
        self._deadline = math.inf
        """When the exchange or the idle time ends at the latest."""
        self._timer_at = math.inf
        """When `_timer` fires."""
        self._timer: asyncio.TimerHandle | None = None
        """Calls `_on_timer` at `_timer_at`; None: no call is planned."""
        self._reset()

    def _reset(self) -> None:
        """Forget the last response, so that an idle connection holds no memory."""
        self._status = 0  # 0: no complete head has arrived
        self._received_bytes = 0  # all bytes of the response so far
        self._body_bytes = 0  # bytes of its body, also those that were dropped
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: bytes | bytearray = b""
        self._response: Response | None = None  # None: the response isn't complete

    def send(
        self, first_part: bytes, body_rest: bytes, deadline: float
    ) -> asyncio.Future[Response]:
        """Send one request. `first_part`: its head, and as much of its body as is sent with the
        head; `body_rest`: the rest of the body, or empty. The returned future gets a response or a
        `DeliveryError`, at the latest at `deadline` (the event loop's clock). When the caller no
        longer waits for the future, for whatever reason, it must call `end_exchange`.

        The connection must be new or just taken from the idle ones. Raises `Unanswered` if it is
        closed.
        """
        if self._transport.is_closing():
            # The connection's end may have been reported already: the future would never be done.
            raise Unanswered("broken", f"{self._pool.origin} closed the connection")
        waiter: asyncio.Future[Response] = self._pool.loop.create_future()
        self._exchange = waiter
        self._set_deadline(deadline)
        self._transport.write(first_part)
        if body_rest:
            self._transport.write(body_rest)
        return waiter

    def end_exchange(self, waiter: asyncio.Future[Response]) -> None:
        """Drop the connection if the exchange of `waiter`, the future that `send` has returned, is
        still under way, as after a cancelled request; else do nothing."""
        if self._exchange is waiter:
            self.drop()

    def drop(self) -> None:
        """Close the connection at once, without writing or reading the rest. An exchange under way
        gets no result; `fail` gives it an error."""
        self._exchange = None
        self._pool.forget(self)
        self._transport.abort()

    def fail(self, error: DeliveryError) -> None:
        """Drop the connection, and end the exchange under way, if there is one, with `error`."""
        waiter = self._exchange
        self.drop()
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def _set_deadline(self, deadline: float) -> None:
        """Set the deadline of the exchange or of the idle time. A timer that fires earlier isn't
        moved, as that would cost more: when it fires, `_on_timer` sets it anew."""
        self._deadline = deadline
        if deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = self._pool.loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        """If the deadline has passed, drop the connection, and fail its exchange if it has one;
        else set the timer anew. The timer calls this."""
        self._timer, self._timer_at = None, math.inf
        if self._pool.loop.time() + _CLOCK_STEP < self._deadline:
            self._set_deadline(self._deadline)
            return
        has_begun = self._exchange and self._received_bytes
        received = "only a part of a response" if has_begun else "no response"
        self.fail(DeliveryError("timeout", f"{received} from {self._pool.origin} in time"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket's options, and add the connection to those of its pool."""
        self._transport = cast(asyncio.Transport, transport)
        if (connected_socket := transport.get_extra_info("socket")) is not None:
            with suppress(OSError):  # the socket is closed already, which the next step reports
                for option in _SOCKET_OPTIONS:
                    connected_socket.setsockopt(*option)
        self._pool.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; end the exchange when the response is complete, invalid or too
        large."""
        if self._exchange is None or self._parser is None:
            # Bytes without a request could be mistaken for the next request's response.
            self.drop()
            return
        self._received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # Bytes after a complete response spoil the connection, not the response.
            self._keep_alive = False
            if self._response is None:
                self.fail(self._invalid_response_error(error))
                return
        if self._response is not None:
            self._finish_exchange(self._response)
        elif self._received_bytes > MAX_HEAD_BYTES and not self._status:
            self.fail(
                self._protocol_error(f"sent a response head longer than {MAX_HEAD_BYTES} bytes")
            )
        elif self._body_bytes > MAX_BODY_FACTOR * self._pool.max_response_bytes:
            # The rest of the body isn't read: the response ends here.
            self._keep_alive = False
            self._finish_exchange(self._received_response())
        elif self._received_bytes > MAX_HEAD_BYTES + MAX_FRAMING_FACTOR * max(
            self._body_bytes, MAX_HEAD_BYTES
        ):
            # This limits chunk framing and trailers.
            self.fail(self._protocol_error("wrapped its response in too many bytes"))

    # Callbacks of the parser, within `data_received`

    def on_message_begin(self) -> None:
        """Raise an error if the server sends a second response to one request."""
        if self._response is not None:
            raise self._protocol_error("sent more than its response")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header, with its name in lower case."""
        # Trailers are not headers (RFC 9110, 6.5.1).
        if not self._status:
            self._headers.append((name.lower(), value.rstrip()))

    def on_headers_complete(self) -> None:
        """Store the response's status; a 101 completes the response at once."""
        assert self._parser is not None
        self._status = self._parser.get_status_code()
        if self._status == 101:
            # 101 is final, unlike the other 1xx: the bytes after it are no longer HTTP.
            self._keep_alive = False
            self._response = Response(101, self._headers, b"")

    def on_body(self, data: bytes) -> None:
        """Store a part of the body, up to `max_response_bytes`."""
        self._body_bytes += len(data)
        room = self._pool.max_response_bytes - len(self._body)
        if len(data) > room:
            # Drop the bytes beyond the limit: the status alone decides (KN-DP-08).
            data = data[:room]
        if not self._body:
            self._body = data
        elif isinstance(self._body, bytearray):
            self._body += data
        else:
            self._body = bytearray(self._body + data)

    def on_message_complete(self) -> None:
        """Store the complete response; forget an interim one (1xx)."""
        assert self._parser is not None
        if 100 <= self._status <= 199:
            self._status = 0
            self._headers = []
            return
        self._keep_alive = self._parser.should_keep_alive()
        self._response = self._received_response()

    # The end of an exchange and of the connection

    def _received_response(self) -> Response:
        """Return the `Response` with the status, headers and body that have arrived."""
        body = bytes(self._body)
        is_cut = self._body_bytes > len(body)  # at `max_response_bytes`
        return Response(self._status, self._headers, body, is_cut)

    def _finish_exchange(self, response: Response) -> None:
        """Hand the response to the exchange. If another request may follow, make the connection
        idle, else close it."""
        waiter, self._exchange = self._exchange, None
        now = self._pool.loop.time()
        may_be_reused = (
            self._keep_alive
            and now < self._expires_at
            and not self._transport.get_write_buffer_size()
            and not self._transport.is_closing()
        )
        if may_be_reused:
            self._reset()
            self._set_deadline(now + IDLE_SECONDS)
            self._pool.idle.append(self)
        else:
            # No request may follow: the connection is too old or closing, the response ended it, or
            # the response came before the whole request was sent, such as an early 413.
            self._transport.abort()
        if waiter is not None and not waiter.done():
            waiter.set_result(response)

    def eof_received(self) -> None:
        """End the exchange, as the server sends nothing more. Returns None, which makes asyncio
        close the connection."""
        self._on_end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the exchange and remove the connection from its pool."""
        self._on_end(exc)
        if self._timer is not None:
            self._timer.cancel()
        # The parser holds methods of this object: break the cycle now, without the garbage
        # collector.
        self._parser = None
        self._pool.connections.discard(self)
        self.lost.set_result(None)

    def _on_end(self, error: Exception | None) -> None:
        """Handle the connection's end. `error`: why it was lost; None: the server or we have closed
        it. An idle connection leaves the pool. The exchange under way gets its response if the
        connection's end is also the response's end; else the exchange fails."""
        if self._exchange is None:
            self._pool.forget(self)
        elif error is None and self._status and not self._is_framed():
            # A response that doesn't say where it ends is complete when its connection ends.
            self._keep_alive = False
            self._finish_exchange(self._received_response())
        else:
            problem = f"{self._pool.origin} closed the connection before its response ended"
            error_class = DeliveryError if self._received_bytes else Unanswered
            reason = problem if error is None else f"{problem}: {error}"
            self.fail(error_class("broken", reason))

    def _is_framed(self) -> bool:
        """Whether the response says where it ends; otherwise it ends with the connection."""
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self._headers)

    def _invalid_response_error(self, error: Exception) -> DeliveryError:
        """Return the error of a response that is no valid HTTP. `error`: the parser's error. If a
        callback above has caused it by a `DeliveryError`, that is returned; else a new one with the
        text of `error`."""
        if isinstance(error.__context__, DeliveryError):
            return error.__context__
        return self._protocol_error(f"sent no valid HTTP response: {error}")

    def _protocol_error(self, problem: str) -> DeliveryError:
        """Return the error for a response that breaks the rules of HTTP or our limits. `problem`: a
        phrase whose subject is the origin, such as "sent no valid HTTP response"."""
        return DeliveryError("broken", f"{self._pool.origin} {problem}")
