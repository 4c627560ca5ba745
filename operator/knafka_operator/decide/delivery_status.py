"""Delivery status: what the scaler knows of a Trigger, as its status. Pure."""

from __future__ import annotations

from typing import Final

from knafka.core.hops import FIRST_TTL, MAX_HOPS
from knafka_operator.decide.scaling import TriggerStatus
from knafka_operator.decide.status import DELIVERING
from knafka_operator.model import resources
from knafka_operator.model.conditions import Condition, Severity, Status

LAG: Final = "knafka.dev/lag"
REPLICAS: Final = "knafka.dev/replicas"
SCALING: Final = "knafka.dev/scaling"
"""Keys of `status.annotations`: the scaler's view, and its last decision with the reason."""

PAUSED: Final = Condition(
    DELIVERING,
    Status.FALSE,
    "Paused",
    f'its annotation {resources.PAUSED} is "true": nothing is delivered, and its events wait in '
    "Kafka",
    Severity.INFO,
)


def scaling(scaled: TriggerStatus | None) -> dict[str, str | None]:
    """What the scaler knows of a Trigger, as annotations of its status; None: take it away."""
    if scaled is None:
        return dict.fromkeys((LAG, REPLICAS, SCALING))
    return {
        LAG: "unknown" if scaled.lag is None else str(scaled.lag),
        REPLICAS: str(scaled.replicas),
        SCALING: f"{scaled.scale.replicas}: {scaled.scale.reason}",
    }


def delivering(scaled: TriggerStatus) -> Condition:
    """For people: it doesn't make a Trigger Ready or not."""

    def warning(reason: str, message: str) -> Condition:
        return Condition(DELIVERING, Status.FALSE, reason, message[:1000], Severity.WARNING)

    if scaled.paused:
        return PAUSED
    if scaled.error is not None:
        return warning("DrainFailed", scaled.error)
    if scaled.counts.congestion is not None:
        waiting = "a few events probe the subscriber, the others wait in Kafka"
        return warning("SubscriberUnavailable", f"{scaled.counts.congestion}: {waiting}")
    if scaled.counts.loop is not None:
        end = f"it ends after {FIRST_TTL} replies or {MAX_HOPS} dead letters in a row"
        return warning("Loop", f"{scaled.counts.loop}: {end}, as dead letters in its topic")
    if scaled.beyond_end:
        partitions = ", ".join(map(str, sorted(scaled.beyond_end)))
        return warning(
            "CommittedBeyondEnd",
            f"partitions {partitions} of the topic end before what was committed, as it was made "
            "anew or has lost its end: they are read from the start of what is there",
        )
    return Condition(DELIVERING, Status.TRUE, severity=Severity.WARNING)
