"""The tests' loopback server leaves nothing open, whenever it is left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings

import pytest
from support.loopback import HOST, LoopbackServer


async def wait_for_ever(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("turns", range(6), ids=lambda turns: f"{turns} turns of the loop")
def test_a_connection_that_comes_at_the_end_is_closed(turns: int) -> None:
    async def connect_and_leave() -> None:
        async with LoopbackServer(wait_for_ever) as server:
            connecting = asyncio.create_task(asyncio.open_connection(HOST, server.port))
            for _ in range(turns):
                await asyncio.sleep(0)
        with contextlib.suppress(OSError):
            _, writer = await connecting
            writer.close()
            await writer.wait_closed()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(connect_and_leave())
        gc.collect()
    assert [str(each.message) for each in caught] == []


async def test_an_exception_of_a_handler_fails_the_test() -> None:
    async def handle(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read(1)
        raise ValueError("mistake")

    async def provoke() -> None:
        async with LoopbackServer(handle) as server:
            reader, writer = await asyncio.open_connection(HOST, server.port)
            writer.write(b"x")
            await reader.read()
            writer.close()
            await writer.wait_closed()

    with pytest.raises(ValueError, match="mistake"):
        await provoke()
