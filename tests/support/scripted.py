"""A real HTTP server that answers each event as its script says, in raw bytes if need be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from support.loopback import LoopbackServer


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request; header names are lower-cased."""

    headers: dict[str, str]
    body: bytes
    at: float
    """On the loop's clock."""

    @property
    def id(self) -> str:
        return self.headers.get("ce-id", "")


Script: TypeAlias = Callable[[Arrival], Awaitable[bytes | None]]
"""The raw response to an arrival; the connection is closed behind one that ends with `CLOSE`.
None: close without a word."""

CLOSE = b"\0close"


def raw(status: int, body: bytes = b"", **headers: str) -> bytes:
    """A response whose headers are given by name, `-` as `_`."""
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
    length = "" if status in (204, 304) else f"content-length: {len(body)}\r\n"
    return f"HTTP/1.1 {status} Status\r\n{''.join(lines)}{length}\r\n".encode() + body


async def accept(arrival: Arrival) -> bytes:
    return raw(200)


class ScriptedServer:
    """Serves on a free port while it is entered; `arrivals` keeps every request.

    A script that raises closes its connection, and fails the test when the server is left.
    """

    def __init__(self, script: Script = accept) -> None:
        self.script = script
        self.arrivals: list[Arrival] = []
        self.answered: list[str] = []
        self._server = LoopbackServer(self._serve, backlog=500)

    async def __aenter__(self) -> ScriptedServer:
        await self._server.__aenter__()
        self.url = f"http://127.0.0.1:{self._server.port}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.__aexit__()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await self._answer(reader, writer):
            pass

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = (line.partition(":") for line in head.split("\r\n")[1:-2])
        headers = {name.lower(): value.strip() for name, _, value in lines}
        body = await reader.readexactly(int(headers["content-length"]))
        arrival = Arrival(headers, body, asyncio.get_running_loop().time())
        self.arrivals.append(arrival)
        answer = await self.script(arrival)
        if answer is None:
            return False
        writer.write(answer.removesuffix(CLOSE))
        await writer.drain()
        self.answered.append(arrival.id)
        return not answer.endswith(CLOSE)
