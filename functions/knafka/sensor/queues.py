"""Events of the bus on their way to their triggers: a queue for each partition that is ours."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from knafka.core.kafka_binding import Envelope, RecordHeaders
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
    """Everything of its partition that is of an earlier time (ms) came before it."""
    record: Record
    headers: RecordHeaders
    envelope: Envelope
    routes: list[Route]
    size: int


@dataclass(slots=True)
class Queue:
    """One partition's: what was read, and what of it waits."""

    next: int
    """The offset of the next record to be read."""
    seen: int | None
    """Everything of an earlier time (ms) was read; None: that isn't known."""
    committed: int | None
    """The same of what is committed."""
    queue: deque[Arrival] = field(default_factory=deque)
    bytes: int = 0
    is_paused: bool = False


class Bounds(NamedTuple):
    """How far the partitions of ours were read."""

    first: int
    """The one that was read least far."""
    number: int
    """Which one that is."""
    second: int
    """The next one."""

    def of(self, number: int) -> int:
        """Until when all but this partition were read."""
        return self.second if number == self.number else self.first

    def allows(self, place: Place, in_order: bool) -> bool:
        """Whether an event is next that is the first of its partition."""
        return not in_order or place.at < self.of(place.partition)
