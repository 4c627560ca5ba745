"""A Broker's own dead-letter topic, of records that hold no event: it goes with its Broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
from support.channel_world import ChannelWorld, running_channels
from support.memory.admin import MemoryAdmin
from support.operator_world import OperatorWorld, condition, running_operator

from knafka.core import names
from knafka.core.errors import LogError
from knafka_operator.model.resources import EXTERNAL_TOPIC

SHOP, BROKER = "shop", "default"
OURS = names.broker_dead_letter_topic(SHOP, BROKER)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OperatorWorld]:
    async with running_operator(monkeypatch) as world:
        yield world


@pytest.fixture
async def channels() -> AsyncIterator[ChannelWorld]:
    async with running_channels() as world:
        yield world


def left(world: OperatorWorld) -> Sequence[str]:
    return sorted(each for each in world.log.topics if each.startswith(names.DEAD_LETTERS))


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("external", [False, True])
async def test_a_brokers_own_dead_letters_go_with_it_and_its_triggers_stay(
    world: OperatorWorld, external: bool, restarted: bool
) -> None:
    """Decision 0031. Those of its neighbours, whose names join to the same, stay too."""
    world.log.create("legacy", 3)
    world.allow("legacy")
    world.declare_broker(SHOP, annotations={EXTERNAL_TOPIC: "legacy"} if external else None)
    status = await world.reconcile_broker(SHOP)
    assert condition(status, "Ready")["status"] == "True", status["conditions"]
    others = [
        names.dead_letter_topic(SHOP, BROKER, "orders"),
        names.broker_dead_letter_topic(SHOP, f"{BROKER}-a"),
        names.broker_dead_letter_topic("sh", f"op-{BROKER}"),
        names.broker_dead_letter_topic(SHOP, names.of_channel(BROKER)),
    ]
    for each in (OURS, *others):
        world.log.create(each)
    if restarted:
        await world.restart()
        world.allow("legacy")
    await world.delete_broker(SHOP)
    assert left(world) == sorted(others)


async def test_a_broker_that_has_none_needs_no_right_to_delete_it(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.declare_broker(SHOP)
    await world.reconcile_broker(SHOP)
    delete = MemoryAdmin.delete_topic

    async def refused(self: MemoryAdmin, topic: str) -> None:
        if topic.startswith(names.DEAD_LETTERS):
            raise LogError("Delete on topic is refused", denied="topic")
        await delete(self, topic)

    monkeypatch.setattr(MemoryAdmin, "delete_topic", refused)
    await world.delete_broker(SHOP)


async def test_a_channels_own_dead_letters_go_with_it(channels: ChannelWorld) -> None:
    channels.declare_channel(SHOP, "orders")
    await channels.reconcile_channel(SHOP, "orders")
    brokers = names.broker_dead_letter_topic(SHOP, "orders")
    for each in (names.broker_dead_letter_topic(SHOP, names.of_channel("orders")), brokers):
        channels.log.create(each)
    await channels.delete_channel(SHOP, "orders")
    assert left(channels) == [brokers]
