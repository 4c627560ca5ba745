"""The fast way in: what becomes of its connections, idle, slow, gone or waiting for Kafka."""

from __future__ import annotations

import asyncio
import gc

import pytest
from support.http_cases import EVENT, HEAD
from support.receiving import Server
from support.waiting import until

from knafka.receiver import connections, protocol, responses
from knafka.receiver.protocol import IDLE_TIMEOUT, STALLED_REQUEST_TIMEOUT, ReceiverProtocol
from knafka.receiver.responses import PIPELINED


async def test_half_a_request_and_then_silence_is_408(server: Server) -> None:
    async with server.connect() as wire:
        wire.send(HEAD + b"content-length: 10\r\n\r\nhalf")
        await until(lambda: server.body_bytes == 4)
        now = asyncio.get_running_loop().time()
        server.one.expire(now + STALLED_REQUEST_TIMEOUT / 2)
        assert server.refused == {}
        server.one.expire(now + STALLED_REQUEST_TIMEOUT + 1)
        server.one.expire(now + STALLED_REQUEST_TIMEOUT + 1)
        assert await wire.statuses(1) == [408]
        assert await wire.closed() == b""
    assert server.refused == {"408": 1}


async def test_an_idle_connection_is_closed_after_a_while(server: Server) -> None:
    async with server.connect() as wire:
        wire.send(EVENT)
        assert await wire.statuses(1) == [202]
        now = asyncio.get_running_loop().time()
        server.one.expire(now + IDLE_TIMEOUT / 2)
        assert server.shared.open
        server.one.expire(now + IDLE_TIMEOUT + 1)
        assert await wire.closed() == b""


async def test_a_connection_that_waits_for_kafka_is_not_idle(server: Server) -> None:
    server.log.hold()
    async with server.connect() as wire:
        wire.send(EVENT)
        await until(lambda: len(server.log.held) == 1)
        server.one.expire(asyncio.get_running_loop().time() + 10 * IDLE_TIMEOUT)
        server.log.release()
        assert await wire.statuses(1) == [202]


async def test_the_sweep_looks_at_every_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SWEEP_INTERVAL", 0.02)
    monkeypatch.setattr(protocol, "IDLE_TIMEOUT", 0.05)
    server.shared.close()
    server.shared._sweep()
    async with server.connect() as first, server.connect() as second:
        assert await first.closed() == b""
        assert await second.closed() == b""


class BrokenConnection:
    """An `OpenConnection` that fails whatever is asked of it."""

    last_progress_at = 0.0
    is_aborted = False

    def expire(self, now: float) -> None:
        raise RuntimeError("broken")

    def give_up_request(self) -> None:
        raise RuntimeError("broken")

    def forget_route(self) -> None:
        raise RuntimeError("broken")

    def abort(self) -> None:
        self.is_aborted = True


async def test_a_connection_that_fails_ends_no_sweep_and_only_itself(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SWEEP_INTERVAL", 0.02)
    monkeypatch.setattr(protocol, "IDLE_TIMEOUT", 0.05)
    broken = BrokenConnection()
    server.shared.open.add(broken)
    server.shared.close()
    server.shared._sweep()
    async with server.connect() as wire:
        assert await wire.closed() == b""
    assert broken.is_aborted
    server.shared.open.discard(broken)


async def test_a_slow_connection_that_fails_takes_the_room_from_nobody(server: Server) -> None:
    broken = BrokenConnection()
    server.shared.open.add(broken)
    server.shared.receiving_bytes = 2**40
    server.shared.make_room()
    assert broken.is_aborted
    server.shared.receiving_bytes = 0
    server.shared.open.discard(broken)


@pytest.mark.parametrize("body", [b"", b"half"])
async def test_a_sender_that_hangs_up_mid_request_stores_nothing(
    server: Server, body: bytes
) -> None:
    async with server.connect() as wire:
        wire.send(HEAD + b"content-length: 10\r\n\r\n" + body)
        await until(lambda: server.body_bytes == len(body) and bool(server.shared.open))
        wire.writer.write_eof()
        assert await wire.closed() == b""
    await until(lambda: not server.shared.open)
    assert server.values == []


async def test_a_sender_that_says_no_more_still_gets_its_answers(server: Server) -> None:
    server.log.hold()
    async with server.connect() as wire:
        wire.send(EVENT + EVENT + HEAD)
        wire.writer.write_eof()
        await until(lambda: len(server.log.held) == 2)
        await asyncio.sleep(0.05)
        server.log.release()
        assert await wire.statuses(2) == [202, 202]
        assert await wire.closed() == b""


async def test_an_answer_for_a_connection_that_is_gone_is_dropped(server: Server) -> None:
    server.log.hold()
    async with server.connect() as wire:
        wire.send(EVENT * 3)
        await until(lambda: len(server.log.held) == 3)
        wire.reset()
    await until(lambda: not server.shared.open)
    server.log.release()
    assert len(server.values) == 3
    assert server.refused == {"202": 3}


async def test_reading_stops_while_many_requests_wait_for_kafka(server: Server) -> None:
    server.log.hold()
    async with server.connect() as wire:
        for _ in range(PIPELINED):
            await wire.sent(EVENT)
        await until(lambda: len(server.log.held) == PIPELINED)
        await wire.sent(EVENT * 10)
        await asyncio.sleep(0.1)
        assert len(server.log.held) == PIPELINED
        server.log.release()
        assert await wire.statuses(PIPELINED + 10) == [202] * (PIPELINED + 10)


async def test_reading_stops_while_the_client_does_not_read(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers that nobody reads must not pile up: 405 is much longer than what asks for it."""
    ask = b"GET /ns/broker HTTP/1.1\r\nhost: x\r\n\r\n" * 2000
    async with server.connect() as wire:
        wire.reader._transport.pause_reading()  # type: ignore[attr-defined]
        asked = 0
        while asked < 400:
            wire.send(ask)
            asked += 1
            try:
                async with asyncio.timeout(0.3):
                    await wire.writer.drain()
            except TimeoutError:
                break
        assert asked < 400, "the server never stopped reading"
        held = server.one._transport.get_write_buffer_size()
        assert held < 4_000_000
        monkeypatch.setattr(responses, "LINGER_TIMEOUT", 0.05)

        def expired() -> bool:
            for connection in list(server.shared.open):
                connection.expire(asyncio.get_running_loop().time() + IDLE_TIMEOUT + 1)
            return not server.shared.open

        await until(expired)


@pytest.mark.slow
async def test_a_client_that_reads_late_still_gets_every_answer(server: Server) -> None:
    ask = b"GET /ns/broker HTTP/1.1\r\nhost: x\r\n\r\n"
    async with server.connect() as wire:
        wire.reader._transport.pause_reading()  # type: ignore[attr-defined]
        wire.send(ask * 60_000)
        await until(lambda: not server.one._responses._is_writable)
        wire.reader._transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(60_000):
            assert (await wire.response()).status == 405
        wire.send(EVENT)
        assert await wire.statuses(1) == [202]


async def test_the_end_of_the_server_answers_what_is_under_way(server: Server) -> None:
    server.log.hold()
    async with server.connect() as idle, server.connect() as waiting, server.connect() as half:
        idle.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert await idle.statuses(1) == [200]
        waiting.send(EVENT + EVENT)
        half.send(HEAD + b"content-length: 2\r\n\r\nh")
        await until(lambda: len(server.log.held) == 2 and server.body_bytes == 1)
        for connection in list(server.shared.open):
            assert isinstance(connection, ReceiverProtocol)
            connection.shutdown()
            connection.shutdown()
        assert await idle.closed() == b""
        half.send(b"i" + EVENT)
        await until(lambda: len(server.log.held) == 3)
        waiting.send(EVENT)
        server.log.release()
        for wire, count in ((waiting, 2), (half, 1)):
            responses = [await wire.response() for _ in range(count)]
            assert [each.status for each in responses] == [202] * count
            assert responses[-1].headers[b"connection"] == b"close"
            assert await wire.closed() == b""
    assert len(server.values) == 3


async def test_a_bug_behind_it_costs_one_connection_and_is_logged(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(server.ingest, "receive", broken)
        async with server.connect() as wire:
            wire.send(EVENT)
            assert await wire.closed() == b""
    assert "ZeroDivisionError" in caplog.text
    async with server.connect() as wire:
        wire.send(EVENT)
        assert await wire.statuses(1) == [202]


async def test_connections_that_are_gone_leave_nothing_behind(server: Server) -> None:
    async with server.connect() as wire:
        wire.send(EVENT)
        assert await wire.statuses(1) == [202]
    await until(lambda: not server.shared.open)
    gc.collect()
    ours = (each for each in gc.get_objects() if type(each) is ReceiverProtocol)
    assert not [each for each in ours if each._shared is server.shared]


async def test_a_broken_request_after_a_good_one_is_counted_for_no_broker(server: Server) -> None:
    """Until its head is whole, nobody knows where it was to go."""
    async with server.connect() as wire:
        wire.send(EVENT + b"garbage\r\n\r\n")
        assert await wire.statuses(2) == [202, 400]
    counts = {
        metric.name: {labels.get("code"): count for labels, count in metric.samples}
        for metric in server.ingest.metrics()
    }
    assert counts["knafka_receiver_events_total"] == {"202": 1}
    assert counts["knafka_receiver_unrouted_total"] == {"400": 1}
