"""Events that come past Knative's proxy: as load, and at a receiver's end (issue 37)."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from support.http_cases import EVENT
from support.receiving import Server
from support.waiting import until

from knafka.receiver import direct, protocol
from knafka.receiver.direct import (
    EVENTS_PER_HOLD,
    HOLD_SECONDS,
    MAX_HOLDS,
    DirectLoad,
    HeldRequests,
)

LOAD = b"POST /load HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"


class Sender:
    """Direct events, and the requests that are held for them."""

    def __init__(self) -> None:
        self.events = 0
        self.held = 0

    async def send(self, rate: float, seconds: int) -> None:
        for _ in range(seconds):
            self.events += round(rate)
            await asyncio.sleep(1)

    async def hold(self) -> None:
        self.held += 1
        try:
            await asyncio.sleep(HOLD_SECONDS)
        finally:
            self.held -= 1


@pytest.mark.looptime
async def test_requests_are_held_in_proportion_to_direct_events() -> None:
    sender = Sender()
    load = asyncio.create_task(DirectLoad(lambda: sender.events, sender.hold).follow())
    await asyncio.sleep(0.5)
    for rate, held in ((0, 0), (350, 7), (2000, 40), (20, 0)):
        await sender.send(rate, 10)
        assert sender.held == held, rate
    await sender.send(EVENTS_PER_HOLD * 10 * MAX_HOLDS, 10)
    assert sender.held == MAX_HOLDS
    load.cancel()
    await asyncio.wait({load})
    await asyncio.sleep(0)
    assert sender.held == 0


@pytest.mark.looptime
async def test_a_hold_that_fails_is_begun_again_and_ends_nothing() -> None:
    sender, tried = Sender(), Counter[str]()

    async def hold() -> None:
        tried["holds"] += 1

    load = asyncio.create_task(DirectLoad(lambda: sender.events, hold).follow())
    await sender.send(50, 10)
    assert 8 <= tried["holds"] <= 10, "once a second, not as fast as it fails"
    load.cancel()
    await asyncio.wait({load})


async def test_a_held_request_is_answered_at_the_end_at_the_latest(server: Server) -> None:
    """Else a pod that ends would wait for it."""
    server.ingest.held = held = HeldRequests(asyncio.get_running_loop())
    async with server.connect() as wire, server.connect() as other:
        wire.send(LOAD)
        other.send(EVENT)
        assert await other.statuses(1) == [202], "others are answered meanwhile"
        assert held.count == 1
        held.close()
        assert await wire.statuses(1) == [200]
    assert len(server.values) == 1, "it is no event"


async def test_a_receiver_that_shows_no_load_holds_nothing(server: Server) -> None:
    async with server.connect() as wire:
        wire.send(LOAD)
        assert await wire.statuses(1) == [404]


async def test_events_of_this_machine_are_not_direct(server: Server) -> None:
    """Knative's proxy is in the same pod, and counts them itself."""
    async with server.connect() as wire:
        wire.send(EVENT)
        assert await wire.statuses(1) == [202]
    assert server.shared.direct_requests == 0


@pytest.mark.parametrize("host", ["10.0.0.7", "fd00::7"])
async def test_events_from_elsewhere_are(
    server: Server, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(direct, "_peer_address", lambda transport: host)
    async with server.connect() as wire:
        wire.send(EVENT + EVENT)
        assert await wire.statuses(2) == [202, 202]
    assert server.shared.direct_requests == 2


async def test_at_the_end_a_direct_senders_next_event_is_still_taken(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection stays open for a while: the event may be on its way."""
    monkeypatch.setattr(direct, "_peer_address", lambda transport: "10.0.0.7")
    async with server.connect() as busy, server.connect() as idle:
        busy.send(EVENT)
        idle.send(EVENT)
        assert await busy.statuses(1) == await idle.statuses(1) == [202]
        monkeypatch.setattr(protocol, "DIRECT_LINGER_TIMEOUT", 0.2)
        for connection in list(server.shared.open):
            assert isinstance(connection, protocol.ReceiverProtocol)
            connection.shutdown()
        busy.send(EVENT)
        response = await busy.response()
        assert (response.status, response.headers[b"connection"]) == (202, b"close")
        assert await idle.closed() == b""
    await until(lambda: not server.shared.open)
    assert len(server.values) == 3
