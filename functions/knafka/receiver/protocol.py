"""HTTP/1.1 for the receiver, straight on llhttp: the fast way in.

uvicorn runs it (`Config(http=...)`) and so keeps the sockets, the signals and the graceful stop;
an event never passes through ASGI (docs/decisions/0005). One request is in memory at a time per
connection unless the client pipelines; answers leave in order (`responses`).

It is longer than other files as whatever a request does to a connection is to be seen in one place.

Not here: HTTP/2, upgrades (a request that offers one is answered as if it hadn't), TLS
(`tls_listener`), compressed requests, and those that outgrow `Limits` or arrive too slowly.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, cast

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from knafka.core.addresses import is_loopback
from knafka.receiver import answers
from knafka.receiver.address import ROOTS, address_of, path_of
from knafka.receiver.answers import Answer
from knafka.receiver.connections import Connections
from knafka.receiver.encryption import CAME_ENCRYPTED
from knafka.receiver.ingest import HEADER_OVERHEAD, header_bytes, leaves_room
from knafka.receiver.responses import PIPELINED, ResponseQueue, Slot

log = logging.getLogger(__name__)

IDLE_TIMEOUT: Final = 75.0
"""Seconds that a connection may say nothing: longer than the usual client's keep-alive of 60."""
REQUEST_TIMEOUT: Final = 30.0
"""Seconds that a started request may stand still before it is given up."""
REQUEST_DEADLINE: Final = 120.0
"""Seconds that a request may take to arrive, however little of it comes at a time."""
LINGER: Final = 2.0
"""Seconds that an idle connection of a direct sender stays at the end: its next request may be on
its way, and is answered with `Connection: close`. Less than `serving.GRACEFUL_TIMEOUT`."""
PROGRESS_BYTES: Final = 16 * 1024
"""Bytes of which some must come in each `REQUEST_TIMEOUT`: 546 a second, as common servers want."""
UNCOUNTED_HEAD: Final = 16 * 1024
"""Bytes of a head that are parsed before its headers are counted: they are 4,096 at most."""
BODY_PARTS: Final = 64
"""Parts of a body that are kept as they came; more are put together, as each takes 40 bytes."""
_NOTED: Final = frozenset({len(b"host"), len(b"transfer-encoding"), len(b"content-encoding")})
"""How long the names are of headers that are looked at before the request is whole."""

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class _Refused(Exception):
    """Raised in the parser's callback, to have it parse no more of a request that was refused."""


class ReceiverProtocol(asyncio.Protocol):
    """One client connection. uvicorn makes it, with its own keyword arguments."""

    __slots__ = (
        "_address",
        "_body",
        "_body_bytes",
        "_body_limit",
        "_careful",
        "_closing",
        "_counting",
        "_deadline",
        "_direct",
        "_flaw",
        "_header_bytes",
        "_header_limit",
        "_headers",
        "_heard",
        "_hosts",
        "_idle_since",
        "_in_body",
        "_in_request",
        "_ingest",
        "_invited",
        "_limits",
        "_marked_at",
        "_marked_bytes",
        "_most_headers",
        "_parser",
        "_received_bytes",
        "_responses",
        "_route",
        "_routed_url",
        "_server",
        "_shared",
        "_slots",
        "_stopping",
        "_time",
        "_too_large",
        "_transport",
        "_unfinished",
        "_url",
    )

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._shared: Connections = app_state["connections"]
        self._ingest = self._shared.ingest
        self._limits = self._ingest.limits
        self._header_limit = self._limits.header_bytes
        self._most_headers = self._limits.headers
        self._server = server_state.connections
        self._time = self._shared.loop.time
        self._parser = httptools.HttpRequestParser(self)
        self._closing = False
        self._stopping = False
        self._in_request = False
        self._counting = False
        self._begin()
        self._find_route(b"")

    def _begin(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._header_bytes = 0
        self._url = b""
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._received_bytes = 0
        self._in_body = self._invited = False
        self._hosts = 0
        self._flaw: Answer | None = None
        self._careful = self._counting

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._responses = ResponseQueue(self._transport, self._shared.loop)
        self._slots = self._responses.slots
        self._direct = _is_direct(transport)
        self._heard = self._idle_since = self._time()
        self._deadline = 0.0
        self._marked_at, self._marked_bytes = self._heard, 0
        self._shared.open.add(self)
        self._server.add(self)  # type: ignore[arg-type]  # uvicorn names its own protocols only
        if self._shared.are_too_many:
            self._refuse(answers.CROWDED)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._responses.close()
        self._forget_body()
        # The parser holds methods of this object: let the cycle go now, not when it is collected.
        del self._parser
        self._shared.open.discard(self)
        self._server.discard(self)

    def eof_received(self) -> bool:
        """Who sends no more may still wait for answers; True keeps the connection for them."""
        if not self._slots:
            return False
        self._end_after_answers()
        return True

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._heard = self._time()
        if self._in_request or (len(data) > UNCOUNTED_HEAD and self._is_long(data)):
            self._receive_counting(data)
            return
        self._parse(data)
        if self._in_request:
            self._time_request()
            self._count()

    def _is_long(self, data: bytes) -> bool:
        """Whether a read at a request's beginning is to be counted while it is parsed."""
        return len(data) > self._header_limit or data.find(b"\r\n\r\n", 0, UNCOUNTED_HEAD) < 0

    def _time_request(self) -> None:
        """A request has begun that isn't whole yet."""
        self._deadline = self._heard + REQUEST_DEADLINE
        self._marked_at, self._marked_bytes = self._heard, 0

    def _receive_counting(self, data: bytes) -> None:
        """Read on in a request that isn't whole: what is held of it has its limits.

        One that comes whole, in a read below the limit of headers, is not counted: most are.
        """
        if not self._in_request:
            self._time_request()
        self._count()
        headers, counted = self._headers, self._header_bytes + self._body_bytes
        self._parse(data)
        is_another = self._headers is not headers
        if is_another:
            self._time_request()
        if self._in_request:
            taken = self._header_bytes + self._body_bytes - (0 if is_another else counted)
            if not taken and not is_another:
                # All of it went into a header, or a trailer, that the parser holds until then.
                self._count_header(len(data))
            else:
                # The rest of it may have, or was an earlier request's.
                self._unfinished = 0 if self._in_body else max(0, len(data) - taken)
            self._count()
        else:
            self._counting = self._careful = False

    def _count(self) -> None:
        """Count what is held of a request that isn't whole, now and from now on."""
        if self._closing:
            return
        if not self._counting:
            self._counting = self._careful = True
            self._header_bytes = len(self._url) + header_bytes(self._headers)
            self._unfinished = 0
        headers = self._headers
        if len(headers) > self._most_headers:
            self._refuse(answers.TOO_MANY_HEADERS)
            return
        if len(self._body) > BODY_PARTS:
            self._join_parts()
        held = self._body_bytes + self._header_bytes + self._unfinished
        held += HEADER_OVERHEAD * len(headers)
        shared = self._shared
        together = shared.receiving_bytes = shared.receiving_bytes + held - self._received_bytes
        self._received_bytes = held
        if held - self._marked_bytes >= PROGRESS_BYTES:
            self._marked_at, self._marked_bytes = self._heard, held
        if held > self._limits.in_flight_bytes - together and not self._has_room():
            shared.make_room()
            if not self._has_room():
                self._refuse(answers.BUSY)
                return
        if self._in_body and not self._invited:
            self._invite()

    def _has_room(self) -> bool:
        together = self._shared.receiving_bytes
        return leaves_room(self._received_bytes, together, self._limits.in_flight_bytes)

    def _join_parts(self) -> None:
        """Keep a body that comes in tiny chunks as one piece, which grows."""
        first, second, *rest = self._body
        whole = second if isinstance(second, bytearray) else bytearray(first + second)
        whole += b"".join(rest)
        # Two, so that they are joined into bytes in the end.
        self._body = [b"", whole]  # type: ignore[list-item]

    def _invite(self) -> None:
        """The head is whole and the body isn't: whether the rest of it may come."""
        self._invited = True
        expects_continue = False
        for name, value in self._headers:
            name = name.lower()
            if name == b"content-length" and int(value) > self._body_limit:
                self._refuse(self._too_large)
                return
            if name == b"expect":
                expects_continue = value.lower() == b"100-continue"
        if expects_continue and not self._slots:
            # Behind earlier requests it would be taken for theirs; senders don't wait for ever.
            self._transport.write(CONTINUE)

    def _parse(self, data: bytes) -> None:
        while data and not self._closing:
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade(data[upgrade.args[0] :])
            except httptools.HttpParserCallbackError as error:
                if isinstance(error.__context__, _Refused):
                    break
                log.exception("a request broke the receiver")
                self._closing = self._responses.ends = True
                self._transport.abort()
            except httptools.HttpParserError:
                self._refuse(answers.MALFORMED)

    def _without_upgrade(self, rest: bytes) -> bytes:
        """The request that offers an upgrade, without the offer, and what follows it.

        The parser takes what comes after such a head for another protocol's, and so would lose
        the event's data: Java's HttpClient offers h2c with its first request.
        """
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._refuse(answers.NOT_ALLOWED)
            return b""
        head = b"%b %b HTTP/%b\r\n" % (
            method,
            self._url,
            self._parser.get_http_version().encode(),
        )
        head += b"".join(
            [b"%b: %b\r\n" % each for each in self._headers if each[0].lower() != b"upgrade"]
        )
        self._parser = httptools.HttpRequestParser(self)
        self._forget_body()
        self._begin()
        return head + b"\r\n" + rest

    def pause_writing(self) -> None:
        self._responses.set_writable(False)

    def resume_writing(self) -> None:
        self._responses.set_writable(True)

    # uvicorn's server

    def shutdown(self) -> None:
        """Answer what is under way, take no more, and close."""
        self._stopping = True
        if self._closing or self._in_request:
            return
        if self._slots:
            self._end_after_answers()
        elif self._direct:
            self._shared.loop.call_later(LINGER, self._close_if_idle)
        else:
            self._transport.close()

    def _close_if_idle(self) -> None:
        if not self._closing and not self._in_request:
            self._transport.close()

    def _end_after_answers(self) -> None:
        self._closing = self._responses.ends = True
        self._in_request = False
        self._forget_body()
        self._slots[-1].last = True
        self._slots[-1].is_cut = False

    # httptools' parser

    def on_message_begin(self) -> None:
        self._in_request = True

    def on_url(self, url: bytes) -> None:
        self._url += url
        if self._careful:
            self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._careful:
            self._count_header(len(name) + len(value) + 4)
            if len(self._headers) >= self._most_headers and not self._closing:
                self._refuse(answers.TOO_MANY_HEADERS)
            if self._closing:
                raise _Refused
            if self._in_body:
                return  # a trailer: it may not say what a header would have (RFC 9110, 6.5.1)
        self._headers.append((name, value))
        if len(name) in _NOTED:
            self._note(name.lower(), value.strip(b" \t").lower())

    def _note(self, name: bytes, value: bytes) -> None:
        """What RFC 9112 wants refused (3.2 and 6.1), and data that we couldn't hand on as it is: no
        attribute of an event says that it is compressed."""
        if name == b"host":
            self._hosts += 1
        elif name == b"transfer-encoding" and value != b"chunked":
            self._flaw = answers.NOT_IMPLEMENTED
        elif name == b"content-encoding" and value not in (b"", b"identity"):
            self._flaw = answers.ENCODED

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self._limits.header_bytes:
            self._refuse(answers.HEADERS_TOO_LARGE)

    def on_headers_complete(self) -> None:
        if self._closing or self._parser.should_upgrade():
            return
        self._in_body = self._careful = True
        if self._url != self._routed_url:
            self._find_route(self._url)
        if len(self._headers) > self._most_headers:
            self._flaw = answers.TOO_MANY_HEADERS
        if self._hosts != 1 and (self._hosts or self._parser.get_http_version() == "1.1"):
            self._flaw = answers.NO_HOST
        if self._flaw is not None:
            self._refuse(self._flaw)

    def _find_route(self, url: bytes) -> None:
        """Find what this URL leads to; the next requests of a connection often have the same."""
        path = path_of(url)
        # Where the host decides, the next request of a connection may have another.
        self._routed_url = b"" if path in ROOTS else url
        self._address = address = address_of(path, self._headers)
        self._route = self._ingest.find(address)
        self._body_limit, self._too_large = self._ingest.body_limit(address)

    def forget_route(self) -> None:
        """What a URL leads to has changed; a request that is being received goes where it did."""
        self._routed_url = b""

    def on_body(self, body: bytes) -> None:
        if self._closing:
            return
        self._body.append(body)
        self._body_bytes += len(body)
        if self._body_bytes > self._body_limit:
            self._refuse(self._too_large)

    def on_message_complete(self) -> None:
        if self._closing or self._parser.should_upgrade():
            return
        parts = self._body
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if self._received_bytes:
            self._forget_body()
        method = self._parser.get_method()
        # To HTTP/1.0 we would have to say that the connection is kept: it isn't.
        last = (
            self._stopping
            or not self._parser.should_keep_alive()
            or self._parser.get_http_version() == "1.0"
        )
        slot = Slot(self._responses, method == b"HEAD", last)
        self._slots.append(slot)
        headers = self._headers
        self._begin()
        self._in_request = False
        self._idle_since = self._heard
        if last:
            self._closing = self._responses.ends = True
        if method == b"POST" and self._route is not None:
            self._shared.direct_requests += self._direct
            self._ingest.receive(self._route, headers, body, slot)
        else:
            self._ingest.handle(method, self._address, headers, body, slot)
        if len(self._slots) >= PIPELINED:
            self._responses.regulate()

    def _forget_body(self) -> None:
        self._shared.receiving_bytes -= self._received_bytes
        self._received_bytes = self._body_bytes = 0
        self._body = []

    def _refuse(self, answer: Answer) -> None:
        """Answer before the request is whole, and take no more from this connection."""
        if self._closing:
            return
        self._forget_body()
        self._closing = self._responses.ends = True
        self._in_request = True  # the rest of it is still to come
        self._headers = []
        slot = Slot(self._responses, self._parser.get_method() == b"HEAD", True, is_cut=True)
        # Before the head is whole, the address is still the last request's.
        slot.answer = self._ingest.refuse(self._address if self._in_body else b"", answer)
        self._slots.append(slot)
        self._responses.flush()

    @property
    def slow_since(self) -> float | None:
        return self._marked_at if self._in_request and not self._closing else None

    def make_way(self) -> None:
        self._refuse(answers.BUSY)

    def expire(self, now: float) -> None:
        """Close a connection that has been silent for too long; called every few seconds."""
        silent = now - self._heard
        if self._transport.is_closing():
            # Its last answer can't be written: the client doesn't read.
            if silent > REQUEST_TIMEOUT:
                self._transport.abort()
        elif self._in_request:
            slow = max(silent, now - self._marked_at)
            if slow > REQUEST_TIMEOUT or now > self._deadline:
                self._refuse(answers.TIMED_OUT)
        elif not self._slots and now - self._idle_since > IDLE_TIMEOUT:
            self._transport.close()


def _is_direct(transport: asyncio.BaseTransport) -> bool:
    """Whether the sender isn't on this machine, as Knative's proxy and func's host are."""
    host = _peer(transport)
    return bool(host) and not is_loopback(host)


def _peer(transport: asyncio.BaseTransport) -> str:
    """The sender's address; empty where it has none, as on a socket of Unix."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""


class EncryptedReceiverProtocol(ReceiverProtocol):
    """One connection through our own TLS: its requests say so, as a gateway's do."""

    __slots__ = ()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._headers.append(CAME_ENCRYPTED)
