"""ClusterKafka: finds the Kafka and the dead-letter topic of a Trigger or Subscription.

What dispatchers need to know of a Trigger or Subscription, such as its topics, is its Egress.
Objects in the viewer's namespaces (Brokers, their ConfigMap and Secret) are read with the viewer's
rights, those of the installation with the account of `system`.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import kubernetes

from knafka.core.contract import Egress
from knafka_client.declared.cluster_source import ClusterSource
from knafka_client.declared.kubernetes_api import KubernetesApi, Objects
from knafka_console.model.source import NotFound
from knafka_operator.model.channels import KAFKA_CHANNEL_VERSIONS
from knafka_operator.model.cluster import ClusterError, Document
from knafka_operator.model.family import BROKERS as BROKER_FAMILY
from knafka_operator.model.family import CHANNELS, Family, family_of
from knafka_operator.model.resources import EVENTING

BROKER_OBJECTS: Final = Objects(EVENTING, "brokers")
"""Brokers, as requests to the API server name them."""
KAFKA_CHANNEL_OBJECTS: Final = Objects(KAFKA_CHANNEL_VERSIONS[0], "kafkachannels")
"""KafkaChannels, as requests to the API server name them."""


class ClusterKafka:
    """Finds the Kafka of Triggers and Brokers for one viewer."""

    def __init__(
        self,
        client: kubernetes.client.ApiClient,
        system_namespace: str,
        *,
        system: kubernetes.client.ApiClient | None = None,
        bootstrap_servers: str | None = None,
    ) -> None:
        """`client` has the viewer's account. `system` is a client with another account, for objects
        in `system_namespace`; None: the viewer's account reads them, too. `bootstrap_servers` are
        used in place of those that objects name; None: use theirs."""
        self._api = KubernetesApi(client)
        self._source = ClusterSource(
            client,
            system_namespace=system_namespace,
            bootstrap_servers=bootstrap_servers,
            system_client=system,
        )

    async def find(self, trigger: Document) -> tuple[Egress, dict[str, Any]]:
        """Return the Egress of a Trigger or Subscription, and the librdkafka configuration for its
        Kafka.

        Raises `NotFound` if its Broker or channel doesn't exist, and another `KnafkaError` if the
        viewer may not read an object or one can't be used.
        """
        family = family_of(trigger["kind"])
        broker_identity = family.broker_of(trigger)
        broker_objects = KAFKA_CHANNEL_OBJECTS if family is CHANNELS else BROKER_OBJECTS
        broker = await asyncio.to_thread(self._api.get, broker_objects, *broker_identity)
        if broker is None:
            raise NotFound(f"there is no {family.broker} {broker_identity}")
        return await asyncio.to_thread(self._read_egress, family, broker, trigger)

    async def find_for_broker(self, namespace: str, broker: str) -> dict[str, Any]:
        """Return the librdkafka configuration for a Broker's Kafka. Raises `NotFound` if there is
        no such Broker, and another `KnafkaError` if the viewer may not read an object or one can't
        be used."""
        document = await asyncio.to_thread(self._api.get, BROKER_OBJECTS, namespace, broker)
        if document is None:
            raise NotFound(f"there is no Broker {namespace}/{broker}")
        version_and_kind = {"apiVersion": EVENTING, "kind": "Broker"}
        return await asyncio.to_thread(self._read_connection, {**version_and_kind, **document})

    def _read_connection(self, broker: Document) -> dict[str, Any]:
        """Return the librdkafka configuration for a Broker's Kafka; blocks. Raises
        `KnafkaError`."""
        access = self._source.connection_of(BROKER_FAMILY.read_broker(broker))
        return dict(access.configuration)

    def _read_egress(
        self, family: Family, broker: Document, trigger: Document
    ) -> tuple[Egress, dict[str, Any]]:
        """Return the Egress of a Trigger of this Broker, and the librdkafka configuration for its
        Kafka; blocks. `family` is Brokers and Triggers, or KafkaChannels and Subscriptions. Raises
        `ClusterError`."""
        version_and_kind = {"apiVersion": family.broker_version, "kind": family.broker}
        view = self._source.view(family, {**version_and_kind, **broker}, trigger)
        if not view.egresses:
            raise ClusterError("; ".join(view.problems))
        (egress,) = view.egresses  # that of `trigger`, the only one in the view
        return egress, view.kafka_configuration(egress)
