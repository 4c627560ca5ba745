"""KafkaChannels whose Secret is another one, and beside what has nearly their names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.channel_world import VERSION, ChannelWorld, ready, running_channels
from support.operator_world import condition

from knafka.core import names
from knafka_operator.channels.observed import RECEIVERS
from knafka_operator.decisions.effects import Effect
from knafka_operator.decisions.steps import CHANNEL_ORDER, Step
from knafka_operator.kafka import shards
from knafka_operator.kafka.credentials import KAFKA_SECRET
from knafka_operator.model.channels import MESSAGING
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import CORE, SERVING
from knafka_operator.receivers import receivers

pytestmark = pytest.mark.looptime

SHOP = "shop"


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChannelWorld]:
    monkeypatch.setattr(receivers, "CONTRACT_READ_TIMEOUT", 0.5)
    monkeypatch.setattr(receivers, "REPLICA_POLL_INTERVAL", 0.01)
    async with running_channels() as world:
        yield world


def declared(world: ChannelWorld) -> dict[str, Any]:
    """`spec.subscribers` of the channel, by name."""
    spec = world.stored("KafkaChannel", SHOP, "orders")["spec"]
    return {each["name"]: each for each in spec.get("subscribers") or ()}


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
        topic.removeprefix(begin)[1:-11].removesuffix("c0ffee00").rstrip("-"): set(
            receivers.read_ingresses(records[0])
        )
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


async def test_a_service_of_somebody_elses_is_left_alone(world: ChannelWorld) -> None:
    """KN-CHN-11: whatever has the name of the channel's host."""
    world.add_gateway()
    metadata = {"namespace": SHOP, "name": "orders-kn-channel"}
    theirs = {"apiVersion": CORE, "kind": "Service", "metadata": metadata, "spec": {"ports": []}}
    world.cluster.put(theirs)
    world.declare_channel(SHOP, "orders")
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "Ready")["reason"] == "ServiceNotOurs"
    stored = world.cluster.objects[CORE, "Service", SHOP, "orders-kn-channel"]
    assert stored["spec"] == {"ports": []}
    await world.delete_channel(SHOP, "orders")
    assert (CORE, "Service", SHOP, "orders-kn-channel") in world.cluster.objects


async def test_effects_are_in_their_order(world: ChannelWorld) -> None:
    """Also those of a channel that moves: topic, receiver, entry, address; then the one before."""
    effects, ran = world.channels.effects, list[Step]()
    run = effects.run

    async def seen(effect: Effect, *others: Any) -> Any:
        ran.append(effect.step)
        return await run(effect, *others)

    effects.run = seen  # type: ignore[method-assign, assignment]
    world.add_gateway()
    await ready(world)
    own = [each for each in CHANNEL_ORDER if each is not Step.PUBLISH_STATUS]
    of_direct = {Step.APPLY_DIRECT_SERVICE, Step.PROBE_DIRECT}
    own = [each for each in own if each not in of_direct]
    moving = {Step.RECORD_RECEIVERS, Step.LEAVE_RECEIVERS}
    assert ran[: len(own) - 2] == [each for each in own if each not in moving]
    ran.clear()
    declare_kafka_secret(world, "second", "second:9092")
    world.add_gateway("second-kafka-channel-receiver")
    world.declare_channel(SHOP, "orders", {KAFKA_SECRET: "second"})
    await world.reconcile_channel(SHOP, "orders")
    # There is one Kafka in memory, and its host answers as before.
    assert ran == [
        each
        for each in own
        if each not in (Step.RECORD_TOPIC, Step.CREATE_TOPIC, Step.PROBE_RECEIVER)
    ]


async def test_a_subscription_that_moves_to_another_channel_leaves_the_previous_one(
    world: ChannelWorld,
) -> None:
    """It got the events of both, and was Ready."""
    await ready(world, "mail", "other")
    await ready(world, channel="returns")
    world.declare_subscription(SHOP, "mail", "returns")
    status = await world.reconcile_subscription(SHOP, "mail")
    assert condition(status, "Ready")["status"] == "True"
    assert _delivered(world, "orders") == ["other"]
    assert _delivered(world, "returns") == ["mail"]


async def test_a_subscription_created_again_while_no_operator_ran_is_delivered_once(
    world: ChannelWorld,
) -> None:
    """Its finalizer was removed by hand: the previous subscriber got all events, too."""
    await ready(world, "mail")
    await world.operator.close()
    world.cluster.set_finalizers(MESSAGING, "Subscription", SHOP, "mail")
    world.cluster.remove(MESSAGING, "Subscription", SHOP, "mail")
    world.declare_subscription(SHOP, "mail", "orders")
    await world.restart()
    world.hear()
    await world.channels.resume()
    await world.reconcile_channel(SHOP, "orders")
    status = await world.reconcile_subscription(SHOP, "mail")
    assert condition(status, "Ready")["status"] == "True"
    await world.reconcile_channel(SHOP, "orders")
    assert _delivered(world, "orders") == ["mail"]


def _delivered(world: ChannelWorld, channel: str) -> list[str]:
    """Return the Subscription of each record in the contract of a channel's shards."""
    contract = world.log.topics[names.contract_topic(SHOP, names.of_channel(channel))]
    return [each.egress.trigger for each in shards.read_shared_egresses(contract[0]).values()]
