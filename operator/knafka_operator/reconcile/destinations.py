"""Destinations: what is declared as a subscriber or dead letter sink, read and resolved."""

from __future__ import annotations

from knafka.core.contract import Sink
from knafka.core.errors import KnafkaError
from knafka_operator.decide.resolving import not_allowed, resolve
from knafka_operator.decide.status import EXPECTED
from knafka_operator.model.cluster import Cluster, NotAllowed
from knafka_operator.model.resources import Destination
from knafka_operator.model.settings import Settings


async def observe_sink(
    cluster: Cluster, destination: Destination, namespace: str, settings: Settings
) -> Sink | KnafkaError:
    """The address of a destination declared in `namespace`, or why it has none.

    Raises `ClusterError` if the API server doesn't say.
    """
    try:
        return await resolve(
            destination,
            namespace,
            cluster.get,
            settings.cluster_domain,
            local_addresses=settings.local_addresses,
        )
    except NotAllowed:
        assert destination.ref is not None
        ref = destination.ref
        return not_allowed(ref.api_version, ref.kind, ref.namespace or namespace, ref.name)
    except EXPECTED as error:
        return error
