"""A subscriber that is away costs a handful of events, and not the backlog (KN-DP-05)."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from support.drains import DEAD, Request, World, id_of, response, until
from support.gate import only_chaos

from knafka.core.contract import Delivery
from knafka.core.delivery import Outcome, Reason
from knafka.core.errors import DeliveryError
from knafka.dispatcher.engine.congestion import (
    EVENTS_TO_OPEN,
    FAILURES_TO_OPEN,
    MAX_PROBE_INTERVAL,
    PROBES,
    CongestionControl,
)
from knafka.dispatcher.engine.workers import MAX_READY_FOR_READING
from knafka.ports.subscriber import Response

pytestmark = pytest.mark.looptime

REFUSED = Outcome(failure=Reason.REFUSED)
DEFAULT = Delivery(retry=10, backoff_delay=0.2)
HOUR = 3600.0


def now() -> float:
    return asyncio.get_running_loop().time()


class Away:
    """An answer: refused (or `status`) until `back`, then 200 after a hundredth of a second."""

    def __init__(self, since: float = 0.0, until: float = HOUR, status: int = 0) -> None:
        self.since, self.until, self.status = since, until, status

    async def __call__(self, request: Request) -> Response:
        if self.since <= now() < self.until:
            if self.status:
                return response(self.status)
            raise DeliveryError("refused", "nobody there")
        await asyncio.sleep(0.01)
        return response()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delivery", "dead", "attempts", "noticed"),
    [
        pytest.param(DEFAULT, 100, 1200, MAX_PROBE_INTERVAL, id="the default"),
        # A hundred are under way when the first attempt fails; then one for each
        # MAX_PROBE_INTERVAL.
        pytest.param(Delivery(retry=0), 100 + 130, 230, MAX_PROBE_INTERVAL, id="no retry"),
        pytest.param(
            *(Delivery(retry=3, backoff_delay=600), 5, 160, 600.0),
            id="3 x PT10M",
            marks=pytest.mark.integration,
        ),
    ],
)
@pytest.mark.parametrize(
    "status", [pytest.param(0, id="refused", marks=only_chaos), pytest.param(503, id="503")]
)
async def test_an_hour_without_a_subscriber_costs_some_events_and_not_the_backlog(
    delivery: Delivery, dead: int, attempts: int, noticed: float, status: int
) -> None:
    """Item 4 of issue 13; `noticed`: seconds until the backlog flows at full speed again."""
    world = World(Away(status=status), delivery=delivery)
    for number in range(5000):
        world.send(str(number))
    drain = world.drain()
    running = world.begin(drain, idle=60)
    await asyncio.sleep(HOUR)
    assert len(world.records_of(DEAD)) <= dead
    assert len(world.subscriber.posts) <= attempts
    assert len(set(world.subscriber.ids)) <= 230, "the others are unspent"
    await until(lambda: drain.counts.events.delivered >= 4000, within=noticed + 5)
    progress = await running
    assert progress.dead_lettered <= dead
    assert progress.delivered + progress.dead_lettered == 5000


@pytest.mark.slow
async def test_a_dead_lettered_probe_had_its_declared_retries() -> None:
    world = World(Away(), delivery=DEFAULT)
    for number in range(50):
        world.send(str(number))
    running = world.begin(world.drain())
    await asyncio.sleep(HOUR)
    for letter in world.events_of(DEAD):
        assert letter.attributes["knafkaattempts"] == "11"
    await running
    attempts = Counter(world.subscriber.ids)
    assert max(attempts.values()) <= 11


async def test_one_event_that_always_fails_holds_back_no_other() -> None:
    async def answer(request: Request) -> Response:
        return response(503 if id_of(request) == "bad" else 200)

    world = World(answer, delivery=Delivery(retry=20, backoff_delay=0.1))
    world.send("bad", "bad")
    running = world.begin(world.drain(), idle=100)
    await asyncio.sleep(30)
    world.send("good", "good")
    sent = now()
    await until(lambda: "good" in world.subscriber.answered)
    assert now() - sent < 0.5
    running.cancel()


@pytest.mark.parametrize("status", [400, 404, 409, 500, 501])
async def test_an_answer_that_concerns_the_event_is_no_congestion(status: int) -> None:
    async def answer(request: Request) -> Response:
        return response(status)

    world = World(answer, delivery=Delivery(retry=1, backoff_delay=1))
    for number in range(200):
        world.send(str(number))
    progress = await world.run()
    assert progress.dead_lettered == 200
    assert now() < 10


@pytest.mark.conformance("KN-DLV-04")
async def test_a_retry_after_pauses_all_attempts_until_then() -> None:
    async def answer(request: Request) -> Response:
        if now() < 100:
            return response(429, retry_after=str(int(100 - now()) + 1))
        return response()

    world = World(
        answer, max_in_flight=5, delivery=Delivery(retry=5, backoff_delay=1, retry_after_max=1000)
    )
    for number in range(200):
        world.send(str(number))
    progress = await world.run()
    early = [post for post in world.subscriber.posts if post.at < 100]
    assert len(early) <= 5
    assert progress.delivered == 200
    assert now() < 110


async def test_a_subscriber_that_is_too_busy_gets_fewer_attempts_at_once() -> None:
    under_way = 0

    async def answer(request: Request) -> Response:
        nonlocal under_way
        under_way += 1
        try:
            await asyncio.sleep(0.05)
            return response(200 if under_way <= 10 else 503)
        finally:
            under_way -= 1

    world = World(answer, delivery=Delivery(retry=100, backoff_delay=0.1))
    for number in range(3000):
        world.send(str(number))
    progress = await world.run()
    assert progress.delivered == 3000
    assert progress.retried < 1500, "without adapting, nine of ten attempts fail"


@pytest.mark.parametrize("most", [1, PROBES, PROBES + 1, 20])
async def test_events_whose_retries_waited_go_on_with_the_first_answer(most: int) -> None:
    """However few may be in flight: with at most `PROBES` the first answer ends the congestion."""
    world = World(
        Away(until=100), max_in_flight=most, delivery=Delivery(retry=100, backoff_delay=1)
    )
    for number in range(50):
        world.send(str(number), str(number))
    running = world.begin(world.drain(), idle=1000)
    await until(lambda: len({*world.subscriber.answered}) == 50, within=200)
    running.cancel()


async def test_its_status_says_that_attempts_are_held_back_and_why() -> None:
    world = World(Away(until=100), delivery=DEFAULT)
    for number in range(500):
        world.send(str(number))
    drain = world.drain()
    running = world.begin(drain)
    await asyncio.sleep(50)
    told = drain.progress().congestion
    assert told is not None
    assert "refused" in told
    await running
    assert drain.progress().congestion is None


@pytest.mark.slow
async def test_what_is_held_back_is_bounded_and_waits_in_kafka() -> None:
    world = World(Away(), delivery=DEFAULT)
    for number in range(50_000):
        world.send(str(number))
    drain = world.drain()
    running = world.begin(drain)
    await asyncio.sleep(600)
    assert drain.progress().unsettled <= 10_000 + MAX_READY_FOR_READING
    drain.stop()
    await running


@pytest.mark.slow
async def test_partitions_that_go_while_it_is_away_take_their_probes_along() -> None:
    world = World(Away(until=1000), partitions=2, delivery=Delivery(retry=50, backoff_delay=1))
    for number in range(200):
        world.store_at(number % 2, str(number), str(number))
    first = world.begin(world.drain(), idle=100)
    await asyncio.sleep(100)
    second = world.begin(world.drain(), idle=100)
    await asyncio.gather(first, second)
    assert set(world.subscriber.answered) == {str(number) for number in range(200)}


def test_it_opens_after_failures_in_a_row_of_several_events() -> None:
    control = CongestionControl(100)
    for number in range(FAILURES_TO_OPEN):
        assert not control.is_open
        control.record_failure(REFUSED, number % EVENTS_TO_OPEN, 0.0)
    assert control.is_open
    control.record_answer()
    assert not control.is_open
    assert control.limit == PROBES


def test_a_success_between_failures_keeps_it_closed() -> None:
    control = CongestionControl(100)
    for number in range(100):
        control.record_failure(REFUSED, number, 0.0)
        control.record_answer()
    assert control.limit == 100
    assert control.is_calm


def test_after_it_has_closed_the_limit_grows_to_all() -> None:
    control = CongestionControl(64)
    for number in range(FAILURES_TO_OPEN):
        control.record_failure(REFUSED, number, 0.0)
    for _ in range(2000):
        control.record_answer()
    assert control.limit == 64
    assert control.is_calm
    assert control.describe() == ""
