"""The events that a trigger of a Sensor holds, and what it fires with (BUS-13)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from knafka.core.sensor.order import Place


class HeldEvent(NamedTuple):
    """An event that came for one dependency of a trigger."""

    dependency: str
    identity: str
    """Which event it is: its source and id (CE: together they are unique)."""
    at: int
    """When the bus took it: milliseconds since the Unix epoch."""
    offset: int
    """Its record's in its partition of the trigger topic: no other event there has it."""
    document: bytes
    """The event as a JSON document (structured mode)."""
    trace: bytes = b""
    """Its `traceparent` on the bus, if its trace is sampled."""
    origin: tuple[int, int] = (-1, -1)
    """Its partition and offset on the bus: its order at one time."""

    @property
    def place(self) -> Place:
        """The event's place among all events of the bus."""
        return Place(self.at, *self.origin)

    def is_same_as(self, other: HeldEvent) -> bool:
        """Whether this is the same event (source and id), for the same dependency."""
        return self.dependency == other.dependency and self.identity == other.identity


Held: TypeAlias = tuple[HeldEvent, ...]
"""What a trigger holds, for one correlation key if it has any; in the order of time."""


class Firing(NamedTuple):
    """A condition that has become true."""

    events: Held

    @property
    def last(self) -> HeldEvent:
        """The event that made it true, or after which nothing came that would have kept it from
        being so."""
        return max(self.events, key=lambda event: (event.at, event.origin, event.offset))


def in_time(events: Iterable[HeldEvent]) -> Held:
    """Return the events sorted by time, and by their order on the bus within one time."""
    return tuple(sorted(events, key=lambda event: (event.at, event.origin, event.offset)))
