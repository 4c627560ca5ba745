"""A loopback server for tests that leaves no task and no socket open behind it.

asyncio's own (`start_server`, `sock_accept`) does if it is closed while it accepts: the transport
is half made (CPython 3.11), or the task that would close it never begins.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Self, TypeAlias

HOST: Final = "127.0.0.1"
FLUSH_SECONDS: Final = 1.0
"""How long a connection may take to send what was written before it is aborted."""

Handle: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class LoopbackServer:
    """Calls `handle` for each connection to a free port while it is entered.

    A connection is closed when `handle` returns. Leaving cancels what still runs, closes every
    connection, and raises the first exception of a `handle` that isn't the client's hanging up.
    """

    def __init__(
        self, handle: Handle, *, tls: ssl.SSLContext | None = None, backlog: int = 100
    ) -> None:
        self._handle = handle
        self._tls = tls
        self._backlog = backlog
        self._open: set[asyncio.Task[None]] = set()
        self._mistakes: list[BaseException] = []

    async def __aenter__(self) -> Self:
        self._socket = socket.create_server((HOST, 0), backlog=self._backlog)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._socket, self._accept)
        return self

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        for mistake in self._mistakes:
            raise mistake

    def _accept(self) -> None:
        try:
            accepted, _ = self._socket.accept()
        except OSError:
            return
        accepted.setblocking(False)
        task = asyncio.ensure_future(self._serve(accepted))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        # Also if it is cancelled before its first step.
        task.add_done_callback(partial(_close, accepted))

    async def _serve(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=2**16, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, accepted, ssl=self._tls
            )
        except OSError:
            return  # a client that hangs up in the handshake, as one that doesn't believe us
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await self._handle(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except Exception as mistake:
            self._mistakes.append(mistake)
        finally:
            await _closed(writer)


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        async with asyncio.timeout(FLUSH_SECONDS):
            await writer.wait_closed()
    except TimeoutError:
        writer.transport.abort()
    except OSError:
        pass


def _close(accepted: socket.socket, _: asyncio.Task[None]) -> None:
    accepted.close()
