"""The buffer of one partition: its latest records, and how far each group has taken them.

It has every record of its partition from the offset `start` up to `end`, so a group whose next
offset lies between them can go on in it: that is all that switching from one read to another takes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from knafka.core.errors import LogError
from knafka.dispatcher.shared.record import SharedRecord
from knafka.ports.shared_log import NO_EPOCH, Position


class CursorOwner(Protocol):
    """The reader that a cursor belongs to."""

    group: str

    def notify(self, number: int, is_record: bool) -> None:
        """There is more of this partition: a record, or only its end."""
        ...

    def position_of(self, cursor: Cursor) -> Position:
        """Where it goes on, should it have to read elsewhere."""
        ...

    def restart(self, cursor: Cursor) -> None:
        """The log has no such offset: what is there is read from its start."""
        ...

    def fail(self, error: LogError) -> None:
        """Nothing can be read."""
        ...


class Cursor:
    """One group's place in one partition."""

    __slots__ = ("buffer", "index", "number", "offset", "owner", "paused", "reported")

    def __init__(self, number: int, offset: int, owner: CursorOwner) -> None:
        self.owner = owner
        self.number = number
        self.offset = offset
        """Of the next record for the group, or one below it: all before were given."""
        self.paused = False
        self.reported = -1
        """The last end that the group was given."""
        self.buffer: PartitionBuffer | None = None
        self.index = 0
        """In the buffer, counted from its first record ever."""

    @property
    def behind(self) -> int:
        """Records in the buffer that it hasn't taken."""
        return 0 if self.buffer is None else self.buffer.behind - self.index


class PartitionBuffer:
    """All from `start` on: offsets that hold no record have been looked at, too."""

    __slots__ = ("cursors", "end", "epoch", "fastest", "first", "number", "paused", "reached",
                 "records", "size", "start")  # fmt: skip

    def __init__(self, number: int, start: int) -> None:
        self.number = number
        self.start = start
        self.end = start
        """The offset to be read next."""
        self.reached = -1
        """The partition's end, when it was seen last."""
        self.epoch = NO_EPOCH
        """The leader's, of the last record."""
        self.records: list[SharedRecord] = []
        self.first = 0
        """Index of the first one: how many were forgotten."""
        self.fastest = 0
        """The highest index up to which one of its groups has taken all."""
        self.size = 0
        """Bytes, about."""
        self.paused = False
        self.cursors: set[Cursor] = set()

    @property
    def behind(self) -> int:
        """The index behind the last record."""
        return self.first + len(self.records)

    @property
    def ahead(self) -> int:
        """Records that no group has taken."""
        return self.behind - max(self.fastest, self.first)

    @property
    def held(self) -> int:
        """Records that not all groups have taken."""
        return self.behind - self.slowest

    @property
    def slowest(self) -> int:
        return min((each.index for each in self.cursors), default=self.behind)

    def covers(self, offset: int) -> bool:
        return self.start <= offset <= self.end

    def join(self, cursor: Cursor) -> None:
        """Have it go on here; its offset is covered, or lies ahead and is still to be read."""
        cursor.buffer = self
        cursor.index = self.first + bisect_left(self.records, cursor.offset, key=_offset_of)
        self.cursors.add(cursor)
        self.fastest = max(self.fastest, cursor.index)
        if cursor.index < self.behind:
            cursor.owner.notify(self.number, True)
        elif self.reached > cursor.reported:
            cursor.owner.notify(self.number, False)

    def leave(self, cursor: Cursor) -> None:
        cursor.buffer = None
        self.cursors.discard(cursor)
        self.fastest = max((each.index for each in self.cursors), default=self.behind)

    def append(self, records: Sequence[SharedRecord]) -> None:
        """Records that were read, in order."""
        self.records.extend(records)
        self.end = records[-1].offset() + 1
        self.size += sum(each.size for each in records)
        for cursor in self.cursors:
            cursor.owner.notify(self.number, True)

    def reach(self, end: int) -> None:
        """Everything below `end` was read, and there is no more for now."""
        self.end = self.reached = max(self.end, end)
        for cursor in self.cursors:
            cursor.owner.notify(self.number, False)

    def take(self, cursor: Cursor, limit: int) -> Sequence[SharedRecord]:
        """What is next for a group."""
        at = cursor.index - self.first
        some = self.records[at : at + limit]
        if some:
            cursor.index += len(some)
            self.fastest = max(self.fastest, cursor.index)
            if some[0].offset() < cursor.offset:
                some = some[bisect_left(some, cursor.offset, key=_offset_of) :]
            if some:
                cursor.offset = some[-1].offset() + 1
        return some

    def end_for(self, cursor: Cursor) -> int | None:
        """The partition's end, if a group has taken all up to it and does not have it."""
        if cursor.index < self.behind or self.reached != self.end or self.end <= cursor.reported:
            return None
        cursor.reported = self.end
        cursor.offset = max(cursor.offset, self.end)
        return self.end

    def trim(self, spare: int) -> None:
        """Forget what every group has taken, but for the last `spare` records: a group that is a
        little behind can go on there."""
        count = min(self.slowest, self.behind - spare) - self.first
        if count > 0:
            gone = self.records[:count]
            del self.records[:count]
            self.first += count
            self.start = gone[-1].offset() + 1
            self.size -= sum(each.size for each in gone)


def _offset_of(record: SharedRecord) -> int:
    return record.offset()
