"""Opening a console on this machine: at which port, and under which names."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from knafka_client.sockets import HOST, PortTaken, listen, port_of

if TYPE_CHECKING:
    from knafka_console.model.source import Source
    from knafka_console.sources.installation_console import Running

CONSOLE_PORT: Final = 8090
CONSOLE_PORTS_TRIED: Final = 20
"""How many are tried from there on: somebody may have as many installations on a machine."""


@contextlib.contextmanager
def listener(
    port: int | None,
    *,
    enabled: bool = True,
    option: str = "--console-port, or --no-console",
) -> Iterator[socket.socket | None]:
    """A listening socket for the console: at `port`, or at the first free port from
    `CONSOLE_PORT` on. None: the console is not `enabled`, or no port is free.

    Raises `PortTaken` if `port` can't be had.
    """
    opened_listener = _listen(port, option) if enabled else None
    try:
        yield opened_listener
    finally:
        if opened_listener is not None:
            opened_listener.close()


@contextlib.asynccontextmanager
async def opened(
    running: Running, data: Path, listener: socket.socket | None
) -> AsyncIterator[str]:
    """Serve the console inside; gives its URL, empty without a listener."""
    if listener is None:
        yield ""
        return
    # Not above: an HTTP server that every other command would import; it takes 0.1 s.
    await asyncio.to_thread(import_module, "knafka_console.web.server")
    from knafka_console.sources.installation_console import InstallationConsole

    async with served(InstallationConsole(running, data), listener) as url:
        yield url


@contextlib.asynccontextmanager
async def served(source: Source, listener: socket.socket) -> AsyncIterator[str]:
    """Serve a source to users of this machine; gives the URL."""
    from knafka_console.web.server import ConsoleServer

    port = port_of(listener)
    hosts = [f"{name}:{port}" for name in (HOST, "localhost")]
    server = await ConsoleServer.start(listener, hosts, lambda _: source)
    try:
        yield f"http://{HOST}:{port}/"
    finally:
        await server.close()


def _listen(port: int | None, option: str) -> socket.socket | None:
    for candidate in (
        range(CONSOLE_PORT, CONSOLE_PORT + CONSOLE_PORTS_TRIED) if port is None else (port,)
    ):
        try:
            return listen(candidate)
        except OSError as error:
            if port is not None:
                raise PortTaken(
                    f"{HOST}:{port} can't be used ({error.strerror}): choose another with {option}"
                ) from error
    return None
