"""Actions: Triggers that deliver what a Sensor has fired, in place of its Broker's events; on a
KafkaChannel Subscriptions. Pure.

Such a Trigger is annotated with the Sensor's name, and the Sensor, by its UID, is its controller.
What has one of both and not the other delivers nothing: nobody reads a topic by an annotation. The
topic is the one that the Sensor's status names, which only the operator writes. Of what is there a
Trigger gets what that trigger has fired whose name its own is made from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from knafka.core import names
from knafka_operator.decide.desired import Actions
from knafka_operator.decide.sensor_topics import ACTION, recorded, topics
from knafka_operator.decide.status import NotReady
from knafka_operator.decide.trigger import BrokerState
from knafka_operator.model.family import family_of
from knafka_operator.model.sensors import KNAFKA, OF_SENSOR, SENSOR, Sensor

K = TypeVar("K")


def sensor_of(trigger: Mapping[str, Any]) -> str | None:
    """The name of the Sensor whose actions a Trigger, as it is stored, is to deliver; empty: of one
    that it doesn't name; None: it delivers its Broker's events."""
    name = (trigger["metadata"].get("annotations") or {}).get(OF_SENSOR)
    if name is None and _controller(trigger) is not None:
        return ""
    return None if name is None else str(name)


def actions(
    trigger: Mapping[str, Any],
    sensor: Sensor | None,
    broker: BrokerState[K],
    *,
    enabled: bool,
) -> Actions:
    """What such a Trigger delivers; raises `NotReady`, whose message says why it may not.

    `sensor` is the one of that name in its own namespace; None: there is none.
    """
    if not enabled:
        raise NotReady("SensorsDisabled", "KNAFKA_SENSORS is not enabled: Sensors don't run here")
    controller = _controller(trigger)
    if sensor is None or controller is None or controller.get("uid") != sensor.metadata.uid:
        raise NotReady(
            "SensorNotOurs",
            f"the annotation {OF_SENSOR} is for {trigger['kind']}s that a Sensor of that name has "
            "made, and this one has not: remove it",
        )
    kind, bus = broker.broker.kind, sensor.bus
    if (bus.family, bus.who.name) != (family_of(kind), broker.broker.metadata.name):
        raise NotReady("SensorNotOurs", f"its Sensor is on {bus}")
    mine, of_sensor = trigger["metadata"]["name"], sensor.metadata.name
    fired_by = [
        each.name
        for each in sensor.spec.triggers
        if names.sensor_trigger(of_sensor, each.name) == mine
    ]
    if not fired_by:
        message = f"Sensor {of_sensor} has no trigger whose actions {mine} could deliver"
        raise NotReady("SensorNotOurs", message)
    annotations = sensor.status.annotations
    name = recorded(sensor, ACTION, annotations)
    if name is None:
        message = f"Sensor {of_sensor} has no topics yet"
        raise NotReady("SensorNotReady", message, transient=True)
    topic = topics(sensor, broker, annotations, {}, frozenset())[ACTION]
    return Actions(topic, fired_by[0])


def _controller(trigger: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The Sensor that is its controller, as it refers to that."""
    for each in trigger["metadata"].get("ownerReferences") or ():
        if each.get("controller") and (each.get("apiVersion"), each.get("kind")) == (
            KNAFKA,
            SENSOR,
        ):
            found: Mapping[str, Any] = each
            return found
    return None
