"""ClusterKafka: where a Trigger's or Subscription's dead letters are, and how its Kafka is reached.

What belongs to the viewer (Brokers, and a ConfigMap and Secret in their own namespaces) is read
under the viewer's rights; what belongs to the installation, by the account of `system`.
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
KAFKA_CHANNEL_OBJECTS: Final = Objects(KAFKA_CHANNEL_VERSIONS[0], "kafkachannels")


class ClusterKafka:
    """Of one viewer. `system` is another account, for what is in `system_namespace`; None: the
    viewer's own."""

    def __init__(
        self,
        client: kubernetes.client.ApiClient,
        system_namespace: str,
        *,
        system: kubernetes.client.ApiClient | None = None,
        bootstrap_servers: str | None = None,
    ) -> None:
        self._api = KubernetesApi(client)
        self._source = ClusterSource(
            client,
            system_namespace=system_namespace,
            bootstrap_servers=bootstrap_servers,
            system_client=system,
        )

    async def of(self, trigger: Document) -> tuple[Egress, dict[str, Any]]:
        """The Egress of a Trigger or Subscription, and the librdkafka configuration of its Kafka.
        Raises `NotFound` without its Broker, and `KnafkaError`."""
        family = family_of(trigger["kind"])
        identity = family.broker_of(trigger)
        kind = KAFKA_CHANNEL_OBJECTS if family is CHANNELS else BROKER_OBJECTS
        broker = await asyncio.to_thread(self._api.get, kind, *identity)
        if broker is None:
            raise NotFound(f"there is no {family.broker} {identity}")
        return await asyncio.to_thread(self._read, family, broker, trigger)

    async def of_broker(self, namespace: str, broker: str) -> dict[str, Any]:
        """The librdkafka configuration of a Broker's Kafka. Raises `NotFound` and `KnafkaError`."""
        document = await asyncio.to_thread(self._api.get, BROKER_OBJECTS, namespace, broker)
        if document is None:
            raise NotFound(f"there is no Broker {namespace}/{broker}")
        about = {"apiVersion": EVENTING, "kind": "Broker"}
        return await asyncio.to_thread(self._connection, {**about, **document})

    def _connection(self, broker: Document) -> dict[str, Any]:
        reached, _, _ = self._source.connection_of(BROKER_FAMILY.read_broker(broker))
        return dict(reached)

    def _read(
        self, family: Family, broker: Document, trigger: Document
    ) -> tuple[Egress, dict[str, Any]]:
        about = {"apiVersion": family.broker_version, "kind": family.broker}
        view = self._source.view(family, {**about, **broker}, trigger)
        if not view.egresses:
            raise ClusterError("; ".join(view.problems))
        (egress,) = view.egresses
        return egress, view.connection(egress)
