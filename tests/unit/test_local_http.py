"""The small HTTP client: what it takes for an answer, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import pytest
from support.loopback import LoopbackServer

from knafka_local.http import get, post_for_lines

Write = Callable[[bytes], Awaitable[None]]


@asynccontextmanager
async def serving(*parts: bytes, wait: asyncio.Event | None = None) -> AsyncIterator[int]:
    """A server that answers with these parts, the last one when `wait` is set, and hangs up."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for number, part in enumerate(parts):
            if wait is not None and number == len(parts) - 1:
                await wait.wait()
            writer.write(part)

    async with LoopbackServer(answer) as server:
        yield server.port


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


async def test_a_get_gives_status_and_body() -> None:
    async with serving(b"HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\n", b"no") as port:
        assert await get(port, "/health", 5) == (503, b"no")


async def test_lines_come_as_soon_as_they_are_whole() -> None:
    wait = asyncio.Event()
    parts = (CHUNKED, b"5\r\none\nt\r\n", b"3\r\nwo\n\r\n0\r\n\r\n")
    async with (
        serving(*parts, wait=wait) as port,
        aclosing(post_for_lines(port, "/", b"{}")) as lines,
    ):
        assert await anext(lines) == b"one"
        wait.set()
        assert [line async for line in lines] == [b"two"]


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ((CHUNKED, b"4\r\none\n\r\n"), "before the response ended"),
        ((b"HTTP/1.1 409 Conflict\r\ncontent-length: 4\r\n\r\n", b"busy"), "409.*busy"),
        ((b"nonsense\r\n\r\n",), "no valid HTTP response"),
    ],
    ids=["broken off", "refused", "no HTTP"],
)
async def test_anything_but_a_whole_200_is_an_error(parts: tuple[bytes, ...], says: str) -> None:
    async with serving(*parts) as port, aclosing(post_for_lines(port, "/drain", b"{}")) as lines:
        with pytest.raises(OSError, match=says):
            _ = [line async for line in lines]


async def test_no_answer_in_time_is_an_error() -> None:
    async with serving(b"never", wait=asyncio.Event()) as port:
        with pytest.raises(OSError):  # noqa: PT011  # a TimeoutError, which says nothing
            await get(port, "/", 0.05)
