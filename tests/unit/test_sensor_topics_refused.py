"""No KafkaSink or KafkaSource may name a Sensor's topics: a record there could fire the Sensor."""

from __future__ import annotations

from typing import Any

import pytest
from support.controlled import controller_of
from support.operator_world import condition
from support.sensors_world import OWN, SensorsWorld, ready_sensor

from knafka_operator.installation.naming import Naming
from knafka_operator.model.resources import SERVING
from knafka_operator.model.sources import KAFKA_SOURCE, SOURCES_VERSION
from knafka_operator.sinks.model import KAFKA_SINK, SINKS_VERSION

SINK = {"bootstrapServers": ["kafka:9092"]}
SOURCE = {**SINK, "consumerGroup": "theirs", "sink": {"uri": "http://theirs/"}}


async def declare(world: SensorsWorld, version: str, kind: str, **spec: Any) -> dict[str, Any]:
    """One of another namespace, reconciled once."""
    metadata = {"namespace": "others", "name": "theirs"}
    world.inner.cluster.put(
        {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
    )
    stored = world.inner.cluster.objects[version, kind, "others", "theirs"]
    world.controller.kinds[kind].on_change(stored, gone=False)
    await world.controller.reconcile((kind, "others", "theirs"))
    return world.inner.cluster.objects[version, kind, "others", "theirs"]


async def take_over(world: SensorsWorld) -> None:
    await world.inner.restart(sensors=True, sinks=True, sources=True, naming=Naming())
    world.controller = controller_of(world.inner)
    await world.settle()


@pytest.mark.parametrize("topic", OWN)
async def test_another_namespaces_sensor_gets_no_record_by_a_sink(topic: str) -> None:
    async with ready_sensor() as world:
        await take_over(world)
        stored = await declare(world, SINKS_VERSION, KAFKA_SINK, topic=topic, **SINK)
        found = condition(stored["status"], "ConfigParsed")
        assert found["status"] == "False"
        assert "want no topic of a Broker, a KafkaChannel, a Sensor" in found["message"]
        assert (SERVING, "Service", "others", "theirs-kn-sink-receiver") not in (
            world.inner.cluster.objects
        )


async def test_another_namespaces_sensor_is_not_read_by_a_source() -> None:
    async with ready_sensor() as world:
        await take_over(world)
        stored = await declare(world, SOURCES_VERSION, KAFKA_SOURCE, topics=[OWN[2]], **SOURCE)
        found = condition(stored["status"], "ConnectionEstablished")
        assert found["status"] == "False"
        assert "a Sensor" in found["message"]


async def test_a_topic_that_is_named_as_a_sensors_group_is_somebodys() -> None:
    async with ready_sensor() as world:
        world.inner.log.create("shop-paid")
        await take_over(world)
        stored = await declare(world, SINKS_VERSION, KAFKA_SINK, topic="shop-paid", **SINK)
        assert condition(stored["status"], "TopicReady")["status"] == "True"
