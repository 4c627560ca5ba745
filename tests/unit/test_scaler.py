"""The scaler: when it opens drains, and how it holds them. The event loop's time is faked."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress

import pytest
from support.scaling import SCALING, FakeDrains, FakeLags, egress, now, running, since

from knafka.core.drain import DrainProgress, DrainRequest, Ended
from knafka.core.errors import LogError
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.decide import Cause, Scale
from knafka_operator.scale.holds import HOLD_GRACE_PERIOD
from knafka_operator.scale.scaled_groups import MAX_SECONDS_WITHOUT_DRAIN
from knafka_operator.scale.scaler import BUDGET, Scaler

pytestmark = pytest.mark.looptime


async def test_hundreds_of_idle_triggers_cost_one_question_per_topic_and_interval(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        for number in range(300):
            await scaler.watch(f"t{number}", egress(f"t{number}"), SCALING)
        await scaler.watch("other", egress("other", topic="other"), SCALING)
        await asyncio.sleep(35)
    assert [topic for _, _, topic in lags.asked] == ["orders", "other"] * 4
    assert {len(groups) for _, groups, _ in lags.asked} == {300, 1}
    assert drains.all == []


async def test_lag_opens_as_many_drains_as_it_takes(lags: FakeLags, drains: FakeDrains) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 250
        await scaler.watch("mail", egress(), Autoscaling(cooldown_period=5))
        await asyncio.sleep(1)
        assert [drain.request for drain in drains.open] == [DrainRequest(idle=5, budget=BUDGET)] * 3
        assert {drain.trigger for drain in drains.open} == {"mail"}
        status = scaler.statuses()["mail"]
        assert (status.lag, status.replicas) == (250, 3)
        assert status.scale == Scale(3, "250 events waiting; one dispatcher per 100")
        lags.by_group["group-mail"] = 450
        await asyncio.sleep(10)
        assert len(drains.open) == 5


async def test_a_question_without_an_answer_is_counted_and_the_decision_before_holds(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 250
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        lags.errors["orders"] = LogError("away")
        await asyncio.sleep(25)
        counts = scaler.counts("mail")
        assert counts is not None
        assert not counts.lag_known
        assert counts.decisions == {Cause.LAG: 1, Cause.LAG_UNKNOWN: 2}
        assert counts.wakes == {Cause.LAG: 1}
        assert scaler.statuses()["mail"].scale.replicas == 3
        lags.errors.clear()
        await asyncio.sleep(10)
        counts = scaler.counts("mail")
        assert counts is not None
        assert counts.lag_known
    assert scaler.counts("bill") is None


async def test_a_drain_is_never_cut_to_scale_down(lags: FakeLags, drains: FakeDrains) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 250
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        lags.by_group["group-mail"] = 0
        await asyncio.sleep(100)
        assert len(drains.open) == 3
        assert scaler.statuses()["mail"].scale == Scale(0, "nothing waits")
        drains.open[0].end(Ended.IDLE)
        await asyncio.sleep(100)
        assert (len(drains.open), len(drains.all)) == (2, 3)


async def test_a_drain_that_spent_its_budget_is_opened_again_while_it_is_wanted(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 150
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(5)
        drains.open[0].end(Ended.BUDGET)
        await asyncio.sleep(0.01)
        assert (len(drains.open), len(drains.all)) == (2, 3)
        lags.by_group["group-mail"] = 50
        await asyncio.sleep(10)
        drains.open[0].end(Ended.BUDGET)
        await asyncio.sleep(100)
        assert (len(drains.open), len(drains.all)) == (1, 3)
        assert scaler.statuses()["mail"].error is None


async def test_a_drain_that_fails_is_opened_again_after_longer_and_longer_pauses(
    lags: FakeLags, drains: FakeDrains
) -> None:
    drains.script = Ended.FAILED
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        start = now()
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(40)
        assert since(start, drains.times()) == [0, 0.5, 1.5, 3.5, 7.5, 15.5, 25.5, 35.5]
        status = scaler.statuses()["mail"]
        assert (status.replicas, status.error) == (0, "the drain failed: it did not say why")
        drains.script = None
        await asyncio.sleep(10)
        drains.open[0].tell(delivered=1)
        await asyncio.sleep(1)
        assert scaler.statuses()["mail"].error is None


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError("connection refused"), "the drain failed: connection refused"),
        (ValueError(), "the drain failed: ValueError"),
        (None, "the drain failed: it broke off"),
    ],
)
async def test_a_drain_that_breaks_has_failed(
    lags: FakeLags, drains: FakeDrains, error: Exception | None, told: str
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        drains.open[0].tell(delivered=2)
        drains.open[0].break_off(error)
        await asyncio.sleep(0.1)
        status = scaler.statuses()["mail"]
        assert (status.error, status.replicas, status.counts.delivered) == (told, 0, 2)
        await asyncio.sleep(0.5)
        assert len(drains.open) == 1


async def test_a_drain_that_fails_after_it_ran_for_long_waits_only_shortly(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), SCALING)
        for _ in range(5):
            await asyncio.sleep(60)
            drains.open[0].end(Ended.FAILED, "Kafka went away")
            await asyncio.sleep(0.1)
            assert scaler.statuses()["mail"].error == "the drain failed: Kafka went away"
            await asyncio.sleep(0.5)
            assert len(drains.open) == 1


@pytest.mark.parametrize("ended", [Ended.IDLE, Ended.BUDGET, Ended.STOPPED])
async def test_drains_that_end_at_once_are_not_opened_in_a_hot_loop(
    lags: FakeLags, drains: FakeDrains, ended: Ended
) -> None:
    drains.script = ended
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), Autoscaling(min_scale=1))
        await asyncio.sleep(10)
    assert 1 < len(drains.all) <= 21


async def test_a_drain_that_stays_silent_past_its_budget_is_given_up(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """A node that vanished closes no connection."""
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        start = now()
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(BUDGET + HOLD_GRACE_PERIOD + 1)
        assert since(start, drains.times()) == [0, BUDGET + HOLD_GRACE_PERIOD + 0.5]
        assert scaler.statuses()["mail"].error == "the drain failed: TimeoutError"


async def test_a_woken_trigger_need_not_wait_for_the_polling_interval(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(4)
        lags.by_group["group-mail"] = 1
        scaler.wake("orders")
        await asyncio.sleep(0.01)
        assert len(drains.open) == 1
        scaler.wake("a topic of nobody's")


async def test_waking_all_the_time_asks_only_so_often(lags: FakeLags, drains: FakeDrains) -> None:
    """Each event at ingress may wake, and none may match."""
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), SCALING)
        for _ in range(1000):
            await asyncio.sleep(0.01)
            scaler.wake("orders")
        assert 30 <= len(lags.asked) <= 42


async def test_a_topic_whose_triggers_all_drain_is_not_woken(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        for _ in range(10):
            scaler.wake("orders")
            await asyncio.sleep(0.5)
        assert len(lags.asked) == 1


async def test_waking_while_the_lags_are_asked_for_asks_again(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """The answer under way may be from before the event."""
    lags.takes = 2.0
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        lags.by_group["group-mail"] = 1
        scaler.wake("orders")
        await asyncio.sleep(4)
        assert len(drains.open) == 1


async def test_what_comes_while_a_drain_ends_is_looked_for_at_once(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Between the last read and the end nobody reads, and nothing wakes."""
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(2)
        drains.open[0].end(Ended.IDLE)
        await asyncio.sleep(0.1)
        assert len(drains.open) == 1


async def test_a_drain_that_ended_idle_is_not_opened_again_on_an_old_decision(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 150
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(2)
        lags.by_group["group-mail"] = 0
        for drain in drains.open:
            drain.end(Ended.IDLE)
        await asyncio.sleep(100)
        assert len(drains.all) == 2


async def test_lags_that_cant_be_had_change_nothing_but_the_status(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group |= {"group-mail": 1, "group-other": 1}
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        lags.errors["orders"] = LogError("Kafka is away")
        await scaler.watch("other", egress("other", topic="other"), SCALING)
        await asyncio.sleep(20)
        assert [drain.trigger for drain in drains.open] == ["mail", "other"]
        assert scaler.statuses()["mail"].error == "the lag is not known: Kafka is away"
        assert scaler.statuses()["mail"].lag == 1
        assert scaler.statuses()["other"].error is None
        del lags.errors["orders"]
        await asyncio.sleep(10)
        assert scaler.statuses()["mail"].error is None


async def test_a_group_without_offsets_is_told_and_opens_nothing(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """An unknown lag is no lag of any size."""
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = None
        await scaler.watch("mail", egress(), SCALING)
        assert scaler.statuses()["mail"].scale == Scale(0, "the lag is not known yet")
        await asyncio.sleep(20)
        status = scaler.statuses()["mail"]
        assert (status.lag, status.error) == (None, "the lag is not known: no group group-mail")
        assert drains.all == []


async def test_what_min_scale_wants_is_held_without_lag_and_does_not_end_idle(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), Autoscaling(min_scale=1, cooldown_period=5))
        await asyncio.sleep(1)
        assert [drain.request.idle for drain in drains.open] == [BUDGET]
        lags.by_group["group-mail"] = 150
        await asyncio.sleep(10)
        assert [drain.request.idle for drain in drains.open] == [BUDGET, 5]
        lags.by_group["group-mail"] = 0
        await asyncio.sleep(10)
        for drain in drains.open:
            drain.end(Ended.IDLE)
        await asyncio.sleep(0.1)
        assert [drain.request.idle for drain in drains.open] == [BUDGET]


async def test_a_triggers_counts_are_those_of_all_its_drains(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 150
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        first, second = drains.open
        first.tell(
            read=5, filtered=1, delivered=2, retried=9, replied=1, dead_lettered=1, unsettled=1
        )
        first.lines.put_nowait(DrainProgress(read=6, delivered=3, unsettled=2, partitions=(3, 1)))
        second.lines.put_nowait(DrainProgress(read=10, delivered=9, unsettled=1, partitions=(0,)))
        await asyncio.sleep(0.1)
        assert scaler.statuses()["mail"].counts == DrainProgress(
            read=16, delivered=12, unsettled=3, partitions=(0, 1, 3)
        )
        lags.by_group["group-mail"] = 0
        await asyncio.sleep(10)
        first.end(Ended.IDLE, read=6, delivered=6, unsettled=0)
        await asyncio.sleep(0.1)
        assert scaler.statuses()["mail"].counts == DrainProgress(
            read=16, delivered=15, unsettled=1, partitions=(0,)
        )


async def test_an_idle_group_is_joined_before_kafka_forgets_its_offsets(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Kafka drops the offsets of a group that stays empty for 7 days."""
    drains.script = Ended.IDLE
    slow = Autoscaling(polling_interval=600)
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), slow)
        await scaler.watch("bill", egress("bill"), slow)
        started = now()
        await asyncio.sleep(MAX_SECONDS_WITHOUT_DRAIN / 2 - 600)
        assert drains.all == [], "as long as an operator may take to be restarted"
        await asyncio.sleep(MAX_SECONDS_WITHOUT_DRAIN * 6)
    for trigger in ("mail", "bill"):
        times = [started, *(drain.began for drain in drains.all if drain.trigger == trigger)]
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert 6 <= len(pauses) <= 13
        assert all(
            MAX_SECONDS_WITHOUT_DRAIN / 2 <= pause <= MAX_SECONDS_WITHOUT_DRAIN + 601
            for pause in pauses
        )


async def test_a_group_that_could_not_be_joined_is_joined_again_soon(
    lags: FakeLags, drains: FakeDrains
) -> None:
    drains.script = Ended.FAILED
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), Autoscaling(polling_interval=600))
        await asyncio.sleep(MAX_SECONDS_WITHOUT_DRAIN + 700)
        assert len(drains.all) > 10
        assert scaler.statuses()["mail"].scale == Scale(1, "nothing waits, one to keep its offsets")


async def test_what_is_watched_before_the_scaler_runs_is_scaled_once_it_does(
    lags: FakeLags, drains: FakeDrains
) -> None:
    scaler = Scaler(lags, drains)
    lags.by_group["group-mail"] = 1
    await scaler.watch("mail", egress(), SCALING)
    await asyncio.sleep(60)
    assert drains.all == []
    run = asyncio.create_task(scaler.run())
    await asyncio.sleep(0.1)
    assert len(drains.open) == 1
    run.cancel()
    with suppress(asyncio.CancelledError):
        await run


async def test_an_expected_event_has_sleeping_triggers_drain_at_once(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Issue 4, item 2: waking receiver and dispatcher at once."""
    async with running(lags, drains) as scaler:
        for trigger in ("mail", "bill"):
            await scaler.watch(trigger, egress(trigger), SCALING)
        await asyncio.sleep(1)
        scaler.prewarm("orders", limit=2)
        scaler.prewarm("orders", limit=2)
        scaler.prewarm("a topic of nobody's", limit=2)
        await asyncio.sleep(0.1)
        assert [status.replicas for status in scaler.statuses().values()] == [1, 1]
        assert scaler.statuses()["mail"].scale == Scale(1, "an event is on its way")


async def test_many_triggers_are_left_asleep_until_the_event_is_there(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        for trigger in ("mail", "bill", "stock"):
            await scaler.watch(trigger, egress(trigger), SCALING)
        await asyncio.sleep(1)
        scaler.prewarm("orders", limit=2)
        await asyncio.sleep(0.1)
        assert [status.replicas for status in scaler.statuses().values()] == [0, 0, 0]
