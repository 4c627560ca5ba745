"""The HTTP client's requests, and what it takes for a response; every test on both event loops."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from support.raw_server import (
    ACCEPTED,
    BIG,
    CHUNKED,
    UNTIL_CLOSE,
    Connection,
    Script,
    accept_everything,
    answering,
    answering_once,
    endless,
    on_both_loops,
    serving,
)

from knafka.clients.http.http_connection import MAX_HEAD_BYTES
from knafka.core.errors import DeliveryError
from knafka.ports.subscriber import Response

pytestmark = pytest.mark.usefixtures("idle_connections_stay")

KEPT = {
    "content-length": (
        b"HTTP/1.1 200 OK\r\nCE-Id: 1 \r\nContent-Length: 4\r\n\r\nbody",
        Response(200, [(b"ce-id", b"1"), (b"content-length", b"4")], b"body"),
    ),
    "chunked": (
        CHUNKED + b"2;a=b\r\nbo\r\n1\r\nd\r\n1\r\ny\r\n0\r\n\r\n",
        Response(200, [(b"transfer-encoding", b"chunked")], b"body"),
    ),
    "chunked with trailers": (
        CHUNKED + b"2\r\nok\r\n0\r\nce-id: forged\r\n\r\n",
        Response(200, [(b"transfer-encoding", b"chunked")], b"ok"),
    ),
    "100 before it": (
        b"HTTP/1.1 100 Continue\r\n\r\n" + ACCEPTED,
        Response(202, [(b"content-length", b"0")], b""),
    ),
    "103 and 102 before it": (
        b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + ACCEPTED,
        Response(202, [(b"content-length", b"0")], b""),
    ),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", Response(204, [], b"")),
    "304": (
        b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n",
        Response(304, [(b"content-length", b"9")], b""),
    ),
    "HTTP/1.0 keep-alive": (
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\na",
        Response(200, [(b"connection", b"keep-alive"), (b"content-length", b"1")], b"a"),
    ),
}
LAST = {
    "connection: close": (
        b"HTTP/1.1 500 Oops\r\nconnection: close\r\ncontent-length: 4\r\n\r\nbody",
        Response(500, [(b"connection", b"close"), (b"content-length", b"4")], b"body"),
    ),
    "HTTP/1.0": (
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        Response(200, [(b"content-length", b"2")], b"ok"),
    ),
}
UNTIL = {
    "until close": (UNTIL_CLOSE + b"body", Response(200, [], b"body")),
    "until close, empty": (UNTIL_CLOSE, Response(200, [], b"")),
    "HTTP/1.0 until close": (
        b"HTTP/1.0 200 OK\r\na: b\r\n\r\nok",
        Response(200, [(b"a", b"b")], b"ok"),
    ),
}


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "byte by byte"])
@pytest.mark.parametrize(("raw", "expected"), KEPT.values(), ids=KEPT)
@on_both_loops
async def test_a_response_that_ends_cleanly_keeps_its_connection(
    raw: bytes, expected: Response, cut: bool
) -> None:
    parts = [raw[index : index + 1] for index in range(len(raw))] if cut else [raw]
    async with serving(answering(*parts)) as (server, post):
        assert await post() == expected
        assert await post() == expected
        assert server.accepted == 1


@pytest.mark.parametrize(("raw", "expected"), LAST.values(), ids=LAST)
@on_both_loops
async def test_a_response_that_announces_to_be_the_last_is(raw: bytes, expected: Response) -> None:
    """Even if the server leaves its connection open."""
    async with serving(answering(raw)) as (server, post):
        assert await post() == expected
        assert await post() == expected
        await server.until_finished(2)


@pytest.mark.parametrize(("raw", "expected"), UNTIL.values(), ids=UNTIL)
@on_both_loops
async def test_a_response_that_ends_with_its_connection_is_complete(
    raw: bytes, expected: Response
) -> None:
    async with serving(answering_once(raw)) as (server, post):
        assert await post() == expected
        assert await post() == expected
        assert server.accepted == 2


@on_both_loops
async def test_a_request_is_what_http_asks_for() -> None:
    seen = []

    async def script(connection: Connection) -> None:
        seen.append(await connection.request())
        await connection.send(ACCEPTED)

    async with serving(script) as (_, post):
        await post(b"data")
    start, host, *rest = seen[0].split(b"\r\n")
    assert start == b"POST /sink HTTP/1.1"
    assert host.startswith(b"host: 127.0.0.1:")
    assert rest == [b"ce-id: 1", b"content-length: 4", b"", b"data"]


@on_both_loops
async def test_a_big_body_reaches_a_slow_reader_whole() -> None:
    arrived = []

    async def script(connection: Connection) -> None:
        connection.reader._limit = 1024  # type: ignore[attr-defined]  # pauses early
        arrived.append(await connection.request())
        await connection.send(ACCEPTED)

    async with serving(script) as (_, post):
        assert (await post(BIG)).status == 202
        assert arrived[0].endswith(b"\r\n\r\n" + BIG)


@on_both_loops
async def test_an_early_answer_is_used_and_its_connection_dropped() -> None:
    """A 413 while the body is still on its way."""

    async def script(connection: Connection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        await connection.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await connection.ended()

    async with serving(script, accept_everything) as (server, post):
        response = await post(BIG)
        assert (response.status, response.body) == (413, b"no")
        assert (await post()).status == 202
        await server.until_finished(1)
        assert server.accepted == 2


async def close_on_the_second_request(connection: Connection) -> None:
    await connection.request()
    await connection.send(ACCEPTED)
    await connection.request()


async def reset_on_the_second_request(connection: Connection) -> None:
    await connection.request()
    await connection.send(ACCEPTED)
    await connection.reader.readuntil(b"\r\n\r\n")
    connection.reset()


@pytest.mark.parametrize("lose", [close_on_the_second_request, reset_on_the_second_request])
@pytest.mark.parametrize("body", [b"small", BIG], ids=["small", "big"])
@on_both_loops
async def test_a_request_lost_to_the_keep_alive_race_goes_once_more(
    lose: Script, body: bytes
) -> None:
    async with serving(lose, accept_everything) as (server, post):
        await post()
        assert (await post(body)).status == 202
        assert server.accepted == 2


@on_both_loops
async def test_the_second_try_takes_a_new_connection_even_if_others_are_idle() -> None:
    """When one idle connection was closed, the others are likely closed too."""
    async with serving(
        close_on_the_second_request, close_on_the_second_request, accept_everything
    ) as (server, post):
        await asyncio.gather(post(), post())
        assert server.accepted == 2
        assert (await post()).status == 202
        assert server.accepted == 3


@on_both_loops
async def test_a_new_connection_that_is_closed_without_an_answer_is_broken() -> None:
    async def script(connection: Connection) -> None:
        await connection.request()

    async with serving(close_on_the_second_request, script) as (server, post):
        await post()
        with pytest.raises(DeliveryError) as caught:
            await post()
        assert caught.value.reason == "broken"
        assert server.accepted == 2


@pytest.mark.parametrize("greeting", [b"", b"220 ready\r\n"])
@on_both_loops
async def test_a_connection_that_ends_before_its_request_is_broken_at_once(greeting: bytes) -> None:
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def connect_and_lose(*arguments: Any, **options: Any) -> Any:
        transport, protocol = await connect(*arguments, **options)
        await protocol.lost
        return transport, protocol

    async def script(connection: Connection) -> None:
        await connection.send(greeting)
        if greeting:
            await connection.ended()

    async with serving(script) as (_, post):
        loop.create_connection = connect_and_lose  # type: ignore[method-assign]
        with pytest.raises(DeliveryError) as caught:
            await post()
        assert caught.value.reason == "broken"


@on_both_loops
async def test_a_request_that_got_a_first_byte_is_not_sent_again() -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(ACCEPTED)
        await connection.request()
        await connection.send(b"H")

    async with serving(script) as (server, post):
        await post()
        with pytest.raises(DeliveryError) as caught:
            await post()
        assert caught.value.reason == "broken"
        assert server.accepted == 1


async def reset_in_a_body(connection: Connection) -> None:
    await connection.request()
    await connection.send(UNTIL_CLOSE + b"body")
    connection.reset()


ENDED, INVALID = "before its response ended", "no valid HTTP response"
HEAD, WRAPPING = "head longer", "too many bytes"
BROKEN = {
    "a reset": (reset_in_a_body, ENDED),
    "nothing": (answering_once(b""), ENDED),
    "half a head": (answering_once(b"HTTP/1.1 200 OK\r\nconte"), ENDED),
    "half a body": (answering_once(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbo"), ENDED),
    "half a chunk": (answering_once(CHUNKED + b"4\r\nbo"), ENDED),
    "no last chunk": (answering_once(CHUNKED + b"2\r\nbo\r\n"), ENDED),
    "only an interim response": (answering_once(b"HTTP/1.1 100 Continue\r\n\r\n"), ENDED),
    "another encoding": (
        answering_once(b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nx"),
        ENDED,
    ),
    "garbage": (answering_once(b"garbage\r\n\r\n"), INVALID),
    "a bad length": (answering_once(b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"), INVALID),
    "a bad chunk size": (answering_once(CHUNKED + b"zz\r\n"), INVALID),
    "two lengths": (answering_once(CHUNKED[:-2] + b"content-length: 1\r\n\r\n0\r\n\r\n"), INVALID),
    "endless status line": (endless(b"HTTP/1.1 200 ", b"x" * 1000), HEAD),
    "endless header": (endless(b"HTTP/1.1 200 OK\r\na: ", b"x" * 1000), HEAD),
    "endless headers": (endless(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * 100), HEAD),
    "endless interim responses": (endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), HEAD),
    "endless chunk extension": (endless(CHUNKED + b"5;", b"x" * 1000), WRAPPING),
    "endless trailer": (endless(CHUNKED + b"0\r\na: ", b"x" * 1000), WRAPPING),
}


@pytest.mark.parametrize(("script", "problem"), BROKEN.values(), ids=BROKEN)
@on_both_loops
async def test_what_is_no_complete_response_is_broken(script: Script, problem: str) -> None:
    """Endless ones show that memory is bounded: the server gets cut off."""
    async with serving(script, max_response_bytes=10_000) as (server, post):
        with pytest.raises(DeliveryError, match=problem) as caught:
            await post()
        assert caught.value.reason == "broken"
        await server.until_finished(1)


@pytest.mark.parametrize(
    "rest",
    [b"\r\n" + ACCEPTED, b"connection: upgrade\r\nupgrade: h2c\r\n\r\n", b"\r\n"],
    ids=["a response behind it", "with upgrade", "alone"],
)
@on_both_loops
async def test_101_is_a_response_and_ends_its_connection(rest: bytes) -> None:
    """Nobody asked for another protocol, so nothing more is read."""
    async with serving(answering_once(b"HTTP/1.1 101 Switching\r\n" + rest)) as (server, post):
        assert (await post()).status == 101
        await server.until_finished(1)


@pytest.mark.conformance("KN-DP-08")
@pytest.mark.parametrize("size", [9_999, 10_000, 10_001, 100_000])
@pytest.mark.parametrize("chunked", [False, True], ids=["content-length", "chunked"])
@on_both_loops
async def test_of_a_long_response_body_the_beginning_is_kept(size: int, chunked: bool) -> None:
    """KN-DP-08: whatever its length, the status counts; and the connection is used again."""
    body = b"x" * size
    raw = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (size, body)
    if chunked:
        raw = CHUNKED + b"".join(
            b"%x\r\n%b\r\n" % (stop - start, body[start:stop])
            for start, stop in pairwise([*range(0, size, 100), size])
        )
        raw += b"0\r\n\r\n"
    async with serving(answering(raw), max_response_bytes=10_000) as (server, post):
        for _ in range(2):
            response = await post()
            assert (response.status, response.cut) == (200, size > 10_000)
            assert response.body == body[:10_000]
        assert server.accepted == 1


ENDLESS = {
    "body": endless(UNTIL_CLOSE, b"x" * 1000),
    "chunks": endless(CHUNKED, b"5\r\nabcde\r\n" * 100),
    "announced": endless(b"HTTP/1.1 200 OK\r\ncontent-length: 999999999999\r\n\r\n", b"x" * 1000),
}


@pytest.mark.conformance("KN-DP-08")
@pytest.mark.parametrize("script", ENDLESS.values(), ids=ENDLESS)
@on_both_loops
async def test_an_endless_body_ends_its_connection_and_the_status_counts(script: Script) -> None:
    async with serving(script, max_response_bytes=10_000) as (server, post):
        response = await post()
        assert (response.status, len(response.body), response.cut) == (200, 10_000, True)
        await server.until_finished(1)


@on_both_loops
async def test_a_long_head_within_the_limit_is_read() -> None:
    value = b"v" * (MAX_HEAD_BYTES - 1000)
    raw = b"HTTP/1.1 200 OK\r\nlong: %b\r\ncontent-length: 0\r\n\r\n" % value
    async with serving(answering(raw)) as (_, post):
        assert (await post()).header(b"long") == value


@pytest.mark.parametrize("surplus", [ACCEPTED, b"x", b"HT"])
@on_both_loops
async def test_bytes_after_a_response_spoil_only_the_connection(surplus: bytes) -> None:
    """They would be taken for the next request's response."""
    async with serving(answering(ACCEPTED + surplus), accept_everything) as (server, post):
        assert (await post()).status == 202
        assert (await post()).status == 202
        assert server.accepted == 2


@on_both_loops
async def test_bytes_on_an_idle_connection_drop_it() -> None:
    """Such as the 408 with which some servers say goodbye."""
    go_on = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(ACCEPTED)
        await go_on.wait()
        await connection.send(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        await connection.ended()

    async with serving(script, accept_everything) as (server, post):
        await post()
        go_on.set()
        await server.until_finished(1)
        assert (await post()).status == 202
        assert server.accepted == 2
