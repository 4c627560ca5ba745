"""Topics and group of a Sensor on a cluster in memory: its own, as large as its bus, and kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from support.operator_world import condition
from support.sensors_world import BUS, GROUP, OWN, SensorsWorld, ready_sensor, spec

from knafka.core import names
from knafka_operator.kafka.dead_letter_topics import FAILURE_ATTRIBUTES_BYTES


@pytest.fixture
async def world() -> AsyncIterator[SensorsWorld]:
    async with ready_sensor() as world:
        yield world


@pytest.mark.conformance("BUS-S14")
async def test_the_group_begins_at_the_end_of_the_bus_once_and_never_again(
    world: SensorsWorld,
) -> None:
    committed = world.inner.log.group(GROUP).committed
    before = dict(committed)
    committed.clear()  # as Kafka forgets a group that rests for a week
    await world.settle()
    assert before
    assert committed == {}, "it was promised every event, and begins at the beginning"


async def test_a_topic_that_is_there_already_is_not_taken_over() -> None:
    world = SensorsWorld()
    await world.start()
    world.inner.log.create(OWN[2], 7)
    theirs = world.inner.log.descriptions[OWN[2]]
    world.inner.declare_broker("shop")
    world.declare()
    await world.settle()
    distinct = names.distinct_sensor_topic("shop", "default", "paid", "action")
    assert world.contract().action_topic == distinct
    assert world.says("Ready") == ("True", "")
    await world.delete()
    assert world.inner.log.descriptions[OWN[2]] == theirs
    assert distinct not in world.inner.log.topics
    await world.inner.operator.close()


async def test_two_sensors_whose_names_join_to_the_same_share_nothing() -> None:
    """`default-x` on `default`, and `x` on `default-default`: with dashes both are one name."""
    world = SensorsWorld()
    await world.start()
    for broker in ("default", "default-default"):
        world.inner.declare_broker("shop", broker)
    world.declare("default-x")
    world.declare("x", **spec(), broker="default-default")
    for _ in range(2):
        await world.settle("default-x")
        await world.settle("x")
    one, other = world.contract("default-x"), world.contract("x")
    assert one.trigger_topic == "shop-default-default-x-trigger"
    assert other.trigger_topic == names.distinct_sensor_topic(
        "shop", "default-default", "x", "trigger"
    )
    await world.inner.operator.close()


async def test_names_that_another_sensor_has_are_left_to_it() -> None:
    """Also those that it has written down and not made yet."""
    world = SensorsWorld()
    await world.start()
    taken = world.inner.operator.states.sensor_uid_by_name
    taken |= dict.fromkeys([OWN[0], GROUP], "uid-of-another")
    world.inner.declare_broker("shop")
    world.declare()
    await world.settle()
    contract = world.contract()
    of = "shop", "default", "paid"
    assert contract.trigger_topic == names.distinct_sensor_topic(*of, "trigger")
    assert contract.action_topic == OWN[2]
    assert contract.group == names.distinct_sensor_group("shop", "paid")
    assert world.says("Ready") == ("True", "")
    await world.inner.operator.close()


async def test_a_topic_that_somebody_made_anew_is_refused(world: SensorsWorld) -> None:
    world.inner.log.topics.pop(OWN[1])
    world.inner.log.create(OWN[1], 10)
    await world.settle()
    assert world.says("TopicsReady") == ("False", "TopicReplaced")


async def test_partitions_that_somebody_added_to_one_topic_are_told(world: SensorsWorld) -> None:
    """What a partition of the trigger topic holds is in the changelog's of its number."""
    described = world.inner.log.descriptions
    described[OWN[0]] = replace(described[OWN[0]], partitions=99)
    await world.settle()
    assert world.says("TopicsReady") == ("False", "PartitionsDiffer")


@pytest.mark.conformance("BUS-31")
async def test_topics_have_room_for_what_an_external_bus_takes() -> None:
    """Of its limit nothing is declared: it is asked for, so no record is too large for them."""
    world = SensorsWorld()
    await world.start()
    world.inner.log.create("mine", 4)
    described = world.inner.log.descriptions
    described["mine"] = replace(described["mine"], config={"max.message.bytes": "5000000"})
    world.inner.allow("mine")
    external = {"kafka.eventing.knative.dev/external.topic": "mine"}
    world.inner.declare_broker("shop", annotations=external)
    world.declare()
    await world.settle()
    assert world.says("Ready") == ("True", "")
    assert world.contract().topic == "mine"
    limits = [described[each].config["max.message.bytes"] for each in OWN]
    assert limits == ["10065536", "10065536", "67108864"]
    assert world.says("TopicAsDeclared") == ("True", "")
    await world.inner.operator.close()


async def test_topics_that_are_too_small_by_now_are_told(world: SensorsWorld) -> None:
    """A record that is too large stops a Sensor: its status says before that which to raise."""
    described = world.inner.log.descriptions
    described[BUS] = replace(described[BUS], config={"max.message.bytes": "5000000"})
    await world.settle()
    assert world.says("Ready") == ("True", "")
    assert world.says("TopicAsDeclared") == ("False", "TopicDrifted")
    message = condition(world.status(), "TopicAsDeclared")["message"]
    wanted = f"topic {OWN[0]} is left as it is: max.message.bytes: 2162712, declared 10065536"
    assert wanted in message


async def test_dead_letters_of_a_sensor_have_room_for_what_its_topics_take(
    world: SensorsWorld,
) -> None:
    """Also where the bus was raised in Kafka, which the Sensor's own topics follow."""
    described = world.inner.log.descriptions
    described[BUS] = replace(described[BUS], config={"max.message.bytes": "5000000"})
    await world.settle()
    of_actions = world.egress().dead_letter_settings.config["max.message.bytes"]
    of_sensor = world.contract().dead_letter_settings.config["max.message.bytes"]
    assert int(of_actions) == 64 * 1024 * 1024 + FAILURE_ATTRIBUTES_BYTES
    assert int(of_sensor) == 5_000_000 + FAILURE_ATTRIBUTES_BYTES


@pytest.mark.conformance("BUS-31")
async def test_a_sensor_moves_with_its_broker_to_another_topic(world: SensorsWorld) -> None:
    """Its function goes before offsets are committed there, and nothing is read twice."""
    other = "mine"
    world.inner.log.create(other, 10)
    world.inner.allow(other)
    broker = world.found("Broker", "default")
    broker["metadata"]["annotations"]["kafka.eventing.knative.dev/external.topic"] = other
    await world.settle()
    assert world.contract().topic == other
    assert {place[0] for place in world.inner.log.group(GROUP).committed} >= {other, OWN[0]}
    assert world.status()["annotations"]["knafka.dev/bus"] == other


async def test_no_broker_uses_a_sensors_topic_as_an_external_one(world: SensorsWorld) -> None:
    """Whoever sends there has the Sensor's subscribers act."""
    world.inner.allow(f"*,{OWN[2]}")
    external = {"kafka.eventing.knative.dev/external.topic": OWN[2]}
    world.inner.declare_broker("shop", "forged", annotations=external)
    status = await world.inner.reconcile_broker("shop", "forged")
    found = condition(status, "TopicReady")
    assert (found["status"], found["reason"]) == ("False", "ExternalTopicNotAllowed")
    assert "it is a Sensor's" in found["message"]
