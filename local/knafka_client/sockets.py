"""Sockets on the loopback address: listen at one, find a free port, see whether one answers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import socket
from typing import Final

from knafka.core.errors import KnafkaError

HOST: Final = "127.0.0.1"
_BELOW_EPHEMERAL: Final = range(10_000, 30_000)
"""Ports that no kernel gives to connections by itself: Linux begins at 32,768."""


class PortTaken(KnafkaError):
    """Another process already listens on a port that was asked for."""


def listen(port: int = 0) -> socket.socket:
    """A listening socket on this machine, to be inherited; port 0 takes a free one.

    While we keep it open, connections to it wait, whether or not a child accepts them. Raises
    `OSError` if the port is taken.
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
    return int(listener.getsockname()[1])


def free_port() -> int:
    """A port that was free just now, for a program that wants to bind it itself.

    None of those that connections get, or one could have it before the program binds it.
    """
    for port in random.sample(_BELOW_EPHEMERAL, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise OSError(errno.EADDRINUSE, "a hundred ports were tried and none is free")


async def accepts(host: str, port: int) -> bool:
    """Whether somebody listens there."""
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True
