"""Puts events in the order in which a trigger takes them: by time over all partitions of the bus.

    partition 0   a@10 ------------- a@30      the trigger takes a@10 b@12 a@30 b@31,
    partition 1         b@12 b@31              whichever partition was read first

Events are ordered by time, and events of the same time by their partition and offset on the bus. A
record that was read waits until no earlier event can still be read (`InOrder.note_read_until`).
Pure. Not here: finding out up to which time events were read (`knafka.sensor.bus_progress`,
`knafka.sensor.watermark`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Place(NamedTuple):
    """An event's position in the order of all events of a bus."""

    at: int
    """Milliseconds since the Unix epoch."""
    partition: int = -1
    """Partition of the bus; -1 comes before every event of that time."""
    offset: int = -1


BEFORE_ALL: Final = Place(-(2**63))
"""A place before those of all events."""


class Routed(NamedTuple):
    """Up to which time the events of a partition of the bus were routed to triggers."""

    until: int | None = None
    """Time (ms) before which all events were routed; None: not known."""
    by_sender: bool = False
    """Whether the times of the bus's events are their senders', and not Kafka's."""


class Taken(NamedTuple):
    """Which records from a partition's committed offset on were taken already: those whose offset
    is below `read`, and whose place isn't after `last`."""

    read: int
    """The offset after the last record that was read."""
    last: Place
    """The latest place of the records that were taken."""


class InOrder(Generic[T]):
    """Puts the records of one partition of a trigger topic in the order of their events' places.

    A record that is read after a later one was taken is yielded at once, as late (`take`).
    """

    def __init__(self, already_taken: Taken | None = None) -> None:
        """Begin without waiting records. `already_taken` says which records were taken already:
        these are skipped if they are read again."""
        self._taken_below = 0 if already_taken is None else already_taken.read
        self._taken_place = BEFORE_ALL if already_taken is None else already_taken.last
        """Records below the offset `_taken_below` were taken already, if their places are not after
        `_taken_place`."""
        self._last = self._taken_place
        """The latest place that was taken, or up to which timers were handled (`mark_decided`):
        records with earlier places are late."""
        self._read_place = BEFORE_ALL
        """Every event up to this place was read: waiting records up to it are next in order."""
        self._waiting: list[tuple[Place, int, int, T]] = []
        """A heap of the records that wait: place, offset, size in bytes, and the record."""
        self.bytes = 0
        """Bytes of the records that wait."""
        self._offsets: OrderedDict[int, None] = OrderedDict()
        """Offsets of the records that wait, in ascending order."""

    def __len__(self) -> int:
        """Return the number of records that wait."""
        return len(self._waiting)

    def add(self, offset: int, place: Place, until: int, record: T, size: int = 0) -> None:
        """Add a record that was read at this offset of the trigger topic and has `size` bytes;
        `place` is its event's. A record that was taken already (`already_taken`) is skipped.

        `until` (ms): the record promises that all events before this time come earlier in the
        partition, except events with later places that its writer appended in the same batch.
        """
        if offset >= self._taken_below or place > self._taken_place:
            heappush(self._waiting, (place, offset, size, record))
            self._offsets[offset] = None
            self.bytes += size
        # Because of that exception, nothing is known of the places between `place` and `until`.
        self._read_place = max(self._read_place, min(Place(until), place))

    def take_if_next(self, offset: int, place: Place, until: int) -> bool:
        """Take a record that was just read, if it is next in order. Return True if the record was
        taken, False if the caller has to `add` it. The arguments are those of `add`."""
        if self._waiting or place < self._last or offset < self._taken_below:
            return False
        if until > place.at:  # the record itself says that nothing before it is missing
            self._read_place = max(self._read_place, place)
        elif place > self._read_place:
            return False
        self._last = place
        return True

    def note_read_until(self, until: int) -> None:
        """Note that every event before the time `until` (ms) was read, so that the waiting records
        before it are next in order."""
        self._read_place = max(self._read_place, Place(until))

    def mark_decided(self, until: int) -> None:
        """Treat every event before the time `until` (ms) as late from now on: the triggers that
        wait for an event's absence have already decided about the time before `until`."""
        self._last = max(self._last, Place(until))

    def take(
        self, limit: int, max_waiting: int = 2**63, max_waiting_bytes: int = 2**63
    ) -> Iterator[tuple[T, int]]:
        """Take and yield `limit` records that are next in order or late, each with its lateness in
        ms (0: in order), and beyond `limit` those that aren't after the last one taken, such as
        another record of its event: `taken` says that all of these were taken.

        While more than `max_waiting` records or `max_waiting_bytes` bytes wait, the earliest record
        is also yielded, although an earlier event may still be read. By default these two numbers
        are unlimited.
        """
        waiting = self._waiting
        while waiting and (limit > 0 or waiting[0][0] <= self._last):
            is_next_or_late = waiting[0][0] <= max(self._read_place, self._last)
            is_within_limits = len(waiting) <= max_waiting and self.bytes <= max_waiting_bytes
            if not is_next_or_late and is_within_limits:
                break
            place, offset, size, record = heappop(waiting)
            del self._offsets[offset]
            self.bytes -= size
            late = 0
            # A record whose event can't be read is added at `BEFORE_ALL`, and is never late.
            if BEFORE_ALL < place < self._last:
                late = max(1, self._last.at - place.at)  # not 0, even within one millisecond
            self._last = max(self._last, place)
            limit -= 1
            yield record, late

    @property
    def first(self) -> int | None:
        """The time (ms since the Unix epoch) of the earliest of the events whose records wait; None
        if none waits."""
        return self._waiting[0][0].at if self._waiting else None

    @property
    def has_next(self) -> bool:
        """Whether `take` yields a record now, whatever its limits: the earliest waiting record is
        late, or next in order (every event up to it was read)."""
        return bool(self._waiting) and self._waiting[0][0] <= max(self._read_place, self._last)

    def position(self, next_offset: int) -> int:
        """Return the offset to commit: the lowest offset of a waiting record; if none waits,
        `next_offset`, that of the next record to be read. Some records after the returned offset
        may have been taken already (`taken`)."""
        return next(iter(self._offsets), next_offset)

    def taken(self, next_offset: int) -> Taken | None:
        """Return which records after the offset `position(next_offset)` were taken already, to be
        committed with this offset. None: no record waits, so there are none."""
        return Taken(next_offset, self._last) if self._waiting else None
