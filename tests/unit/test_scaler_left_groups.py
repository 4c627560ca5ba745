"""Drains that nobody holds: none is left in its group when what comes after it begins. Fake time.

A pod that asks for itself may reach another one of its Service, which drains from then on; the
operator's requests know nothing of it. By an old filter it would pass over, for good, events that
the new one accepts (KN-TRG-05).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from support.scaling import SCALING, SHARD, FakeDrains, FakeLags, a_shard, egress, now, running

from knafka.core.errors import LogError
from knafka.core.filters.declared_filters import Exact
from knafka_operator.scale.leaving_groups import LEAVE_TIMEOUT
from knafka_operator.scale.scaler import Scaler

pytestmark = pytest.mark.looptime

EDITED = egress().model_copy(update={"filters": (Exact(exact={"type": "new"}),)})


async def draining(scaler: Scaler, lags: FakeLags) -> None:
    """A Trigger whose dispatcher is asked for, beside another one that asks for itself."""
    lags.by_group["group-mail"] = 50
    await scaler.watch("mail", egress(), SCALING)
    await asyncio.sleep(5)
    lags.members_of["group-mail"] = ["rdkafka"]


def leave(lags: FakeLags, seconds: float) -> None:
    asyncio.get_running_loop().call_later(seconds, lags.members_of.clear)


async def test_an_edit_is_over_when_nobody_is_left_who_delivers_by_what_was_before(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        await draining(scaler, lags)
        began = now()
        leave(lags, 17)
        await scaler.watch("mail", EDITED, SCALING)
        assert now() - began == pytest.approx(17, abs=1)
        await asyncio.sleep(5)
        first, *others = drains.all
        assert first.told_to_stop
        assert others
        assert all((each.egress, each.began >= began + 17) == (EDITED, True) for each in others)


async def test_a_trigger_moves_into_a_shard_when_nobody_delivers_it_alone(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        await draining(scaler, lags)
        began = now()
        leave(lags, 17)
        await scaler.watch("mail", egress(), SCALING, SHARD)
        await asyncio.sleep(5)
        assert all(each.began >= began + 17 for each in drains.of_shards)
        assert drains.of_shards


async def test_what_is_delivered_again_waits_for_those_of_before_it_stopped(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """As a Trigger does whose subscriber was not found for a while."""
    async with running(lags, drains) as scaler:
        await draining(scaler, lags)
        await scaler.forget("mail")
        began = now()
        leave(lags, 17)
        await scaler.watch("mail", EDITED, SCALING)
        assert now() - began == pytest.approx(17, abs=1)


async def test_while_kafka_can_not_say_who_is_in_a_group_it_is_asked_again(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        await draining(scaler, lags)
        lags.members_error = LogError("away")

        def come_back() -> None:
            lags.members_error = None
            lags.members_of.clear()

        asyncio.get_running_loop().call_later(10, come_back)
        began = now()
        await scaler.watch("mail", EDITED, SCALING)
        assert now() - began == pytest.approx(10, abs=1)


async def test_a_member_that_never_leaves_is_told_and_holds_nobody_for_ever(
    lags: FakeLags, drains: FakeDrains, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody else's consumer may have the group's name."""
    async with running(lags, drains) as scaler:
        await draining(scaler, lags)
        began = now()
        await scaler.watch("mail", EDITED, SCALING)
        assert now() - began == pytest.approx(LEAVE_TIMEOUT, abs=1)
        (told,) = (each.message for each in caplog.records if "mail" in each.message)
        assert told == (
            "mail was changed, and may still be delivered as it was before: "
            "group group-mail has 1 members"
        )


@pytest.mark.parametrize("shard", [None, SHARD])
async def test_nobody_is_asked_for_where_nothing_of_its_own_was_before(
    lags: FakeLags, drains: FakeDrains, shard: object
) -> None:
    """As at the start of an operator, with a thousand Triggers, some of them being delivered."""
    async with running(lags, drains) as scaler:
        lags.members_of["group-mail"] = ["rdkafka"]
        began = now()
        await scaler.watch("mail", egress(), SCALING, a_shard() if shard else None)
        await scaler.watch(
            "mail", egress(), replace(SCALING, max_scale=5), a_shard() if shard else None
        )
        assert (now(), lags.looked_for_members) == (began, [])


async def test_pods_of_min_scale_are_not_waited_for_in_the_group(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """They drain unasked, the new ones too: those of before are waited for as pods."""
    async with running(lags, drains) as scaler:
        await draining(scaler, lags)
        await scaler.watch("mail", EDITED, replace(SCALING, min_scale=1))
        assert lags.looked_for_members == []
