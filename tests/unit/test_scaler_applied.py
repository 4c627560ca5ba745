"""`Scaler.applied`: whether a shard delivers by what its contract's topic says.

The event loop's time is faked.
"""

from __future__ import annotations

import asyncio

import pytest
from support.scaling import FakeDrains, FakeLags, now, running, share

from knafka.core.drain import Ended

pytestmark = pytest.mark.looptime


async def test_a_shard_has_applied_everything_where_nothing_is_asked_to_drain(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        assert await scaler.wait_until_applied("shard-0", 7, timeout=1)
        await share(scaler, "mail")
        await asyncio.sleep(1)
        start = now()
        assert await scaler.wait_until_applied("shard-0", 7, timeout=1)
        assert now() == start


async def test_applied_waits_for_the_line_that_says_so(lags: FakeLags, drains: FakeDrains) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await share(scaler, "mail")
        await asyncio.sleep(1)
        assert not await scaler.wait_until_applied("shard-0", 0, timeout=5), "no line is no answer"
        waiting = asyncio.create_task(scaler.wait_until_applied("shard-0", 7, timeout=60))
        drains.open_shards[0].tell(6)
        await asyncio.sleep(1)
        assert not waiting.done()
        start = now()
        drains.open_shards[0].tell(7)
        assert await waiting
        assert now() == start
        assert await scaler.wait_until_applied("shard-0", 7, timeout=0)
        assert not await scaler.wait_until_applied("shard-0", 8, timeout=5)
        assert now() - start == pytest.approx(5)


async def test_each_request_says_for_itself_what_is_applied(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Another one may be answered by another process."""
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await share(scaler, "mail")
        await asyncio.sleep(1)
        drains.open_shards[0].tell(7)
        drains.open_shards[0].end(Ended.BUDGET)
        await asyncio.sleep(0.6)
        assert not await scaler.wait_until_applied("shard-0", 7, timeout=5)
        drains.open_shards[0].tell(7)
        await asyncio.sleep(0.1)
        assert await scaler.wait_until_applied("shard-0", 7, timeout=5)


async def test_a_shard_that_is_asked_again_and_again_has_not_said_what_is_applied(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Its process may live and deliver though the request broke off."""
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await share(scaler, "mail")
        await asyncio.sleep(1)
        drains.open_shards[0].tell(7)
        drains.open_shards[0].break_off()
        await asyncio.sleep(0.1)
        assert drains.open_shards == []
        assert not await scaler.wait_until_applied("shard-0", 7, timeout=0.1)


@pytest.mark.parametrize("empties", [True, False])
async def test_a_shard_whose_request_ends_has_applied_everything(
    lags: FakeLags, drains: FakeDrains, empties: bool
) -> None:
    drains.clean_end = 3.0
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await share(scaler, "mail")
        await asyncio.sleep(1)
        waiting = asyncio.create_task(scaler.wait_until_applied("shard-0", 7, timeout=60))
        await asyncio.sleep(0)
        lags.by_group["group-mail"] = 0
        start = now()
        if empties:
            await scaler.forget("mail")
        else:
            drains.open_shards[0].end(Ended.IDLE)
        assert await waiting
        assert now() - start == pytest.approx(3 if empties else 0)
