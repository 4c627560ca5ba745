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
UNKNOWN_TIME: Final = -1
"""A time (ms) before all others; stands for one that isn't known."""
NO_PARTITION: Final = -1
"""A number that no partition has."""
AFTER_ALL: Final = Place(FOR_EVER)
"""A place after that of every event."""


class Arrival(NamedTuple):
    """An event of the bus that waits to be routed."""

    place: Place
    """Its time, partition and offset."""
    read_until: int
    """Every event of its partition that is earlier than this time (ms) was read before it."""
    record: Record
    headers: RecordHeaders
    """The record's headers, which a client returns only once."""
    envelope: Envelope
    routes: list[Route]
    """The triggers that it concerns."""
    size: int
    """Bytes of the record's value."""


@dataclass(slots=True)
class Queue:
    """A partition's queued events, and how far it was read."""

    next_offset: int
    """The next offset to read."""
    read_until: int | None
    """Time (ms) before which everything was read, by the records that were read; None: not
    known."""
    committed_until: int | None
    """Time (ms) before which everything was routed, as committed; None: not known."""
    arrivals: deque[Arrival] = field(default_factory=deque)
    """The events that were read and aren't routed yet, in the order of their offsets."""
    bytes: int = 0
    """Bytes of the values of the records in `arrivals`."""
    is_paused: bool = False
    """Whether reading the partition is paused, as it is far ahead of others."""


class Bounds(NamedTuple):
    """The two lowest of the times (ms) up to which this process's partitions were read: enough to
    tell for each partition how far all others were read. A time is `UNKNOWN_TIME` if it isn't known
    for a partition, and `FOR_EVER` if there are too few partitions."""

    first: int
    """The lowest time."""
    number: int
    """The partition that was read up to `first`; `NO_PARTITION` if there is none."""
    second: int
    """The second lowest time."""

    def of(self, number: int) -> int:
        """Return the time up to which all partitions of this process except `number` were read."""
        return self.second if number == self.number else self.first

    def allows(self, place: Place, in_order: bool) -> bool:
        """Whether an event at `place`, the first queued one of its partition, may be routed next:
        the other own partitions were read beyond its time, or partitions aren't `in_order`."""
        return not in_order or place.at < self.of(place.partition)
