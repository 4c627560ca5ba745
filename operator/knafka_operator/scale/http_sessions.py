"""HTTP sessions: opens sessions for requests to functions that refuse addresses of the operator's
pod and node.

A function's Service is in its owner's namespace, and the owner may replace it by a Service that
leads anywhere. So the operator doesn't connect to a name that resolves to its own pod or node, and
follows no redirection.

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
    """Resolves names, leaving out addresses of the operator's pod and node."""

    def __init__(self) -> None:
        self._resolver = aiohttp.ThreadedResolver()
        """Looks names up; its answers aren't checked yet."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the allowed addresses of a host; raises `OSError` if the host has none, or if its
        name can't be resolved."""
        resolved = await self._resolver.resolve(host, port, family)
        allowed = [result for result in resolved if addresses.refusal(result["host"]) is None]
        if not allowed:
            refusals = "; ".join({addresses.refusal(result["host"]) or "" for result in resolved})
            # The message is what aiohttp shows.
            message = f"{host}: {refusals}, which is not allowed here"
            raise OSError(errno.EHOSTUNREACH, message)
        return allowed

    async def close(self) -> None:
        """Close the resolver that looks names up."""
        await self._resolver.close()


def open_checked_session(timeout: aiohttp.ClientTimeout, **options: Any) -> aiohttp.ClientSession:
    """Open a session for requests to functions. It connects to no address of the operator's pod or
    node, and decompresses no response. `options` are passed to its `TCPConnector`."""
    connector = aiohttp.TCPConnector(resolver=CheckedResolver(), **options)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)


def describe_request_error(error: Exception) -> str:
    """Return a message about a failed request that quotes nothing of the response, as it is shown
    to users: an aiohttp error's own message if that names only the address, else its class."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return str(error)
    return type(error).__name__
