"""Shared Triggers on an API server: what many of them cost, and whom a shard's Service wakes.

Everything is real but the API server, which is a small one, and Kafka, which is in memory.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import kubernetes
import pytest
from support.api_server import ApiServer, api_server
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog, MemoryWriter
from support.operator_world import SETTINGS, QuietDrains
from support.waiting import stretched

from knafka.core import names
from knafka_operator.kafka import shards
from knafka_operator.kube_api.cache import CachedCluster
from knafka_operator.kube_api.cluster import ApiCluster
from knafka_operator.model.resources import BROKER_CLASS, CORE, EVENTING, ISOLATION, SERVING
from knafka_operator.operator import Operator
from knafka_operator.runtime.controller import ClusterController
from knafka_operator.wiring import OperatorClients

pytestmark = pytest.mark.slow

SHARD = "default-kn-shard-0"
MANY = 200


async def _answers(url: str) -> None:
    """Every function does."""


class World:
    """One leader, and a Broker that shares dispatchers."""

    def __init__(self, server: ApiServer, client: kubernetes.client.ApiClient) -> None:
        self.server = server
        self.log = MemoryLog()
        self.api = ApiCluster(client)
        cluster = CachedCluster(self.api)
        self.operator = Operator(
            SETTINGS,
            cluster,
            OperatorClients(
                lambda _: MemoryAdmin(self.log),
                lambda _: MemoryWriter(self.log),
                QuietDrains(),
                _answers,
                _answers,
            ),
        )
        self.controller = ClusterController(self.operator, cluster, self.api)
        data = {"bootstrap.servers": "kafka:9092"}
        server.put(CORE, "ConfigMap", "knafka", SETTINGS.config, data=data)
        self.broker("shared")

    def broker(self, isolation: str) -> None:
        metadata = {"annotations": {BROKER_CLASS: "kafka", ISOLATION: isolation}}
        self.server.put(EVENTING, "Broker", "shop", "default", metadata=metadata)

    def trigger(self, name: str) -> None:
        spec = {"broker": "default", "subscriber": {"uri": "http://there/"}}
        self.server.put(EVENTING, "Trigger", "shop", name, spec=spec)

    def is_ready(self, name: str, kind: str = "Trigger") -> bool:
        found = self.server.found(EVENTING, kind, "shop", name) or {}
        conditions = found.get("status", {}).get("conditions", ())
        return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)

    def dispatcher(self, name: str) -> str:
        found = self.server.found(EVENTING, "Trigger", "shop", name) or {}
        annotations = found.get("status", {}).get("annotations", {})
        return str(annotations.get(shards.DISPATCHER_KEY))

    def services(self) -> set[str]:
        kept = list(self.server.objects.values())
        return {each["metadata"]["name"] for each in kept if each["kind"] == "Service"}


async def until(holds: Callable[[], bool], within: float = 20.0) -> float:
    """Seconds until it held."""
    began = time.monotonic()
    async with asyncio.timeout(stretched(within)):
        while not holds():  # noqa: ASYNC110  # told by other threads
            await asyncio.sleep(0.005)
    return time.monotonic() - began


@asynccontextmanager
async def _leading() -> AsyncIterator[World]:
    with api_server() as (server, client):
        world = World(server, client)
        task = asyncio.create_task(world.controller.run())
        try:
            await until(lambda: world.is_ready("default", "Broker"))
            yield world
        finally:
            task.cancel()
            await asyncio.wait({task})
            await world.operator.close()
            world.api.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with _leading() as world:
        yield world


async def quiet(world: World) -> None:
    """What its own writes led to is over."""
    while True:
        before = len(world.server.calls)
        await asyncio.sleep(0.3)
        if len(world.server.calls) == before:
            return


@pytest.mark.slow
@pytest.mark.integration
async def test_many_shared_triggers_cost_what_is_written_of_each_and_no_function(
    world: World,
) -> None:
    """Each its finalizer, group, conditions and lag, and the Event that it is Ready."""
    await quiet(world)
    before = len(world.server.calls)
    for number in range(MANY):
        world.trigger(f"t{number}")
    took = await until(lambda: all(world.is_ready(f"t{number}") for number in range(MANY)), 60)
    await quiet(world)
    asked = Counter(each.split()[0] for each in world.server.calls[before:])
    assert took < 30
    functions = [each for each in world.server.calls[before:] if "serving.knative.dev" in each]
    assert len(functions) <= 5, functions
    assert asked["PATCH"] <= 4 * MANY + 10
    assert world.services() == {"default-kn-receiver", SHARD}
    assert (
        len(
            shards.read_shared_egresses(
                world.log.topics[names.contract_topic("shop", "default")][0]
            )
        )
        == MANY
    )


async def test_a_look_at_what_is_shared_asks_the_api_server_nothing(world: World) -> None:
    world.trigger("mail")
    await until(lambda: world.is_ready("mail"))
    await quiet(world)
    keys = ("Broker", "shop", "default"), ("Trigger", "shop", "mail")

    async def calls_of_a_look() -> list[str]:
        before = len(world.server.calls)
        for each in keys:
            assert isinstance(await world.controller.reconcile(each), float)
        return list(world.server.calls[before:])

    async with asyncio.timeout(30):
        while await calls_of_a_look():  # its lag becomes known meanwhile, which is news
            await quiet(world)
    assert await calls_of_a_look() == []


async def test_a_shared_dispatcher_that_somebody_deletes_is_made_again(world: World) -> None:
    world.trigger("mail")
    await until(lambda: world.is_ready("mail"))
    await quiet(world)
    world.server.remove(SERVING, "Service", "shop", SHARD)
    await until(lambda: SHARD in world.services(), 1)
    await until(lambda: world.is_ready("mail"), 1)


async def test_a_brokers_isolation_moves_all_its_triggers(world: World) -> None:
    triggers = [f"t{number}" for number in range(20)]
    for each in triggers:
        world.trigger(each)
    await until(lambda: all(map(world.is_ready, triggers)))
    world.broker("own")
    await until(lambda: {f"{each}-kn-dispatcher" for each in triggers} < world.services())
    topic = names.contract_topic("shop", "default")
    await until(lambda: shards.read_shared_egresses(world.log.topics[topic][0]) == {})
    world.broker("shared")
    await until(lambda: all(world.dispatcher(each) == SHARD for each in triggers))
    await until(lambda: all(map(world.is_ready, triggers)))
    assert world.services() == {"default-kn-receiver", SHARD}
