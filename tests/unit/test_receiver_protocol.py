"""The fast way in, over real sockets but on a log in memory: HTTP/1.1 and its abuses."""

from __future__ import annotations

import asyncio

import pytest
from support.http_cases import BROKEN, CHUNKED, EVENT, HEAD
from support.receiver_requests import EVERY, MINIMAL, Request
from support.receiving import Server
from support.waiting import until

from knafka.receiver import responses
from knafka.receiver.limits import Limits


@pytest.mark.parametrize("request_", EVERY, ids=lambda each: each.id)
async def test_each_request_is_answered_and_stored_as_the_table_says(
    server: Server, request_: Request
) -> None:
    async with server.connect() as wire:
        wire.send(request_.wire() + EVENT)
        assert await wire.statuses(2) == [request_.status, 202]
    first, *_ = server.log.topics["events"][0]
    stored = request_.stored or MINIMAL.stored
    assert stored is not None
    assert (first.key(), first.headers(), first.value()) == (
        stored.key,
        stored.headers,
        stored.value,
    )


@pytest.mark.parametrize(("what", "wire_bytes"), BROKEN, ids=[what for what, _ in BROKEN])
@pytest.mark.parametrize("split", [False, True])
async def test_broken_http_is_400_and_the_end_of_the_connection(
    server: Server, what: str, wire_bytes: bytes, split: bool
) -> None:
    async with server.connect() as wire:
        if split:
            for at in range(len(wire_bytes)):
                wire.send(wire_bytes[at : at + 1])
                await asyncio.sleep(0)
        else:
            wire.send(wire_bytes)
        response = await wire.response()
        assert response.status == 400
        assert response.headers[b"connection"] == b"close"
        assert await wire.closed() == b""
    async with server.connect() as wire:
        wire.send(EVENT)
        assert await wire.statuses(1) == [202]


@pytest.mark.parametrize("step", [1, 7, 100])
async def test_a_request_in_pieces_is_one_request(server: Server, step: int) -> None:
    body = (
        HEAD + b"content-length: 5\r\n\r\nhello" + CHUNKED + b"2\r\nhi\r\n3;x=y\r\nhey\r\n0\r\n\r\n"
    )
    async with server.connect() as wire:
        for at in range(0, len(body), step):
            await wire.sent(body[at : at + step])
            await asyncio.sleep(0)
        assert await wire.statuses(2) == [202, 202]
    assert server.values == [b"hello", b"hihey"]


async def test_a_connection_is_kept_for_more_requests(server: Server) -> None:
    async with server.connect() as wire:
        for _ in range(3):
            wire.send(EVENT)
            response = await wire.response()
            assert response.status == 202
            assert b"connection" not in response.headers
    assert len(server.values) == 3


async def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    server.log.hold()
    async with server.connect() as wire:
        wire.send(
            EVENT
            + b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n"
            + EVENT
            + b"OPTIONS /ns/broker HTTP/1.1\r\nhost: x\r\n\r\n"
        )
        await until(lambda: len(server.log.held) == 2)
        server.log.held.reverse()  # acknowledged in the other order
        server.log.release()
        assert await wire.statuses(4) == [202, 404, 202, 200]


async def test_a_refusal_waits_for_the_answers_before_it(server: Server) -> None:
    server.log.hold()
    async with server.connect() as wire:
        wire.send(EVENT + EVENT + b"garbage\r\n\r\n" + EVENT)
        await until(lambda: len(server.log.held) == 2)
        wire.send(EVENT)
        await asyncio.sleep(0.05)
        server.log.release()
        assert await wire.statuses(3) == [202, 202, 400]
        assert await wire.closed() == b""
    assert len(server.values) == 2
    assert server.refused["400"] == 1


async def test_many_headers_beyond_the_limit_are_refused_once(server: Server) -> None:
    """Each further header of the same read must not be another refusal."""
    server.log.hold()
    async with server.connect() as wire:
        await wire.sent(EVENT + HEAD + b"x: %b\r\n" % (b"y" * 1000) * 100 + b"\r\n")
        await until(lambda: bool(server.refused))
        server.log.release()
        assert await wire.statuses(2) == [202, 431]
        assert await wire.closed() == b""
    assert server.refused == {"202": 1, "431": 1}


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"x: ",
        HEAD,
        b"POST /",
        CHUNKED + b"1\r\nx\r\n0\r\nx: ",
        CHUNKED + b"1;x=",
        b"POST /ns/broker HTTP/1.1\r\n",
    ],
    ids=["value", "name", "target", "trailer", "chunk extension", "name at once"],
)
async def test_a_header_that_never_ends_is_431_and_not_kept(server: Server, head: bytes) -> None:
    """llhttp's binding collects a header until it is whole: we count what it takes in."""
    async with server.connect() as wire:
        wire.send(head)
        for _ in range(100):
            await wire.sent(b"a" * 16_384)
            await asyncio.sleep(0)
            if server.refused:
                break
        assert set(server.refused) == {"431"}
        assert (await wire.response()).status == 431
    assert server.values == []


async def test_small_chunks_are_no_header_bomb(server: Server) -> None:
    async with server.connect() as wire:
        wire.send(CHUNKED)
        for _ in range(2000):
            wire.send(b"10\r\n" + b"x" * 16 + b"\r\n")
        wire.send(b"0\r\n\r\n")
        assert await wire.statuses(1) == [202]
    assert server.values == [b"x" * 32_000]


async def test_a_trailer_is_no_header(server: Server) -> None:
    async with server.connect() as wire:
        wire.send(CHUNKED + b"1\r\nx\r\n0\r\nce-subject: smuggled\r\nce-id: 2\r\n\r\n" + EVENT)
        assert await wire.statuses(2) == [202, 202]
    record, _ = server.log.topics["events"][0]
    assert record.headers() == MINIMAL.stored.headers if MINIMAL.stored else None


async def test_an_announced_body_beyond_the_limit_is_413_before_it_is_sent(server: Server) -> None:
    async with server.connect() as wire:
        wire.send(HEAD + b"content-length: 300001\r\n\r\n")
        response = await wire.response()
        assert response.status == 413
        assert response.headers[b"connection"] == b"close"
        assert await wire.closed() == b""


async def test_the_sender_of_a_huge_body_still_reads_413(server: Server) -> None:
    """Closing with bytes unread would reset the connection, and the answer with it."""
    async with server.connect() as wire:
        wire.send(HEAD + b"content-length: 50000000\r\n\r\n")
        for _ in range(200):
            await wire.sent(b"x" * 65_536)
        assert (await wire.response()).status == 413
        assert server.shared.receiving_bytes == 0


async def test_chunks_beyond_the_limit_are_413(server: Server) -> None:
    async with server.connect() as wire:
        wire.send(CHUNKED)
        for _ in range(200):
            await wire.sent(b"1000\r\n" + b"x" * 4096 + b"\r\n")
        assert (await wire.response()).status == 413
    assert server.values == []


async def test_a_refused_connection_is_closed_though_the_sender_goes_on(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "LINGER_TIMEOUT", 0.1)
    async with server.connect() as wire:
        wire.send(b"garbage\r\n\r\n")
        assert (await wire.response()).status == 400
        await until(lambda: not server.shared.open)


async def test_bodies_being_received_have_a_limit_together(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.ingest, "limits", Limits(in_flight_bytes=5000))
    async with server.connect() as first, server.connect() as second:
        first.send(HEAD + b"content-length: 2000\r\n\r\n" + b"x" * 1900)
        await until(lambda: server.shared.receiving_bytes > 1900)
        held = server.shared.receiving_bytes
        second.send(HEAD + b"content-length: 2000\r\n\r\n" + b"x" * 1900)
        response = await second.response()
        assert response.status == 503
        assert response.headers[b"retry-after"] == b"1"
        assert server.shared.receiving_bytes == held
        first.send(b"x" * 100)
        assert await first.statuses(1) == [202]
    assert server.values == [b"x" * 2000]


async def test_a_sender_that_asks_first_is_told_to_continue(server: Server) -> None:
    async with server.connect() as wire:
        wire.send(HEAD + b"Expect: 100-Continue\r\ncontent-length: 2\r\n\r\n")
        assert await wire.statuses(1) == [100]
        wire.send(b"hi")
        assert await wire.statuses(1) == [202]
    assert server.values == [b"hi"]


async def test_a_sender_that_asks_first_is_told_if_it_is_too_much(server: Server) -> None:
    async with server.connect() as wire:
        wire.send(HEAD + b"expect: 100-continue\r\ncontent-length: 300001\r\n\r\n")
        assert await wire.statuses(1) == [413]


async def test_no_continue_comes_between_the_answers_of_earlier_requests(server: Server) -> None:
    server.log.hold()
    async with server.connect() as wire:
        wire.send(EVENT + HEAD + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        await until(lambda: len(server.log.held) == 1)
        wire.send(b"hi")
        await until(lambda: len(server.log.held) == 2)
        server.log.release()
        assert await wire.statuses(2) == [202, 202]


@pytest.mark.parametrize("connection", [b"", b"connection: keep-alive\r\n"])
async def test_http_1_0_is_answered_and_closed(server: Server, connection: bytes) -> None:
    async with server.connect() as wire:
        wire.send(EVENT.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"host: x\r\n", connection))
        response = await wire.response()
        assert response.status == 202
        assert response.headers[b"connection"] == b"close"
        assert await wire.closed() == b""


async def test_connection_close_is_kept_to(server: Server) -> None:
    async with server.connect() as wire:
        wire.send(HEAD + b"connection: close\r\ncontent-length: 0\r\n\r\n" + EVENT)
        response = await wire.response()
        assert response.status == 202
        assert response.headers[b"connection"] == b"close"
        assert await wire.closed() == b""
    assert len(server.values) == 1


@pytest.mark.parametrize(
    "target",
    [
        b"http://broker.example:8080/ns/broker",
        b"http://broker.example/ns/broker?x=http://y/z",
        b"/ns/broker?x=y",
        b"/ns/broker/",
        b"/ns/%62roker",
        pytest.param(b"/", id="the root, as this receiver serves one Broker"),
        pytest.param(b"http://x", id="the root, in absolute form"),
    ],
)
async def test_a_target_may_be_spelt_in_many_ways(server: Server, target: bytes) -> None:
    async with server.connect() as wire:
        wire.send(MINIMAL.wire(path=target))
        assert await wire.statuses(1) == [202]


@pytest.mark.parametrize("target", [b"*", b"/ns/broker%2F", b"/%ff", b"//ns/broker", b"//"])
async def test_any_other_target_is_404(server: Server, target: bytes) -> None:
    async with server.connect() as wire:
        wire.send(MINIMAL.wire(method=b"OPTIONS", path=target))
        assert await wire.statuses(1) == [404] if target != b"/ns/broker%2F" else [200]


async def test_a_head_request_is_answered_without_a_body(server: Server) -> None:
    async with server.connect() as wire:
        wire.send(
            b"HEAD /ns/broker HTTP/1.1\r\nhost: x\r\n\r\nHEAD /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
            + EVENT
        )
        response = await wire.response(head_only=True)
        assert response.status == 405
        assert int(response.headers[b"content-length"]) > 0
        assert (await wire.response(head_only=True)).status == 200
        assert (await wire.response()).status == 202


@pytest.mark.parametrize("rest", [b"", EVENT, EVENT * 3000], ids=["alone", "followed", "by many"])
async def test_an_offered_upgrade_is_ignored_and_the_data_kept(server: Server, rest: bytes) -> None:
    """Java's HttpClient offers h2c with its first POST; llhttp would take its data for h2."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAE\r\n"
    async with server.connect() as wire:
        wire.send(HEAD + offer + b"content-length: 5\r\n\r\nhello" + rest)
        count = 1 + rest.count(EVENT)
        assert await wire.statuses(count) == [202] * count
        wire.send(EVENT)
        assert await wire.statuses(1) == [202]
    assert server.values == [b"hello"] + [None] * count


async def test_many_offered_upgrades_are_ignored(server: Server) -> None:
    offer = b"Connection: Upgrade\r\nUpgrade: h2c\r\ncontent-length: 1\r\n\r\nx"
    async with server.connect() as wire:
        wire.send((HEAD + offer) * 2000)
        assert await wire.statuses(2000) == [202] * 2000
    assert server.values == [b"x"] * 2000


async def test_a_websocket_is_not_opened(server: Server) -> None:
    async with server.connect() as wire:
        wire.send(
            b"GET /ns/broker HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
        )
        assert await wire.statuses(1) == [405]
        wire.send(EVENT)
        assert await wire.statuses(1) == [202]


async def test_a_tunnel_is_not_opened(server: Server) -> None:
    async with server.connect() as wire:
        wire.send(b"CONNECT example.org:80 HTTP/1.1\r\nhost: x\r\n\r\n" + EVENT)
        assert await wire.statuses(1) == [405]
        assert await wire.closed() == b""
    assert server.values == []
