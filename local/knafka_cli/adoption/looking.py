"""Reads what the plan to adopt or release an object needs, from a cluster and from its Kafka.

Everything is read anew for every plan. An object that the user may not read adds a sentence to
`unseen`, and the others are read all the same. Not here: making the plans (`broker_plan` …).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.kafka_connection import connection_configuration
from knafka.core.contract import Kafka
from knafka.core.documents import parse
from knafka.core.errors import KnafkaError
from knafka.core.kafka_settings.kafka_secret import for_librdkafka
from knafka.ports.log import LogAdmin, TopicDescription
from knafka_cli.adoption.broker_plan import SeenBroker, group_of, topic_of
from knafka_cli.adoption.channel_plan import SeenChannel, topic_of_channel
from knafka_cli.adoption.plan import Document, SeenGroup, Workload
from knafka_cli.adoption.source_plan import SeenSource
from knafka_client.declared.cluster_source import (
    BROKER_CONFIG_MAP,
    CHANNEL_CONFIG_MAP,
    ClusterSource,
)
from knafka_client.declared.kubernetes_api import KubernetesApi, Objects
from knafka_operator.brokers.external_topics import EXTERNAL_TOPICS, external_topic_refusal
from knafka_operator.channels import entries
from knafka_operator.installation.naming import NameKind, Naming
from knafka_operator.installation.settings import KAFKA_FEATURES
from knafka_operator.kafka.credentials import KAFKA_SECRET
from knafka_operator.kafka.desired import SECRET_NAME_KEY
from knafka_operator.model.channels import KAFKA_CHANNEL, KAFKA_CHANNEL_VERSIONS
from knafka_operator.model.cluster import ClusterError, NotAllowed, decode_secret
from knafka_operator.model.family import BROKERS, CHANNELS
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import (
    BROKER_CLASSES,
    EVENTING,
    EXTERNAL_TOPIC,
    TOPIC_STATUS,
    Broker,
)
from knafka_operator.model.sources import (
    KAFKA_SOURCE,
    SOURCES_VERSION,
    Credential,
    KafkaSource,
    consumer_group_of,
    required_credentials,
)
from knafka_operator.runtime.naming import (
    TEMPLATES_CONFIG_MAP,
    declared_template,
    parse_recorded_templates,
)
from knafka_operator.sources.decide import kafka_secret_values

OBJECTS: Final = {
    "Broker": Objects(EVENTING, "brokers"),
    "Trigger": Objects(EVENTING, "triggers"),
    KAFKA_CHANNEL: Objects(KAFKA_CHANNEL_VERSIONS[0], "kafkachannels"),
    KAFKA_SOURCE: Objects(SOURCES_VERSION, "kafkasources"),
}
"""The API resource of each kind that `knafka adopt` reads and writes."""
CONFIG_MAP_OBJECTS: Final = Objects("v1", "configmaps")
SECRET_OBJECTS: Final = Objects("v1", "secrets")
DEPLOYMENTS: Final = Objects("apps/v1", "deployments")
STATEFUL_SETS: Final = Objects("apps/v1", "statefulsets")
OPERATOR_DEPLOYMENT: Final = "knafka-operator"
BROKERS_PEERS: Final = (
    (DEPLOYMENTS, "Deployment", "kafka-controller"),
    (DEPLOYMENTS, "Deployment", "kafka-broker-dispatcher"),
    (STATEFUL_SETS, "StatefulSet", "kafka-broker-dispatcher"),
)
"""Workloads of eventing-kafka-broker that may not run while Brokers are taken over: API resource,
kind and name. Its receiver may run, since it writes to the same topic."""
CHANNELS_PEERS: Final = (
    (DEPLOYMENTS, "Deployment", "kafka-controller"),
    (DEPLOYMENTS, "Deployment", "kafka-channel-dispatcher"),
    (STATEFUL_SETS, "StatefulSet", "kafka-channel-dispatcher"),
)
"""Workloads that may not run while KafkaChannels are taken over."""
SOURCES_PEERS: Final = (
    (DEPLOYMENTS, "Deployment", "kafka-controller"),
    (STATEFUL_SETS, "StatefulSet", "kafka-source-dispatcher"),
)
"""Workloads that may not run while KafkaSources are taken over."""


class AdoptionObserver:
    """Reads the objects of one cluster with the rights of the user; a base class of `Adopter`.

    Methods with a parameter `unseen` add a sentence to that list for each object that the user may
    not read.
    """

    def __init__(
        self,
        api: KubernetesApi,
        source: ClusterSource,
        declared_source: ClusterSource,
        *,
        system_namespace: str,
        peers_namespace: str,
        bootstrap_servers: str | None = None,
        connect: Callable[[Mapping[str, Any]], LogAdmin] = KafkaAdmin,
    ) -> None:
        """`source` finds a Broker's Kafka as it can be reached from this machine, and
        `declared_source` as the Broker declares it. `bootstrap_servers` replace those that a
        KafkaSource declares (None: they don't), as `source` does for Brokers. `system_namespace` is
        that of Knafka's operator, `peers_namespace` eventing-kafka-broker's. `connect` makes a
        client from a librdkafka configuration."""
        self._api = api
        self._source = source
        self._declared = declared_source
        self._system_namespace = system_namespace
        self._peers_namespace = peers_namespace
        self._bootstrap_servers = bootstrap_servers
        self._connect = connect

    def observe_broker(self, identity: Identity) -> SeenBroker:
        """Read everything that the plan for a Broker needs. Raises `LogError`, `InvalidDocument`,
        and `ClusterError`, also if there is no such Broker."""
        stored = self._read_existing("Broker", identity)
        triggers = self._read_triggers(identity)
        unseen: list[str] = []
        naming = self._read_naming(unseen)
        broker = parse(Broker, stored)
        configuration, _, problems = self._source.connection_of(broker)
        declared_configuration, _, _ = self._declared.connection_of(broker)
        topic = topic_of(stored, naming)
        groups = [group_of(trigger, naming)[0] for trigger in triggers]
        described, seen_groups = asyncio.run(self._read_kafka_state(configuration, topic, groups))
        return SeenBroker(
            broker=stored,
            triggers=triggers,
            topic=described,
            groups=seen_groups,
            classes=self._read_broker_classes(unseen),
            naming=naming,
            servers=str(declared_configuration["bootstrap.servers"]),
            peers=list(self._find_running_peers(BROKERS_PEERS, unseen)),
            claimed_by=self._find_other_claimant("Broker", identity, topic),
            refused=self._topic_refusal(stored, topic, unseen),
            unseen=[*problems, *unseen],
        )

    def observe_channel(self, identity: Identity) -> SeenChannel:
        """Read everything that the plan for a KafkaChannel needs. Raises `LogError`,
        `InvalidDocument`, and `ClusterError`, also if there is no such channel."""
        stored = self._read_existing(KAFKA_CHANNEL, identity)
        unseen: list[str] = []
        naming, channel = self._read_naming(unseen), CHANNELS.read_broker(stored)
        configuration, config, problems = self._source.connection_of_channel(channel)
        declared_configuration, _, _ = self._declared.connection_of_channel(channel)
        topic = topic_of_channel(stored, naming)
        uids = entries.read_entries(stored).valid
        groups = [entries.entry_group(identity, uid) for uid in uids]
        described, seen_groups = asyncio.run(self._read_kafka_state(configuration, topic, groups))
        own_secret = (stored["metadata"].get("annotations") or {}).get(KAFKA_SECRET)
        shared_secret = "" if config is None else config.data.get(SECRET_NAME_KEY, "")
        return SeenChannel(
            stored=stored,
            topic=described,
            groups=seen_groups,
            naming=naming,
            servers=str(declared_configuration["bootstrap.servers"]),
            secret=own_secret or shared_secret,
            served=self._is_enabled("KNAFKA_CHANNELS", unseen),
            peers_config=self._read_peers_channel_config(unseen),
            peers=list(self._find_running_peers(CHANNELS_PEERS, unseen)),
            claimed_by=self._find_other_claimant(KAFKA_CHANNEL, identity, topic),
            unseen=[*problems, *unseen],
        )

    def _read_peers_channel_config(self, unseen: list[str]) -> Mapping[str, str]:
        """Return the data of eventing-kafka-broker's ConfigMap for all channels; empty if the
        ConfigMap doesn't exist or can't be read."""
        try:
            config = self._api.get(CONFIG_MAP_OBJECTS, self._peers_namespace, CHANNEL_CONFIG_MAP)
        except NotAllowed as error:
            unseen.append(str(error))
            return {}
        data: Mapping[str, str] = (config or {}).get("data") or {}
        return data

    def observe_source(self, identity: Identity) -> SeenSource:
        """Read everything that the plan for a KafkaSource needs. Raises `LogError`,
        `InvalidDocument`, and `ClusterError`, also if there is no such source."""
        stored = self._read_existing(KAFKA_SOURCE, identity)
        source = parse(KafkaSource, stored)
        unseen: list[str] = []
        credentials: dict[Credential, str | None] = {
            credential: self._read_secret(identity.namespace, credential.secret).get(credential.key)
            for credential in required_credentials(source.spec.net)
        }
        secret = kafka_secret_values(source.spec, credentials, identity.namespace)
        servers = self._bootstrap_servers or ",".join(source.spec.bootstrap_servers)
        configuration = connection_configuration(Kafka(bootstrap_servers=servers))
        if secret is not None:
            configuration.update(for_librdkafka(secret))
        missing_topics, group = asyncio.run(self._read_source_state(configuration, source))
        return SeenSource(
            stored=stored,
            source=source,
            group=group,
            missing=missing_topics,
            served=self._is_enabled("KNAFKA_SOURCES", unseen),
            peers=list(self._find_running_peers(SOURCES_PEERS, unseen)),
            unseen=unseen,
        )

    def _read_triggers(self, broker: Identity) -> list[dict[str, Any]]:
        """Return the Triggers of a Broker, sorted by name."""
        listed = self._api.list(OBJECTS["Trigger"], broker.namespace) or ()
        # Objects in a list lack apiVersion and kind.
        triggers = [{**item, "apiVersion": EVENTING, "kind": "Trigger"} for item in listed]
        of_broker = [trigger for trigger in triggers if BROKERS.broker_of(trigger) == broker]
        return sorted(of_broker, key=lambda trigger: str(trigger["metadata"]["name"]))

    def _read_secret(self, namespace: str, name: str) -> Mapping[str, str]:
        """Return a Secret's decoded values; empty if it doesn't exist."""
        stored = self._api.get(SECRET_OBJECTS, namespace, name)
        return {} if stored is None else decode_secret(stored)

    def _get(self, kind: str, identity: Identity) -> dict[str, Any] | None:
        """Return an object of a kind in `OBJECTS`, with its apiVersion and kind; None if it doesn't
        exist."""
        objects = OBJECTS[kind]
        stored = self._api.get(objects, *identity)
        return None if stored is None else {**stored, "apiVersion": objects.version, "kind": kind}

    def _read_existing(self, kind: str, identity: Identity) -> dict[str, Any]:
        """Return an object as `_get` does, but raise `ClusterError` if it doesn't exist."""
        if (stored := self._get(kind, identity)) is None:
            raise ClusterError(f"there is no {kind} {identity}")
        return stored

    def _read_naming(self, unseen: list[str]) -> Naming:
        """Return the operator's templates for names of topics and groups: those that it has used,
        and those in force now. If a ConfigMap can't be read, templates are missing."""
        naming = Naming()
        try:
            recorded = self._api.get(
                CONFIG_MAP_OBJECTS, self._system_namespace, TEMPLATES_CONFIG_MAP
            )
            for kind, templates in parse_recorded_templates(recorded).items():
                for template in templates:
                    naming.remember(kind, template)
            namespace, _, name = KAFKA_FEATURES.partition("/")
            config = self._api.get(CONFIG_MAP_OBJECTS, namespace, name)
            data = (config or {}).get("data") or {}
            for kind in NameKind:
                naming.set_current_template(kind, declared_template(kind, data))
        except KnafkaError as error:
            unseen.append(str(error))
        return naming

    def _read_operator_variables(self, unseen: list[str]) -> Mapping[str, str] | None:
        """Return the environment variables of the operator's pods; None if its Deployment doesn't
        exist or can't be read."""
        try:
            operator = self._api.get(DEPLOYMENTS, self._system_namespace, OPERATOR_DEPLOYMENT)
        except NotAllowed as error:
            unseen.append(str(error))
            return None
        if operator is None:
            return None
        return {
            str(variable.get("name")): str(variable.get("value") or "")
            for container in _containers(operator)
            for variable in container.get("env") or ()
        }

    def _is_enabled(self, variable: str, unseen: list[str]) -> bool:
        """Whether an environment variable of the operator is `enabled`; True if the operator's
        variables can't be read."""
        variables = self._read_operator_variables(unseen)
        return variables is None or variables.get(variable, "") == "enabled"

    def _read_broker_classes(self, unseen: list[str]) -> frozenset[str]:
        """Return the Broker classes that the operator serves; the defaults if its environment sets
        none or can't be read."""
        variable = (self._read_operator_variables(unseen) or {}).get("KNAFKA_BROKER_CLASSES")
        if variable is None:
            return BROKER_CLASSES
        return frozenset(name.strip() for name in variable.split(",") if name.strip())

    def _find_running_peers(
        self, peers: Sequence[tuple[Objects, str, str]], unseen: list[str]
    ) -> Iterator[Workload]:
        """Yield those of eventing-kafka-broker's workloads in `peers` (API resource, kind and name)
        that have pods, or whose spec asks for pods."""
        for objects, kind, name in peers:
            try:
                workload = self._api.get(objects, self._peers_namespace, name)
            except NotAllowed as error:
                unseen.append(str(error))
                continue
            if workload is None:
                continue
            replicas = (workload.get("status") or {}).get("replicas") or 0
            desired_replicas = (workload.get("spec") or {}).get("replicas", 1)
            if replicas or desired_replicas:
                yield kind, self._peers_namespace, name

    def _find_other_claimant(self, kind: str, owner: Identity, topic: str) -> Identity | None:
        """Return another Broker or KafkaChannel (`kind`) than `owner` whose status names this topic
        as its own; None if there is none.

        Searches only the owner's namespace if the user may not list objects of all namespaces.
        """
        objects = OBJECTS[kind]
        try:
            listed = self._api.list(objects)
        except NotAllowed:
            listed = self._api.list(objects, owner.namespace)
        for other in listed or ():
            status_annotations = (other.get("status") or {}).get("annotations") or {}
            has_topic = status_annotations.get(TOPIC_STATUS) == topic
            is_external = EXTERNAL_TOPIC in (other["metadata"].get("annotations") or {})
            if has_topic and not is_external and Identity.of(other) != owner:
                return Identity.of(other)
        return None

    def _topic_refusal(self, broker: Document, topic: str, unseen: list[str]) -> str | None:
        """Return why a Broker may not use the external topic that it names; None if it may, if it
        names none, or if the ConfigMap that decides can't be read."""
        if EXTERNAL_TOPIC not in (broker["metadata"].get("annotations") or {}):
            return None
        installation = Identity(self._system_namespace, BROKER_CONFIG_MAP)
        try:
            config = self._declared.config_map(installation)
        except NotAllowed as error:
            unseen.append(str(error))
            return None
        allowed = "" if config is None else config.data.get(EXTERNAL_TOPICS, "")
        return external_topic_refusal(
            topic, broker["metadata"]["namespace"], allowed, f"ConfigMap {installation}"
        )

    async def _read_kafka_state(
        self, configuration: Mapping[str, Any], topic: str, groups: Sequence[str]
    ) -> tuple[TopicDescription | None, Mapping[str, SeenGroup]]:
        """Return a description of the topic and the state of each of these groups on it; None and
        no group if the topic doesn't exist.

        `configuration` is librdkafka's, for the topic's Kafka. Raises `LogError`.
        """
        admin = self._connect(configuration)
        try:
            described = await admin.describe_topic(topic)
            if described is None:
                return None, {}
            lags = await admin.lags(groups, topic) if groups else {}
            seen_groups = {}
            for group in groups:
                has_committed = await admin.has_committed(group, topic)
                seen_groups[group] = SeenGroup(
                    members=sorted(await admin.members(group)),
                    waiting=lags[group].total,
                    uncommitted=() if has_committed else range(described.partitions),
                )
            return described, seen_groups
        finally:
            await admin.close()

    async def _read_source_state(
        self, configuration: Mapping[str, Any], source: KafkaSource
    ) -> tuple[Sequence[str], SeenGroup]:
        """Return the names of a KafkaSource's topics that don't exist, and the state of its group
        on the others.

        `configuration` is librdkafka's. Raises `LogError`.
        """
        admin, group = self._connect(configuration), consumer_group_of(source)
        try:
            missing_topics, waiting, has_committed = [], 0, False
            for topic in source.spec.topics:
                if await admin.describe_topic(topic) is None:
                    missing_topics.append(topic)
                    continue
                waiting += (await admin.lags([group], topic))[group].total
                has_committed |= await admin.has_committed(group, topic)
            members = sorted(await admin.members(group))
            # Partition 0 stands for all of them: a plan only asks whether there are any.
            return missing_topics, SeenGroup(members, waiting, () if has_committed else (0,))
        finally:
            await admin.close()


def _containers(deployment: Document) -> Sequence[Document]:
    """Return the containers in a Deployment's Pod template."""
    template = (deployment.get("spec") or {}).get("template") or {}
    containers: Sequence[Document] = (template.get("spec") or {}).get("containers") or ()
    return containers
