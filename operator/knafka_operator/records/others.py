"""Others: what is decided upon beside an object itself: where a sink is, what its namespace has."""

from __future__ import annotations

from knafka.core.contract import Sink
from knafka.core.errors import KnafkaError
from knafka_operator.decisions.resolving import not_allowed, resolve
from knafka_operator.decisions.status import EXPECTED
from knafka_operator.installation.settings import Settings
from knafka_operator.model.cluster import Cluster, NotAllowed
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import Destination
from knafka_operator.records.state import States


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


# What the others of a namespace have together, as far as is known: of what a former operator left
# that is what was resumed; the rest counts once it is reconciled.


def min_scale_of_others(states: States, trigger: Identity) -> int:
    """Sum of min-scale of the other Triggers in a Trigger's namespace."""
    return sum(
        record.watched.autoscaling.min_scale
        for identity, record in states.triggers.items()
        if identity.namespace == trigger.namespace
        and identity != trigger
        and record.watched is not None
    )


def partitions_of_others(states: States, broker: Identity) -> int:
    """Number of partitions of the other Brokers' topics in a Broker's namespace."""
    return sum(
        record.state.partitions
        for identity, record in states.brokers.items()
        if identity.namespace == broker.namespace
        and identity != broker
        and record.state is not None
    )
