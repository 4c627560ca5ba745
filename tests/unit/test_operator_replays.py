"""Which Triggers get a replayer, when KafkaClusters answer and when one doesn't."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from support.operator_world import OperatorWorld, running_operator

from knafka.core import names
from knafka.core.errors import LogError
from knafka_operator.dispatchers.replays import REPLAY_CHECK_INTERVAL
from knafka_operator.kafka.clusters import KafkaCluster
from knafka_operator.model.identity import Identity

pytestmark = pytest.mark.looptime

OTHER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "other"}


async def _two_kafkas(world: OperatorWorld) -> list[KafkaCluster]:
    """Those of Broker `here` with Trigger `first`, and `there` with `second`."""
    world.configure("shop", "other", **{"bootstrap.servers": "other:9092"})
    for broker, trigger, spec in (("here", "first", {}), ("there", "second", {"config": OTHER})):
        world.declare_broker("shop", broker, **spec)
        await world.reconcile_broker("shop", broker)
        world.declare_trigger("shop", trigger, broker)
        await world.reconcile_trigger("shop", trigger)
    return world.operator._kafkas.all()


async def _replay(kafka: KafkaCluster, broker: str, trigger: str) -> str:
    topic = names.replay_topic("shop", broker, trigger)
    await kafka.topics.ensure_topic(topic, 1, 1, {})
    return topic


def _replayed(kafka: KafkaCluster) -> set[str]:
    return {each for each in kafka.scaler.statuses() if each.endswith("(replays)")}


def _patch(monkeypatch: pytest.MonkeyPatch, of: Any, name: str, method: Any) -> None:
    monkeypatch.setattr(of._inner, name, method)


async def _hangs(*_: Any, **__: Any) -> Any:
    await asyncio.sleep(1e6)


async def test_a_replay_begins_with_its_topic_and_ends_with_it() -> None:
    async with running_operator() as world:
        here, _ = await _two_kafkas(world)
        topic = await _replay(here, "here", "first")
        await asyncio.sleep(REPLAY_CHECK_INTERVAL + 1)
        assert _replayed(here) == {"shop/first (replays)"}
        await here.topics.delete_topic(topic)
        await asyncio.sleep(REPLAY_CHECK_INTERVAL + 1)
        assert _replayed(here) == set()
        assert topic not in here.watched


@pytest.mark.parametrize("hangs", [False, True], ids=["fails", "hangs"])
async def test_a_kafka_that_is_away_stops_the_replays_of_no_other(
    hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 14, 5: everybody's waited for its answer, fifteen seconds."""
    async with running_operator() as world:
        here, there = await _two_kafkas(world)
        await _replay(there, "there", "second")
        await asyncio.sleep(REPLAY_CHECK_INTERVAL + 1)

        async def away() -> Mapping[str, int]:
            raise LogError("Kafka did not answer within 15 s")

        _patch(monkeypatch, there.topics, "topics", _hangs if hangs else away)
        await asyncio.sleep(REPLAY_CHECK_INTERVAL)
        await _replay(here, "here", "first")
        await asyncio.sleep(REPLAY_CHECK_INTERVAL + 1)
        assert _replayed(here) == {"shop/first (replays)"}
        assert _replayed(there) == {"shop/second (replays)"}  # nobody says that it is over


async def test_a_replay_whose_function_cannot_be_applied_stops_no_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An API server that doesn't answer for one, as for an admission webhook of its namespace."""
    async with running_operator() as world:
        here, there = await _two_kafkas(world)
        apply, asked = world.cluster.apply, list[str]()

        async def hangs(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
            asked.append(manifest["metadata"]["name"])
            if manifest["metadata"]["name"] == "second-kn-replayer":
                await asyncio.sleep(1e6)
            return await apply(manifest)

        monkeypatch.setattr(world.cluster, "apply", hangs)
        await _replay(there, "there", "second")
        await asyncio.sleep(3 * REPLAY_CHECK_INTERVAL)
        await _replay(here, "here", "first")
        await asyncio.sleep(REPLAY_CHECK_INTERVAL + 1)
        assert _replayed(here) == {"shop/first (replays)"}
        assert asked.count("second-kn-replayer") == 1  # it isn't begun again while it is begun


async def test_a_replay_goes_with_its_trigger() -> None:
    async with running_operator() as world:
        here, _ = await _two_kafkas(world)
        await _replay(here, "here", "first")
        await asyncio.sleep(REPLAY_CHECK_INTERVAL + 1)
        await world.operator.triggers.stop_delivery(Identity("shop", "first"))
        await asyncio.sleep(REPLAY_CHECK_INTERVAL + 1)
        assert _replayed(here) == set()


async def test_a_replayer_applied_while_its_trigger_is_deleted_does_not_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the operator's namespace no owner deletes it, and the next of that name can't have it."""
    async with running_operator() as world:
        here, _ = await _two_kafkas(world)
        apply, is_asked, goes_on = world.cluster.apply, asyncio.Event(), asyncio.Event()

        async def slow_apply(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
            if manifest["metadata"]["name"] == "first-kn-replayer":
                is_asked.set()
                await goes_on.wait()
            return await apply(manifest)

        monkeypatch.setattr(world.cluster, "apply", slow_apply)
        world.cluster.unready.add("first-kn-replayer")
        await _replay(here, "here", "first")
        await is_asked.wait()
        await world.delete_trigger("shop", "first")
        goes_on.set()
        await asyncio.sleep(REPLAY_CHECK_INTERVAL + 1)
        assert "first-kn-replayer" not in world.cluster.services()
        assert _replayed(here) == set()
