"""The scaler and Triggers whose filter passes nothing of a busy topic. Fake time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest
from support.scaling import FakeDrains, FakeLags, egress, now, running

from knafka.core.drain import DrainProgress
from knafka_operator.dispatchers import move_decisions as moves
from knafka_operator.dispatchers.activity import Activity, ActivityState
from knafka_operator.dispatchers.move_decisions import History
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.identity import Identity
from knafka_operator.model.isolation import Isolation
from knafka_operator.scale.decide import Cause, Scale, ScalingStatus
from knafka_operator.scale.filter_rest import LONGEST_REST

pytestmark = pytest.mark.looptime

SCALING = Autoscaling(max_scale=1)
RATE = 50
"""Events a second of the topic."""


async def busy(
    lags: FakeLags,
    drains: FakeDrains,
    passing: Callable[[float], int],
    seconds: float,
    waits_always: int = 0,
) -> float:
    """A topic with so many events a second, whose open drains read all that waits within a second;
    `passing` says how many events so far pass the filter, `waits_always` how many aren't committed
    yet at any time. Gives the seconds that drains were open.
    """
    awake, waiting, filtered = 0.0, 0, 0
    for _ in range(int(seconds)):
        await asyncio.sleep(1)
        waiting += RATE
        if drains.open:
            awake += 1
            (drain,) = drains.open
            filtered = drain.told.get("filtered", 0) + waiting
            waiting = 0
            drain.tell(filtered=filtered, delivered=passing(now()) - passing(drain.began))
        lags.by_group["group-mail"] = waiting or waits_always
    return awake


@pytest.mark.parametrize("uncommitted", [0, 1, RATE])
async def test_what_is_read_and_filtered_out_keeps_no_dispatcher_awake(
    lags: FakeLags, drains: FakeDrains, uncommitted: int
) -> None:
    """Issue 30: its own dispatcher never slept, as its lag is never zero for long."""
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), SCALING)
        awake = await busy(lags, drains, lambda _: 0, 1000, uncommitted)
        assert 30 < awake < 300
        began = [drain.began for drain in drains.all]
        pauses = [b - a for a, b in itertools.pairwise(began)]
        assert max(pauses) <= LONGEST_REST + 2 * SCALING.polling_interval, "an event waits so long"
        assert all(drain.told_to_stop for drain in drains.all if drain.over is not None)
        status = scaler.status("mail")
        assert status is not None
        counts = scaler.counts("mail")
        assert counts is not None
        assert counts.decisions[Cause.FILTERED_OUT] > 10


async def test_a_topic_that_wakes_its_triggers_all_the_time_wakes_none_that_rests(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), SCALING)
        await busy(lags, drains, lambda _: 0, 60)
        while drains.open:
            await busy(lags, drains, lambda _: 0, 1)
        asked, begun = len(lags.asked), len(drains.all)
        for _ in range(20):
            scaler.wake("orders", grown=RATE)
            scaler.prewarm("orders", 10)
            await asyncio.sleep(0.1)
        assert len(drains.all) == begun
        assert len(lags.asked) <= asked + 1


async def test_a_dispatcher_stays_awake_while_anything_passes_within_its_cooldown(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), SCALING)
        awake = await busy(lags, drains, lambda at: int(at / 25), 500)
        assert awake > 480


async def test_what_passes_after_a_rest_ends_the_resting(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """It is delivered in the next look, and its dispatcher is awake as any that has events."""
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), SCALING)
        await busy(lags, drains, lambda _: 0, 300)
        since = now()
        awake = await busy(lags, drains, lambda at: int((at - since) * 2), 300)
        assert awake > 300 - LONGEST_REST - 3 * SCALING.polling_interval


async def test_a_changed_filter_is_tried_at_once(lags: FakeLags, drains: FakeDrains) -> None:
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), SCALING)
        await busy(lags, drains, lambda _: 0, 300)
        while drains.open:
            await busy(lags, drains, lambda _: 0, 1)
        await scaler.watch("mail", egress(url="http://other/"), SCALING)
        await asyncio.sleep(1)
        assert drains.open


async def test_a_backlog_is_read_to_its_end_however_little_of_it_passes(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Behind what is filtered out may be what passes."""
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = waiting = 1_000_000
        await scaler.watch("mail", egress(), Autoscaling(max_scale=1))
        await asyncio.sleep(1)
        while waiting > 0:
            (drain,) = drains.open
            waiting -= 2000
            lags.by_group["group-mail"] = max(0, waiting)
            drain.tell(filtered=1_000_000 - waiting)
            await asyncio.sleep(1)
        assert len(drains.all) == 1


async def test_with_min_scale_it_never_rests(lags: FakeLags, drains: FakeDrains) -> None:
    """Who wants no wait for a rare event says so."""
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), Autoscaling(min_scale=1))
        assert await busy(lags, drains, lambda _: 0, 300) > 290


def test_auto_moves_one_that_rests_to_a_shared_dispatcher() -> None:
    """Whatever waits: a shared one reads the topic once for all, and rests never."""
    history = History(ActivityState(Activity.BUSY, 0.0))
    resting = Scale(0, "", Cause.FILTERED_OUT)
    for second in range(0, 700, 5):
        status = ScalingStatus(100_000, 0, resting, DrainProgress(filtered=second), None)
        history.add(moves.sample_of(status, float(second)))
    move = moves.desired_move(Identity("shop", "mail"), Identity("shop", "orders"), history, 100)
    assert move is not None
    assert move.to is Isolation.SHARED
