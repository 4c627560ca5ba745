"""An API server that is slow, or away: a proxy in front of the cluster's own, in a thread.

    with slow_api_server() as proxy:
        proxy.port             # for KUBERNETES_SERVICE_PORT of whoever is to suffer from it
        proxy.latency = 2.0    # seconds that each call takes longer
        proxy.go_away()        # connections end, and so do new ones
        proxy.come_back()

TLS passes through: what is held up is what a client sends after its handshake.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from testcluster import settings

API_PORT: Final = 6443
HANDSHAKE: Final = 0x16
"""The first byte of what a client sends to begin with."""
CHUNK: Final = 64 * 1024


class SlowApiServer:
    """What other threads set counts for all that is sent from then on."""

    def __init__(self) -> None:
        self.port = 0
        self.latency = 0.0
        self._is_away = False
        self._connections: set[asyncio.Task[Any]] = set()
        self._over = asyncio.Event()

    async def run(self, started: threading.Event) -> None:
        """Until it is told to end."""
        server = await asyncio.start_server(self._connected, settings.HOST_IP, 0)
        self.port = server.sockets[0].getsockname()[1]
        self._loop = asyncio.get_running_loop()
        started.set()
        await self._over.wait()
        server.close()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)

    def go_away(self) -> None:
        """End every connection, and those that are opened until `come_back`."""
        self._is_away = True
        self._loop.call_soon_threadsafe(self._cut)

    def come_back(self) -> None:
        self._is_away = False

    def _cut(self) -> None:
        for each in self._connections:
            each.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_away:
            writer.transport.abort()
            return
        connection = asyncio.create_task(self._pass(reader, writer))
        self._connections.add(connection)
        await asyncio.wait([connection])
        self._connections.discard(connection)
        writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            answers, requests = await asyncio.open_connection(settings.NODE_IP, API_PORT)
            passing = [
                asyncio.create_task(self._requests(reader, requests)),
                asyncio.create_task(self._answers(answers, writer)),
            ]
            try:
                await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in passing:
                    each.cancel()
                await asyncio.gather(*passing, return_exceptions=True)
                requests.transport.abort()

    async def _requests(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        last = 0.0
        while data := await client.read(CHUNK):
            if data[0] == HANDSHAKE:
                server.write(data)
                continue
            last = max(last, loop.time() + self.latency)  # in their order
            loop.call_at(last, server.write, data)

    async def _answers(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while data := await server.read(CHUNK):
            client.write(data)
            await client.drain()


@contextmanager
def slow_api_server() -> Iterator[SlowApiServer]:
    """On a free port of the machine, as the cluster sees it."""
    proxy, started = SlowApiServer(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(proxy.run(started)), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield proxy
    finally:
        proxy.end()
        thread.join()
