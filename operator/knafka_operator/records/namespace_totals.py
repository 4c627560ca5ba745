"""Namespace totals: sums over the other objects of an object's namespace, for limits.

An object counts as far as it is known: after the operator's start, resumed objects count at once,
and the others once they are reconciled.
"""

from __future__ import annotations

from knafka_operator.model.identity import Identity
from knafka_operator.records.state import States


def min_scale_of_others(states: States, trigger: Identity) -> int:
    """Return the sum of the min-scales of all other Triggers in the namespace of `trigger`, as far
    as they are delivered."""
    return sum(
        record.watched.autoscaling.min_scale
        for identity, record in states.triggers.items()
        if identity.namespace == trigger.namespace
        and identity != trigger
        and record.watched is not None
    )


def partitions_of_others(states: States, broker: Identity) -> int:
    """Return the number of partitions that the topics of all other Brokers in the namespace of
    `broker` have together."""
    return sum(
        record.state.partitions
        for identity, record in states.brokers.items()
        if identity.namespace == broker.namespace
        and identity != broker
        and record.state is not None
    )
