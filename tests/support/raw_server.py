"""Scripted HTTP servers that speak raw bytes, and a client for each; tests on both event loops."""

from __future__ import annotations

import asyncio
import functools
import inspect
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import pytest
import uvloop
from support.compiled import COMPILED
from support.loopback import LoopbackServer

from knafka.clients.http import http_connection
from knafka.clients.http.http_subscriber import HttpSubscriber
from knafka.ports.subscriber import Response, Target

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


@pytest.fixture
def idle_connections_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a connection which is closed was closed for the reason under test. A compiled one
    keeps the 4 s it has, in which these tests have long ended."""
    if not COMPILED:
        monkeypatch.setattr(http_connection, "IDLE_SECONDS", 1000.0)


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

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self.scripts[min(self.accepted, len(self.scripts) - 1)]
        self.accepted += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        await self._tell()
        try:
            await script(Connection(reader, writer))
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
    ca_certs = options.pop("ca_certs", None)
    scheme = options.pop("scheme", "https" if tls else "http")
    async with LoopbackServer(server.handle, tls=tls) as loopback:
        client = HttpSubscriber(**options)
        target = Target.parse(f"{scheme}://127.0.0.1:{loopback.port}/sink", ca_certs)
        try:
            yield server, Post(client, target)
        finally:
            await client.close()


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
