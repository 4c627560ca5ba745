"""Sensor scaling: reads a Sensor's autoscaling, and builds the conditions about delivery, order and
dead letters. Pure.

Not here: the number of drains (`scale.decide`), and opening them (`scale.scaler`).
"""

from __future__ import annotations

from typing import Final

from knafka.core.delivery import Reason
from knafka_operator.decisions.status import DELIVERING
from knafka_operator.dispatchers.conditions import delivering_condition
from knafka_operator.dispatchers.dead_letters import DEAD_LETTERS_TYPE
from knafka_operator.model import resources
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.conditions import Condition, Severity, Status
from knafka_operator.model.maxima import Maxima
from knafka_operator.model.resources import Resource
from knafka_operator.scale.decide import ScalingStatus
from knafka_operator.sensors.limits import MAX_HELD_BYTES_ANNOTATION, MAX_HELD_KEYS_ANNOTATION

DEFAULT_SENSOR_AUTOSCALING: Final = Autoscaling(lag_threshold=10_000)
"""Autoscaling of a Sensor without annotations. One process handles 10,000 records within seconds,
and each further process takes over partitions together with all events that are held in them."""

IN_ORDER: Final = "InOrder"
"""Type of the condition that no event came too late for its order."""

SENSOR_PAUSED: Final = Condition(
    DELIVERING,
    Status.FALSE,
    "Paused",
    f'its annotation {resources.PAUSED_ANNOTATION} is "true": nothing fires, and its '
    "events wait in Kafka",
    Severity.INFO,
)
"""The condition of a paused Sensor."""


def sensor_autoscaling(sensor: Resource, maxima: Maxima) -> Autoscaling:
    """Return the autoscaling that a Sensor's annotations declare, the same ones as a Trigger's.
    `maxima` has the installation's limits. Raises `InvalidDocument` for an invalid annotation."""
    return Autoscaling.from_annotations(
        sensor.metadata.annotations, DEFAULT_SENSOR_AUTOSCALING, maxima
    )


def sensor_delivering_condition(
    declared: Autoscaling, scaling: ScalingStatus | None
) -> Condition | None:
    """Return the condition `Delivering`, which says whether the Sensor handles events; None: that
    isn't known yet. `declared` is the Sensor's autoscaling. `scaling` is its status in the scaler;
    None: the Sensor isn't scaled."""
    if declared.paused:
        return SENSOR_PAUSED
    if scaling is None or scaling.paused:
        return None  # a resumed Sensor is still paused in the scaler: don't report that
    return delivering_condition(scaling)


def in_order_condition(scaling: ScalingStatus | None) -> Condition | None:
    """Return the condition `InOrder` as False, with the number of events that came too late for
    their order since this operator began to scale the Sensor. None: no such event is known."""
    if scaling is None or not (late_events := scaling.counts.late):
        return None
    message = (
        f"{late_events} events came later than the Sensor's grace allows and were taken after "
        "others of a later time, so other events may have fired together: declare a larger grace"
    )
    return Condition(IN_ORDER, Status.FALSE, "EventsCameLate", message, Severity.WARNING)


def dead_letters_condition(scaling: ScalingStatus | None) -> Condition | None:
    """Return the condition about the Sensor's dead letters since this operator began to scale it,
    with their number by reason. None: no dead letter is known."""
    counts_by_reason = {} if scaling is None else scaling.counts.dead_letters
    if not counts_by_reason:
        return None
    by_reason = ", ".join(
        f"{count} {letter_reason}" for letter_reason, count in sorted(counts_by_reason.items())
    )
    message = f"dead letters: {by_reason}; knafka sensor dead-letters shows them"
    reason = "DeadLettered"
    if Reason.STATE_FULL.value in counts_by_reason:
        reason = "StateFull"
        message += (
            "; it held as much as it may, and dropped its oldest events: declare a window"
            f" (within), or raise {MAX_HELD_KEYS_ANNOTATION} or {MAX_HELD_BYTES_ANNOTATION}"
        )
    return Condition(DEAD_LETTERS_TYPE, Status.FALSE, reason, message, Severity.WARNING)
