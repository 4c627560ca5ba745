"""Events of the bus that wait to be routed: a queue for each partition of this process."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from knafka.core.events.kafka_binding import Envelope, RecordHeaders
from knafka.core.sensor.order import Place
from knafka.core.sensor.routing import Route
from knafka.ports.log import Record

FOR_EVER: Final = 2**62
"""A time (ms) after all others."""
LAST: Final = Place(FOR_EVER)


class Arrival(NamedTuple):
    """An event of the bus that waits to be routed."""

    place: Place
    since: int
    """Time (ms) before which all other events of its partition were read before it, as found when
    it was read."""
    record: Record
    headers: RecordHeaders
    """The record's headers, which a client returns only once."""
    envelope: Envelope
    routes: list[Route]
    """The triggers that it concerns."""
    size: int


@dataclass(slots=True)
class Queue:
    """A partition's queued events, and how far it was read."""

    next: int
    """The next offset to read."""
    seen: int | None
    """Time (ms) before which everything was read; None: not known."""
    committed: int | None
    """Time (ms) before which everything was routed, as committed; None: not known."""
    queue: deque[Arrival] = field(default_factory=deque)
    """The events that were read and aren't routed, in the order of their offsets."""
    bytes: int = 0
    """Bytes of their records' values."""
    is_paused: bool = False
    """Whether reading the partition is paused, as it is far ahead of others."""


class Bounds(NamedTuple):
    """The two lowest of the times (ms) up to which this process's partitions were read: enough to
    tell for each partition how far all others were read."""

    first: int
    """The lowest time."""
    number: int
    """The partition that was read up to `first`."""
    second: int
    """The second lowest time."""

    def of(self, number: int) -> int:
        """Return the time up to which all partitions of this process but this one were read."""
        return self.second if number == self.number else self.first

    def allows(self, place: Place, in_order: bool) -> bool:
        """Whether an event at `place`, the first queued one of its partition, may be routed next:
        the other own partitions were read beyond its time, or partitions aren't `in_order`."""
        return not in_order or place.at < self.of(place.partition)
