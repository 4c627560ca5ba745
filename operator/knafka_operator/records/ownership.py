"""Ownership: decides which object owns the topic or group that one or more statuses name.

Names are joined with dashes, so `a` with `b-c` and `a-b` with `c` get the same name. In memory the
first object seen claims a name; after a restart that may be an object into whose status somebody
wrote a foreign name. So if two objects claim a name, Kafka decides: by a topic's id, or a group's
offsets on the object's own topic. Nothing is deleted that another status also names.

A Sensor owns, whatever its status says:

    topic   its id in Kafka is the one in the status; without an id in the status, it never had
            records and no other Sensor's status names it
    group   its name ends in the Sensor's digest, or it has offsets on the Sensor's own trigger
            topic; an application's group of the usual name has none

KafkaChannels' and Subscriptions' names never collide. Not here: making names (`kafka.desired`,
`sensors.topics`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from knafka.core import names
from knafka.core.errors import InvalidDocument, KnafkaError, LogError
from knafka_operator.installation.naming import NamedObject, NameKind
from knafka_operator.kafka.clusters import KafkaCluster
from knafka_operator.kafka.topic_creation import has_records
from knafka_operator.kafka.topics import TOPIC_ID
from knafka_operator.model.cluster import Cluster, Document, status_annotations
from knafka_operator.model.family import BROKERS, CHANNELS
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import GROUP_STATUS, TOPIC_STATUS
from knafka_operator.model.sensors import TOPICS, TRIGGER, Bus, bus_of
from knafka_operator.records.state import (
    BrokerRecord,
    BrokerState,
    SensorRecord,
    States,
    TriggerRecord,
    group_in_status,
    topic_in_status,
)


@dataclass(eq=False, slots=True)
class TopicOwnership:
    """Decides whether the topic in a Broker's status is the Broker's own."""

    cluster: Cluster
    states: States

    def is_brokers_name(self, topic: str | None, broker: Document) -> bool:
        """Whether the naming rules give this topic name to this Broker; False for None."""
        return self.states.naming.is_own(NameKind.BROKER_TOPIC, topic, NamedObject.of(broker))

    async def claim_if_proved(
        self, document: Document, record: BrokerRecord, taken: Container[str]
    ) -> None:
        """Claim the topic in a Broker's status for this Broker, instead of another one that has
        claimed it, if the topic in Kafka has the id that the status records. Does nothing for a
        topic that isn't in `taken`, the topics that others have claimed. `record` is this Broker's,
        and has its Kafka. Raises `LogError`."""
        topic = topic_in_status(document)
        if topic is None or topic not in taken:
            return
        recorded_id = status_annotations(document).get(TOPIC_ID)
        if not recorded_id or not self.is_brokers_name(topic, document):
            return
        assert record.kafka is not None
        existing = await record.kafka.topics.describe_topic(topic)
        if existing is not None and existing.id == recorded_id:
            self.states.claim_topic(record, topic)

    async def is_claimed(self, identity: Identity, topic: str) -> bool:
        """Whether the status of another Broker than `identity` names this topic. Raises
        `ClusterError`."""
        kind, key = (BROKERS.broker_version, BROKERS.broker), TOPIC_STATUS
        return await _is_named_by_others(self.cluster, kind, names.BROKERS, identity, key, topic)


@dataclass(eq=False, slots=True)
class GroupOwnership:
    """Decides whether the consumer group in a Trigger's status is the Trigger's own."""

    cluster: Cluster
    states: States

    async def claim_if_proved(
        self,
        document: Document,
        record: TriggerRecord,
        taken: Container[str],
        broker: BrokerState,
    ) -> None:
        """Claim the consumer group in a Trigger's status for this Trigger, instead of another one
        that has claimed it, if the group has offsets on the topic of this Trigger's Broker, or
        Kafka doesn't answer. Does nothing for a group that isn't in `taken`, the groups that others
        have claimed."""
        group = group_in_status(document, self.states.naming)
        if group is None or group not in taken:
            return
        try:
            is_own = await broker.kafka.topics.has_committed(group, broker.topic.name)
        except LogError:
            is_own = True  # keep the group: with another one the Trigger would miss events
        if is_own:
            self.states.claim_group(record, group)

    async def find_foreign_groups(self, document: Document, broker: BrokerState) -> frozenset[str]:
        """Return, as a set, the group name that the installation's template gives to this Trigger,
        if a group of that name exists and has no offsets on the Broker's topic. Such a group
        belongs to an application and must not be deleted.

        The set is empty if no such group exists. It is also empty for a Subscription, with the
        default template (only Triggers have its names), if the status names a group already, if the
        template gives an unusable name, and if Kafka doesn't answer.
        """
        kind, naming = NameKind.TRIGGER_GROUP, self.states.naming
        if self.states.family is CHANNELS or naming.is_default(kind):
            return frozenset()
        if status_annotations(document).get(GROUP_STATUS):
            return frozenset()  # `claim_if_proved` decides about the group in the status
        try:
            group = naming.name(kind, NamedObject.of(document))
            topics = broker.kafka.topics
            if not await topics.has_group(group):
                return frozenset()
            is_own_group = await topics.has_committed(group, broker.topic.name)
        except (InvalidDocument, LogError):
            return frozenset()  # the effect that creates the group reports the error
        return frozenset() if is_own_group else frozenset({group})

    async def is_claimed(self, trigger: Identity, group: str) -> bool:
        """Whether the status of another Trigger than `trigger` names this group. Raises
        `ClusterError`."""
        family = self.states.family
        if family is CHANNELS:
            return False  # a Subscription's group name contains its UID
        kind, key = (family.trigger_version, family.trigger), GROUP_STATUS
        return await _is_named_by_others(self.cluster, kind, names.TRIGGERS, trigger, key, group)


async def _is_named_by_others(
    cluster: Cluster, kind: tuple[str, str], prefix: str, identity: Identity, key: str, name: str
) -> bool:
    """Whether the status of an object of this kind (apiVersion and kind), other than `identity`,
    names the topic or group `name` in the annotation `key`. Raises `ClusterError`.

    Reads stored objects, since the claims in memory depend on the order after a restart. A name
    that begins with `prefix` is the default template's: only a few objects can have it, and only
    these are read. Any other name may be any object's, so all are listed.
    """
    if not name.startswith(prefix):
        for document in await cluster.list(*kind):
            annotations = status_annotations(document)
            if annotations.get(key) == name and Identity.of(document) != identity:
                return True
        return False
    for candidate in names.possible_splits(name.removeprefix(prefix)):
        if candidate != identity and (stored := await cluster.get(*kind, *candidate)) is not None:
            if status_annotations(stored).get(key) == name:
                return True
    return False


@dataclass(eq=False, slots=True)
class SensorOwnership:
    """Decides whether topics and groups in Sensors' statuses are the Sensors' own."""

    states: States

    async def is_group_foreign(
        self, record: SensorRecord, annotations: Mapping[str, str], kafka: KafkaCluster
    ) -> bool:
        """Whether the Sensor's usual consumer group already exists and nothing proves that it is
        the Sensor's. `annotations` are those of the Sensor's status; False if they name another
        group. Records a proof in `record`, so that Kafka isn't asked again. Raises `LogError`."""
        usual_group, recorded_group = _usual_group(record), annotations.get(GROUP_STATUS)
        if record.group_is_proved or recorded_group not in (None, usual_group):
            return False
        if not await kafka.topics.has_group(usual_group):
            return False
        record.group_is_proved = recorded_group is not None and await _is_group_proved(
            kafka, usual_group, annotations
        )
        return not record.group_is_proved

    async def may_delete(self, record: SensorRecord, group: str, kafka: KafkaCluster) -> bool:
        """Whether `group`, which a Sensor's status names, may be deleted with the Sensor, as it is
        the Sensor's own. `kafka` is only asked if the name and the claims of others don't decide
        that. Raises `LogError`."""
        if group != _usual_group(record):
            return True  # no other owner is possible: the name ends in the Sensor's digest
        if self.is_claimed(record, group):
            return False
        return await _is_group_proved(kafka, group, status_annotations(record.document))

    async def find_disputed_topics(
        self,
        annotations: Mapping[str, str],
        topics: Mapping[str, Any] | KnafkaError,
        kafka: KafkaCluster,
        record: SensorRecord,
    ) -> frozenset[str]:
        """Return the topics that may be somebody else's: they exist, the Sensor's status
        (`annotations`) names them without an id, and they have records or another Sensor's status
        names them, too. `topics` has the existing topics by name, or the error of reading them,
        for which the result is empty. Raises `LogError`."""
        if isinstance(topics, KnafkaError):
            return frozenset()
        topics_without_id = [
            topic
            for name_key, id_key in TOPICS.values()
            if (topic := annotations.get(name_key))
            and not annotations.get(id_key)
            and topics.get(topic)
        ]
        claimed = {topic for topic in topics_without_id if self.is_claimed(record, topic)}
        filled = {topic for topic in topics_without_id if await has_records(kafka.topics, topic)}
        return frozenset(claimed | filled)

    def is_claimed(self, record: SensorRecord, name: str) -> bool:
        """Whether another Sensor's status names this topic or group, which may be that Sensor's own
        (`names_in_status`)."""
        others = (other for other in self.states.sensors.values() if other.uid != record.uid)
        return any(name in names_in_status(other.document) for other in others)


def _usual_group(record: SensorRecord) -> str:
    """Return the consumer group that a Sensor has unless its status names another."""
    sensor = Identity.of(record.document)
    return names.sensor_group(sensor.namespace, record.bus.family.own_name(sensor.name))


async def _is_group_proved(kafka: KafkaCluster, group: str, annotations: Mapping[str, str]) -> bool:
    """Whether a group has offsets on a Sensor's trigger topic, which proves that it is the
    Sensor's. `annotations` are those of the Sensor's status; False unless Kafka's topic has the id
    in them. Raises `LogError`."""
    name_key, id_key = TOPICS[TRIGGER]
    if not (topic := annotations.get(name_key)):
        return False
    description = await kafka.topics.describe_topic(topic)
    if description is None or description.id != annotations.get(id_key):
        return False
    return await kafka.topics.has_committed(group, topic)


def names_in_status(document: Document) -> set[str]:
    """Return the topics and the group that a Sensor's status names, leaving out names that the
    naming rules can't give to this Sensor."""
    annotations = status_annotations(document)
    identity, bus = Identity.of(document), bus_of(document)
    own_name = bus.family.own_name(bus.identity.name)
    own_topics = {
        topic
        for role, (key, _) in TOPICS.items()
        if (topic := annotations.get(key))
        and names.is_sensor_topic(topic, identity.namespace, own_name, identity.name, role)
    }
    group = annotations.get(GROUP_STATUS)
    return own_topics | ({group} if group and may_have_group(group, bus, identity) else set())


def may_have_group(name: str, bus: Bus, sensor: Identity) -> bool:
    """Whether a Sensor on this bus can have a consumer group of this name."""
    return names.is_sensor_group(name, sensor.namespace, bus.family.own_name(sensor.name))
