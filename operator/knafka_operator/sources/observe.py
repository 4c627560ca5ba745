"""Observing: reads what a KafkaSource has instead of a Broker: its Secrets, its Kafka and its
topics.

Not here: the decision about the source (`triggers.decide`), and its sink (`triggers.observe`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from knafka.core.contract import Kafka
from knafka_operator.decisions.status import NotReady
from knafka_operator.functions import services
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka.clusters import KafkaCluster, KafkaClusters
from knafka_operator.kafka.desired import Defaults, with_record_limit_in_kafka
from knafka_operator.kafka.endpoints import check_endpoint
from knafka_operator.model.cluster import Cluster, Document, decode_secret, status_annotations
from knafka_operator.model.family import SOURCES
from knafka_operator.model.resources import CORE
from knafka_operator.model.sources import (
    Credential,
    KafkaSource,
    consumer_group_of,
    refuse_taken_topics,
    required_credentials,
    security_protocol,
)
from knafka_operator.model.topics import Topic
from knafka_operator.records.state import BrokerState, States
from knafka_operator.senders.observe import is_authentication_on, observe_features
from knafka_operator.sources.decide import kafka_secret_values, missing_topics_error
from knafka_operator.triggers.started_topics import started_topics

MOUNTED: Final = ""
"""Stands in for the name of the Secret that pods mount, since a source's pods mount keys of several
Secrets (`SourceTrigger.credentials_volume`)."""


@dataclass(eq=False)
class SourceObserver:
    """Reads a KafkaSource's Kafka and topics, which take the place of a Broker."""

    settings: Settings
    cluster: Cluster
    kafkas: KafkaClusters
    states: States
    is_taken: Callable[[str], bool]
    """Whether a Broker, KafkaChannel or Sensor has a topic of this name."""

    async def connect_kafka(
        self, source: KafkaSource
    ) -> tuple[KafkaCluster, tuple[str, str] | None]:
        """Return a source's Kafka, and `MOUNTED` with a version of the source's credentials, which
        changes when one of their Secrets changes; None: the source needs no credentials. Raises the
        errors in `decisions.status.EXPECTED`, and `ClusterError`."""
        spec, namespace = source.spec, source.metadata.namespace
        credentials = list(required_credentials(spec.net))
        stored_secrets = {
            name: await self.cluster.get(CORE, "Secret", namespace, name)
            for name in dict.fromkeys(credential.secret for credential in credentials)
        }
        values_by_secret = {
            name: decode_secret(stored_secret)
            for name, stored_secret in stored_secrets.items()
            if stored_secret is not None
        }
        credential_values: dict[Credential, str | None] = {
            credential: values_by_secret.get(credential.secret, {}).get(credential.key)
            for credential in credentials
        }
        kafka_secret = kafka_secret_values(spec, credential_values, namespace)
        if kafka_secret is not None:
            await check_endpoint(kafka_secret, self.settings)
        kafka = self.kafkas.ensure_cluster(",".join(spec.bootstrap_servers), kafka_secret)
        versions = [
            str(stored_secret["metadata"].get("resourceVersion", ""))
            for stored_secret in stored_secrets.values()
            if stored_secret
        ]
        mounted_secret = (MOUNTED, ".".join(versions)) if credentials else None
        return kafka, mounted_secret

    async def observe_broker_state(
        self, document: Document, source: KafkaSource
    ) -> tuple[BrokerState, NotReady | None]:
        """Return a source's Kafka and topics in the form of a Broker's state, and the error that
        names the topics that don't exist; None: all exist. The Broker's topic is the source's first
        topic, and counts as external.

        The error is returned if the source's group has begun on all missing topics: then events of
        the other topics are delivered meanwhile. It is raised if the group hasn't, or if no topic
        exists. Also raises the other errors in `decisions.status.EXPECTED`, and `ClusterError`.
        """
        spec = source.spec
        refuse_taken_topics(spec.topics, self.is_taken, "spec.topics")
        kafka, secret = await self.connect_kafka(source)
        descriptions = await asyncio.gather(*map(kafka.topics.describe_topic, spec.topics))
        existing = [description for description in descriptions if description is not None]
        missing_error = None
        if len(existing) < len(descriptions):
            missing = [
                name
                for name, description in zip(spec.topics, descriptions, strict=True)
                if description is None
            ]
            missing_error = missing_topics_error(missing, kafka.bootstrap_servers)
            started = started_topics(
                status_annotations(document), kafka.bootstrap_servers, consumer_group_of(source)
            )
            has_begun_on_missing = {*missing} <= {*started}
            if not existing or not has_begun_on_missing:
                raise missing_error
        kafka_settings = Kafka(
            bootstrap_servers=kafka.bootstrap_servers,
            secret_path=None if secret is None else services.SECRET_PATH,
            protocol=security_protocol(spec.net),
        )
        features = await observe_features(self.cluster, self.settings, self.states.policies, source)
        # The counts (1, 1) mean nothing: an external topic is never created or compared.
        topic = Topic(spec.topics[0], 1, 1, existing[0].config, external=True)
        for description in existing[1:]:
            topic = with_record_limit_in_kafka(topic, description.config)
        state = BrokerState(
            broker=SOURCES.read_broker(document),
            topic=topic,
            partitions=sum(description.partitions for description in existing),
            defaults=Defaults(kafka=kafka_settings),
            secret=secret,
            kafka=kafka,
            ready="True",
            oidc=is_authentication_on(features.authentication),
        )
        return state, missing_error
