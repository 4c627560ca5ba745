"""Sensor limits: reads the limits of held events from annotations, and finds firings that may be
too large. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from knafka.core.contract import MAX_RECORD_BYTES
from knafka.core.documents import Model
from knafka.core.sensor.contract import MAX_HELD_BYTES, MAX_HELD_KEYS, Conditions
from knafka_operator.model.resources import (
    KNAFKA_PREFIX,
    Resource,
    annotation_path,
    parse_whole_number,
)

MAX_HELD_KEYS_ANNOTATION: Final = f"{KNAFKA_PREFIX}max-held-keys"
"""Annotation of a Sensor: `HeldLimits.keys`."""
MAX_HELD_BYTES_ANNOTATION: Final = f"{KNAFKA_PREFIX}max-held-bytes"
"""Annotation of a Sensor: `HeldLimits.bytes`."""
MOST_HELD_KEYS: Final = 100_000_000
"""Largest value of `MAX_HELD_KEYS_ANNOTATION`."""
MIN_BYTES: Final = MAX_RECORD_BYTES
"""Smallest value of `MAX_HELD_BYTES_ANNOTATION`: one event of the largest size can be held."""
MOST_HELD_BYTES: Final = 2**33
"""Largest value of `MAX_HELD_BYTES_ANNOTATION`."""

ACTION_EVENTS: Final = 16
"""Number of events of the largest size that one record of an action topic has room for
(`topics`)."""


class HeldLimits(Model):
    """The most keys, and the most bytes of events, that one process of a Sensor may hold."""

    keys: int = MAX_HELD_KEYS
    bytes: int = MAX_HELD_BYTES


def held_limits(sensor: Resource) -> HeldLimits:
    """Return the limits that a Sensor's annotations declare, or the defaults. Raises
    `InvalidDocument` for an annotation that is no whole number or out of range."""
    declared = sensor.metadata.annotations

    def read_number(name: str, default: int, minimum: int, maximum: int) -> int:
        """Return the whole number in the annotation `name`, or `default` if there is no such
        annotation. Raises `InvalidDocument` if it isn't between minimum and maximum, inclusive."""
        if (text := declared.get(name)) is None:
            return default
        return parse_whole_number(text, annotation_path(name), minimum, maximum)

    return HeldLimits(
        keys=read_number(MAX_HELD_KEYS_ANNOTATION, MAX_HELD_KEYS, 1, MOST_HELD_KEYS),
        bytes=read_number(MAX_HELD_BYTES_ANNOTATION, MAX_HELD_BYTES, MIN_BYTES, MOST_HELD_BYTES),
    )


def oversized_firings(conditions: Conditions) -> Iterator[tuple[int, str]]:
    """Yield, for each trigger of a Sensor whose firing may have too many events for one record of
    the action topic, the trigger's index in the Sensor's spec and a warning for users."""
    for index, rule in enumerate(conditions.rules()):
        # `wanted` has the most events of each dependency that one firing may have.
        event_count = sum(rule.condition.wanted.values())
        if event_count > ACTION_EVENTS:
            bytes_per_event = ACTION_EVENTS * MAX_RECORD_BYTES // event_count
            warning = (
                f"a firing may have {event_count} events, and its topic has room for "
                f"{ACTION_EVENTS} of the largest: of more than {bytes_per_event:,} bytes each, as "
                "JSON, it is dead-lettered"
            )
            yield index, warning
