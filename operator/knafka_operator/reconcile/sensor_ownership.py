"""Sensor ownership: which topics and which consumer group are a Sensor's, whatever its status says.

    topic   Kafka's id of it is the one that the status keeps; without one, nothing was ever written
            to it, and no other Sensor's status names it
    group   its name ends in a digest of the Sensor's, or it has offsets on the Sensor's own trigger
            topic; an application's group of the usual name has none

Not here: what they are called (`decide.sensor_topics`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from knafka.core import names
from knafka.core.errors import KnafkaError
from knafka_operator.decide.sensor_topics import TOPICS, TRIGGER
from knafka_operator.model.cluster import Document
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import GROUP_STATUS
from knafka_operator.model.sensors import Bus, bus_of
from knafka_operator.reconcile.ownership import annotations_of
from knafka_operator.reconcile.state import SensorRecord, States
from knafka_operator.reconcile.topics import is_used
from knafka_operator.scale.kafka_clusters import KafkaCluster


@dataclass(eq=False, slots=True)
class SensorOwnership:
    """Judges what Sensors' statuses name."""

    states: States

    async def group_is_foreign(
        self, record: SensorRecord, annotations: Mapping[str, str], kafka: KafkaCluster
    ) -> bool:
        """Whether there is a consumer group of its usual name that isn't its own, as far as is
        known; asked until it is known once. Raises `LogError`."""
        usual, kept = _usual_group(record), annotations.get(GROUP_STATUS)
        if record.group_is_proved or kept not in (None, usual):
            return False
        if not await kafka.topics.has_group(usual):
            return False
        record.group_is_proved = kept is not None and await _proves(kafka, usual, annotations)
        return not record.group_is_proved

    async def may_delete(self, record: SensorRecord, group: str, kafka: KafkaCluster) -> bool:
        """Whether a group that its status names is its own; raises `LogError`."""
        if group != _usual_group(record):
            return True  # nobody else's: its name ends in a digest of the Sensor's
        if self.is_claimed(record, group):
            return False
        return await _proves(kafka, group, annotations_of(record.document))

    async def disputed(
        self,
        annotations: Mapping[str, str],
        topics: Mapping[str, Any] | KnafkaError,
        kafka: KafkaCluster,
        record: SensorRecord,
    ) -> frozenset[str]:
        """Those that are there, and of which its status has no id, unless nothing was written to
        them and no other Sensor's status names them."""
        if isinstance(topics, KnafkaError):
            return frozenset()
        asked = [
            topic
            for name, id_ in TOPICS.values()
            if (topic := annotations.get(name)) and not annotations.get(id_) and topics.get(topic)
        ]
        return frozenset(
            [each for each in asked if self.is_claimed(record, each)]
            + [each for each in asked if await is_used(kafka.topics, each)]
        )

    def is_claimed(self, record: SensorRecord, name: str) -> bool:
        """Whether another Sensor's status names this topic or group, and can."""
        others = (each for each in self.states.sensors.values() if each.uid != record.uid)
        return any(name in kept_names(each.document) for each in others)


def _usual_group(record: SensorRecord) -> str:
    sensor = Identity.of(record.document)
    return names.sensor_group(sensor.namespace, record.bus.family.own_name(sensor.name))


async def _proves(kafka: KafkaCluster, group: str, annotations: Mapping[str, str]) -> bool:
    """Whether a group is a Sensor's: only its own has offsets on its trigger topic, which is
    known by its id. Raises `LogError`."""
    name, id_ = TOPICS[TRIGGER]
    if not (topic := annotations.get(name)):
        return False
    found = await kafka.topics.describe_topic(topic)
    if found is None or found.id != annotations.get(id_):
        return False
    return await kafka.topics.has_committed(group, topic)


def kept_names(document: Document) -> set[str]:
    """Its topics and its group, of those that its status names the ones that can be its own."""
    annotations = annotations_of(document)
    identity, bus = Identity.of(document), bus_of(document)
    own_name = bus.family.own_name(bus.who.name)
    found = {
        topic
        for what, (key, _) in TOPICS.items()
        if (topic := annotations.get(key))
        and names.is_sensor_topic(topic, identity.namespace, own_name, identity.name, what)
    }
    group = annotations.get(GROUP_STATUS)
    return found | ({group} if group and is_group(group, bus, identity) else set())


def is_group(name: str, bus: Bus, sensor: Identity) -> bool:
    """Whether a Sensor on this bus can have this consumer group."""
    return names.is_sensor_group(name, sensor.namespace, bus.family.own_name(sensor.name))
