"""The scaler while Triggers change, go and come back. The event loop's time is faked."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from support.lookups import LookUps
from support.scaling import SCALING, FakeDrains, FakeLags, egress, now, running, since

from knafka.core.drain import DrainProgress
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.holds import DRAIN_STOP_TIMEOUT
from knafka_operator.scale.lag_checks import LAG_TIMEOUT
from knafka_operator.scale.scaled_groups import MAX_SECONDS_WITHOUT_DRAIN
from knafka_operator.scale.scaler import BUDGET

pytestmark = pytest.mark.looptime


async def test_a_changed_trigger_ends_its_drains_before_it_opens_new_ones(
    lags: FakeLags, drains: FakeDrains
) -> None:
    drains.clean_end = 3.0
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 150
        start = now()
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        for drain in drains.open:
            drain.tell(delivered=5, read=6, unsettled=1)
        await asyncio.sleep(1)
        await scaler.watch("mail", egress(url="http://new/"), SCALING)
        assert since(start, [drain.over or 0 for drain in drains.all]) == [5, 5]
        await asyncio.sleep(1)
        assert [drain.egress.subscriber.url for drain in drains.open] == ["http://new/"] * 2
        counts = scaler.statuses()["mail"].counts
        assert (counts.delivered, counts.read, counts.unsettled) == (10, 12, 0)


async def test_another_scaling_cuts_no_drain(lags: FakeLags, drains: FakeDrains) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 300
        await scaler.watch("mail", egress(), Autoscaling(lag_threshold=300))
        await asyncio.sleep(1)
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        assert (len(drains.open), len(drains.all)) == (3, 3)


async def test_a_trigger_that_moves_to_another_topic_is_looked_for_there(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        await scaler.watch("mail", egress(topic="elsewhere"), SCALING)
        await asyncio.sleep(15)
        assert [topic for _, _, topic in lags.asked] == ["orders", "elsewhere", "elsewhere"]


async def test_a_look_at_one_topic_is_none_at_the_others(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        for number in range(20):
            topic = f"topic-{number}"
            await scaler.watch(topic, egress(topic, topic=topic), SCALING)
        await asyncio.sleep(1)
        checks = scaler._topic_checks
        checks._checks = LookUps(checks._checks)
        await asyncio.sleep(15)
        assert len(lags.asked) == 40
        lags.by_group["group-topic-7"] = 1
        scaler.wake("topic-7")
        await asyncio.sleep(1)
        assert [drain.trigger for drain in drains.open] == ["topic-7"]


async def test_nothing_is_kept_of_a_topic_whose_triggers_are_gone(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        await asyncio.sleep(1)
        before = len(asyncio.all_tasks())
        for _ in range(3):
            await scaler.watch("mail", egress(), SCALING)
            await scaler.watch("bill", egress("bill"), SCALING)
            await asyncio.sleep(1)
            assert scaler.reads("orders")
            await scaler.forget("mail")
            await scaler.forget("bill")
            assert not scaler.reads("orders")
        await asyncio.sleep(1)
        assert len(asyncio.all_tasks()) == before


async def test_a_forgotten_trigger_has_ended_cleanly_and_is_gone(
    lags: FakeLags, drains: FakeDrains
) -> None:
    drains.clean_end = 3.0
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        start = now()
        await scaler.forget("mail")
        assert now() - start == pytest.approx(3)
        assert drains.open == []
        assert scaler.statuses() == {}
        await asyncio.sleep(60)
        assert (len(drains.all), len(lags.asked)) == (1, 1)
        await scaler.forget("never seen")


async def test_a_trigger_forgotten_while_its_lag_is_asked_for_opens_nothing(
    lags: FakeLags, drains: FakeDrains
) -> None:
    lags.takes = 2.0
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        await scaler.forget("mail")
        await asyncio.sleep(5)
    assert drains.all == []


@pytest.mark.parametrize("steps", range(6))
async def test_a_trigger_may_go_at_any_step_of_a_look_and_the_others_are_scaled(
    lags: FakeLags, drains: FakeDrains, steps: int
) -> None:
    """Once the loop ended here, and with it every delivery that needed waking."""
    async with running(lags, drains) as scaler:
        await scaler.watch("gone", egress("gone", topic="short-lived"), SCALING)
        for _ in range(steps):
            await asyncio.sleep(0)
        await scaler.forget("gone")
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        assert [each.trigger for each in drains.open] == ["mail"]


async def test_a_topic_whose_lag_is_not_answered_holds_up_no_other(
    lags: FakeLags, drains: FakeDrains
) -> None:
    lags.silent.add("silent")
    async with running(lags, drains) as scaler:
        await scaler.watch("waiting", egress("waiting", topic="silent"), SCALING)
        await asyncio.sleep(1)
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        assert [each.trigger for each in drains.open] == ["mail"]
        assert [name for _, _, name in lags.asked] == ["silent", "orders"]
        await asyncio.sleep(LAG_TIMEOUT)
        assert "TimeoutError" in str(scaler.statuses()["waiting"].error)


async def test_a_trigger_that_comes_back_waits_for_its_old_drains(
    lags: FakeLags, drains: FakeDrains
) -> None:
    drains.clean_end = 3.0
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        start = now()
        forgotten = asyncio.create_task(scaler.forget("mail"))
        await asyncio.sleep(1)
        await scaler.watch("mail", egress(), SCALING)
        await forgotten
        await asyncio.sleep(0.5)
        assert since(start, drains.times()) == [-1, 3]


async def test_the_end_of_the_scaler_ends_no_drain(lags: FakeLags, drains: FakeDrains) -> None:
    """Dispatchers go on without an operator (design: the drain)."""
    lags.by_group |= {"group-mail": 150, "group-other": 1}
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), SCALING)
        await scaler.watch("other", egress("other", topic="other"), SCALING)
        await asyncio.sleep(1)
        assert len(drains.open) == 3
    assert drains.open == []
    assert not any(drain.told_to_stop for drain in drains.all)


async def test_a_drain_that_does_not_end_when_told_is_given_up(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Its pod is frozen, or gone."""
    drains.clean_end = 1000.0
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        start = now()
        await scaler.forget("mail")
        assert now() - start == pytest.approx(DRAIN_STOP_TIMEOUT)


async def test_a_drain_that_is_not_wanted_any_more_is_ended_before_its_budget_is_spent(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Else it would go on by itself, as if there were no operator."""
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 250
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        lags.by_group["group-mail"] = 90
        await asyncio.sleep(BUDGET - 2)
        assert [drain.told_to_stop for drain in drains.all] == [True, True, False]
        assert len(drains.open) == 1


async def test_its_status_tells_of_congestion(lags: FakeLags, drains: FakeDrains) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        drains.open[0].lines.put_nowait(DrainProgress(congestion="10 attempts failed"))
        await asyncio.sleep(1)
        assert scaler.statuses()["mail"].counts.congestion == "10 attempts failed"


async def test_a_pause_ends_all_drains_and_nothing_opens_one_until_it_is_over(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Neither lag, nor an event on its way, nor offsets that must be kept."""
    drains.clean_end = 3.0
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 150
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        start = now()
        paused = replace(SCALING, min_scale=1, paused=True)
        await scaler.watch("mail", egress(), paused)
        assert since(start, [drain.over or 0 for drain in drains.all]) == [3, 3]
        assert all(drain.told_to_stop for drain in drains.all)
        scaler.wake("orders")
        scaler.prewarm("orders", limit=2)
        await asyncio.sleep(MAX_SECONDS_WITHOUT_DRAIN + 60)
        assert len(drains.all) == 2
        status = scaler.statuses()["mail"]
        assert (status.lag, status.paused, status.scale.reason) == (
            150,
            True,
            "paused; 150 events waiting",
        )
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        assert len(drains.open) == 2
