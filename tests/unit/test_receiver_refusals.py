"""Requests that the fast way in refuses though their event is valid (issue 13, connections)."""

from __future__ import annotations

import asyncio

import pytest
from support.http_cases import CHUNKED, EVENT, HEAD
from support.receiving import Server
from support.waiting import until

from knafka.receiver.limits import Limits
from knafka.receiver.protocol import REQUEST_DEADLINE, STALLED_REQUEST_TIMEOUT

BODY = b"content-length: 2\r\n\r\nhi"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        pytest.param(EVENT.replace(b"host: x\r\n", b""), 400, id="no Host (RFC 9112, 3.2)"),
        pytest.param(HEAD + b"Host: y\r\n" + BODY, 400, id="two Hosts (RFC 9112, 3.2)"),
        pytest.param(
            CHUNKED.replace(b"chunked", b"gzip, chunked"), 501, id="gzip, chunked (RFC 9112, 6.1)"
        ),
        pytest.param(
            HEAD + b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n", 501,
            id="gzip and chunked, each in a header",
        ),
        pytest.param(HEAD + b"content-encoding: gzip\r\n" + BODY, 415, id="compressed data"),
        pytest.param(HEAD + b"Content-Encoding: br\r\n" + BODY, 415, id="compressed otherwise"),
    ],
)  # fmt: skip
async def test_a_request_that_would_be_misunderstood_is_refused_and_nothing_stored(
    server: Server, request_: bytes, status: int
) -> None:
    async with server.connect() as wire:
        wire.send(request_)
        assert await wire.statuses(1) == [status]
        assert await wire.closed() == b""
    assert server.values == []
    assert server.refused == {str(status): 1}


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(
            EVENT.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"host: x\r\n", b""), id="1.0"
        ),
        pytest.param(HEAD + b"content-encoding: identity\r\n" + BODY, id="identity"),
        pytest.param(HEAD + b"Transfer-Encoding: Chunked\r\n\r\n0\r\n\r\n", id="Chunked"),
        pytest.param(EVENT.replace(b"host: x", b"hOsT:  x"), id="hOsT"),
    ],
)
async def test_what_looks_alike_is_taken(server: Server, request_: bytes) -> None:
    async with server.connect() as wire:
        wire.send(request_)
        assert await wire.statuses(1) == [202]


async def test_each_request_of_a_connection_has_a_host_of_its_own(server: Server) -> None:
    async with server.connect() as wire:
        wire.send(EVENT + EVENT + EVENT.replace(b"host: x\r\n", b""))
        assert await wire.statuses(3) == [202, 202, 400]


@pytest.mark.parametrize("path", [b"/ns%2Fbroker", b"/ns%2fbroker", b"/ns/broker%2F"])
async def test_an_encoded_slash_is_none_between_segments(server: Server, path: bytes) -> None:
    async with server.connect() as wire:
        wire.send(EVENT.replace(b"/ns/broker", path))
        assert await wire.statuses(1) == [404]
        wire.send(EVENT.replace(b"/ns/broker", b"/n%73/brok%65r"))
        assert await wire.statuses(1) == [202]


async def test_a_request_that_drips_has_a_deadline_however_often_something_comes(
    server: Server,
) -> None:
    async with server.connect() as wire:
        wire.send(HEAD + b"content-length: 100\r\n\r\n")
        await until(lambda: bool(server.shared.open) and server.one._in_request)
        began = asyncio.get_running_loop().time()
        for count in range(1, 4):
            wire.send(b"x")
            await until(lambda: server.body_bytes == count)  # noqa: B023  # at once
        # The last byte came just now, and the last but many a little ago.
        server.one._heard_at = server.one._progressed_at = began + REQUEST_DEADLINE - 1
        server.one.expire(began + REQUEST_DEADLINE - 1)
        assert server.refused == {}
        server.one._heard_at = server.one._progressed_at = began + REQUEST_DEADLINE + 1
        server.one.expire(began + REQUEST_DEADLINE + 1)
        assert await wire.statuses(1) == [408]
        assert await wire.closed() == b""
    assert REQUEST_DEADLINE > STALLED_REQUEST_TIMEOUT


async def test_the_deadline_is_each_requests_own(server: Server) -> None:
    async with server.connect() as wire:
        wire.send(HEAD + b"content-length: 2\r\n\r\n")
        await until(lambda: bool(server.shared.open) and server.one._in_request)
        first = server.one._deadline
        await asyncio.sleep(0.02)
        wire.send(b"hi" + HEAD + b"content-length: 2\r\n\r\n")
        assert await wire.statuses(1) == [202]
        await until(lambda: server.one._in_request)
        assert server.one._deadline > first
        wire.send(b"hi")
        assert await wire.statuses(1) == [202]


async def test_more_connections_than_may_be_are_told_so_and_the_others_go_on() -> None:
    server = Server(Limits(connections=2))
    await server.start()
    async with server.connect() as first, server.connect() as second:
        for each in (first, second):
            each.send(EVENT)
            assert await each.statuses(1) == [202]
        async with server.connect() as third:
            third.send(EVENT)
            response = await third.response()
            assert response.status == 503
            assert int(response.headers[b"retry-after"]) > 0
            assert b"too many connections" in response.body
        await until(lambda: len(server.shared.open) == 2)
        first.send(EVENT)
        assert await first.statuses(1) == [202]
    assert len(server.values) == 3
    await server.stop()
