"""What one sender sends must not starve the others: headers, chunks, drips (issue 29, D)."""

from __future__ import annotations

import asyncio
import sys

import pytest
from support.http_cases import CHUNKED, EVENT, HEAD
from support.receiving import Server
from support.waiting import until

from knafka.receiver import connections
from knafka.receiver.connections import SLOW_REQUEST_SECONDS
from knafka.receiver.limits import HEADER_OVERHEAD, Limits, leaves_room
from knafka.receiver.protocol import PROGRESS_BYTES, STALLED_REQUEST_TIMEOUT, ReceiverProtocol

ALLOWED = Limits().headers - HEAD.count(b"\r\n") + 1
"""Headers beside those of `HEAD`, which begins with a line that is none."""


def many(count: int) -> bytes:
    return b"a:\r\n" * count


@pytest.mark.parametrize("count", [ALLOWED + 1, 3_000, 15_000])
async def test_more_headers_than_a_request_may_have_are_431(server: Server, count: int) -> None:
    async with server.connect() as wire:
        wire.send(HEAD + many(count) + b"\r\n")
        response = await wire.response()
        assert response.status == 431
        assert b"256" in response.body
        assert await wire.closed() == b""
    assert server.values == []
    assert server.refused == {"431": 1}


async def test_as_many_headers_as_a_request_may_have_are_taken(server: Server) -> None:
    async with server.connect() as wire:
        wire.send(HEAD + many(ALLOWED - 1) + b"\r\n" + EVENT)
        assert await wire.statuses(2) == [202, 202]


async def test_a_head_of_many_headers_is_not_kept_until_it_ends(server: Server) -> None:
    async with server.connect() as wire:
        wire.send(HEAD)
        await until(lambda: bool(server.shared.open) and server.one._in_request)
        connection = server.one
        for _ in range(3):
            wire.send(many(ALLOWED // 2))
            await asyncio.sleep(0.01)
        assert (await wire.response()).status == 431
        assert connection._headers == []
        assert server.shared.receiving_bytes == 0


async def test_no_more_of_a_refused_head_is_parsed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = 0
    on_header = ReceiverProtocol.on_header

    def counted(self: ReceiverProtocol, name: bytes, value: bytes) -> None:
        nonlocal taken
        taken += 1
        on_header(self, name, value)

    monkeypatch.setattr(ReceiverProtocol, "on_header", counted)
    async with server.connect() as wire:
        wire.send(HEAD + many(15_000) + b"\r\n")
        assert await wire.statuses(1) == [431]
    assert taken <= ALLOWED + 8


async def test_headers_being_received_count_in_the_budget_of_all(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = HEAD + many(100)
    counted = len(head) + HEADER_OVERHEAD * 100
    monkeypatch.setattr(server.ingest, "limits", Limits(in_flight_bytes=int(1.5 * counted)))
    async with server.connect() as first, server.connect() as second:
        first.send(head)
        await until(lambda: server.shared.receiving_bytes >= counted - 100)
        second.send(head)
        response = await second.response()
        assert (response.status, response.headers[b"retry-after"]) == (503, b"1")
        first.send(b"\r\n")
        assert await first.statuses(1) == [202]
    assert server.shared.receiving_bytes == 0


async def test_a_body_in_tiny_chunks_takes_no_more_memory_than_it_counts(server: Server) -> None:
    async with server.connect() as wire:
        wire.send(CHUNKED)
        wire.send(b"2\r\nhi\r\n" * 50_000)
        await until(lambda: bool(server.shared.open) and server.one._body_bytes == 100_000)
        connection = server.one
        held = sum(sys.getsizeof(part) for part in connection._body)
        assert held < 2 * connection._received_bytes
        wire.send(b"2\r\nhi\r\n" * 1_000 + b"0\r\n\r\n" + EVENT)
        assert await wire.statuses(2) == [202, 202]
    first, _ = server.values
    assert (type(first), first) == (bytes, b"hi" * 51_000)


@pytest.mark.parametrize("start", [HEAD + b"content-length: 200000\r\n\r\n", HEAD + b"x: "])
async def test_a_request_that_drips_is_408_after_a_while(server: Server, start: bytes) -> None:
    """However often a byte comes: what counts is how much has come in 30 s."""
    async with server.connect() as wire:
        wire.send(start + b"x" * 2 * PROGRESS_BYTES)
        await until(lambda: server.shared.receiving_bytes > PROGRESS_BYTES)
        connection, now = server.one, asyncio.get_running_loop().time()
        held = connection._received_bytes
        wire.send(b"x" * PROGRESS_BYTES)
        await until(lambda: connection._received_bytes >= held + PROGRESS_BYTES)
        connection._heard_at = now + STALLED_REQUEST_TIMEOUT - 1
        connection.expire(now + STALLED_REQUEST_TIMEOUT - 1)
        assert server.refused == {}
        connection._heard_at = now + STALLED_REQUEST_TIMEOUT + 5  # a byte came just now
        connection.expire(now + STALLED_REQUEST_TIMEOUT + 5)
        assert await wire.statuses(1) == [408]


async def test_slow_requests_make_way_for_others_the_slowest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Issue 29: 72 connections that held all but the last bytes of an event each."""
    large = HEAD + b"content-length: 200000\r\n\r\n" + b"x" * 200_000
    server = Server(Limits(in_flight_bytes=1_050_000))
    await server.start()
    async with (
        server.connect() as first, server.connect() as second, server.connect() as third,
        server.connect() as fourth, server.connect() as good,
    ):  # fmt: skip
        slow = [first, second, third, fourth]
        for number, wire in enumerate(slow, 1):
            wire.send(large[:-1])
            await until(lambda: server.shared.receiving_bytes > number * 200_000)  # noqa: B023
        for connection in server.shared.open:
            assert isinstance(connection, ReceiverProtocol)
            connection._progressed_at -= 2 * SLOW_REQUEST_SECONDS
        monkeypatch.setattr(connections, "SLOW_CHECK_INTERVAL", 0)
        good.send(large[:-1])
        response = await first.response()
        assert (response.status, response.headers[b"retry-after"]) == (503, b"1")
        good.send(b"x")
        assert await good.statuses(1) == [202]
        fourth.send(b"x")
        assert await fourth.statuses(1) == [202]
    await server.stop()


async def test_however_many_requests_are_held_a_smaller_one_has_room() -> None:
    server = Server(Limits(in_flight_bytes=1_000_000))
    await server.start()
    async with asyncio.timeout(20):
        held = [server.connect() for _ in range(12)]
        wires = [await each.__aenter__() for each in held]
        for wire in wires:
            wire.send(HEAD + b"content-length: 200000\r\n\r\n" + b"x" * 150_000)
        await until(lambda: server.refused.get("503", 0) >= 6)
        for size in (20_000, 40_000):
            async with server.connect() as good:
                body = b"x" * size
                good.send(HEAD + b"content-length: %d\r\n\r\n" % size + body[1:])
                await asyncio.sleep(0.02)
                good.send(b"x")
                assert await good.statuses(1) == [202]
        for each in held:
            await each.__aexit__(None, None, None)
    await server.stop()


@pytest.mark.parametrize(
    ("held", "together", "has_room"),
    [
        (100, 100, True),  # alone
        (900, 900, True),  # alone, and more than half
        (900, 1_100, False),  # more than there is
        (100, 950, False),  # more than it leaves
        (50, 950, True),
        (500, 900, True),  # more than all others together
        (400, 900, False),
    ],
)
def test_a_request_may_hold_what_it_leaves_to_others(
    held: int, together: int, has_room: bool
) -> None:
    assert leaves_room(held, together, limit=1_000) is has_room
