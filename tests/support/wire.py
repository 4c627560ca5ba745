"""HTTP/1.1 by hand: a connection that sends any bytes and reads responses one by one."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

TIMEOUT = 20.0
"""Seconds for one response."""


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: dict[bytes, bytes]
    body: bytes


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def sent(self, data: bytes) -> None:
        """Send it all, as far as the other side still takes it."""
        self.writer.write(data)
        try:
            await self.writer.drain()
        except ConnectionError:
            pass

    async def response(self, *, head_only: bool = False) -> Response:
        """The next response; an interim one counts as a response."""
        async with asyncio.timeout(TIMEOUT):
            head = await self.reader.readuntil(b"\r\n\r\n")
            first, *lines = head[:-4].split(b"\r\n")
            headers = {}
            for line in lines:
                name, _, value = line.partition(b": ")
                assert name not in headers
                headers[name] = value
            status = int(first.split(b" ")[1])
            assert first.startswith(b"HTTP/1.1 ")
            length = 0 if head_only or status < 200 else int(headers[b"content-length"])
            return Response(status, headers, await self.reader.readexactly(length))

    async def statuses(self, count: int) -> list[int]:
        return [(await self.response()).status for _ in range(count)]

    def reset(self) -> None:
        """Hang up in such a way that the other side can't even answer."""
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    async def closed(self) -> bytes:
        """Whatever still comes until the other side closes; a reset counts as closed."""
        async with asyncio.timeout(TIMEOUT):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


async def get(port: int) -> bytes:
    """The body that comes of a GET."""
    async with connected(port) as wire:
        wire.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        return (await wire.response()).body
