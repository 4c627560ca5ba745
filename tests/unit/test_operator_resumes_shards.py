"""After a start or a take-over: what is shared is delivered on by its shard, before reconciling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from support.memory.admin import MemoryAdmin
from support.operator_world import OperatorWorld, condition, running_operator

from knafka.core import names
from knafka.core.errors import LogError
from knafka_operator.dispatchers import resuming
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import EVENTING, ISOLATION, SERVING

pytestmark = pytest.mark.looptime

SHOP = "shop"
SHARED = {ISOLATION: "shared"}
OWN = {ISOLATION: "own"}
CONTRACT = names.contract_topic(SHOP, "b0")


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    """Broker b0 has two shared Triggers and one of its own, b1 has one of its own."""
    async with running_operator() as world:
        for broker in ("b0", "b1"):
            world.declare_broker(SHOP, broker)
            await world.reconcile_broker(SHOP, broker)
        for name, broker, annotations in (
            ("t0", "b0", SHARED),
            ("t1", "b0", SHARED),
            ("t2", "b0", OWN),
            ("t3", "b1", OWN),
        ):
            world.declare_trigger(SHOP, name, broker, annotations)
            await world.reconcile_trigger(SHOP, name)
        yield world


def places(world: OperatorWorld) -> dict[str, int | None]:
    """The shard of each Trigger that is delivered; None: its own Service."""
    return {
        who.name: None if each.place is None else each.place.number
        for who, each in world.operator.triggers.watched.items()
    }


ALL = {"t0": 0, "t1": 0, "t2": None, "t3": None}


async def test_each_is_resumed_where_it_was(world: OperatorWorld) -> None:
    before = world.operator.triggers.watched
    await world.restart()
    assert await world.operator.resume() == 4
    assert places(world) == ALL
    now = world.operator.triggers.watched
    assert {who: (each.egress, each.place) for who, each in now.items()} == {
        who: (each.egress, each.place) for who, each in before.items()
    }
    shard = names.shard_group(SHOP, "b0", 0)
    assert world.operator.states.urls[shard] == "http://b0-kn-shard-0.shop.svc.cluster.local"


async def test_reconciling_what_was_resumed_writes_nothing_to_the_contract(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.restart()
    await world.operator.resume()
    (side,) = {each.kafka for each in world.operator.triggers.watched.values()}

    async def forget(trigger_id: str) -> None:
        raise AssertionError(f"drains of {trigger_id} ended")

    monkeypatch.setattr(side.scaler, "forget", forget)
    for broker in ("b0", "b1"):
        await world.reconcile_broker(SHOP, broker)
    for name in ALL:
        status = await world.reconcile_trigger(SHOP, name)
        assert condition(status, "Ready")["status"] == "True"
    assert len(world.log.topics[CONTRACT][0]) == 2
    assert places(world) == ALL


@pytest.mark.parametrize("silent", [False, True], ids=["it fails", "it doesn't answer"])
async def test_a_contract_that_cant_be_read_delays_no_other_broker(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    async def read_last(topic: str, limit: int) -> Sequence[Any]:
        if silent:
            await asyncio.sleep(3600)
        raise LogError("away")

    monkeypatch.setattr(MemoryAdmin, "read_last", lambda self, *given: read_last(*given))
    await world.restart()
    resumed = asyncio.create_task(world.operator.resume())
    async with asyncio.timeout(1):
        while "t3" not in places(world):  # noqa: ASYNC110  # nobody signals it
            await asyncio.sleep(0.01)
    async with asyncio.timeout(resuming.CONTRACT_TIMEOUT + 1):
        await resumed
    assert places(world) == {"t3": None}, "the others are left to reconciling"


async def test_one_with_a_record_is_resumed_in_its_shard_whatever_service_it_has(
    world: OperatorWorld,
) -> None:
    """An operator died before it had deleted that."""
    own = world.cluster.objects[SERVING, "Service", SHOP, "t2-kn-dispatcher"]
    trigger = world.document("Trigger", SHOP, "t0")
    owner = {**own["metadata"]["ownerReferences"][0], "uid": trigger["metadata"]["uid"]}
    metadata = {**own["metadata"], "name": "t0-kn-dispatcher", "ownerReferences": [owner]}
    metadata |= {"uid": "another", "resourceVersion": None}
    world.cluster.put({**own, "metadata": metadata})
    await world.restart()
    await world.operator.resume()
    assert places(world) == ALL


def _without_a_service(world: OperatorWorld) -> None:
    world.cluster.remove(SERVING, "Service", SHOP, "b0-kn-shard-0")


def _promised_nothing(world: OperatorWorld) -> None:
    for name in ("t0", "t1"):
        world.cluster.objects[EVENTING, "Trigger", SHOP, name]["status"] = {}


@pytest.mark.parametrize("arrange", [_without_a_service, _promised_nothing])
async def test_what_no_shard_can_deliver_is_left_to_reconciling(
    world: OperatorWorld, arrange: Callable[[OperatorWorld], None]
) -> None:
    arrange(world)
    await world.restart()
    await world.operator.resume()
    assert places(world) == {"t2": None, "t3": None}


async def test_a_replica_that_waits_connects_to_the_kafkas_of_shards(world: OperatorWorld) -> None:
    for name in ("t2", "t3"):
        await world.delete_trigger(SHOP, name)
        world.cluster.remove(SERVING, "Service", SHOP, f"{name}-kn-dispatcher")
    await world.restart()
    connected = len(world.connected)
    await world.operator.prepare()
    assert len(world.connected) == connected + 1


async def test_a_deletion_that_an_operator_died_at_takes_the_record_away(
    world: OperatorWorld,
) -> None:
    await world.restart()
    await world.operator.resume()
    await world.delete_trigger(SHOP, "t0")
    (log,) = world.operator.states.brokers[Identity(SHOP, "b0")].contracts.values()
    assert log.records.keys() == {names.trigger_group(SHOP, "t1")}
