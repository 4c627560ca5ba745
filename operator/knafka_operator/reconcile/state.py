"""State: what the operator knows of Brokers and Triggers beyond what is stored of them.

Each object has one record, and every name or reference under which it is found leads to its
record's identity. An object that is gone takes its record and all of these with it: nothing here
only grows.

Everything belongs to the event loop but `foreign_brokers`, which webhooks ask from their thread.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from knafka.core import names
from knafka.core.sensor.contract import Sensor
from knafka_operator.decide import services
from knafka_operator.decide import trigger as deciding
from knafka_operator.decide.shards import CONTRACT_TOPIC_KEY
from knafka_operator.decide.status import NotReady
from knafka_operator.decide.subscription import ChannelEntry
from knafka_operator.model.family import CHANNELS, Family, family_of
from knafka_operator.model.identity import Identity
from knafka_operator.model.isolation import Isolation
from knafka_operator.model.naming import NamedObject, NameKind, Naming
from knafka_operator.model.resources import GROUP_STATUS, TOPIC_STATUS
from knafka_operator.model.sensors import Bus
from knafka_operator.reconcile.contracts import SharedContractTopic
from knafka_operator.reconcile.functions import Rolls
from knafka_operator.reconcile.policies import Policies
from knafka_operator.scale.kafka_clusters import KafkaCluster

Document: TypeAlias = Mapping[str, Any]
BrokerState: TypeAlias = deciding.BrokerState[KafkaCluster]
Watched: TypeAlias = deciding.Watched[KafkaCluster]


@dataclass(eq=False, slots=True)
class BrokerRecord:
    """One Broker of ours."""

    uid: str = ""
    state: BrokerState | None = None
    """As it was found last; it stays while a later look finds less."""
    reconciled: bool = False
    """Whether it was looked at since the operator began: before, having no state says nothing."""
    stopped: str | None = None
    """Why it may not use its external topic: then its Triggers don't deliver."""
    kafka: KafkaCluster | None = None
    """Where its topic is: its ConfigMap and Secret may go before it does."""
    topics: set[str] = field(default_factory=set)
    """Names of topics that are its own."""
    has_contract: bool = False
    """Whether its status says that there is a topic with its contract, or there was."""
    creating: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while that is written and the topic is made."""
    contracts: dict[str, SharedContractTopic] = field(default_factory=dict)
    """By the Kafka's servers; mostly there is one."""
    urls: set[str] = field(default_factory=set)
    """Keys of `States.urls` that are its shards'."""
    shards: dict[int, ShardRecord] = field(default_factory=dict)
    """By number, those whose Services were applied or found."""
    shards_listed: bool = False
    """Whether Services of shards that an operator before left were looked for."""

    def inputs_of_triggers(self) -> tuple[object, ...]:
        """What its Triggers go by."""
        problems = {number: str(each.problem) for number, each in self.shards.items()}
        return self.state, self.stopped, self.reconciled, problems


@dataclass(eq=False, slots=True)
class ShardRecord:
    """The Service of one of a Broker's shards."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    manifest: Mapping[str, Any] | None = None
    """As it was applied last; None: that isn't known."""
    problem: NotReady | None = None
    """Why it isn't Ready."""
    tried: float = -math.inf
    empty_since: float | None = None
    """Both by the event loop's clock."""


@dataclass(eq=False, slots=True)
class TriggerRecord:
    """One Trigger, of a Broker of ours or of one that isn't known yet."""

    document: Document | None = None
    """As it was last heard of."""
    uid: str = ""
    broker: Identity | None = None
    watched: Watched | None = None
    """None: nothing is delivered."""
    replaced: bool = False
    """Whether pods of an older Revision may still drain: those drain unasked."""
    kafka: KafkaCluster | None = None
    """Where its group is: what `kubectl delete -f` deletes goes in any order, and a group that
    stayed would be what a later Trigger of that name starts from."""
    groups: set[str] = field(default_factory=set)
    """Names of consumer groups that are its own."""
    references: set[Identity] = field(default_factory=set)
    """What it refers to as its subscriber or dead letter sink."""
    published: tuple[object, float] = (None, -math.inf)
    """What its status says of its scaling, and since when by the event loop's clock."""
    needed: Isolation | None = None
    """What it needs, while its isolation is `auto` (`reconcile.moves`)."""
    checked: Document | None = None
    """As it was when that was last found to be so."""
    subscribed: ChannelEntry | None = None
    """As its channel has it, of a Subscription."""
    gone: bool = False
    """It is stored no more, and is dropped when its drains are over."""


@dataclass(eq=False, slots=True)
class SensorRecord:
    """One Sensor."""

    uid: str
    bus: Bus
    document: Document
    """As it was last heard of."""
    kafka: KafkaCluster | None = None
    """Where its topics are: its Broker may go before it does."""
    scaled: tuple[KafkaCluster, Sensor] | None = None
    """By whose scaler it is woken, and as what."""
    names: set[str] = field(default_factory=set)
    """Topics and consumer groups that are its own."""
    group_is_proved: bool = False
    """Whether Kafka has said that the group of its status is its own."""

    @property
    def id(self) -> str:
        """The scaler's, under which its drains' URL is found among those of Triggers."""
        return f"Sensor {Identity.of(self.document)}"


class States:
    """The records of all Brokers and Triggers, and how to find them."""

    def __init__(self, family: Family, rolls: Rolls, naming: Naming) -> None:
        """`rolls` are those of all families together."""
        self.family = family
        self.naming = naming
        self.rolls = rolls
        self.brokers: dict[Identity, BrokerRecord] = {}
        self.triggers: dict[Identity, TriggerRecord] = {}
        self.sensors: dict[Identity, SensorRecord] = {}
        self.sensors_by_bus: dict[Bus, set[Identity]] = {}
        self.of_sensors: dict[str, str] = {}
        """UID of the Sensor that has each name of a topic or a consumer group."""
        self.foreign_brokers: set[Identity] = set()
        """Brokers of other classes."""
        self.declared: dict[tuple[str, str, str], Document] = {}
        """Each Broker and Trigger as it was last heard of, without its status, by kind, namespace
        and name."""
        self.topics: dict[str, str] = {}
        """UID of the Broker that has each topic's name; external topics are nobody's."""
        self.groups: dict[str, str] = {}
        """UID of the Trigger that has each group's name."""
        self.triggers_by_broker: dict[Identity, set[Identity]] = {}
        self.brokers_by_label: dict[tuple[str, str], Identity] = {}
        """Namespace, and the label of its receivers' pods -> the Broker."""
        self.subscribers: dict[Identity, set[Identity]] = {}
        """What is referred to -> the Triggers that do."""
        self.receivers: dict[tuple[str, str], set[str]] = {}
        """Namespace, and the label of its receivers' pods -> UIDs of those that there are."""
        self.receivers_known = False
        """Whether those are all: while nobody tells of pods, any Broker may have a receiver."""
        self.policies = Policies()
        """Who may send where; one for Brokers and channels together."""
        self.urls: dict[str, str] = {}
        """Where each Trigger's dispatcher is, by the scaler's id, and each shard's, by its group:
        what drains are asked of."""

    def ensure_broker(self, document: Document) -> BrokerRecord:
        """The record of a Broker of ours, another one if it is another object."""
        identity, uid = Identity.of(document), document["metadata"].get("uid", "")
        record = self.brokers.get(identity)
        if record is not None and record.uid not in ("", uid):
            self.drop_broker(identity)
            record = None
        if record is None:
            record = self.brokers[identity] = BrokerRecord(uid)
            if not self.family.centralized:  # else it has no receiver of its own
                self.brokers_by_label[_receiver_label(identity)] = identity
        record.has_contract = record.has_contract or has_contract(document)
        return record

    def broker_state(self, identity: Identity) -> BrokerState | None:
        """Of a Broker that has its topic."""
        record = self.brokers.get(identity)
        return None if record is None else record.state

    def track_receiver_pod(self, pod: Document, *, gone: bool) -> BrokerState | None:
        """Keep in mind whether this receiver's pod is there; gives its Broker."""
        metadata = pod["metadata"]
        label = metadata["namespace"], (metadata.get("labels") or {}).get(services.BROKER_LABEL, "")
        pods = self.receivers.setdefault(label, set())
        (pods.discard if gone else pods.add)(metadata.get("uid", ""))
        if not pods:
            del self.receivers[label]
        broker = self.brokers_by_label.get(label)
        return None if broker is None else self.broker_state(broker)

    def unwritten_topics(self, kafka: KafkaCluster) -> set[str]:
        """Topics that are a Broker's own, to which nothing writes while it has no receiver."""
        if not self.receivers_known:
            return set()
        return {
            state.topic.name
            for label, broker in self.brokers_by_label.items()
            if label not in self.receivers
            and (state := self.broker_state(broker)) is not None
            and state.kafka is kafka
            and not state.topic.external
        }

    def claim_topic(self, record: BrokerRecord, topic: str) -> None:
        """This Broker has a topic of this name; no other Broker gets it."""
        self.topics[topic] = record.uid
        record.topics.add(topic)

    def set_shard_url(self, broker: Identity, shard: str, url: str) -> None:
        """Where one of a Broker's shards is, by its group."""
        self.urls[shard] = url
        if (record := self.brokers.get(broker)) is not None:
            record.urls.add(shard)

    def drop_broker(self, identity: Identity) -> None:
        """It is gone, whatever is left of it in Kafka."""
        record = self.brokers.pop(identity, None)
        if record is not None:
            self.brokers_by_label.pop(_receiver_label(identity), None)
            for topic in record.topics:
                if self.topics.get(topic) == record.uid:
                    del self.topics[topic]
            for shard in record.urls:
                self.urls.pop(shard, None)

    def ensure_trigger(self, document: Document) -> TriggerRecord:
        """The record of a Trigger; the names that another object of its name had are free."""
        identity, uid = Identity.of(document), document["metadata"].get("uid", "")
        record = self.triggers.get(identity)
        if record is None:
            record = self.triggers[identity] = TriggerRecord(uid=uid)
        elif record.uid != uid:
            self._release_groups(record)
            record.uid = uid
        return record

    def store_trigger(self, document: Document) -> TriggerRecord:
        """Keep a Trigger as it is now stored."""
        identity, record = Identity.of(document), self.ensure_trigger(document)
        self._unlist(identity, record)
        record.document, record.broker, record.gone = document, broker_of(document), False
        self.triggers_by_broker.setdefault(record.broker, set()).add(identity)
        group = group_in_status(document, self.naming)
        if group is not None and group not in self.groups:
            self.claim_group(record, group)
        return record

    def triggers_of(self, broker: Identity) -> list[Identity]:
        """Those that refer to this Broker."""
        return list(self.triggers_by_broker.get(broker, ()))

    def claim_group(self, record: TriggerRecord, group: str) -> None:
        """This Trigger has a group of this name; no other Trigger gets it."""
        self.groups[group] = record.uid
        record.groups.add(group)

    def add_reference(self, trigger: Identity, to: Identity) -> None:
        """Have `to` lead to this Trigger, whose subscriber or dead letter sink it is."""
        record = self.triggers.get(trigger)
        if record is not None:
            record.references.add(to)
            self.subscribers.setdefault(to, set()).add(trigger)

    def clear_references(self, trigger: Identity) -> None:
        record = self.triggers.get(trigger)
        for each in record.references if record is not None else ():
            referring = self.subscribers[each]
            referring.discard(trigger)
            if not referring:
                del self.subscribers[each]
        if record is not None:
            record.references.clear()

    def mark_trigger_gone(self, identity: Identity) -> None:
        """It is stored no more; its record stays until its drains are over."""
        record = self.triggers.get(identity)
        if record is None:
            return
        self._unlist(identity, record)
        record.document, record.gone = None, True
        if record.watched is None:
            self.drop_trigger(identity)

    def drop_trigger(self, identity: Identity) -> None:
        """Nothing of it is needed any more, whatever is left of it in Kafka."""
        self.clear_references(identity)
        record = self.triggers.pop(identity, None)
        self.urls.pop(self.family.trigger_id(identity), None)
        if record is not None:
            self._unlist(identity, record)
            self._release_groups(record)

    def ensure_sensor(self, document: Document, bus: Bus) -> SensorRecord:
        """The record of a Sensor on this bus, another one if it is another object."""
        identity, uid = Identity.of(document), document["metadata"].get("uid", "")
        record = self.sensors.get(identity)
        if record is None or record.uid != uid:
            scaled = self.drop_sensor(identity)  # its drains end before those of the new one begin
            record = self.sensors[identity] = SensorRecord(uid, bus, document, scaled=scaled)
        if record.bus != bus:
            self._unlist_sensor(identity, record)
        self.sensors_by_bus.setdefault(bus, set()).add(identity)
        record.bus, record.document = bus, document
        return record

    def sensors_on(self, bus: Bus) -> list[Identity]:
        """Those that read this bus."""
        return list(self.sensors_by_bus.get(bus, ()))

    def claim_of_sensor(self, record: SensorRecord, of: Collection[str]) -> None:
        """This Sensor has topics or a group of these names; no other Sensor gets one."""
        for name in of:
            if self.of_sensors.setdefault(name, record.uid) == record.uid:
                record.names.add(name)

    def drop_sensor(self, identity: Identity) -> tuple[KafkaCluster, Sensor] | None:
        """It is gone, whatever is left of it in Kafka; gives what is scaled still."""
        if (record := self.sensors.pop(identity, None)) is None:
            return None
        self._unlist_sensor(identity, record)
        self.urls.pop(record.id, None)
        for name in record.names:
            del self.of_sensors[name]
        return record.scaled

    def _unlist_sensor(self, identity: Identity, record: SensorRecord) -> None:
        sensors = self.sensors_by_bus[record.bus]
        sensors.discard(identity)
        if not sensors:
            del self.sensors_by_bus[record.bus]

    def kafkas(self) -> set[KafkaCluster]:
        """Those that something here uses, whether its config is still there or not."""
        brokers, triggers = self.brokers.values(), self.triggers.values()
        states = (each.state for each in brokers)
        watched = (each.watched for each in triggers)
        of = (*states, *brokers, *watched, *triggers, *self.sensors.values())
        found = {each.kafka for each in of if each is not None}
        return {each for each in found if each is not None}

    def _release_groups(self, record: TriggerRecord) -> None:
        for group in record.groups:
            if self.groups.get(group) == record.uid:
                del self.groups[group]
        record.groups.clear()

    def _unlist(self, trigger: Identity, record: TriggerRecord) -> None:
        if record.broker is None:
            return
        triggers = self.triggers_by_broker[record.broker]
        triggers.discard(trigger)
        if not triggers:
            del self.triggers_by_broker[record.broker]
        record.broker = None


def broker_of(trigger: Document) -> Identity:
    """The Broker that a Trigger, as it is stored, refers to; of a Subscription its channel."""
    return family_of(trigger["kind"]).broker_of(trigger)


def without_status(document: Document) -> Document:
    """All of an object but its status."""
    metadata = {**document["metadata"], "resourceVersion": None, "managedFields": None}
    return {**document, "metadata": metadata, "status": None}


def has_contract(broker: Document) -> bool:
    """Whether there is a topic with what its shared dispatchers deliver, or may be."""
    return CONTRACT_TOPIC_KEY in ((broker.get("status") or {}).get("annotations") or {})


def topic_in_status(broker: Document) -> str | None:
    """The topic that it uses, whosever that is."""
    topic = ((broker.get("status") or {}).get("annotations") or {}).get(TOPIC_STATUS)
    return topic if isinstance(topic, str) and topic else None


def group_in_status(trigger: Document, naming: Naming) -> str | None:
    """The group that it got; None for any that can't be its own."""
    group = ((trigger.get("status") or {}).get("annotations") or {}).get(GROUP_STATUS)
    if trigger["kind"] == CHANNELS.trigger:
        uid = trigger["metadata"].get("uid", "")
        own = group == names.subscription_group(*broker_of(trigger), uid)
    else:
        own = naming.is_own(NameKind.TRIGGER_GROUP, group, NamedObject.of(trigger))
    return str(group) if own else None


def _receiver_label(broker: Identity) -> tuple[str, str]:
    return broker.namespace, names.child(broker.name, "")
