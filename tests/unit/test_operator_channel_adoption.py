"""A KafkaChannel goes from eventing-kafka-broker to Knafka and back: its topic and groups stay."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.channel_entries import CHANNEL, SHOP, TOPIC, eventing, group
from support.channel_world import ChannelWorld, running_channels
from support.controlled import controller_of
from support.memory.log import MemoryWriter
from support.operator_world import condition

from knafka.core import names
from knafka.ports.log import OffsetAndMetadata
from knafka_operator.decide.topics import TOPIC_ID
from knafka_operator.engine.kinds import kinds_of
from knafka_operator.model.channels import PEERS_CHANNEL_FINALIZER, PROMISE
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import FINALIZER, ISOLATION, TOPIC_STATUS

pytestmark = pytest.mark.looptime

NAMES = ("audit", "mail")
THEIRS = {"type": "Ready", "status": "True"}, {"type": "ConfigMapUpdated", "status": "True"}
HOST = "orders-kn-channel"
RIVAL_HOST = "kafka-channel-ingress.knative-eventing.svc.cluster.local"


class World:
    """A channel of the peer's with two Subscriptions, added by Knative Eventing or not."""

    def __init__(self, inner: ChannelWorld, *, by_eventing: bool) -> None:
        self.inner, self.by_eventing = inner, by_eventing
        inner.cluster.put(service("knative-eventing", "kafka-channel-ingress"))
        inner.log.create(TOPIC, 2)
        for _ in range(10):
            MemoryWriter(inner.log).append(TOPIC, None, b"{}", [], lambda *_: None)
        inner.declare_channel(SHOP, CHANNEL, numPartitions=2)
        self.uids = {}
        for number, name in enumerate(NAMES):
            inner.declare_subscription(SHOP, name, CHANNEL)
            uid = str(inner.stored("Subscription", SHOP, name)["metadata"]["uid"])
            inner.declare_entry(SHOP, CHANNEL, uid, f"http://{name}/", name=name)
            self.uids[name] = uid
            for partition in (0, 1):
                at = OffsetAndMetadata(number + 1, "")
                inner.log.group(group(uid)).committed[TOPIC, partition] = at
        self.claim(PEERS_CHANNEL_FINALIZER)
        self.stored["status"] = {
            "annotations": {TOPIC_STATUS: TOPIC},
            "conditions": list(THEIRS),
            "address": {"url": "http://theirs/"},
        }
        of = {"uid": self.stored["metadata"]["uid"], "kind": "KafkaChannel", "name": CHANNEL}
        host = service(SHOP, HOST, externalName=RIVAL_HOST)
        host["metadata"]["ownerReferences"] = [of]
        inner.cluster.put(host)
        eventing(inner, by_eventing)

    @property
    def stored(self) -> dict[str, Any]:
        return self.inner.stored("KafkaChannel", SHOP, CHANNEL)

    def claim(self, *finalizers: str) -> None:
        """Say whose the channel is."""
        self.stored["metadata"]["finalizers"] = list(finalizers)

    def promise(self) -> None:
        """As `knafka adopt` does, before it takes the peer's finalizer off."""
        annotations = self.stored["status"]["annotations"]
        annotations[TOPIC_ID] = self.inner.log.descriptions[TOPIC].id
        annotations |= {PROMISE + uid: "{}" for uid in self.uids.values()}

    async def adopt(self) -> None:
        """As `knafka adopt` does, and the controller after it."""
        self.promise()
        self.claim()
        self.inner.hear()
        await self.inner.reconcile_channel(SHOP, CHANNEL)
        self.claim(FINALIZER)
        await self.go_on()

    async def go_on(self) -> None:
        """Reconcile every Subscription, then the channel."""
        for name in NAMES:
            await self.subscription(name)
        await self.inner.reconcile_channel(SHOP, CHANNEL)

    async def subscription(self, name: str) -> None:
        triggers = self.inner.channels.triggers
        document = await triggers.get(("Subscription", SHOP, name))
        assert document is not None
        await triggers.reconcile(document)

    async def leave(self) -> None:
        """As the controller does for what isn't ours, in the order of its queue."""
        self.inner.hear()
        channel, kinds = self.stored, kinds_of(self.inner.channels)
        assert not kinds["KafkaChannel"].is_ours(channel)
        await kinds["KafkaChannel"].leave(channel)
        self.inner.hear()
        for name in NAMES:
            document = await kinds["Subscription"].get(("Subscription", SHOP, name))
            assert document is not None
            assert not kinds["Subscription"].is_ours(document)
            await kinds["Subscription"].leave(document)
            await kinds["Subscription"].drop_entry(document)

    def committed(self) -> dict[str, dict[tuple[str, int], int]]:
        log = self.inner.log
        return {
            name: {place: each.offset for place, each in log.group(group(uid)).committed.items()}
            for name, uid in self.uids.items()
        }

    def watched(self) -> dict[str, str]:
        watched = self.inner.channels.triggers.watched
        return {who.name: each.egress.group for who, each in watched.items()}

    def host(self) -> str:
        stored = self.inner.cluster.objects["v1", "Service", SHOP, HOST]
        return str(stored["spec"]["externalName"])


def service(namespace: str, name: str, **spec: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"namespace": namespace, "name": name}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


@pytest.fixture(params=[True, False], ids=["Knative Eventing's", "our own"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with running_channels() as inner:
        inner.add_gateway()
        yield World(inner, by_eventing=request.param)


async def test_a_channel_that_the_peer_has_claimed_is_left_alone(world: World) -> None:
    before, offsets = dict(world.stored), world.committed()
    await world.leave()
    assert world.stored == before
    assert world.watched() == {}
    assert world.committed() == offsets
    assert world.host() == RIVAL_HOST
    assert world.inner.cluster.services() == set()


async def test_beside_the_peer_a_channel_that_nobody_has_claimed_gets_no_finalizer_of_ours(
    world: World,
) -> None:
    world.claim()
    channels = world.inner.channels.brokers
    assert not await channels.makes_something(world.stored)
    status = await world.inner.reconcile_channel(SHOP, CHANNEL)
    assert condition(status, "ServedByKnafka")["reason"] == "OtherImplementation"
    # Once it was ours, it is until the peer claims it.
    world.stored["status"]["annotations"][TOPIC_ID] = world.inner.log.descriptions[TOPIC].id
    assert await channels.makes_something(world.stored)
    world.claim(FINALIZER, PEERS_CHANNEL_FINALIZER)
    assert not await channels.makes_something(world.stored)


async def test_what_adopt_has_written_stays_until_it_takes_the_channel(world: World) -> None:
    """An operator that looks at the channel in between would make new groups of old ones."""
    world.promise()
    before = dict(world.stored["status"]["annotations"])
    await world.leave()
    assert world.stored["status"]["annotations"] == before


async def test_an_adopted_channel_goes_on_with_its_topic_and_its_subscriptions_offsets(
    world: World,
) -> None:
    offsets = world.committed()
    await world.adopt()
    status = world.stored["status"]
    assert condition(status, "Ready")["status"] == "True", status["conditions"]
    assert "ConfigMapUpdated" not in {each["type"] for each in status["conditions"]}
    assert [each["ready"] for each in status["subscribers"]] == ["True", "True"]
    assert world.watched() == {name: group(uid) for name, uid in world.uids.items()}
    assert world.committed() == offsets
    assert world.host() != RIVAL_HOST, "senders go on at the same host"


@pytest.mark.parametrize("isolation", ["shared", "own"])
async def test_a_released_channel_keeps_topic_groups_and_offsets_and_has_nothing_of_ours(
    world: World, isolation: str
) -> None:
    world.stored["metadata"]["annotations"] = {ISOLATION: isolation}
    await world.adopt()
    inner, offsets = world.inner, world.committed()
    assert len(inner.cluster.services()) == (2 if isolation == "shared" else 3)
    world.claim(PEERS_CHANNEL_FINALIZER)
    for _ in range(2):  # it may end between any two of these, and begins again
        await world.leave()
        status = world.stored["status"]
        assert status["annotations"][TOPIC_STATUS] == TOPIC
        assert not [key for key in status["annotations"] if key.startswith("knafka.dev/")]
        assert (status.get("address"), status["conditions"]) == (None, [])
        assert status["subscribers"] == []
    assert inner.cluster.services() == {"kafka-channel-receiver"}, "other channels' is left"
    assert inner.ingresses() == {}
    assert world.host() == RIVAL_HOST, "senders go on at the same host"
    assert not [key for key in inner.cluster.objects if key[1:3] == ("Ingress", SHOP)]
    assert world.watched() == {}
    assert Identity(SHOP, CHANNEL) not in inner.channels.states.brokers
    assert names.contract_topic(SHOP, f"KafkaChannel-{CHANNEL}") not in inner.log.topics
    assert world.committed() == offsets
    for name in NAMES:
        status = inner.stored("Subscription", SHOP, name).get("status") or {}
        kept = status.get("annotations") or {}
        assert not [key for key in kept if key.startswith("knafka.dev/")]
        assert not status.get("conditions"), "nobody of ours delivers to it"
    # And once more.
    await world.adopt()
    assert condition(world.stored["status"], "Ready")["status"] == "True"
    assert world.watched() == {name: group(uid) for name, uid in world.uids.items()}
    assert world.committed() == offsets


async def test_an_operator_that_starts_anew_lets_go_of_what_was_released_meanwhile(
    world: World,
) -> None:
    await world.adopt()
    world.claim(PEERS_CHANNEL_FINALIZER)
    await world.inner.restart()
    eventing(world.inner, world.by_eventing)
    world.inner.add_gateway()
    assert await world.inner.channels.resume() == 0
    await world.leave()
    assert not [key for key in world.stored["status"]["annotations"] if "knafka.dev" in key]
    assert world.inner.cluster.services() == {"kafka-channel-receiver"}


async def test_the_controller_takes_over_and_lets_go_with_every_offset_as_it_is(
    world: World,
) -> None:
    """It writes finalizers before it reconciles: what is stored then has no channel's promise."""
    offsets, controller = world.committed(), controller_of(world.inner)
    keys = [("KafkaChannel", SHOP, CHANNEL), *(("Subscription", SHOP, name) for name in NAMES)]

    async def reconcile() -> None:
        world.inner.hear()
        for key in (*keys, keys[0]):
            await controller.reconcile(key)

    await reconcile()
    world.promise()
    await reconcile()  # still the peer's
    world.claim()
    await reconcile()
    assert world.stored["metadata"]["finalizers"] == [FINALIZER]
    assert condition(world.stored["status"], "Ready")["status"] == "True"
    assert world.watched() == {name: group(uid) for name, uid in world.uids.items()}
    assert world.committed() == offsets
    world.claim(PEERS_CHANNEL_FINALIZER)
    await reconcile()
    for name in NAMES:
        metadata = world.inner.stored("Subscription", SHOP, name)["metadata"]
        assert not metadata.get("finalizers")
    assert not [key for key in world.stored["status"]["annotations"] if "knafka.dev" in key]
    assert world.committed() == offsets


async def test_without_a_receiver_of_the_peers_a_released_channel_has_no_host(world: World) -> None:
    await world.adopt()
    del world.inner.cluster.objects["v1", "Service", "knative-eventing", "kafka-channel-ingress"]
    world.claim(PEERS_CHANNEL_FINALIZER)
    await world.leave()
    assert ("v1", "Service", SHOP, HOST) not in world.inner.cluster.objects
