"""The drain as a lease: it goes on between requests; on fake time."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from support.dispatchers import SERVICE, Exchange, Running, started
from support.drains import (
    FAR,
    GROUP,
    Request,
    World,
    keep_busy,
    key_of,
    response,
    until,
)
from support.memory.log import MemoryReader

from knafka.core.documents import parse
from knafka.core.drain import MAX_IDLE, STOP, DrainRequest, Ended
from knafka.core.errors import LogError
from knafka.draining.lease import BEGIN_AGAIN_SECONDS
from knafka.ports.subscriber import Response
from knafka.settings import DRAIN_AT_START, GRACE_PERIOD, SERVICE_URL

pytestmark = pytest.mark.looptime


def now() -> float:
    return asyncio.get_running_loop().time()


async def slow(request: Request) -> Response:
    await asyncio.sleep(60)
    return response()


async def hang(request: Request) -> Response:
    await asyncio.sleep(FAR)
    return response()


async def test_a_drain_goes_on_when_its_caller_hangs_up() -> None:
    running = await started(slow)
    running.world.send("1")
    exchange = running.drain(idle="PT1H")
    await until(lambda: running.world.subscriber.posts)
    exchange.hang_up()
    await exchange.task
    await asyncio.sleep(70)
    assert running.world.subscriber.answered == ["1"]
    assert running.world.committed == {0: 1}


async def test_a_drain_goes_on_when_a_requests_budget_is_spent_and_the_next_continues_it() -> None:
    """Fault 7: no leave, no join, and an attempt of 60 s isn't repeated."""
    running = await started(slow)
    running.world.send("1")
    first = running.drain(idle="PT1H", budget="PT30S")
    await first.task
    assert first.lines[-1].ended is Ended.BUDGET
    second = running.drain(idle="PT5S", budget="PT10M")
    await second.task
    assert second.lines[-1].ended is Ended.IDLE
    assert running.world.subscriber.ids == ["1"]
    assert running.opened == 1


async def test_each_request_is_told_what_happened_since_the_last_one() -> None:
    running = await started()
    running.world.send("1")
    first = running.drain(idle="PT1H", budget="PT5S")
    await first.task
    running.world.send("2")
    await asyncio.sleep(1)
    running.world.send("3")
    second = running.drain(idle="PT2S")
    await second.task
    assert (first.lines[-1].delivered, second.lines[-1].delivered) == (1, 2)


async def test_the_idleness_of_the_last_request_counts() -> None:
    running = await started()
    first = running.drain(idle="PT1H", budget="PT5S")
    await first.task
    second = running.drain(idle="PT20S")
    await second.task
    assert second.lines[-1].ended is Ended.IDLE
    assert now() < 22


@pytest.mark.parametrize("together", [True, False], ids=["in one part", "in a part of its own"])
async def test_a_caller_ends_the_drain_by_saying_so(together: bool) -> None:
    running = await started(hang)
    running.world.send("1")
    line = b'{"idle": "PT1H", "egress": "%b"}\n' % running.digest.encode()
    exchange = Exchange(running.dispatcher, "POST", "/drain", line + STOP * together, b"")
    await until(lambda: running.world.subscriber.posts or together)
    exchange.tell(b"" if together else STOP)
    said = now()
    await exchange.task
    assert exchange.lines[-1].ended is Ended.STOPPED
    assert now() - said < 4, "attempts under way are waited for, but not long"
    assert running.world.log.groups[GROUP].members == []


async def test_a_request_may_be_json_of_several_lines() -> None:
    running = await started()
    exchange = await running.answer(
        "POST", "/drain", b'{\n  "idle": "PT1S",\n', b'  "budget": 9\n}\n'
    )
    assert exchange.lines[-1].ended is Ended.IDLE


async def test_who_asks_while_the_drain_is_being_ended_gets_a_new_one() -> None:
    running = await started(slow)
    running.world.send("1")
    first = running.drain(idle="PT1H", egress=running.digest)
    await until(lambda: running.world.subscriber.posts)
    first.tell(STOP)
    first.hang_up()
    await asyncio.sleep(0.1)
    first.task.cancel()
    await asyncio.wait({first.task})
    second = running.drain(idle="PT100S", egress=running.digest)
    await until(lambda: len(running.world.subscriber.posts) == 2)
    assert running.opened == 2
    second.tell(STOP)
    await second.task


async def test_a_request_that_waits_for_a_drains_end_starts_none_in_a_process_that_ends() -> None:
    """Nobody would stop that drain: the process would run on until it is killed."""
    running = await started(slow)
    running.world.send("1")
    first = running.drain(idle="PT1H", egress=running.digest)
    await until(lambda: running.world.subscriber.posts)
    first.tell(STOP)
    await asyncio.sleep(0.1)
    first.task.cancel()
    await asyncio.wait({first.task})
    second = running.drain(idle="PT1H", egress=running.digest)
    await asyncio.sleep(0.1)
    stopping = asyncio.create_task(running.dispatcher.stop())
    await asyncio.wait({stopping}, timeout=60)
    assert stopping.done()
    await second.task
    assert second.status == 503
    assert running.opened == 1
    assert running.world.log.groups[GROUP].members == []


async def test_at_the_end_of_the_process_attempts_get_what_the_grace_period_leaves() -> None:
    """Fault 7: a subscriber that takes 60 s got events twice."""
    running = Running(World(slow))
    await running.start(**{GRACE_PERIOD: "600"})
    running.world.send("1")
    running.world.send("2")
    exchange = running.drain(idle="PT1H")
    await until(lambda: len(running.world.subscriber.posts) == 2)
    await running.dispatcher.stop()
    assert 60 <= now() < 62
    assert running.world.committed == {0: 2}
    await exchange.task


async def test_an_attempt_that_takes_long_holds_up_no_other_event_when_the_process_ends() -> None:
    """Its partitions stay with it until then, and would lie still."""

    async def answer(request: Request) -> Response:
        await asyncio.sleep(300 if key_of(request) == "slow" else 0.01)
        return response()

    running = Running(World(answer))
    await running.start(**{GRACE_PERIOD: "600"})
    world = running.world
    world.send("slow", "slow")
    exchange = running.drain(idle="PT1H")
    await until(lambda: world.subscriber.posts)
    sending = asyncio.create_task(keep_busy(world))
    stopping = asyncio.create_task(running.dispatcher.stop())
    await stopping
    sending.cancel()
    assert 300 <= now() < 303
    times = world.subscriber.times
    assert max(b - a for a, b in pairwise(times)) < 4
    assert len(world.subscriber.answered) > 290
    assert "slow" in world.subscriber.answered
    assert world.log.groups[GROUP].members == []
    await exchange.task


@pytest.mark.parametrize("at_most_once", [False, True])
async def test_a_trigger_that_goes_while_its_process_ends_leaves_attempts_no_grace(
    at_most_once: bool,
) -> None:
    """Issue 30: in a namespace that is deleted subscribers go as well, and answer nobody."""
    running = Running(World(hang, at_most_once=at_most_once))
    await running.start(**{GRACE_PERIOD: "600"})
    running.world.send("1")
    exchange = running.drain(idle="PT1H", egress=running.digest)
    await until(lambda: running.world.subscriber.posts)
    stopping = asyncio.create_task(running.dispatcher.stop())
    await asyncio.sleep(20)
    assert not stopping.done()
    exchange.tell(STOP)
    await stopping
    assert now() < 30
    await exchange.task


async def test_a_process_with_nothing_under_way_ends_at_once_whatever_its_grace() -> None:
    running = Running(World())
    await running.start(**{GRACE_PERIOD: "540"})
    running.world.send("1")
    exchange = running.drain(idle="PT1H")
    await until(lambda: running.world.subscriber.answered)
    began = now()
    await running.dispatcher.stop()
    assert now() - began < 3
    await exchange.task


async def test_what_outlasts_the_grace_period_is_left_to_the_next() -> None:
    running = Running(World(hang))
    await running.start(**{GRACE_PERIOD: "60"})
    running.world.send("1")
    exchange = running.drain(idle="PT1H")
    await until(lambda: running.world.subscriber.posts)
    await running.dispatcher.stop()
    assert 50 <= now() < 60
    assert running.world.committed.get(0, 0) == 0
    await exchange.task


async def test_a_dispatcher_that_drains_from_its_start_needs_nobody() -> None:
    running = Running(World())
    await running.start(**{DRAIN_AT_START: "true", SERVICE_URL: SERVICE})
    await asyncio.sleep(1000)
    running.world.send("1")
    await until(lambda: running.world.subscriber.answered == ["1"], within=2)
    assert running.opened == 1
    exchange = running.drain(idle="PT1S", budget="PT30S")
    await exchange.task
    assert exchange.lines[-1].ended is Ended.BUDGET, "a request's idleness is not its own"
    await running.dispatcher.stop()
    assert running.world.log.groups[GROUP].members == []


async def test_a_stop_of_somebody_who_does_not_say_what_is_drained_ends_only_the_request() -> None:
    """Issue 29: `{"stop": true}` from anywhere ended the drain."""
    running = await started(hang)
    running.world.send("1")
    exchange = running.drain(idle="PT1H")
    await until(lambda: running.world.subscriber.posts)
    exchange.tell(STOP)
    await exchange.task
    assert exchange.lines[-1].ended is Ended.BUDGET
    assert "a stop needs the digest" in (exchange.lines[-1].error or "")
    assert len(running.world.log.groups[GROUP].members) == 1
    await running.dispatcher.stop()


async def test_a_drain_from_the_start_that_was_stopped_begins_again() -> None:
    running = Running(World())
    await running.start(**{DRAIN_AT_START: "true"})
    exchange = running.drain(egress=running.digest)
    await until(lambda: exchange.lines)
    exchange.tell(STOP)
    await exchange.task
    assert exchange.lines[-1].ended is Ended.STOPPED
    running.world.send("1")
    await asyncio.sleep(BEGIN_AGAIN_SECONDS - 5)
    assert running.opened == 1, "whom nobody needs is being taken away"
    await until(lambda: running.world.subscriber.answered == ["1"], within=15)
    await running.dispatcher.stop()


@pytest.mark.slow
async def test_a_drain_that_was_stopped_stays_so_while_another_egress_is_asked_for() -> None:
    """What the old filter passes over would be lost to the new one."""
    running = Running(World())
    await running.start(**{DRAIN_AT_START: "true"})
    exchange = running.drain(egress=running.digest)
    await until(lambda: exchange.lines)
    exchange.tell(STOP)
    await exchange.task
    for _ in range(2):
        await asyncio.sleep(BEGIN_AGAIN_SECONDS * 0.7)
        other = running.drain(egress="another")
        await other.task
        assert other.status == 412
    assert running.opened == 1
    await until(lambda: running.opened == 2, within=BEGIN_AGAIN_SECONDS + 5)
    await running.dispatcher.stop()


async def test_a_request_that_says_what_it_drains_is_not_refused_for_one_that_does_not() -> None:
    """Issue 29: the operator got 409 for as long as the other's budget was."""
    running = await started()
    first = running.drain(idle="PT1H", budget="PT10M")
    await until(lambda: first.lines)
    operator = running.drain(idle="PT1H", budget="PT10M", egress=running.digest)
    await until(lambda: operator.lines)
    await first.task
    assert first.lines[-1].ended is Ended.BUDGET
    assert "has taken over" in (first.lines[-1].error or "")
    assert running.opened == 1
    for more in ({}, {"egress": running.digest}):
        refused = running.drain(**more)
        await refused.task
        assert refused.status == 409
    operator.tell(STOP)
    await operator.task
    assert operator.lines[-1].ended is Ended.STOPPED


@pytest.mark.parametrize(("asked", "seconds"), [("PT10000H", MAX_IDLE), ("PT1H", 3600)])
def test_a_drain_has_a_longest_time_of_idleness(asked: str, seconds: float) -> None:
    assert parse(DrainRequest, {"idle": asked}).idle == seconds


async def test_a_drain_from_the_start_that_fails_begins_anew() -> None:
    world = World()
    failures = 3

    class Failing(MemoryReader):
        async def read(self, limit: int, timeout: float) -> Any:
            nonlocal failures
            if failures:
                failures -= 1
                raise LogError("Kafka says no")
            return await super().read(limit, timeout)

    world.reads_with(Failing)
    running = Running(world)
    await running.start(**{DRAIN_AT_START: "true"})
    world.send("1")
    await until(lambda: world.subscriber.answered == ["1"], within=30)
    assert 7 <= now() < 9, "after 1, 2 and 4 seconds"
    await running.dispatcher.stop()
