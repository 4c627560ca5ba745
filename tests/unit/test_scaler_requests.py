"""A drain is held by one short request after another: what that makes of pods' grace. Fake time."""

from __future__ import annotations

import asyncio

import pytest
from support.scaling import SCALING, FakeDrains, FakeLags, egress, now, running

from knafka.core.drain import Ended
from knafka_operator.decide import services
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.holds import FIRST_BUDGET, REQUEST_BUDGET, REQUEST_BUDGETS, REQUEST_PAUSE
from knafka_operator.scale.scaler import BUDGET

pytestmark = pytest.mark.looptime


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
        assert len(drains.all) == pytest.approx(1200 / REQUEST_BUDGET, abs=3)
        status = scaler.status("mail")
        assert status is not None
        assert status.counts.delivered == len(drains.all) - 1
        assert status.error is None


@pytest.mark.parametrize("count", [1, 3])
async def test_two_requests_of_a_drain_are_never_under_way_at_a_time_however_late_that_is_counted(
    lags: FakeLags, drains: FakeDrains, count: int
) -> None:
    """Knative's autoscaler rounds up what is under way, so two counted for a moment may start a pod
    more, which makes a busy node busier."""
    async with running(lags, drains, REQUEST_BUDGETS) as scaler:
        lags.by_group["group-mail"] = 100 * count
        await scaler.watch("mail", egress(), SCALING)
        await serve(drains, 120)
        over = sorted(drain.over for drain in drains.all if drain.over is not None)
        began = sorted(drain.began for drain in drains.all)[count:]
        pauses = [later - earlier for earlier, later in zip(over, began, strict=False)]
        assert len(began) >= count
        assert sum(pauses[:count]) == pytest.approx(REQUEST_PAUSE, rel=0.01)


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
