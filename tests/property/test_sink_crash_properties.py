"""Properties: whenever an operator dies, a KafkaSink's receiver has a topic, and only a topic that
was made for the sink ever goes.

It dies before or after one of its effects. What is stored then is what the next one starts from.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.crashing import Crash, Crashing, moments
from support.examples import examples
from support.sinks_world import OWN, RAW, SHOP, SinksWorld

from knafka_operator.kafka.topics import TOPIC_ID
from knafka_operator.sinks.model import KAFKA_SINK, SINKS_VERSION, TOPIC_OWNER

SPECS: dict[str, dict[str, Any]] = {
    "somebody's": {},
    "structured": {"contentMode": "structured"},
    "own": {**OWN},
    "own, structured": {**OWN, "contentMode": "structured"},
    "a Secret": {"auth": {"secret": {"ref": {"name": "login"}}}},
}
KEY = SINKS_VERSION, KAFKA_SINK, SHOP, "orders"


class World(SinksWorld):
    """One sink, and one beside it that names somebody's topic."""

    def __init__(self) -> None:
        self.crashing = Crashing(self.check)
        super().__init__(self.crashing)
        self.deleting = False
        self.ids: dict[str, str] = {}
        """Of topics in which somebody was promised that events lie."""
        login = {"protocol": "SASL_PLAINTEXT", "user": "me", "password": "x"}
        self.inner.declare_secret(SHOP, "login", **login)

    def check(self) -> None:
        """What must hold after every effect."""
        topics = self.inner.log.descriptions
        self.ids.setdefault(RAW, topics[RAW].id)
        stored = self.inner.cluster.objects.get(KEY)
        if self.service() is not None and not self.deleting:
            topic = self.ingress().topic
            assert topic in topics, "nothing can keep its event"
            self.ids.setdefault(topic, topics[topic].id)
        if self.deleting and self.service() is not None and stored is not None:
            assert self.ingress().topic in topics, "events are accepted that nothing can keep"
        kept = {name: each for name, each in self.ids.items() if name == RAW or not self.deleting}
        assert {name: topics[name].id for name in kept} == kept

    async def attempt(self, *, delete: bool = False) -> bool:
        """Reconcile it; whether the operator died, after which another one has finished it."""
        if delete and not self.deleting:
            self.deleting = True
            self.inner.cluster.remove(*KEY)
        try:
            await self.turn()
        except Crash:
            await self.start()
            await self.turn()
            return True
        return False

    async def until_ready(self) -> None:
        for _ in range(2):
            await self.attempt()
        assert self.says("Ready") == ("True", "")
        spec, ingress = self.stored()["spec"], self.ingress()
        assert ingress.topic == spec["topic"]
        assert ingress.content_mode == spec.get("contentMode", "binary")
        annotations, is_own = self.status()["annotations"], spec["topic"] == "own"
        assert annotations[TOPIC_OWNER] == ("kafkasink-controller" if is_own else "external")
        id_ = self.inner.log.descriptions[spec["topic"]].id
        assert annotations.get(TOPIC_ID) == (id_ if is_own else None)
        self.check()


async def _begun() -> World:
    world = World()
    await world.start()
    return world


@pytest.mark.parametrize("spec", SPECS)
async def test_an_operator_that_dies_at_any_effect_makes_one_topic_and_one_receiver(
    spec: str,
) -> None:
    crashes = 0
    for moment in moments():
        world = await _begun()
        world.declare(**SPECS[spec])
        world.crashing.at = moment
        has_crashed = await world.attempt()
        world.crashing.at = None
        await world.until_ready()
        await world.inner.operator.close()
        if not has_crashed:
            break
        crashes += 1
    assert crashes >= 3


@pytest.mark.conformance("KN-BRK-22")
@pytest.mark.parametrize("spec", ["somebody's", "own"])
async def test_an_operator_that_dies_while_it_deletes_leaves_what_is_somebodys_and_nothing_else(
    spec: str,
) -> None:
    crashes = 0
    for moment in moments():
        world = await _begun()
        world.declare(**SPECS[spec])
        await world.until_ready()
        world.crashing.at = moment
        has_crashed = await world.attempt(delete=True)
        world.crashing.at = None
        await world.turn()
        assert KEY not in world.inner.cluster.objects
        assert world.service() is None
        assert set(world.inner.log.topics) == {RAW}
        assert not world.sinks.records
        assert not world.sinks.owners
        await world.inner.operator.close()
        if not has_crashed:
            break
        crashes += 1
    assert crashes >= (2 if spec == "own" else 1)


STEPS = st.lists(
    st.one_of(
        st.just(("look", 0, "")),
        st.just(("restart", 0, "")),
        st.tuples(st.just("edit"), st.just(0), st.sampled_from(["own", "own, structured"])),
        st.tuples(st.sampled_from(["before", "after"]), st.integers(1, 6), st.just("")),
    ),
    max_size=15,
)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(steps=STEPS)
def test_whenever_an_operator_of_a_sink_dies_the_next_one_keeps_every_promise(
    steps: list[tuple[str, int, str]],
) -> None:
    asyncio.run(_run(steps))


async def _run(steps: list[tuple[str, int, str]]) -> None:
    world = await _begun()
    world.declare(**SPECS["own"])
    for what, number, spec in steps:
        match what:
            case "look":
                await world.attempt()
            case "restart":
                await world.start()
            case "edit":
                world.declare(**SPECS[spec])
            case _:
                world.crashing.at = what, number
                await world.attempt()
    world.crashing.at = None
    await world.until_ready()
    await world.attempt(delete=True)
    assert set(world.inner.log.topics) == {RAW}
    await world.inner.operator.close()
