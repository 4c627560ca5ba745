"""Triggers that come into a shard, change, move and leave, as the scaler holds them.

The event loop's time is faked.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from support.scaling import (
    SCALING,
    SHARD,
    SLOW,
    FakeDrains,
    FakeLags,
    a_shard,
    counts,
    egress,
    now,
    running,
    share,
    since,
)

from knafka.core.drain import DrainProgress, Ended

pytestmark = pytest.mark.looptime


async def test_a_changed_egress_goes_on_in_the_request_of_its_shard(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """The contract's topic changes it; the request is the shard's."""
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 12
        await share(scaler, "mail")
        await asyncio.sleep(1)
        drains.open_shards[0].tell(mail=DrainProgress(read=9, delivered=9))
        await asyncio.sleep(0.1)
        start = now()
        await scaler.watch("mail", egress(url="http://new/"), SCALING, SHARD)
        assert now() == start
        assert (scaler.statuses()["mail"].lag, counts(scaler, "mail").delivered) == (12, 9)
        drains.open_shards[0].tell(mail=DrainProgress(read=2, delivered=2))
        await asyncio.sleep(30)
        assert counts(scaler, "mail").delivered == 11, "its next drain counts anew"
        assert len(drains.of_shards) == 1


async def test_a_changed_egress_on_another_topic_is_looked_for_there(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await share(scaler, "mail", autoscaling=SLOW)
        await asyncio.sleep(1)
        await scaler.watch("mail", egress(topic="elsewhere"), SLOW, SHARD)
        assert scaler.statuses()["mail"].lag is None
        await asyncio.sleep(1)
        assert [topic for _, _, topic in lags.asked] == ["orders", "elsewhere"]
        assert scaler.topics_with_drains() == {"elsewhere"}
        assert len(drains.of_shards) == 1


async def test_a_changed_egress_with_another_group_ends_no_request_either(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group |= {"group-mail": 1, "group-post": 1}
        await share(scaler, "mail")
        await asyncio.sleep(1)
        drains.open_shards[0].tell(mail=DrainProgress(read=9, delivered=9))
        await asyncio.sleep(0.1)
        await scaler.watch("mail", egress("post"), SCALING, SHARD)
        drains.open_shards[0].tell(post=DrainProgress(read=2, delivered=2))
        await asyncio.sleep(1)
        assert counts(scaler, "mail").delivered == 11
        assert [each.told_to_stop for each in drains.of_shards] == [False]


async def test_a_trigger_that_leaves_and_comes_back_is_counted_once(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await share(scaler, "mail", "bill")
        await asyncio.sleep(1)
        shard = drains.open_shards[0]
        shard.tell(mail=DrainProgress(read=3, delivered=3), bill=DrainProgress(read=3))
        await asyncio.sleep(0.1)
        await scaler.watch("mail", egress(), replace(SCALING, paused=True), SHARD)
        assert (scaler.statuses()["mail"].replicas, scaler.statuses()["mail"].shard) == (0, None)
        shard.tell(mail=DrainProgress(read=4, delivered=4, partitions=(1,)))
        await asyncio.sleep(0.1)
        assert counts(scaler, "mail").delivered == 3
        await share(scaler, "mail")
        assert counts(scaler, "mail") == DrainProgress(read=4, delivered=4, partitions=(1,))
        assert scaler.statuses()["mail"].replicas == 1
        shard.tell(mail=DrainProgress(read=5, delivered=5))
        await asyncio.sleep(0.1)
        assert counts(scaler, "mail").delivered == 5
        assert len(drains.of_shards) == 1


async def test_what_was_wrong_before_a_trigger_left_is_not_wrong_when_it_comes_back(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await share(scaler, "mail", "bill")
        await asyncio.sleep(1)
        drains.open_shards[0].tell(mail=DrainProgress(error="no such topic", partitions=(1,)))
        await asyncio.sleep(0.1)
        assert scaler.statuses()["mail"].error == "the drain failed: no such topic"
        await scaler.watch("mail", egress(), replace(SCALING, paused=True), SHARD)
        assert scaler.statuses()["mail"].error is None
        await share(scaler, "mail")
        assert scaler.statuses()["mail"].error is None
        assert counts(scaler, "mail").partitions == ()


async def test_a_paused_trigger_is_taken_out_of_a_shard_that_goes_on(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group |= {"group-mail": 1, "group-bill": 1}
        await share(scaler, "mail", "bill", autoscaling=SLOW)
        await asyncio.sleep(1)
        lags.by_group["group-bill"] = 0
        start = now()
        await scaler.watch("mail", egress(), replace(SLOW, paused=True), SHARD)
        assert (now(), len(drains.open_shards)) == (start, 1)
        await asyncio.sleep(1)
        drains.open_shards[0].end(Ended.IDLE)
        await asyncio.sleep(100)
        assert drains.open_shards == [], "what is paused needs no drain"
        assert scaler.statuses()["mail"].scale.reason == "paused; 1 event waiting"


@pytest.mark.parametrize("how", ["forget", "pause", "own", "other shard"])
async def test_the_last_trigger_that_leaves_a_shard_ends_its_request(
    lags: FakeLags, drains: FakeDrains, how: str
) -> None:
    drains.clean_end = 3.0
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await share(scaler, "mail", "bill")
        await asyncio.sleep(1)
        await scaler.forget("bill")
        assert len(drains.open_shards) == 1
        start = now()
        match how:
            case "forget":
                await scaler.forget("mail")
            case "pause":
                await scaler.watch("mail", egress(), replace(SCALING, paused=True), SHARD)
            case "own":
                await scaler.watch("mail", egress(), SCALING)
            case "other shard":
                await scaler.watch("mail", egress(), SCALING, a_shard("shard-1"))
        assert now() - start == pytest.approx(3)
        assert [each.told_to_stop for each in drains.of_shards] == [True]
        assert "shard-0" not in scaler._shards
        await asyncio.sleep(1)
        assert len(drains.open) == (how == "own")
        assert [each.shard for each in drains.open_shards] == ["shard-1"] * (how == "other shard")


async def test_a_trigger_that_moves_into_a_shard_ends_its_own_drains_first(
    lags: FakeLags, drains: FakeDrains
) -> None:
    drains.clean_end = 3.0
    async with running(lags, drains) as scaler:
        lags.by_group |= {"group-mail": 150, "group-bill": 1}
        await share(scaler, "bill", autoscaling=SLOW)
        await scaler.watch("mail", egress(), SLOW)
        await asyncio.sleep(1)
        assert (len(drains.open), len(drains.open_shards)) == (2, 1)
        drains.open_shards[0].tell(bill=DrainProgress(), mail=DrainProgress(delivered=1))
        for each in drains.open:
            each.tell(delivered=5)
        start = now()
        moving = asyncio.create_task(share(scaler, "mail", autoscaling=SLOW))
        await asyncio.sleep(1)
        assert (scaler.statuses()["mail"].replicas, scaler.statuses()["mail"].shard) == (2, None)
        await moving
        assert now() - start == pytest.approx(3)
        status = scaler.statuses()["mail"]
        assert (status.replicas, status.shard, status.counts.delivered) == (1, "shard-0", 11)
        assert drains.open == []


async def test_a_move_into_a_shard_goes_on_if_nobody_waits_for_it(
    lags: FakeLags, drains: FakeDrains
) -> None:
    drains.clean_end = 3.0
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), SLOW)
        await asyncio.sleep(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await share(scaler, "mail", autoscaling=SLOW)
        assert drains.of_shards == []
        await asyncio.sleep(3)
        assert (len(drains.open), len(drains.open_shards)) == (0, 1)


async def test_a_trigger_that_leaves_a_shard_of_others_has_its_own_drains_at_once(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Its record is gone by now, so the shard's drain of it has ended."""
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 250
        await share(scaler, "mail", "bill")
        await asyncio.sleep(1)
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(0.3)
        assert (len(drains.open), len(drains.open_shards)) == (3, 1)
        assert not drains.of_shards[0].told_to_stop


async def test_what_comes_into_a_shard_that_ends_waits_for_it(
    lags: FakeLags, drains: FakeDrains
) -> None:
    drains.clean_end = 3.0
    async with running(lags, drains) as scaler:
        lags.by_group |= {"group-mail": 1, "group-bill": 1}
        await share(scaler, "mail", autoscaling=SLOW)
        await asyncio.sleep(1)
        start = now()
        forgotten = asyncio.create_task(scaler.forget("mail"))
        await asyncio.sleep(1)
        await share(scaler, "bill", autoscaling=SLOW)
        scaler.prewarm("orders", limit=5)
        await forgotten
        await asyncio.sleep(1)
        assert since(start, [each.began for each in drains.of_shards]) == [-1, 3]
