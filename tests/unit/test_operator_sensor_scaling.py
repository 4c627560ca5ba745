"""Drains of Sensors on a cluster in memory: what wakes and ends them, and what they report."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.sensors_world import BUS, ID, SensorsWorld, ready_sensor, spec, store
from support.waiting import until

from knafka.core.drain import Holding, Waiting
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import AUTOSCALING, PAUSED
from knafka_operator.reconcile.sensor_publishing import SensorPublishing


@pytest.fixture
async def world() -> AsyncIterator[SensorsWorld]:
    async with ready_sensor() as world:
        yield world


async def woken(world: SensorsWorld) -> None:
    """Have an event wait for it until a drain is held."""
    store(world.inner.log, BUS, "order", "1")
    await until(lambda: world.inner.drains.held[ID] == 1)


async def test_an_event_of_its_bus_wakes_a_sensor(world: SensorsWorld) -> None:
    url = world.inner.operator.states.urls[ID]
    assert url == "http://paid-kn-sensor.shop.svc.cluster.local"
    await woken(world)
    world.declare(**spec(delivery={"retry": 1}))
    await world.settle()
    await until(lambda: world.inner.drains.held[ID] == 1)
    await world.delete()
    assert world.inner.drains.held[ID] == 0
    assert ID not in world.inner.operator.states.urls


async def test_a_broker_that_is_deleted_ends_the_drains_of_its_sensors(
    world: SensorsWorld,
) -> None:
    await woken(world)
    await world.inner.delete_broker("shop")
    assert world.inner.drains.held[ID] == 0
    assert world.inner.operator.sensors is not None
    assert world.inner.operator.sensors.scaled() == {}


async def test_a_paused_sensor_has_no_function_and_its_events_wait(world: SensorsWorld) -> None:
    await woken(world)
    world.declare(annotations={PAUSED: "true"}, **spec())
    await world.settle()
    assert world.inner.drains.held[ID] == 0
    assert "paid-kn-sensor" not in world.there("Service")
    assert world.says("Delivering") == ("False", "Paused")
    assert world.says("Ready") == ("True", "")
    world.declare(**spec())
    await world.settle()
    await until(lambda: world.inner.drains.held[ID] == 1)
    assert world.says("Delivering") == ("True", "")


async def test_scaling_that_cannot_be_read_is_told(world: SensorsWorld) -> None:
    world.declare(annotations={AUTOSCALING + "lag-threshold": "many"}, **spec())
    await world.settle()
    assert world.says("FunctionReady") == ("False", "Invalid")


async def test_its_status_says_what_its_triggers_wait_for(world: SensorsWorld) -> None:
    held = Waiting(trigger="ship", partition=1, keys=1, since=60_000, has=("order",))
    world.inner.drains.holding = Holding(partitions=(1,), triggers=(held,))
    await woken(world)
    operator = world.inner.operator
    publishing = SensorPublishing(operator.cluster, operator.states, operator.queue)
    record = operator.states.sensors[Identity("shop", "paid")]
    assert record.scaled is not None
    kafka, _ = record.scaled
    await until(lambda: kafka.sensors.holding(ID) is not None)
    await publishing.look()
    (shown,) = world.status()["waiting"]
    at = "1970-01-01T00:01:00Z"
    oldest = [{"has": ["order"], "waitsFor": ["pay"], "since": at}]
    assert shown == {"trigger": "ship", "keys": 1, "since": at, "oldest": oldest}
    assert world.status()["annotations"]["knafka.dev/replicas"] == "1"
    writes = world.inner.cluster.requests["write_status"]
    world.inner.drains.holding = None
    await publishing.look()
    assert world.inner.cluster.requests["write_status"] == writes, "once a minute at most"
