"""KafkaChannels and Subscriptions where something goes away, is edited, or is one of very many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.channel_world import CONTRACT, VERSION, ChannelWorld, running_channels
from support.operator_world import condition

from knafka.core.errors import LogError
from knafka_operator.decide.channel import KAFKA_SECRET, RECEIVERS
from knafka_operator.model.channels import MESSAGING
from knafka_operator.model.cluster import ClusterError
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import CORE, SERVING
from knafka_operator.reconcile import receivers

SHOP = "shop"
TOPIC = "knative-messaging-kafka.shop.orders"
RECEIVER = SERVING, "Service", "knafka", "kafka-channel-receiver"
COUNT = 300
CONFIG = CORE, "ConfigMap", "knafka", "kafka-channel-config"


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChannelWorld]:
    monkeypatch.setattr(receivers, "READ_TIMEOUT", 0.05)
    monkeypatch.setattr(receivers, "LOOK_INTERVAL", 0.01)
    async with running_channels() as world:
        yield world


async def ready(world: ChannelWorld, *subscriptions: str, channel: str = "orders") -> None:
    """A channel with these Subscriptions, all of them Ready."""
    world.declare_channel(SHOP, channel)
    status = await world.reconcile_channel(SHOP, channel)
    for each in subscriptions:
        world.declare_subscription(SHOP, each, channel)
        status = await world.reconcile_subscription(SHOP, each)
        assert condition(status, "Ready")["status"] == "True", status["conditions"]
    status = await world.reconcile_channel(SHOP, channel)
    assert condition(status, "Ready")["status"] == "True", status["conditions"]


def contract(world: ChannelWorld) -> str:
    (topic,) = (each for each in world.log.topics if each.startswith(CONTRACT))
    return topic


def uid(world: ChannelWorld, kind: str, name: str) -> str:
    return str(world.stored(kind, SHOP, name)["metadata"]["uid"])


def declared(world: ChannelWorld) -> dict[str, Any]:
    """`spec.subscribers` of the channel, by name."""
    spec = world.stored("KafkaChannel", SHOP, "orders")["spec"]
    return {each["name"]: each for each in spec.get("subscribers") or ()}


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
    monkeypatch.setattr(receivers, "CHECK_AGAIN", 0.0)
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


async def test_an_operator_that_starts_leaves_subscribers_as_they_are(
    world: ChannelWorld,
) -> None:
    """KN-CHN-05: those it hasn't reconciled yet are delivered."""
    await ready(world, "audit", "mail")
    before = world.stored("KafkaChannel", SHOP, "orders")
    await world.restart()
    for name in ("audit", "mail"):
        world.channels.on_change(world.stored("Subscription", SHOP, name), gone=False)
    await world.channels.resume()
    world.cluster.requests.clear()
    status = await world.reconcile_channel(SHOP, "orders")
    assert status["subscribers"] == before["status"]["subscribers"]
    assert set(declared(world)) == {"audit", "mail"}
    for name in ("audit", "mail"):
        await world.reconcile_subscription(SHOP, name)
    await world.reconcile_channel(SHOP, "orders")
    assert set(declared(world)) == {"audit", "mail"}
    assert (
        world.stored("KafkaChannel", SHOP, "orders")["metadata"]["generation"]
        == (before["metadata"]["generation"])
    )


async def test_subscribers_are_no_news_to_the_subscriptions(world: ChannelWorld) -> None:
    """What each of them adds to its channel wakes none of the others."""
    await ready(world, "audit", "mail")
    world.declare_subscription(SHOP, "more", "orders")
    await world.reconcile_subscription(SHOP, "more")
    items = world.channels.queue._items
    items.clear()
    await world.reconcile_channel(SHOP, "orders")
    await world.reconcile_channel(SHOP, "orders")
    assert set(declared(world)) == {"audit", "mail", "more"}
    assert [each for each in items if each[0] == "Subscription"] == []


async def test_a_channel_that_is_made_again_delivers_from_its_beginning(
    world: ChannelWorld,
) -> None:
    """KN-SUB-05: and says that it does once it does."""
    await ready(world, "audit")
    await world.delete_channel(SHOP, "orders")
    world.declare_channel(SHOP, "orders")
    status = await world.reconcile_channel(SHOP, "orders")
    assert [each for each in status["subscribers"] if each["ready"] == "True"] == []
    assert declared(world) == {}
    status = await world.reconcile_subscription(SHOP, "audit")
    assert condition(status, "Ready")["status"] == "True"
    status = await world.reconcile_channel(SHOP, "orders")
    assert [each["ready"] for each in status["subscribers"]] == ["True"]
    assert set(declared(world)) == {"audit"}


async def test_an_edited_subscription_is_one_record_and_keeps_its_group(
    world: ChannelWorld,
) -> None:
    """KN-SUB-04: whatever is edited, nothing stops."""
    await ready(world, "audit")
    (shard,) = (each for each in world.log.topics if "KafkaChannel-orders" in each)
    records, group = world.log.topics[shard][0], world.egress_of(SHOP, "audit").group
    committed = dict(world.log.groups[group].committed)
    edits: list[dict[str, Any]] = [
        {"subscriber": {"uri": "http://elsewhere/"}},
        {"reply": {"uri": "http://replies/"}},
        {"delivery": {"retry": 5}},
    ]
    for edit in edits:
        before = len(records)
        world.declare_subscription(SHOP, "audit", "orders", **edit)
        status = await world.reconcile_subscription(SHOP, "audit")
        assert condition(status, "Ready")["status"] == "True"
        assert len(records) == before + 1
    egress = world.egress_of(SHOP, "audit")
    assert (egress.group, egress.delivery.retry) == (group, 5)
    assert dict(world.log.groups[group].committed) == committed
    await world.reconcile_channel(SHOP, "orders")
    assert declared(world)["audit"]["uid"] == uid(world, "Subscription", "audit")


async def test_subscriptions_with_equal_destinations_are_both_delivered(
    world: ChannelWorld,
) -> None:
    """KN-CHN-03."""
    await ready(world, "audit", "same")
    groups = {world.egress_of(SHOP, each).group for each in ("audit", "same")}
    assert len(groups) == 2
    assert groups <= world.log.groups.keys()
    assert len(declared(world)) == 2


async def test_an_entry_whose_channel_is_gone_is_withdrawn(
    world: ChannelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody took our finalizer away, or Kafka was away for as long as a deletion may take."""
    monkeypatch.setattr(receivers, "CHECK_AGAIN", 0.0)
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


def declare_kafka_secret(world: ChannelWorld, name: str, servers: str) -> None:
    login = {"protocol": "SASL_PLAINTEXT", "user": "me", "password": "x"}
    world.declare_secret("knafka", name, **login, **{"bootstrap.servers": servers})
    stored = world.cluster.objects[CORE, "Secret", "knafka", name]
    labels = {KAFKA_SECRET: "true"}
    world.cluster.put({**stored, "metadata": {**stored["metadata"], "labels": labels}})


def served(world: ChannelWorld) -> dict[str, set[str]]:
    """What each receiver's contract has."""
    begin = "knafka-contract-knafka-KafkaChannels"
    return {
        topic.removeprefix(begin)[1:-11]: set(receivers.entries(records[0]))
        for topic, records in world.log.topics.items()
        if topic.startswith(begin)
    }


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_channel_with_another_secret_leaves_the_receiver_of_the_one_before(
    world: ChannelWorld, restarted: bool
) -> None:
    """CHN-11, CHN-20: one receiver serves it, and when it is deleted none does."""
    declare_kafka_secret(world, "first", "first:9092")
    declare_kafka_secret(world, "second", "second:9092")
    world.declare_channel(SHOP, "orders", {KAFKA_SECRET: "first"})
    await world.reconcile_channel(SHOP, "orders")
    assert served(world) == {"first": {"/shop/orders"}}
    world.declare_channel(SHOP, "orders", {KAFKA_SECRET: "second"})
    if restarted:
        await world.restart()
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "Ready")["status"] == "True", status["conditions"]
    assert served(world) == {"first": set(), "second": {"/shop/orders"}}
    assert status["annotations"][RECEIVERS] == "second-kafka-channel-receiver"
    await world.delete_channel(SHOP, "orders")
    assert served(world) == {"first": set(), "second": set()}


async def test_a_channel_that_can_not_move_yet_goes_on_where_it_was(world: ChannelWorld) -> None:
    """And one that is deleted then has an entry nowhere."""
    await ready(world)
    declare_kafka_secret(world, "second", "second:9092")
    world.declare_channel(SHOP, "orders", {KAFKA_SECRET: "second"})
    world.behind = {"pod-1": 0}
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "ContractUpdated")["reason"] == "ReceiverBehind"
    assert served(world) == {"": {"/shop/orders"}, "second": {"/shop/orders"}}
    world.behind = {}
    await world.restart()
    await world.delete_channel(SHOP, "orders")
    assert served(world) == {"": set(), "second": set()}


async def test_a_receiver_that_is_left_and_gone_with_its_secret_stands_in_nobodys_way(
    world: ChannelWorld,
) -> None:
    declare_kafka_secret(world, "first", "first:9092")
    world.declare_channel(SHOP, "orders", {KAFKA_SECRET: "first"})
    await world.reconcile_channel(SHOP, "orders")
    world.cluster.remove(CORE, "Secret", "knafka", "first")
    world.declare_channel(SHOP, "orders")
    await world.restart()
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "ContractUpdated")["reason"] == "SecretNotFound"
    world.cluster.remove(SERVING, "Service", "knafka", "first-kafka-channel-receiver")
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "Ready")["status"] == "True"


async def test_a_secret_that_was_changed_is_used_from_then_on(world: ChannelWorld) -> None:
    """Its contract goes on, by another connection."""
    world.declare_secret("knafka", "login", user="me", password="x", protocol="SASL_PLAINTEXT")
    data = {"bootstrap.servers": "kafka:9092", "auth.secret.ref.name": "login"}
    world.configure("knafka", "kafka-channel-config", **data)
    await ready(world, "audit")
    before = world.channels.states.brokers[Identity(SHOP, "orders")].kafka
    world.declare_secret("knafka", "login", user="me", password="y", protocol="SASL_PLAINTEXT")
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "Ready")["status"] == "True"
    after = world.channels.states.brokers[Identity(SHOP, "orders")].kafka
    assert after is not before
    await ready(world, channel="more")
    await world.reconcile_subscription(SHOP, "audit")
    await world.delete_subscription(SHOP, "audit")
    for name in ("orders", "more"):
        await world.delete_channel(SHOP, name)
    assert set().union(*served(world).values()) == set()


async def test_a_config_map_that_is_gone_leaves_channels_as_they_are(world: ChannelWorld) -> None:
    await ready(world, "audit")
    world.cluster.remove(*CONFIG)
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "ConfigParsed")["status"] == "False"
    assert set(world.ingresses()) == {"/shop/orders"}
    assert world.egress_of(SHOP, "audit").topic == TOPIC
    status = await world.reconcile_subscription(SHOP, "audit")
    assert status["physicalSubscription"]["subscriberUri"] == "http://there/"


async def test_names_that_look_alike_share_nothing(world: ChannelWorld) -> None:
    """`a-b`/`c` and `a`/`b-c`, and a Broker of that name, too."""
    world.add_gateway()
    world.declare_broker("a", "b-c")
    await world.reconcile_broker("a", "b-c")
    for namespace, name in (("a-b", "c"), ("a", "b-c")):
        world.declare_channel(namespace, name)
        status = await world.reconcile_channel(namespace, name)
        assert condition(status, "Ready")["status"] == "True", status["conditions"]
        world.declare_subscription(namespace, "audit", name)
        status = await world.reconcile_subscription(namespace, "audit")
        assert condition(status, "Ready")["status"] == "True", status["conditions"]
    routes = [each for each in world.cluster.objects if each[1] == "Ingress"]
    assert len(routes) == 3
    shards = {each for each in world.cluster.services() if "shard" in each}
    assert len(shards) == 2
    await world.delete_subscription("a", "audit")
    await world.delete_channel("a", "b-c")
    assert world.log.topics.keys() >= {
        "knative-messaging-kafka.a-b.c", "knative-broker-a-b-c",
    }  # fmt: skip
    assert "knative-messaging-kafka.a.b-c" not in world.log.topics
    assert set(world.ingresses()) == {"/a-b/c"}
    assert "b-c-kn-receiver" in world.cluster.services()
    assert len([each for each in world.cluster.services() if "shard" in each]) == 1
    status = await world.reconcile_subscription("a-b", "audit")
    assert condition(status, "Ready")["status"] == "True", status["conditions"]


async def test_what_is_applied_as_v1_is_read_as_it_is_stored(world: ChannelWorld) -> None:
    """KN-CHN-10: owners and statuses name the version that is stored."""
    world.add_gateway()
    await ready(world)
    to = {"apiVersion": "messaging.knative.dev/v1", "kind": "KafkaChannel", "name": "orders"}
    world.declare_subscription(SHOP, "audit", "orders")
    stored = world.stored("Subscription", SHOP, "audit")
    world.cluster.put({**stored, "spec": {**stored["spec"], "channel": to}})
    status = await world.reconcile_subscription(SHOP, "audit")
    assert condition(status, "Ready")["status"] == "True", status["conditions"]
    (owner,) = world.cluster.objects[CORE, "Service", SHOP, "orders-kn-channel"]["metadata"][
        "ownerReferences"
    ]
    assert owner["apiVersion"] == VERSION
    await world.reconcile_channel(SHOP, "orders")
    assert set(declared(world)) == {"audit"}


async def test_a_subscription_is_deleted_also_after_the_config_map_of_its_channel(
    world: ChannelWorld,
) -> None:
    """By an operator that has found nothing of either."""
    await ready(world, "audit")
    world.cluster.remove(*CONFIG)
    await world.restart()
    await world.delete_subscription(SHOP, "audit")
    assert world.log.groups == {}


@pytest.mark.slow
async def test_what_many_channels_and_subscriptions_cost_does_not_grow_with_their_square(
    world: ChannelWorld,
) -> None:
    """300 of each, by the work queue: a few writes for each of them, and none after a restart."""
    for number in range(COUNT):
        world.declare_channel(SHOP, f"channel-{number}")
        world.declare_subscription(SHOP, f"audit-{number}", "channel-0")
    begun = time.process_time()
    await converge(world)
    writes = {each: world.cluster.requests[each] for each in ("apply", "write_status")}
    print(writes, time.process_time() - begun)
    assert len(world.stored("KafkaChannel", SHOP, "channel-0")["spec"]["subscribers"]) == COUNT
    for kind, name in (("KafkaChannel", "channel"), ("Subscription", "audit")):
        for number in range(COUNT):
            status = world.stored(kind, SHOP, f"{name}-{number}")["status"]
            assert condition(status, "Ready")["status"] == "True"
    assert writes["apply"] <= COUNT
    assert writes["write_status"] <= 7 * COUNT
    await world.restart()
    world.cluster.requests.clear()
    begun = time.process_time()
    for each in world.cluster.of("Subscription"):
        world.channels.on_change(each, gone=False)
    assert await world.channels.resume() == COUNT
    await converge(world)
    writes = {each: world.cluster.requests[each] for each in ("apply", "write_status")}
    print(writes, time.process_time() - begun)
    assert writes["apply"] <= 10
    assert writes["write_status"] <= 10


async def converge(world: ChannelWorld) -> None:
    """Reconcile everything, as a watch has it, until nothing is due."""
    kinds = {"KafkaChannel": VERSION, "Subscription": MESSAGING}
    heard = dict[tuple[str, str, str], str]()

    def hear() -> None:
        for kind in kinds:
            for document in list(world.cluster.of(kind)):
                metadata = document["metadata"]
                key = kind, metadata["namespace"], metadata["name"]
                if heard.get(key) != metadata["resourceVersion"]:
                    heard[key] = metadata["resourceVersion"]
                    world.channels.on_change(document, gone=False)

    async def reconcile(key: tuple[str, str, str]) -> float:
        document = await world.cluster.get(kinds[key[0]], *key)
        assert document is not None
        broker = key[0] == "KafkaChannel"
        operator = world.channels
        await (operator.reconcile_broker if broker else operator.triggers.reconcile)(document)
        return 1000.0

    running = asyncio.create_task(world.channels.queue.run(reconcile))
    quiet = 0
    while quiet < 3:
        hear()
        await asyncio.sleep(0.06)
        quiet = 0 if world.channels.queue.busy else quiet + 1
    running.cancel()
    await asyncio.wait({running})
