"""KafkaSinks: gives each declared KafkaSink a receiver that writes events to its topic.

    observe (Secret, Kafka, topic, senders) -> decide (`sinks.decide`) -> act, until all is done

Not here: watching for changes (`engine.controller`), and decisions, which are pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from knafka.core.contract import Kafka
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka_operator.decisions.effects import Annotate, CreateTopic
from knafka_operator.decisions.status import EXPECTED, NotReady, ready_condition
from knafka_operator.engine.effects import Effects, resource_of
from knafka_operator.engine.kind import Kind, Reconciler
from knafka_operator.functions import services
from knafka_operator.functions.applying import delete_service
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka.clusters import KafkaCluster, KafkaClusters
from knafka_operator.kafka.endpoints import check_endpoint
from knafka_operator.kafka.topic_creation import find_topic_to_delete, has_records
from knafka_operator.kafka.topics import TOPIC_ID
from knafka_operator.model.cluster import Cluster, Document, decode_secret, status_annotations
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import CORE, TOPIC_STATUS, Resource
from knafka_operator.model.sources import refuse_taken_topics
from knafka_operator.receivers.addressable import AddressableDecision
from knafka_operator.records.namespace_totals import partitions_of_others
from knafka_operator.records.state import States
from knafka_operator.senders.encryption import Encryption
from knafka_operator.senders.observe import observe_features, observe_https_of
from knafka_operator.sinks.decide import ObservedSink, decide
from knafka_operator.sinks.manifests import sink_receiver_name
from knafka_operator.sinks.model import KAFKA_SINK, SINKS_VERSION, KafkaSink


@dataclass(eq=False, slots=True)
class SinkRecord:
    """What the operator keeps in memory about one KafkaSink."""

    uid: str
    kafka: KafkaCluster | None = None
    """The sink's Kafka; kept because the Secret may be deleted before the sink."""
    partitions: int = 0
    """Partitions of the topic that was created for it, or is to be; 0: there is none."""
    is_ready: bool | None = None
    """Whether the sink is Ready; None: it hasn't been reconciled yet."""
    claims: set[tuple[str, str]] = field(default_factory=set)
    """The topics whose names this sink has reserved, each as Kafka servers and name."""


@dataclass(eq=False)
class KafkaSinks(Reconciler[ObservedSink, AddressableDecision, SinkRecord], Kind):
    """Reconciles all KafkaSinks."""

    api_version = SINKS_VERSION
    left_behind = "Kafka still has its topic, which nobody will delete"
    """For users: what may still exist if a deletion was given up."""

    settings: Settings
    cluster: Cluster
    kafkas: KafkaClusters
    states: States
    """The records of Brokers, whose topics count towards a namespace's maximum; and the limit of
    functions that roll at a time."""
    effects: Effects
    now: Callable[[], str]
    """Returns the time, RFC 3339."""
    is_taken: Callable[[str], bool]
    """Returns whether a Broker, KafkaChannel or Sensor has a topic of this name."""
    records: dict[Identity, SinkRecord] = field(default_factory=dict)
    """The record of each sink, by namespace and name."""
    owners: dict[tuple[str, str], str] = field(default_factory=dict)
    """UID of the sink that has created, or will create, a topic, by the topic's Kafka servers and
    name."""

    # Changes of objects, and operations on one object.

    def remember(self, document: Document) -> SinkRecord:
        """Reserve the topic that was created for a sink, with its partitions, and return the sink's
        record; a new UID gets a new record. Called for all sinks before any is reconciled."""
        identity, uid = Identity.of(document), document["metadata"].get("uid", "")
        record = self.records.get(identity)
        if record is None or record.uid != uid:
            self._drop(identity)
            record = self.records[identity] = SinkRecord(uid)
        if (topic := _created_topic(document)) is not None:
            self._claim(record, _declared_servers(document), topic)
            # Not yet validated: a negative number would make room for other sinks.
            if isinstance(partitions := document["spec"].get("numPartitions"), int):
                record.partitions = max(0, partitions)
        return record

    def ensure_record(self, document: Document) -> SinkRecord:
        """Create or update the sink's record (`remember`), and return it. Called before the sink is
        observed."""
        return self.remember(document)

    async def forget(self, document: Document) -> None:
        """Drop the sink's record, and release its topic names."""
        self._drop(Identity.of(document))

    def _claim(self, record: SinkRecord, servers: str, topic: str) -> None:
        """Reserve a topic name on these Kafka servers for the sink of `record`, so that no other
        sink creates a topic of that name. Does nothing if another sink has reserved the name."""
        if self.owners.setdefault((servers, topic), record.uid) == record.uid:
            record.claims.add((servers, topic))

    def _drop(self, identity: Identity) -> None:
        """Drop a sink's record, and release the topic names that it has reserved."""
        if (record := self.records.pop(identity, None)) is not None:
            for claim in record.claims:
                del self.owners[claim]

    def used_kafkas(self) -> set[KafkaCluster]:
        """Return the Kafka clusters that sinks use, including sinks that are being deleted."""
        return {record.kafka for record in self.records.values() if record.kafka is not None}

    async def delete(self, document: Document) -> None:
        """Delete a sink's receiver, then the topic that was created for the sink, unless another
        sink of its namespace names the topic. Raises `LogError`, `NotReady` and `ClusterError`."""
        record = self.remember(document)  # it reserves the topic, so that no other sink creates it
        sink = resource_of(document)
        # No event may be accepted into a topic that is about to go (KN-BRK-22).
        await delete_service(self.cluster, sink_receiver_name(sink), sink)
        if (topic := _created_topic(document)) is not None:
            await self._delete_topic(document, topic, record)
        await self.forget(document)

    async def _delete_topic(self, document: Document, topic: str, record: SinkRecord) -> None:
        """Delete `topic`, the one in a deleted sink's status, if it was created for this sink and
        no other sink of the namespace names it. Raises `LogError`, `ClusterError`, and `NotReady`
        or `InvalidDocument` if its Kafka isn't known."""
        try:
            sink = parse(KafkaSink, _without_status(document))
        except InvalidDocument:
            return  # the sink is invalid, so its Kafka isn't known
        if await self._is_named_by_other_sink(sink, topic):
            return
        try:
            kafka, _ = await self._connect(sink)
        except (NotReady, InvalidDocument):
            if record.kafka is None:
                raise
            kafka = record.kafka
        recorded_id = status_annotations(document).get(TOPIC_ID)
        claimed = self._is_claimed_by_other(record, sink.servers, topic)
        own_topic = await find_topic_to_delete(kafka.topics, topic, recorded_id, claimed=claimed)
        if own_topic is not None:
            await kafka.topics.delete_topic(topic)

    def _is_claimed_by_other(self, record: SinkRecord, servers: str, topic: str) -> bool:
        """Whether a sink other than that of `record` has reserved this topic name on these
        servers."""
        owner = self.owners.get((servers, topic))
        return owner is not None and owner != record.uid

    async def _is_named_by_other_sink(self, sink: Resource, topic: str) -> bool:
        """Whether another sink of the namespace, unless it is being deleted, names this topic, too.
        Raises `ClusterError`."""
        namespace = sink.metadata.namespace
        sinks = await self.cluster.list(SINKS_VERSION, KAFKA_SINK, None, namespace)
        return any(
            (other_sink.get("spec") or {}).get("topic") == topic
            for other_sink in sinks
            if other_sink["metadata"].get("uid") != sink.metadata.uid
            and "deletionTimestamp" not in other_sink["metadata"]
        )

    # Reconcile.

    def decide(self, observed: ObservedSink, record: SinkRecord) -> AddressableDecision:
        """Decide what to do from `observed`, and reserve name and partitions of a topic that will
        be created."""
        others = self._other_partitions(Identity.of(observed.document))
        decision = decide(replace(observed, other_partitions=others), self.settings)
        # Reserve before the next await, so that no other sink creates a topic of this name, and
        # that sinks don't pass the namespace's maximum together.
        for effect in decision.effects:
            if isinstance(effect, Annotate) and isinstance(observed.sink, KafkaSink):
                self._claim(record, observed.sink.servers, effect.annotations[TOPIC_STATUS])
            if isinstance(effect, CreateTopic):
                record.partitions = effect.topic.partitions
        return decision

    def kafka_of(self, observed: ObservedSink, record: SinkRecord) -> KafkaCluster | None:
        """Return the sink's Kafka; None: not known."""
        return record.kafka

    def status_of(
        self, observed: ObservedSink, decision: AddressableDecision, record: SinkRecord
    ) -> Mapping[str, Any]:
        """Return the last decision's status, and note in the record whether the sink is Ready and
        how many partitions its own topic has."""
        namespace, _ = Identity.of(observed.document)
        receiver = Identity(namespace, sink_receiver_name(resource_of(observed.document)))
        self.states.rolls.add_condition(decision.conditions, receiver)
        status = super().status_of(observed, decision, record)
        record.is_ready = ready_condition(status["conditions"]).get("status") == "True"
        if isinstance(observed.sink, KafkaSink):
            is_own = TOPIC_STATUS in status["annotations"]
            record.partitions = (observed.sink.spec.num_partitions or 0) if is_own else 0
        return status

    # Observe.

    async def observe(self, document: Document, record: SinkRecord) -> ObservedSink:
        """Read the sink's Secret, Kafka, topic and features; an expected error takes the place of
        what couldn't be read. Also set `record.kafka`. Raises `ClusterError`."""
        try:
            sink = parse(KafkaSink, document)
            refuse_taken_topics([sink.spec.topic], self.is_taken, "spec.topic")
        except InvalidDocument as error:
            return ObservedSink(document, error)
        identity = Identity.of(document)
        try:
            record.kafka, secret = await self._connect(sink)
        except EXPECTED as error:
            return ObservedSink(document, sink, error)
        features = await observe_features(self.cluster, self.settings, self.states.policies, sink)
        path = None if secret is None else services.SECRET_PATH
        kafka_settings = Kafka(bootstrap_servers=sink.servers, secret_path=path)
        observed = ObservedSink(
            document,
            sink,
            kafka_settings,
            secret,
            taken=self._is_claimed_by_other(record, sink.servers, sink.spec.topic),
            authentication=features.authentication,
            encryption=features.encryption,
        )
        if isinstance(observed.encryption, Encryption) and observed.encryption.is_on:
            receiver = identity.namespace, sink_receiver_name(sink)
            observed = replace(observed, https=await observe_https_of(self.cluster, *receiver))
        try:
            topics = record.kafka.topics
            description = await topics.describe_topic(sink.spec.topic)
            has_empty_id = status_annotations(document).get(TOPIC_ID) == ""
            disputed = True  # looked at only if the topic exists and its recorded id is empty
            if description is not None and has_empty_id:
                disputed = await has_records(topics, sink.spec.topic)
        except EXPECTED as error:
            return replace(observed, topic=error)
        return replace(observed, topic=description, disputed=disputed)

    async def _connect(self, sink: KafkaSink) -> tuple[KafkaCluster, tuple[str, str] | None]:
        """Return the sink's Kafka, and the name and version of its Secret; None: it declares no
        Secret.

        Raises the errors in `EXPECTED`, and `ClusterError`.
        """
        if (ref := sink.spec.auth.secret.ref) is None:
            return self.kafkas.ensure_cluster(sink.servers, None), None
        namespace = sink.metadata.namespace
        stored = await self.cluster.get(CORE, "Secret", namespace, ref.name)
        if stored is None:
            raise NotReady(
                "SecretNotFound",
                f"spec.auth.secret.ref.name: Secret {namespace}/{ref.name} does not exist: create "
                "it, or name another one",
            )
        values = decode_secret(stored)
        await check_endpoint(values, self.settings)
        version = str(stored["metadata"].get("resourceVersion", ""))
        return self.kafkas.ensure_cluster(sink.servers, values), (ref.name, version)

    def _other_partitions(self, sink: Identity) -> int:
        """Return the number of partitions of the topics that were created in the sink's namespace
        for other sinks and for Brokers."""
        partitions_of_other_sinks = sum(
            record.partitions
            for identity, record in self.records.items()
            if identity.namespace == sink.namespace and identity != sink
        )
        # No Broker has the empty name, so all of the namespace's Brokers are included.
        no_broker = Identity(sink.namespace, "")
        return partitions_of_other_sinks + partitions_of_others(self.states, no_broker)


def _created_topic(document: Document) -> str | None:
    """Return the topic that was, or is to be, created for a stored sink, by the sink's status;
    None: there is none, or the sink now declares another topic."""
    topic = status_annotations(document).get(TOPIC_STATUS)
    declared_topic = (document.get("spec") or {}).get("topic")
    return topic if topic and topic == declared_topic else None


def _declared_servers(document: Document) -> str:
    """Return the servers that a stored sink declares, comma-separated."""
    return ",".join(map(str, (document.get("spec") or {}).get("bootstrapServers") or ()))


def _without_status(document: Document) -> Document:
    """Return a sink's document without the status, and so only what was declared."""
    return {key: document[key] for key in ("apiVersion", "kind", "metadata", "spec")}
