"""Events of the bus (the topic that a Sensor reads) that wait to be routed to its triggers: a queue
for each partition of this process."""

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
"""A time (ms) before all others, which stands for an unknown time."""
NO_PARTITION: Final = -1
"""A number that no partition has."""
AFTER_ALL: Final = Place(FOR_EVER)
"""A place after that of every event."""


class Arrival(NamedTuple):
    """An event of the bus that waits to be routed."""

    place: Place
    """The event's time, partition and offset."""
    read_until: int
    """Time (ms): all earlier events of the partition were read before this event."""
    record: Record
    headers: RecordHeaders
    """The record's headers, which a client returns only once."""
    envelope: Envelope
    routes: list[Route]
    """The triggers that the event concerns; empty: none."""
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
    tell for each partition how far all others were read. `UNKNOWN_TIME`: the time of a partition
    isn't known. `FOR_EVER`: there is no such partition."""

    first: int
    """The lowest time."""
    number: int
    """The partition that was read up to `first`; `NO_PARTITION` if there is none."""
    second: int
    """The second lowest time."""

    def of_others(self, number: int) -> int:
        """Return the time up to which all partitions of this process except `number` were read."""
        return self.second if number == self.number else self.first

    def allows(self, place: Place, in_order: bool) -> bool:
        """Whether the first queued event of a partition, at `place`, may be routed next. If each
        partition is in order of time (`in_order`), the other partitions of this process must have
        been read beyond the event's time first; if not, the event need not wait."""
        return not in_order or place.at < self.of_others(place.partition)
