"""Sensors on a cluster in memory: made in order, taken down whole, and nobody else's touched."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from itertools import islice
from typing import Any

import pytest
from support.controlled import controller_of
from support.crashing import EFFECTS, Crash, Crashing, moments
from support.operator_world import SETTINGS, condition
from support.sensors_world import BUS, CHILD, GROUP, OWN, SensorsWorld, ready_sensor, spec

from knafka.core.errors import LogError
from knafka_operator.engine.work_queue import GONE
from knafka_operator.model.sensors import KNAFKA, SENSOR
from knafka_operator.runtime.selections import SENSORS


@pytest.fixture
async def world() -> AsyncIterator[SensorsWorld]:
    async with ready_sensor() as world:
        yield world


@pytest.mark.conformance(
    "BUS-1", "BUS-7", "BUS-8", "BUS-9", "BUS-10", "BUS-11", "BUS-33", "BUS-S14"
)
async def test_a_sensor_is_ready_once_topics_function_and_triggers_are(
    world: SensorsWorld,
) -> None:
    for each in ("BrokerReady", "TopicsReady", "FunctionReady", "TriggersReady", "Ready"):
        assert world.says(each) == ("True", ""), each
    assert set(OWN) <= world.inner.log.topics.keys(), "BUS-10, BUS-11"
    described = world.inner.log.descriptions
    limit = 2 * 1_048_588 + 65_536
    for name, policy, most in zip(
        OWN, ("delete", "compact", "delete"), (limit, limit, 16 * 1_048_588), strict=True
    ):
        found = described[name]
        assert (found.partitions, found.replication) == (
            described[BUS].partitions,
            described[BUS].replication,
        )
        assert found.config["cleanup.policy"] == policy
        assert found.config["max.message.bytes"] == str(most)
    contract = world.contract()
    assert (contract.topic, contract.group) == (BUS, GROUP), "BUS-8, BUS-S14"
    assert (contract.trigger_topic, contract.changelog_topic, contract.action_topic) == OWN
    template = world.found("Service", "paid-kn-sensor")["spec"]["template"]
    scaling = template["metadata"]["annotations"]
    assert scaling["autoscaling.knative.dev/min-scale"] == "0", "it sleeps"
    most = scaling["autoscaling.knative.dev/max-scale"]
    assert most == str(described[OWN[0]].partitions), "BUS-6: one process for each partition"
    (container,) = template["spec"]["containers"]
    given = {each["name"]: each["value"] for each in container["env"]}
    assert given["FUNCTION_TARGET"] == "sense"
    assert "KNAFKA_DRAIN_AT_START" not in given


@pytest.mark.conformance("BUS-26", "BUS-27", "BUS-34", "BUS-37")
async def test_kafkas_secret_is_attached_to_its_function_once() -> None:
    """BUS-26, BUS-27: the Broker's, and no other one; its clients' settings with it (BUS-34)."""
    world = SensorsWorld()
    await world.start()
    world.inner.declare_secret("shop", "kafka", protocol="PLAINTEXT")
    world.inner.configure(
        "shop",
        "mine",
        **{
            "bootstrap.servers": "kafka:9092",
            "auth.secret.ref.name": "kafka",
            "consumer.fetch.min.bytes": "7",
        },
    )
    config = {"apiVersion": "v1", "kind": "ConfigMap", "name": "mine"}
    world.inner.declare_broker("shop", config=config)
    world.declare()
    await world.settle()
    pod = world.found("Service", "paid-kn-sensor")["spec"]["template"]["spec"]
    (volume,) = pod["volumes"]
    assert volume["secret"]["secretName"] == "kafka"
    (mount,) = pod["containers"][0]["volumeMounts"]
    assert world.contract().kafka.secret_path == mount["mountPath"]
    assert world.contract().kafka.consumer == {"fetch.min.bytes": "7"}
    await world.inner.operator.close()


async def test_nothing_is_ready_before_its_function_is() -> None:
    world = SensorsWorld()
    await world.start()
    world.inner.cluster.unready.add("paid-kn-sensor")
    world.inner.declare_broker("shop")
    world.declare()
    await world.settle()
    assert world.says("FunctionReady") == ("Unknown", "FunctionNotReady")
    assert world.says("TriggersReady") == ("True", "")
    assert world.says("Ready") == ("Unknown", "FunctionNotReady")
    world.inner.cluster.become_ready("shop", "paid-kn-sensor")
    await world.settle()
    assert world.says("Ready") == ("True", "")
    await world.inner.operator.close()


@pytest.mark.conformance("BUS-32")
async def test_names_are_written_before_topics_and_offsets_before_the_function() -> None:
    """What an operator has begun the next one knows for its own; no event is missed (KN-TRG-06)."""
    calls: list[str] = []
    world = SensorsWorld(lambda when, call: calls.append(call) if when == "after" else None)
    await world.start()
    world.inner.declare_broker("shop")
    await world.turn("Broker", "default")
    world.declare()
    calls.clear()
    await world.turn()
    made = [each for each in calls if each in EFFECTS]
    assert made == [
        "write_status",
        *["ensure_topic", "write_status"] * 3,
        *["ensure_committed"] * 2,
        "write_status",
        "apply",  # the function
        "apply",  # a Trigger
        "write_status",
    ]
    committed = world.inner.log.group(GROUP).committed
    assert {place[0] for place in committed} == {BUS, OWN[0]}
    await world.inner.operator.close()


async def test_a_deleted_sensor_leaves_nothing(world: SensorsWorld) -> None:
    await world.delete()
    assert world.there(SENSOR) == set()
    assert world.there("Trigger") == set()
    assert not {each for each in world.inner.cluster.services() if each.startswith("paid")}
    assert not {each for each in world.inner.log.topics if each in OWN}
    assert GROUP not in world.inner.log.groups
    assert await world.turn() is GONE
    states = world.inner.operator.states
    assert (states.sensors, states.sensor_uid_by_name, states.sensors_by_bus) == ({}, {}, {})


async def test_a_kafka_that_refuses_keeps_no_sensor_for_ever(world: SensorsWorld) -> None:
    await world.inner.restart(sensors=True, deletion_timeout=0)
    world.controller = controller_of(world.inner)
    await world.turn("Broker", "default")
    world.inner.kafka_failures["delete_topic"] = LogError("Kafka did not answer")
    await world.delete()
    assert world.there(SENSOR) == set()


async def test_a_sensor_waits_for_the_deletion_of_its_triggers_without_a_limit(
    world: SensorsWorld,
) -> None:
    """Each Trigger's own deletion has one: else a slow Trigger left the Sensor's topics."""
    await world.inner.restart(sensors=True, deletion_timeout=0)
    world.controller = controller_of(world.inner)
    await world.turn("Broker", "default")
    world.inner.cluster.remove(KNAFKA, SENSOR, "shop", "paid")
    for _ in range(2):
        await world.turn()
        assert world.there(SENSOR) == {"paid"}
    for trigger in sorted(world.there("Trigger")):
        await world.turn("Trigger", trigger)
    await world.turn()
    assert world.there(SENSOR) == set()
    assert not {each for each in world.inner.log.topics if each in OWN}


async def test_a_sensor_is_looked_at_when_more_than_its_status_has_changed(
    world: SensorsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = SENSOR, "shop", "paid"
    asked: list[Any] = []
    monkeypatch.setattr(world.inner.operator.queue, "enqueue", asked.append)
    before = copy.deepcopy(world.found())
    world.controller.on_objects(SENSORS, [before], [])
    world.controller.on_objects(SENSORS, [{**before, "status": {}}], [])
    assert asked == [key]
    world.controller.on_objects(SENSORS, [{**before, "spec": spec(within="PT1M")}], [])
    world.controller.on_objects(SENSORS, [], [before])
    assert asked == [key] * 3


async def test_a_sensor_goes_after_its_broker_too(world: SensorsWorld) -> None:
    await world.inner.delete_broker("shop")
    assert GROUP not in world.inner.log.groups, "its position is none in a topic made anew"
    await world.turn()
    assert world.says("BrokerReady") == ("False", "BrokerDoesNotExist")
    assert "paid-kn-sensor" not in world.inner.cluster.services()
    await world.start()  # an operator that knows of nothing
    await world.delete()
    assert not {each for each in world.inner.log.topics if each in OWN}


async def test_a_sensor_waits_for_its_broker_and_is_woken_by_it() -> None:
    world = SensorsWorld()
    await world.start()
    world.declare()
    await world.turn()
    assert world.says("Ready") == ("False", "BrokerDoesNotExist")
    assert world.says("FunctionReady") == ("Unknown", "Waiting")
    world.inner.declare_broker("shop")
    await world.turn("Broker", "default")
    assert (SENSOR, "shop", "paid") in world.inner.operator.queue._items
    await world.inner.operator.close()


async def test_a_broker_of_another_class_is_no_bus() -> None:
    world = SensorsWorld()
    await world.start()
    world.inner.declare_broker("shop")
    broker = world.found("Broker", "default")
    broker["metadata"]["annotations"] = {"eventing.knative.dev/broker.class": "Other"}
    world.declare()
    await world.turn()
    assert world.says("BrokerReady") == ("False", "BrokerNotOurs")
    await world.inner.operator.close()


async def test_a_condition_that_says_nothing_is_told_by_its_field() -> None:
    world = SensorsWorld()
    await world.start()
    world.inner.declare_broker("shop")
    world.declare(**spec(conditions="order && nothing"))
    await world.settle()
    assert world.says("Ready") == ("False", "Invalid")
    assert "nothing" in condition(world.status(), "Ready")["message"]
    await world.inner.operator.close()


async def test_without_sensors_nothing_of_theirs_is_done(world: SensorsWorld) -> None:
    calls = world.inner.cluster.requests
    await world.start(enabled=False)
    await world.turn("Broker", "default")
    before = calls.copy()
    assert await world.turn() is GONE
    assert calls == before
    await world.turn("Trigger", CHILD)
    assert world.says("SubscriptionReady", "Trigger", CHILD) == ("False", "SensorsDisabled")
    assert f"{CHILD}-kn-dispatcher" not in world.inner.cluster.services()
    assert SETTINGS.sensors is False


@pytest.mark.conformance("BUS-32")
@pytest.mark.parametrize("moment", [*islice(moments(), 26)], ids=str)
async def test_whatever_effect_kills_the_operator_the_next_one_goes_on(
    moment: tuple[str, int],
) -> None:
    crashing = Crashing(lambda: None)
    world = SensorsWorld(crashing)
    await world.start()
    world.inner.declare_broker("shop")
    await world.turn("Broker", "default")
    world.declare()
    crashing.at = moment
    for step in (world.settle, world.delete):
        try:
            await step()
        except Crash:
            await world.start()
            await world.settle()
        if step == world.settle:
            assert world.says("Ready") == ("True", "")
            assert {each for each in world.inner.log.topics if "-paid-" in each} >= set(OWN)
            assert not {each for each in world.inner.log.topics if each.startswith("knafka-shop")}
    await world.delete()
    assert world.there(SENSOR) == set()
    assert not {each for each in world.inner.log.topics if each in OWN}
    assert GROUP not in world.inner.log.groups
    await world.inner.operator.close()
