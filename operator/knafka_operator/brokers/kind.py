"""Brokers: gives each declared Broker a topic, a receiver and an address, and reports what prevents
that.

    observe (ConfigMaps, Secret, sink, topic) -> decide (`brokers.decide`) -> act, until all is done

A Broker's record keeps in `state` what its Triggers are reconciled from.

More than 400 lines, so that what is created for a Broker stands beside what is deleted with it, or
when another implementation takes it over.

Not here: watching for changes (`engine.controller`), the content of contract topics (`receivers`,
`contracts`), and decisions, which are pure functions (`brokers.decide`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from knafka.core import names
from knafka.core.contract import Kafka
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument, KnafkaError, LogError
from knafka_operator.brokers import decide as deciding
from knafka_operator.brokers.decide import (
    RECEIVER_CONTRACT,
    BrokerConnection,
    ObservedBroker,
)
from knafka_operator.brokers.defaults import with_default_delivery
from knafka_operator.brokers.external_topics import EXTERNAL_TOPICS, external_topic_refusal
from knafka_operator.decisions import status as statuses
from knafka_operator.decisions.sink_addresses import observe_sink
from knafka_operator.decisions.status import EXPECTED, NotReady
from knafka_operator.dispatchers.shard_services import Shards
from knafka_operator.engine.effects import Effects, resource_of
from knafka_operator.engine.kind import BrokerReconciler
from knafka_operator.functions import receiver_services, services
from knafka_operator.functions.applying import delete_service
from knafka_operator.installation.naming import NamedObject, NameKind
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import credentials, desired
from knafka_operator.kafka.clusters import KafkaCluster, KafkaClusters
from knafka_operator.kafka.desired import Defaults
from knafka_operator.kafka.endpoints import check_endpoint
from knafka_operator.kafka.topic_creation import (
    delete_broker_dead_letters,
    delete_shard_contract,
    delete_topic_and_groups,
    has_records,
)
from knafka_operator.kafka.topics import TOPIC_ID, ObservedTopic
from knafka_operator.model.cluster import Cluster, Document, decode_secret, status_annotations
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import (
    BROKER_CLASS,
    CORE,
    EXTERNAL_TOPIC,
    KNAFKA_PREFIX,
    TOPIC_STATUS,
    Broker,
    ConfigMap,
    Resource,
    is_claimed_by_peer,
)
from knafka_operator.receivers import contract_topics as receivers
from knafka_operator.receivers.addressable import AddressableDecision
from knafka_operator.receivers.receivers import Receivers
from knafka_operator.records.namespace_totals import partitions_of_others
from knafka_operator.records.ownership import TopicOwnership
from knafka_operator.records.state import BrokerRecord, BrokerState, States, topic_in_status
from knafka_operator.senders.encryption import Encryption
from knafka_operator.senders.observe import is_authentication_on, observe_features, observe_https


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
        self._own = TopicOwnership(self.cluster, self.states)
        """Decides which topics are a Broker's own."""

    @property
    def states_with_topic(self) -> Mapping[Identity, BrokerState]:
        """The state of every Broker that has its topic."""
        records = self.states.brokers.items()
        return {identity: record.state for identity, record in records if record.state is not None}

    def is_ours(self, document: Document) -> bool:
        """Whether the Broker's class is one of ours (KN-BRK-04), and no other implementation serves
        it (docs/decisions/0046)."""
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
        broker, identity = parse(Broker, document), Identity.of(document)
        record = self.states.ensure_broker(document)
        record.state = None  # else a Trigger that is being reconciled would drain again
        await self.remember_kafka(document)
        await self.neighbours.stop_triggers(identity)
        await delete_service(self.cluster, receiver_services.receiver_name(broker), broker)
        await self.shards.delete(broker)
        kafka = await self._find_kafka(broker)
        if (contract_name := broker.status.annotations.get(RECEIVER_CONTRACT)) is not None:
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
        or wasn't created for this Broker: a Broker that is declared again goes on by these groups,
        and each goes with its Trigger.

        Raises `LogError`, also while one of the groups has members, and `ClusterError`.
        """
        broker, identity = parse(Broker, document), Identity.of(document)
        annotations = broker.status.annotations
        # No event may be accepted into a topic that is about to go (KN-BRK-22).
        await delete_service(self.cluster, receiver_services.receiver_name(broker), broker)
        record = self.states.ensure_broker(document)
        await self.shards.delete(broker)
        if (contract_name := annotations.get(RECEIVER_CONTRACT)) is not None:
            await self._withdraw_entry(broker, contract_name, await self._find_kafka(broker))
        topic = annotations.get(TOPIC_STATUS)
        is_external = EXTERNAL_TOPIC in broker.metadata.annotations
        if topic is not None and self._is_own(topic, document) and not is_external:
            topics, recorded_id = (await self._find_kafka(broker)).topics, annotations.get(TOPIC_ID)
            claimed = await self._own.is_claimed(identity, topic)
            await delete_topic_and_groups(topics, topic, recorded_id, groups, claimed=claimed)
        if topic is not None:  # else no dispatcher was ever started
            kafka = await self._find_kafka(broker)
            self.states.note_kafka(identity, kafka)
            await delete_broker_dead_letters(kafka.topics, *identity)
        if record.has_contract:
            topics = (await self._find_kafka(broker)).topics
            await delete_shard_contract(topics, *identity, record.shards, topic)
        self.drop(document)

    async def _withdraw_entry(self, broker: Resource, topic: str, kafka: KafkaCluster) -> None:
        """Remove a Broker's entry from `topic`, the contract topic that its status names, once its
        receiver is gone. With its last entry, also delete the topic, unless it belongs to the
        installation's Secret. Raises `LogError`."""
        namespace = broker.metadata.namespace
        if not receivers.may_hold_brokers_of(topic, namespace, self.settings):
            return  # somebody else wrote this name into the status: don't read that topic
        receiver = await self.receivers.ensure_receiver(_receiver_identity(broker), kafka, topic)
        path = f"/{services.identity_of(broker)}"
        if path in receiver.contract.records:
            await receiver.write(path, None)
        if receivers.is_of_namespace_secret(topic, namespace, self.settings):
            await self.receivers.delete_contract(receiver)

    async def remember_kafka(self, document: Document) -> None:
        """Note the Kafka of a Broker that has a contract topic and wasn't reconciled yet, in its
        record, so that Triggers can be withdrawn from the contract."""
        record = self.states.ensure_broker(document)
        if record.has_contract and record.kafka is None:
            record.kafka = await self._find_kafka(parse(Broker, document))

    def drop(self, document: Document) -> None:
        """Forget a Broker that is gone; nothing in Kafka is deleted."""
        self.receivers.forget(_receiver_identity(resource_of(document)))
        self.states.drop_broker(Identity.of(document))

    def _is_own(self, topic: str | None, document: Document) -> bool:
        """Whether the naming rules give this topic name to this Broker."""
        return self.states.naming.is_own(NameKind.BROKER_TOPIC, topic, NamedObject.of(document))

    def remember_topic(self, document: Document) -> BrokerRecord:
        """Claim the topic that a Broker's status names, if the naming rules give it that name and
        no other object has claimed it; returns the Broker's record."""
        record, topic = self.states.ensure_broker(document), topic_in_status(document)
        is_own_topic = self._is_own(topic, document)
        if topic is not None and is_own_topic and topic not in self.states.topics:
            self.states.claim_topic(record, topic)
        return record

    # Reconcile.

    async def observe(self, document: Document, record: BrokerRecord) -> ObservedBroker:
        """Read what a Broker's decision needs; first delete the receiver of a Broker that may not
        use its topic. Raises `ClusterError`."""
        # Before anything that can fail: a broken Broker mustn't keep a topic that it may not use.
        refused, stop_reason = await self._find_topic_refusals(document, record)
        if stop_reason is not None:
            await self._stop_receiver(stop_reason, document, record)
        observed = await self._observe_without_topic(document, record)
        observed = replace(observed, refused=refused, stopped=stop_reason is not None)
        if refused is None:
            observed = replace(observed, topic=await self._observe_topic(observed, record))
        if isinstance(observed.topic, ObservedTopic):
            assert record.kafka is not None
            observed = await self._observe_entry(observed, record.kafka)
        return observed

    def decide(self, observed: ObservedBroker, record: BrokerRecord) -> AddressableDecision:
        """Decide what to do from `observed`."""
        return deciding.decide(observed, self.settings)

    def status_of(
        self, observed: ObservedBroker, decision: AddressableDecision, record: BrokerRecord
    ) -> Mapping[str, Any]:
        """Return the last decision's status; also update the state in the record, by which the
        Broker's Triggers are reconciled."""
        identity = Identity.of(observed.document)
        receiver = _receiver_identity(resource_of(observed.document))
        functions = receiver, *self.shards.services_of(identity)
        self.states.rolls.add_condition(decision.conditions, *functions)
        status = super().status_of(observed, decision, record)
        _update_state(observed, decision, record, status["conditions"])
        return status

    async def finish(self, observed: ObservedBroker, record: BrokerRecord) -> None:
        """Maintain the shards of a Broker that has its topic (`Shards.maintain`)."""
        if record.state is not None:
            await self.shards.maintain(record.state.broker)

    # Observe.

    async def _find_topic_refusals(
        self, document: Document, record: BrokerRecord
    ) -> tuple[str | None, str | None]:
        """Return two texts: why a Broker may not use the external topic that it declares (None: it
        may), and why its receiver must stop (None: it may go on). It must stop if the declared
        topic, or one that it has used until now, isn't allowed.

        Reads the stored document, since a Broker that can't be parsed keeps running. Raises
        `ClusterError`.
        """
        identity = Identity.of(document)
        declared = (document["metadata"].get("annotations") or {}).get(EXTERNAL_TOPIC)
        used_topics = {topic_in_status(document), record.state and record.state.topic.name}
        topics_to_check = {
            topic for topic in used_topics if topic and not self._is_own(topic, document)
        } | ({declared} if declared is not None and names.is_topic(declared) else set())
        if not topics_to_check:
            return None, None
        # Don't read the allowed topics from the Broker's own ConfigMap: its user writes that, as
        # well as the annotation.
        installation_config = await self._read_config_map(*self._defaults_identity)
        allowed = (
            "" if installation_config is None else installation_config.data.get(EXTERNAL_TOPICS, "")
        )
        allowed_by = f"ConfigMap {self._defaults_identity}, the installation's own"
        namespace = identity.namespace
        # `self.states` knows the topics of Sensors, too, whatever their bus.
        other_owners = (
            self.states.sensor_uid_by_name,
            desired.NamesOfOthers(self.states.topics, record.uid),
        )
        refusals = {
            topic: external_topic_refusal(topic, namespace, allowed, allowed_by, *other_owners)
            for topic in sorted(topics_to_check)
        }
        declared_refusal = refusals.get(declared or "")
        used_refusal = next(filter(None, refusals.values()), None)
        return declared_refusal, declared_refusal or used_refusal

    async def _observe_without_topic(
        self, document: Document, record: BrokerRecord
    ) -> ObservedBroker:
        """Read the Broker, its Kafka's configuration, its sink and the features, but no topic; also
        set `record.kafka`. Raises `ClusterError`."""
        try:
            broker = await self._with_defaults(parse(Broker, document))
        except InvalidDocument as error:
            return ObservedBroker(document, error)
        connection: BrokerConnection | KnafkaError
        try:
            connection, record.kafka = await self._connect(broker)
        except EXPECTED as error:
            connection = error
        sink, sink_reference = None, broker.spec.delivery.dead_letter_sink
        if sink_reference is not None:
            namespace = broker.metadata.namespace
            sink = await observe_sink(self.cluster, sink_reference, namespace, self.settings)
        features = await observe_features(
            self.cluster, self.settings, self.states.policies, broker.metadata.namespace
        )
        encryption = features.encryption
        observed = ObservedBroker(
            document,
            broker,
            connection,
            sink,
            authentication=features.authentication,
            encryption=encryption,
            event_types=features.event_types,
        )
        if isinstance(encryption, Encryption) and encryption.is_on:
            observed = replace(
                observed, https=await observe_https(self.cluster, broker, self.settings)
            )
        return observed

    async def _connect(self, broker: Broker) -> tuple[BrokerConnection, KafkaCluster]:
        """Return the configuration and client of a Broker's Kafka. The Broker's ConfigMap is merged
        over the installation's; its Secret must exist, and the Broker must be allowed to use both.
        Raises the errors in `EXPECTED`."""
        installation_config = await self._read_config_map(*self._defaults_identity)
        reference = desired.config_reference(broker)
        broker_config = None if reference is None else await self._read_config_map(*reference)
        credentials.check_config_map_reference(
            reference, broker_config, broker, self._defaults_identity
        )
        configured = credentials.merge_configuration(
            reference, broker_config, installation_config, self._defaults_identity
        )
        credentials.check_secret(configured, broker, self.settings)
        secret = None
        if configured.secret is not None:
            secret = await self.cluster.get(CORE, "Secret", *configured.secret)
            if secret is None:
                raise NotReady("SecretNotFound", f"Secret {configured.secret} does not exist")
        servers = Kafka(bootstrap_servers=configured.config.data[desired.BOOTSTRAP_SERVERS])
        defaults = desired.defaults_with_config(configured.config, Defaults(kafka=servers))
        bootstrap_servers = defaults.kafka.bootstrap_servers
        if secret is None:
            kafka = self.kafkas.ensure_cluster(bootstrap_servers, None)
            return BrokerConnection(configured.config, defaults), kafka
        # Whether an administrator wrote the Secret; a user's Secret is checked more strictly.
        is_own = configured.is_offered or Identity.of(secret)[0] == self.settings.namespace
        if not is_own:
            await check_endpoint(decode_secret(secret), self.settings)
        kafka = self.kafkas.ensure_cluster(bootstrap_servers, decode_secret(secret), is_own=is_own)
        mount = credentials.secret_mount(broker, secret)
        mounted = defaults.kafka.model_copy(update={"secret_path": services.SECRET_PATH})
        return BrokerConnection(configured.config, replace(defaults, kafka=mounted), mount), kafka

    async def _with_defaults(self, broker: Broker) -> Broker:
        """Return the Broker with the delivery of `config-br-defaults`, unless it declares its
        own."""
        if broker.spec.delivery.is_set:
            return broker
        namespace, _, name = self.settings.broker_defaults.partition("/")
        return with_default_delivery(broker, await self._read_config_map(namespace, name))

    async def _observe_topic(
        self, observed: ObservedBroker, record: BrokerRecord
    ) -> ObservedTopic | KnafkaError | None:
        """Claim the name of a Broker's topic, and return the topic as declared and as it exists, or
        the error of reading it. None: the Broker is invalid, or its Kafka isn't known."""
        if isinstance(observed.broker, InvalidDocument) or not isinstance(
            observed.connection, BrokerConnection
        ):
            return None
        assert record.kafka is not None
        names_of_others = desired.NamesOfOthers(self.states.topics, record.uid)
        try:
            await self._own.claim_if_proved(observed.document, record, names_of_others)
            desired_topic = desired.broker_topic(
                observed.broker,
                observed.connection.config,
                observed.connection.defaults,
                names_of_others,
                self.states.naming,
            )
            if not desired_topic.external:
                self.states.claim_topic(record, desired_topic.name)
            existing_topic = await record.kafka.topics.describe_topic(desired_topic.name)
            # Whether an empty id in the status proves nothing (`ObservedTopic.disputed`).
            disputed = not self.settings.trusts_statuses
            has_empty_id = status_annotations(observed.document).get(TOPIC_ID) == ""
            if disputed and existing_topic is not None and has_empty_id:
                identity = Identity.of(observed.document)
                disputed = await has_records(record.kafka.topics, desired_topic.name) or (
                    await self._own.is_claimed(identity, desired_topic.name)
                )
        except EXPECTED as error:
            return error
        partitions_of_other_brokers = (
            0
            if existing_topic
            else partitions_of_others(self.states, Identity.of(observed.document))
        )
        return ObservedTopic(desired_topic, existing_topic, partitions_of_other_brokers, disputed)

    async def _observe_entry(self, observed: ObservedBroker, kafka: KafkaCluster) -> ObservedBroker:
        """Return `observed` with the Broker's entry in its receiver's contract
        (docs/decisions/0024), and whether every replica has read that; unchanged after a
        `LogError`. Raises `ClusterError`."""
        assert isinstance(observed.broker, Broker)
        assert isinstance(observed.connection, BrokerConnection)
        contract = deciding.receiver_contract(observed.broker, observed.connection, self.settings)
        identity, service = Identity.of(observed.document), _receiver_identity(observed.broker)
        try:
            receiver = await self.receivers.ensure_receiver(service, kafka, contract.contract_topic)
            await self.receivers.check_contract(receiver, identity)
        except LogError:
            return observed  # reading the Broker's topic, or writing the entry, reports the error
        ingress, accepted = receiver.entry(f"/{identity}", observed.document)
        return replace(observed, ingress=ingress, accepted=accepted)

    async def _find_kafka(self, broker: Broker) -> KafkaCluster:
        """Return the Kafka with a Broker's topic, even if its ConfigMap was deleted first. Raises
        the errors in `EXPECTED` if the Kafka isn't known."""
        try:
            return (await self._connect(broker))[1]
        except (NotReady, InvalidDocument):
            record = self.states.brokers.get(
                Identity(broker.metadata.namespace, broker.metadata.name)
            )
            if record is not None and record.kafka is not None:
                return record.kafka
            # The operator has restarted since: without credentials it may still succeed.
            servers = broker.status.annotations.get(desired.BOOTSTRAP_SERVERS)
            if servers is None:
                raise
            return self.kafkas.ensure_cluster(servers, None)

    @property
    def _defaults_identity(self) -> Identity:
        """Namespace and name of the ConfigMap with the defaults for all Brokers."""
        return Identity(self.settings.namespace, self.settings.config)

    async def _read_config_map(self, namespace: str, name: str) -> ConfigMap | None:
        """Return a parsed ConfigMap; None: it doesn't exist. Raises `ClusterError`."""
        stored = await self.cluster.get(CORE, "ConfigMap", namespace, name)
        return None if stored is None else parse(ConfigMap, stored)

    async def _stop_receiver(self, reason: str, document: Document, record: BrokerRecord) -> None:
        """Delete a Broker's receiver, so that no event is accepted, and note the reason in the
        record. Raises `ClusterError`."""
        broker = resource_of(document)
        record.stopped, record.state = reason, None
        await delete_service(self.cluster, receiver_services.receiver_name(broker), broker)


def _receiver_identity(broker: Resource) -> Identity:
    """Return namespace and name of the Knative Service of a Broker's receiver."""
    return Identity(broker.metadata.namespace, receiver_services.receiver_name(broker))


def _update_state(
    observed: ObservedBroker,
    decision: AddressableDecision,
    record: BrokerRecord,
    conditions: list[dict[str, Any]],
) -> None:
    """Update the state in a Broker's record, by which its Triggers are reconciled; `conditions` are
    those of its new status. The state stays as it is if the Broker has no topic or no connection
    now."""
    topic, connection = decision.topic, observed.connection
    if topic is None or topic.existing is None or not isinstance(connection, BrokerConnection):
        return
    assert isinstance(observed.broker, Broker)
    assert record.kafka is not None
    ready, mount = statuses.ready_condition(conditions), connection.mount
    record.stopped = None
    record.state = BrokerState(
        broker=observed.broker,
        topic=desired.with_records_as_in_kafka(topic.desired, topic.existing.config),
        partitions=topic.existing.partitions,
        defaults=connection.defaults,
        secret=None if mount is None else (mount.name, mount.version),
        kafka=record.kafka,
        ready=ready.get("status", "Unknown"),
        why_not=f"{ready.get('reason', '')} {ready.get('message', '')}".strip(),
        oidc=is_authentication_on(observed.authentication),
    )
