"""Actions: Triggers (on a KafkaChannel, Subscriptions) that deliver a Sensor's firings instead of
the Broker's events. Pure.

A Sensor reads the events of its bus, a Broker or KafkaChannel. When the condition of one of its
triggers holds, the trigger fires: the Sensor writes an event, the firing, to its action topic.

A Trigger that delivers firings is annotated with the Sensor's name, and the Sensor, by its UID, is
its controller. A Trigger with only one of the two delivers nothing, so that an annotation alone
gives no access to a topic. The topic is named by the Sensor's status, which only the operator
writes. A Trigger's name is built from the names of the Sensor and of the Sensor's trigger whose
firings it delivers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from knafka.core import names
from knafka_operator.decisions.status import NotReady
from knafka_operator.kafka.desired import SensorActions
from knafka_operator.model.family import family_of
from knafka_operator.model.sensors import ACTION, KNAFKA, SENSOR, SENSOR_NAME_KEY, Sensor
from knafka_operator.records.delivery import BrokerState
from knafka_operator.sensors.topics import desired_topics, recorded_topic

K = TypeVar("K")
"""The type of a connection to Kafka, which is never used here."""


def sensor_name_of(trigger: Mapping[str, Any]) -> str | None:
    """Return the name of the Sensor whose actions a stored Trigger delivers, by the Trigger's
    annotation. None: it delivers its Broker's events. Empty: a Sensor owns the Trigger, but the
    annotation is missing, so it may deliver nothing."""
    name = (trigger["metadata"].get("annotations") or {}).get(SENSOR_NAME_KEY)
    if name is None and _controlling_sensor(trigger) is not None:
        return ""
    return None if name is None else str(name)


def owning_sensor(trigger: Mapping[str, Any]) -> str | None:
    """Return the name of the Sensor that made a Trigger, whatever the Trigger's annotation says
    now; None: no Sensor made it."""
    reference = _controlling_sensor(trigger)
    return None if reference is None else str(reference["name"])


def actions_for_trigger(
    trigger: Mapping[str, Any],
    sensor: Sensor | None,
    broker: BrokerState[K],
    *,
    enabled: bool,
) -> SensorActions:
    """Return which actions a Trigger delivers: the Sensor's action topic, and the Sensor's trigger
    whose firings are delivered. Raises `NotReady` if the Trigger may not deliver them.

    `sensor` is the Sensor that the Trigger's annotation names (None: it doesn't exist), `broker`
    the state of the Trigger's Broker; `enabled`: whether the installation serves Sensors.
    """
    if not enabled:
        raise NotReady("SensorsDisabled", "KNAFKA_SENSORS is not enabled: Sensors don't run here")
    controller = _controlling_sensor(trigger)
    if sensor is None or controller is None or controller.get("uid") != sensor.metadata.uid:
        raise NotReady(
            "SensorNotOurs",
            f"the annotation {SENSOR_NAME_KEY} is for {trigger['kind']}s that a Sensor of that "
            "name has made, which this one isn't: remove it",
        )
    kind, bus = broker.broker.kind, sensor.bus
    if (bus.family, bus.identity.name) != (family_of(kind), broker.broker.metadata.name):
        raise NotReady("SensorNotOurs", f"its Sensor is on {bus}")
    trigger_name, sensor_name = trigger["metadata"]["name"], sensor.metadata.name
    matching_triggers = [
        sensor_trigger.name
        for sensor_trigger in sensor.spec.triggers
        if names.sensor_trigger(sensor_name, sensor_trigger.name) == trigger_name
    ]
    if not matching_triggers:
        message = f"Sensor {sensor_name} has no trigger whose actions {trigger_name} could deliver"
        raise NotReady("SensorNotOurs", message)
    annotations = sensor.status.annotations
    if recorded_topic(sensor, ACTION, annotations) is None:
        message = f"Sensor {sensor_name} has no topics yet"
        raise NotReady("SensorNotReady", message, transient=True)
    # Neither existing topics nor other Sensors' names matter, as the status records the name.
    topic = desired_topics(sensor, broker, annotations, {}, frozenset())[ACTION]
    return SensorActions(topic, matching_triggers[0])


def _controlling_sensor(trigger: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the owner reference to the Sensor that controls a Trigger; None: it has none."""
    owner_references: Sequence[Mapping[str, Any]] = trigger["metadata"].get("ownerReferences") or ()
    for owner_reference in owner_references:
        owner_kind = owner_reference.get("apiVersion"), owner_reference.get("kind")
        if owner_reference.get("controller") and owner_kind == (KNAFKA, SENSOR):
            return owner_reference
    return None
