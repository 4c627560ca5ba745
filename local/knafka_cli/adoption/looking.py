"""Looking: what is seen of a Broker, KafkaChannel or KafkaSource in a cluster and in its Kafka.

Everything is read anew for every plan. What the user may not read is reported in `unseen`, and the
rest is read all the same.

Not here: what is to be done (`broker_plan`, `channel_plan`, `source_plan`), and doing it
(`cluster`).
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
from knafka_cli.adoption.plan import Document, SeenGroup
from knafka_cli.adoption.source_plan import SeenSource
from knafka_client.declared.cluster_source import BROKER_CONFIG_MAP, CHANNEL_CONFIG, ClusterSource
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
    required_credentials,
)
from knafka_operator.model.sources import consumer_group_of as consumer_group_of
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
"""Of eventing-kafka-broker, what may not run while Brokers are taken over. Its receiver may: it
writes to the same topic."""
CHANNELS_PEERS: Final = (
    (DEPLOYMENTS, "Deployment", "kafka-controller"),
    (DEPLOYMENTS, "Deployment", "kafka-channel-dispatcher"),
    (STATEFUL_SETS, "StatefulSet", "kafka-channel-dispatcher"),
)
"""The same for KafkaChannels."""
SOURCES_PEERS: Final = (
    (DEPLOYMENTS, "Deployment", "kafka-controller"),
    (STATEFUL_SETS, "StatefulSet", "kafka-source-dispatcher"),
)
"""The same for KafkaSources."""


class Looking:
    """Looks at objects of one cluster, under the rights of its user."""

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
        """`source` says how Kafka is reached from here, and `declared_source` what is declared of
        that; `bootstrap_servers` are used in place of a KafkaSource's."""
        self._api = api
        self._source = source
        self._declared = declared_source
        self._system = system_namespace
        self._peers = peers_namespace
        self._servers = bootstrap_servers
        self._connect = connect

    def observe_broker(self, identity: Identity) -> SeenBroker:
        """Read everything that a Broker's plan needs. Raises `LogError`, and `ClusterError`, also
        if there is no such Broker."""
        stored = self._read_existing("Broker", identity)
        triggers = self._triggers_of(identity)
        unseen: list[str] = []
        naming = self._read_naming(unseen)
        broker = parse(Broker, stored)
        reached, _, problems = self._source.connection_of(broker)
        where, _, _ = self._declared.connection_of(broker)
        topic = topic_of(stored, naming)
        groups = [group_of(each, naming)[0] for each in triggers]
        found, seen_groups = asyncio.run(self._ask_kafka(reached, topic, groups))
        return SeenBroker(
            broker=stored,
            triggers=triggers,
            topic=found,
            groups=seen_groups,
            classes=self._read_classes(unseen),
            naming=naming,
            servers=str(where["bootstrap.servers"]),
            peers=list(self._find_running(BROKERS_PEERS, unseen)),
            claimed_by=self._find_other_claimant("Broker", identity, topic),
            refused=self._topic_refusal(stored, topic, unseen),
            unseen=[*problems, *unseen],
        )

    def observe_channel(self, identity: Identity) -> SeenChannel:
        """Read everything that a KafkaChannel's plan needs. Raises as `observe_broker`, and
        `InvalidDocument`."""
        stored = self._read_existing(KAFKA_CHANNEL, identity)
        unseen: list[str] = []
        naming, channel = self._read_naming(unseen), CHANNELS.read_broker(stored)
        reached, config, problems = self._source.connection_of_channel(channel)
        where, _, _ = self._declared.connection_of_channel(channel)
        topic = topic_of_channel(stored, naming)
        uids = entries.read_entries(stored).valid
        groups = [entries.entry_group(identity, uid) for uid in uids]
        described, seen_groups = asyncio.run(self._ask_kafka(reached, topic, groups))
        named = (stored["metadata"].get("annotations") or {}).get(KAFKA_SECRET)
        return SeenChannel(
            stored=stored,
            topic=described,
            groups=seen_groups,
            naming=naming,
            servers=str(where["bootstrap.servers"]),
            secret=named or ("" if config is None else config.data.get(SECRET_NAME_KEY, "")),
            served=self._is_enabled("KNAFKA_CHANNELS", unseen),
            peers_config=self._read_peers_channel_config(unseen),
            peers=list(self._find_running(CHANNELS_PEERS, unseen)),
            claimed_by=self._find_other_claimant(KAFKA_CHANNEL, identity, topic),
            unseen=[*problems, *unseen],
        )

    def _read_peers_channel_config(self, unseen: list[str]) -> Mapping[str, str]:
        """Read eventing-kafka-broker's ConfigMap for all channels; empty if it can't be read."""
        try:
            config = self._api.get(CONFIG_MAP_OBJECTS, self._peers, CHANNEL_CONFIG)
        except NotAllowed as error:
            unseen.append(str(error))
            return {}
        data: Mapping[str, str] = (config or {}).get("data") or {}
        return data

    def observe_source(self, identity: Identity) -> SeenSource:
        """Read everything that a KafkaSource's plan needs. Raises as `observe_broker`, and
        `InvalidDocument`."""
        stored = self._read_existing(KAFKA_SOURCE, identity)
        source, unseen = parse(KafkaSource, stored), list[str]()
        given = dict.fromkeys(required_credentials(source.spec.net), None)
        found: dict[Credential, str | None] = {
            each: self._secret(identity.namespace, each.secret).get(each.key) for each in given
        }
        secret = kafka_secret_values(source.spec, found, identity.namespace)
        servers = self._servers or ",".join(source.spec.bootstrap_servers)
        reached = connection_configuration(Kafka(bootstrap_servers=servers))
        if secret is not None:
            reached.update(for_librdkafka(secret))
        missing, group = asyncio.run(self._ask_kafka_of(reached, source))
        return SeenSource(
            stored,
            source,
            group,
            missing,
            served=self._is_enabled("KNAFKA_SOURCES", unseen),
            peers=list(self._find_running(SOURCES_PEERS, unseen)),
            unseen=unseen,
        )

    def _triggers_of(self, broker: Identity) -> list[dict[str, Any]]:
        """Return the Triggers of a Broker, sorted by name."""
        found = self._api.list(OBJECTS["Trigger"], broker.namespace) or ()
        triggers = [{**each, "apiVersion": EVENTING, "kind": "Trigger"} for each in found]
        mine = [each for each in triggers if BROKERS.broker_of(each) == broker]
        return sorted(mine, key=lambda each: str(each["metadata"]["name"]))

    def _secret(self, namespace: str, name: str) -> Mapping[str, str]:
        found = self._api.get(SECRET_OBJECTS, namespace, name)
        return {} if found is None else decode_secret(found)

    def _get(self, kind: str, of: Identity) -> dict[str, Any] | None:
        objects = OBJECTS[kind]
        found = self._api.get(objects, *of)
        return None if found is None else {**found, "apiVersion": objects.version, "kind": kind}

    def _read_existing(self, kind: str, identity: Identity) -> dict[str, Any]:
        """Read an object. Raises `ClusterError` if it doesn't exist."""
        if (stored := self._get(kind, identity)) is None:
            raise ClusterError(f"there is no {kind} {identity}")
        return stored

    def _read_naming(self, unseen_reasons: list[str]) -> Naming:
        """Return the name templates that the operator uses, as far as their ConfigMaps can be read;
        adds to `unseen_reasons` why one can't be read."""
        naming = Naming()
        try:
            record = self._api.get(CONFIG_MAP_OBJECTS, self._system, TEMPLATES_CONFIG_MAP)
            for kind, templates in parse_recorded_templates(record).items():
                for template in templates:
                    naming.remember(kind, template)
            namespace, _, name = KAFKA_FEATURES.partition("/")
            config = self._api.get(CONFIG_MAP_OBJECTS, namespace, name)
            for kind in NameKind:
                naming.put_in_force(kind, declared_template(kind, (config or {}).get("data") or {}))
        except KnafkaError as error:
            unseen_reasons.append(str(error))
        return naming

    def _read_variables(self, unseen: list[str]) -> Mapping[str, str] | None:
        """Read the environment variables of the operator's pods; None if they can't be read."""
        try:
            operator = self._api.get(DEPLOYMENTS, self._system, OPERATOR_DEPLOYMENT)
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
        """Whether a variable of the operator's says `enabled`, or can't be seen."""
        variables = self._read_variables(unseen)
        return variables is None or variables.get(variable, "") == "enabled"

    def _read_classes(self, unseen: list[str]) -> frozenset[str]:
        """Return the Broker classes that the operator serves; the defaults if its environment sets
        none or can't be seen."""
        given = (self._read_variables(unseen) or {}).get("KNAFKA_BROKER_CLASSES")
        if given is None:
            return BROKER_CLASSES
        return frozenset(each.strip() for each in given.split(",") if each.strip())

    def _find_running(
        self, peers: Sequence[tuple[Objects, str, str]], unseen: list[str]
    ) -> Iterator[tuple[str, str, str]]:
        """Yield kind, namespace and name of each of the other implementation's workloads that has,
        or is to have, pods; adds to `unseen` why one can't be read."""
        for objects, kind, name in peers:
            try:
                found = self._api.get(objects, self._peers, name)
            except NotAllowed as error:
                unseen.append(str(error))
                continue
            if found is None:
                continue
            replicas = (found.get("status") or {}).get("replicas") or 0
            if replicas or (found.get("spec") or {}).get("replicas", 1):
                yield kind, self._peers, name

    def _find_other_claimant(self, kind: str, mine: Identity, topic: str) -> Identity | None:
        """Return another Broker or KafkaChannel whose status names this topic; None: there is none.
        A user who may list only one namespace gets an answer for that one."""
        objects = OBJECTS[kind]
        try:
            listed = self._api.list(objects)
        except NotAllowed:
            listed = self._api.list(objects, mine.namespace)
        for other in listed or ():
            annotations = (other.get("status") or {}).get("annotations") or {}
            external = EXTERNAL_TOPIC in (other["metadata"].get("annotations") or {})
            if (
                annotations.get(TOPIC_STATUS) == topic
                and Identity.of(other) != mine
                and not external
            ):
                return Identity.of(other)
        return None

    def _topic_refusal(self, broker: Document, topic: str, unseen: list[str]) -> str | None:
        """Return why a Broker may not use the external topic that it names; None: it may, or names
        none."""
        if EXTERNAL_TOPIC not in (broker["metadata"].get("annotations") or {}):
            return None
        installation = Identity(self._system, BROKER_CONFIG_MAP)
        try:
            base = self._declared.config_map(installation)
        except NotAllowed as error:
            unseen.append(str(error))
            return None
        allowed = "" if base is None else base.data.get(EXTERNAL_TOPICS, "")
        return external_topic_refusal(
            topic, broker["metadata"]["namespace"], allowed, f"ConfigMap {installation}"
        )

    async def _ask_kafka(
        self, reached: Mapping[str, Any], topic: str, groups: Sequence[str]
    ) -> tuple[TopicDescription | None, Mapping[str, SeenGroup]]:
        """Return the topic, None if it doesn't exist, and the state of each group that reads it.
        Raises `LogError`."""
        admin = self._connect(reached)
        try:
            found = await admin.describe_topic(topic)
            if found is None:
                return None, {}
            lags = await admin.lags(groups, topic) if groups else {}
            seen = {}
            for group in groups:
                lag = lags[group]
                committed = await admin.has_committed(group, topic)
                seen[group] = SeenGroup(
                    members=sorted(await admin.members(group)),
                    waiting=lag.total,
                    uncommitted=() if committed else range(found.partitions),
                )
            return found, seen
        finally:
            await admin.close()

    async def _ask_kafka_of(
        self, reached: Mapping[str, Any], source: KafkaSource
    ) -> tuple[Sequence[str], SeenGroup]:
        """Return the names of topics that don't exist, and the state of the group on the others."""
        admin, group = self._connect(reached), consumer_group_of(source)
        try:
            missing, waiting, committed = [], 0, False
            for topic in source.spec.topics:
                if await admin.describe_topic(topic) is None:
                    missing.append(topic)
                    continue
                waiting += (await admin.lags([group], topic))[group].total
                committed |= await admin.has_committed(group, topic)
            members = sorted(await admin.members(group))
            return missing, SeenGroup(members, waiting, () if committed else (0,))
        finally:
            await admin.close()


def _containers(deployment: Document) -> Sequence[Document]:
    template = (deployment.get("spec") or {}).get("template") or {}
    containers: Sequence[Document] = (template.get("spec") or {}).get("containers") or ()
    return containers
