"""A dispatcher that nobody asks for asks its own Service; on fake time."""

from __future__ import annotations

import asyncio
import json
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
    keep_busy,
    response,
    until,
)

from knafka.core.contract import Delivery
from knafka.core.documents import digest
from knafka.draining.lease import HANDOVER_SECONDS, RENEWAL_BUDGET, RENEWAL_PATIENCE
from knafka.ports.subscriber import Response
from knafka.settings import SERVICE_URL

pytestmark = pytest.mark.looptime


def now() -> float:
    return asyncio.get_running_loop().time()


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
            if not pod.is_attached:
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
    await asyncio.sleep(HANDOVER_SECONDS + 20)
    for exchange in asked:
        exchange.hang_up()
    await asyncio.sleep(RENEWAL_PATIENCE + 1)
    without = 0.0
    for _ in range(3000):
        await asyncio.sleep(0.1)
        without += 0.1 * sum(not pod.is_attached for pod in pods)
    assert without < 0.05 * 300 * 3
    busy.cancel()


async def test_it_asks_no_more_when_somebody_else_asks_again(service: OwnService) -> None:
    world = world_of(service)
    running = await service.pod(world)
    busy = asyncio.create_task(keep_busy(world))
    first = running.drain(idle="PT1H", budget="PT5S")
    await first.task
    await until(lambda: service.asked)
    await until(lambda: not running.is_attached)
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
    await until(lambda: service.asked, within=HANDOVER_SECONDS + 5)
    assert service.asked[0] - took >= HANDOVER_SECONDS - 1
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

    running = await started(answer, delivery=Delivery(retry=5, backoff_delay=100))
    running.world.send("1")
    exchange = running.drain(idle="PT10S", budget="PT60S")
    await exchange.task
    await asyncio.sleep(750)
    assert running.world.committed == {0: 1}
    assert [round(each) for each in running.world.subscriber.times] == [0, 100, 300, 700]


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
    assert seen[0]["egress"] == digest(running.world.egress)
    assert seen[0]["idle"] == "PT40S"
