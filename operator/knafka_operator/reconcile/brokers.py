"""Brokers: from what is declared to a topic, a receiver and an address, and what stands in the way.

    Broker, ConfigMaps, Secret -> topic (owned) -> receiver's Knative Service -> address, conditions

`Brokers.reconcile` goes along that line as far as it gets and writes down what it found. What it
leaves behind in `found` is what the Broker's Triggers are made from.

Refused here: hearing of changes (`handlers`), and any decision that could be a pure function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from knafka.core import contract, names
from knafka.core.contract import Kafka
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka_operator.decide import desired, services
from knafka_operator.decide import status as told
from knafka_operator.decide.desired import Defaults, Topic
from knafka_operator.decide.external_topics import EXTERNAL_TOPICS, refusal
from knafka_operator.decide.resolving import resolve
from knafka_operator.decide.status import Findings, NotReady
from knafka_operator.decide.topics import (
    TOPIC_ID,
    Description,
    TopicRefused,
    drift,
    may_delete,
    own_topic,
)
from knafka_operator.model.cluster import Cluster, Document, decoded
from knafka_operator.model.conditions import Condition, Severity, Status
from knafka_operator.model.resources import (
    BROKER_CLASS,
    CORE,
    EXTERNAL_TOPIC,
    SERVING,
    TOPIC_STATUS,
    Broker,
    ConfigMap,
    Resource,
)
from knafka_operator.model.settings import Settings
from knafka_operator.scale.kafkas import Kafkas, KafkaSide

Identity = tuple[str, str]
"""Namespace and name."""

PROBED: Final = "knafka.dev/probed"
"""Key of `status.annotations`: the receiver's Revision that has answered. Kept there, since a probe
wakes a receiver, and a restart of the operator should not wake them all."""


@dataclass(frozen=True, slots=True)
class Config:
    """What a Broker's ConfigMaps come to."""

    defaults: Defaults
    config: ConfigMap
    kafka: KafkaSide
    secret: tuple[str, str] | None
    """Name and version of the Secret that the Broker's pods mount."""


@dataclass(frozen=True, slots=True)
class Found:
    """A Broker that has its topic: what its Triggers need to know."""

    broker: Broker
    config: Config
    topic: Topic
    partitions: int
    """As Kafka has it."""
    ready: str
    """The status of its `Ready`: True, False or Unknown."""
    why_not: str = ""


@dataclass(eq=False)
class Brokers:
    """All Brokers that are ours."""

    settings: Settings
    cluster: Cluster
    kafkas: Kafkas
    probe: Callable[[str], Awaitable[None]]
    now: Callable[[], str]
    """The time, RFC 3339."""
    found: dict[Identity, Found] = field(default_factory=dict)
    looked_at: set[Identity] = field(default_factory=set)
    """Brokers of which we know whether they have a topic: all that were reconciled once."""
    stopped: dict[Identity, str] = field(default_factory=dict)
    """Brokers whose external topic isn't allowed, and why: their Triggers don't deliver."""
    topics: dict[str, str] = field(default_factory=dict)
    """UID of the Broker that has each topic's name; external topics are nobody's."""
    known_kafkas: dict[Identity, KafkaSide] = field(default_factory=dict)
    """Where each Broker's topic is: its ConfigMap and Secret may go before it does."""

    async def reconcile(self, document: Document) -> Mapping[str, Any]:
        """Make one Broker so; gives the status it has then. Raises `ClusterError`."""
        before = document.get("status") or {}
        findings = Findings(told.BROKER_CONDITIONS)
        annotations = dict(before.get("annotations") or {})
        status: dict[str, Any] = {
            "observedGeneration": document["metadata"].get("generation", 0),
            "annotations": annotations,
            # KN-BRK-01: once there is a receiver, it receives; while replaced, the old one does.
            "address": before.get("address"),
            "deadLetterSinkUri": None,
        }
        broker: Broker | None = None
        config: Config | None = None
        topic: Topic | None = None
        has: Description | None = None
        # Before anything that can fail: what a Broker may not use it doesn't keep by being broken.
        refused, stop = await self._external_topic(document)
        if stop is not None:
            await self._stop(document, stop)
            status["address"] = None
            annotations.pop(PROBED, None)
        with findings.concludes(told.CONFIG_PARSED):
            broker = parse(Broker, document)
            config = await self._config(broker)
        if broker is not None:
            with findings.concludes(told.DEAD_LETTER_SINK_RESOLVED):
                status["deadLetterSinkUri"] = await self._dead_letter_sink(broker, findings)
        if refused is not None:
            with findings.concludes(told.TOPIC_READY):
                raise TopicRefused("ExternalTopicNotAllowed", refused)
        elif broker is not None and config is not None:
            with findings.concludes(told.TOPIC_READY):
                topic = desired.broker_topic(
                    broker, config.config, config.defaults, self._taken(broker)
                )
                has = await self._own(broker, document, config, topic, annotations)
                findings.set(_as_declared(topic, has))
        if broker is not None and config is not None and topic is not None and has is not None:
            ingress = desired.ingress(broker, topic, has.config, config.defaults)
            host = f"{services.receiver_name(broker)}.{broker.metadata.namespace}.svc"
            url = f"http://{host}.{self.settings.cluster_domain}{ingress.path}"
            with findings.concludes(told.DATA_PLANE_AVAILABLE):
                version = await self._receiver(broker, ingress, config)
            if findings.holds(told.DATA_PLANE_AVAILABLE):
                with findings.concludes(told.PROBE_SUCCEEDED):
                    if annotations.get(PROBED) != version:
                        await self.probe(url)
                        annotations[PROBED] = version
                status["address"] = {"name": "http", "url": url}
        with findings.concludes(told.ADDRESSABLE):
            if status["address"] is None:
                raise NotReady("NoReceiver", "no receiver has been Ready yet", known=False)
        status["conditions"] = findings.conditions(before.get("conditions") or (), self.now())
        self._remember(broker, config, topic, has, status["conditions"])
        return await self._write(document, status)

    async def delete(self, document: Document, groups: Collection[str]) -> None:
        """Stop its receiver, then let go of its topic, which `groups` read.

        Raises `LogError`, also while one of them has members, and `ClusterError`.
        """
        broker = parse(Broker, document)
        metadata, annotations = broker.metadata, broker.status.annotations
        # No event may be accepted into a topic that is about to go (KN-BRK-22).
        await delete_service(self.cluster, services.receiver_name(broker), broker)
        topic = annotations.get(TOPIC_STATUS)
        own = names.is_broker_topic(topic, metadata.namespace, metadata.name)
        if topic is not None and own and EXTERNAL_TOPIC not in metadata.annotations:
            topics = (await self._kafka_of(broker)).topics
            known = annotations.get(TOPIC_ID)
            if may_delete(await topics.describe_topic(topic), known):
                for group in groups:
                    # A dispatcher that has still to leave it would commit where it was, and Kafka
                    # takes that for a topic made anew under the name: events would be passed over.
                    await topics.delete_group(group)
                await topics.delete_topic(topic)
        self.forget(document)

    def forget(self, document: Document) -> None:
        """It is gone, whatever is left of it in Kafka."""
        metadata = document["metadata"]
        identity = metadata["namespace"], metadata["name"]
        self.found.pop(identity, None)
        self.looked_at.discard(identity)
        self.stopped.pop(identity, None)
        self.known_kafkas.pop(identity, None)
        for topic in [name for name, uid in self.topics.items() if uid == metadata["uid"]]:
            del self.topics[topic]

    def is_ours(self, document: Document) -> bool:
        """Whether the Broker's class is one of ours (KN-BRK-04)."""
        annotations = document["metadata"].get("annotations") or {}
        return annotations.get(BROKER_CLASS, "") in self.settings.broker_classes

    def learn(self, document: Document) -> None:
        """Keep in mind which topic a Broker has, before any other is reconciled."""
        metadata = document["metadata"]
        topic = _topic_in_status(document)
        if topic and names.is_broker_topic(topic, metadata["namespace"], metadata["name"]):
            self.topics.setdefault(topic, metadata["uid"])

    async def _external_topic(self, document: Document) -> tuple[str | None, str | None]:
        """Why it may not use the external topic that it names, and why it must stop.

        It also stops if it may no longer use the one that it has used until now: a Broker whose
        new topic can't be had yet goes on with the one before. Goes by the stored document as it
        is, since one that can't be parsed runs on, too. Raises `ClusterError`.
        """
        metadata = document["metadata"]
        identity = metadata["namespace"], metadata["name"]
        declared = (metadata.get("annotations") or {}).get(EXTERNAL_TOPIC)
        found = self.found.get(identity)
        used = {_topic_in_status(document), found and found.topic.name}
        asked = {each for each in used if each and not names.is_broker_topic(each, *identity)} | (
            {declared} if declared is not None and names.is_topic(declared) else set()
        )
        if not asked:
            return None, None
        # Not the Broker's own ConfigMap: that is the user's, as the annotation is.
        base = await self._config_map(*self._default_reference)
        allowed = "" if base is None else base.data.get(EXTERNAL_TOPICS, "")
        where = f"ConfigMap {'/'.join(self._default_reference)}, the installation's own"
        refusals = {each: refusal(each, identity[0], allowed, where) for each in sorted(asked)}
        refused = refusals.get(declared or "")
        return refused, refused or next(filter(None, refusals.values()), None)

    async def _stop(self, document: Document, why: str) -> None:
        """Nothing is accepted and nothing delivered; what is in Kafka stays."""
        of = parse(Resource, {key: document[key] for key in ("apiVersion", "kind", "metadata")})
        identity = of.metadata.namespace, of.metadata.name
        self.stopped[identity] = why
        self.found.pop(identity, None)
        await delete_service(self.cluster, services.receiver_name(of), of)

    def _taken(self, broker: Broker) -> desired.OthersNames:
        return desired.OthersNames(self.topics, broker.metadata.uid)

    async def _kafka_of(self, broker: Broker) -> KafkaSide:
        """Where its topic is, also when its ConfigMap went before it did."""
        try:
            return (await self._config(broker)).kafka
        except (NotReady, InvalidDocument):
            identity = broker.metadata.namespace, broker.metadata.name
            if identity in self.known_kafkas:
                return self.known_kafkas[identity]
            # The operator is new since: without credentials it may still succeed.
            servers = broker.status.annotations.get(desired.BOOTSTRAP_SERVERS)
            if servers is None:
                raise
            return self.kafkas.at(servers, None)

    async def _config(self, broker: Broker) -> Config:
        """The Broker's ConfigMap over the operator's (issue 4)."""
        base = await self._config_map(self.settings.namespace, self.settings.config)
        reference = desired.config_reference(broker)
        own = None if reference is None else await self._config_map(*reference)
        if reference is not None and own is None and reference != self._default_reference:
            raise NotReady(
                "ConfigMapNotFound", f"ConfigMap {reference[0]}/{reference[1]} does not exist"
            )
        data = {**(base.data if base else {}), **(own.data if own else {})}
        if not data.get(desired.BOOTSTRAP_SERVERS, "").strip():
            where = reference or self._default_reference
            raise InvalidDocument(
                f"data.{desired.BOOTSTRAP_SERVERS}",
                f"missing: ConfigMap {where[0]}/{where[1]} says where Kafka is (host:port)",
            )
        merged = own or base
        assert merged is not None
        merged = merged.model_copy(update={"data": data})
        # Credentials belong to their servers: another ConfigMap's never go to servers of our own.
        named = own if own is not None and desired.BOOTSTRAP_SERVERS in own.data else None
        secret_of = named or (own if own and desired.SECRET in own.data else base)
        document = await self._secret(desired.secret_reference(secret_of))
        servers = Kafka(bootstrap_servers=data[desired.BOOTSTRAP_SERVERS])
        defaults = desired.configured(merged, Defaults(kafka=servers))
        kafka = self.kafkas.at(
            defaults.kafka.bootstrap_servers, None if document is None else decoded(document)
        )
        secret = None
        if document is not None:
            secret = await self._mounted(broker, document)
            mounted = defaults.kafka.model_copy(update={"secret_path": services.SECRET_PATH})
            defaults = replace(defaults, kafka=mounted)
        return Config(defaults, merged, kafka, secret)

    @property
    def _default_reference(self) -> Identity:
        return self.settings.namespace, self.settings.config

    async def _config_map(self, namespace: str, name: str) -> ConfigMap | None:
        found = await self.cluster.get(CORE, "ConfigMap", namespace, name)
        return None if found is None else parse(ConfigMap, found)

    async def _secret(self, reference: Identity | None) -> Document | None:
        if reference is None:
            return None
        found = await self.cluster.get(CORE, "Secret", *reference)
        if found is None:
            raise NotReady("SecretNotFound", f"Secret {'/'.join(reference)} does not exist")
        return found

    async def _mounted(self, broker: Broker, secret: Document) -> tuple[str, str]:
        """The Secret as it may be mounted beside the Broker."""
        metadata = secret["metadata"]
        version = str(metadata.get("resourceVersion", ""))
        if metadata["namespace"] == broker.metadata.namespace:
            return str(metadata["name"]), version
        if not self.settings.project_secrets or metadata["namespace"] != self.settings.namespace:
            raise NotReady(
                "SecretNotProjected",
                f"Secret {metadata['namespace']}/{metadata['name']} is in another namespace: name "
                "a ConfigMap and Secret of the Broker's own in spec.config, or have the operator "
                "copy its own with KNAFKA_PROJECT_SECRETS=true",
            )
        stored = await self.cluster.apply(
            services.projected_secret(broker, secret.get("data") or {})
        )
        return str(stored["metadata"]["name"]), version

    async def _dead_letter_sink(self, broker: Broker, findings: Findings) -> str | None:
        """KN-BRK-03."""
        declared = broker.spec.delivery.dead_letter_sink
        if declared is None:
            findings.set(
                Condition(
                    told.DEAD_LETTER_SINK_RESOLVED, Status.TRUE, "DeadLetterSinkNotConfigured"
                )
            )
            return None
        sink = await resolve(
            declared, broker.metadata.namespace, self.cluster.get, self.settings.cluster_domain
        )
        return sink.url

    async def _own(
        self,
        broker: Broker,
        document: Document,
        config: Config,
        topic: Topic,
        annotations: dict[str, str],
    ) -> Description:
        """The topic, the Broker's by its UID; what must be kept of it goes into `annotations`."""
        known = annotations.get(TOPIC_ID)
        if not topic.external and annotations.get(TOPIC_STATUS) not in (None, topic.name):
            # It had another one. The id says whether this is its own nevertheless, from before it
            # named an external one; an empty id belongs to that other name.
            there = await config.kafka.topics.describe_topic(topic.name)
            known = known if there is not None and there.id == known else None

        async def intend() -> None:
            intended = {TOPIC_STATUS: topic.name, TOPIC_ID: ""}
            await self.cluster.write_status(document, {"annotations": intended})
            annotations.update(intended)

        if not topic.external:
            self.topics[topic.name] = broker.metadata.uid
        found = await own_topic(config.kafka.topics, topic, known, intend)
        annotations.update(
            {
                TOPIC_STATUS: topic.name,
                desired.PARTITIONS: str(found.partitions),
                desired.REPLICATION: str(found.replication),
                desired.BOOTSTRAP_SERVERS: config.defaults.kafka.bootstrap_servers,
            }
        )
        if not topic.external:
            annotations[TOPIC_ID] = found.id
        return found

    async def _receiver(self, broker: Broker, ingress: contract.Ingress, config: Config) -> str:
        """Have the receiver's Service applied and Ready; gives the Revision that serves."""
        manifest = services.receiver_service(broker, ingress, config.secret, self.settings)
        return await apply_service(self.cluster, manifest, broker)

    def _remember(
        self,
        broker: Broker | None,
        config: Config | None,
        topic: Topic | None,
        has: Description | None,
        conditions: list[dict[str, Any]],
    ) -> None:
        if broker is None or config is None:
            return  # its Triggers go on with what was found before
        identity = broker.metadata.namespace, broker.metadata.name
        self.known_kafkas[identity] = config.kafka
        if topic is None or has is None:
            return
        ready = told.summary(conditions)
        self.stopped.pop(identity, None)
        self.found[identity] = Found(
            broker,
            config,
            topic,
            has.partitions,
            ready.get("status", "Unknown"),
            f"{ready.get('reason', '')} {ready.get('message', '')}".strip(),
        )

    async def _write(self, document: Document, status: Mapping[str, Any]) -> Mapping[str, Any]:
        patch = told.changes(document.get("status") or {}, status)
        if patch:
            await self.cluster.write_status(document, patch)
        return status


async def apply_service(cluster: Cluster, manifest: Mapping[str, Any], owner: Any) -> str:
    """Have a function's Knative Service as it should be, and Ready: gives its Revision.

    Raises `NotReady`; an object of that name which is somebody else's is left alone.
    """
    metadata = manifest["metadata"]
    there = await cluster.get(SERVING, "Service", metadata["namespace"], metadata["name"])
    if there is not None and not services.is_owned(there, owner):
        raise NotReady(
            "ServiceNotOurs",
            f"Knative Service {metadata['namespace']}/{metadata['name']} exists and was not made "
            f"for this {owner.kind}: delete or rename it",
        )
    stored = await cluster.apply(manifest)
    status = stored.get("status") or {}
    revision = status.get("latestReadyRevisionName")
    if not told.is_ready(stored) or revision != status.get("latestCreatedRevisionName"):
        failed = told.summary(status.get("conditions") or ()).get("status") == "False"
        raise NotReady(
            "FunctionNotReady",
            f"Knative Service {metadata['name']}: {told.why_not_ready(stored)}",
            known=failed,
        )
    return str(revision)


async def delete_service(cluster: Cluster, name: str, owner: Resource) -> None:
    """Delete this function of `owner`'s; one that is somebody else's is left alone."""
    namespace = owner.metadata.namespace
    there = await cluster.get(SERVING, "Service", namespace, name)
    if there is not None and services.is_owned(there, owner):
        await cluster.delete(SERVING, "Service", namespace, name)


def _topic_in_status(document: Document) -> str | None:
    topic = ((document.get("status") or {}).get("annotations") or {}).get(TOPIC_STATUS)
    return topic if isinstance(topic, str) and topic else None


def _as_declared(topic: Topic, found: Description) -> Condition:
    different = drift(topic, found)
    if not different:
        return Condition(told.TOPIC_AS_DECLARED, Status.TRUE, severity=Severity.WARNING)
    return Condition(
        told.TOPIC_AS_DECLARED,
        Status.FALSE,
        "TopicDrifted",
        f"topic {topic.name} is left as it is: {'; '.join(different)}",
        Severity.WARNING,
    )
