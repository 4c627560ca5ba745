"""Two replicas and one Lease, as time goes by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from knafka_operator.kube_api.leadership import Leadership, lease_manifest, lease_of_document
from knafka_operator.kube_api.lease import (
    CLAIM_CHECK_INTERVAL,
    DURATION,
    RENEW_WITHIN,
    Election,
    Lease,
)
from knafka_operator.model.cluster import ClusterError

pytestmark = pytest.mark.looptime


class MemoryLeases:
    """`Leases` that can be away, for one replica each; what is stored is shared."""

    def __init__(self, stored: dict[str, Lease]) -> None:
        self.stored = stored
        self.away = False
        self.failure: Exception | None = None
        self.latency = 0.01
        self.is_asked = False

    async def read(self) -> Lease | None:
        await self._answer()
        return self.stored.get("lease")

    async def write(self, lease: Lease) -> Lease | None:
        await self._answer()
        there = self.stored.get("lease")
        if lease.version != ("" if there is None else there.version):
            return None
        self.stored["lease"] = replace(lease, version=str(int(lease.version or 0) + 1))
        return self.stored["lease"]

    async def _answer(self) -> None:
        self.is_asked = True
        await asyncio.sleep(self.latency)
        self.is_asked = False
        if self.failure is not None:
            raise self.failure
        if self.away:
            raise ClusterError("can't read it: there is no answer")


def _replica(name: str, stored: dict[str, Lease]) -> tuple[Leadership, MemoryLeases]:
    leases = MemoryLeases(stored)
    return Leadership(leases, Election(name), asyncio.get_running_loop().time), leases


async def _until(condition: Callable[[], bool]) -> float:
    """Seconds until then."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():  # noqa: ASYNC110  # on a clock of its own
        await asyncio.sleep(0.01)
    return loop.time() - began


@pytest.mark.conformance("BUS-28")
async def test_a_replica_waits_for_as_long_as_another_renews() -> None:
    stored: dict[str, Lease] = {}
    (first, _), (second, _) = (_replica(name, stored) for name in "ab")
    await first.acquire()
    keeping = asyncio.create_task(first.keep_renewing())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(600):
            await second.acquire()
    assert first.leads()
    keeping.cancel()


async def test_a_replica_that_was_killed_is_followed_within_sixteen_seconds() -> None:
    stored: dict[str, Lease] = {}
    (first, _), (second, _) = (_replica(name, stored) for name in "ab")
    await first.acquire()
    keeping, waiting = (
        asyncio.create_task(each) for each in (first.keep_renewing(), second.acquire())
    )
    await asyncio.sleep(60)
    keeping.cancel()
    assert await _until(waiting.done) < DURATION + CLAIM_CHECK_INTERVAL + 0.1
    assert second.leads()


async def test_a_replica_that_releases_is_followed_at_once() -> None:
    stored: dict[str, Lease] = {}
    (first, _), (second, _) = (_replica(name, stored) for name in "ab")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(2.5)
    await first.release()
    assert not first.leads()
    assert await _until(waiting.done) < CLAIM_CHECK_INTERVAL + 0.1


async def test_a_replica_that_gets_no_answer_stops_before_another_begins() -> None:
    stored: dict[str, Lease] = {}
    (first, leases), (second, _) = (_replica(name, stored) for name in "ab")
    await first.acquire()
    keeping, waiting = (
        asyncio.create_task(each) for each in (first.keep_renewing(), second.acquire())
    )
    await asyncio.sleep(60)
    leases.away = True
    assert await _until(lambda: not first.leads()) < RENEW_WITHIN + 0.1
    assert not second.leads()
    await waiting
    assert second.leads()
    with suppress(asyncio.CancelledError):
        await keeping


async def test_a_short_absence_of_the_api_server_changes_nothing() -> None:
    leadership, leases = _replica("a", {})
    await leadership.acquire()
    keeping = asyncio.create_task(leadership.keep_renewing())
    for _ in range(10):
        leases.away = True
        await asyncio.sleep(7.5)
        leases.away = False
        await asyncio.sleep(2)
        assert leadership.leads()
    keeping.cancel()


async def test_an_api_server_that_takes_two_seconds_to_answer_costs_nobody_the_lease() -> None:
    """Issue 30: 10 restarts in 42 minutes under load."""
    stored: dict[str, Lease] = {}
    (first, ours), (second, theirs) = (_replica(name, stored) for name in "ab")
    ours.latency = theirs.latency = 2.0
    await first.acquire()
    keeping, waiting = (
        asyncio.create_task(each) for each in (first.keep_renewing(), second.acquire())
    )
    for _ in range(6000):
        await asyncio.sleep(0.1)
        assert first.leads()
    assert not waiting.done()
    keeping.cancel()
    waiting.cancel()


async def test_a_lease_is_released_though_a_renewal_is_under_way() -> None:
    """Else it would be refused as of an older version, and the next replica wait its duration."""
    stored: dict[str, Lease] = {}
    leadership, leases = _replica("a", stored)
    leases.latency = 1.0
    await leadership.acquire()
    keeping = asyncio.create_task(leadership.keep_renewing())
    await _until(lambda: leases.is_asked)
    await leadership.release()
    assert stored["lease"].holder == ""
    await keeping
    assert stored["lease"].holder == ""


async def test_a_bug_in_a_renewal_loses_the_lease_by_the_clock_and_not_the_renewals() -> None:
    leadership, leases = _replica("a", {})
    await leadership.acquire()
    keeping = asyncio.create_task(leadership.keep_renewing())
    leases.failure = KeyError("metadata")
    await asyncio.sleep(5)
    assert leadership.leads()
    leases.failure = None
    await asyncio.sleep(60)
    assert leadership.leads()
    keeping.cancel()


async def test_a_replica_that_waits_begins_to_renew_as_soon_as_it_leads() -> None:
    """Whatever else its process still has to do before it acts."""
    leadership, _ = _replica("a", {})
    acquired = asyncio.Event()
    holding = asyncio.create_task(leadership.hold(acquired.set))
    await acquired.wait()
    await asyncio.sleep(600)
    assert leadership.leads()
    holding.cancel()


async def test_what_is_stored_is_read_as_it_was_written() -> None:
    lease = Lease("a_1", 6.0, 2, "77")
    document = lease_manifest(lease, "knafka", datetime(2026, 11, 22, tzinfo=UTC))
    assert document["spec"]["renewTime"] == "2026-11-22T00:00:00.000000Z"
    assert lease_of_document(document) == lease


async def test_a_lease_that_somebody_emptied_is_free() -> None:
    assert lease_of_document({"metadata": {"resourceVersion": "3"}}) == Lease("", DURATION, 0, "3")
