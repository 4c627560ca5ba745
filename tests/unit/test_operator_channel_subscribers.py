"""Subscriptions that are edited, added or made again with their KafkaChannel; and very many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest
from support.channel_world import VERSION, ChannelWorld, ready, running_channels
from support.operator_world import condition

from knafka_operator.engine.work_queue import BACK_OFF, Verdict
from knafka_operator.model.channels import MESSAGING
from knafka_operator.model.identity import Key
from knafka_operator.model.resources import CORE
from knafka_operator.receivers import receivers

SHOP = "shop"
COUNT = 300
CONFIG = CORE, "ConfigMap", "knafka", "kafka-channel-config"


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChannelWorld]:
    monkeypatch.setattr(receivers, "REPLICA_POLL_INTERVAL", 0.01)
    async with running_channels() as world:
        yield world


def uid(world: ChannelWorld, kind: str, name: str) -> str:
    return str(world.stored(kind, SHOP, name)["metadata"]["uid"])


def declared(world: ChannelWorld) -> dict[str, Any]:
    """`spec.subscribers` of the channel, by name."""
    spec = world.stored("KafkaChannel", SHOP, "orders")["spec"]
    return {each["name"]: each for each in spec.get("subscribers") or ()}


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

    async def reconcile(key: Key) -> float | Literal[Verdict.BACK_OFF]:
        document = await world.cluster.get(kinds[key[0]], *key)
        assert document is not None
        broker = key[0] == "KafkaChannel"
        operator = world.channels
        act = operator.brokers.reconcile if broker else operator.triggers.reconcile
        status = await act(document)
        assert status is not None
        return 1000.0 if condition(status, "Ready")["status"] == "True" else BACK_OFF

    running = asyncio.create_task(world.channels.queue.run(reconcile))
    quiet = 0
    while quiet < 3:
        hear()
        await asyncio.sleep(0.06)
        queue = world.channels.queue
        quiet = 0 if queue.is_busy or queue.failing else quiet + 1
    running.cancel()
    await asyncio.wait({running})


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


async def test_a_subscription_is_deleted_also_after_the_config_map_of_its_channel(
    world: ChannelWorld,
) -> None:
    """By an operator that has found nothing of either."""
    await ready(world, "audit")
    world.cluster.remove(*CONFIG)
    await world.restart()
    await world.delete_subscription(SHOP, "audit")
    assert world.log.groups == {}


@pytest.mark.integration
@pytest.mark.slow
async def test_what_many_channels_and_subscriptions_cost_does_not_grow_with_their_square(
    world: ChannelWorld,
) -> None:
    """300 of each, by the work queue: a few writes for each of them, and none after a restart."""
    for number in range(COUNT):
        world.declare_channel(SHOP, f"channel-{number}")
        world.declare_subscription(SHOP, f"audit-{number}", "channel-0")
    await converge(world)
    writes = {each: world.cluster.requests[each] for each in ("apply", "write_status")}
    assert len(world.stored("KafkaChannel", SHOP, "channel-0")["spec"]["subscribers"]) == COUNT
    for kind, name in (("KafkaChannel", "channel"), ("Subscription", "audit")):
        for number in range(COUNT):
            status = world.stored(kind, SHOP, f"{name}-{number}")["status"]
            assert condition(status, "Ready")["status"] == "True"
    assert writes["apply"] <= COUNT
    assert writes["write_status"] <= 7 * COUNT
    generation = world.stored("KafkaChannel", SHOP, "channel-0")["metadata"]["generation"]
    await world.restart()
    world.cluster.requests.clear()
    for each in world.cluster.of("Subscription"):
        world.channels.on_change(each, gone=False)
    assert await world.channels.resume() == COUNT
    await converge(world)
    writes = {each: world.cluster.requests[each] for each in ("apply", "write_status")}
    assert writes["apply"] <= 20
    assert writes["write_status"] <= COUNT  # their lag, which is looked at anew
    assert world.stored("KafkaChannel", SHOP, "channel-0")["metadata"]["generation"] == generation
