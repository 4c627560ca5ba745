"""`python -m knafka.receiver`, the real process on real Kafka: every code, any input.

Issue 3, items 5 and 8. What HTTP itself can do wrong is tried in full in
tests/unit/test_receiver_protocol.py; here it must leave the process alive.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.functions import receiver
from support.http_cases import BROKEN, CHUNKED, EVENT, HEAD
from support.kafka import Kafka, MakeTopic
from support.receiver_requests import (
    MALFORMED,
    MINIMAL,
    UNSUPPORTED,
    VALID,
    Request,
    attributes,
    ingress,
)
from support.receivers import LIMIT, Running, running
from support.wire import connected

pytestmark = [pytest.mark.kafka, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One process for all tests that must leave it alive."""
    log = tmp_path_factory.mktemp("receiver") / "receiver.log"
    async with running(kafka.bootstrap_servers, log) as receiver:
        yield receiver
        assert receiver.process.process.returncode is None
        assert "Traceback" not in receiver.process.log


async def test_events_lie_in_kafka_as_the_binding_says(served: Running) -> None:
    """CE-K1, in both content modes and both versions, byte for byte, with the right key."""
    before = len(await served.records())
    async with served.connect() as wire:
        for request in VALID:
            wire.send(request.wire())
            assert (await wire.response()).status == 202, request.id
    records = (await served.records())[before:]
    for record, request in zip(records, VALID, strict=True):
        assert request.stored is not None
        assert (record.key(), record.headers(), record.value()) == (
            request.stored.key,
            request.stored.headers,
            request.stored.value,
        ), request.id


@pytest.mark.parametrize("request_", [*MALFORMED, *UNSUPPORTED], ids=lambda each: each.id)
async def test_a_malformed_event_is_refused_and_the_connection_kept(
    served: Running, request_: Request
) -> None:
    """CE-H1 to CE-H12: 400 or 415, never a 500."""
    async with served.connect() as wire:
        wire.send(request_.wire() + b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert await wire.statuses(2) == [request_.status, 200]


@pytest.mark.parametrize(("what", "wire_bytes"), BROKEN, ids=[what for what, _ in BROKEN])
async def test_broken_http_is_400_and_the_end_of_the_connection(
    served: Running, what: str, wire_bytes: bytes
) -> None:
    async with served.connect() as wire:
        wire.send(wire_bytes)
        assert (await wire.response()).status == 400
        assert await wire.closed() == b""


@pytest.mark.conformance("KN-DP-07", "KN-DP-09", "KN-DP-13")
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        (b"POST", b"/ns/broker", 202),
        (b"POST", b"/ns/broker/", 202),
        (b"POST", b"/ns/broker?x=y", 202),
        (b"POST", b"http://broker.example/ns/broker", 202),
        (b"POST", b"/ns/nobody", 404),
        (b"POST", b"/", 202),
        (b"POST", b"//", 404),
        (b"GET", b"/favicon.ico", 404),
        (b"GET", b"/ns/broker", 405),
        (b"PUT", b"/ns/broker", 405),
        (b"DELETE", b"/ns/broker", 405),
        (b"OPTIONS", b"/ns/broker", 200),
        (b"GET", b"/healthz", 200),
        (b"GET", b"/readyz", 200),
        (b"GET", b"/health/liveness", 200),
        (b"GET", b"/health/readiness", 200),
        (b"GET", b"/metrics", 200),
    ],
)
async def test_methods_and_paths(served: Running, method: bytes, path: bytes, status: int) -> None:
    """KN-DP-07, KN-DP-09, KN-DP-13."""
    async with served.connect() as wire:
        wire.send(MINIMAL.wire(method=method, path=path))
        response = await wire.response()
    assert response.status == status
    if status == 405 or method == b"OPTIONS":
        assert response.headers[b"allow"] == b"POST, OPTIONS"


@pytest.mark.conformance("KN-BRK-21")
async def test_the_network_probe_gets_its_hash_back(served: Running) -> None:
    """KN-BRK-21."""
    async with served.connect() as wire:
        wire.send(
            b"GET /ns/broker HTTP/1.1\r\nhost: x\r\n"
            b"K-Network-Probe: probe\r\nK-Network-Hash: h\r\n\r\n"
        )
        response = await wire.response()
    assert (response.status, response.headers[b"k-network-hash"]) == (200, b"h")


async def test_headers_beyond_64_kib_are_431(served: Running) -> None:
    assert await served.status(HEAD + b"x: %b\r\n\r\n" % (b"y" * 70_000)) == 431
    assert await served.status(HEAD + b"x: y\r\n" * 20_000 + b"\r\n") == 431


async def test_a_huge_body_is_413_without_being_read(served: Running) -> None:
    assert await served.status(HEAD + b"content-length: 1000000000000\r\n\r\nx") == 413
    assert (
        await served.status(HEAD + b"expect: 100-continue\r\ncontent-length: 400000\r\n\r\n") == 413
    )
    async with served.connect() as wire:
        wire.send(CHUNKED)
        for _ in range(100):
            await wire.sent(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
        assert (await wire.response()).status == 413


@pytest.mark.conformance("KN-DP-12")
async def test_data_and_attributes_together_beyond_the_limit_are_413(served: Running) -> None:
    """KN-DP-12."""
    request = Request("large", 413, attributes(x="y" * 20_000), b"z" * (LIMIT - 10_000))
    assert await served.status(request.wire()) == 413


async def test_an_event_of_exactly_the_default_limit_is_taken(kafka: Kafka, tmp_path: Path) -> None:
    """Kafka's own limit is above ours: 413 is our word, not Kafka's."""
    async with running(kafka.bootstrap_servers, tmp_path / "log", limit=1_000_000) as served:
        assert MINIMAL.stored is not None
        kept = sum([len(name) + len(value) for name, value in MINIMAL.stored.headers])
        body = os.urandom(1_000_000 - kept)
        assert await served.status(Request("", 202, MINIMAL.headers, body).wire()) == 202
        assert await served.status(Request("", 413, MINIMAL.headers, body + b"x").wire()) == 413
        (record,) = await served.records()
        assert record.value() == body


async def test_what_the_topic_finds_too_large_is_413(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    small = topic(max_message_bytes=2000)
    async with receiver([ingress(kafka.bootstrap_servers, small)], tmp_path / "log") as process:
        await process.ready()
        async with connected(process.port) as wire:
            for body, status in ((b"x" * 3000, 413), (b"x" * 1000, 202)):
                wire.send(Request("", status, MINIMAL.headers, body).wire())
                assert (await wire.response()).status == status


async def test_an_event_for_a_missing_topic_is_503(kafka: Kafka, tmp_path: Path) -> None:
    declared = ingress(kafka.bootstrap_servers, "receiver-nowhere")
    async with receiver([declared], tmp_path / "log") as process:
        await process.ready()
        async with connected(process.port) as wire:
            wire.send(EVENT)
            response = await wire.response()
    assert response.status == 503
    assert int(response.headers[b"retry-after"]) > 0


async def test_pipelined_requests_are_answered_in_order(served: Running) -> None:
    async with served.connect() as wire:
        wire.send(
            (
                EVENT
                + b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n"
                + b"HEAD /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
            )
            * 100
        )
        for _ in range(100):
            assert await wire.statuses(2) == [202, 404]
            assert (await wire.response(head_only=True)).status == 200


async def test_http_1_0_expect_and_upgrades(served: Running) -> None:
    async with served.connect() as wire:
        wire.send(HEAD + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        assert await wire.statuses(1) == [100]
        wire.send(b"hi")
        assert await wire.statuses(1) == [202]
        upgrade = b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 5\r\n\r\nhello"
        wire.send(
            HEAD
            + upgrade
            + b"GET /ns/broker HTTP/1.1\r\nhost: x\r\n"
            + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n"
        )
        assert await wire.statuses(2) == [202, 405]
        wire.send(EVENT.replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert await wire.statuses(1) == [202]
        assert await wire.closed() == b""
    hi, hello, nothing = (await served.records())[-3:]
    assert (hi.value(), hello.value(), nothing.value()) == (b"hi", b"hello", None)


async def test_hanging_up_mid_body_stores_nothing(served: Running) -> None:
    before = len(await served.records())
    for rude in (False, True):
        async with served.connect() as wire:
            wire.send(HEAD + b"content-length: 10\r\n\r\nhalf")
            await wire.writer.drain()
            if rude:
                wire.reset()
            else:
                wire.writer.write_eof()
                assert await wire.closed() == b""
    assert await served.status(EVENT) == 202
    assert len(await served.records()) == before + 1


@pytest.mark.conformance("KN-DP-15")
async def test_metrics_count_what_was_answered(kafka: Kafka, tmp_path: Path) -> None:
    """KN-DP-15."""
    async with running(kafka.bootstrap_servers, tmp_path / "log") as served:
        for _ in range(3):
            assert await served.status(EVENT) == 202
        assert (
            await served.status(b"POST /ns/broker HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
            == 400
        )
        _, text = await served.process.get("/metrics")
        lines = text.decode().splitlines()
    assert 'knafka_receiver_events_total{broker="broker",code="202",namespace="ns"} 3.0' in lines
    assert 'knafka_receiver_events_total{broker="broker",code="400",namespace="ns"} 1.0' in lines
