"""A very small HTTP/1.1 client for our own processes on this machine: one request a connection.

The supervisor asks for counters and health, and reads drains line by line as they go on.
Not here: other hosts, TLS, keep-alive, redirects. Events are posted by `clients`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Final

import httptools

HOST: Final = "127.0.0.1"
MAX_LINE: Final = 1024 * 1024
"""Bytes of one streamed line: a line of progress has some hundred."""


class _Parser:
    """What httptools finds in one response."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.complete = False
        self._parser = httptools.HttpResponseParser(self)

    @property
    def status(self) -> int:
        return int(self._parser.get_status_code())

    def feed(self, data: bytes) -> None:
        if not data:
            raise ConnectionError("the connection closed before the response ended")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise ConnectionError(f"no valid HTTP response: {error}") from None

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


async def get(port: int, path: str, timeout: float, **headers: str) -> tuple[int, bytes]:
    """Status and body; raises `OSError` (also on `timeout` seconds) when there is no answer."""
    async with asyncio.timeout(timeout):
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            writer.write(_request("GET", port, path, b"", headers))
            parser = _Parser()
            while not parser.complete:
                parser.feed(await reader.read(65_536))
        finally:
            writer.close()
    return parser.status, bytes(parser.body)


async def post_for_lines(port: int, path: str, body: bytes) -> AsyncGenerator[bytes, None]:
    """The lines of a streamed response to JSON, as they come.

    Raises `OSError` when the connection breaks before the response has ended, or for any status
    but 200. Closing the iterator hangs up.
    """
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(_request("POST", port, path, body, {"content-type": "application/json"}))
        parser = _Parser()
        while not parser.complete:
            parser.feed(await reader.read(65_536))
            if parser.status not in (0, HTTPStatus.OK):
                continue
            *lines, rest = bytes(parser.body).split(b"\n")
            if len(rest) > MAX_LINE:
                raise ConnectionError(f"a line is longer than {MAX_LINE} bytes")
            parser.body[:] = rest
            for line in lines:
                yield line
        if parser.status != HTTPStatus.OK:
            raise ConnectionError(f"{path} was answered {parser.status}: {parser.body[:200]!r}")
    finally:
        writer.close()


def _request(method: str, port: int, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        f"host: {HOST}:{port}",
        f"content-length: {len(body)}",
        "connection: close",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
