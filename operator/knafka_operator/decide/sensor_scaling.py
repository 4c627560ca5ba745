"""How a Sensor scales, as it declares that, and what its status says of its drains. Pure.

Not here: how many drains there are to be (`scaling`), and holding them (`scale.sensor_scaler`).
"""

from __future__ import annotations

from typing import Final

from knafka_operator.decide.delivery_status import delivering
from knafka_operator.decide.scaling import TriggerStatus
from knafka_operator.decide.status import DELIVERING
from knafka_operator.model import resources
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.conditions import Condition, Severity, Status
from knafka_operator.model.maxima import Maxima
from knafka_operator.model.resources import Resource

DEFAULT_AUTOSCALING: Final = Autoscaling(lag_threshold=10_000)
"""What holds where its annotations don't say otherwise. A process works off as many records within
seconds, and another one that joins takes partitions with all that is held of them."""

PAUSED: Final = Condition(
    DELIVERING,
    Status.FALSE,
    "Paused",
    f'its annotation {resources.PAUSED} is "true": nothing fires, and its events wait in Kafka',
    Severity.INFO,
)


def autoscaling(sensor: Resource, maxima: Maxima) -> Autoscaling:
    """By its annotations, which are a Trigger's; raises `InvalidDocument`."""
    return Autoscaling.from_annotations(sensor.metadata.annotations, DEFAULT_AUTOSCALING, maxima)


def condition(declared: Autoscaling, scaled: TriggerStatus | None) -> Condition | None:
    """Whether its events are looked at, for people; None: nothing is known of that yet."""
    if declared.paused:
        return PAUSED
    return None if scaled is None or scaled.paused else delivering(scaled)
