"""A port without a process behind it: whatever is asked for is answered 404, and says why."""

from __future__ import annotations

import asyncio
import socket

import pytest
from support.wire import Wire

from knafka_client.sockets import listen, port_of
from knafka_local.processes import declining
from knafka_local.processes.declining import DecliningServer

WHY = "nothing is declared here"
EVENT = (
    b"POST /default/orders HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\n\r\n" + b"x" * 200_000
)


async def connected(listener: socket.socket) -> Wire:
    return Wire(*await asyncio.open_connection("127.0.0.1", port_of(listener)))


@pytest.mark.parametrize("request_", [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", EVENT])
async def test_every_request_is_answered_404_with_the_reason(request_: bytes) -> None:
    with listen() as listener:
        tested = DecliningServer(listener, WHY)
        await tested.start()
        await tested.start()
        wire = await connected(listener)
        await wire.sent(request_)
        response = await wire.response()
        assert (response.status, response.body) == (404, WHY.encode() + b"\n")
        wire.writer.close()
        await tested.close()


async def test_once_it_is_stopped_who_connects_waits_for_the_process_that_comes() -> None:
    with listen() as listener:
        tested = DecliningServer(listener, WHY)
        await tested.start()
        tested.stop()
        wire = await connected(listener)
        wire.send(b"GET / HTTP/1.1\r\n\r\n")
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        accepted, _ = await loop.sock_accept(listener)
        with accepted:
            assert await loop.sock_recv(accepted, 3) == b"GET"
        wire.writer.close()


async def test_one_that_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declining, "DECLINED_REQUEST_TIMEOUT", 0.05)
    with listen() as listener:
        tested = DecliningServer(listener, WHY)
        await tested.start()
        wire = await connected(listener)
        assert await wire.reader.read() == b""
        wire.writer.close()
        await tested.close()
