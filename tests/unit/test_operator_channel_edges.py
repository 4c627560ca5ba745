"""KafkaChannels where Kafka, a ConfigMap, a contract or a receiver goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.channel_world import CONTRACT, VERSION, ChannelWorld, ready, running_channels
from support.operator_world import condition

from knafka.core.errors import LogError
from knafka_operator.model.cluster import ClusterError
from knafka_operator.model.resources import CORE, SERVING
from knafka_operator.receivers import receivers

pytestmark = pytest.mark.looptime

SHOP = "shop"
TOPIC = "knative-messaging-kafka.shop.orders"
RECEIVER = SERVING, "Service", "knafka", "kafka-channel-receiver"
CONFIG = CORE, "ConfigMap", "knafka", "kafka-channel-config"


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChannelWorld]:
    monkeypatch.setattr(receivers, "CONTRACT_READ_TIMEOUT", 0.5)
    monkeypatch.setattr(receivers, "REPLICA_POLL_INTERVAL", 0.01)
    async with running_channels() as world:
        yield world


def contract(world: ChannelWorld) -> str:
    (topic,) = (each for each in world.log.topics if each.startswith(CONTRACT))
    return topic


def uid(world: ChannelWorld, kind: str, name: str) -> str:
    return str(world.stored(kind, SHOP, name)["metadata"]["uid"])


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_channel_is_deleted_also_after_its_config_map(
    world: ChannelWorld, restarted: bool
) -> None:
    """Whatever goes first, by `kubectl delete -f`: its topic and its entry go, too."""
    await ready(world, "audit")
    world.cluster.remove(*CONFIG)
    if restarted:
        await world.restart()
        await world.channels.resume()
    await world.delete_subscription(SHOP, "audit")
    await world.delete_channel(SHOP, "orders")
    assert TOPIC not in world.log.topics
    assert world.ingresses() == {}
    assert world.log.groups == {}


async def test_a_channel_that_never_had_a_kafka_is_deleted_without_one(
    world: ChannelWorld,
) -> None:
    world.cluster.remove(*CONFIG)
    world.declare_channel(SHOP, "orders")
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "ConfigParsed")["status"] == "False"
    await world.delete_channel(SHOP, "orders")
    assert world.channels.states.brokers == {}


async def test_kafka_that_is_away_keeps_a_channel_that_is_deleted(world: ChannelWorld) -> None:
    await ready(world)
    world.kafka_failures["append"] = LogError("no brokers")
    with pytest.raises(LogError):
        await world.delete_channel(SHOP, "orders")
    assert TOPIC in world.log.topics
    del world.kafka_failures["append"]
    await world.delete_channel(SHOP, "orders")
    assert TOPIC not in world.log.topics
    assert world.ingresses() == {}


async def test_a_write_that_failed_is_read_again_and_written(world: ChannelWorld) -> None:
    await ready(world)
    world.declare_channel(SHOP, "more")
    world.kafka_failures["append"] = LogError("no brokers")
    status = await world.reconcile_channel(SHOP, "more")
    assert condition(status, "ContractUpdated")["status"] == "False"
    del world.kafka_failures["append"]
    status = await world.reconcile_channel(SHOP, "more")
    assert condition(status, "Ready")["status"] == "True"
    assert set(world.ingresses()) == {"/shop/orders", "/shop/more"}


async def test_positions_in_a_contract_that_was_made_anew_are_not_believed(
    world: ChannelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KN-CHN-01: replicas that have read more of the topic before it haven't read this one."""
    monkeypatch.setattr(receivers, "CONTRACT_CHECK_INTERVAL", 0.0)
    for name in ("a", "b", "orders"):
        await ready(world, channel=name)
    world.behind = {"pod-1": 3}
    await ready(world)
    del world.log.topics[contract(world)]
    status = await world.reconcile_channel(SHOP, "orders")
    assert list(world.ingresses()) == ["/shop/orders"], "it was written anew"
    assert condition(status, "ContractUpdated")["reason"] == "ReceiverBehind"
    world.behind = {"pod-1": 1}
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "Ready")["status"] == "True"
    keys = {("KafkaChannel", SHOP, each) for each in ("a", "b")}
    assert keys <= set(world.channels.queue._items), "the others write theirs, too"


async def test_a_receiver_that_was_deleted_is_made_again(world: ChannelWorld) -> None:
    await ready(world)
    world.cluster.remove(*RECEIVER)
    await world.reconcile_channel(SHOP, "orders")
    assert RECEIVER in world.cluster.objects


async def test_many_channels_wait_together_for_a_replica_that_is_behind(
    world: ChannelWorld,
) -> None:
    """One that doesn't answer is named by each of them, and isn't asked by each."""
    await ready(world)
    world.behind, world.asked = {"pod-1": None}, 0
    names = [f"more-{number}" for number in range(50)]
    for name in names:
        world.declare_channel(SHOP, name)
    statuses = await asyncio.gather(*(world.reconcile_channel(SHOP, each) for each in names))
    for status in statuses:
        assert condition(status, "ContractUpdated")["reason"] == "ReceiverBehind"
        assert "1 replicas" in condition(status, "ContractUpdated")["message"]
        assert "pod-1" in condition(status, "ContractUpdated")["message"]
    assert world.asked <= 100
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "Ready")["status"] == "True", "what was read before stays"


async def test_a_channel_whose_spec_becomes_invalid_is_served_as_before(
    world: ChannelWorld,
) -> None:
    await ready(world, "audit")
    stored = world.stored("KafkaChannel", SHOP, "orders")
    world.cluster.put({**stored, "spec": {**stored["spec"], "numPartitions": "three"}})
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "Ready")["status"] == "False"
    assert "/shop/orders" in world.ingresses()
    assert [each["uid"] for each in status["subscribers"]] == [uid(world, "Subscription", "audit")]
    assert world.egress_of(SHOP, "audit").topic == TOPIC
    await world.delete_subscription(SHOP, "audit")
    await world.delete_channel(SHOP, "orders")
    assert TOPIC not in world.log.topics


async def test_an_entry_whose_channel_is_gone_is_withdrawn(
    world: ChannelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody took our finalizer away, or Kafka was away for as long as a deletion may take."""
    monkeypatch.setattr(receivers, "CONTRACT_CHECK_INTERVAL", 0.0)
    await ready(world)
    await ready(world, channel="more")
    document = world.stored("KafkaChannel", SHOP, "orders")
    world.cluster.remove(VERSION, "KafkaChannel", SHOP, "orders")
    world.channels.on_change(document, gone=True)
    await world.reconcile_channel(SHOP, "more")
    assert set(world.ingresses()) == {"/shop/more"}
    world.cluster.refuse("get", "KafkaChannel", error=ClusterError("busy"))
    status = await world.reconcile_channel(SHOP, "more")
    assert condition(status, "Ready")["status"] == "True"


async def test_a_config_map_that_is_gone_leaves_channels_as_they_are(world: ChannelWorld) -> None:
    await ready(world, "audit")
    world.cluster.remove(*CONFIG)
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "ConfigParsed")["status"] == "False"
    assert set(world.ingresses()) == {"/shop/orders"}
    assert world.egress_of(SHOP, "audit").topic == TOPIC
    status = await world.reconcile_subscription(SHOP, "audit")
    assert status["physicalSubscription"]["subscriberUri"] == "http://there/"


@pytest.mark.parametrize("restarted", [False, True])
async def test_kafka_that_is_away_altogether_is_the_topics_condition(
    world: ChannelWorld, restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its configuration is as it should be."""
    monkeypatch.setattr(receivers, "CONTRACT_CHECK_INTERVAL", 0.0)
    await ready(world)
    if restarted:
        await world.restart()
    for each in ("describe_topic", "read_last", "end_offsets", "append"):
        world.kafka_failures[each] = LogError("no brokers")
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "ConfigParsed")["status"] == "True"
    assert condition(status, "TopicReady")["reason"] == "KafkaNotReachable"
    world.kafka_failures.clear()
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "Ready")["status"] == "True"
