"""Serves a console on this machine: chooses the port, and the host names that it accepts."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator, Set
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from knafka_client.sockets import HOST, PortTaken, listen, port_of

if TYPE_CHECKING:
    from aiohttp import web

    from knafka_console.model.source import Source
    from knafka_console.sources.installation_console import RunningInstallation

CONSOLE_PORT: Final = 8090
"""The first port that is tried."""
CONSOLE_PORTS_TRIED: Final = 20
"""Number of ports that are tried: so many installations of one machine have a console."""


@contextlib.contextmanager
def open_listener(
    port: int | None,
    *,
    enabled: bool = True,
    option: str = "--console-port, or --no-console",
    other_ports: Set[int] = frozenset(),
) -> Iterator[socket.socket | None]:
    """Open a listening socket for the console at `port`; None: at the first free port from
    `CONSOLE_PORT` on that isn't one of `other_ports`, which are kept for others. The socket is
    closed on exit.

    Yields None if the console is not `enabled`, or if none of `CONSOLE_PORTS_TRIED` ports is free.
    Raises `PortTaken` if `port` is in use; `option` is the command's option that chooses another.
    """
    opened_listener = _listen_for_console(port, option, other_ports) if enabled else None
    try:
        yield opened_listener
    finally:
        if opened_listener is not None:
            opened_listener.close()


@contextlib.asynccontextmanager
async def serve_installation(
    running: RunningInstallation, data: Path, listener: socket.socket | None
) -> AsyncIterator[str]:
    """Serve the console of the `knafka up` that is `running` while the context is open; yields its
    URL.

    `data` is its data folder, `listener` the console's socket; None: serve nothing, and yield an
    empty URL.
    """
    if listener is None:
        yield ""
        return
    # Imported here: it takes 0.1 s, and other commands need no HTTP server.
    await asyncio.to_thread(import_module, "knafka_console.web.server")
    from knafka_console.sources.installation_console import InstallationConsole

    async with serve_source(InstallationConsole(running, data), listener) as url:
        yield url


@contextlib.asynccontextmanager
async def serve_source(source: Source, listener: socket.socket) -> AsyncIterator[str]:
    """Serve a console that shows `source` to users of this machine, at the port of `listener`,
    while the context is open; yields the URL."""
    from knafka_console.web.server import ConsoleServer  # here, as it takes 0.1 s

    port = port_of(listener)
    # Other Host headers are refused: a web page elsewhere may have a name that leads here.
    hosts = [f"{name}:{port}" for name in (HOST, "localhost")]

    def source_of_request(_request: web.Request) -> Source:
        """Return the source that all viewers see, as nobody signs in on one machine."""
        return source

    server = await ConsoleServer.start(listener, hosts, source_of_request)
    try:
        yield f"http://{HOST}:{port}/"
    finally:
        await server.close()


def _listen_for_console(
    port: int | None, option: str, other_ports: Set[int]
) -> socket.socket | None:
    """Return a socket that listens at `port`; if `port` is None, at the first free port from
    `CONSOLE_PORT` on that isn't one of `other_ports`. Returns None if none of the
    `CONSOLE_PORTS_TRIED` ports from there is free.

    Raises `PortTaken` if `port` is in use; its message names `option`.
    """
    if port is not None:
        try:
            return listen(port)
        except OSError as error:
            raise PortTaken(
                f"{HOST}:{port} can't be used ({error.strerror}): choose another with {option}"
            ) from error
    for default_port in range(CONSOLE_PORT, CONSOLE_PORT + CONSOLE_PORTS_TRIED):
        if default_port not in other_ports:
            with contextlib.suppress(OSError):
                return listen(default_port)
    return None
