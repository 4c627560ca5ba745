"""Properties: whenever an operator dies, a KafkaChannel and its Subscription lose nothing.

It dies before or after one of its effects. What is stored then is what the next one starts from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.channel_world import ChannelWorld
from support.crashing import Crash, Crashing, crashes_at_least, sampled
from support.examples import examples
from support.memory.log import MemoryWriter
from support.operator_world import condition

from knafka.core import names
from knafka_operator.kafka import shards
from knafka_operator.kafka.credentials import KAFKA_SECRET
from knafka_operator.model.channels import MESSAGING
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import CORE
from knafka_operator.receivers import receivers

SHOP, CHANNEL, SUBSCRIPTION = "shop", "orders", "audit"
TOPIC = names.channel_topic(SHOP, CHANNEL)
PATH = f"/{SHOP}/{CHANNEL}"
RECEIVERS = "knafka-contract-knafka-KafkaChannels"
SECRETS = (None, "second")


class World(ChannelWorld):
    """One channel, a Subscription, and a neighbour of each that nothing may happen to.

    Each receiver has one replica, which reads its contract whenever it is asked, and answers what
    it had read before.
    """

    def __init__(self) -> None:
        self.crashing = Crashing(self.check)
        super().__init__(self.crashing)
        self.read: dict[str, tuple[int, frozenset[str]]] = {}
        """By receiver: how far it has read, and the paths that it serves."""
        self.deleting = False
        """Statuses that say that it is Ready are of no meaning any more."""
        self.promised: int | None = None
        """The offset from which nothing may be missed."""
        login = {"protocol": "SASL_PLAINTEXT", "user": "me", "password": "x"}
        self.declare_secret("knafka", "second", **login)
        stored = self.cluster.objects[CORE, "Secret", "knafka", "second"]
        labels = {KAFKA_SECRET: "true"}
        self.cluster.put({**stored, "metadata": {**stored["metadata"], "labels": labels}})

    async def _positions(self, namespace: str, name: str) -> Mapping[str, int | None]:
        secret = name.removesuffix("kafka-channel-receiver").rstrip("-")
        before, _ = self.read.get(name, (0, frozenset()))
        records = self.served().get(secret, [])
        self.read[name] = len(records), frozenset(receivers.read_ingresses(records))
        return {f"{name}-pod": before}

    def served(self) -> Mapping[str, Any]:
        """Records of each receiver's contract, by its Secret."""
        contracts = (each for each in self.log.topics if each.startswith(RECEIVERS))
        return {
            each[len(RECEIVERS) : -11].removesuffix("c0ffee00").strip("-"): self.log.topics[each][0]
            for each in contracts
        }

    def status(self, kind: str, name: str) -> Mapping[str, Any]:
        version = MESSAGING if kind == "Subscription" else "messaging.knative.dev/v1beta1"
        found: Mapping[str, Any] = self.cluster.objects.get((version, kind, SHOP, name), {})
        return found.get("status") or {}

    @property
    def group(self) -> Any:
        found = self.cluster.objects.get((MESSAGING, "Subscription", SHOP, SUBSCRIPTION))
        uid = "" if found is None else found["metadata"]["uid"]
        return self.log.groups.get(names.subscription_group(SHOP, CHANNEL, uid))

    def check(self) -> None:
        """What must hold after every effect."""
        channel = self.status("KafkaChannel", CHANNEL)
        entries = [receivers.read_ingresses(each) for each in self.served().values()]
        ready = is_ready(channel) and not self.deleting
        if any(PATH in each for each in entries) or ready:
            assert TOPIC in self.log.topics, "events are accepted that nothing can keep"
        if TOPIC not in self.log.topics:
            assert not any(PATH in paths for _, paths in self.read.values()), "a replica accepts"
        if self.deleting:
            return
        if ready:
            serving = [name for name, (_, paths) in self.read.items() if PATH in paths]
            assert serving, "no replica has read of it"
        subscription = self.status("Subscription", SUBSCRIPTION)
        if is_ready(subscription) or self.shared():
            assert self.group is not None, "it would begin nowhere"
            assert self.group.committed, "it would begin nowhere"
        if self.shared():
            services = self.cluster.services()
            assert any("shard-0" in each for each in services), "nobody delivers it"
        if self.promised is None and is_ready(subscription):
            self.promised = len(self.log.topics[TOPIC][0])
        if self.promised is not None and self.group is not None:
            assert all(each.offset <= self.promised for each in self.group.committed.values())

    def shared(self) -> bool:
        """Whether a shared dispatcher has a record of the Subscription."""
        topic = names.contract_topic(SHOP, f"KafkaChannel-{CHANNEL}")
        return bool(shards.read_shared_egresses(self.log.topics.get(topic, [[]])[0]))

    def send(self) -> None:
        """An event, as soon as a receiver knows of a topic for it."""
        if any(PATH in receivers.read_ingresses(each) for each in self.served().values()):
            MemoryWriter(self.log).append(TOPIC, None, b"{}", [], lambda _: None)

    def declare(self, secret: int = 0, edit: int = 0) -> None:
        named = SECRETS[secret]
        self.declare_channel(SHOP, CHANNEL, {} if named is None else {KAFKA_SECRET: named})
        own = {"knafka.dev/isolation": "own" if edit & 1 else "shared"}
        to = {"subscriber": {"uri": f"http://there/{edit}"}}
        self.declare_subscription(SHOP, SUBSCRIPTION, CHANNEL, own, **to)

    async def look(self) -> None:
        """Reconcile both as they are stored; whatever crashes is started anew."""
        try:
            await self.reconcile_channel(SHOP, CHANNEL)
            await self.reconcile_subscription(SHOP, SUBSCRIPTION)
            await self.reconcile_channel(SHOP, CHANNEL)
        except Crash:
            await self.start()

    async def delete(self, kind: str) -> None:
        if kind == "KafkaChannel":
            await self.delete_channel(SHOP, CHANNEL)
        else:
            await self.delete_subscription(SHOP, SUBSCRIPTION)

    async def start(self) -> None:
        """Another operator, as its watches are synced."""
        await self.restart()
        if (MESSAGING, "Subscription", SHOP, SUBSCRIPTION) in self.cluster.objects:
            self.channels.on_change(self.stored("Subscription", SHOP, SUBSCRIPTION), gone=False)
        await self.channels.resume()
        self.check()


def is_ready(status: Mapping[str, Any]) -> bool:
    return any(
        (each["type"], each["status"]) == ("Ready", "True") for each in status.get("conditions", ())
    )


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "REPLICA_POLL_INTERVAL", 0.0)


async def until_delivered(world: World, secret: int, edit: int) -> None:
    """Both become Ready as they were edited last, and one receiver serves the channel."""
    world.declare(secret, edit)
    for _ in range(3):
        await world.look()
    for kind, name in (("KafkaChannel", CHANNEL), ("Subscription", SUBSCRIPTION)):
        status = world.status(kind, name)
        assert condition(status, "Ready")["status"] == "True", status
    serving = {of: PATH in receivers.read_ingresses(each) for of, each in world.served().items()}
    assert [of for of, serves in serving.items() if serves] == [SECRETS[secret] or ""]
    assert world.egress_of(SHOP, SUBSCRIPTION).subscriber.url == f"http://there/{edit}"
    assert world.shared() != bool(edit & 1)
    (declared,) = world.stored("KafkaChannel", SHOP, CHANNEL)["spec"]["subscribers"]
    assert declared["subscriberUri"] == f"http://there/{edit}"
    world.check()
    assert world.channels.triggers.watched.keys() == {Identity(SHOP, SUBSCRIPTION)}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("from_", "to"),
    [(None, (0, 0)), (None, (0, 1)), ((0, 0), (1, 0)), ((0, 0), (0, 2)), ((0, 0), (0, 1))],
    ids=["made", "made, apart", "another Secret", "another subscriber", "to its own"],
)
async def test_an_operator_that_dies_at_any_effect_loses_nothing(
    from_: tuple[int, int] | None, to: tuple[int, int], when: str
) -> None:
    """KN-CHN-01, KN-SUB-05."""
    crashes = 0
    for number in sampled(count(1)):
        world = World()
        if from_ is not None:
            await until_delivered(world, *from_)
        before = world.channels
        world.crashing.at = when, number
        world.declare(*to)
        await world.look()
        has_crashed, world.crashing.at = world.channels is not before, None
        world.send()
        await until_delivered(world, *to)
        await world.operator.close()
        if not has_crashed:
            break
        crashes += 1
    assert crashes >= crashes_at_least(3)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("edit", [0, 1])
@pytest.mark.parametrize("first", ["KafkaChannel", "Subscription"])
async def test_an_operator_that_dies_while_it_deletes_leaves_nothing(
    when: str, edit: int, first: str
) -> None:
    """KN-BRK-22: the topic goes only after every replica has read that nothing is accepted."""
    crashes = 0
    for number in sampled(count(1)):
        world = World()
        world.declare_channel(SHOP, "neighbour")
        await world.reconcile_channel(SHOP, "neighbour")
        await until_delivered(world, 0, edit)
        world.deleting, before = True, world.channels
        world.crashing.at = when, number
        kinds = ["KafkaChannel", "Subscription"]
        for kind in kinds if first == kinds[0] else reversed(kinds):
            try:
                await world.delete(kind)
            except Crash:
                await world.start()
                await world.delete(kind)
        has_crashed, world.crashing.at = world.channels is not before, None
        left = {each for each in world.log.topics if not each.startswith(RECEIVERS)}
        assert left == {names.channel_topic(SHOP, "neighbour")}
        assert world.log.groups == {}
        (records,) = world.served().values()
        assert receivers.read_ingresses(records).keys() == {f"/{SHOP}/neighbour"}
        assert world.cluster.services() == {"kafka-channel-receiver"}
        await world.delete_channel(SHOP, "neighbour")
        kept = {name for name, each in vars(world.channels.states).items() if each}
        assert kept == {"family", "naming"}
        for record in world.channels.brokers.receivers.records.values():
            assert record.written == {}
        await world.operator.close()
        if not has_crashed:
            break
        crashes += 1
    assert crashes >= crashes_at_least(3)


STEPS = st.lists(
    st.one_of(
        st.just(("look", 0, 0)),
        st.just(("send", 0, 0)),
        st.just(("restart", 0, 0)),
        st.tuples(st.just("edit"), st.integers(0, 1), st.integers(0, 3)),
        st.tuples(st.sampled_from(["before", "after"]), st.integers(1, 8), st.just(0)),
    ),
    max_size=20,
)


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(STEPS)
def test_whenever_an_operator_of_channels_dies_the_next_one_keeps_every_promise(
    steps: list[tuple[str, int, int]],
) -> None:
    asyncio.run(_run(steps))


async def _run(steps: list[tuple[str, int, int]]) -> None:
    world = World()
    world.declare()
    for what, number, edit in steps:
        match what:
            case "look":
                await world.look()
            case "send":
                world.send()
            case "restart":
                await world.start()
            case "edit":
                world.declare(number, edit)
            case _:
                world.crashing.at = what, number
                await world.look()
    world.crashing.at = None
    for last in ((0, 0), (1, 1), (0, 2)):
        await until_delivered(world, *last)
    await world.operator.close()
