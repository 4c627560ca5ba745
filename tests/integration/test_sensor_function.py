"""The sensor as a process: `POST /drain` has it work, and it sleeps when there is nothing to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import functions
from support.kafka import Kafka, MakeTopic
from support.sensors import SensorWorld

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core.drain import DrainRequest, Ended

pytestmark = pytest.mark.kafka


@pytest.mark.conformance("BUS-1", "BUS-21")
async def test_a_drain_fires_what_has_come_and_ends_when_idle(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """BUS-21: what waits for b holds no process."""
    world = SensorWorld(kafka, topic)
    world.publish("a1", "c1", "d1")
    world.publish_what_is_none()
    sensor = world.sensor({"t1": "a && b", "t2": "c && d"})
    async with functions.sensor(sensor, tmp_path / "log") as process:
        await process.ready()
        request = DrainRequest(idle=1, budget=60, slot=0)
        progress, members = [], set[str]()
        admin = KafkaAdmin({"bootstrap.servers": kafka.bootstrap_servers})
        async for line in functions.drain(process, request):
            progress.append(line)
            if line.partitions:
                members |= set(await admin.members(sensor.group))
        assert members == {sensor.transactional_id("0")}, "another operator sees which slots go on"
        assert await admin.members(sensor.group) == []
        await admin.close()
        assert progress[-1].ended is Ended.IDLE
        assert {line.slot for line in progress} == {0}
        assert progress[-1].holding is not None
        held = {each.trigger: each.has for each in progress[-1].holding.triggers}
        assert held == {"t1": ("a",)}
        assert (progress[-1].read, progress[-1].delivered) == (4, 1)
        assert progress[-1].dead_letters == {"undecodable-record": 1}
        assert progress[-1].dead_lettered == 1
        assert world.actions() == ["t2: c1 d1"]
        status, metrics = await process.get("/metrics")
        assert status == 200
        labels = 'namespace="shop",sensor="sensor",trigger="t2"'
        assert f"knafka_sensor_firings_total{{{labels}}} 1.0" in metrics.decode()
        assert "knafka_sensor_dead_letters_total{" in metrics.decode()
        await process.terminate()


async def test_a_drain_of_another_version_of_the_sensor_is_refused(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    world = SensorWorld(kafka, topic)
    async with functions.sensor(world.sensor({"t": "a"}), tmp_path / "log") as process:
        await process.ready()
        request = DrainRequest(sensor="another", budget=5)
        assert [line async for line in functions.drain(process, request)] == []


@pytest.mark.conformance("BUS-S12")
async def test_topics_that_are_not_there_are_named(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """BUS-S12: all of them at once, and nothing is made by the way."""
    world = SensorWorld(kafka, topic)
    gone = {"trigger_topic": "gone-trigger", "action_topic": "gone-action"}
    sensor = world.sensor({"t": "a"}).model_copy(update=gone)
    async with functions.sensor(sensor, tmp_path / "log") as process:
        await process.ready()
        request = DrainRequest(idle=1, budget=30, slot=0)
        progress = [line async for line in functions.drain(process, request)]
        assert progress[-1].ended is Ended.FAILED
        assert (progress[-1].error or "").startswith("missing topics: gone-trigger, gone-action;")
        await process.terminate()
