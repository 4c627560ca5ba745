"""The HTTP client against scripted servers that speak raw bytes; every test on both event loops."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import socket
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import uvloop

from knafka.clients import http_subscriber
from knafka.clients.http_subscriber import MAX_HEAD_BYTES, HttpSubscriber
from knafka.clients.subscriber import Response, Target
from knafka.core.errors import DeliveryError, InvalidDocument

ACCEPTED = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\n\r\n"
BIG = b"b" * 8_000_000
LOOPS = ["asyncio", "uvloop"]
LONG = 10.0
"""Seconds; a timeout that must not pass in a test."""


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(new_loop: Callable[[], asyncio.AbstractEventLoop], **arguments: Any) -> None:
        mishaps: list[dict[str, Any]] = []
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.get_loop().set_exception_handler(lambda _, mishap: mishaps.append(mishap))
            runner.run(asyncio.wait_for(test(**arguments), LONG))
        assert mishaps == []

    parameters = inspect.signature(test).parameters
    extra = inspect.Parameter("new_loop", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = inspect.Signature([*parameters.values(), extra])  # type: ignore[attr-defined]
    loops = [asyncio.new_event_loop, uvloop.new_event_loop]
    both: Callable[..., None] = pytest.mark.parametrize("new_loop", loops, ids=LOOPS)(run)
    return both


@pytest.fixture(autouse=True)
def idle_connections_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a connection which is closed was closed for the reason under test."""
    monkeypatch.setattr(http_subscriber, "IDLE_SECONDS", 1000.0)


class Connection:
    """The server's side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> bytes:
        """The next whole request."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.rpartition(b"content-length: ")[2])
        return head + await self.reader.readexactly(length)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """Close without the courtesy of a FIN."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def ended(self) -> None:
        """Wait until the client has closed its side."""
        try:
            while await self.reader.read(65_536):
                pass
        except ConnectionError:
            pass


Script: TypeAlias = Callable[[Connection], Awaitable[None]]


async def accept_everything(connection: Connection) -> None:
    while True:
        await connection.request()
        await connection.send(ACCEPTED)


class Server:
    """Its nth connection is played by the nth script, later ones by the last."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = scripts
        self.accepted = 0
        self.open = 0
        self.most_open = 0
        self.finished = 0
        self.changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        script = self.scripts[min(self.accepted, len(self.scripts) - 1)]
        self.accepted += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        await self._tell()
        try:
            await script(Connection(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self.finished += 1
            writer.close()
            await self._tell()

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until_accepted(self, connections: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.accepted >= connections)

    async def until_finished(self, connections: int) -> None:
        """Wait until that many scripts have come to their end."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.finished >= connections)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks)


class Post:
    """The client's side: every post goes to the one server."""

    def __init__(self, client: HttpSubscriber, target: Target) -> None:
        self.client = client
        self.target = target

    async def __call__(self, body: bytes = b"data", timeout: float = LONG) -> Response:
        return await self.client.post(self.target, b"ce-id: 1\r\n", body, timeout)


@asynccontextmanager
async def serving(
    *scripts: Script, tls: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[tuple[Server, Post]]:
    """A scripted server, and a client for it."""
    server = Server(*scripts)
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0, ssl=tls)
    port = listener.sockets[0].getsockname()[1]
    ca_certs = options.pop("ca_certs", None)
    scheme = options.pop("scheme", "https" if tls else "http")
    client = HttpSubscriber(**options)
    target = Target.parse(f"{scheme}://127.0.0.1:{port}/sink", ca_certs)

    try:
        yield server, Post(client, target)
    finally:
        await client.close()
        listener.close()
        await server.stop()


def answering(*parts: bytes) -> Script:
    """Answer every request with these writes, one turn of the loop apart."""

    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            for part in parts:
                await connection.send(part)
                await asyncio.sleep(0)

    return script


def answering_once(response: bytes) -> Script:
    """Answer one request, then close."""

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(response)

    return script


async def silent(connection: Connection) -> None:
    await connection.ended()


def endless(start: bytes, more: bytes) -> Script:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(start)
        while True:
            await connection.send(more)

    return script


KEPT = {
    "content-length": (
        b"HTTP/1.1 200 OK\r\nCE-Id: 1 \r\nContent-Length: 4\r\n\r\nbody",
        Response(200, [(b"ce-id", b"1"), (b"content-length", b"4")], b"body"),
    ),
    "chunked": (
        CHUNKED + b"2;a=b\r\nbo\r\n1\r\nd\r\n1\r\ny\r\n0\r\n\r\n",
        Response(200, [(b"transfer-encoding", b"chunked")], b"body"),
    ),
    "chunked with trailers": (
        CHUNKED + b"2\r\nok\r\n0\r\nce-id: forged\r\n\r\n",
        Response(200, [(b"transfer-encoding", b"chunked")], b"ok"),
    ),
    "100 before it": (
        b"HTTP/1.1 100 Continue\r\n\r\n" + ACCEPTED,
        Response(202, [(b"content-length", b"0")], b""),
    ),
    "103 and 102 before it": (
        b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + ACCEPTED,
        Response(202, [(b"content-length", b"0")], b""),
    ),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", Response(204, [], b"")),
    "304": (
        b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n",
        Response(304, [(b"content-length", b"9")], b""),
    ),
    "HTTP/1.0 keep-alive": (
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\na",
        Response(200, [(b"connection", b"keep-alive"), (b"content-length", b"1")], b"a"),
    ),
}
LAST = {
    "connection: close": (
        b"HTTP/1.1 500 Oops\r\nconnection: close\r\ncontent-length: 4\r\n\r\nbody",
        Response(500, [(b"connection", b"close"), (b"content-length", b"4")], b"body"),
    ),
    "HTTP/1.0": (
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        Response(200, [(b"content-length", b"2")], b"ok"),
    ),
}
UNTIL = {
    "until close": (UNTIL_CLOSE + b"body", Response(200, [], b"body")),
    "until close, empty": (UNTIL_CLOSE, Response(200, [], b"")),
    "HTTP/1.0 until close": (
        b"HTTP/1.0 200 OK\r\na: b\r\n\r\nok",
        Response(200, [(b"a", b"b")], b"ok"),
    ),
}


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "byte by byte"])
@pytest.mark.parametrize(("raw", "expected"), KEPT.values(), ids=KEPT)
@on_both_loops
async def test_a_response_that_ends_cleanly_keeps_its_connection(
    raw: bytes, expected: Response, cut: bool
) -> None:
    parts = [raw[index : index + 1] for index in range(len(raw))] if cut else [raw]
    async with serving(answering(*parts)) as (server, post):
        assert await post() == expected
        assert await post() == expected
        assert server.accepted == 1


@pytest.mark.parametrize(("raw", "expected"), LAST.values(), ids=LAST)
@on_both_loops
async def test_a_response_that_announces_to_be_the_last_is(raw: bytes, expected: Response) -> None:
    """Even if the server leaves its connection open."""
    async with serving(answering(raw)) as (server, post):
        assert await post() == expected
        assert await post() == expected
        await server.until_finished(2)


@pytest.mark.parametrize(("raw", "expected"), UNTIL.values(), ids=UNTIL)
@on_both_loops
async def test_a_response_that_ends_with_its_connection_is_complete(
    raw: bytes, expected: Response
) -> None:
    async with serving(answering_once(raw)) as (server, post):
        assert await post() == expected
        assert await post() == expected
        assert server.accepted == 2


@on_both_loops
async def test_a_request_is_what_http_asks_for() -> None:
    seen = []

    async def script(connection: Connection) -> None:
        seen.append(await connection.request())
        await connection.send(ACCEPTED)

    async with serving(script) as (_, post):
        await post(b"data")
    start, host, *rest = seen[0].split(b"\r\n")
    assert start == b"POST /sink HTTP/1.1"
    assert host.startswith(b"host: 127.0.0.1:")
    assert rest == [b"ce-id: 1", b"content-length: 4", b"", b"data"]


@on_both_loops
async def test_a_big_body_reaches_a_slow_reader_whole() -> None:
    arrived = []

    async def script(connection: Connection) -> None:
        connection.reader._limit = 1024  # type: ignore[attr-defined]  # pauses early
        arrived.append(await connection.request())
        await connection.send(ACCEPTED)

    async with serving(script) as (_, post):
        assert (await post(BIG)).status == 202
        assert arrived[0].endswith(b"\r\n\r\n" + BIG)


@on_both_loops
async def test_an_early_answer_is_used_and_its_connection_dropped() -> None:
    """A 413 while the body is still on its way."""

    async def script(connection: Connection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        await connection.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await connection.ended()

    async with serving(script, accept_everything) as (server, post):
        response = await post(BIG)
        assert (response.status, response.body) == (413, b"no")
        assert (await post()).status == 202
        await server.until_finished(1)
        assert server.accepted == 2


async def close_on_the_second_request(connection: Connection) -> None:
    await connection.request()
    await connection.send(ACCEPTED)
    await connection.request()


async def reset_on_the_second_request(connection: Connection) -> None:
    await connection.request()
    await connection.send(ACCEPTED)
    await connection.reader.readuntil(b"\r\n\r\n")
    connection.reset()


@pytest.mark.parametrize("lose", [close_on_the_second_request, reset_on_the_second_request])
@pytest.mark.parametrize("body", [b"small", BIG], ids=["small", "big"])
@on_both_loops
async def test_a_request_lost_to_the_keep_alive_race_goes_once_more(
    lose: Script, body: bytes
) -> None:
    async with serving(lose, accept_everything) as (server, post):
        await post()
        assert (await post(body)).status == 202
        assert server.accepted == 2


@on_both_loops
async def test_the_second_try_takes_a_new_connection_even_if_others_are_idle() -> None:
    """When one idle connection was closed, the others are likely closed too."""
    async with serving(
        close_on_the_second_request, close_on_the_second_request, accept_everything
    ) as (server, post):
        await asyncio.gather(post(), post())
        assert server.accepted == 2
        assert (await post()).status == 202
        assert server.accepted == 3


@on_both_loops
async def test_a_new_connection_that_is_closed_without_an_answer_is_broken() -> None:
    async def script(connection: Connection) -> None:
        await connection.request()

    async with serving(close_on_the_second_request, script) as (server, post):
        await post()
        with pytest.raises(DeliveryError) as caught:
            await post()
        assert caught.value.reason == "broken"
        assert server.accepted == 2


@pytest.mark.parametrize("greeting", [b"", b"220 ready\r\n"])
@on_both_loops
async def test_a_connection_that_ends_before_its_request_is_broken_at_once(greeting: bytes) -> None:
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def connect_and_lose(*arguments: Any, **options: Any) -> Any:
        transport, protocol = await connect(*arguments, **options)
        await protocol.lost
        return transport, protocol

    async def script(connection: Connection) -> None:
        await connection.send(greeting)
        if greeting:
            await connection.ended()

    async with serving(script) as (_, post):
        loop.create_connection = connect_and_lose  # type: ignore[method-assign]
        with pytest.raises(DeliveryError) as caught:
            await post()
        assert caught.value.reason == "broken"


@on_both_loops
async def test_a_request_that_got_a_first_byte_is_not_sent_again() -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(ACCEPTED)
        await connection.request()
        await connection.send(b"H")

    async with serving(script) as (server, post):
        await post()
        with pytest.raises(DeliveryError) as caught:
            await post()
        assert caught.value.reason == "broken"
        assert server.accepted == 1


async def reset_in_a_body(connection: Connection) -> None:
    await connection.request()
    await connection.send(UNTIL_CLOSE + b"body")
    connection.reset()


ENDED, INVALID = "before its response ended", "no valid HTTP response"
HEAD, BODY, WRAPPING = "head longer", "body longer", "too many bytes"
BROKEN = {
    "a reset": (reset_in_a_body, ENDED),
    "nothing": (answering_once(b""), ENDED),
    "half a head": (answering_once(b"HTTP/1.1 200 OK\r\nconte"), ENDED),
    "half a body": (answering_once(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbo"), ENDED),
    "half a chunk": (answering_once(CHUNKED + b"4\r\nbo"), ENDED),
    "no last chunk": (answering_once(CHUNKED + b"2\r\nbo\r\n"), ENDED),
    "only an interim response": (answering_once(b"HTTP/1.1 100 Continue\r\n\r\n"), ENDED),
    "another encoding": (
        answering_once(b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nx"),
        ENDED,
    ),
    "garbage": (answering_once(b"garbage\r\n\r\n"), INVALID),
    "a bad length": (answering_once(b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"), INVALID),
    "a bad chunk size": (answering_once(CHUNKED + b"zz\r\n"), INVALID),
    "two lengths": (answering_once(CHUNKED[:-2] + b"content-length: 1\r\n\r\n0\r\n\r\n"), INVALID),
    "endless status line": (endless(b"HTTP/1.1 200 ", b"x" * 1000), HEAD),
    "endless header": (endless(b"HTTP/1.1 200 OK\r\na: ", b"x" * 1000), HEAD),
    "endless headers": (endless(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * 100), HEAD),
    "endless interim responses": (endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), HEAD),
    "endless body": (endless(UNTIL_CLOSE, b"x" * 1000), BODY),
    "endless chunks": (endless(CHUNKED, b"5\r\nabcde\r\n" * 100), BODY),
    "a body that announces too much": (
        endless(b"HTTP/1.1 200 OK\r\ncontent-length: 999999999999\r\n\r\n", b"x" * 1000),
        BODY,
    ),
    "endless chunk extension": (endless(CHUNKED + b"5;", b"x" * 1000), WRAPPING),
    "endless trailer": (endless(CHUNKED + b"0\r\na: ", b"x" * 1000), WRAPPING),
}


@pytest.mark.parametrize(("script", "problem"), BROKEN.values(), ids=BROKEN)
@on_both_loops
async def test_what_is_no_complete_response_is_broken(script: Script, problem: str) -> None:
    """Endless ones show that memory is bounded: the server gets cut off."""
    async with serving(script, max_response_bytes=10_000) as (server, post):
        with pytest.raises(DeliveryError, match=problem) as caught:
            await post()
        assert caught.value.reason == "broken"
        await server.until_finished(1)


@pytest.mark.parametrize(
    "rest",
    [b"\r\n" + ACCEPTED, b"connection: upgrade\r\nupgrade: h2c\r\n\r\n", b"\r\n"],
    ids=["a response behind it", "with upgrade", "alone"],
)
@on_both_loops
async def test_101_is_a_response_and_ends_its_connection(rest: bytes) -> None:
    """Nobody asked for another protocol, so nothing more is read."""
    async with serving(answering_once(b"HTTP/1.1 101 Switching\r\n" + rest)) as (server, post):
        assert (await post()).status == 101
        await server.until_finished(1)


@pytest.mark.parametrize("size", [9_999, 10_000, 10_001])
@pytest.mark.parametrize("chunked", [False, True], ids=["content-length", "chunked"])
@on_both_loops
async def test_a_response_body_may_be_as_long_as_the_limit(size: int, chunked: bool) -> None:
    body = b"x" * size
    raw = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (size, body)
    if chunked:
        raw = CHUNKED + b"".join(
            b"%x\r\n%b\r\n" % (stop - start, body[start:stop])
            for start, stop in pairwise([*range(0, size, 100), size])
        )
        raw += b"0\r\n\r\n"
    async with serving(answering(raw), max_response_bytes=10_000) as (_, post):
        if size <= 10_000:
            assert (await post()).body == body
        else:
            with pytest.raises(DeliveryError, match="longer than 10000 bytes"):
                await post()


@on_both_loops
async def test_a_long_head_within_the_limit_is_read() -> None:
    value = b"v" * (MAX_HEAD_BYTES - 1000)
    raw = b"HTTP/1.1 200 OK\r\nlong: %b\r\ncontent-length: 0\r\n\r\n" % value
    async with serving(answering(raw)) as (_, post):
        assert (await post()).header(b"long") == value


@pytest.mark.parametrize("surplus", [ACCEPTED, b"x", b"HT"])
@on_both_loops
async def test_bytes_after_a_response_spoil_only_the_connection(surplus: bytes) -> None:
    """They would be taken for the next request's response."""
    async with serving(answering(ACCEPTED + surplus), accept_everything) as (server, post):
        assert (await post()).status == 202
        assert (await post()).status == 202
        assert server.accepted == 2


@on_both_loops
async def test_bytes_on_an_idle_connection_drop_it() -> None:
    """Such as the 408 with which some servers say goodbye."""
    go_on = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(ACCEPTED)
        await go_on.wait()
        await connection.send(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        await connection.ended()

    async with serving(script, accept_everything) as (server, post):
        await post()
        go_on.set()
        await server.until_finished(1)
        assert (await post()).status == 202
        assert server.accepted == 2


async def half_an_answer(connection: Connection) -> None:
    await connection.request()
    await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
    await connection.ended()


async def deaf(connection: Connection) -> None:
    connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("script", "body"),
    [(silent, b""), (half_an_answer, b""), (deaf, BIG)],
    ids=["never answers", "half an answer", "never reads"],
)
@on_both_loops
async def test_a_server_that_is_too_slow_times_out(script: Script, body: bytes) -> None:
    async with serving(script) as (server, post):
        with pytest.raises(DeliveryError) as caught:
            await post(body, timeout=0.05)
        assert caught.value.reason == "timeout"
        if script is not deaf:
            await server.until_finished(1)


@on_both_loops
async def test_the_timeout_covers_connecting() -> None:
    """A TLS handshake that is never answered."""
    async with serving(silent, scheme="https") as (server, post):
        with pytest.raises(DeliveryError) as caught:
            await post(timeout=0.05)
        assert caught.value.reason == "timeout"
        await server.until_finished(1)


@on_both_loops
async def test_the_timeout_covers_waiting_for_a_connection() -> None:
    async with serving(silent, limit=1) as (_, post):
        first = asyncio.create_task(post(timeout=0.1))
        await asyncio.sleep(0)
        with pytest.raises(DeliveryError, match="stayed busy") as caught:
            await post(timeout=0.02)
        assert caught.value.reason == "timeout"
        with pytest.raises(DeliveryError, match="no response"):
            await first


@on_both_loops
async def test_each_post_has_its_own_deadline_on_a_shared_connection() -> None:
    """One timer serves them all: it must come earlier when asked to, and never too early."""
    pause = 0.1

    async def script(connection: Connection) -> None:
        await accept(connection)
        await connection.request()
        await asyncio.sleep(pause)
        await connection.send(ACCEPTED)
        await connection.request()
        await connection.ended()

    async def accept(connection: Connection) -> None:
        await connection.request()
        await connection.send(ACCEPTED)

    async with serving(script) as (server, post):
        await post(timeout=pause / 2)
        assert (await post(timeout=LONG)).status == 202
        with pytest.raises(DeliveryError) as caught:
            await post(timeout=pause / 2)
        assert caught.value.reason == "timeout"
        assert server.accepted == 1


@on_both_loops
async def test_a_cancelled_post_drops_its_connection() -> None:
    async with serving(silent, accept_everything, limit=1) as (server, post):
        posting = asyncio.create_task(post())
        await server.until_accepted(1)
        posting.cancel()
        await server.until_finished(1)
        assert (await post()).status == 202
        assert posting.cancelled()
        assert server.accepted == 2


@on_both_loops
async def test_a_post_cancelled_while_it_connects_leaves_nothing_behind() -> None:
    async with serving(silent, scheme="https", limit=1) as (server, post):
        posting = asyncio.create_task(post())
        await server.until_accepted(1)
        posting.cancel()
        await server.until_finished(1)
        assert posting.cancelled()


@on_both_loops
async def test_a_post_cancelled_while_it_waits_gives_up_its_place() -> None:
    async with serving(accept_everything, limit=1) as (server, post):
        first, waiting, last = (asyncio.create_task(post()) for _ in range(3))
        await asyncio.sleep(0)
        waiting.cancel()
        assert (await first).status == (await last).status == 202
        assert waiting.cancelled()
        assert server.accepted == 1


@on_both_loops
async def test_a_slot_given_to_a_post_that_is_just_cancelled_goes_to_the_next() -> None:
    async def post_then_cancel() -> None:
        await post()
        waiting.cancel()

    async with serving(accept_everything, limit=1) as (server, post):
        first = asyncio.create_task(post_then_cancel())
        waiting, last = (asyncio.create_task(post()) for _ in range(2))
        await first
        assert (await last).status == 202
        assert waiting.cancelled()
        assert (await post()).status == 202
        assert server.accepted == 1


@on_both_loops
async def test_connections_never_outnumber_the_limit() -> None:
    async with serving(accept_everything, limit=3) as (server, post):
        responses = await asyncio.gather(*(post() for _ in range(20)))
        assert {response.status for response in responses} == {202}
        assert server.most_open <= server.accepted <= 3


@on_both_loops
async def test_the_connection_used_last_is_used_next() -> None:
    used: list[int] = []

    async def script(connection: Connection) -> None:
        number = server.accepted
        while True:
            await connection.request()
            used.append(number)
            await connection.send(ACCEPTED)

    async with serving(script) as (server, post):
        await asyncio.gather(post(), post())
        del used[:]
        for _ in range(3):
            await post()
        assert len(set(used)) == 1


@on_both_loops
async def test_a_connection_that_was_idle_for_long_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_subscriber, "IDLE_SECONDS", 0.02)
    async with serving(accept_everything) as (server, post):
        await post()
        await server.until_finished(1)
        assert (await post()).status == 202
        assert server.accepted == 2


@on_both_loops
async def test_a_connection_that_the_server_closes_while_idle_is_replaced() -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(ACCEPTED)
        connection.writer.write_eof()
        await connection.ended()

    async with serving(script) as (server, post):
        for round_ in range(1, 4):
            assert (await post()).status == 202
            await server.until_finished(round_)
        assert server.accepted == 3


@on_both_loops
async def test_closing_ends_what_is_under_way_and_what_is_idle() -> None:
    async with serving(accept_everything, silent) as (server, post):
        await post()
        held = asyncio.create_task(post())
        under_way = asyncio.create_task(post())
        await server.until_accepted(2)
        await held
        await post.client.close()
        await server.until_finished(2)
        with pytest.raises(DeliveryError) as caught:
            await under_way
        assert caught.value.reason == "broken"


@on_both_loops
async def test_dropped_connections_leave_no_garbage_behind() -> None:
    """The parser and its connection know each other: the cycle must be cut by hand."""
    async with serving(answering_once(UNTIL_CLOSE)) as (server, post):
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                await post()
            await server.until_finished(3)
            await post.client.close()
            alive = [each for each in gc.get_objects() if type(each).__name__ == "_Connection"]
            assert alive == []
        finally:
            gc.enable()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a self-signed certificate for 127.0.0.1: cert.pem and key.pem."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", folder / "key.pem", "-out", folder / "cert.pem"),
        ],
        check=True,
        capture_output=True,
    )
    return folder


def server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    return context


@on_both_loops
async def test_https_trusts_the_ca_certificates_of_its_target(certificate: Path) -> None:
    tls, pem = server_context(certificate), (certificate / "cert.pem").read_text()
    async with serving(accept_everything, tls=tls, ca_certs=pem) as (server, post):
        assert (await post(BIG)).status == 202
        assert (await post()).status == 202
        assert server.accepted == 1


@pytest.mark.parametrize("raw", [UNTIL_CLOSE + b"body", b"HTTP/1.1 200 OK\r\n"])
@on_both_loops
async def test_https_ends_with_its_connection_too(certificate: Path, raw: bytes) -> None:
    tls, pem = server_context(certificate), (certificate / "cert.pem").read_text()
    async with serving(answering_once(raw), tls=tls, ca_certs=pem) as (_, post):
        if raw.endswith(b"body"):
            assert (await post()).body == b"body"
        else:
            with pytest.raises(DeliveryError, match="before its response ended"):
                await post()


@on_both_loops
async def test_https_refuses_a_stranger(certificate: Path) -> None:
    async with serving(accept_everything, tls=server_context(certificate)) as (_, post):
        with pytest.raises(DeliveryError, match="CERTIFICATE_VERIFY_FAILED") as caught:
            await post()
        assert caught.value.reason == "refused"


@pytest.mark.parametrize("ca_certs", ["", "no PEM", "-----BEGIN CERTIFICATE-----\nAA\n"])
@on_both_loops
async def test_ca_certificates_that_cannot_be_read_are_refused(ca_certs: str) -> None:
    async with serving(silent, scheme="https", ca_certs=ca_certs) as (_, post):
        with pytest.raises(DeliveryError, match="can't be read") as caught:
            await post()
        assert caught.value.reason == "refused"


@pytest.mark.parametrize(
    ("url", "origin", "start"),
    [
        ("http://a.b", (False, "a.b", 80, None), b"POST / HTTP/1.1\r\nhost: a.b\r\n"),
        ("https://a.b/", (True, "a.b", 443, None), b"POST / HTTP/1.1\r\nhost: a.b\r\n"),
        ("HTTP://A.B:80/C", (False, "a.b", 80, None), b"POST /C HTTP/1.1\r\nhost: a.b\r\n"),
        (
            "http://a:443/x?y=%20",
            (False, "a", 443, None),
            b"POST /x?y=%20 HTTP/1.1\r\nhost: a:443\r\n",
        ),
        ("http://a?y#frag", (False, "a", 80, None), b"POST /?y HTTP/1.1\r\nhost: a\r\n"),
        ("http://[::1]:81/", (False, "::1", 81, None), b"POST / HTTP/1.1\r\nhost: [::1]:81\r\n"),
        ("https://[::1]/", (True, "::1", 443, None), b"POST / HTTP/1.1\r\nhost: [::1]\r\n"),
    ],
)
def test_a_target_is_a_url_taken_apart(
    url: str, origin: tuple[bool, str, int, None], start: bytes
) -> None:
    assert Target.parse(url) == Target(url, origin, start)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a.b/c",
        "/path",
        "ftp://a/",
        "http://",
        "http:///path",
        "http://:80/",
        "http://a:0/",
        "http://a:65536/",
        "http://a:b/",
        "http://user@a/",
        "http://user:secret@a/",
        "http://a/b c",
        "http://a/b\r\nce-id: forged",
        "http://a\tb/",
        "http://a\x00/",
        "http://a/\x7f",
        "http://a/é",
        "http://a\\b/",
        "http://a%0d%0ab/",
        "http://[::1/",
        "http://[fe80::1%25eth0]/",
        "http://a..b/",
        f"http://{'a' * 64}.b/",
    ],
)
def test_a_url_that_cannot_be_posted_to_is_refused(url: str) -> None:
    with pytest.raises(InvalidDocument, match="the URL"):
        Target.parse(url)
