"""A Broker goes from eventing-kafka-broker to Knafka and back: topic, groups and offsets stay."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.memory.log import MemoryWriter
from support.operator_world import OperatorWorld, condition, running_operator

from knafka.core import names
from knafka.ports.log import OffsetAndMetadata
from knafka_operator.kafka.topics import TOPIC_ID
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import (
    EVENTING,
    FINALIZER,
    GROUP_STATUS,
    PEERS_FINALIZER,
    SERVING,
    TOPIC_STATUS,
)

pytestmark = pytest.mark.looptime

TOPIC = names.broker_topic("shop", "default")
UID_GROUP = "99999999-8888-7777-6666-555555555555"
"""What releases of the peer before 1.10 called a group: the Trigger's UID."""
GROUPS = {"mail": names.trigger_group("shop", "mail"), "bill": UID_GROUP}


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    """As the peer leaves it: ten events, of which each group has committed some, plainly."""
    async with running_operator() as world:
        world.declare_broker("shop", annotations={"eventing.knative.dev/broker.class": "Kafka"})
        world.log.create(TOPIC, 2)
        for _ in range(10):
            MemoryWriter(world.log).append(TOPIC, None, b"{}", [], lambda *_: None)
        claim(world, [PEERS_FINALIZER])
        stored(world)["status"] = {"annotations": {TOPIC_STATUS: TOPIC}}
        for number, (name, group) in enumerate(GROUPS.items()):
            world.declare_trigger("shop", name)
            trigger = world.cluster.objects[EVENTING, "Trigger", "shop", name]
            if group == UID_GROUP:
                trigger["metadata"]["uid"] = UID_GROUP
            trigger["status"] = {"annotations": {GROUP_STATUS: group}}
            for partition in (0, 1):
                committed = world.log.group(group).committed
                committed[TOPIC, partition] = OffsetAndMetadata(number + 1, "")
        yield world


def stored(world: OperatorWorld) -> dict[str, Any]:
    found: dict[str, Any] = world.cluster.objects[EVENTING, "Broker", "shop", "default"]
    return found


def claim(world: OperatorWorld, finalizers: list[str]) -> None:
    """Say whose the Broker is."""
    stored(world)["metadata"]["finalizers"] = finalizers


async def adopt(world: OperatorWorld) -> None:
    """As `knafka adopt` does, and the controller after it."""
    stored(world)["status"]["annotations"][TOPIC_ID] = world.log.descriptions[TOPIC].id
    claim(world, [])
    await world.reconcile_broker("shop")
    claim(world, [FINALIZER])
    for name in GROUPS:
        await world.reconcile_trigger("shop", name)


def committed(world: OperatorWorld) -> dict[str, dict[tuple[str, int], int]]:
    return {
        group: {place: each.offset for place, each in world.log.group(group).committed.items()}
        for group in GROUPS.values()
    }


async def test_a_broker_that_the_peer_has_claimed_is_left_alone(world: OperatorWorld) -> None:
    document = world.document("Broker", "shop")
    assert not world.operator.brokers.is_ours(document)
    world.operator.on_broker(document, gone=False)
    await world.operator.brokers.hand_over(document)
    for name in GROUPS:
        trigger = world.document("Trigger", "shop", name)
        world.operator.on_trigger(trigger, gone=False)
        assert not world.operator.triggers.is_ours(trigger)
        await world.operator.triggers.hand_over(trigger)
        after = world.document("Trigger", "shop", name)
        assert after["status"] == {"annotations": {GROUP_STATUS: GROUPS[name]}}
    assert stored(world)["status"] == {"annotations": {TOPIC_STATUS: TOPIC}}
    assert world.cluster.services() == set()


async def test_without_the_topics_id_a_topic_with_events_is_not_taken(
    world: OperatorWorld,
) -> None:
    claim(world, [])
    refused = condition(await world.reconcile_broker("shop"), "TopicReady")
    assert refused["reason"] == "TopicNotOurs"


async def test_an_adopted_broker_goes_on_with_its_topic_and_its_triggers_offsets(
    world: OperatorWorld,
) -> None:
    before = committed(world)
    await adopt(world)
    status = await world.reconcile_broker("shop")
    assert condition(status, "Ready")["status"] == "True"
    assert status["annotations"][TOPIC_STATUS] == TOPIC
    watched = world.operator.triggers.watched
    assert {each.name: found.egress.group for each, found in watched.items()} == GROUPS
    assert committed(world) == before


async def test_a_released_broker_keeps_topic_groups_and_offsets_and_has_nothing_of_ours(
    world: OperatorWorld,
) -> None:
    await adopt(world)
    before = committed(world)
    for group in GROUPS.values():  # what dispatchers of ours keep beside the offset
        for place, each in world.log.group(group).committed.items():
            world.log.group(group).committed[place] = OffsetAndMetadata(each.offset, "ours")
    claim(world, [PEERS_FINALIZER])
    for _ in range(2):  # it may end between any two of these, and begins again
        document = world.document("Broker", "shop")
        world.operator.on_broker(document, gone=False)
        assert not world.operator.brokers.is_ours(document)
        for name in GROUPS:
            trigger = world.document("Trigger", "shop", name)
            world.operator.on_trigger(trigger, gone=False)
            await world.operator.triggers.hand_over(trigger)
            after = world.document("Trigger", "shop", name)["status"]
            assert after["annotations"] == {GROUP_STATUS: GROUPS[name]}
            assert not after.get("conditions")
        await world.operator.brokers.hand_over(document)
    status = stored(world)["status"]
    assert not [each for each in status["annotations"] if each.startswith("knafka.dev/")]
    assert status["annotations"][TOPIC_STATUS] == TOPIC
    assert (status.get("address"), status["conditions"]) == (None, [])
    assert not [key for key in world.cluster.objects if key[0] == SERVING]
    assert world.operator.triggers.watched == {}
    assert not world.drains.held.total()
    assert Identity("shop", "default") not in world.operator.states.brokers
    assert committed(world) == before
    assert TOPIC in world.log.topics
    assert world.entries() == {}
    # And once more.
    await adopt(world)
    assert condition(await world.reconcile_broker("shop"), "Ready")["status"] == "True"
    assert committed(world) == before


async def test_a_trigger_of_a_shared_dispatcher_leaves_its_shard(world: OperatorWorld) -> None:
    stored(world)["metadata"]["annotations"]["knafka.dev/isolation"] = "shared"
    await adopt(world)
    assert {place[2:] for place in world.cluster.objects if place[0] == SERVING}
    claim(world, [PEERS_FINALIZER])
    document = world.document("Broker", "shop")
    world.operator.on_broker(document, gone=False)
    await world.operator.brokers.hand_over(document)
    for name in GROUPS:
        await world.operator.triggers.hand_over(world.document("Trigger", "shop", name))
    assert not [key for key in world.cluster.objects if key[0] == SERVING]
    assert names.contract_topic("shop", "default") not in world.log.topics
    assert committed(world).keys() == set(GROUPS.values())


async def test_in_the_local_mode_an_exported_broker_is_served_whatever_its_finalizers(
    world: OperatorWorld,
) -> None:
    await world.restart(trusts_statuses=True)
    assert world.operator.brokers.is_ours(world.document("Broker", "shop"))
