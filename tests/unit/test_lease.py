"""The drain as a lease: it goes on between requests, and asks for itself; on fake time."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from support.dispatchers import SERVICE, Exchange, Running, started
from support.drains import (
    FAR,
    GROUP,
    Request,
    ScriptedSubscriber,
    World,
    accept,
    key_of,
    response,
    until,
)

from knafka.clients.memory_log import MemoryReader
from knafka.core.contract import Delivery
from knafka.core.drain import STOP, Ended
from knafka.core.errors import LogError
from knafka.dispatcher.lease import HANDOVER, RENEWAL_BUDGET, RENEWAL_PATIENCE
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
    line = b'{"idle": "PT1H"}\n'
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
    first = running.drain(idle="PT1H")
    await until(lambda: running.world.subscriber.posts)
    first.tell(STOP)
    first.hang_up()
    await asyncio.sleep(0.1)
    first.task.cancel()
    await asyncio.wait({first.task})
    second = running.drain(idle="PT100S")
    await until(lambda: len(running.world.subscriber.posts) == 2)
    assert running.opened == 2
    second.tell(STOP)
    await second.task


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


class OwnService(ScriptedSubscriber):
    """Delivers events, and is the Service of dispatchers: a request goes to one that is free."""

    def __init__(self) -> None:
        super().__init__(accept)
        self.pods: list[Running] = []
        self.asked: list[float] = []
        self.status = 200

    async def post(self, target: Any, head: bytes, body: bytes, timeout: float) -> Response:
        if not target.url.startswith(SERVICE):
            return await super().post(target, head, body, timeout)
        self.asked.append(now())
        if self.status != 200:
            return response(self.status)
        for pod in self.pods:
            if not pod.dispatcher._lease.is_attached:
                exchange = pod.ask("POST", "/drain", body)
                try:
                    await exchange.task
                except asyncio.CancelledError:
                    exchange.hang_up()
                    raise
                return Response(exchange.status, [], exchange.body)
        await asyncio.sleep(timeout)
        return response(504)

    async def pod(self, world: World) -> Running:
        running = Running(world)
        await running.start(**{SERVICE_URL: SERVICE})
        self.pods.append(running)
        return running


def world_of(service: OwnService, **egress: Any) -> World:
    world = World(**egress)
    world.subscriber = service
    return world


@pytest.fixture
def service() -> OwnService:
    return OwnService()


async def keep_busy(world: World) -> None:
    number = 0
    while True:
        world.send(str(number))
        number += 1
        await asyncio.sleep(1)


async def test_a_dispatcher_that_nobody_asks_any_more_asks_its_own_service(
    service: OwnService,
) -> None:
    """Fault 2: no operator, no delivery."""
    world = world_of(service)
    running = await service.pod(world)
    busy = asyncio.create_task(keep_busy(world))
    exchange = running.drain(idle="PT10S")
    await asyncio.sleep(20)
    exchange.hang_up()
    await exchange.task
    left = now()
    await asyncio.sleep(600)
    assert RENEWAL_PATIENCE <= service.asked[0] - left < RENEWAL_PATIENCE + 0.1
    gaps = [b - a for a, b in zip(service.asked, service.asked[1:], strict=False)]
    assert all(RENEWAL_BUDGET <= gap < RENEWAL_BUDGET + 0.1 for gap in gaps)
    assert len(service.posts) >= 619
    busy.cancel()
    asked = len(service.asked)
    await asyncio.sleep(60)
    assert len(service.asked) - asked <= 1, "nothing to do, nobody to ask"
    assert world.log.groups[GROUP].members == []
    assert running.opened == 1


async def test_several_dispatchers_keep_each_other(service: OwnService) -> None:
    """Whichever of them a request meets; each pod has one nearly all the time."""
    world = world_of(service, partitions=3)
    pods = [await service.pod(world) for _ in range(3)]
    busy = asyncio.create_task(keep_busy(world))
    asked = [pod.drain(idle="PT1H") for pod in pods]
    await asyncio.sleep(HANDOVER + 20)
    for exchange in asked:
        exchange.hang_up()
    await asyncio.sleep(RENEWAL_PATIENCE + 1)
    without = 0.0
    for _ in range(3000):
        await asyncio.sleep(0.1)
        without += 0.1 * sum(not pod.dispatcher._lease.is_attached for pod in pods)
    assert without < 0.05 * 300 * 3
    busy.cancel()


async def test_it_asks_no_more_when_somebody_else_asks_again(service: OwnService) -> None:
    world = world_of(service)
    running = await service.pod(world)
    busy = asyncio.create_task(keep_busy(world))
    first = running.drain(idle="PT1H", budget="PT5S")
    await first.task
    await until(lambda: service.asked)
    await until(lambda: not running.dispatcher._lease.is_attached)
    second = running.drain(idle="PT1H", budget="PT5M")
    await until(lambda: second.status == 200, within=1)
    asked = len(service.asked)
    await asyncio.sleep(290)
    assert len(service.asked) == asked
    assert running.opened == 1
    busy.cancel()
    second.hang_up()


async def test_it_asks_later_where_a_new_member_took_partitions(service: OwnService) -> None:
    """Somebody asked for that one: an operator is there, and decides how many."""
    world = world_of(service, partitions=2)
    running = await service.pod(world)
    exchange = running.drain(idle="PT1H")
    await asyncio.sleep(5)
    exchange.hang_up()
    other = world.drain(ScriptedSubscriber(accept))
    visiting = world.begin(other, idle=FAR)
    took = now()
    await until(lambda: service.asked, within=HANDOVER + 5)
    assert service.asked[0] - took >= HANDOVER - 1
    other.stop()
    await visiting


async def test_a_newer_revision_ends_the_drain_that_it_answers_with_412(
    service: OwnService,
) -> None:
    world = world_of(service)
    running = await service.pod(world)
    exchange = running.drain(idle="PT1H")
    await until(lambda: exchange.status)
    service.status = 412
    exchange.hang_up()
    await until(lambda: world.log.groups[GROUP].members == [], within=RENEWAL_PATIENCE + 3)
    await asyncio.sleep(100)
    assert len(service.asked) == 1


async def test_a_service_that_does_not_answer_is_asked_again_and_the_drain_goes_on(
    service: OwnService,
) -> None:
    world = world_of(service)
    running = await service.pod(world)
    exchange = running.drain(idle="PT1H")
    await until(lambda: exchange.status)
    service.status = 503
    exchange.hang_up()
    await asyncio.sleep(30)
    world.send("1")
    await until(lambda: "1" in service.answered, within=2)
    assert 8 <= len(service.asked) <= 10


async def test_retries_go_on_in_a_drain_that_nobody_asks_for() -> None:
    answers = iter([503] * 3)

    async def answer(request: Request) -> Response:
        return response(next(answers, 200))

    running = await started(answer, delivery=Delivery(retry=5, backoff_delay=300))
    running.world.send("1")
    exchange = running.drain(idle="PT10S", budget="PT60S")
    await exchange.task
    await asyncio.sleep(2200)
    assert running.world.committed == {0: 1}
    assert [round(each) for each in running.world.subscriber.times] == [0, 300, 900, 2100]


async def test_the_request_that_it_makes_names_its_egress_and_says_what_it_is(
    service: OwnService,
) -> None:
    world = world_of(service)
    running = await service.pod(world)
    seen: list[dict[str, Any]] = []
    original = running.ask

    def ask(method: str, path: str, *parts: bytes) -> Exchange:
        seen.append(json.loads(parts[0]))
        return original(method, path, *parts)

    running.ask = ask  # type: ignore[method-assign]
    exchange = running.drain(idle="PT40S")
    await until(lambda: exchange.status)
    exchange.hang_up()
    await until(lambda: seen)
    assert seen[0]["renewal"] is True
    assert seen[0]["egress"] == running.dispatcher._digest
    assert seen[0]["idle"] == "PT40S"
