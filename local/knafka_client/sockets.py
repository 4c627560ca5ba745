"""Sockets on the loopback address: listens, finds free ports, and checks whether a port answers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import socket
from typing import Final

from knafka.core.errors import KnafkaError

HOST: Final = "127.0.0.1"
"""The loopback address, at which everything on this machine listens."""
_BELOW_EPHEMERAL: Final = range(10_000, 30_000)
"""Ports below those that a kernel assigns to outgoing connections (Linux: from 32,768)."""
_FREE_PORT_TRIES: Final = 100
"""Number of random ports that `free_port` tries."""


class PortTaken(KnafkaError):
    """The requested port is in use by another process."""


def listen(port: int = 0) -> socket.socket:
    """Listen on a port of this machine; returns the socket, which a child can inherit.

    Port 0 takes a free port. Connections wait while the socket is open, even before a child accepts
    them. Raises `OSError` if the port is in use.
    """
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    return listener


def port_of(listener: socket.socket) -> int:
    """Return the port that a socket listens on."""
    return int(listener.getsockname()[1])


def free_port() -> int:
    """Return a port that is free now, for a program that binds it itself.

    It is below the range from which the kernel takes ports for outgoing connections, so that no
    such connection takes it first. Raises `OSError` if none of `_FREE_PORT_TRIES` ports is free.
    """
    for port in random.sample(_BELOW_EPHEMERAL, _FREE_PORT_TRIES):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise OSError(errno.EADDRINUSE, "a hundred ports were tried and none is free")


async def is_port_open(host: str, port: int) -> bool:
    """Whether a process accepts connections at this address now; no connection is kept."""
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True
