"""Finds the Kafka of a KafkaChannel: by the installation's ConfigMap and a Secret or, if these have
changed or are gone, by the Service of the channel's receiver.

Not here: what a channel has in its Kafka (`kind`, `receivers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from knafka.core.contract import Kafka
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.channels.observed import ChannelConnection, receivers_of
from knafka_operator.decisions.status import NotReady
from knafka_operator.dispatchers.resuming import read_receiver
from knafka_operator.functions import receiver_services, services
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import credentials, desired, kafka_settings
from knafka_operator.kafka.clusters import KafkaCluster, KafkaClusters
from knafka_operator.kafka.credentials import KAFKA_SECRET
from knafka_operator.kafka.desired import Defaults
from knafka_operator.model.cluster import Cluster, Document, decode_secret, status_annotations
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import CORE, SERVING, ConfigMap


@dataclass(eq=False)
class ChannelKafkas:
    """Finds the Kafka connection of each KafkaChannel."""

    settings: Settings
    cluster: Cluster
    kafkas: KafkaClusters

    async def connect(self, document: Document) -> tuple[ChannelConnection, KafkaCluster]:
        """Return the configuration and client of a channel's Kafka, as they are configured now.
        Raises `NotReady`, `InvalidDocument` and `ClusterError`."""
        installation = Identity(self.settings.namespace, self.settings.channel_config)
        stored_config = await self.cluster.get(CORE, "ConfigMap", *installation)
        installation_config = None if stored_config is None else parse(ConfigMap, stored_config)
        annotations = document["metadata"].get("annotations") or {}
        secret_name = annotations.get(KAFKA_SECRET)
        secret = await self._read_secret(secret_name, installation_config)
        values = None if secret is None else dict(decode_secret(secret))
        config = credentials.channel_config(secret_name, values, installation_config, installation)
        defaults = _channel_defaults(config, annotations)
        # The Secret is in the operator's namespace, so it is an administrator's.
        kafka = self.kafkas.ensure_cluster(defaults.kafka.bootstrap_servers, values, is_own=True)
        if secret is None:
            return ChannelConnection(defaults), kafka
        mounted = defaults.kafka.model_copy(update={"secret_path": services.SECRET_PATH})
        metadata = secret["metadata"]
        name_and_version = str(metadata["name"]), str(metadata.get("resourceVersion", ""))
        return ChannelConnection(replace(defaults, kafka=mounted), name_and_version), kafka

    async def _read_secret(
        self, secret_name: str | None, installation_config: ConfigMap | None
    ) -> Document | None:
        """Return the stored Secret with the credentials of a channel's Kafka; `secret_name` is the
        Secret that the channel itself names. None: no Secret is needed. Raises `NotReady` and
        `ClusterError`."""
        identity = credentials.channel_secret(
            secret_name, installation_config, self.settings.namespace
        )
        if identity is None:
            return None
        stored_secret = await self.cluster.get(CORE, "Secret", *identity)
        return credentials.check_channel_secret(secret_name, stored_secret, identity)

    async def find_kafka(self, document: Document, last_kafka: KafkaCluster | None) -> KafkaCluster:
        """Return the Kafka with a channel's topic, even if the ConfigMap or Secret that configured
        it was deleted or changed since. It is the first of these whose servers are those in the
        channel's status: the Kafka that is configured now, `last_kafka` (the last known one; None:
        none is known), those of its receivers. If none is, connect to these servers without
        credentials. Raises `NotReady`, `InvalidDocument` and `ClusterError`."""
        annotations = status_annotations(document)
        candidates: list[KafkaCluster] = []
        failure: KnafkaError | None = None
        try:
            _, configured_kafka = await self.connect(document)
            candidates.append(configured_kafka)
        except (NotReady, InvalidDocument) as error:
            failure = error
        if last_kafka is not None:
            candidates.append(last_kafka)
        for name in receivers_of(annotations):
            with suppress(NotReady, InvalidDocument):
                if (kafka_and_topic := await self.find_kafka_of_receiver(name)) is not None:
                    candidates.append(kafka_and_topic[0])
        kafka = self.kafkas.find_cluster(annotations.get(desired.BOOTSTRAP_SERVERS), candidates)
        if kafka is None:
            assert failure is not None
            raise failure
        return kafka

    async def find_kafka_of_receiver(self, name: str) -> tuple[KafkaCluster, str] | None:
        """Return the Kafka and the contract topic of the channel receiver whose Service has this
        name; None: there is no such receiver. Raises `NotReady`, `InvalidDocument` and
        `ClusterError`."""
        namespace = self.settings.namespace
        service = await self.cluster.get(SERVING, "Service", namespace, name)
        if service is None or receiver_services.CHANNELS_OWNER not in services.owner_uids(service):
            return None
        receiver, mounted_secret = read_receiver(service["spec"]["template"])
        values = None
        if mounted_secret is not None:
            secret_name, _ = mounted_secret
            secret = await self.cluster.get(CORE, "Secret", namespace, secret_name)
            if secret is None:
                message = f"Secret {namespace}/{secret_name} of receiver {name} does not exist"
                raise NotReady("SecretNotFound", message)
            values = dict(decode_secret(secret))
            values.pop(desired.BOOTSTRAP_SERVERS, None)  # the receiver's own servers count
        kafka = self.kafkas.ensure_cluster(receiver.kafka.bootstrap_servers, values, is_own=True)
        return kafka, receiver.contract_topic


def _channel_defaults(config: ConfigMap, annotations: Mapping[str, str]) -> Defaults:
    """Return the connection and topic settings of a channel: those of `config`, its ConfigMap, with
    the settings in the channel's annotations merged over them. Raises `InvalidDocument`."""
    servers = config.data[desired.BOOTSTRAP_SERVERS]
    defaults = desired.defaults_with_config(
        config, Defaults(kafka=Kafka(bootstrap_servers=servers))
    )
    # The client's settings first, as the webhook does: an error names the same setting.
    kafka = kafka_settings.with_annotation_settings(defaults.kafka, annotations)
    topic_settings = kafka_settings.channel_topic_settings(annotations)
    topic_config = {**defaults.topic_config, **topic_settings}
    return replace(defaults, kafka=kafka, topic_config=topic_config)
