"""The HTTP client's connections: timeouts, limits, reuse, closing and TLS, on both event loops."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from support.raw_server import (
    ACCEPTED,
    BIG,
    LONG,
    UNTIL_CLOSE,
    Connection,
    Script,
    accept_everything,
    answering_once,
    on_both_loops,
    serving,
    silent,
)

from knafka.clients.http import http_connection, http_pool
from knafka.clients.http.http_subscriber import random_max_age
from knafka.core.errors import DeliveryError

pytestmark = pytest.mark.usefixtures("idle_connections_stay")


async def half_an_answer(connection: Connection) -> None:
    await connection.request()
    await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
    await connection.ended()


async def deaf(connection: Connection) -> None:
    connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("script", "body"),
    [(silent, b""), (half_an_answer, b""), (deaf, BIG)],
    ids=["never answers", "half an answer", "never reads"],
)
@on_both_loops
async def test_a_server_that_is_too_slow_times_out(script: Script, body: bytes) -> None:
    async with serving(script) as (server, post):
        with pytest.raises(DeliveryError) as caught:
            await post(body, timeout=0.05)
        assert caught.value.reason == "timeout"
        if script is not deaf:
            await server.until_finished(1)


@on_both_loops
async def test_the_timeout_covers_connecting() -> None:
    """A TLS handshake that is never answered."""
    async with serving(silent, scheme="https") as (server, post):
        with pytest.raises(DeliveryError) as caught:
            await post(timeout=0.05)
        assert caught.value.reason == "timeout"
        await server.until_finished(1)


@on_both_loops
async def test_the_timeout_covers_waiting_for_a_connection() -> None:
    async with serving(silent, limit=1) as (_, post):
        first = asyncio.create_task(post(timeout=0.1))
        await asyncio.sleep(0)
        with pytest.raises(DeliveryError, match="stayed busy") as caught:
            await post(timeout=0.02)
        assert caught.value.reason == "timeout"
        with pytest.raises(DeliveryError, match="no response"):
            await first


@on_both_loops
async def test_each_post_has_its_own_deadline_on_a_shared_connection() -> None:
    """One timer serves them all: it must come earlier when asked to, and never too early."""
    pause = 1.0  # half of it is enough for an answer that comes at once, on a busy machine too

    async def script(connection: Connection) -> None:
        await accept(connection)
        await connection.request()
        await asyncio.sleep(pause)
        await connection.send(ACCEPTED)
        await connection.request()
        await connection.ended()

    async def accept(connection: Connection) -> None:
        await connection.request()
        await connection.send(ACCEPTED)

    async with serving(script) as (server, post):
        await post(timeout=pause / 2)
        assert (await post(timeout=LONG)).status == 202
        with pytest.raises(DeliveryError) as caught:
            await post(timeout=pause / 2)
        assert caught.value.reason == "timeout"
        assert server.accepted == 1


@on_both_loops
async def test_a_cancelled_post_drops_its_connection() -> None:
    async with serving(silent, accept_everything, limit=1) as (server, post):
        posting = asyncio.create_task(post())
        await server.until_accepted(1)
        posting.cancel()
        await server.until_finished(1)
        assert (await post()).status == 202
        assert posting.cancelled()
        assert server.accepted == 2


@on_both_loops
async def test_a_post_cancelled_while_it_connects_leaves_nothing_behind() -> None:
    async with serving(silent, scheme="https", limit=1) as (server, post):
        posting = asyncio.create_task(post())
        await server.until_accepted(1)
        posting.cancel()
        await server.until_finished(1)
        assert posting.cancelled()


@on_both_loops
async def test_a_post_cancelled_while_it_waits_gives_up_its_place() -> None:
    async with serving(accept_everything, limit=1) as (server, post):
        first, waiting, last = (asyncio.create_task(post()) for _ in range(3))
        await asyncio.sleep(0)
        waiting.cancel()
        assert (await first).status == (await last).status == 202
        assert waiting.cancelled()
        assert server.accepted == 1


@on_both_loops
async def test_a_slot_given_to_a_post_that_is_just_cancelled_goes_to_the_next() -> None:
    async def post_then_cancel() -> None:
        await post()
        waiting.cancel()

    async with serving(accept_everything, limit=1) as (server, post):
        first = asyncio.create_task(post_then_cancel())
        waiting, last = (asyncio.create_task(post()) for _ in range(2))
        await first
        assert (await last).status == 202
        assert waiting.cancelled()
        assert (await post()).status == 202
        assert server.accepted == 1


@on_both_loops
async def test_connections_never_outnumber_the_limit() -> None:
    async with serving(accept_everything, limit=3) as (server, post):
        responses = await asyncio.gather(*(post() for _ in range(20)))
        assert {response.status for response in responses} == {202}
        assert server.most_open <= server.accepted <= 3


@on_both_loops
async def test_the_limit_of_connections_stays_what_it_was_after_responses() -> None:
    """A post that ends gives back the slot that it took, and no other."""
    async with serving(accept_everything, limit=2) as (server, post):
        for _ in range(3):
            await post()
        await asyncio.gather(*(post() for _ in range(20)))
        await asyncio.gather(*(post() for _ in range(20)))
        assert server.accepted == 2


@on_both_loops
async def test_the_connection_used_last_is_used_next() -> None:
    used: list[int] = []

    async def script(connection: Connection) -> None:
        number = server.accepted
        while True:
            await connection.request()
            used.append(number)
            await connection.send(ACCEPTED)

    async with serving(script) as (server, post):
        await asyncio.gather(post(), post())
        del used[:]
        for _ in range(3):
            await post()
        assert len(set(used)) == 1


@on_both_loops
async def test_a_connection_that_is_old_is_closed_after_its_response() -> None:
    """Between requests, never with one on it; so that a new pod gets its share."""
    async with serving(accept_everything, max_age=lambda: 0.0) as (server, post):
        for number in range(1, 4):
            assert (await post()).status == 202
            await server.until_finished(number)
        assert server.accepted == 3


def test_connections_get_old_at_different_times() -> None:
    ages = [random_max_age() for _ in range(100)]
    assert len(set(ages)) > 90
    assert all(45 <= age <= 75 for age in ages)


@on_both_loops
async def test_behind_one_address_a_server_that_is_added_gets_its_share() -> None:
    """As a plain Service does it: who answers is chosen for each connection."""
    answered = [0, 0]

    async def script(connection: Connection) -> None:
        backend = server.accepted % 2
        while True:
            await connection.request()
            answered[backend] += 1
            await connection.send(ACCEPTED)

    async with serving(script, max_age=lambda: 0.01) as (server, post):
        while min(answered) < 3:
            await post()


@pytest.mark.skipif(sys.platform != "linux", reason="others name them otherwise, or have none")
@on_both_loops
async def test_a_peer_that_is_gone_without_a_word_is_noticed_by_tcp() -> None:
    """Nothing else would tell before the attempt's timeout, 600 s by default."""
    async with serving(accept_everything) as (_, post):
        await post()
        (pool,) = post.client._pools.values()
        (connection,) = pool.connections
        found = connection._transport.get_extra_info("socket")
        for level, option, least, most in (
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1, 30),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1, 10),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 1, 5),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1_000, 60_000),
        ):
            assert least <= found.getsockopt(level, option) <= most


@on_both_loops
async def test_connecting_has_a_timeout_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that drops packets is known before an attempt's long timeout has passed."""
    monkeypatch.setattr(http_pool, "CONNECT_TIMEOUT", 0.05)
    async with serving(silent, scheme="https") as (server, post):
        with pytest.raises(DeliveryError, match="no connection to") as caught:
            await post(timeout=1000)
        assert caught.value.reason == "timeout"
        await server.until_finished(1)


@on_both_loops
async def test_a_connection_that_was_idle_for_long_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_connection, "IDLE_SECONDS", 0.02)
    async with serving(accept_everything) as (server, post):
        await post()
        await server.until_finished(1)
        assert (await post()).status == 202
        assert server.accepted == 2


@on_both_loops
async def test_a_connection_that_the_server_closes_while_idle_is_replaced() -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(ACCEPTED)
        connection.writer.write_eof()
        await connection.ended()

    async with serving(script) as (server, post):
        for round_ in range(1, 4):
            assert (await post()).status == 202
            await server.until_finished(round_)
        assert server.accepted == 3


@on_both_loops
async def test_closing_ends_what_is_under_way_and_what_is_idle() -> None:
    async with serving(accept_everything, silent) as (server, post):
        await post()
        held = asyncio.create_task(post())
        under_way = asyncio.create_task(post())
        await server.until_accepted(2)
        await held
        await post.client.close()
        await server.until_finished(2)
        with pytest.raises(DeliveryError) as caught:
            await under_way
        assert caught.value.reason == "broken"


@pytest.mark.parametrize("is_known", [True, False], ids=["a known origin", "a new origin"])
@on_both_loops
async def test_a_client_that_is_closed_posts_nothing(is_known: bool) -> None:
    async with serving(accept_everything) as (server, post):
        if is_known:
            await post()
        accepted = server.accepted
        await post.client.close()
        with pytest.raises(DeliveryError, match="the client is closed") as caught:
            await post()
        assert caught.value.reason == "broken"
        assert server.accepted == accepted


@on_both_loops
async def test_a_connection_that_is_made_while_the_client_closes_is_dropped() -> None:
    async with serving(silent) as (server, post):
        posting = asyncio.create_task(post())
        await asyncio.sleep(0)
        await post.client.close()
        with pytest.raises(DeliveryError, match="the client is closed"):
            await posting
        await server.until_finished(1)


def connections() -> list[object]:
    """All of this process, whoever has them."""
    return [each for each in gc.get_objects() if type(each).__name__ == "_Connection"]


@on_both_loops
async def test_dropped_connections_leave_no_garbage_behind() -> None:
    """The parser and its connection know each other: the cycle must be cut by hand."""
    async with serving(answering_once(UNTIL_CLOSE)) as (server, post):
        gc.collect()
        others = {id(each) for each in connections()}
        gc.disable()
        try:
            for _ in range(3):
                await post()
            await server.until_finished(3)
            await post.client.close()
            assert [each for each in connections() if id(each) not in others] == []
        finally:
            gc.enable()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a self-signed certificate for 127.0.0.1: cert.pem and key.pem."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", folder / "key.pem", "-out", folder / "cert.pem"),
        ],
        check=True,
        capture_output=True,
    )
    return folder


def server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    return context


@on_both_loops
async def test_https_trusts_the_ca_certificates_of_its_target(certificate: Path) -> None:
    tls, pem = server_context(certificate), (certificate / "cert.pem").read_text()
    async with serving(accept_everything, tls=tls, ca_certs=pem) as (server, post):
        assert (await post(BIG)).status == 202
        assert (await post()).status == 202
        assert server.accepted == 1


@pytest.mark.parametrize("raw", [UNTIL_CLOSE + b"body", b"HTTP/1.1 200 OK\r\n"])
@on_both_loops
async def test_https_ends_with_its_connection_too(certificate: Path, raw: bytes) -> None:
    tls, pem = server_context(certificate), (certificate / "cert.pem").read_text()
    async with serving(answering_once(raw), tls=tls, ca_certs=pem) as (_, post):
        if raw.endswith(b"body"):
            assert (await post()).body == b"body"
        else:
            with pytest.raises(DeliveryError, match="before its response ended"):
                await post()


@on_both_loops
async def test_https_refuses_a_stranger(certificate: Path) -> None:
    async with serving(accept_everything, tls=server_context(certificate)) as (_, post):
        with pytest.raises(DeliveryError, match="CERTIFICATE_VERIFY_FAILED") as caught:
            await post()
        assert caught.value.reason == "refused"


@pytest.mark.parametrize("ca_certs", ["", "no PEM", "-----BEGIN CERTIFICATE-----\nAA\n"])
@on_both_loops
async def test_ca_certificates_that_cannot_be_read_are_refused(ca_certs: str) -> None:
    async with serving(silent, scheme="https", ca_certs=ca_certs) as (_, post):
        with pytest.raises(DeliveryError, match="can't be read") as caught:
            await post()
        assert caught.value.reason == "refused"
