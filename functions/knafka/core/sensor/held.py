"""The events that a Sensor's trigger holds, and its firings (BUS-13)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from knafka.core.sensor.order import Place


class HeldEvent(NamedTuple):
    """An event that came for one dependency of a trigger."""

    dependency: str
    identity: str
    """The event's source and id (`records.identity_of`), which together identify it."""
    at: int
    """Time at which the bus took the event, in milliseconds since the Unix epoch."""
    offset: int
    """Offset of the event's record in its partition of the trigger topic."""
    document: bytes
    """The event as a JSON document (structured mode)."""
    trace: bytes = b""
    """The event's `traceparent` on the bus, if its trace is sampled; else empty."""
    origin: tuple[int, int] = (-1, -1)
    """The event's partition and offset on the bus, which order events of the same time; (-1, -1):
    not known."""

    @property
    def place(self) -> Place:
        """The event's place among all events of the bus."""
        return Place(self.at, *self.origin)

    def is_same_as(self, other: HeldEvent) -> bool:
        """Whether this is the same event (source and id), for the same dependency."""
        return self.dependency == other.dependency and self.identity == other.identity


Held: TypeAlias = tuple[HeldEvent, ...]
"""The events that a trigger holds for one correlation key (if it has one), in the order of time."""


class Firing(NamedTuple):
    """The fact that a trigger's condition has become true."""

    events: Held
    """The events that made it true."""

    @property
    def last(self) -> HeldEvent:
        """The latest of the firing's events, which completed the condition."""
        return max(self.events, key=lambda event: (event.at, event.origin, event.offset))


def sort_by_time(events: Iterable[HeldEvent]) -> Held:
    """Return the events sorted by time; events of the same time by their order on the bus."""
    return tuple(sorted(events, key=lambda event: (event.at, event.origin, event.offset)))
