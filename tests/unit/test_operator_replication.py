"""Replication: what the operator makes of Kafkas with few brokers, and what it says of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import pytest
from support.channel_world import CONTRACT, ChannelWorld, running_channels
from support.memory.admin import MemoryAdmin
from support.operator_world import condition

from knafka.core.errors import LogError

SHOP = "shop"


@pytest.fixture
async def world() -> AsyncIterator[ChannelWorld]:
    async with running_channels() as world:
        yield world


def brokers(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Kafka has so many."""
    ensure = MemoryAdmin.ensure_topic

    async def ensure_topic(
        self: MemoryAdmin, topic: str, partitions: int, replication: int, config: Mapping[str, str]
    ) -> bool:
        if replication > count:
            raise LogError(
                f"Unable to replicate the partition {replication} time(s)", too_few_brokers=True
            )
        return await ensure(self, topic, partitions, replication, config)

    monkeypatch.setattr(MemoryAdmin, "ensure_topic", ensure_topic)


@pytest.mark.parametrize(("count", "replication"), [(1, 1), (2, 2), (3, 3), (5, 3)])
async def test_a_contract_takes_the_replication_that_kafka_can_have_where_none_is_declared(
    world: ChannelWorld, monkeypatch: pytest.MonkeyPatch, count: int, replication: int
) -> None:
    """Issue 30: a KafkaChannel on one node was never Ready, for a topic that no page names."""
    brokers(monkeypatch, count)
    world.declare_channel(SHOP, "orders")
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "Ready")["status"] == "True", status["conditions"]
    (contract,) = [each for name, each in world.log.descriptions.items() if CONTRACT in name]
    assert contract.replication == replication
    assert contract.config.get("min.insync.replicas") == ("2" if replication >= 3 else None)


async def test_what_is_declared_for_a_contract_is_never_less(
    world: ChannelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers(monkeypatch, 1)
    declared = {"bootstrap.servers": "kafka:9092", "default.topic.replication.factor": "3"}
    world.configure("knafka", "kafka-channel-config", **declared)
    world.declare_channel(SHOP, "orders")
    status = await world.reconcile_channel(SHOP, "orders")
    said = condition(status, "Ready")
    assert said["reason"] == "InvalidReplicationFactor"
    assert CONTRACT in said["message"]
    assert "set default.topic.replication.factor" in said["message"]


async def test_a_channel_that_wants_more_copies_than_there_are_brokers_says_which_key(
    world: ChannelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers(monkeypatch, 1)
    world.declare_channel(SHOP, "orders", replicationFactor=3)
    status = await world.reconcile_channel(SHOP, "orders")
    said = condition(status, "TopicReady")
    assert said["reason"] == "InvalidReplicationFactor"
    assert "knative-messaging-kafka.shop.orders" in said["message"]
    assert "spec.replicationFactor" in said["message"]
