"""Channel Kafkas: which Kafka a KafkaChannel has, by the installation's ConfigMap and a Secret; and
which a receiver has, by its own Service, when those are other ones by now or have gone.

Not here: what a channel has in its Kafka (`channels`, `receivers`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from knafka.core.contract import Kafka
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.decide import credentials, desired, kafka_settings, services
from knafka_operator.decide.channel import ChannelConnection, receivers_of
from knafka_operator.decide.credentials import KAFKA_SECRET
from knafka_operator.decide.desired import Defaults
from knafka_operator.decide.status import NotReady
from knafka_operator.model.cluster import Cluster, Document, decoded
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import CORE, SERVING, ConfigMap
from knafka_operator.model.settings import Settings
from knafka_operator.reconcile.resuming import serves_receiver
from knafka_operator.scale.kafka_clusters import KafkaCluster, KafkaClusters


@dataclass(eq=False)
class ChannelKafkas:
    """The connections of all KafkaChannels."""

    settings: Settings
    cluster: Cluster
    kafkas: KafkaClusters

    async def connect(self, document: Document) -> tuple[ChannelConnection, KafkaCluster]:
        """A channel's, as it is configured now; raises `NotReady`, `InvalidDocument`."""
        installation = Identity(self.settings.namespace, self.settings.channel_config)
        found = await self.cluster.get(CORE, "ConfigMap", *installation)
        base = None if found is None else parse(ConfigMap, found)
        annotations = document["metadata"].get("annotations") or {}
        named = annotations.get(KAFKA_SECRET)
        of = credentials.channel_secret(named, base, self.settings.namespace)
        secret = None
        if of is not None:
            there = await self.cluster.get(CORE, "Secret", *of)
            secret = credentials.check_channel_secret(named, there, of)
        values = None if secret is None else dict(decoded(secret))
        config = credentials.channel_config(named, values, base, installation)
        servers = config.data[desired.BOOTSTRAP_SERVERS]
        defaults = desired.configured(config, Defaults(kafka=Kafka(bootstrap_servers=servers)))
        defaults = replace(
            defaults,
            kafka=kafka_settings.of_annotations(defaults.kafka, annotations),
            topic_config={
                **defaults.topic_config,
                **kafka_settings.topic_of_channel(annotations),
            },
        )
        # Its Secret is one of the operator's namespace, so an administrator's.
        kafka = self.kafkas.at(defaults.kafka.bootstrap_servers, values, is_own=True)
        if secret is None:
            return ChannelConnection(defaults), kafka
        mounted = defaults.kafka.model_copy(update={"secret_path": services.SECRET_PATH})
        metadata = secret["metadata"]
        version = str(metadata.get("resourceVersion", ""))
        mount = str(metadata["name"]), version
        return ChannelConnection(replace(defaults, kafka=mounted), mount), kafka

    async def of(self, document: Document, before: KafkaCluster | None) -> KafkaCluster:
        """Where a channel's topic is, also when its ConfigMap or Secret is gone or is another one.

        `before` is where it was found last. Raises `NotReady`, `InvalidDocument`.
        """
        annotations = (document.get("status") or {}).get("annotations") or {}
        servers, found = annotations.get(desired.BOOTSTRAP_SERVERS), list[KafkaCluster]()
        failure: KnafkaError | None = None
        try:
            found.append((await self.connect(document))[1])
        except (NotReady, InvalidDocument) as error:
            failure = error
        if before is not None:
            found.append(before)
        for name in receivers_of(annotations):
            with suppress(NotReady, InvalidDocument):
                if (of := await self.of_receiver(name)) is not None:
                    found.append(of[0])
        there = [each for each in found if servers in (None, each.bootstrap_servers)]
        if there:
            return there[0]
        if servers is not None:  # without credentials it may still succeed
            return self.kafkas.at(servers, None)
        assert failure is not None
        raise failure

    async def of_receiver(self, name: str) -> tuple[KafkaCluster, str] | None:
        """A receiver's, with the topic of its contract, as its Service has them; None: there is no
        such receiver. Raises `NotReady`, `InvalidDocument`."""
        namespace = self.settings.namespace
        service = await self.cluster.get(SERVING, "Service", namespace, name)
        if service is None or services.CHANNELS_OWNER not in services.owners(service):
            return None
        receiver, mounted = serves_receiver(service["spec"]["template"])
        values = None
        if mounted is not None:
            secret = await self.cluster.get(CORE, "Secret", namespace, mounted[0])
            if secret is None:
                message = f"Secret {namespace}/{mounted[0]} of receiver {name} does not exist"
                raise NotReady("SecretNotFound", message)
            values = dict(decoded(secret))
            values.pop(desired.BOOTSTRAP_SERVERS, None)
        kafka = self.kafkas.at(receiver.kafka.bootstrap_servers, values, is_own=True)
        return kafka, receiver.contract_topic
