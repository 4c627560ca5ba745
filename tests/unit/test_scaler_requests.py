"""A drain is held by one short request after another: what that makes of pods' grace. Fake time."""

from __future__ import annotations

import asyncio

import pytest
from support.scaling import SCALING, FakeDrain, FakeDrains, FakeLags, egress, now, running

from knafka.core.drain import Ended
from knafka.core.filters.declared_filters import Exact
from knafka_operator.functions import services
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.drains import DrainRefused
from knafka_operator.scale.holds import (
    FIRST_BUDGET,
    REQUEST_BUDGET,
    REQUEST_BUDGETS,
    UNHELD_END_SECONDS,
)
from knafka_operator.scale.scaler import BUDGET, Scaler

pytestmark = pytest.mark.looptime

EDITED = egress().model_copy(update={"filters": (Exact(exact={"type": "new"}),)})


async def serve(drains: FakeDrains, seconds: float) -> None:
    """Dispatchers whose requests end when their budget is spent, as real ones' do."""
    until = now() + seconds
    while now() < until:
        await asyncio.sleep(0.5)
        for drain in drains.open:
            if now() - drain.began >= drain.request.budget:
                drain.end(Ended.BUDGET, None, delivered=1)


async def test_a_drain_goes_on_by_one_request_after_another(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Issue 30: a request's length is its pod's grace, and half of that is how long a namespace
    that is deleted takes (Kubernetes' namespace controller looks again then)."""
    async with running(lags, drains, REQUEST_BUDGETS) as scaler:
        lags.by_group["group-mail"] = 50
        await scaler.watch("mail", egress(), SCALING)
        await serve(drains, 1200)
        assert len(drains.open) == 1
        first, *others = [drain.request.budget for drain in drains.all]
        assert first == FIRST_BUDGET
        assert max(others) == REQUEST_BUDGET
        assert len(drains.all) == pytest.approx(1200 / REQUEST_BUDGET, abs=4)
        status = scaler.status("mail")
        assert status is not None
        assert status.counts.delivered == len(drains.all) - 1
        assert status.error is None


async def draining(scaler: Scaler, lags: FakeLags, drains: FakeDrains) -> FakeDrain:
    """A Trigger's drain that has told of an event."""
    lags.by_group["group-mail"] = 50
    await scaler.watch("mail", egress(), SCALING)
    await serve(drains, 5)
    (first,) = drains.open
    first.tell(delivered=1)
    return first


async def changed_as_a_request_ends(
    scaler: Scaler, lags: FakeLags, drains: FakeDrains
) -> asyncio.Task[None]:
    """Its filter is edited while the drain goes on without a request."""
    lags.by_group["group-mail"] = 50
    await scaler.watch("mail", egress(), SCALING)
    await serve(drains, FIRST_BUDGET - 1)
    (first,) = drains.open
    changing = asyncio.create_task(scaler.watch("mail", EDITED, SCALING))
    first.end(Ended.BUDGET)
    await asyncio.sleep(0)
    return changing


async def test_a_drain_that_goes_on_without_a_request_is_told_to_stop_by_another_one(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """By the old filter it would pass over events that the new one accepts, for good."""
    async with running(lags, drains, REQUEST_BUDGETS) as scaler:
        changing = await changed_as_a_request_ends(scaler, lags, drains)
        await changing
        first, stopping, *_ = drains.all
        assert (stopping.egress, stopping.told_to_stop) == (first.egress, True)
        assert all(each.began >= (stopping.over or 0) for each in drains.all[2:])


async def test_where_a_newer_revision_is_asked_instead_the_old_drain_is_waited_for(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """It asks for itself 3 s later, hears that there is another Egress now, and ends."""
    async with running(lags, drains, REQUEST_BUDGETS) as scaler:
        changing = await changed_as_a_request_ends(scaler, lags, drains)
        drains.all[-1].break_off(DrainRefused("412"))
        began = now()
        await changing
        assert now() - began == pytest.approx(UNHELD_END_SECONDS, abs=0.1)
        status = scaler.status("mail")
        assert status is not None
        assert status.error is None


async def test_a_drain_whose_request_broke_off_is_told_to_stop_by_another_one(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """It goes on without the operator, which is between two tries; KN-TRG-05, issue 30."""
    async with running(lags, drains, REQUEST_BUDGETS) as scaler:
        first = await draining(scaler, lags, drains)
        await asyncio.sleep(0.1)
        first.break_off(ConnectionResetError())
        await asyncio.sleep(0.1)
        assert len(drains.all) == 1, "it tries again after a pause"
        await scaler.watch("mail", EDITED, SCALING)
        _, stopping, *_ = drains.all
        assert (stopping.egress, stopping.told_to_stop) == (first.egress, True)


async def test_a_drain_that_has_failed_is_not_asked_to_stop(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """It is over: an edit needn't wait for it, nor wake a pod of what was before."""
    async with running(lags, drains, REQUEST_BUDGETS) as scaler:
        first = await draining(scaler, lags, drains)
        first.end(Ended.FAILED)
        await asyncio.sleep(0.1)
        began = now()
        await scaler.watch("mail", EDITED, SCALING)
        assert now() == began
        assert all(each.egress == EDITED for each in drains.all[1:])


async def test_one_that_is_not_wanted_any_more_is_ended_as_seldom_as_before(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Each that ends moves partitions."""
    async with running(lags, drains, REQUEST_BUDGETS) as scaler:
        lags.by_group["group-mail"] = 150
        await scaler.watch("mail", egress(), SCALING)
        await serve(drains, 20)
        lags.by_group["group-mail"] = 50
        await serve(drains, BUDGET - 60)
        assert len(drains.open) == 2
        await serve(drains, 60)
        assert len(drains.open) == 1


async def test_requests_that_end_at_once_are_not_repeated_in_a_hot_loop(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains, REQUEST_BUDGETS) as scaler:
        lags.by_group["group-mail"] = 50
        drains.script = Ended.BUDGET
        await scaler.watch("mail", egress(), Autoscaling(polling_interval=1000))
        await asyncio.sleep(10)
        assert len(drains.all) <= 21


def test_a_namespace_that_is_deleted_is_looked_at_again_in_time() -> None:
    """5 to 9 s after its deletion, and half of the longest grace of its pods and a second later:
    when their end, which Knative has take 30 s, is over, and what is left can go within a minute.
    A request leaves time for a start."""
    assert 33 < services.TIMEOUT_SECONDS / 2 + 1 < 60 - 9 - 12
    assert FIRST_BUDGET + 45 <= services.TIMEOUT_SECONDS
    assert REQUEST_BUDGET + 10 <= services.TIMEOUT_SECONDS
