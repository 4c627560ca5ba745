"""Channels: gives each declared KafkaChannel a topic, an entry at a receiver, and an address.

    observe (ConfigMap, Secret, sink, topic, receiver) -> decide (`channels.decide`) -> act, until
    all is done; then write its delivered Subscriptions into spec and status

The counterpart of `brokers.kind`: to `triggers` a channel is a Broker. A channel has no receiver of
its own (`receivers`).

More than 400 lines, so that what is created for a channel stands beside what is deleted with it, or
when another implementation takes it over.

Not here: watching for changes (`engine.controller`), and decisions, which are pure functions
(`channels.decide`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from knafka.core import names
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument, KnafkaError, LogError
from knafka_operator.channels import decide as deciding
from knafka_operator.channels import routes
from knafka_operator.channels.kafkas import ChannelKafkas
from knafka_operator.channels.observed import ChannelConnection, ObservedChannel, receivers_of
from knafka_operator.channels.rival import conditions_beside_rival
from knafka_operator.channels.subscribers import Subscribers
from knafka_operator.decisions import status as statuses
from knafka_operator.decisions.effects import ApplyReceiver, Effect
from knafka_operator.decisions.sink_addresses import observe_sink
from knafka_operator.decisions.status import EXPECTED, NotReady
from knafka_operator.dispatchers.shard_services import Shards
from knafka_operator.engine.effects import Effects
from knafka_operator.engine.kind import BrokerReconciler
from knafka_operator.functions import receiver_services, services
from knafka_operator.installation.handler import Handler, Handling
from knafka_operator.installation.naming import NamedObject, NameKind
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import desired
from knafka_operator.kafka.clusters import KafkaCluster, KafkaClusters
from knafka_operator.kafka.topic_creation import (
    delete_broker_dead_letters,
    delete_shard_contract,
    delete_topic_and_groups,
    has_records,
)
from knafka_operator.kafka.topics import TOPIC_ID, ObservedTopic
from knafka_operator.model.channels import KafkaChannel
from knafka_operator.model.cluster import Cluster, Document, status_annotations
from knafka_operator.model.family import CHANNELS, omit_subscribers
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import (
    CORE,
    KNAFKA_PREFIX,
    TOPIC_STATUS,
    Broker,
    finalizers_of,
    is_claimed_by_peer,
)
from knafka_operator.receivers.addressable import AddressableDecision
from knafka_operator.receivers.receivers import ReceiverRecord, Receivers
from knafka_operator.records.namespace_totals import reserve_partitions
from knafka_operator.records.state import (
    BrokerRecord,
    BrokerState,
    States,
    partitions_in_status,
    topic_in_status,
)
from knafka_operator.senders.encryption import Encryption
from knafka_operator.senders.observe import is_authentication_on, observe_features, observe_https_of

RIVAL_SERVICE: Final = (CORE, "Service", "knative-eventing", "kafka-channel-ingress")
"""A Service of eventing-kafka-broker, which shows that it is installed. It then serves every
channel, except those whose finalizer it has removed."""


@dataclass(eq=False)
class Channels(BrokerReconciler[ObservedChannel, AddressableDecision]):
    """Reconciles all KafkaChannels that Knafka serves."""

    settings: Settings
    cluster: Cluster
    kafkas: KafkaClusters
    shards: Shards
    states: States
    receivers: Receivers
    effects: Effects
    now: Callable[[], str]
    """Returns the time, RFC 3339."""
    handling: Handling = field(default_factory=Handling)
    """Whether Knafka or Knative Eventing reconciles Subscriptions."""

    def __post_init__(self) -> None:
        self.api_version = self.states.family.broker_version
        self._subscribers = Subscribers(self.cluster, self.states, self.handling)
        self.connections = ChannelKafkas(self.settings, self.cluster, self.kafkas)

    @property
    def handler(self) -> Handler | None:
        """Return which controller reconciles Subscriptions; None: not known yet."""
        return self.handling.handler

    async def connect_without_config(self, document: Document) -> KafkaCluster:
        """Return the Kafka with a channel's topic, even if the ConfigMap or Secret that configured
        it is gone. Raises the errors of `ChannelKafkas.find_kafka`."""
        return await self.connections.find_kafka(document, None)

    @property
    def states_with_topic(self) -> Mapping[Identity, BrokerState]:
        """The state of every channel that has its topic."""
        records = self.states.brokers.items()
        return {identity: record.state for identity, record in records if record.state is not None}

    def is_ours(self, document: Document) -> bool:
        """Whether the document is a KafkaChannel that no other implementation has claimed
        (docs/decisions/0046). Not checked: the setting by which Knafka serves KafkaChannels at
        all."""
        if document["kind"] != CHANNELS.broker:
            return False
        # In the local mode there is no other implementation, whatever an exported document says.
        is_claimed = is_claimed_by_peer(document, CHANNELS.peers_finalizer)
        return self.settings.trusts_statuses or not is_claimed

    async def needs_finalizer(self, document: Document) -> bool:
        """Whether Knafka serves the channel, and so creates something for it in Kafka."""
        return await self._find_rival(document) is None

    async def _find_rival(self, document: Document) -> str | None:
        """Return the name of another implementation that may serve this channel. None: no other is
        installed, or the channel is ours: its status has the id of our topic, and the other
        implementation's finalizer is gone."""
        is_claimed = CHANNELS.peers_finalizer in finalizers_of(document)
        if status_annotations(document).get(TOPIC_ID) and not is_claimed:
            return None
        if await self.cluster.get(*RIVAL_SERVICE) is None:
            return None
        return "/".join(RIVAL_SERVICE[1:])

    async def hand_over(self, document: Document) -> None:
        """Hand over a channel to the other implementation that has claimed it: delete its
        dispatchers and its entries at receivers, but keep its topic and its Subscriptions' groups.
        Raises `KnafkaError` while something stands in the way.

        Removes our annotations from the status last, so that a failed attempt is repeated. A
        channel without receivers is left alone: `knafka adopt` annotates it before anything is
        created for it.
        """
        if not receivers_of(status_annotations(document)):
            return
        knafka_annotations = [
            key for key in status_annotations(document) if key.startswith(KNAFKA_PREFIX)
        ]
        identity, channel = Identity.of(document), parse(Broker, _without_spec(document))
        record = self.states.ensure_broker(document)
        record.drop_state()  # else a Subscription that is just being reconciled would drain again
        await self.remember_kafka(document)
        await self.neighbours.stop_triggers(identity)
        await self._return_host(channel)
        for name in receivers_of(status_annotations(document)):
            await self.leave_receiver(document, name)
        await self.shards.delete(channel)
        if record.has_contract:
            kafka = await self.connections.find_kafka(document, record.kafka)
            contract = names.contract_topic(identity.namespace, CHANNELS.own_name(identity.name))
            await kafka.topics.delete_topic(contract)
        self.drop(document)
        patch: dict[str, Any] = {
            "annotations": dict.fromkeys(knafka_annotations),
            "address": None,
            "addresses": None,
            "subscribers": [],
            "conditions": [],
        }
        await self.cluster.write_status(document, patch)

    async def _return_host(self, channel: Broker) -> None:
        """Delete a channel's route, and point its host at the other implementation's receiver, so
        that events are accepted even before the other controller acts. If no other implementation
        is installed, delete the host's Service; leave it alone if the channel doesn't own it."""
        await self._delete_route(channel)
        location = CORE, "Service", channel.metadata.namespace, routes.service_name(channel)
        existing_service = await self.cluster.get(*location)
        if existing_service is None or not services.is_owned(existing_service, channel):
            return
        if await self.cluster.get(*RIVAL_SERVICE) is None:
            await self.cluster.delete(*location)
            return
        *_, namespace, name = RIVAL_SERVICE
        host = services.service_host(name, namespace, self.settings)
        await self.cluster.apply(routes.external_name_service(channel, host))

    async def delete_topic(self, document: Document, groups: Collection[str]) -> None:
        """Remove the channel from its receivers, then delete its topic, `groups` (the groups that
        read it), its own dead letters, and its shards with their contract topic. Raises `LogError`,
        also while one of the groups has members, `NotReady` and `ClusterError`."""
        record, identity = self.states.ensure_broker(document), Identity.of(document)
        annotations = status_annotations(document)
        topic, recorded_id = annotations.get(TOPIC_STATUS), annotations.get(TOPIC_ID)
        # No event may be accepted into a topic that is about to go (KN-BRK-22).
        for name in receivers_of(annotations):
            await self.leave_receiver(document, name)
        channel = parse(Broker, _without_spec(document))
        await self._delete_route(channel)
        await self.shards.delete(channel)
        if topic is not None and self._is_own_topic_name(topic, document):
            kafka = await self.connections.find_kafka(document, record.kafka)
            # Two channels have the same topic name only if the installation's name template allows
            # it.
            claimed = self.states.topics.get(topic, record.uid) != record.uid
            await delete_topic_and_groups(kafka.topics, topic, recorded_id, groups, claimed=claimed)
        broker_name = identity.namespace, CHANNELS.own_name(identity.name)
        if topic is not None:  # else no dispatcher was ever started
            kafka = await self.connections.find_kafka(document, record.kafka)
            await delete_broker_dead_letters(kafka.topics, *broker_name)
        if record.has_contract:
            kafka = await self.connections.find_kafka(document, record.kafka)
            await delete_shard_contract(kafka.topics, *broker_name, record.shards, topic)
        self.drop(document)

    async def remember_kafka(self, document: Document) -> None:
        """If the shared dispatchers of a channel have a contract topic, but the channel wasn't
        reconciled yet, find its Kafka and keep it in the channel's record, so that Subscriptions
        can be removed from the contract. Raises the errors of `ChannelKafkas.find_kafka`."""
        record = self.states.ensure_broker(document)
        if record.has_contract and record.kafka is None:
            record.kafka = await self.connections.find_kafka(document, record.kafka)

    def drop(self, document: Document) -> None:
        """Drop what the operator has in memory about a deleted channel; nothing in Kafka is
        deleted."""
        self.states.drop_broker(Identity.of(document))

    def claim_topic_in_status(self, document: Document) -> BrokerRecord:
        """Claim the topic that a channel's status names, with its partitions, if the naming rules
        give this channel that topic name and no object has claimed the topic yet; returns the
        channel's record. Called when a channel is seen, so that an operator that has just started
        gives neither the topic nor its room in the namespace to another channel."""
        record, topic = self.states.ensure_broker(document), topic_in_status(document)
        is_own_topic = topic is not None and self._is_own_topic_name(topic, document)
        if topic is not None and is_own_topic and topic not in self.states.topics:
            self.states.claim_topic(record, topic)
            record.reserved_partitions = partitions_in_status(document)
        return record

    def _is_own_topic_name(self, topic: str, document: Document) -> bool:
        """Whether the naming rules give this topic name to this channel."""
        return self.states.naming.is_own(NameKind.CHANNEL_TOPIC, topic, NamedObject.of(document))

    # Reconcile.

    async def observe(self, document: Document, record: BrokerRecord) -> ObservedChannel:
        """Read everything for a channel's decision. Raises `ClusterError`."""
        return replace(await self._observe_channel(document, record), handling=self.handling)

    def decide(self, observed: ObservedChannel, record: BrokerRecord) -> AddressableDecision:
        """Decide what to do from `observed`, and reserve the partitions of a topic that is to be
        created."""
        identity, maxima = Identity.of(observed.document), self.settings.maxima
        topic = reserve_partitions(self.states, identity, observed.topic, maxima)
        return deciding.decide(replace(observed, topic=topic), self.settings)

    def status_of(
        self, observed: ObservedChannel, decision: AddressableDecision, record: BrokerRecord
    ) -> Mapping[str, Any]:
        """Return the last decision's status. Also update the state in the record, from which the
        channel's Subscriptions are reconciled. If another implementation serves the channel and has
        written conditions, only return these, with Knafka's own added."""
        if observed.rival is not None and (
            conditions := conditions_beside_rival(
                self.stored_status(observed), observed.rival, self.now()
            )
        ):
            return {"conditions": conditions}
        function_services = self.shards.services_of(Identity.of(observed.document))
        if isinstance(observed.connection, ChannelConnection):
            function_services.append(self._service_identity(_receiver_name(observed.connection)))
        self.states.rolls.add_condition(decision.conditions, *function_services)
        status = super().status_of(observed, decision, record)
        _update_state(observed, decision, record, status["conditions"])
        return status

    async def write(self, observed: ObservedChannel, status: Mapping[str, Any]) -> None:
        """Write our entries into `spec.subscribers`, then the status. Raises `ClusterError`."""
        if "annotations" in status:  # else another implementation serves the channel
            await self._subscribers.write_spec_entries(observed.document)
        await super().write(observed, status)

    async def finish(self, observed: ObservedChannel, record: BrokerRecord) -> None:
        """Bring the channel's shards (shared dispatchers) up to date with its Subscriptions, and
        delete shards without Subscriptions (`Shards.maintain`). Does nothing while the channel has
        no topic."""
        if record.state is not None:
            await self.shards.maintain(record.state.broker)

    # Observe.

    async def _observe_channel(self, document: Document, record: BrokerRecord) -> ObservedChannel:
        """Read everything for a channel's decision but `handling`; also set `record.kafka`. Raises
        `ClusterError`."""
        try:
            channel = parse(KafkaChannel, omit_subscribers(document))
        except InvalidDocument as error:
            return ObservedChannel(
                document, error, subscribers=self._subscribers.build_status(document)
            )
        observed = ObservedChannel(
            document,
            channel,
            CHANNELS.read_broker(document),
            subscribers=self._subscribers.build_status(document),
        )
        declared = channel.spec.delivery.dead_letter_sink
        if declared is not None:
            namespace = channel.metadata.namespace
            sink = await observe_sink(self.cluster, declared, namespace, self.settings)
            observed = replace(observed, dead_letter_sink=sink)
        if (rival := await self._find_rival(document)) is not None:
            return replace(observed, rival=rival)
        try:
            connection, record.kafka = await self.connections.connect(document)
        except EXPECTED as error:
            return replace(observed, connection=error)
        topic = await self._observe_topic(document, channel, connection, record)
        features = await observe_features(
            self.cluster, self.settings, self.states.policies, channel
        )
        encryption = features.encryption
        observed = replace(
            observed,
            connection=connection,
            topic=topic,
            authentication=features.authentication,
            encryption=encryption,
            event_types=features.event_types,
        )
        if isinstance(encryption, Encryption) and encryption.is_on:
            service = self._service_identity(_receiver_name(connection))
            observed = replace(observed, https=await observe_https_of(self.cluster, *service))
        try:
            receiver = await self._ensure_receiver_record(connection, record.kafka)
            await self.receivers.check_contract(receiver, Identity.of(document))
        except LogError:
            return observed  # reading the channel's topic, or writing the entry, reports the error
        ingress, accepted = receiver.entry(f"/{channel.id}", document)
        gateway = await self._read_gateway(receiver.service.name)
        return replace(observed, ingress=ingress, accepted=accepted, gateway=gateway)

    async def _read_gateway(self, receiver: str) -> routes.Gateway | None:
        """Return the gateway that Knative has given to a receiver; None: there is none. Raises
        `ClusterError`."""
        location = routes.NETWORKING, "Ingress", self.settings.namespace, receiver
        return routes.gateway_of(await self.cluster.get(*location))

    async def _observe_topic(
        self,
        document: Document,
        channel: KafkaChannel,
        connection: ChannelConnection,
        record: BrokerRecord,
    ) -> ObservedTopic | KnafkaError:
        """Claim the name of the channel's topic, and return the topic as declared and as it exists.
        If that fails with one of `EXPECTED`, return the error, which becomes a condition.

        A topic that exists may be another channel's; it is taken over only if `knafka adopt` has
        asked for it (an empty annotation `TOPIC_ID`) and it has no records.
        """
        assert record.kafka is not None
        names_of_others = desired.NamesOfOthers(self.states.topics, record.uid)
        try:
            desired_topic = deciding.channel_topic(
                channel, connection.defaults, names_of_others, self.states.naming
            )
            self.states.claim_topic(record, desired_topic.name)
            topics = record.kafka.topics
            existing_topic = await topics.describe_topic(desired_topic.name)
            annotations = status_annotations(document)
            may_take_over = existing_topic is not None and annotations.get(TOPIC_ID) == ""
            disputed = not may_take_over or await has_records(topics, desired_topic.name)
        except EXPECTED as error:
            return error
        return ObservedTopic(desired_topic, existing_topic, disputed=disputed)

    async def _ensure_receiver_record(
        self, connection: ChannelConnection, kafka: KafkaCluster
    ) -> ReceiverRecord:
        """Return the record of the receiver that serves channels with this connection, creating it
        if needed. Raises `LogError`."""
        contract = deciding.receiver_contract(connection, self.settings)
        service = self._service_identity(_receiver_name(connection))
        return await self.receivers.ensure_receiver(service, kafka, contract.contract_topic)

    def _service_identity(self, receiver: str) -> Identity:
        """Return namespace and name of a receiver's Knative Service."""
        return Identity(self.settings.namespace, receiver)

    async def _delete_route(self, channel: Broker) -> None:
        """Delete the channel's route, an Ingress in the operator's namespace; do nothing if there
        is none or it isn't the channel's. Kubernetes deletes the ExternalName Service with the
        channel, its owner. Raises `ClusterError`."""
        location = routes.NETWORKING, "Ingress", self.settings.namespace, routes.route_name(channel)
        ingress = await self.cluster.get(*location)
        if ingress is not None and services.is_owned(ingress, channel):
            await self.cluster.delete(*location)

    # Effects.

    async def follow_up(
        self, effect: Effect, observed: ObservedChannel, record: BrokerRecord
    ) -> ObservedChannel:
        """Return `observed` with the gateway read again after the receiver was applied; unchanged
        after other effects. Raises `ClusterError`."""
        if not isinstance(effect, ApplyReceiver):
            return observed
        return replace(observed, gateway=await self._read_gateway(effect.receiver.name))

    async def leave_receiver(self, document: Document, receiver: str) -> None:
        """Remove a channel's entry from the contract of a receiver, and wait until every replica of
        the receiver has read the removal. Does nothing if neither the receiver nor a record of its
        contract exists. Raises the errors in `EXPECTED`, and `ClusterError`."""
        service = self._service_identity(receiver)
        receiver_record = self.receivers.records.get(service)
        try:
            kafka_and_topic = await self.connections.find_kafka_of_receiver(receiver)
        except (NotReady, InvalidDocument):
            if receiver_record is None:
                raise
            kafka_and_topic = None
        if kafka_and_topic is None and receiver_record is not None:
            kafka_and_topic = receiver_record.contract.kafka, receiver_record.contract.topic
        if kafka_and_topic is None:
            return
        receiver_left = await self.receivers.ensure_receiver(service, *kafka_and_topic)
        path = f"/{Identity.of(document)}"
        if path in receiver_left.contract.records:
            await receiver_left.write(path, None)
        await self.receivers.wait_until_read(receiver_left, path)
        receiver_left.written.pop(path, None)


def _without_spec(document: Document) -> Document:
    """Return a channel's document without its spec, which may be invalid, and which deleting the
    channel doesn't need."""
    return {key: document[key] for key in ("apiVersion", "kind", "metadata")}


def _receiver_name(connection: ChannelConnection) -> str:
    """Return the name of the Knative Service of the receiver that serves channels with this
    connection."""
    secret_name = None if connection.secret is None else connection.secret[0]
    return receiver_services.channels_receiver_name(secret_name)


def _update_state(
    observed: ObservedChannel,
    decision: AddressableDecision,
    record: BrokerRecord,
    conditions: list[dict[str, Any]],
) -> None:
    """Update the state in a channel's record, from which its Subscriptions are reconciled;
    `conditions` are those of its new status. The state stays as it is if the channel has no topic
    or no connection now."""
    topic, connection = decision.topic, observed.connection
    if topic is None or topic.existing is None or not isinstance(connection, ChannelConnection):
        return
    assert observed.broker is not None
    assert record.kafka is not None
    ready = statuses.ready_condition(conditions)
    record.state = BrokerState(
        broker=observed.broker,
        topic=desired.with_record_limit_in_kafka(topic.desired, topic.existing.config),
        partitions=topic.existing.partitions,
        defaults=connection.defaults,
        secret=connection.secret,
        kafka=record.kafka,
        ready=ready.get("status", "Unknown"),
        why_not=f"{ready.get('reason', '')} {ready.get('message', '')}".strip(),
        oidc=is_authentication_on(observed.authentication),
    )
