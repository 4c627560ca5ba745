"""An operator that dies between any two of its effects: the next one keeps what was promised.

Effects are what it does to the world: writes to the cluster and to Kafka, and probes. Nothing runs
in the functions, so whatever is sent after a Trigger was Ready must stay in its lag.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.crashing import crashes_at_least, moments, sampled
from support.examples import examples
from support.memory.log import MemoryWriter
from support.operator_world import OperatorWorld, condition

from knafka.core import names
from knafka_operator.kafka import shards
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import (
    EVENTING,
    GROUP_STATUS,
    ISOLATION,
    PAUSED_ANNOTATION,
    SERVING,
)

EFFECTS = frozenset(
    {
        *("create", "apply", "write_status", "delete"),
        *("ensure_topic", "delete_topic", "ensure_committed", "delete_group"),
        *("append", "probe"),
    }
)
OWN, SHARED, MIN_SCALE = 0, 12, 1
"""Edits that move it."""
SHOP, BROKER, TRIGGER = "shop", "default", "orders"
TOPIC = names.broker_topic(SHOP, BROKER)


class Crash(BaseException):
    """The process is gone."""


class Crashing:
    """Dies before or after one effect of those to come."""

    def __init__(self) -> None:
        self.at: tuple[str, int] | None = None
        self.effects: list[str] = []
        self.world: World | None = None

    def __call__(self, when: str, call: str) -> None:
        if call not in EFFECTS:
            return
        if when == "after":
            self.effects.append(call)
            assert self.world is not None
            self.world.check()
        if self.at is not None and self.at[0] == when:
            left = self.at[1] - 1
            self.at = (when, left) if left else None
            if not left:
                raise Crash


class World(OperatorWorld):
    """One Broker and one Trigger, and what was promised to them."""

    def __init__(self) -> None:
        self.crashing = Crashing()
        super().__init__(self.crashing)
        self.crashing.world = self
        self.promised: dict[int, int] | None = None
        """Partition -> the offset from which nothing may be missed."""

    def check(self) -> None:
        """What must hold after every effect."""
        broker = self.cluster.objects.get((EVENTING, "Broker", SHOP, BROKER), {})
        trigger = self.cluster.objects.get((EVENTING, "Trigger", SHOP, TRIGGER), {})
        services = self.cluster.services()
        if "address" in (broker.get("status") or {}) or "default-kn-receiver" in services:
            assert TOPIC in self.log.topics, "events are accepted that nothing can keep"
        status = trigger.get("status") or {}
        group = (status.get("annotations") or {}).get(GROUP_STATUS)
        shared = names.trigger_group(SHOP, TRIGGER) in self._contract()
        if group is not None or "orders-kn-dispatcher" in services or shared:
            assert self._committed(), "a dispatcher would begin nowhere"
        if shared:
            watched = self.operator.triggers.watched.get(Identity(SHOP, TRIGGER))
            is_own = watched is not None and not (watched.autoscaling.paused or watched.place)
            assert not is_own, "two dispatchers deliver it"
            assert "default-kn-shard-0" in services, "nobody delivers it"
        if self.promised is None and _is_ready(status):
            self.promised = {number: len(each) for number, each in enumerate(self._records())}
        if self.promised is not None:
            committed = self._committed()
            assert all(committed[number] <= end for number, end in self.promised.items())

    def _contract(self) -> Mapping[str, Any]:
        topic = names.contract_topic(SHOP, BROKER)
        return shards.read_shared_egresses(self.log.topics.get(topic, [[]])[0])

    def _records(self) -> Sequence[Any]:
        return self.log.topics[TOPIC]

    def _committed(self) -> dict[int, int]:
        group = self.log.groups.get(names.trigger_group(SHOP, TRIGGER))
        return {} if group is None else {at[1]: each.offset for at, each in group.committed.items()}

    def send(self) -> None:
        """An event, as soon as receivers know of a topic for it."""
        if any(each.topic == TOPIC for each in self.entries().values()):
            MemoryWriter(self.log).append(TOPIC, None, b"{}", [], lambda _: None)

    async def look(self) -> None:
        """Reconcile both as they are stored; whatever crashes is started anew."""
        try:
            for kind in ("Broker", "Trigger"):
                await self._look_at(kind)
        except Crash:
            await self.restart()
            await self.operator.resume()
            self.check()

    async def _look_at(self, kind: str) -> None:
        if (EVENTING, kind, SHOP, BROKER if kind == "Broker" else TRIGGER) not in (
            self.cluster.objects
        ):
            return
        if kind == "Broker":
            await self.reconcile_broker(SHOP)
        else:
            document = self.document("Trigger", SHOP, TRIGGER)
            self.operator.on_trigger(document, gone=False)
            await self.operator.triggers.reconcile(document)

    def edit(self, number: int) -> None:
        """Another filter; now and then another scale, a pause, a subscriber that is missing, or a
        move to a shared dispatcher."""
        missing = {"ref": {"apiVersion": SERVING, "kind": "Service", "name": "missing"}}
        scale = {"autoscaling.eventing.knative.dev/min-scale": str(number % 2)}
        scale[PAUSED_ANNOTATION] = "true" if number % 3 == 2 else "false"
        scale[ISOLATION] = "shared" if number & 8 else "own"
        spec: dict[str, Any] = {"filter": {"attributes": {"type": f"t{number}"}}}
        if number % 4 == 3:
            spec["subscriber"] = missing
        self.declare_trigger(SHOP, TRIGGER, annotations=scale, **spec)


def _is_ready(status: dict[str, Any]) -> bool:
    return any(
        (each["type"], each["status"]) == ("Ready", "True") for each in status.get("conditions", ())
    )


STEPS = st.lists(
    st.one_of(
        st.just(("look", 0)),
        st.just(("send", 0)),
        st.just(("restart", 0)),
        st.tuples(st.just("edit"), st.integers(0, 15)),
        st.tuples(st.sampled_from(["before", "after"]), st.integers(1, 8)),
    ),
    max_size=25,
)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(STEPS)
def test_whenever_an_operator_dies_the_next_one_keeps_every_promise(
    steps: list[tuple[str, int]],
) -> None:
    asyncio.run(_run(steps))


async def _run(steps: list[tuple[str, int]]) -> None:
    world = World()
    world.declare_broker(SHOP)
    world.declare_trigger(SHOP, TRIGGER)
    for what, number in steps:
        match what:
            case "look":
                await world.look()
            case "send":
                world.send()
            case "restart":
                await world.restart()
                await world.operator.resume()
                world.check()
            case "edit":
                world.edit(number)
            case _:
                world.crashing.at = what, number
                await world.look()
    world.crashing.at = None
    for last in (SHARED, OWN):
        await _until_delivered(world, last)
    await world.operator.close()


async def _until_delivered(world: World, edit: int) -> None:
    """It becomes Ready as it was edited last, and is delivered by one dispatcher."""
    world.edit(edit)
    for _ in range(3):
        await world.look()
    for kind, name in (("Broker", BROKER), ("Trigger", TRIGGER)):
        status = world.document(kind, SHOP, name)["status"]
        assert condition(status, "Ready")["status"] == "True", status
    shared, own = bool(edit & 8), "orders-kn-dispatcher"
    service = "default-kn-shard-0" if shared else own
    assert status["annotations"][shards.DISPATCHER_KEY] == service
    assert bool(world._contract()) == shared
    assert (own in world.cluster.services()) != shared
    world.check()
    assert world.promised is not None
    assert world.operator.triggers.watched.keys() == {Identity(SHOP, TRIGGER)}


@pytest.mark.parametrize(
    ("from_", "to"),
    [(OWN, SHARED), (SHARED, OWN), (MIN_SCALE, SHARED), (SHARED, MIN_SCALE), (SHARED, SHARED + 16)],
    ids=["to a shard", "to its own", "of min-scale", "to min-scale", "another filter"],
)
async def test_an_operator_that_dies_at_any_effect_of_a_move_loses_nothing(
    from_: int, to: int
) -> None:
    crashes = 0
    for moment in sampled(moments()):
        world = World()
        world.declare_broker(SHOP)
        await _until_delivered(world, from_)
        before = world.operator
        world.crashing.at = moment
        world.edit(to)
        await world.look()
        has_crashed, world.crashing.at = world.operator is not before, None
        world.send()
        await _until_delivered(world, to)
        await world.operator.close()
        if not has_crashed:
            break
        crashes += 1
    assert crashes >= crashes_at_least(3)


@settings(max_examples=examples(40))
@given(
    edit=st.sampled_from([OWN, SHARED]),
    order=st.sampled_from([("Broker", "Trigger"), ("Trigger", "Broker")]),
    when=st.sampled_from(["before", "after"]),
    crashes=st.lists(st.integers(1, 5), max_size=3),
)
def test_whenever_an_operator_dies_while_it_deletes_nothing_is_left(
    edit: int, order: tuple[str, str], when: str, crashes: list[int]
) -> None:
    asyncio.run(_delete(edit, order, when, crashes))


async def _delete(edit: int, order: tuple[str, str], when: str, crashes: list[int]) -> None:
    world = World()
    world.declare_broker(SHOP)
    world.edit(edit)
    await world.look()
    world.promised = None
    world.check = lambda: None  # type: ignore[method-assign]  # what is deleted keeps no promise
    left = list(crashes)
    for kind in order:
        key = EVENTING, kind, SHOP, BROKER if kind == "Broker" else TRIGGER
        world.cluster.set_finalizers(*key, "knafka.dev/finalizer")
        await world.cluster.delete(*key)
        while True:
            world.crashing.at = (when, left.pop()) if left else None
            try:
                if kind == "Broker":
                    await world.delete_broker(SHOP)
                else:
                    await world.delete_trigger(SHOP, TRIGGER)
            except Crash:
                await world.restart()
                await world.operator.resume()
                for other in order[order.index(kind) + 1 :]:
                    await world._look_at(other)
                continue
            break
    assert world.entries() == {}
    assert [each for each in world.log.topics if "Brokers" not in each] == []
    assert world.log.groups == {}
    assert world.cluster.services() == set()
    kept = {name: kept for name, kept in vars(world.operator.states).items() if kept}
    assert kept.keys() == {"family", "naming"}
    await world.operator.close()
