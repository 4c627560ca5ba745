"""Properties: whenever an operator dies, entries of `spec.subscribers` that others write lose
nothing, and no other writer's entry is lost.

It dies before or after one of its effects. What is stored then is what the next one starts from.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.channel_world import UID, VERSION, ChannelWorld
from support.crashing import Crash, Crashing, crashes_at_least, moments, sampled
from support.examples import examples
from support.memory.log import MemoryWriter

from knafka.core import names
from knafka_operator.channels import entry_cluster as entries
from knafka_operator.kafka import shards
from knafka_operator.kafka.topics import TOPIC_ID
from knafka_operator.model.channels import MESSAGING, PROMISE
from knafka_operator.model.identity import Identity
from knafka_operator.receivers import receivers

SHOP, CHANNEL, MAIL = "shop", "orders", "mail"
NEIGHBOUR = "22222222-7d9c-4b5e-8f3f-6a4a1a6f0f11"
TOPIC = names.channel_topic(SHOP, CHANNEL)


class World(ChannelWorld):
    """One channel, with an entry, a neighbour of it, and a Subscription of ours or not."""

    def __init__(self) -> None:
        self.crashing = Crashing(self.check)
        self.theirs: set[str] = set()
        """UIDs of the entries that others have put there, and not taken away."""
        self.promised: dict[str, int] = {}
        """By UID, the offset from which nothing may be missed."""
        self.deleting = False
        self.seen = False
        super().__init__(self.crashing)
        self.declare_channel(SHOP, CHANNEL)

    @property
    def channel(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.objects.get(
            (VERSION, "KafkaChannel", SHOP, CHANNEL), {}
        )
        return found

    def shared(self) -> dict[str, str]:
        """Where the shared dispatcher delivers to, by group."""
        topic = names.contract_topic(SHOP, f"KafkaChannel-{CHANNEL}")
        records = shards.read_shared_egresses(self.log.topics.get(topic, [[]])[0])
        return {group: each.egress.subscriber.url for group, each in records.items()}

    def check(self) -> None:
        """What must hold after every effect."""
        if self.deleting:
            return
        listed = (self.channel.get("spec") or {}).get("subscribers") or ()
        assert self.theirs <= {each["uid"] for each in listed}, "somebody else's entry is lost"
        for each in (self.channel.get("status") or {}).get("subscribers") or ():
            uid = each["uid"]
            if each["ready"] == "True" and uid in self.theirs and uid not in self.promised:
                self.promised[uid] = len(self.log.topics[TOPIC][0])
        for group in self.shared():
            found = self.log.groups.get(group)
            assert found is not None, "it would begin nowhere"
            assert found.committed, "it would begin nowhere"
        for uid, offset in self.promised.items():
            found = self.log.groups.get(names.subscription_group(SHOP, CHANNEL, uid))
            assert found is not None, "what it was promised is gone"
            assert all(each.offset <= offset for each in found.committed.values())

    def send(self) -> None:
        """A receiver accepts nothing before it has an entry, so not before the topic's id is known:
        what is in a topic without one is somebody else's."""
        annotations = (self.channel.get("status") or {}).get("annotations") or {}
        if TOPIC in self.log.topics and annotations.get(TOPIC_ID):
            MemoryWriter(self.log).append(TOPIC, None, b"{}", [], lambda _: None)

    def put(self, uid: str, uri: str) -> None:
        self.theirs.add(uid)
        self.declare_entry(SHOP, CHANNEL, uid, uri, generation=len(self.log.topics.get(TOPIC, ())))

    def take(self, uid: str) -> None:
        self.theirs.discard(uid)
        self.remove_entry(SHOP, CHANNEL, uid)

    async def once(self) -> None:
        """Reconcile everything; what crashes is started anew."""
        try:
            await self.look()
        except Crash:
            await self.start()

    async def start(self) -> None:
        await self.restart()
        self.channels.on_eventing(self.seen)
        await self.channels.resume()
        self.hear()
        self.check()

    def eventing(self, seen: bool) -> None:
        """Knative Eventing comes or goes."""
        self.seen = seen
        self.channels.on_eventing(seen)

    def later(self) -> None:
        """So much time passes that an entry which is missing isn't expected back."""
        found = self.channels.entries
        assert found is not None
        for key in found._missing:
            found._missing[key] -= entries.MISSING_ENTRY_SECONDS
            if key[1] not in self.theirs:
                self.promised.pop(key[1], None)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "REPLICA_POLL_INTERVAL", 0.0)


async def made(world: World) -> None:
    world.put(UID, "http://one/")


async def edited(world: World) -> None:
    world.put(UID, "http://two/")


async def missing(world: World) -> None:
    world.take(UID)


async def beside(world: World) -> None:
    world.declare_subscription(SHOP, MAIL, CHANNEL)


async def handed_over(world: World) -> None:
    """Knative Eventing comes, and takes over a Subscription of ours."""
    stored = world.stored("Subscription", SHOP, MAIL)
    uid = str(stored["metadata"]["uid"])
    world.promised[uid] = 0
    world.eventing(True)
    world.put(uid, "http://eventing/")


async def handed_back(world: World) -> None:
    stored = world.stored("Subscription", SHOP, MAIL)
    world.cluster.put({**stored, "status": {}})
    world.theirs.discard(str(stored["metadata"]["uid"]))
    world.eventing(False)


CHANGES = {
    "made": ([], made, {UID: "http://one/"}),
    "edited": ([made], edited, {UID: "http://two/"}),
    "missing": ([made], missing, {}),
    "back": ([made, missing], made, {UID: "http://one/"}),
    "beside": ([made], beside, {UID: "http://one/", MAIL: "http://there/"}),
    "handed over": ([beside], handed_over, {MAIL: "http://eventing/"}),
    "handed back": ([beside, handed_over], handed_back, {MAIL: "http://there/"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
async def test_an_operator_that_dies_at_any_effect_loses_nothing(change: str) -> None:
    """KN-CHN-05, KN-SUB-05."""
    before, act, wanted = CHANGES[change]
    crashes = 0
    for moment in sampled(moments()):
        world = World()
        world.put(NEIGHBOUR, "http://neighbour/")
        await world.once()
        for each in before:
            await each(world)
            await world.once()
            await world.once()
        world.send()
        operator = world.channels
        world.crashing.at = moment
        await act(world)
        await world.once()
        has_crashed, world.crashing.at = world.channels is not operator, None
        for _ in range(3):
            await world.once()
        own = world.cluster.objects.get((MESSAGING, "Subscription", SHOP, MAIL))
        uids = {MAIL: own["metadata"]["uid"]} if own else {}
        shared = {NEIGHBOUR: "http://neighbour/", **wanted}
        assert world.shared() == {
            names.subscription_group(SHOP, CHANNEL, uids.get(each, each)): url
            for each, url in shared.items()
        }
        reported = {each["uid"]: each["ready"] for each in world.channel["status"]["subscribers"]}
        assert reported == {uids.get(each, each): "True" for each in shared}
        world.check()
        await world.operator.close()
        if not has_crashed:
            break
        crashes += 1
    assert crashes >= 1


async def test_an_operator_that_dies_while_an_entry_goes_leaves_nothing() -> None:
    crashes = 0
    for moment in sampled(moments()):
        world = World()
        world.put(UID, "http://one/")
        world.put(NEIGHBOUR, "http://neighbour/")
        await world.once()
        world.take(UID)
        await world.once()
        operator = world.channels
        world.crashing.at = moment
        for _ in range(4):
            world.later()
            await world.once()
        has_crashed, world.crashing.at = world.channels is not operator, None
        assert set(world.log.groups) >= {names.subscription_group(SHOP, CHANNEL, NEIGHBOUR)}
        assert names.subscription_group(SHOP, CHANNEL, UID) not in world.log.groups
        assert PROMISE + UID not in world.channel["status"]["annotations"]
        assert PROMISE + NEIGHBOUR in world.channel["status"]["annotations"]
        world.check()
        await world.operator.close()
        if not has_crashed:
            break
        crashes += 1
    assert crashes >= crashes_at_least(2)


async def test_an_operator_that_dies_while_the_channel_is_deleted_leaves_no_group() -> None:
    crashes = 0
    for moment in sampled(moments()):
        world = World()
        world.put(UID, "http://one/")
        world.put(NEIGHBOUR, "http://neighbour/")
        await world.once()
        world.take(NEIGHBOUR)
        await world.once()
        world.deleting, operator = True, world.channels
        world.crashing.at = moment
        try:
            await world.delete_channel(SHOP, CHANNEL)
        except Crash:
            await world.start()
            await world.delete_channel(SHOP, CHANNEL)
        has_crashed, world.crashing.at = world.channels is not operator, None
        for kind, *who in list(world.channels.queue._items):
            if kind == "Subscription":
                await world._look(Identity(*who))
        assert world.log.groups == {}
        assert TOPIC not in world.log.topics
        assert world.channels.states.triggers == {}
        await world.operator.close()
        if not has_crashed:
            break
        crashes += 1
    assert crashes >= crashes_at_least(2)


STEPS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                *(("look", 0), ("send", 0), ("restart", 0), ("later", 0)),
                *(("eventing", 0), ("eventing", 1), ("take", 0), ("ours", 0)),
            ]
        ),
        st.tuples(st.just("put"), st.integers(0, 2)),
        st.tuples(st.sampled_from(["before", "after"]), st.integers(1, 8)),
    ),
    max_size=20,
)


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(STEPS)
@example([("before", 3), ("send", 0)])
def test_whenever_an_operator_dies_the_next_one_keeps_every_promise(
    steps: list[tuple[str, int]],
) -> None:
    asyncio.run(_run(steps))


async def _run(steps: list[tuple[str, int]]) -> None:
    world = World()
    world.put(NEIGHBOUR, "http://neighbour/")
    for what, number in steps:
        match what:
            case "look":
                await world.once()
            case "send":
                world.send()
            case "restart":
                await world.start()
            case "later":
                world.later()
            case "eventing":
                world.eventing(bool(number))
            case "take":
                world.take(UID)
            case "ours":
                world.declare_subscription(SHOP, MAIL, CHANNEL)
            case "put":
                world.put(UID, f"http://{number}/")
            case _:
                world.crashing.at = what, number
                await world.once()
    world.crashing.at = None
    world.put(UID, "http://last/")
    for _ in range(3):
        await world.once()
    url = world.shared()[names.subscription_group(SHOP, CHANNEL, UID)]
    assert url == "http://last/"
    assert names.subscription_group(SHOP, CHANNEL, NEIGHBOUR) in world.shared()
    await world.operator.close()
