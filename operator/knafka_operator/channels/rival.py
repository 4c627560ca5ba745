"""Rival: the status of a KafkaChannel that another implementation serves, or may serve. Pure.

Not here: how the other implementation is noticed (`kind`), and taking a channel over from it
(`knafka adopt`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from knafka_operator.decisions.status import (
    CHANNEL_CONDITIONS,
    SERVED_BY_KNAFKA,
    SUBSCRIPTIONS_HANDLED,
)
from knafka_operator.model.conditions import READY, Condition, Severity, Status, merge_conditions


def rival_message(rival: str) -> str:
    """Return the sentence for users about another implementation, `rival`, that serves
    KafkaChannels here."""
    return (
        f"{rival} serves KafkaChannels here, too: have `knafka adopt` take this one over, remove "
        "the other, or run this operator without KNAFKA_CHANNELS=enabled"
    )


def conditions_beside_rival(
    status: Mapping[str, Any], rival: str, timestamp: str
) -> list[dict[str, Any]] | None:
    """Return the conditions that `rival`, another implementation, has written to the `status` of a
    channel that it serves, with Knafka's informational condition added. None: `rival` has written
    no conditions. `timestamp` is the present time (RFC 3339)."""
    stored = status.get("conditions") or ()
    conditions = [condition for condition in stored if isinstance(condition, Mapping)]
    types = {condition.get("type") for condition in conditions}
    # `Ready`, too, as Knafka writes it itself: only another type shows that `rival` has written.
    own_types = {READY, *CHANNEL_CONDITIONS, SUBSCRIPTIONS_HANDLED, SERVED_BY_KNAFKA}
    if READY not in types or not types - own_types:
        return None  # the other implementation has written none yet
    own_condition = Condition(
        SERVED_BY_KNAFKA, Status.FALSE, "OtherImplementation", rival_message(rival), Severity.INFO
    )
    rivals_conditions = [
        dict(condition) for condition in conditions if condition.get("type") != SERVED_BY_KNAFKA
    ]
    merged = merge_conditions(conditions, [own_condition], timestamp)
    # Not the `Ready` in `merged`, which sums up only our own condition.
    own = (condition for condition in merged if condition["type"] == SERVED_BY_KNAFKA)
    return [*rivals_conditions, *own]
