"""Namespace totals: what the other objects of a namespace have together, as far as is known.

Of what a former operator left that is what was resumed; the rest counts once it is reconciled.
"""

from __future__ import annotations

from knafka_operator.model.identity import Identity
from knafka_operator.reconcile.state import States


def min_scale_beside(states: States, trigger: Identity) -> int:
    """What the other Triggers of its namespace have as min-scale."""
    return sum(
        record.watched.autoscaling.min_scale
        for who, record in states.triggers.items()
        if who.namespace == trigger.namespace and who != trigger and record.watched is not None
    )


def partitions_beside(states: States, broker: Identity) -> int:
    """Partitions of the topics of its namespace's other Brokers."""
    return sum(
        record.state.partitions
        for who, record in states.brokers.items()
        if who.namespace == broker.namespace and who != broker and record.state is not None
    )
