"""Brokers: from what is declared to a topic, a receiver and an address, and what stands in the way.

    observe (ConfigMaps, Secret, sink, topic) -> decide (`decide.broker`) -> act, until all is done

What a Broker's Triggers are made from stays in its record's `state`.

More than 400 lines, so that what is made for a Broker and what becomes of that when it goes, or
goes to another implementation, are side by side.

Not here: hearing of changes (`engine.controller`), what stands in a contract's topic (`receivers`,
`contracts`), and any decision, which is a pure function.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from knafka.core import names
from knafka.core.contract import Kafka
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument, KnafkaError, LogError
from knafka_operator.decide import broker as deciding
from knafka_operator.decide import credentials, desired, receivers, services
from knafka_operator.decide import status as statuses
from knafka_operator.decide.broker import (
    RECEIVER_CONTRACT,
    BrokerDecision,
    Connection,
    ObservedBroker,
    ObservedTopic,
)
from knafka_operator.decide.broker_defaults import with_default_delivery
from knafka_operator.decide.desired import Defaults
from knafka_operator.decide.encryption import Encryption
from knafka_operator.decide.external_topics import EXTERNAL_TOPICS, refusal
from knafka_operator.decide.status import EXPECTED, NotReady
from knafka_operator.decide.topics import TOPIC_ID
from knafka_operator.model.cluster import Cluster, Document, decoded
from knafka_operator.model.identity import Identity
from knafka_operator.model.naming import Named, NameKind
from knafka_operator.model.resources import (
    BROKER_CLASS,
    CORE,
    EXTERNAL_TOPIC,
    OURS,
    TOPIC_STATUS,
    Broker,
    ConfigMap,
    Resource,
    is_claimed_by_peer,
)
from knafka_operator.model.settings import Settings
from knafka_operator.reconcile.effects import Effects, resource_of
from knafka_operator.reconcile.encryption import observe_https
from knafka_operator.reconcile.endpoints import check_endpoint
from knafka_operator.reconcile.features import is_on, observe_features
from knafka_operator.reconcile.functions import delete_service
from knafka_operator.reconcile.kind import Sources
from knafka_operator.reconcile.observing import observe_sink, partitions_beside
from knafka_operator.reconcile.ownership import TopicOwnership, annotations_of
from knafka_operator.reconcile.receivers import Receivers
from knafka_operator.reconcile.shards import Shards
from knafka_operator.reconcile.state import (
    BrokerRecord,
    BrokerState,
    States,
    topic_in_status,
)
from knafka_operator.reconcile.topics import delete_letters, is_used, topic_to_delete
from knafka_operator.scale.kafka_clusters import KafkaCluster, KafkaClusters


@dataclass(eq=False)
class Brokers(Sources[ObservedBroker, BrokerDecision]):
    """All Brokers that are ours."""

    settings: Settings
    cluster: Cluster
    kafkas: KafkaClusters
    shards: Shards
    states: States
    receivers: Receivers
    effects: Effects
    now: Callable[[], str]
    """The time, RFC 3339."""

    def __post_init__(self) -> None:
        self.api_version = self.states.family.broker_version
        self._own = TopicOwnership(self.cluster, self.states)

    @property
    def found(self) -> Mapping[Identity, BrokerState]:
        """Every Broker that has its topic."""
        records = self.states.brokers.items()
        return {who: each.state for who, each in records if each.state is not None}

    def is_ours(self, document: Document) -> bool:
        """Whether the Broker's class is one of ours (KN-BRK-04), and no other implementation serves
        it (docs/decisions/0046)."""
        annotations = document["metadata"].get("annotations") or {}
        # In the local mode there is no other, whatever an exported document says.
        if is_claimed_by_peer(document) and not self.settings.trusts_statuses:
            return False
        return annotations.get(BROKER_CLASS, "") in self.settings.broker_classes

    async def leave(self, document: Document) -> None:
        """Another implementation has claimed it: have no functions for it, and leave it its topic
        and its Triggers' groups. Raises `KnafkaError` while something stands in the way.

        Our annotations go from its status last of all, and with them what is to be done.
        """
        ours = [each for each in annotations_of(document) if each.startswith(OURS)]
        if not ours:
            return
        broker, identity = parse(Broker, document), Identity.of(document)
        record = self.states.broker(document)
        record.state = None  # a Trigger that is just being reconciled would begin to drain again
        await self.find_kafka(document)
        await self.neighbours.stop_triggers(identity)
        await delete_service(self.cluster, services.receiver_name(broker), broker)
        await self.shards.delete(broker)
        kafka = await self._kafka_of(broker)
        if (entry := broker.status.annotations.get(RECEIVER_CONTRACT)) is not None:
            await self._withdraw(broker, entry, kafka)
        if record.has_contract:
            await kafka.topics.delete_topic(names.contract_topic(*identity))
        self.drop(document)
        patch: dict[str, Any] = {
            "annotations": dict.fromkeys(ours),
            "address": None,
            "conditions": [],
        }
        await self.cluster.write_status(document, patch)

    async def delete_topic(self, document: Document, groups: Collection[str]) -> None:
        """Stop its receiver, then delete its topic, which `groups` read.

        Raises `LogError`, also while one of them has members, and `ClusterError`.
        """
        broker = parse(Broker, document)
        metadata, annotations = broker.metadata, broker.status.annotations
        # No event may be accepted into a topic that is about to go (KN-BRK-22).
        await delete_service(self.cluster, services.receiver_name(broker), broker)
        record = self.states.broker(document)
        await self.shards.delete(broker)
        if (entry := annotations.get(RECEIVER_CONTRACT)) is not None:
            await self._withdraw(broker, entry, await self._kafka_of(broker))
        topic = annotations.get(TOPIC_STATUS)
        own = self._is_own(topic, document)
        if topic is not None and own and EXTERNAL_TOPIC not in metadata.annotations:
            topics = (await self._kafka_of(broker)).topics
            known, of = annotations.get(TOPIC_ID), Identity.of(document)
            claimed = await self._own.is_claimed(of, topic)
            if await topic_to_delete(topics, topic, known, claimed=claimed) is not None:
                for group in groups:
                    # A dispatcher that has still to leave it would commit where it was, and Kafka
                    # takes that for a topic made anew under the name: events would be passed over.
                    await topics.delete_group(group)
                await topics.delete_topic(topic)
        if topic is not None:  # else no dispatcher was ever started
            topics = (await self._kafka_of(broker)).topics
            await delete_letters(topics, metadata.namespace, metadata.name)
        if record.has_contract:
            topics = (await self._kafka_of(broker)).topics
            for number in record.shards:
                shard = names.shard_group(metadata.namespace, metadata.name, number)
                await topics.delete_group(names.shard_members(shard, topic or ""))
            await topics.delete_topic(names.contract_topic(metadata.namespace, metadata.name))
        self.drop(document)

    async def _withdraw(self, broker: Resource, topic: str, kafka: KafkaCluster) -> None:
        """Leave no entry in a contract's topic, as the Broker's status names it; its receiver is
        gone. The topic goes with its last Broker if its Secret is its namespace's, where nobody
        might follow; the installation's own stays. Raises `LogError`."""
        namespace = broker.metadata.namespace
        if not receivers.is_contract_of_brokers(topic, namespace, self.settings):
            return  # somebody wrote it there: it would be read to its end
        receiver = await self.receivers.at(_receiver(broker), kafka, topic)
        path = f"/{services.identity_of(broker)}"
        if path in receiver.contract.records:
            await receiver.write(path, None)
        if receivers.is_of_secret_in(topic, namespace, self.settings):
            await self.receivers.delete_contract(receiver)

    async def find_kafka(self, document: Document) -> None:
        """Keep in mind where a Broker is that wasn't reconciled, if its shards are to let go."""
        record = self.states.broker(document)
        if record.has_contract and record.kafka is None:
            record.kafka = await self._kafka_of(parse(Broker, document))

    def drop(self, document: Document) -> None:
        """It is gone, whatever is left of it in Kafka."""
        self.receivers.forget(_receiver(resource_of(document)))
        self.states.drop_broker(Identity.of(document))

    def _is_own(self, topic: str | None, document: Document) -> bool:
        """Whether this Broker can have this topic as its own."""
        return self.states.naming.is_own(NameKind.BROKER_TOPIC, topic, Named.of(document))

    def remember_topic(self, document: Document) -> BrokerRecord:
        """Keep in mind which topic a Broker has, before any other is reconciled."""
        record, topic = self.states.broker(document), topic_in_status(document)
        own = self._is_own(topic, document)
        if topic is not None and own and topic not in self.states.topics:
            self.states.claim_topic(record, topic)
        return record

    # Reconcile.

    async def observe(self, document: Document, record: BrokerRecord) -> ObservedBroker:
        # Before anything that can fail: what a Broker may not use it doesn't keep by being broken.
        refused, stop = await self._external_topic(document, record)
        if stop is not None:
            await self._stop_receiver(stop, document, record)
        seen = await self._observe(document, record)
        seen = replace(seen, refused=refused, stopped=stop is not None)
        if refused is None:
            seen = replace(seen, topic=await self._observe_topic(seen, record))
        if isinstance(seen.topic, ObservedTopic):
            assert record.kafka is not None
            seen = await self._observe_entry(seen, record.kafka)
        return seen

    def decide(self, seen: ObservedBroker, record: BrokerRecord) -> BrokerDecision:
        return deciding.decide(seen, self.settings)

    def status_of(
        self, seen: ObservedBroker, decision: BrokerDecision, record: BrokerRecord
    ) -> Mapping[str, Any]:
        identity = Identity.of(seen.document)
        receiver = _receiver(resource_of(seen.document))
        functions = receiver, *self.shards.services_of(identity)
        self.states.rolls.add_to(decision.conditions, *functions)
        status = super().status_of(seen, decision, record)
        _remember(seen, decision, record, status["conditions"])
        return status

    async def finish(self, seen: ObservedBroker, record: BrokerRecord) -> None:
        if record.state is not None:
            await self.shards.look(record.state.broker)

    # Observe.

    async def _external_topic(
        self, document: Document, record: BrokerRecord
    ) -> tuple[str | None, str | None]:
        """Why it may not use the external topic that it names, and why it must stop.

        It also stops if it may no longer use the one that it has used until now: a Broker whose
        new topic can't be had yet goes on with the one before. Goes by the stored document as it
        is, since one that can't be parsed runs on, too. Raises `ClusterError`.
        """
        identity = Identity.of(document)
        declared = (document["metadata"].get("annotations") or {}).get(EXTERNAL_TOPIC)
        used = {topic_in_status(document), record.state and record.state.topic.name}
        asked = {each for each in used if each and not self._is_own(each, document)} | (
            {declared} if declared is not None and names.is_topic(declared) else set()
        )
        if not asked:
            return None, None
        # Not the Broker's own ConfigMap: that is the user's, as the annotation is.
        base = await self._config_map(*self._installation)
        allowed = "" if base is None else base.data.get(EXTERNAL_TOPICS, "")
        where = f"ConfigMap {self._installation}, the installation's own"
        namespace = identity.namespace
        # All Sensors' are among the states of Brokers, whichever bus they have.
        others = (
            self.states.of_sensors,
            desired.OthersNames(self.states.topics, record.uid),
        )
        refusals = {
            each: refusal(each, namespace, allowed, where, *others) for each in sorted(asked)
        }
        refused = refusals.get(declared or "")
        return refused, refused or next(filter(None, refusals.values()), None)

    async def _observe(self, document: Document, record: BrokerRecord) -> ObservedBroker:
        """All but the topic; raises `ClusterError`."""
        try:
            broker = await self._with_defaults(parse(Broker, document))
        except InvalidDocument as error:
            return ObservedBroker(document, error)
        connection: Connection | KnafkaError
        try:
            connection, record.kafka = await self._connect(broker)
        except EXPECTED as error:
            connection = error
        sink, declared = None, broker.spec.delivery.dead_letter_sink
        if declared is not None:
            namespace = broker.metadata.namespace
            sink = await observe_sink(self.cluster, declared, namespace, self.settings)
        features = await observe_features(
            self.cluster, self.settings, self.states.policies, broker.metadata.namespace
        )
        encryption = features.encryption
        seen = ObservedBroker(
            document,
            broker,
            connection,
            sink,
            authentication=features.authentication,
            encryption=encryption,
            event_types=features.event_types,
        )
        if isinstance(encryption, Encryption) and encryption.is_on:
            seen = replace(seen, https=await observe_https(self.cluster, broker, self.settings))
        return seen

    async def _connect(self, broker: Broker) -> tuple[Connection, KafkaCluster]:
        """The Broker's Kafka, by its ConfigMap over the installation's; raises `EXPECTED`."""
        base = await self._config_map(*self._installation)
        reference = desired.config_reference(broker)
        own = None if reference is None else await self._config_map(*reference)
        credentials.check_reference(reference, own, broker, self._installation)
        configured = credentials.configuration(reference, own, base, self._installation)
        credentials.check_secret(configured, broker, self.settings)
        secret = None
        if configured.secret is not None:
            secret = await self.cluster.get(CORE, "Secret", *configured.secret)
            if secret is None:
                raise NotReady("SecretNotFound", f"Secret {configured.secret} does not exist")
        servers = Kafka(bootstrap_servers=configured.config.data[desired.BOOTSTRAP_SERVERS])
        defaults = desired.configured(configured.config, Defaults(kafka=servers))
        of = defaults.kafka.bootstrap_servers
        if secret is None:
            return Connection(configured.config, defaults), self.kafkas.at(of, None)
        is_own = configured.is_installations or Identity.of(secret)[0] == self.settings.namespace
        if not is_own:
            await check_endpoint(decoded(secret), self.settings)
        kafka = self.kafkas.at(of, decoded(secret), is_own=is_own)
        mount = credentials.mount(broker, secret)
        mounted = defaults.kafka.model_copy(update={"secret_path": services.SECRET_PATH})
        return Connection(configured.config, replace(defaults, kafka=mounted), mount), kafka

    async def _with_defaults(self, broker: Broker) -> Broker:
        """With the delivery of `config-br-defaults` where it declares none."""
        if broker.spec.delivery.is_set:
            return broker
        namespace, _, name = self.settings.broker_defaults.partition("/")
        return with_default_delivery(broker, await self._config_map(namespace, name))

    async def _observe_topic(
        self, seen: ObservedBroker, record: BrokerRecord
    ) -> ObservedTopic | KnafkaError | None:
        """Its topic, whose name is its own from here on; None: its Kafka isn't known."""
        if isinstance(seen.broker, InvalidDocument) or not isinstance(seen.connection, Connection):
            return None
        assert record.kafka is not None
        taken = desired.OthersNames(self.states.topics, record.uid)
        try:
            await self._own.prove(seen.document, record, taken)
            wanted = desired.broker_topic(
                seen.broker,
                seen.connection.config,
                seen.connection.defaults,
                taken,
                self.states.naming,
            )
            if not wanted.external:
                self.states.claim_topic(record, wanted.name)
            found = await record.kafka.topics.describe_topic(wanted.name)
            disputed = not self.settings.trusts_statuses
            if disputed and found is not None and annotations_of(seen.document).get(TOPIC_ID) == "":
                identity = Identity.of(seen.document)
                disputed = await is_used(record.kafka.topics, wanted.name) or (
                    await self._own.is_claimed(identity, wanted.name)
                )
        except EXPECTED as error:
            return error
        others = 0 if found else partitions_beside(self.states, Identity.of(seen.document))
        return ObservedTopic(wanted, found, others, disputed)

    async def _observe_entry(self, seen: ObservedBroker, kafka: KafkaCluster) -> ObservedBroker:
        """With its entry in the contract that its receiver follows (decision 0024), and whether
        every replica has read that. Raises `ClusterError`."""
        assert isinstance(seen.broker, Broker)
        assert isinstance(seen.connection, Connection)
        contract = deciding.receiver_contract(seen.broker, seen.connection, self.settings)
        identity, service = Identity.of(seen.document), _receiver(seen.broker)
        try:
            receiver = await self.receivers.at(service, kafka, contract.contract_topic)
            await self.receivers.check(receiver, identity)
        except LogError:
            return seen  # its topic can't be had either, or what writes its entry says why
        ingress, accepted = receiver.entry(f"/{identity}", seen.document)
        return replace(seen, ingress=ingress, accepted=accepted)

    async def _kafka_of(self, broker: Broker) -> KafkaCluster:
        """Where its topic is, also when its ConfigMap went before it did."""
        try:
            return (await self._connect(broker))[1]
        except (NotReady, InvalidDocument):
            record = self.states.brokers.get(
                Identity(broker.metadata.namespace, broker.metadata.name)
            )
            if record is not None and record.kafka is not None:
                return record.kafka
            # The operator is new since: without credentials it may still succeed.
            servers = broker.status.annotations.get(desired.BOOTSTRAP_SERVERS)
            if servers is None:
                raise
            return self.kafkas.at(servers, None)

    @property
    def _installation(self) -> Identity:
        """The ConfigMap with the defaults for all Brokers."""
        return Identity(self.settings.namespace, self.settings.config)

    async def _config_map(self, namespace: str, name: str) -> ConfigMap | None:
        found = await self.cluster.get(CORE, "ConfigMap", namespace, name)
        return None if found is None else parse(ConfigMap, found)

    async def _stop_receiver(self, why: str, document: Document, record: BrokerRecord) -> None:
        """Accept nothing any more; raises `ClusterError`."""
        broker = resource_of(document)
        record.stopped, record.state = why, None
        await delete_service(self.cluster, services.receiver_name(broker), broker)


def _receiver(broker: Resource) -> Identity:
    """Where its receiver's Knative Service is."""
    return Identity(broker.metadata.namespace, services.receiver_name(broker))


def _remember(
    seen: ObservedBroker,
    decision: BrokerDecision,
    record: BrokerRecord,
    conditions: list[dict[str, Any]],
) -> None:
    """Keep what its Triggers go by; where less was found, they go on with what was before."""
    topic, connection = decision.topic, seen.connection
    if topic is None or topic.found is None or not isinstance(connection, Connection):
        return
    assert isinstance(seen.broker, Broker)
    assert record.kafka is not None
    ready, mount = statuses.summary(conditions), connection.mount
    record.stopped = None
    record.state = BrokerState(
        broker=seen.broker,
        topic=topic.wanted,
        partitions=topic.found.partitions,
        defaults=connection.defaults,
        secret=None if mount is None else (mount.name, mount.version),
        kafka=record.kafka,
        ready=ready.get("status", "Unknown"),
        why_not=f"{ready.get('reason', '')} {ready.get('message', '')}".strip(),
        oidc=is_on(seen.authentication),
    )
