"""Brokers: gives each declared Broker a topic, a receiver and an address, and reports what prevents
that.

    observe (ConfigMaps, Secret, sink, topic) -> decide (`brokers.decide`) -> act, until all is done

A Broker's record has, in `state`, everything that its Triggers' reconciliation needs of the Broker.

Not here: watching for changes (`engine.controller`), reading what a decision needs (`observe`,
`kafkas`), the content of contract topics (`receivers`, `contracts`), and decisions, which are pure
functions (`brokers.decide`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from knafka.core import names
from knafka_operator.brokers import decide as deciding
from knafka_operator.brokers.decide import (
    RECEIVER_CONTRACT,
    BrokerConnection,
    ObservedBroker,
)
from knafka_operator.brokers.kafkas import BrokerKafkas
from knafka_operator.brokers.observe import BrokerObserver, receiver_identity
from knafka_operator.decisions import status as statuses
from knafka_operator.dispatchers.shard_services import Shards
from knafka_operator.engine.effects import Effects, resource_of
from knafka_operator.engine.kind import BrokerReconciler
from knafka_operator.functions import receiver_services, services
from knafka_operator.functions.applying import delete_service
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import desired
from knafka_operator.kafka.clusters import KafkaCluster, KafkaClusters
from knafka_operator.kafka.topic_creation import (
    delete_broker_dead_letters,
    delete_shard_contract,
    delete_topic_and_groups,
)
from knafka_operator.kafka.topics import TOPIC_ID, ObservedTopic
from knafka_operator.model.cluster import Cluster, Document, status_annotations
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import (
    BROKER_CLASS,
    EXTERNAL_TOPIC,
    KNAFKA_PREFIX,
    TOPIC_STATUS,
    Broker,
    Resource,
    is_claimed_by_peer,
)
from knafka_operator.receivers import contract_topics
from knafka_operator.receivers.addressable import AddressableDecision
from knafka_operator.receivers.receivers import Receivers
from knafka_operator.records.namespace_totals import reserve_partitions
from knafka_operator.records.ownership import TopicOwnership
from knafka_operator.records.state import (
    BrokerRecord,
    BrokerState,
    States,
    partitions_in_status,
    topic_in_status,
)
from knafka_operator.senders.observe import is_authentication_on


@dataclass(eq=False)
class Brokers(BrokerReconciler[ObservedBroker, AddressableDecision]):
    """Reconciles all Brokers that Knafka serves."""

    settings: Settings
    cluster: Cluster
    kafkas: KafkaClusters
    shards: Shards
    states: States
    receivers: Receivers
    effects: Effects
    now: Callable[[], str]
    """Returns the time, RFC 3339."""

    def __post_init__(self) -> None:
        self.api_version = self.states.family.broker_version
        self._ownership = TopicOwnership(self.cluster, self.states)
        """Decides which topics are a Broker's own."""
        self._connections = BrokerKafkas(self.settings, self.cluster, self.kafkas, self.states)
        self._observer = BrokerObserver(
            self.settings,
            self.cluster,
            self._connections,
            self.states,
            self.receivers,
            self._ownership,
        )

    @property
    def states_with_topic(self) -> Mapping[Identity, BrokerState]:
        """The state of every Broker that has its topic."""
        records = self.states.brokers.items()
        return {identity: record.state for identity, record in records if record.state is not None}

    def is_ours(self, document: Document) -> bool:
        """Whether Knafka serves the Broker: its class is one of Knafka's (KN-BRK-04), and no other
        implementation has claimed it (docs/decisions/0046)."""
        annotations = document["metadata"].get("annotations") or {}
        # In the local mode there is no other implementation, whatever an exported document says.
        if is_claimed_by_peer(document) and not self.settings.trusts_statuses:
            return False
        return annotations.get(BROKER_CLASS, "") in self.settings.broker_classes

    async def hand_over(self, document: Document) -> None:
        """Hand over a Broker to the other implementation that has claimed it: delete its functions
        and contracts, but keep its topic and its Triggers' groups. Does nothing if the status has
        no annotations of Knafka's.

        These annotations are removed last, so that a failed attempt is repeated. Raises
        `KnafkaError`.
        """
        knafka_annotations = [
            key for key in status_annotations(document) if key.startswith(KNAFKA_PREFIX)
        ]
        if not knafka_annotations:
            return
        broker, identity = resource_of(document), Identity.of(document)
        record = self.states.ensure_broker(document)
        record.drop_state()  # else a Trigger that is being reconciled would drain again
        await self.remember_kafka(document)
        await self.neighbours.stop_triggers(identity)
        await delete_service(self.cluster, receiver_services.receiver_name(broker), broker)
        await self.shards.delete(broker)
        kafka = await self._connections.find_kafka(document)
        if (contract_name := status_annotations(document).get(RECEIVER_CONTRACT)) is not None:
            await self._withdraw_entry(broker, contract_name, kafka)
        if record.has_contract:
            await kafka.topics.delete_topic(names.contract_topic(*identity))
        self.drop(document)
        patch: dict[str, Any] = {
            "annotations": dict.fromkeys(knafka_annotations),
            "address": None,
            "conditions": [],
        }
        await self.cluster.write_status(document, patch)

    async def delete_topic(self, document: Document, groups: Collection[str]) -> None:
        """Delete a Broker's receiver and shards, then its topic, the `groups` that read the topic,
        and its dead letters' and contracts' topics. Topic and groups stay if the topic is external
        or wasn't created for this Broker: then a Broker that is declared again continues with these
        groups' offsets, and each group is deleted with its Trigger.

        Raises `LogError`, also while one of the groups has members, and `ClusterError`.
        """
        broker, identity = resource_of(document), Identity.of(document)
        annotations = status_annotations(document)
        # No event may be accepted into a topic that is about to go (KN-BRK-22).
        await delete_service(self.cluster, receiver_services.receiver_name(broker), broker)
        record = self.states.ensure_broker(document)
        await self.shards.delete(broker)
        if (contract_name := annotations.get(RECEIVER_CONTRACT)) is not None:
            kafka = await self._connections.find_kafka(document)
            await self._withdraw_entry(broker, contract_name, kafka)
        topic = annotations.get(TOPIC_STATUS)
        is_external = EXTERNAL_TOPIC in broker.metadata.annotations
        if (
            topic is not None
            and self._ownership.is_brokers_name(topic, document)
            and not is_external
        ):
            # `delete_topic_and_groups` decides whether the topic was created for this Broker.
            topics = (await self._connections.find_kafka(document)).topics
            recorded_id = annotations.get(TOPIC_ID)
            claimed = await self._ownership.is_claimed(identity, topic)
            await delete_topic_and_groups(topics, topic, recorded_id, groups, claimed=claimed)
        if topic is not None:  # else no dispatcher was ever started
            kafka = await self._connections.find_kafka(document)
            self.states.note_kafka(identity, kafka)
            await delete_broker_dead_letters(kafka.topics, *identity)
        if record.has_contract:
            topics = (await self._connections.find_kafka(document)).topics
            await delete_shard_contract(topics, *identity, record.shards, topic)
        self.drop(document)

    async def _withdraw_entry(self, broker: Resource, topic: str, kafka: KafkaCluster) -> None:
        """Remove a Broker's entry from `topic`, the contract topic that the Broker's status names,
        after the deletion of its receiver. If that was the topic's last entry, also delete the
        topic, unless it belongs to the installation's Secret. Raises `LogError`."""
        namespace = broker.metadata.namespace
        if not contract_topics.may_hold_brokers_of(topic, namespace, self.settings):
            return  # somebody else wrote this name into the status: don't read that topic
        receiver = await self.receivers.ensure_receiver(receiver_identity(broker), kafka, topic)
        path = f"/{services.identity_of(broker)}"
        if path in receiver.contract.records:
            await receiver.write(path, None)
        if contract_topics.is_of_namespace_secret(topic, namespace, self.settings):
            await self.receivers.delete_contract(receiver)

    async def remember_kafka(self, document: Document) -> None:
        """If the shared dispatchers of a Broker have a contract topic, but the Broker wasn't
        reconciled yet, find its Kafka and keep it in the Broker's record, so that Triggers can be
        removed from the contract. Raises the errors in `EXPECTED`, and `ClusterError`."""
        record = self.states.ensure_broker(document)
        if record.has_contract and record.kafka is None:
            record.kafka = await self._connections.find_kafka(document)

    def drop(self, document: Document) -> None:
        """Drop what the operator has in memory about a deleted Broker; nothing in Kafka is
        deleted."""
        self.receivers.forget(receiver_identity(resource_of(document)))
        self.states.drop_broker(Identity.of(document))

    def claim_topic_in_status(self, document: Document) -> BrokerRecord:
        """Claim the topic that a Broker's status names, with its partitions, if the naming rules
        give the Broker a topic of that name and no object has claimed the topic yet; returns the
        Broker's record. Called when a Broker is seen, so that an operator that has just started
        gives neither the topic nor its room in the namespace to another Broker."""
        record, topic = self.states.ensure_broker(document), topic_in_status(document)
        is_own_topic = self._ownership.is_brokers_name(topic, document)
        if topic is not None and is_own_topic and topic not in self.states.topics:
            self.states.claim_topic(record, topic)
            record.reserved_partitions = partitions_in_status(document)
        return record

    # Reconcile.

    async def observe(self, document: Document, record: BrokerRecord) -> ObservedBroker:
        """Read what a Broker's decision needs. Before that, delete the receiver if the Broker may
        not use its topic. Raises `ClusterError`."""
        # First, before anything can fail: an invalid Broker mustn't keep a topic that it may not
        # use.
        refused, stop_reason = await self._observer.find_topic_refusals(document, record)
        if stop_reason is not None:
            await self._stop_receiver(stop_reason, document, record)
        observed = await self._observer.observe_without_topic(document, record)
        observed = replace(observed, refused=refused, stopped=stop_reason is not None)
        if refused is None:
            observed = replace(observed, topic=await self._observer.observe_topic(observed, record))
        if isinstance(observed.topic, ObservedTopic):
            assert record.kafka is not None
            observed = await self._observer.observe_entry(observed, record.kafka)
        return observed

    def decide(self, observed: ObservedBroker, record: BrokerRecord) -> AddressableDecision:
        """Decide what to do from `observed`, and reserve the partitions of a topic that is to be
        created."""
        identity, maxima = Identity.of(observed.document), self.settings.maxima
        topic = reserve_partitions(self.states, identity, observed.topic, maxima)
        return deciding.decide(replace(observed, topic=topic), self.settings)

    def status_of(
        self, observed: ObservedBroker, decision: AddressableDecision, record: BrokerRecord
    ) -> Mapping[str, Any]:
        """Return the last decision's status. Also update the state in the record, from which the
        Broker's Triggers are reconciled."""
        identity = Identity.of(observed.document)
        receiver = receiver_identity(resource_of(observed.document))
        functions = receiver, *self.shards.services_of(identity)
        self.states.rolls.add_condition(decision.conditions, *functions)
        status = super().status_of(observed, decision, record)
        _update_state(observed, decision, record, status["conditions"])
        return status

    async def finish(self, observed: ObservedBroker, record: BrokerRecord) -> None:
        """Bring the Broker's shards (shared dispatchers) up to date with its Triggers, and delete
        shards without Triggers (`Shards.maintain`). Does nothing while the Broker has no topic."""
        if record.state is not None:
            await self.shards.maintain(record.state.broker)

    async def _stop_receiver(self, reason: str, document: Document, record: BrokerRecord) -> None:
        """Delete a Broker's receiver, so that no event is accepted, and put the reason into the
        record in place of the Broker's state. Raises `ClusterError`."""
        broker = resource_of(document)
        record.stopped = reason
        record.drop_state()
        await delete_service(self.cluster, receiver_services.receiver_name(broker), broker)


def _update_state(
    observed: ObservedBroker,
    decision: AddressableDecision,
    record: BrokerRecord,
    conditions: list[dict[str, Any]],
) -> None:
    """Update the state in a Broker's record, from which its Triggers are reconciled; `conditions`
    are those of its new status. The state stays as it is if the Broker has no topic or no
    connection now."""
    topic, connection = decision.topic, observed.connection
    if topic is None or topic.existing is None or not isinstance(connection, BrokerConnection):
        return
    assert isinstance(observed.broker, Broker)
    assert record.kafka is not None
    ready, mount = statuses.ready_condition(conditions), connection.mount
    record.stopped = None
    record.state = BrokerState(
        broker=observed.broker,
        topic=desired.with_record_limit_in_kafka(topic.desired, topic.existing.config),
        partitions=topic.existing.partitions,
        defaults=connection.defaults,
        secret=None if mount is None else (mount.name, mount.version),
        kafka=record.kafka,
        ready=ready.get("status", "Unknown"),
        why_not=f"{ready.get('reason', '')} {ready.get('message', '')}".strip(),
        oidc=is_authentication_on(observed.authentication),
    )
