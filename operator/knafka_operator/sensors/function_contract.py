"""Function contract: builds the contract of a Sensor's function, which says what the function
reads, where it writes, and when it fires. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from knafka.core import names
from knafka.core.contract import Kafka
from knafka.core.sensor import contract
from knafka_operator.kafka import dead_letter_topics, desired
from knafka_operator.model.resources import GROUP_STATUS
from knafka_operator.model.sensors import ACTION, CHANGELOG, TOPICS, TRIGGER, Sensor
from knafka_operator.records.delivery import BrokerState
from knafka_operator.sensors import limits as sensor_limits

K = TypeVar("K")
"""The type of a connection to Kafka, which is never used here."""


def function_contract(
    sensor: Sensor, broker: BrokerState[K], annotations: Mapping[str, str]
) -> contract.SensorContract:
    """Return the contract of the function of a Sensor on the bus `broker`. `annotations` are those
    of the Sensor's status, and must name its topics and its group. Raises `InvalidDocument` for an
    invalid annotation of the Sensor."""
    limits = sensor_limits.held_limits(sensor)
    kafka: Kafka = broker.defaults.kafka
    namespace, bus = sensor.metadata.namespace, sensor.bus.family.own_name(sensor.bus.identity.name)
    # The declared triggers have more fields, such as a subscriber, which the function doesn't need.
    trigger_fields = contract.SensorTrigger.model_fields
    return contract.SensorContract(
        namespace=namespace,
        name=sensor.metadata.name,
        generation=sensor.metadata.generation,
        kafka=kafka,
        topic=broker.topic.name,
        group=annotations[GROUP_STATUS],
        trigger_topic=annotations[TOPICS[TRIGGER][0]],
        changelog_topic=annotations[TOPICS[CHANGELOG][0]],
        action_topic=annotations[TOPICS[ACTION][0]],
        bus=bus,
        dead_letter_topic=names.dead_letter_topic(
            namespace, bus, names.of_sensor(sensor.metadata.name)
        ),
        dead_letter_settings=dead_letter_topics.dead_letter_topic_settings(
            broker.topic.config,
            # The replication of an external topic isn't known here: -1 is Kafka's default.
            -1 if broker.topic.external else broker.topic.replication,
            desired.max_record_bytes(broker.topic.config),
            dead_letter_topics.effective_retention(
                broker.defaults.dead_letter_retention, sensor.metadata.annotations
            ),
        ),
        grace=sensor.spec.grace,
        max_held_keys=limits.keys,
        max_held_bytes=limits.bytes,
        dedupe=sensor.spec.dedupe,
        dependencies=sensor.spec.dependencies,
        triggers=tuple(
            contract.SensorTrigger(**{field: getattr(trigger, field) for field in trigger_fields})
            for trigger in sensor.spec.triggers
        ),
    )
