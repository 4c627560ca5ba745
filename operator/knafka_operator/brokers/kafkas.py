"""Finds the Kafka of a Broker: by ConfigMaps and a Secret or, if these have changed or are gone,
by the Broker's record or status.

Not here: what a Broker has in its Kafka (`kind`, `observe`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from knafka.core.contract import Kafka
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument, KnafkaError, LogError
from knafka_operator.brokers.decide import BrokerConnection
from knafka_operator.decisions.status import NotReady
from knafka_operator.functions import services
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import credentials, desired
from knafka_operator.kafka.clusters import KafkaCluster, KafkaClusters
from knafka_operator.kafka.desired import Defaults
from knafka_operator.kafka.endpoints import check_endpoint
from knafka_operator.kafka.topics import TOPIC_ID
from knafka_operator.model.cluster import Cluster, Document, decode_secret, status_annotations
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import CORE, TOPIC_STATUS, Broker, ConfigMap
from knafka_operator.records.state import States


@dataclass(eq=False)
class BrokerKafkas:
    """Finds the Kafka connection of each Broker."""

    settings: Settings
    cluster: Cluster
    kafkas: KafkaClusters
    states: States

    async def connect(self, broker: Broker) -> tuple[BrokerConnection, KafkaCluster]:
        """Return the configuration and client of a Broker's Kafka. The ConfigMap that the Broker
        references (if any) is merged over the installation's; the Secret must exist, and the Broker
        must be allowed to use both. Raises the errors in `EXPECTED`, and `ClusterError`."""
        installation_config = await self.read_installation_config()
        reference = desired.config_reference(broker)
        broker_config = None if reference is None else await self.read_config_map(*reference)
        credentials.check_config_map_reference(
            reference, broker_config, broker, self.installation_config_identity
        )
        configured = credentials.merge_configuration(
            reference, broker_config, installation_config, self.installation_config_identity
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
        is_own = configured.is_offered or Identity.of(secret).namespace == self.settings.namespace
        if not is_own:
            await check_endpoint(decode_secret(secret), self.settings)
        kafka = self.kafkas.ensure_cluster(bootstrap_servers, decode_secret(secret), is_own=is_own)
        mount = credentials.secret_mount(broker, secret)
        mounted = defaults.kafka.model_copy(update={"secret_path": services.SECRET_PATH})
        return BrokerConnection(configured.config, replace(defaults, kafka=mounted), mount), kafka

    async def find_kafka(self, document: Document) -> KafkaCluster:
        """Return the Kafka with a Broker's topic, even if the Broker is invalid, or if its
        ConfigMap or Secret was deleted or changed since. It is the first of these whose servers are
        those in the Broker's status, or else that has the topic with the id in the status: the
        Kafka that is configured now, the one in its record. If none is, connect to the servers in
        the status without credentials. Raises the errors in `EXPECTED` if the Kafka isn't known,
        and `ClusterError`."""
        candidates: list[KafkaCluster] = []
        failure: KnafkaError | None = None
        try:
            _, configured_kafka = await self.connect(_without_delivery(document))
            candidates.append(configured_kafka)
        except (NotReady, InvalidDocument) as error:
            failure = error
        record = self.states.brokers.get(Identity.of(document))
        if record is not None and record.kafka is not None:
            candidates.append(record.kafka)
        servers = status_annotations(document).get(desired.BOOTSTRAP_SERVERS)
        if all(candidate.bootstrap_servers != servers for candidate in candidates):
            for candidate in candidates:
                if await _has_topic(candidate, document):  # its servers have other addresses by now
                    return candidate
        kafka = self.kafkas.find_cluster(servers, candidates)
        if kafka is None:
            assert failure is not None
            raise failure
        return kafka

    @property
    def installation_config_identity(self) -> Identity:
        """Namespace and name of the installation's ConfigMap, the defaults for all Brokers."""
        return Identity(self.settings.namespace, self.settings.config)

    async def read_installation_config(self) -> ConfigMap | None:
        """Return the installation's ConfigMap, which has the defaults for all Brokers; None: it
        doesn't exist. Raises `ClusterError` and `InvalidDocument`."""
        return await self.read_config_map(*self.installation_config_identity)

    async def read_config_map(self, namespace: str, name: str) -> ConfigMap | None:
        """Return a parsed ConfigMap; None: it doesn't exist. Raises `ClusterError`, and
        `InvalidDocument` if it can't be parsed."""
        stored = await self.cluster.get(CORE, "ConfigMap", namespace, name)
        return None if stored is None else parse(ConfigMap, stored)


async def _has_topic(kafka: KafkaCluster, document: Document) -> bool:
    """Whether a Kafka answers and has the topic of the name and id in a Broker's status."""
    annotations = status_annotations(document)
    topic, topic_id = annotations.get(TOPIC_STATUS), annotations.get(TOPIC_ID)
    if not topic or not topic_id:
        return False
    try:
        description = await kafka.topics.describe_topic(topic)
    except LogError:
        return False
    return description is not None and description.id == topic_id


def _without_delivery(document: Document) -> Broker:
    """Parse what a stored Broker's connection depends on: its metadata and `spec.config`; the rest
    may be invalid. Raises `InvalidDocument`."""
    config = (document.get("spec") or {}).get("config")
    type_and_metadata = {key: document[key] for key in ("apiVersion", "kind", "metadata")}
    return parse(Broker, {**type_and_metadata, "spec": {"config": config}})
