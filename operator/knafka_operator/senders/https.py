"""Encryption: reads how a receiver is reached by https."""

from __future__ import annotations

from datetime import UTC, datetime

from knafka_operator.decisions.status import NotReady
from knafka_operator.functions import receiver_services
from knafka_operator.installation.settings import Settings
from knafka_operator.model.cluster import Cluster, decoded_secret
from knafka_operator.model.resources import CORE, SERVING, Broker
from knafka_operator.senders.encryption import TLS_SECRET, Https, https_of_service


async def observe_https(
    cluster: Cluster, broker: Broker, settings: Settings, now: datetime | None = None
) -> Https | NotReady:
    """How a Broker's receiver is reached by https, or the error that says why not. Raises
    `ClusterError`."""
    namespace = broker.metadata.namespace
    if (name := broker.metadata.annotations.get(TLS_SECRET)) is None:
        return await observe_https_of(cluster, namespace, receiver_services.receiver_name(broker))
    # Here, as few name one.
    from knafka_operator.senders.certificates import https_of_secret

    stored = await cluster.get(CORE, "Secret", namespace, name)
    values = None if stored is None else decoded_secret(stored)
    try:
        return https_of_secret(broker, name, values, settings, now or datetime.now(UTC))
    except NotReady as error:
        return error


async def observe_https_of(cluster: Cluster, namespace: str, receiver: str) -> Https | NotReady:
    """The https address that Knative gives a receiver, or the error that says why not. Raises
    `ClusterError`."""
    try:
        stored = await cluster.get(SERVING, "Service", namespace, receiver)
        return https_of_service(stored, receiver)
    except NotReady as error:
        return error
