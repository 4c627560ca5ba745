"""HTTP/1.1 for the receiver, on the callbacks of the parser llhttp, which is faster than ASGI.

uvicorn runs this protocol (`Config(http=...)`) and still handles sockets, signals and the graceful
stop; events don't pass through ASGI (docs/decisions/0005). A connection has one request in memory
at a time unless the client pipelines; answers are sent in order (`responses`).

More than 400 lines, so that all effects of a request on its connection are in one place: many
methods may refuse the request, or must know whether more are taken. Parts would call each other for
each event, and share the connection's state all the same.

Not supported: HTTP/2, upgrades (an offer is ignored), compressed requests, and requests that exceed
`Limits` or arrive too slowly. Not here: TLS (`tls_listener`), the answers' order (`responses`),
what all connections share (`connections`), and which events are direct (`direct`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, cast

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from knafka.receiver import answers
from knafka.receiver.address import ROOTS, address_of, path_of
from knafka.receiver.answers import Answer
from knafka.receiver.connections import Connections
from knafka.receiver.direct import is_direct
from knafka.receiver.encryption import CAME_ENCRYPTED
from knafka.receiver.limits import HEADER_OVERHEAD, header_bytes, leaves_room
from knafka.receiver.responses import PIPELINED, ResponseQueue, Slot

log = logging.getLogger(__name__)

IDLE_TIMEOUT: Final = 75.0
"""Seconds that a connection may be silent between requests: longer than a client's usual keep-alive
of 60."""
STALLED_REQUEST_TIMEOUT: Final = 30.0
"""Seconds without progress after which a started request is refused."""
REQUEST_DEADLINE: Final = 120.0
"""Seconds within which a whole request must arrive."""
DIRECT_LINGER_TIMEOUT: Final = 2.0
"""Seconds for which a direct sender's idle connection stays open when the server stops. The next
request may be on its way already; its answer says `Connection: close`. Less than
`serving.GRACEFUL_TIMEOUT`."""
PROGRESS_BYTES: Final = 16 * 1024
"""Bytes that must arrive in each `STALLED_REQUEST_TIMEOUT`: 546 per second, as common servers
require."""
UNCOUNTED_HEAD: Final = 16 * 1024
"""Bytes of a request's head that are parsed before its headers are counted: at most 4,096
headers."""
BODY_PARTS: Final = 64
"""Most parts of a body that are kept separately; more are joined, as each part takes 40 bytes of
memory besides its data."""
_CHECKED_NAME_LENGTHS: Final = frozenset(
    {len(b"host"), len(b"transfer-encoding"), len(b"content-encoding")}
)
"""Lengths of the names of the headers that `_check_header` checks: comparing these first is
faster."""

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
"""The interim answer to `Expect: 100-continue`."""


class _RefusedRequest(Exception):
    """Raised in a callback of the parser to make it stop parsing a request that was refused."""


class ReceiverProtocol(asyncio.Protocol):
    """One client connection, created by uvicorn with its own keyword arguments."""

    __slots__ = (
        "_address",
        "_body",
        "_body_bytes",
        "_body_limit",
        "_closing",
        "_counts_held",
        "_counts_while_parsing",
        "_deadline",
        "_has_answered_expectation",
        "_header_bytes",
        "_header_limit",
        "_headers",
        "_heard_at",
        "_hosts",
        "_idle_since",
        "_in_body",
        "_in_request",
        "_ingest",
        "_is_direct",
        "_limits",
        "_max_headers",
        "_parser",
        "_progressed_at",
        "_progressed_bytes",
        "_received_bytes",
        "_refusal",
        "_responses",
        "_route",
        "_routed_url",
        "_server_stops",
        "_shared",
        "_slots",
        "_time",
        "_too_large",
        "_transport",
        "_unfinished_bytes",
        "_url",
        "_uvicorn_connections",
    )
    __deletable__ = ("_parser",)  # read by mypyc: a compiled class keeps all other attributes

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Prepare for the first request; `app_state` holds the receiver's `Connections` as
        `connections`. `_loop` isn't used."""
        self._shared: Connections = app_state["connections"]
        self._ingest = self._shared.ingest
        self._limits = self._ingest.limits
        self._header_limit = self._limits.header_bytes
        self._max_headers = self._limits.headers
        self._uvicorn_connections = server_state.connections  # the set of the open connections
        self._time = self._shared.loop.time
        self._parser = httptools.HttpRequestParser(self)
        self._closing = False  # whether no more requests are taken
        self._server_stops = False  # whether `shutdown` was called
        self._in_request = False  # whether a request has begun that isn't whole
        # Whether the bytes held of the present request are counted, as it didn't come in one read.
        self._counts_held = False
        self._begin_request()
        self._update_route(b"")

    def _begin_request(self) -> None:
        """Reset the state of the request being received."""
        self._headers: list[tuple[bytes, bytes]] = []
        self._header_bytes = 0
        self._url = b""
        self._body: list[bytes | bytearray] = []
        self._body_bytes = 0
        self._received_bytes = 0  # the request's share of the server's `receiving_bytes`
        self._in_body = False  # whether the headers are complete
        self._has_answered_expectation = False  # whether `_answer_expectation` was called
        self._hosts = 0  # number of the request's `Host` headers
        self._refusal: Answer | None = None  # the answer if the request's head is wrong
        # Whether URL, headers and trailers are counted as they are parsed: once the held bytes are
        # counted, and always after the head.
        self._counts_while_parsing = self._counts_held

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start a connection, or refuse it if there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        self._responses = ResponseQueue(self._transport, self._shared.loop)
        self._slots = self._responses.slots
        self._is_direct = is_direct(transport)
        self._heard_at = self._idle_since = self._time()  # when bytes, and a whole request, came
        self._deadline = 0.0  # when the request being received must be whole
        # When the request last made progress, and the bytes that were held of it then.
        self._progressed_at, self._progressed_bytes = self._heard_at, 0
        self._shared.open.add(self)
        # uvicorn declares only its own protocols.
        self._uvicorn_connections.add(self)  # type: ignore[arg-type]
        if self._shared.has_too_many:
            self._refuse(answers.CROWDED)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release all that the connection holds, as it has ended; `exc` isn't used."""
        self._closing = True
        self._responses.close()
        self._forget_body()
        # The parser holds methods of this object: break the cycle now, without the garbage
        # collector.
        del self._parser
        self._shared.open.discard(self)
        self._uvicorn_connections.discard(self)

    def eof_received(self) -> bool:
        """Note that the sender sends no more. Returns True if the connection must stay open, as
        answers are pending."""
        if not self._slots:
            return False
        self._end_after_answers()
        return True

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and count those that are held of a request that isn't whole."""
        if self._closing:
            return
        self._heard_at = self._time()
        if self._in_request or (len(data) > UNCOUNTED_HEAD and self._must_count(data)):
            self._receive_counting(data)
            return
        self._parse(data)
        if self._in_request:
            self._start_timers()
            self._count_held()

    def _must_count(self, data: bytes) -> bool:
        """Whether the headers of a request must be counted while its first bytes, `data`, are
        parsed: there are more bytes than the headers may have together, or the headers don't end
        within the first `UNCOUNTED_HEAD` bytes."""
        return len(data) > self._header_limit or data.find(b"\r\n\r\n", 0, UNCOUNTED_HEAD) < 0

    def _start_timers(self) -> None:
        """Start the deadlines of a request whose first bytes have just come."""
        self._deadline = self._heard_at + REQUEST_DEADLINE
        self._progressed_at, self._progressed_bytes = self._heard_at, 0

    def _receive_counting(self, data: bytes) -> None:
        """Parse bytes of a request that has begun earlier or whose first bytes are many. Before and
        after that, count the bytes held of the request, and refuse it if they exceed the limits.

        Most requests arrive whole in one read below the limit of headers; these are not counted.
        """
        if not self._in_request:
            self._start_timers()
        self._count_held()
        headers, bytes_before = self._headers, self._header_bytes + self._body_bytes
        self._parse(data)
        # `_begin_request` makes a new list: the request has ended, and another may have begun.
        has_begun_another = self._headers is not headers
        if has_begun_another:
            self._start_timers()
        if self._in_request:
            # How many of `data`'s bytes the parser has handed over for the present request.
            counted_bytes = self._header_bytes + self._body_bytes
            if not has_begun_another:
                counted_bytes -= bytes_before
            if not counted_bytes and not has_begun_another:
                # None: all went into an unfinished header or trailer, which the parser still holds.
                self._count_header_bytes(len(data))
            else:
                # Outside a body, the other bytes are in an unfinished header, or belonged to an
                # earlier request. Count all of them as in a header: at worst that is too much.
                self._unfinished_bytes = 0 if self._in_body else max(0, len(data) - counted_bytes)
            self._count_held()
        else:
            self._counts_held = self._counts_while_parsing = False

    def _count_held(self) -> None:
        """Count the bytes that are held of an unfinished request, and note its progress. Refuse the
        request if it has too many headers, or if there is no room for its bytes; else check its
        head once this is whole (`_answer_expectation`)."""
        if self._closing:
            return
        if not self._counts_held:
            self._counts_held = self._counts_while_parsing = True
            self._header_bytes = len(self._url) + header_bytes(self._headers)
            self._unfinished_bytes = 0  # bytes of a header that the parser holds
        headers = self._headers
        if len(headers) > self._max_headers:
            self._refuse(answers.TOO_MANY_HEADERS)
            return
        if len(self._body) > BODY_PARTS:
            self._join_parts()
        held = self._body_bytes + self._header_bytes + self._unfinished_bytes
        held += HEADER_OVERHEAD * len(headers)
        shared = self._shared
        # Replace this request's share, as it was counted last, in the sum of all.
        all_held = shared.receiving_bytes = shared.receiving_bytes + held - self._received_bytes
        self._received_bytes = held
        if held - self._progressed_bytes >= PROGRESS_BYTES:
            self._progressed_at, self._progressed_bytes = self._heard_at, held
        # The first comparison is part of `_has_room`, and spares most requests the call.
        if held > self._limits.in_flight_bytes - all_held and not self._has_room():
            shared.make_room()
            if not self._has_room():
                self._refuse(answers.BUSY)
                return
        if self._in_body and not self._has_answered_expectation:
            self._answer_expectation()

    def _has_room(self) -> bool:
        """Whether the memory limits allow the bytes that this request holds."""
        all_held = self._shared.receiving_bytes
        return leaves_room(self._received_bytes, all_held, self._limits.in_flight_bytes)

    def _join_parts(self) -> None:
        """Join the body's parts, as the body arrives in tiny chunks; further calls extend the
        joined part (a `bytearray`) instead of copying it."""
        first_part, second_part, *more_parts = self._body
        whole = (
            second_part
            if isinstance(second_part, bytearray)
            else bytearray(first_part + second_part)
        )
        whole += b"".join(more_parts)
        # Two parts, so that the next call finds the joined part in second place.
        self._body = [b"", whole]

    def _answer_expectation(self) -> None:
        """Refuse a request whose Content-Length is too large; else, if it has the header `Expect:
        100-continue`, tell its sender to send the body. Called once for each request whose head
        has come, but whose body isn't whole yet."""
        self._has_answered_expectation = True
        expects_continue = False
        for name, value in self._headers:
            name = name.lower()
            if name == b"content-length" and int(value) > self._body_limit:
                self._refuse(self._too_large)
                return
            if name == b"expect":
                expects_continue = value.lower() == b"100-continue"
        if expects_continue and not self._slots:
            # While earlier requests are unanswered, the sender would take it for an answer to one
            # of them. It may be left out: senders wait only briefly for it.
            self._transport.write(CONTINUE)

    def _parse(self, data: bytes) -> None:
        """Feed received bytes to the parser, and refuse a request that isn't valid HTTP."""
        while data and not self._closing:
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                parsed_bytes = upgrade.args[0]
                data = self._remove_upgrade(data[parsed_bytes:])
            except httptools.HttpParserCallbackError as error:
                if isinstance(error.__context__, _RefusedRequest):
                    break
                log.exception("a request broke the receiver")
                self.abort()
            except httptools.HttpParserError:
                self._refuse(answers.MALFORMED)

    def _remove_upgrade(self, rest: bytes) -> bytes:
        """Remove the offer of an upgrade from the request being parsed. Returns bytes that are to
        be parsed in its place: the head without the offer, and `rest`, the bytes after the head.
        Returns none if the request is refused, as its method is CONNECT.

        The parser takes the bytes after an upgrade's head for another protocol's, so the event's
        data would be lost. Java's HttpClient offers h2c with its first request.
        """
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._refuse(answers.NOT_ALLOWED)
            return b""
        version = self._parser.get_http_version().encode()
        head = b"%b %b HTTP/%b\r\n" % (method, self._url, version)
        head += b"".join(
            [b"%b: %b\r\n" % header for header in self._headers if header[0].lower() != b"upgrade"]
        )
        self._parser = httptools.HttpRequestParser(self)
        self._forget_body()
        self._begin_request()
        return head + b"\r\n" + rest

    def pause_writing(self) -> None:
        """Stop reading requests, as the client doesn't read its answers."""
        self._responses.set_writable(False)

    def resume_writing(self) -> None:
        """Read requests again, as the client has read its answers."""
        self._responses.set_writable(True)

    # uvicorn's server

    def shutdown(self) -> None:
        """Answer the requests under way, take no more, and close, as the server stops."""
        self._server_stops = True
        if self._closing or self._in_request:
            return
        if self._slots:
            self._end_after_answers()
        elif self._is_direct:
            self._shared.loop.call_later(DIRECT_LINGER_TIMEOUT, self._close_if_idle)
        else:
            self._transport.close()

    def _close_if_idle(self) -> None:
        """Close a direct sender's connection unless another request has begun."""
        if not self._closing and not self._in_request:
            self._transport.close()

    def _end_after_answers(self) -> None:
        """Take no more requests, and close the connection after the last pending answer; there must
        be one."""
        self._closing = self._responses.ends = True
        self._in_request = False
        self._forget_body()
        self._slots[-1].last = True
        self._slots[-1].is_cut = False

    # httptools' parser

    def on_message_begin(self) -> None:
        """Note that a request has begun to arrive; called by the parser."""
        self._in_request = True

    def on_url(self, url: bytes) -> None:
        """Store a part of the request's URL, and count its bytes if the head is counted as it
        is parsed."""
        self._url += url
        if self._counts_while_parsing:
            self._count_header_bytes(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header, and refuse the request if the counted headers exceed the limits. Trailers
        are counted, but not stored."""
        if self._counts_while_parsing:
            self._count_header_bytes(len(name) + len(value) + 4)
            if len(self._headers) >= self._max_headers and not self._closing:
                self._refuse(answers.TOO_MANY_HEADERS)
            if self._closing:
                raise _RefusedRequest
            if self._in_body:
                return  # trailers are not merged into the headers (RFC 9110, 6.5.1)
        self._headers.append((name, value))
        if len(name) in _CHECKED_NAME_LENGTHS:
            self._check_header(name.lower(), value.strip(b" \t").lower())

    def _check_header(self, name: bytes, value: bytes) -> None:
        """Count `Host` headers (RFC 9112, 3.2), and set `_refusal` if the request's transfer coding
        is unknown (6.1), or if its data are compressed, as no attribute of an event can say so.
        `name` and `value` are in lower case."""
        if name == b"host":
            self._hosts += 1
        elif name == b"transfer-encoding" and value != b"chunked":
            self._refusal = answers.NOT_IMPLEMENTED
        elif name == b"content-encoding" and value not in (b"", b"identity"):
            self._refusal = answers.ENCODED

    def _count_header_bytes(self, size: int) -> None:
        """Count `size` more bytes of headers, and refuse the request if all together are too
        many."""
        self._header_bytes += size
        if self._header_bytes > self._limits.header_bytes:
            self._refuse(answers.HEADERS_TOO_LARGE)

    def on_headers_complete(self) -> None:
        """Find the route, and refuse requests whose head is wrong."""
        if self._closing or self._parser.should_upgrade():
            return
        self._in_body = self._counts_while_parsing = True
        if self._url != self._routed_url:
            self._update_route(self._url)
        if len(self._headers) > self._max_headers:
            self._refusal = answers.TOO_MANY_HEADERS
        # Exactly one Host is wanted; HTTP/1.0 may leave it out.
        if self._hosts != 1 and (self._hosts or self._parser.get_http_version() == "1.1"):
            self._refusal = answers.NO_HOST
        if self._refusal is not None:
            self._refuse(self._refusal)

    def _update_route(self, url: bytes) -> None:
        """Look up the route of this URL, and store both, as a connection's next requests often have
        the same URL."""
        path = path_of(url)
        # For a root path the host decides. Then no URL is stored, so that the route is looked up
        # for each request: the next one may have another host.
        self._routed_url = b"" if path in ROOTS else url
        self._address = address = address_of(path, self._headers)
        self._route = self._ingest.find_route(address)
        self._body_limit, self._too_large = self._ingest.body_limit(address)

    def forget_route(self) -> None:
        """Look up the route of the next request again; a request being received keeps its route."""
        self._routed_url = b""  # equals no request's URL

    def on_body(self, body: bytes) -> None:
        """Store a part of the body; a body beyond the route's limit is refused."""
        if self._closing:
            return
        self._body.append(body)
        self._body_bytes += len(body)
        if self._body_bytes > self._body_limit:
            self._refuse(self._too_large)

    def on_message_complete(self) -> None:
        """Hand the whole request to `ingest`, with a slot for the answer, and get ready for the
        next request."""
        if self._closing or self._parser.should_upgrade():
            return
        body = b"".join(self._body)  # a single part is returned as it is, not copied
        if self._received_bytes:
            self._forget_body()
        method = self._parser.get_method()
        # Connections of HTTP/1.0 are closed: to keep one, the answer would need another header.
        is_last = (
            self._server_stops
            or not self._parser.should_keep_alive()
            or self._parser.get_http_version() == "1.0"
        )
        slot = Slot(self._responses, method == b"HEAD", is_last)
        self._slots.append(slot)
        headers = self._headers
        self._begin_request()
        self._in_request = False
        self._idle_since = self._heard_at
        if is_last:
            self._closing = self._responses.ends = True
        if method == b"POST" and self._route is not None:
            self._shared.direct_requests += self._is_direct  # True counts as 1
            self._ingest.receive(self._route, headers, body, slot)
        else:
            self._ingest.handle(method, self._address, headers, body, slot)
        if len(self._slots) >= PIPELINED:
            self._responses.regulate_reading()

    def _forget_body(self) -> None:
        """Drop the body, and subtract the request's bytes from those that all connections are
        receiving."""
        self._shared.receiving_bytes -= self._received_bytes
        self._received_bytes = self._body_bytes = 0
        self._body = []

    def _refuse(self, answer: Answer) -> None:
        """Answer a request before it is whole, and take no more requests from this connection."""
        if self._closing:
            return
        self._forget_body()
        self._closing = self._responses.ends = True
        self._in_request = True  # the rest of the request may still arrive
        self._headers = []
        slot = Slot(self._responses, self._parser.get_method() == b"HEAD", True, is_cut=True)
        # Until the head is whole, `_address` is the previous request's.
        slot.answer = self._ingest.count_refusal(self._address if self._in_body else b"", answer)
        self._slots.append(slot)
        self._responses.flush()

    @property
    def last_progress_at(self) -> float | None:
        """When the request being received last made progress (the loop's time); None: none is being
        received."""
        return self._progressed_at if self._in_request and not self._closing else None

    def give_up_request(self) -> None:
        """Refuse the request being received with 503, to free its memory."""
        self._refuse(answers.BUSY)

    def abort(self) -> None:
        """Cut the connection without an answer, and take no more requests from it."""
        self._closing = self._responses.ends = True
        self._transport.abort()

    def expire(self, now: float) -> None:
        """Close the connection, or refuse its request, if at `now` (the loop's time) it has been
        silent or too slow for too long; called every few seconds."""
        silent_seconds = now - self._heard_at
        if self._transport.is_closing():
            # The last answer can't be written, as the client doesn't read.
            if silent_seconds > STALLED_REQUEST_TIMEOUT:
                self._transport.abort()
        elif self._in_request:
            seconds_without_progress = max(silent_seconds, now - self._progressed_at)
            if seconds_without_progress > STALLED_REQUEST_TIMEOUT or now > self._deadline:
                self._refuse(answers.TIMED_OUT)
        elif not self._slots and now - self._idle_since > IDLE_TIMEOUT:
            self._transport.close()


class EncryptedReceiverProtocol(ReceiverProtocol):
    """A connection through our own TLS. It adds to each request the header (`CAME_ENCRYPTED`) that
    a gateway would add."""

    __slots__ = ()

    def on_message_begin(self) -> None:
        """Begin a request, and mark it as having come encrypted."""
        super().on_message_begin()
        self._headers.append(CAME_ENCRYPTED)
