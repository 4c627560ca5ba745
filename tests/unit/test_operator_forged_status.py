"""A status that somebody has written: it takes no neighbour's topic or group, nor deletes one.

Whoever administers a namespace may write the status of what is there. `a` with `b-c` and `a-b` with
`c` join to one name.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from support.memory.log import MemoryWriter
from support.operator_world import OperatorWorld, condition, running_operator
from support.sensors_world import GROUP, OWN, SensorsWorld, ready_sensor

from knafka.core import names
from knafka.core.documents import dump
from knafka.ports.log import OffsetAndMetadata
from knafka_operator.brokers.decide import RECEIVER_CONTRACT
from knafka_operator.kafka.topics import TOPIC_ID
from knafka_operator.model.resources import EVENTING, GROUP_STATUS, TOPIC_STATUS

pytestmark = pytest.mark.looptime

NEIGHBOUR = ("a-b", "c")
FORGER = ("a", "b-c")
TOPIC = names.broker_topic(*NEIGHBOUR)
GROUP_OF_NEIGHBOUR = names.trigger_group(*NEIGHBOUR)
assert names.broker_topic(*FORGER) == TOPIC


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    """The neighbour's Broker is Ready, and has an event."""
    async with running_operator() as world:
        world.declare_broker(*NEIGHBOUR)
        await world.reconcile_broker(*NEIGHBOUR)
        write(world, TOPIC)
        yield world


def write(world: OperatorWorld, topic: str) -> None:
    MemoryWriter(world.log).append(topic, None, b"{}", [], lambda *_: None)


def forge(
    world: OperatorWorld, kind: str, of: tuple[str, str], annotations: Mapping[str, str]
) -> None:
    stored: dict[str, Any] = world.cluster.objects[EVENTING, kind, *of]
    status = stored.setdefault("status", {})
    status["annotations"] = {**(status.get("annotations") or {}), **annotations}


def id_of(world: OperatorWorld, topic: str) -> str:
    return world.log.descriptions[topic].id


@pytest.mark.parametrize("id_", ["", "another", None], ids=["empty", "another", "the right one"])
@pytest.mark.parametrize("restart", [False, True])
async def test_a_broker_that_goes_takes_no_neighbours_topic_with_it(
    world: OperatorWorld, id_: str | None, restart: bool
) -> None:
    world.declare_broker(*FORGER)
    known = id_of(world, TOPIC) if id_ is None else id_
    forge(world, "Broker", FORGER, {TOPIC_STATUS: TOPIC, TOPIC_ID: known})
    if restart:  # the forger is heard of first
        await world.restart()
        world.operator.on_broker(world.document("Broker", *FORGER), gone=False)
        world.operator.on_broker(world.document("Broker", *NEIGHBOUR), gone=False)
    await world.delete_broker(*FORGER)
    assert TOPIC in world.log.topics
    assert world.log.descriptions[TOPIC].id == id_of(world, TOPIC)


@pytest.mark.parametrize("id_", ["", "another"])
async def test_after_a_restart_each_broker_has_the_topic_that_kafka_says_is_its_own(
    world: OperatorWorld, id_: str
) -> None:
    """Who is heard of first says nothing: the neighbour would lose its events."""
    world.declare_broker(*FORGER)
    forge(world, "Broker", FORGER, {TOPIC_STATUS: TOPIC, TOPIC_ID: id_})
    await world.restart()
    for each in (FORGER, NEIGHBOUR):
        world.operator.on_broker(world.document("Broker", *each), gone=False)
    forged = await world.reconcile_broker(*FORGER)
    assert condition(forged, "TopicReady")["status"] == "False"
    status = await world.reconcile_broker(*NEIGHBOUR)
    assert condition(status, "Ready")["status"] == "True"
    assert status["annotations"][TOPIC_STATUS] == TOPIC
    forged = await world.reconcile_broker(*FORGER)
    assert forged["annotations"][TOPIC_STATUS] == names.distinct_broker_topic(*FORGER)
    assert condition(forged, "Ready")["status"] == "True"


async def test_an_unused_topic_of_a_neighbours_is_not_taken_either() -> None:
    async with running_operator() as world:
        world.declare_broker(*NEIGHBOUR)
        await world.reconcile_broker(*NEIGHBOUR)
        world.declare_broker(*FORGER)
        forge(world, "Broker", FORGER, {TOPIC_STATUS: TOPIC, TOPIC_ID: ""})
        await world.restart()
        world.operator.on_broker(world.document("Broker", *FORGER), gone=False)
        forged = await world.reconcile_broker(*FORGER)
        assert condition(forged, "TopicReady")["reason"] == "TopicNotOurs"
        await world.delete_broker(*FORGER)
        assert TOPIC in world.log.topics


async def test_a_topic_of_another_installation_is_not_taken_by_an_empty_id() -> None:
    """Nothing in this cluster says whose it is; that it has events does."""
    async with running_operator() as world:
        topic = names.broker_topic("shop", "default")
        world.log.create(topic)
        write(world, topic)
        world.declare_broker("shop")
        forge(world, "Broker", ("shop", "default"), {TOPIC_STATUS: topic, TOPIC_ID: ""})
        found = condition(await world.reconcile_broker("shop"), "TopicReady")
        assert found["reason"] == "TopicNotOurs"
        await world.delete_broker("shop")
        assert topic in world.log.topics


async def test_a_topic_that_was_made_is_known_by_its_id_before_anything_else_happens() -> None:
    """An operator that dies later finds events there, which an empty id couldn't tell from
    somebody else's."""
    written: list[str] = []

    def seen(when: str, call: str) -> None:
        if (when, call) == ("before", "apply"):
            stored = inner.cluster.objects[EVENTING, "Broker", "shop", "default"]
            written.append(stored["status"]["annotations"][TOPIC_ID])

    inner = OperatorWorld(seen)
    inner.declare_broker("shop")
    await inner.reconcile_broker("shop")
    topic = names.broker_topic("shop", "default")
    assert written[0] == id_of(inner, topic)
    # One that was lost is made again, and known again.
    del inner.log.topics[topic], inner.log.descriptions[topic]
    status = await inner.reconcile_broker("shop")
    assert condition(status, "TopicReady")["status"] == "True"
    assert status["annotations"][TOPIC_ID] == id_of(inner, topic)
    await inner.operator.close()


@pytest.mark.parametrize(
    "topic", ["orders", "knafka-contract-bank-Brokers-kafka-0123456789", "knafka-contract-a"]
)
async def test_no_topic_is_read_as_the_contract_of_receivers_because_a_status_names_it(
    world: OperatorWorld, topic: str
) -> None:
    """The operator would hold all of it, and write to it."""
    world.declare_broker("a", "mine")
    await world.reconcile_broker("a", "mine")
    assert "/a/mine" in world.entries()
    forge(world, "Broker", ("a", "mine"), {RECEIVER_CONTRACT: topic})
    world.log.create(topic)
    writer = MemoryWriter(world.log)
    entry = next(iter(world.entries().values()))
    value = json.dumps(dump(entry)).encode()
    writer.append(topic, b"/a/mine", value, [], lambda *_: None)
    before = sum(map(len, world.log.topics[topic]))
    await world.delete_broker("a", "mine")
    assert sum(map(len, world.log.topics[topic])) == before


# Consumer groups of Triggers.


@pytest.mark.parametrize("kind", ["Trigger", "Broker"])
@pytest.mark.parametrize("restart", [False, True])
async def test_a_trigger_that_goes_takes_no_neighbours_group_with_it(
    world: OperatorWorld, restart: bool, kind: str
) -> None:
    world.declare_trigger(*NEIGHBOUR, broker="c")
    await world.reconcile_trigger(*NEIGHBOUR)
    world.declare_broker("a", "mine")
    await world.reconcile_broker("a", "mine")
    world.declare_trigger(*FORGER, broker="mine")
    forge(world, "Trigger", FORGER, {GROUP_STATUS: GROUP_OF_NEIGHBOUR})
    before = dict(world.log.groups[GROUP_OF_NEIGHBOUR].committed)
    if restart:
        await world.restart()
        world.operator.on_broker(world.document("Broker", "a", "mine"), gone=False)
        world.operator.on_trigger(world.document("Trigger", *FORGER), gone=False)
    if kind == "Trigger":
        await world.delete_trigger(*FORGER)
    else:
        await world.delete_broker("a", "mine")
    assert world.log.groups[GROUP_OF_NEIGHBOUR].committed == before


async def test_after_a_restart_each_trigger_has_the_group_with_offsets_on_its_own_topic(
    world: OperatorWorld,
) -> None:
    """With another one the neighbour would begin at the end, and miss what waits."""
    world.declare_trigger(*NEIGHBOUR, broker="c")
    await world.reconcile_trigger(*NEIGHBOUR)
    world.declare_broker("a", "mine")
    await world.reconcile_broker("a", "mine")
    world.declare_trigger(*FORGER, broker="mine")
    forge(world, "Trigger", FORGER, {GROUP_STATUS: GROUP_OF_NEIGHBOUR})
    await world.restart()
    world.operator.on_trigger(world.document("Trigger", *FORGER), gone=False)
    await world.reconcile_broker(*NEIGHBOUR)
    status = await world.reconcile_trigger(*NEIGHBOUR)
    assert status["annotations"][GROUP_STATUS] == GROUP_OF_NEIGHBOUR
    await world.reconcile_broker("a", "mine")
    forged = await world.reconcile_trigger(*FORGER)
    assert forged["annotations"][GROUP_STATUS] == names.distinct_trigger_group(*FORGER)


# Sensors: their topics and groups have no beginning of their own.


def commit(world: SensorsWorld, group: str, topic: str) -> None:
    world.inner.log.group(group).committed[topic, 0] = OffsetAndMetadata(7)


async def test_a_sensor_leaves_an_applications_group_alone() -> None:
    """It has the usual name, and reads the same bus."""
    world = SensorsWorld()
    await world.start()
    world.inner.declare_broker("shop")
    await world.turn("Broker", "default")
    commit(world, GROUP, "knative-broker-shop-default")
    theirs = dict(world.inner.log.group(GROUP).committed)
    world.declare()
    await world.settle()
    assert world.says("Ready") == ("True", "")
    assert world.contract().group == names.distinct_sensor_group("shop", "paid")
    await world.start()
    await world.settle()
    assert world.contract().group == names.distinct_sensor_group("shop", "paid")
    await world.delete()
    assert world.inner.log.group(GROUP).committed == theirs
    assert names.distinct_sensor_group("shop", "paid") not in world.inner.log.groups
    await world.inner.operator.close()


@pytest.mark.parametrize("promised", [False, True])
@pytest.mark.parametrize("gone", ["Sensor", "Broker"])
async def test_nor_does_a_forged_status_give_it_one(gone: str, promised: bool) -> None:
    world = SensorsWorld()
    await world.start()
    world.inner.declare_broker("shop")
    await world.turn("Broker", "default")
    commit(world, GROUP, "orders")
    theirs = dict(world.inner.log.group(GROUP).committed)
    world.declare()
    forged = {GROUP_STATUS: GROUP}
    if promised:
        forged["knafka.dev/bus"] = "knative-broker-shop-default"
    world.found()["status"] = {"annotations": forged}
    await world.settle()
    if promised:
        assert world.says("TopicsReady") == ("False", "GroupNotOurs")
        assert "paid-kn-sensor" not in world.inner.cluster.services()
    else:
        assert world.contract().group == names.distinct_sensor_group("shop", "paid")
    if gone == "Sensor":
        await world.delete()
    else:
        await world.inner.delete_broker("shop")
    assert world.inner.log.group(GROUP).committed == theirs
    await world.inner.operator.close()


@pytest.mark.parametrize("restart", [False, True])
async def test_a_sensors_own_group_is_known_again_and_goes_with_it(restart: bool) -> None:
    async with ready_sensor() as world:
        if restart:
            await world.start()
            await world.settle()
        assert world.says("Ready") == ("True", "")
        assert world.contract().group == GROUP
        await world.delete()
        assert GROUP not in world.inner.log.groups


@pytest.mark.parametrize("settled", [False, True])
async def test_a_sensor_takes_no_topic_of_an_application_by_an_empty_id(settled: bool) -> None:
    world = SensorsWorld()
    await world.start()
    world.inner.log.create(OWN[2], 7)
    write(world.inner, OWN[2])
    theirs = world.inner.log.descriptions[OWN[2]]
    world.inner.declare_broker("shop")
    await world.turn("Broker", "default")
    world.declare()
    keys = "trigger-topic", "changelog-topic", "action-topic"
    forged = {f"knafka.dev/{key}": name for key, name in zip(keys, OWN, strict=True)}
    forged |= {f"knafka.dev/{key}-id": "" for key in keys}
    forged |= {"bootstrap.servers": "kafka:9092"}
    world.found()["status"] = {"annotations": forged}
    if settled:
        await world.settle()
        assert world.says("TopicsReady") == ("False", "TopicNotOurs")
    await world.delete()
    assert world.inner.log.descriptions[OWN[2]] == theirs
    await world.inner.operator.close()
