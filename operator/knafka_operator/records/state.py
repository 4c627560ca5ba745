"""State: the operator's records in memory of Brokers, Triggers and Sensors.

Each object has one record; indexes lead from names and references to the object's identity. A
deleted object's record and index entries are removed with it, so memory doesn't only grow.

Everything belongs to the event loop except `foreign_brokers`, which webhooks read from their
thread.

More than 400 lines, so that each record stands beside the indexes that must lose it with its
object.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from knafka.core import names
from knafka.core.sensor.contract import SensorContract
from knafka_operator.decisions.status import NotReady, is_ready
from knafka_operator.functions import services
from knafka_operator.functions.applying import Rolls
from knafka_operator.installation.naming import NamedObject, NameKind, Naming
from knafka_operator.kafka.clusters import KafkaCluster
from knafka_operator.kafka.contracts import SharedContractTopic
from knafka_operator.kafka.desired import PARTITIONS_KEY
from knafka_operator.kafka.shards import CONTRACT_TOPIC_KEY
from knafka_operator.model.channels import ChannelEntry
from knafka_operator.model.cluster import status_annotations
from knafka_operator.model.family import CHANNELS, Family, family_of
from knafka_operator.model.identity import Identity
from knafka_operator.model.isolation import Isolation
from knafka_operator.model.resources import GROUP_STATUS, TOPIC_STATUS
from knafka_operator.model.sensors import Bus
from knafka_operator.records import delivery
from knafka_operator.senders.policies import Policies

Document: TypeAlias = Mapping[str, Any]
"""A stored object as decoded JSON."""
BrokerState: TypeAlias = delivery.BrokerState[KafkaCluster]
Watched: TypeAlias = delivery.Watched[KafkaCluster]


@dataclass(eq=False, slots=True)
class BrokerRecord:
    """What the operator keeps in memory about one Broker or channel."""

    uid: str = ""
    state: BrokerState | None = None
    """The Broker as last observed, kept if a later observation fails; None: it has no topic yet."""
    reconciled: bool = False
    """Whether the Broker was reconciled since the operator started, unless the API server didn't
    answer; if not, `state` None doesn't mean that the Broker has no topic."""
    stopped: str | None = None
    """Why the Broker may not use its external topic, so that its Triggers don't deliver; None: it
    may."""
    kafka: KafkaCluster | None = None
    """The Kafka with the Broker's topic; kept because its ConfigMap and Secret may be deleted
    first."""
    reserved_partitions: int = 0
    """Partitions of the Broker's topic as it was created, or is to be; 0: not known, or refused."""
    topics: set[str] = field(default_factory=set)
    """Topic names that the Broker has claimed."""
    has_contract: bool = False
    """Whether the Broker's status names a contract topic, which exists or existed."""
    creating: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the contract topic is recorded and created."""
    contracts: dict[str, SharedContractTopic] = field(default_factory=dict)
    """The Broker's contracts by Kafka servers; mostly there is one."""
    url_keys: set[str] = field(default_factory=set)
    """Keys of the Broker's shards in `States.urls`: their groups."""
    shards: dict[int, ShardRecord] = field(default_factory=dict)
    """The shards whose Services were applied or found, by number."""
    shards_listed: bool = False
    """Whether `shards` includes those whose Services an earlier operator applied."""

    def drop_state(self) -> None:
        """Drop the state, so that no Trigger is delivered, but keep the Kafka of the topic in
        it: another one may be configured by now that never had the topic."""
        if self.state is not None:
            self.kafka, self.state = self.state.kafka, None

    def inputs_of_triggers(self) -> tuple[object, ...]:
        """Return everything in the record that decisions about the Broker's Triggers depend on. If
        two results differ, the Triggers must be reconciled."""
        problems = {number: str(shard.problem) for number, shard in self.shards.items()}
        return self.state, self.stopped, self.reconciled, problems


@dataclass(eq=False, slots=True)
class ShardRecord:
    """What the operator keeps in memory about a shard's Service."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the Service is applied or deleted."""
    manifest: Mapping[str, Any] | None = None
    """The Service as last applied; None: not known."""
    problem: NotReady | None = None
    """Why the Service isn't Ready; None: it is Ready."""
    applied_at: float = -math.inf
    """When the Service was last applied, successfully or not, by the event loop's clock."""
    empty_since: float | None = None
    """Since when the shard has no Triggers, by the event loop's clock; None: it has some, or wasn't
    checked."""


@dataclass(eq=False, slots=True)
class TriggerRecord:
    """What the operator keeps in memory about one Trigger, Subscription or KafkaSource."""

    document: Document | None = None
    """The latest document from the watch; None: not known yet, or the object was deleted."""
    uid: str = ""
    broker: Identity | None = None
    """The Broker or channel that `document` refers to; None: there is no document."""
    watched: Watched | None = None
    """The running delivery; None: nothing is delivered."""
    granted_min_scale: int = 0
    """The min-scale with which the Trigger's Service was last applied, or is to be. It stays
    granted while the Service may exist, also if nothing is delivered."""
    may_have_old_pods: bool = False
    """Whether pods of an older Revision of the Trigger's Service may still deliver."""
    kafka: KafkaCluster | None = None
    """The Kafka with the Trigger's group; kept because its Broker may be deleted first, and a later
    Trigger of the same name would use a group that stayed."""
    groups: set[str] = field(default_factory=set)
    """Consumer group names that the Trigger has claimed."""
    references: set[Identity] = field(default_factory=set)
    """Objects that the Trigger refers to as subscriber, reply or dead letter sink."""
    published: tuple[object, float] = (None, -math.inf)
    """The scaling state last written to the Trigger's status, and when that was, by the event
    loop's clock."""
    chosen_isolation: Isolation | None = None
    """The isolation chosen for a Trigger that declares `auto`, `OWN` or `SHARED`; None: the Trigger
    doesn't declare `auto`, or none was chosen yet."""
    checked: Document | None = None
    """The document for which `published` was last checked."""
    subscribed: ChannelEntry | None = None
    """A Subscription's entries in its channel; None: they aren't known, or the object isn't a
    Subscription."""
    gone: bool = False
    """Whether the object was deleted; the record is dropped once its drains have ended."""


@dataclass(eq=False, slots=True)
class SensorRecord:
    """What the operator keeps in memory about one Sensor."""

    uid: str
    bus: Bus
    document: Document
    """The latest document from the watch."""
    kafka: KafkaCluster | None = None
    """The Kafka with the Sensor's topics; kept because its bus may be deleted first."""
    scaled: tuple[KafkaCluster, SensorContract] | None = None
    """Kafka and contract with which the Sensor is scaled; None: it isn't scaled."""
    names: set[str] = field(default_factory=set)
    """Names of topics and consumer groups that the Sensor has claimed."""
    group_is_proved: bool = False
    """Whether the group in the Sensor's status has offsets in Kafka that prove it is the Sensor's
    own."""

    @property
    def id(self) -> str:
        """The id by which the scaler and `States.urls` know the Sensor."""
        return f"Sensor {Identity.of(self.document)}"


class States:
    """The records of a family's objects, and the indexes to find them."""

    def __init__(self, family: Family, rolls: Rolls, naming: Naming) -> None:
        """`rolls` limits how many functions get a new Revision at a time; `naming` has the
        installation's templates of topic and group names. All families share both."""
        self.family = family
        self.naming = naming
        self.rolls = rolls
        self.brokers: dict[Identity, BrokerRecord] = {}
        self.triggers: dict[Identity, TriggerRecord] = {}
        self.sensors: dict[Identity, SensorRecord] = {}
        self.sensors_by_bus: dict[Bus, set[Identity]] = {}
        self.sensor_uid_by_name: dict[str, str] = {}
        """UID of the Sensor that has claimed a name, by the name of the topic or consumer group."""
        self.foreign_brokers: set[Identity] = set()
        """Brokers that other implementations serve."""
        self.declarations: dict[tuple[str, str, str], Document] = {}
        """What each Broker and Trigger declares: the latest document from its watch, without the
        status, by kind, namespace and name."""
        self.topics: dict[str, str] = {}
        """UID of the Broker that has claimed a topic, by the topic's name; external topics aren't
        claimed."""
        self.groups: dict[str, str] = {}
        """UID of the Trigger that has claimed a consumer group, by the group's name."""
        self.triggers_by_broker: dict[Identity, set[Identity]] = {}
        self.brokers_by_label: dict[tuple[str, str], Identity] = {}
        """The Broker of a receiver, by namespace and label value of the receiver's pods
        (`_receiver_label`)."""
        self.triggers_by_reference: dict[Identity, set[Identity]] = {}
        """The Triggers that refer to an object as subscriber, reply or dead letter sink, by the
        object."""
        self.receiver_pods: dict[tuple[str, str], set[str]] = {}
        """UIDs of the existing receiver pods, by their namespace and label value."""
        self.receiver_pods_known = False
        """Whether `receiver_pods` is complete; until then any Broker may have a receiver pod."""
        self.policies = Policies()
        """All EventPolicies, shared by Brokers and channels."""
        self.urls: dict[str, str] = {}
        """URLs of functions to which drain requests are sent: of a dispatcher by the scaler's id of
        its Trigger, of a shard by its group."""

    def ensure_broker(self, document: Document) -> BrokerRecord:
        """Return the record of a Broker, and create it if there is none for the Broker's UID. The
        record of an earlier object of that name is dropped."""
        identity, uid = Identity.of(document), document["metadata"].get("uid", "")
        record = self.brokers.get(identity)
        if record is not None and record.uid not in ("", uid):
            self.drop_broker(identity)
            record = None
        if record is None:
            record = self.brokers[identity] = BrokerRecord(uid)
            if not self.family.centralized:  # a channel has no receiver of its own
                self.brokers_by_label[_receiver_label(identity)] = identity
        record.has_contract = record.has_contract or has_contract(document)
        return record

    def broker_state(self, identity: Identity) -> BrokerState | None:
        """Return the state of a Broker; None: the Broker is unknown, or has no topic yet."""
        record = self.brokers.get(identity)
        return None if record is None else record.state

    def track_receiver_pod(self, pod: Document, *, gone: bool) -> BrokerState | None:
        """Record that a receiver's pod exists or, if `gone`, was deleted. Returns the state of the
        receiver's Broker; None: it isn't known, or the receiver isn't a Broker's."""
        metadata = pod["metadata"]
        uid, labels = metadata.get("uid", ""), metadata.get("labels") or {}
        label = metadata["namespace"], labels.get(services.BROKER_LABEL, "")
        pods = self.receiver_pods.setdefault(label, set())
        if gone:
            pods.discard(uid)
        else:
            pods.add(uid)
        if not pods:
            del self.receiver_pods[label]
        broker = self.brokers_by_label.get(label)
        return None if broker is None else self.broker_state(broker)

    def unwritten_topics(self, kafka: KafkaCluster) -> set[str]:
        """Return the names of topics in `kafka` that get no events now, as no receiver pod of their
        Broker runs; external topics are left out. Empty until all pods are known."""
        if not self.receiver_pods_known:
            return set()
        return {
            state.topic.name
            for label, broker in self.brokers_by_label.items()
            if label not in self.receiver_pods
            and (state := self.broker_state(broker)) is not None
            and state.kafka is kafka
            and not state.topic.external
        }

    def claim_topic(self, record: BrokerRecord, topic: str) -> None:
        """Reserve a topic name for the Broker of `record`, even if another one has claimed it."""
        self.topics[topic] = record.uid
        record.topics.add(topic)

    def set_shard_url(self, broker: Identity, group: str, url: str) -> None:
        """Record the URL of a Broker's shard under the shard's consumer group, until the Broker is
        dropped."""
        self.urls[group] = url
        if (record := self.brokers.get(broker)) is not None:
            record.url_keys.add(group)

    def drop_broker(self, identity: Identity) -> None:
        """Forget a Broker, and release its topic names; nothing in Kafka is deleted."""
        record = self.brokers.pop(identity, None)
        if record is not None:
            self.brokers_by_label.pop(_receiver_label(identity), None)
            for topic in record.topics:
                if self.topics.get(topic) == record.uid:
                    del self.topics[topic]
            for group in record.url_keys:
                self.urls.pop(group, None)

    def ensure_trigger(self, document: Document) -> TriggerRecord:
        """Return the record of a Trigger, and create it if there is none. The record of an earlier
        object of that name is kept, as its drains must still end, but releases its groups."""
        identity, uid = Identity.of(document), document["metadata"].get("uid", "")
        record = self.triggers.get(identity)
        if record is None:
            record = self.triggers[identity] = TriggerRecord(uid=uid)
            # An earlier operator may have ended while the Trigger's pods were replaced.
            was_delivered = GROUP_STATUS in status_annotations(document)
            record.may_have_old_pods = was_delivered and not is_ready(document)
        elif record.uid != uid:
            self._release_groups(record)
            record.uid, record.granted_min_scale = uid, 0
        return record

    def store_trigger(self, document: Document) -> TriggerRecord:
        """Update a Trigger's record from its stored document, and claim the group in its status if
        no other Trigger has; returns the record."""
        identity, record = Identity.of(document), self.ensure_trigger(document)
        self._remove_from_broker(identity, record)
        record.document, record.broker, record.gone = document, broker_of(document), False
        self.triggers_by_broker.setdefault(record.broker, set()).add(identity)
        group = group_in_status(document, self.naming)
        if group is not None and group not in self.groups:
            self.claim_group(record, group)
        return record

    def triggers_of(self, broker: Identity) -> list[Identity]:
        """Return namespace and name of each Trigger of a Broker."""
        return list(self.triggers_by_broker.get(broker, ()))

    def note_kafka(self, broker: Identity, kafka: KafkaCluster) -> None:
        """Note a Broker's Kafka in the records of its Triggers that name none yet: once the Broker
        is gone, only this says where their groups are."""
        for trigger in self.triggers_of(broker):
            record = self.triggers[trigger]
            record.kafka = record.kafka or kafka

    def claim_group(self, record: TriggerRecord, group: str) -> None:
        """Reserve a group name for the Trigger of `record`, even if another one has claimed it."""
        self.groups[group] = record.uid
        record.groups.add(group)

    def add_reference(self, trigger: Identity, referenced: Identity) -> None:
        """Record that a known Trigger refers to an object, whose changes then enqueue the
        Trigger."""
        record = self.triggers.get(trigger)
        if record is not None:
            record.references.add(referenced)
            self.triggers_by_reference.setdefault(referenced, set()).add(trigger)

    def clear_references(self, trigger: Identity) -> None:
        """Forget to which objects a Trigger refers, so that their changes no longer enqueue it."""
        if (record := self.triggers.get(trigger)) is None:
            return
        for referenced in record.references:
            referring = self.triggers_by_reference[referenced]
            referring.discard(trigger)
            if not referring:
                del self.triggers_by_reference[referenced]
        record.references.clear()

    def mark_trigger_gone(self, identity: Identity) -> None:
        """Record that a Trigger was deleted. Its record stays until its drains have ended; without
        drains it is dropped."""
        record = self.triggers.get(identity)
        if record is None:
            return
        self._remove_from_broker(identity, record)
        record.document, record.gone = None, True
        if record.watched is None:
            self.drop_trigger(identity)

    def drop_trigger(self, identity: Identity) -> None:
        """Forget a Trigger, and release its group names; nothing in Kafka is deleted."""
        self.clear_references(identity)
        record = self.triggers.pop(identity, None)
        self.urls.pop(self.family.trigger_id(identity), None)
        if record is not None:
            self._remove_from_broker(identity, record)
            self._release_groups(record)

    def ensure_sensor(self, document: Document, bus: Bus) -> SensorRecord:
        """Return the record of a Sensor, and create it if there is none for the Sensor's UID.
        Record that the Sensor reads `bus`."""
        identity, uid = Identity.of(document), document["metadata"].get("uid", "")
        record = self.sensors.get(identity)
        if record is None or record.uid != uid:
            scaled = self.drop_sensor(identity)  # its drains end before those of the new one begin
            record = self.sensors[identity] = SensorRecord(uid, bus, document, scaled=scaled)
        if record.bus != bus:
            self._remove_from_bus(identity, record)
        self.sensors_by_bus.setdefault(bus, set()).add(identity)
        record.bus, record.document = bus, document
        return record

    def sensors_on(self, bus: Bus) -> list[Identity]:
        """Return namespace and name of each Sensor that reads a bus."""
        return list(self.sensors_by_bus.get(bus, ()))

    def claim_sensor_names(self, record: SensorRecord, claimed_names: Collection[str]) -> None:
        """Reserve topic and group names for the Sensor of `record`, except those that another
        Sensor has claimed."""
        for name in claimed_names:
            if self.sensor_uid_by_name.setdefault(name, record.uid) == record.uid:
                record.names.add(name)

    def drop_sensor(self, identity: Identity) -> tuple[KafkaCluster, SensorContract] | None:
        """Forget a Sensor and release its names; nothing in Kafka is deleted. Returns the Kafka and
        the contract with which the Sensor is still scaled; None: it isn't scaled."""
        if (record := self.sensors.pop(identity, None)) is None:
            return None
        self._remove_from_bus(identity, record)
        self.urls.pop(record.id, None)
        for name in record.names:
            del self.sensor_uid_by_name[name]
        return record.scaled

    def _remove_from_bus(self, identity: Identity, record: SensorRecord) -> None:
        """Remove a Sensor from the Sensors of the bus in its record."""
        sensors = self.sensors_by_bus[record.bus]
        sensors.discard(identity)
        if not sensors:
            del self.sensors_by_bus[record.bus]

    def kafkas(self) -> set[KafkaCluster]:
        """Return the KafkaClusters that any record uses."""
        brokers, triggers = self.brokers.values(), self.triggers.values()
        broker_states = (record.state for record in brokers)
        deliveries = (record.watched for record in triggers)
        kafka_users = (*broker_states, *brokers, *deliveries, *triggers, *self.sensors.values())
        kafka_clusters = {user.kafka for user in kafka_users if user is not None}
        return {kafka for kafka in kafka_clusters if kafka is not None}

    def _release_groups(self, record: TriggerRecord) -> None:
        """Release the Trigger's claims to consumer groups."""
        for group in record.groups:
            if self.groups.get(group) == record.uid:
                del self.groups[group]
        record.groups.clear()

    def _remove_from_broker(self, trigger: Identity, record: TriggerRecord) -> None:
        """Remove a Trigger from its Broker's Triggers, and clear `record.broker`, if it has one."""
        if record.broker is None:
            return
        triggers = self.triggers_by_broker[record.broker]
        triggers.discard(trigger)
        if not triggers:
            del self.triggers_by_broker[record.broker]
        record.broker = None


def broker_of(trigger: Document) -> Identity:
    """Return the Broker or channel that a stored Trigger or Subscription refers to."""
    return family_of(trigger["kind"]).broker_of(trigger)


def without_status(document: Document) -> Document:
    """Return an object with its status, resourceVersion and managed fields set to None, to compare
    its declaration."""
    metadata = {**document["metadata"], "resourceVersion": None, "managedFields": None}
    return {**document, "metadata": metadata, "status": None}


def has_contract(broker: Document) -> bool:
    """Whether a Broker's status names a contract topic of shared dispatchers."""
    return CONTRACT_TOPIC_KEY in status_annotations(broker)


def topic_in_status(broker: Document) -> str | None:
    """Return the topic in a Broker's status, which may be another owner's; None: there is none."""
    topic = status_annotations(broker).get(TOPIC_STATUS)
    return topic if isinstance(topic, str) and topic else None


def partitions_in_status(broker: Document) -> int:
    """Return the number of partitions in a Broker's status; 0: there is none, or it is invalid."""
    text = status_annotations(broker).get(PARTITIONS_KEY)
    return int(text) if isinstance(text, str) and re.fullmatch("[0-9]{1,10}", text) else 0


def group_in_status(trigger: Document, naming: Naming) -> str | None:
    """Return the consumer group that a Trigger's status names; None: it names none, or one that
    can't be the Trigger's own."""
    group = status_annotations(trigger).get(GROUP_STATUS)
    if trigger["kind"] == CHANNELS.trigger:
        uid = trigger["metadata"].get("uid", "")
        is_own = group == names.subscription_group(*broker_of(trigger), uid)
    else:
        is_own = naming.is_own(NameKind.TRIGGER_GROUP, group, NamedObject.of(trigger))
    return str(group) if is_own else None


def _receiver_label(broker: Identity) -> tuple[str, str]:
    """Return the namespace of the pods of a Broker's receiver, and the value of their label
    `BROKER_LABEL`, which is made from the Broker's name."""
    return broker.namespace, names.child(broker.name, "")
