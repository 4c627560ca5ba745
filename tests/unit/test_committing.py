"""When a drain that holds no unsettled records commits next."""

from __future__ import annotations

import asyncio

import pytest

from knafka.dispatcher.engine.committing import CommitWait

pytestmark = pytest.mark.looptime(start=100.0)


def wait_of(quiet_interval: float, share: float = 0.25, interval: float = 1.0) -> CommitWait:
    return CommitWait(asyncio.get_running_loop(), interval, quiet_interval, share)


async def test_it_lasts_its_interval_if_no_record_comes() -> None:
    await wait_of(5.0).wait()
    assert asyncio.get_running_loop().time() == pytest.approx(105.0)


async def test_a_record_ends_it_at_the_moment_of_its_drain() -> None:
    wait = wait_of(5.0)
    loop = asyncio.get_running_loop()
    loop.call_later(1.5, wait.shorten)
    loop.call_later(1.6, wait.shorten)
    await wait.wait()
    assert loop.time() == pytest.approx(102.25)


async def test_a_longer_interval_has_one_moment_of_each_drain_too() -> None:
    wait = wait_of(10.0, interval=5.0)
    loop = asyncio.get_running_loop()
    loop.call_later(1.5, wait.shorten)
    await wait.wait()
    assert loop.time() == pytest.approx(106.25)


async def test_a_record_at_that_moment_waits_for_the_next_one() -> None:
    wait = wait_of(5.0, share=0.0)
    wait.shorten()
    await wait.wait()
    assert asyncio.get_running_loop().time() == pytest.approx(101.0)


async def test_a_record_does_not_prolong_it() -> None:
    wait = wait_of(0.5, share=0.9)
    wait.shorten()
    await wait.wait()
    assert asyncio.get_running_loop().time() == pytest.approx(100.5)


async def test_a_record_after_its_end_changes_nothing() -> None:
    wait = wait_of(0.5)
    await wait.wait()
    wait.shorten()
    await asyncio.sleep(2)
