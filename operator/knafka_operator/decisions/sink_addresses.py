"""Sink addresses: resolves a declared destination, with the reason if it has no address."""

from __future__ import annotations

from knafka.core.contract import Sink
from knafka.core.errors import KnafkaError
from knafka_operator.decisions.resolving import not_allowed_error, resolve
from knafka_operator.decisions.status import EXPECTED
from knafka_operator.installation.settings import Settings
from knafka_operator.model.cluster import Cluster, NotAllowed
from knafka_operator.model.resources import Destination


async def observe_sink(
    cluster: Cluster, destination: Destination, namespace: str, settings: Settings
) -> Sink | KnafkaError:
    """Return the address of a destination declared in `namespace`, or the error that says why it
    has none. Raises `ClusterError` if the API server doesn't answer."""
    try:
        return await resolve(
            destination,
            namespace,
            cluster.get,
            settings.cluster_domain,
            local_addresses=settings.local_addresses,
        )
    except NotAllowed:
        assert destination.ref is not None  # only a reference is read from the API server
        ref = destination.ref
        return not_allowed_error(ref.api_version, ref.kind, ref.namespace or namespace, ref.name)
    except EXPECTED as error:
        return error
