"""Rate limits of a subscriber: events over one wait, and none is dropped (BUS-S13)."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from itertools import pairwise
from random import Random

import pytest
from support.drains import FAR, World, accept, at_first, response, until

from knafka.core.contract import Delivery, RateLimit, RateUnit
from knafka.core.drain import Ended
from knafka.core.errors import InvalidDocument
from knafka.core.filters.declared_filters import Exact
from knafka.dispatcher.engine.rate import AttemptRate
from knafka_operator.kafka import kafka_settings
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.isolation import Isolation
from knafka_operator.model.resources import SEMANTICS

TEN_A_MINUTE = RateLimit(unit=RateUnit.MINUTE, requests_per_unit=10)
TEN_A_SECOND = RateLimit(requests_per_unit=10)


def gaps(world: World) -> list[float]:
    times = [each.at for each in world.subscriber.posts]
    return [round(later - earlier, 2) for earlier, later in pairwise(times)]


@pytest.mark.looptime
@pytest.mark.parametrize("at_most_once", [False, True])
@pytest.mark.conformance("BUS-S13")
async def test_attempts_over_the_limit_wait_and_all_are_delivered(*, at_most_once: bool) -> None:
    world = World(accept, rate_limit=TEN_A_MINUTE, at_most_once=at_most_once)
    for number in range(20):
        world.send(str(number), str(number))
    progress = await world.run()
    assert sorted(world.subscriber.ids, key=int) == [str(number) for number in range(20)]
    assert (progress.delivered, progress.ended) == (20, Ended.IDLE)
    assert all(6 <= gap < 7.5 for gap in gaps(world)), gaps(world)


@pytest.mark.looptime
@pytest.mark.parametrize("at_most_once", [False, True])
async def test_a_limit_is_nearly_reached(*, at_most_once: bool) -> None:
    world = World(accept, rate_limit=TEN_A_SECOND, at_most_once=at_most_once)
    for number in range(50):
        world.send(str(number), str(number))
    await world.run()
    assert all(0.1 <= gap < 0.12 for gap in gaps(world)), gaps(world)


@pytest.mark.parametrize("limit", [10, 700, 3_300, 20_000])
def test_a_limit_holds_by_timers_of_whole_milliseconds(limit: int) -> None:
    """uvloop's, by which 3,300 a second were 12,500: it takes 0.3 ms for none."""
    rate, begun = AttemptRate(RateLimit(requests_per_unit=limit)), []
    late = Random(limit)
    now = 100.0
    while now < 103:
        while rate.refresh(now) == 0:
            rate.count_attempt(now)
            begun.append(now)
        now += late.choice([0.001, 0.001, 0.002])
    assert len(begun) >= 0.98 * 3 * limit
    in_a_second = (bisect_left(begun, at + 1) - first for first, at in enumerate(begun))
    assert max(in_a_second) <= limit


@pytest.mark.looptime
async def test_retries_count_and_what_is_filtered_out_does_not() -> None:
    world = World(
        at_first(response(500), response(500)),
        rate_limit=TEN_A_SECOND,
        delivery=Delivery(retry=2, backoff_delay=0),
        filters=(Exact(exact={"type": "t"}),),
    )
    for number in range(30):
        world.send(str(number), "k", type="t" if number in (0, 29) else "other")
    await world.run()
    assert world.subscriber.ids == ["0", "0", "0", "29"]
    assert gaps(world) == [0.1] * 3


@pytest.mark.looptime
async def test_a_drain_is_idle_once_another_attempt_might_begin() -> None:
    """Else the next one, which knows nothing of this one's, would begin too soon."""
    world = World(accept, rate_limit=TEN_A_MINUTE)
    world.send("1")
    loop = asyncio.get_running_loop()
    await world.run(idle=1)
    assert loop.time() - world.subscriber.times[0] >= 6


@pytest.mark.looptime
async def test_a_kill_loses_nothing_that_waits_for_the_limit() -> None:
    """BUS-S7: what is delivered at most once is committed only when it may begin."""
    world = World(accept, rate_limit=TEN_A_MINUTE, at_most_once=True)
    for number in range(20):
        world.send(str(number), str(number))
    running = world.begin(world.drain(), idle=FAR)
    await until(lambda: len(world.subscriber.answered) == 3)
    await world.kill(running)
    await world.run()
    assert sorted(world.subscriber.ids, key=int) == [str(number) for number in range(20)]


@pytest.mark.parametrize(
    ("text", "interval"), [("10/Second", 0.1), ("30/Minute", 2.0), ("1/Hour", 3600.0)]
)
def test_a_trigger_declares_it(text: str, interval: float) -> None:
    annotations = {"knafka.dev/rate-limit": text}
    found = kafka_settings.rate_limit(annotations)
    assert found is not None
    assert found.interval == interval
    assert kafka_settings.required_isolation(annotations) is Isolation.OWN
    assert Autoscaling.from_annotations(annotations, Autoscaling()).max_scale == 1


@pytest.mark.parametrize("text", ["10", "10/Day", "0/Second", "-1/Second", "x/Hour", "/Second"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    annotations = {"knafka.dev/rate-limit": text}
    for semantics in ("at-least-once", "at-most-once"):
        with pytest.raises(InvalidDocument, match="rate-limit: invalid value"):
            kafka_settings.check_trigger_settings(annotations | {SEMANTICS: semantics})


def test_one_with_a_limit_shares_no_dispatcher() -> None:
    shared = {"knafka.dev/rate-limit": "1/Hour", "knafka.dev/isolation": "shared"}
    with pytest.raises(InvalidDocument, match="can't be shared beside"):
        kafka_settings.check_trigger_settings(shared)
