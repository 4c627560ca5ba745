"""The order in which a trigger takes events: by time over all partitions of the bus.

    partition 0   a@10 ------------- a@30      what is taken: a@10 b@12 a@30 b@31,
    partition 1         b@12 b@31              whichever partition was read first

An event's place is its time and, at one time, its partition and offset on the bus. What was read
waits until nothing that comes first can still be read (`InOrder.know`). Pure; not here: how that is
found out (`knafka.sensor.bus`, `knafka.sensor.watermark`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Place(NamedTuple):
    """Where an event stands among all of a bus."""

    at: int
    """Milliseconds since the Unix epoch."""
    partition: int = -1
    """Of the bus; -1 comes before every event of that time."""
    offset: int = -1


BEFORE_ALL: Final = Place(-(2**63))


class Routed(NamedTuple):
    """How far a partition of the bus was routed."""

    until: int | None = None
    """Everything of an earlier time (ms) was; None: that isn't known."""
    by_sender: bool = False
    """Whether the bus's times are its senders', and not Kafka's."""


class Taken(NamedTuple):
    """Which records of a partition were taken already though its offset stands before them: those
    in front of `read` whose place is `last` at most."""

    read: int
    last: Place


class InOrder(Generic[T]):
    """Records of one partition of a trigger topic, given in the order of their events' places.

    One that comes first and is read too late is given at once, and counted.
    """

    def __init__(self, taken: Taken | None = None) -> None:
        """`taken`: of those that it may be given once more."""
        self._again_until = 0 if taken is None else taken.read
        self._again = BEFORE_ALL if taken is None else taken.last
        self._last = self._again
        """The last place, in order, of what was given."""
        self._known = BEFORE_ALL
        self._waiting: list[tuple[Place, int, int, T]] = []
        self.bytes = 0
        """Of what waits."""
        self._offsets: OrderedDict[int, None] = OrderedDict()
        """Of what waits; they come in order."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, offset: int, place: Place, until: int, record: T, size: int = 0) -> None:
        """A record of `size` bytes was read. `until`: every event of a time before it (ms) lies in
        front of this record; of what its writer appended with it, only what comes first."""
        if offset >= self._again_until or place > self._again:
            heappush(self._waiting, (place, offset, size, record))
            self._offsets[offset] = None
            self.bytes += size
        self._known = max(self._known, min(Place(until), place))

    def passes(self, offset: int, place: Place, until: int) -> bool:
        """Whether a record that was read, as `add` has it, is next at once: then it counts as
        taken."""
        if self._waiting or place < self._last or offset < self._again_until:
            return False
        if until > place.at:
            self._known = max(self._known, place)
        elif place > self._known:
            return False
        self._last = place
        return True

    def know(self, until: int) -> None:
        """Every event of a time before this (ms) was read."""
        self._known = max(self._known, Place(until))

    def close(self, until: int) -> None:
        """What follows from nothing having come before this time (ms) was done."""
        self._last = max(self._last, Place(until))

    def take(
        self, limit: int, room: int = 2**63, room_bytes: int = 2**63
    ) -> Iterator[tuple[T, int]]:
        """What is known to be next, and what comes too late; with each, the milliseconds by which
        it is late, 0 mostly. Where more waits than `room` records or `room_bytes`, also what comes
        first of it."""
        waiting = self._waiting
        while waiting and limit > 0:
            is_next = waiting[0][0] <= max(self._known, self._last)
            if not is_next and len(waiting) <= room and self.bytes <= room_bytes:
                break
            place, offset, size, record = heappop(waiting)
            del self._offsets[offset]
            self.bytes -= size
            late = 0
            if BEFORE_ALL < place < self._last:
                late = max(1, self._last.at - place.at)
            self._last = max(self._last, place)
            limit -= 1
            yield record, late

    @property
    def first(self) -> int | None:
        """The time (ms) of the first event that waits; None: none does."""
        return self._waiting[0][0].at if self._waiting else None

    @property
    def has_next(self) -> bool:
        """Whether there is something that is known to be next."""
        return bool(self._waiting) and self._waiting[0][0] <= max(self._known, self._last)

    def position(self, read: int) -> int:
        """The offset behind which nothing was taken, where the next record to be read is `read`."""
        return next(iter(self._offsets), read)

    def taken(self, read: int) -> Taken | None:
        """What is to be kept beside that offset; None: nothing."""
        return Taken(read, self._last) if self._waiting else None
