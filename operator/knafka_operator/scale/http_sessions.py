"""HTTP sessions: how the operator asks functions, whose names in the cluster others may redirect.

A function's Service is in its owner's namespace, and so is what its name leads to: a Service of
another type may lead anywhere. So a name that resolves to an address of the operator's own pod or
node is not connected to, nor is a redirection followed.

Not here: what is asked (`drains`, `functions.probe`, `receivers.receivers`).
"""

from __future__ import annotations

import errno
import socket
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from knafka.core import addresses


class CheckedResolver(AbstractResolver):
    """Resolves names without addresses of the operator's pod or node; raises `OSError` if no
    address is left."""

    def __init__(self) -> None:
        self._resolver = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The allowed addresses of a host; raises `OSError` if there is none."""
        found = await self._resolver.resolve(host, port, family)
        allowed = [each for each in found if addresses.refusal(each["host"]) is None]
        if not allowed:
            why = "; ".join({addresses.refusal(each["host"]) or "" for each in found})
            # The message is what aiohttp shows.
            message = f"{host}: {why}, which is not allowed here"
            raise OSError(errno.EHOSTUNREACH, message)
        return allowed

    async def close(self) -> None:
        await self._resolver.close()


def checked_session(timeout: aiohttp.ClientTimeout, **options: Any) -> aiohttp.ClientSession:
    """A session for requests to functions, whose answers are read as they come, never
    decompressed; `options` are those of its connector."""
    connector = aiohttp.TCPConnector(resolver=CheckedResolver(), **options)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)


def shown_error(error: Exception) -> str:
    """A message about a failed request that quotes nothing of the answer, which other aiohttp
    errors may."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return str(error)
    return type(error).__name__
