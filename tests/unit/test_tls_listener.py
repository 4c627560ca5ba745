"""TLS that a receiver ends itself: which certificate it shows, what came encrypted (issue 38)."""

from __future__ import annotations

import asyncio
import logging
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.receiving import Server
from support.waiting import until
from support.web_certificates import WebAuthority, write
from support.wire import Wire, connected

from knafka import tls_listener
from knafka.core.errors import InvalidDocument
from knafka.receiver import connections, protocol, responses
from knafka.receiver.limits import Limits
from knafka.settings import TlsSettings, tls_settings
from knafka.tls_listener import TlsListener

HOST = "127.0.0.1"
EVENT = (
    b"ce-specversion: 1.0\r\nce-type: t\r\nce-source: /s\r\nce-id: 1\r\ncontent-length: 0\r\n\r\n"
)


def post(more: bytes = b"") -> bytes:
    return b"POST /ns/broker HTTP/1.1\r\nhost: x\r\n" + more + EVENT


class World:
    """A receiver in memory that has a port with TLS, too."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder = folder
        self.server = server
        self.listener = TlsListener(folder, HOST, 0, server.make_encrypted)

    async def look(self) -> None:
        await self.listener.refresh()

    @property
    def port(self) -> int:
        assert self.listener.server is not None
        port: int = self.listener.server.sockets[0].getsockname()[1]
        return port

    @asynccontextmanager
    async def connect(self, authority: WebAuthority) -> AsyncIterator[Wire]:
        context = ssl.create_default_context(cadata=authority.certificate)
        reader, writer = await asyncio.open_connection(HOST, self.port, ssl=context)
        try:
            yield Wire(reader, writer)
        finally:
            writer.transport.abort()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    server = Server(encrypted_only=True)
    await server.start()
    world = World(tmp_path, server)
    yield world
    if world.listener.server is not None:
        world.listener.server.close()
    await server.stop()


async def test_another_certificate_is_shown_to_the_next_connection_and_open_ones_stay(
    world: World,
) -> None:
    """A CA too, and a key of another kind: OpenSSL would keep the one before, and prefer it."""
    one, two = WebAuthority("one"), WebAuthority("two")
    write(world.folder, one.files(HOST))
    await world.look()
    async with world.connect(one) as wire:
        wire.send(post())
        assert (await wire.response()).status == 202
        write(world.folder, two.files(HOST, with_rsa=True))
        await world.look()
        wire.send(post())
        assert (await wire.response()).status == 202
        async with world.connect(two) as newer:
            newer.send(post())
            assert (await newer.response()).status == 202
    with pytest.raises(ssl.SSLCertVerificationError):
        async with world.connect(one):
            pass
    assert len(world.server.values) == 3


@pytest.mark.parametrize("broken", ["no PEM", "another's key", "gone"])
async def test_what_can_not_be_used_leaves_the_certificate_as_it_was(
    world: World, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    authority = WebAuthority("one")
    write(world.folder, authority.files(HOST))
    await world.look()
    files = {
        "no PEM": {"tls.crt": "no", "tls.key": "no"},
        "another's key": {**authority.files(HOST), "tls.key": authority.files(HOST)["tls.key"]},
        "gone": {"ca.crt": authority.certificate},
    }[broken]
    write(world.folder, files)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            await world.look()
    (said,) = (each.message for each in caplog.records if each.name == tls_listener.log.name)
    assert "can't be used, the previous one stays in use" in said
    assert "PRIVATE" not in said
    async with world.connect(authority) as wire:
        wire.send(post())
        assert (await wire.response()).status == 202


async def test_a_certificate_that_comes_later_is_served_then(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.look()
    assert world.listener.server is None
    assert "no TLS is served" in caplog.text
    authority = WebAuthority("one")
    write(world.folder, authority.files(HOST))
    await world.look()
    async with world.connect(authority) as wire:
        wire.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await wire.response()).status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"", 403),
        (b"X-Forwarded-Proto: https\r\n", 202),
        (b"x-forwarded-proto: HTTPS \r\n", 202),
        (b"x-forwarded-proto: http\r\n", 403),
        (b"x-forwarded-proto: https\r\nx-forwarded-proto: http\r\n", 403),
        (b"x-forwarded-proto: https, http\r\n", 403),
    ],
)
async def test_strict_takes_what_the_gateway_says_came_encrypted(
    world: World, headers: bytes, status: int
) -> None:
    async with connected(world.server.port) as wire:
        wire.send(post(headers))
        answer = await wire.response()
        assert answer.status == status
        assert len(world.server.values) == (status == 202)
        if status == 403:
            assert b"send to the https address in status.address" in answer.body
        wire.send(b"GET /ns/broker HTTP/1.1\r\nhost: x\r\nK-Network-Probe: probe\r\n\r\n")
        assert (await wire.response()).status == 200, "the operator's probes bring no event"


async def test_a_request_refused_over_tls_is_answered_and_no_later_timeout_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TLS connection can't be ended in one direction only, as others are after a refusal."""
    monkeypatch.setattr(connections, "SWEEP_INTERVAL", 0.02)
    monkeypatch.setattr(protocol, "STALLED_REQUEST_TIMEOUT", 0.1)
    monkeypatch.setattr(responses, "LINGER_TIMEOUT", 0.1)
    world.server.shared.close()
    world.server.shared._sweep()
    authority = WebAuthority("one")
    write(world.folder, authority.files(HOST))
    await world.look()
    async with world.connect(authority) as stalled, connected(world.server.port) as idle:
        stalled.send(b"POST /ns/broker HTTP/1.1\r\nhost: x\r\n")
        assert await stalled.statuses(1) == [408]
        assert await stalled.closed() == b""
        monkeypatch.setattr(protocol, "IDLE_TIMEOUT", 0.1)
        assert await idle.closed() == b""
        async with connected(world.server.port) as later:
            assert await later.closed() == b""


async def test_what_is_left_of_a_request_refused_over_tls_is_discarded(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its sender might get a reset in place of the answer."""
    monkeypatch.setattr(responses, "LINGER_TIMEOUT", 60.0)
    authority = WebAuthority("one")
    write(world.folder, authority.files(HOST))
    await world.look()
    async with world.connect(authority) as wire:
        wire.send(b"POST /ns/broker HTTP/1.1\r\nhost: x\r\ncontent-length: 9999999\r\n\r\nx")
        assert await wire.statuses(1) == [413]
        for _ in range(20):
            await wire.sent(b"x" * 65536)
        assert not world.server.one._transport.is_closing()
    assert "Traceback" not in caplog.text


async def test_a_slow_request_over_tls_makes_room_for_another_sender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SLOW_REQUEST_SECONDS", -1.0)
    world = World(tmp_path, Server(Limits(in_flight_bytes=300_000)))
    await world.server.start()
    authority = WebAuthority("one")
    write(world.folder, authority.files(HOST))
    await world.look()
    large = b"POST /ns/broker HTTP/1.1\r\nhost: x\r\n" + EVENT.replace(
        b"length: 0\r\n\r\n", b"length: 200000\r\n\r\n" + b"x" * 200_000
    )
    async with world.connect(authority) as slow, connected(world.server.port) as good:
        slow.send(large[:-1])
        await until(lambda: world.server.shared.receiving_bytes > 200_000)
        good.send(large)
        assert await good.statuses(1) == [202]
        assert await slow.statuses(1) == [503]
    assert world.listener.server is not None
    world.listener.server.close()
    await world.server.stop()


async def test_without_strict_plain_events_are_taken() -> None:
    server = Server()
    await server.start()
    async with server.connect() as wire:
        wire.send(post())
        assert (await wire.response()).status == 202
    await server.stop()


@pytest.mark.slow
def test_a_receiver_without_tls_imports_nothing_of_it() -> None:
    """Its cold start is what an event from zero waits for."""
    code = (
        "import sys, knafka.receiver.__main__; "
        "print([each for each in sys.modules if 'tls_listener' in each or 'cryptography' in each])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_settings_name_a_folder_and_a_port() -> None:
    assert tls_settings({}) is None
    assert tls_settings({"KNAFKA_TLS": "/tls"}) == TlsSettings(Path("/tls"), 8443)
    assert tls_settings({"KNAFKA_TLS": "/tls", "KNAFKA_TLS_PORT": "443"}) == TlsSettings(
        Path("/tls"), 443
    )
    with pytest.raises(InvalidDocument, match="KNAFKA_TLS_PORT"):
        tls_settings({"KNAFKA_TLS_PORT": "0"})
