"""Observing: reads what the decision about a Broker needs: its configuration, sink, features, topic
and entry at its receiver; where reading fails, the error stands for the value.

Not here: which Kafka a Broker has (`kafkas`), the decision (`decide`), and what follows if a Broker
may not use its topic (`kind`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from knafka.core import names
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument, KnafkaError, LogError
from knafka_operator.brokers.decide import BrokerConnection, ObservedBroker, receiver_contract
from knafka_operator.brokers.defaults import with_default_delivery
from knafka_operator.brokers.external_topics import EXTERNAL_TOPICS, external_topic_refusal
from knafka_operator.brokers.kafkas import BrokerKafkas
from knafka_operator.decisions.sink_addresses import observe_sink
from knafka_operator.decisions.status import EXPECTED
from knafka_operator.functions import receiver_services
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import desired
from knafka_operator.kafka.clusters import KafkaCluster
from knafka_operator.kafka.topic_creation import has_records
from knafka_operator.kafka.topics import TOPIC_ID, ObservedTopic
from knafka_operator.model.cluster import Cluster, Document, status_annotations
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import EXTERNAL_TOPIC, Broker, Resource
from knafka_operator.receivers.receivers import Receivers
from knafka_operator.records.ownership import TopicOwnership
from knafka_operator.records.state import BrokerRecord, States, topic_in_status
from knafka_operator.senders.encryption import Encryption
from knafka_operator.senders.observe import observe_features, observe_https


@dataclass(eq=False)
class BrokerObserver:
    """Reads everything that a Broker's decision needs."""

    settings: Settings
    cluster: Cluster
    connections: BrokerKafkas
    states: States
    receivers: Receivers
    ownership: TopicOwnership

    async def find_topic_refusals(
        self, document: Document, record: BrokerRecord
    ) -> tuple[str | None, str | None]:
        """Return two texts: why a Broker may not use the external topic that it declares (None: it
        may), and why its receiver must stop (None: it may go on). The receiver must stop if the
        declared topic, or one that the Broker has used until now, isn't allowed.

        Reads the stored document, since a Broker that can't be parsed keeps running. Raises
        `ClusterError`.
        """
        identity = Identity.of(document)
        declared = (document["metadata"].get("annotations") or {}).get(EXTERNAL_TOPIC)
        topic_in_use = None if record.state is None else record.state.topic.name
        topics_to_check = {
            topic
            for topic in (topic_in_status(document), topic_in_use)
            if topic and not self.ownership.is_brokers_name(topic, document)
        }
        if declared is not None and names.is_topic(declared):
            topics_to_check.add(declared)
        if not topics_to_check:
            return None, None
        # Don't read the allowed topics from the Broker's own ConfigMap: its user writes that, as
        # well as the annotation.
        installation_config = await self.connections.read_installation_config()
        allowed = (
            "" if installation_config is None else installation_config.data.get(EXTERNAL_TOPICS, "")
        )
        config_map = (
            f"ConfigMap {self.connections.installation_config_identity}, the installation's own"
        )
        namespace = identity.namespace
        # These are the Sensors on Brokers and on channels alike.
        sensor_names = self.states.sensor_uid_by_name
        broker_topics = desired.NamesOfOthers(self.states.topics, record.uid)
        refusals = {
            topic: external_topic_refusal(
                topic, namespace, allowed, config_map, sensor_names, broker_topics
            )
            for topic in sorted(topics_to_check)
        }
        declared_refusal = refusals.get(declared or "")
        first_refusal = next(filter(None, refusals.values()), None)
        return declared_refusal, declared_refusal or first_refusal

    async def observe_without_topic(
        self, document: Document, record: BrokerRecord
    ) -> ObservedBroker:
        """Read the Broker, its Kafka's configuration, its dead letter sink and the features, but no
        topic. Also set `record.kafka`, unless the configuration can't be read. Raises
        `ClusterError`."""
        try:
            broker = await self._with_default_delivery(parse(Broker, document))
        except InvalidDocument as error:
            return ObservedBroker(document, error)
        connection: BrokerConnection | KnafkaError
        try:
            connection, record.kafka = await self.connections.connect(broker)
        except EXPECTED as error:
            connection = error
        sink, sink_reference = None, broker.spec.delivery.dead_letter_sink
        if sink_reference is not None:
            namespace = broker.metadata.namespace
            sink = await observe_sink(self.cluster, sink_reference, namespace, self.settings)
        features = await observe_features(self.cluster, self.settings, self.states.policies, broker)
        encryption = features.encryption
        observed = ObservedBroker(
            document,
            broker,
            connection,
            dead_letter_sink=sink,
            authentication=features.authentication,
            encryption=encryption,
            event_types=features.event_types,
        )
        if isinstance(encryption, Encryption) and encryption.is_on:
            observed = replace(
                observed, https=await observe_https(self.cluster, broker, self.settings)
            )
        return observed

    async def _with_default_delivery(self, broker: Broker) -> Broker:
        """Return the Broker with the delivery of the ConfigMap `config-br-defaults`, unless the
        Broker declares its own. Raises `InvalidDocument` for an invalid ConfigMap, and
        `ClusterError`."""
        if broker.spec.delivery.is_set:
            return broker
        namespace, _, name = self.settings.broker_defaults.partition("/")
        return with_default_delivery(
            broker, await self.connections.read_config_map(namespace, name)
        )

    async def observe_topic(
        self, observed: ObservedBroker, record: BrokerRecord
    ) -> ObservedTopic | KnafkaError | None:
        """Claim the name of a Broker's topic, unless the topic is external, and return the topic as
        declared and as it exists. Returns the error if reading fails with one of `EXPECTED`, and
        None if the Broker is invalid or its Kafka isn't known. Raises `ClusterError`."""
        if isinstance(observed.broker, InvalidDocument) or not isinstance(
            observed.connection, BrokerConnection
        ):
            return None
        assert record.kafka is not None
        names_of_others = desired.NamesOfOthers(self.states.topics, record.uid)
        try:
            await self.ownership.claim_if_proved(observed.document, record, names_of_others)
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
            # An empty id in the status says that the topic was about to be created. It proves that
            # an existing topic is the Broker's only if nobody else has used or claimed the topic.
            disputed = not self.settings.trusts_statuses
            has_empty_id = status_annotations(observed.document).get(TOPIC_ID) == ""
            if disputed and existing_topic is not None and has_empty_id:
                identity = Identity.of(observed.document)
                disputed = await has_records(record.kafka.topics, desired_topic.name) or (
                    await self.ownership.is_claimed(identity, desired_topic.name)
                )
        except EXPECTED as error:
            return error
        return ObservedTopic(desired_topic, existing_topic, disputed=disputed)

    async def observe_entry(self, observed: ObservedBroker, kafka: KafkaCluster) -> ObservedBroker:
        """Return `observed` with the Broker's entry in its receiver's contract topic
        (docs/decisions/0024), and with whether every replica of the receiver has read the entry;
        unchanged after a `LogError`. Raises `ClusterError`."""
        assert isinstance(observed.broker, Broker)
        assert isinstance(observed.connection, BrokerConnection)
        contract = receiver_contract(observed.broker, observed.connection, self.settings)
        identity, service = Identity.of(observed.document), receiver_identity(observed.broker)
        try:
            receiver = await self.receivers.ensure_receiver(service, kafka, contract.contract_topic)
            await self.receivers.check_contract(receiver, identity)
        except LogError:
            return observed  # reading the Broker's topic, or writing the entry, reports the error
        ingress, accepted = receiver.entry(f"/{identity}", observed.document)
        return replace(observed, ingress=ingress, accepted=accepted)


def receiver_identity(broker: Resource) -> Identity:
    """Return namespace and name of the Knative Service of a Broker's receiver."""
    return Identity(broker.metadata.namespace, receiver_services.receiver_name(broker))
