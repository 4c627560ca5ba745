"""Drains of Sensors on a cluster in memory: what wakes and ends them, and what they report."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.operator_world import condition
from support.sensors_world import BUS, ID, SensorsWorld, ready_sensor, spec, store
from support.waiting import until

from knafka.core import names
from knafka.core.drain import DrainProgress, Holding, Waiting
from knafka.core.sensor.contract import MAX_HELD_KEYS
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import AUTOSCALING, PAUSED_ANNOTATION
from knafka_operator.scale.decide import Scale, ScalingStatus
from knafka_operator.scale.scaled_groups import sum_progress
from knafka_operator.sensors import scaling as sensor_scaling
from knafka_operator.sensors.limits import MAX_HELD_BYTES_ANNOTATION, MAX_HELD_KEYS_ANNOTATION
from knafka_operator.sensors.publishing import SensorPublishing


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
    assert world.inner.operator.sensors.scaled_sensors() == {}


async def test_a_paused_sensor_has_no_function_and_its_events_wait(world: SensorsWorld) -> None:
    await woken(world)
    world.declare(annotations={PAUSED_ANNOTATION: "true"}, **spec())
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


@pytest.mark.parametrize(
    ("reasons", "reason", "says"),
    [
        ({"record-too-large": 2}, "DeadLettered", "2 record-too-large"),
        ({"state-full": 5, "internal-error": 1}, "StateFull", "raise knafka.dev/max-held-keys"),
    ],
)
async def test_its_status_says_what_it_could_not_handle(
    reasons: dict[str, int], reason: str, says: str, world: SensorsWorld
) -> None:
    world.inner.drains.sensor_letters = reasons
    await woken(world)
    operator = world.inner.operator
    publishing = SensorPublishing(operator.cluster, operator.states, operator.queue)
    record = operator.states.sensors[Identity("shop", "paid")]
    assert record.scaled is not None
    kafka, _ = record.scaled

    def reported() -> bool:
        status = kafka.scaler.status(ID)
        return status is not None and status.counts.dead_letters == reasons

    await until(reported)
    await publishing.publish_all()
    await world.settle()
    assert world.says("DeadLetters") == ("False", reason)
    assert says in condition(world.status(), "DeadLetters")["message"]
    assert world.says("Ready") == ("True", ""), "it is a warning"


async def test_how_much_it_may_hold_is_declared_by_annotations(world: SensorsWorld) -> None:
    assert world.contract().max_held_keys == MAX_HELD_KEYS
    limits = {MAX_HELD_KEYS_ANNOTATION: "5", MAX_HELD_BYTES_ANNOTATION: "2000000"}
    world.declare(annotations=limits, **spec())
    await world.settle()
    contract = world.contract()
    assert (contract.max_held_keys, contract.max_held_bytes) == (5, 2_000_000)
    world.declare(annotations={MAX_HELD_BYTES_ANNOTATION: "5"}, **spec())
    await world.settle()
    assert world.says("FunctionReady") == ("False", "Invalid")


async def test_its_function_knows_where_its_dead_letters_go(world: SensorsWorld) -> None:
    contract = world.contract()
    topic = names.dead_letter_topic("shop", "default", "Sensor-paid")
    assert (contract.bus, contract.dead_letter_topic) == ("default", topic)
    assert contract.dead_letter_settings.config["cleanup.policy"] == "delete"
    assert contract.dead_letter_settings.config["retention.ms"] == str(30 * 86_400_000)


async def test_its_status_says_what_its_triggers_wait_for(world: SensorsWorld) -> None:
    held = Waiting(trigger="ship", partition=1, keys=1, since=60_000, has=("order",))
    world.inner.drains.holding = Holding(partitions=(1,), triggers=(held,))
    await woken(world)
    operator = world.inner.operator
    publishing = SensorPublishing(operator.cluster, operator.states, operator.queue)
    record = operator.states.sensors[Identity("shop", "paid")]
    assert record.scaled is not None
    kafka, _ = record.scaled
    await until(lambda: kafka.scaler.held_events(ID) is not None)
    await publishing.publish_all()
    (shown,) = world.status()["waiting"]
    at = "1970-01-01T00:01:00Z"
    oldest = [{"has": ["order"], "waitsFor": ["pay"], "since": at}]
    assert shown == {"trigger": "ship", "keys": 1, "since": at, "oldest": oldest}
    assert world.status()["annotations"]["knafka.dev/replicas"] == "1"
    writes = world.inner.cluster.requests["write_status"]
    world.inner.drains.holding = None
    await publishing.publish_all()
    assert world.inner.cluster.requests["write_status"] == writes, "once a minute at most"


def test_its_status_says_how_many_events_came_too_late() -> None:
    none = Scale(0, "")
    assert sensor_scaling.in_order_condition(None) is None
    assert (
        sensor_scaling.in_order_condition(ScalingStatus(0, 0, none, DrainProgress(), None)) is None
    )
    counted = sum_progress([DrainProgress(late=2)], [DrainProgress(late=1)])
    told = sensor_scaling.in_order_condition(ScalingStatus(0, 0, none, counted, None))
    assert told is not None
    assert (told.type, told.reason) == ("InOrder", "EventsCameLate")
    assert told.message.startswith("3 events came later than the Sensor's grace allows")
