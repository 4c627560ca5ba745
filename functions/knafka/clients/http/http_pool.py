"""The connections to one origin: limits their number, gives them to exchanges, and opens them.

Not here: HTTP (`http_connection`).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from knafka.clients.http.http_connection import Connection
from knafka.clients.http.trust_bundles import TlsContext
from knafka.core import addresses
from knafka.core.errors import DeliveryError
from knafka.ports.subscriber import HttpOrigin

CONNECT_TIMEOUT: Final = 10.0
"""Most seconds to connect, TLS included, within an attempt's deadline: an unreachable host is
noticed early, however long a subscriber may take to answer."""

Refusal: TypeAlias = Callable[[str], str | None]
"""Returns the reason why nothing may be sent to an IP address; None: the address is allowed."""


def client_closed_error() -> DeliveryError:
    """Return the error of a request to a closed client."""
    return DeliveryError("broken", "the client is closed")


class Pool:
    """The connections of one origin.

    A post holds a slot until it ends, and a connection is opened only if none is idle, so there are
    never more connections than slots. The connection that became idle last is used first, so that
    connections left over from a burst grow old and close.
    """

    def __init__(
        self,
        origin: HttpOrigin,
        limit: int,
        max_response_bytes: int,
        max_age: Callable[[], float],
        tls: TlsContext | None,
        refusal: Refusal | None = None,
    ) -> None:
        """`limit`: number of slots, so the most posts at once. Bytes of a response's body beyond
        `max_response_bytes` are dropped. `max_age` returns the seconds for which a new connection
        may be used. `tls`: the context of an https origin; None: the origin is http. `refusal`
        checks each address of the origin's host; None: all are allowed."""
        self.loop = asyncio.get_running_loop()
        self.free_slots = limit
        """Slots that no post holds."""
        self.idle: list[Connection] = []
        """Open connections that no post uses, the last used one last."""
        self.connections: set[Connection] = set()
        """All open connections, used and idle."""
        self.origin = origin
        self.max_response_bytes = max_response_bytes
        self.closed = False
        self._max_age = max_age
        self._tls = tls
        self._refusal = refusal
        self._waiters: deque[asyncio.Future[None]] = deque()
        """Posts that wait for a slot; a future is done when its post has got one."""

    async def wait_for_slot(self, deadline: float) -> None:
        """Wait for a slot that another post releases, and take it. Call this only if `free_slots`
        is 0; otherwise take a slot by subtracting 1 from `free_slots`. Raises `DeliveryError` if
        this post gets no slot by `deadline` (the event loop's clock)."""
        waiter = self.loop.create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except BaseException as error:
            was_given_slot = not waiter.cancel() and not waiter.cancelled()
            if was_given_slot:
                self.release_slot()  # this post can't use it any more
            if isinstance(error, TimeoutError):
                problem = f"every connection to {self.origin} stayed busy"
                raise DeliveryError("timeout", problem) from None
            raise

    def release_slot(self) -> None:
        """Release a slot: give it to the next waiting post, or count it as free."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.free_slots += 1

    async def connect(self, deadline: float) -> Connection:
        """Open a connection and return it. Raises `DeliveryError` if that fails, is not allowed, or
        isn't done by `deadline` (the event loop's clock) and within `CONNECT_TIMEOUT` seconds."""
        if self.closed:
            raise client_closed_error()
        now = self.loop.time()
        expires_at = now + self._max_age()
        try:
            async with asyncio.timeout_at(min(deadline, now + CONNECT_TIMEOUT)):
                connection = await self._connect_to_host(expires_at)
        except TimeoutError as error:
            problem = f"no connection to {self.origin} in time"
            raise DeliveryError("timeout", problem) from error
        except OSError as error:
            problem = f"no connection to {self.origin}: {error}"
            raise DeliveryError("refused", problem) from error
        if self.closed:
            connection.drop()
            raise client_closed_error()
        return connection

    async def _connect_to_host(self, expires_at: float) -> Connection:
        """Connect to the first address of the host that accepts a connection. The connection may be
        used until `expires_at` (the event loop's clock). Raises `OSError`, and `DeliveryError` if
        no address is allowed."""
        host, port = self.origin.host, self.origin.port
        context = None if self._tls is None else self._tls_context(self._tls)
        # Checked addresses are connected to by number: if the name were resolved once more, it
        # could lead to an address that wasn't checked.
        candidates = (
            [host] if self._refusal is None else await self._allowed_addresses(self._refusal)
        )
        tls_host = None if context is None else host  # asyncio refuses it without TLS
        for number, address in enumerate(candidates, 1):
            try:
                _, connection = await self.loop.create_connection(
                    lambda: Connection(self, expires_at),
                    address,
                    port,
                    ssl=context,
                    server_hostname=tls_host,
                )
                return connection
            except OSError:
                if number == len(candidates):
                    raise
        raise AssertionError("there is at least one candidate")

    def _tls_context(self, tls: TlsContext) -> ssl.SSLContext:
        """Return the TLS context with the certificates that are trusted now. Raises `DeliveryError`
        if they can't be read."""
        try:
            return tls.current()
        except (ValueError, OSError) as error:
            problem = f"the CA certificates for {self.origin} can't be read: {error}"
            raise DeliveryError("refused", problem) from error

    async def _allowed_addresses(self, refusal: Refusal) -> list[str]:
        """Return the addresses of the origin's host that `refusal` allows, in the resolver's order.
        Raises `DeliveryError` if it allows none."""
        host, port = self.origin.host, self.origin.port
        if addresses.is_address(host):
            candidates = [host]
        else:
            resolved = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            # An IP address is the first part of a socket address; it may be returned twice.
            ip_addresses = (str(socket_address[0]) for _, _, _, _, socket_address in resolved)
            candidates = list(dict.fromkeys(ip_addresses))
        allowed = [address for address in candidates if refusal(address) is None]
        if not allowed:
            refusals = "; ".join(filter(None, map(refusal, candidates)))
            problem = f"no connection to {self.origin}: {refusals}, which is not allowed here"
            raise DeliveryError("refused", problem)
        return allowed

    def forget(self, connection: Connection) -> None:
        """Remove a connection from the idle ones, if it is there, so that no post uses it again."""
        if connection in self.idle:
            self.idle.remove(connection)

    def close(self) -> list[asyncio.Future[None]]:
        """Drop all connections, so that their posts fail. The returned futures are done once the
        sockets are closed."""
        self.closed = True
        for connection in list(self.connections):
            connection.fail(client_closed_error())
        return [connection.lost for connection in self.connections]
