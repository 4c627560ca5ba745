"""The buffer of one partition: its latest records, and each group's cursor in them.

The buffer holds every record of its partition from the offset `start` up to `end`. A group whose
next offset lies between them can switch to this buffer from another reader.

    A plain cursor takes every record, one index after the other. A selective cursor takes the
    records that the filter index finds for it; `pending` holds their indexes.

A cursor joins as a plain one, and may become selective once it has taken all records. A selective
cursor without pending records counts as having taken all records, so that it isn't updated when
others are read.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from knafka.core.errors import LogError
from knafka.core.events.kafka_binding import Envelope
from knafka.core.filters.filter_index import FilterIndex
from knafka.dispatcher.engine.selecting import Selective
from knafka.dispatcher.shared.epochs import KnownEpochs
from knafka.dispatcher.shared.record import SharedRecord, envelope_of
from knafka.ports.shared_log import NO_EPOCH, Position


class CursorOwner(Protocol):
    """The reader that a cursor belongs to."""

    group: str
    """The consumer group for which it reads."""
    drain: Selective | None
    """The drain that reads; None: the group wants every record."""

    def notify(self, number: int, has_records: bool) -> int:
        """Learn that a partition has new records (`has_records` True) or only a later end.
        Returns how many records the drain took at once."""
        ...

    def hand_over(self, cursor: Cursor) -> int:
        """Hand new records for this cursor over to the drain, if it waits for some; returns how
        many it took. The cursor's fetcher calls this between two reads."""
        ...

    def position_of(self, cursor: Cursor) -> Position:
        """Return the position from which the cursor's group continues in another reader."""
        ...

    def restart(self, cursor: Cursor, replaced_from: Position) -> None:
        """Start the cursor's partition anew, as it has another log from `replaced_from` on. The
        offset `BEGINNING` there: the whole log is another one, or it isn't known from where on."""
        ...

    def fail(self, error: LogError) -> None:
        """End the reader's drain with this error."""
        ...


class Cursor:
    """One group's position in one partition, and in the buffer from which the group reads."""

    __slots__ = ("buffer", "index", "is_selective", "number", "offset", "owner", "paused",
                 "pending", "reported", "taken")  # fmt: skip

    def __init__(self, number: int, offset: int, owner: CursorOwner) -> None:
        """Begin at this offset of the partition `number`, outside any buffer; `owner` is notified
        of records."""
        self.owner = owner
        self.number = number
        self.offset = offset
        """Offset of the group's next record, or a lower one if no record lies between the two."""
        self.paused = False
        """Whether the group's drain takes no records of the partition now."""
        self.reported = -1
        """The last end of the partition that was reported to the group; -1: none yet."""
        self.buffer: PartitionBuffer | None = None  # None: it has to be placed in one
        self.index = 0
        """Index of the cursor's next record, counted from the first record that the buffer ever
        held; for a selective cursor, the index up to which skipped records were reported."""
        self.is_selective = False  # see the module's docstring
        self.pending: list[int] = []
        """Indexes of the records that a selective cursor hasn't taken yet."""
        self.taken = 0
        """Number of records that a selective cursor has taken from `index` on."""

    @property
    def next_index(self) -> int:
        """Index of the next record that the cursor takes; if there is none, the buffer's
        `end_index`."""
        if not self.is_selective or self.buffer is None:
            return self.index
        return self.pending[0] if self.pending else self.buffer.end_index

    @property
    def has_more(self) -> bool:
        """Whether the cursor has still to take a record of the buffer."""
        if self.is_selective or self.buffer is None:
            return bool(self.pending)
        return self.index < self.buffer.end_index

    @property
    def waiting(self) -> int:
        """Number of records in the buffer that the cursor has still to take."""
        return len(self.pending) if self.is_selective else self.lag

    @property
    def lag(self) -> int:
        """Number of records in the buffer from `next_index` on."""
        return 0 if self.buffer is None else self.buffer.end_index - self.next_index


class PartitionBuffer:
    """The records of one partition whose offsets are at least `start` and below `end`; some of
    these offsets may have no record."""

    __slots__ = (
        "cursors", "end", "epochs", "filter_index", "first_index", "known_end", "number", "paused",
        "pending_cursors", "plain_cursors", "records", "size", "start", "unproven", "wants_trace",
    )  # fmt: skip

    def __init__(self, number: int, start: int, epoch: int = NO_EPOCH) -> None:
        """Begin empty. The first record to read has the offset `start` or a higher one; the records
        below `start` have the leader epoch `epoch` or lower ones."""
        self.number = number
        self.start = start
        self.end = start
        """The next offset to read."""
        self.known_end = -1
        """The partition's end when it was last seen; -1: not yet."""
        self.epochs = KnownEpochs(start, epoch)
        self.unproven: dict[Cursor, int] = {}
        """Cursors that joined above `end`, with the leader epochs of their offsets. It isn't known
        yet whether they come from the log that this buffer reads (`find_contradicted`)."""
        self.records: list[SharedRecord] = []  # in the order of their offsets
        self.first_index = 0
        """Index of the first record in the buffer: the number of forgotten records."""
        self.size = 0
        """Approximate bytes of the records."""
        self.paused = False  # whether the fetcher doesn't read the partition now
        self.cursors: set[Cursor] = set()
        """All cursors: the plain and the selective ones."""
        self.plain_cursors: set[Cursor] = set()  # those that take every record
        self.pending_cursors: set[Cursor] = set()
        """Selective cursors that have pending records."""
        self.filter_index: FilterIndex[Cursor] = FilterIndex()
        """Filters of the selective cursors."""
        self.wants_trace: Callable[[Envelope], bool] = lambda envelope: False
        """Returns whether the drains record spans of an event, even if their filters drop it."""

    @property
    def end_index(self) -> int:
        """The index that the next appended record gets."""
        return self.first_index + len(self.records)

    @property
    def untaken(self) -> int:
        """Number of records at the end that no group has taken, not even the fastest; 0 if some
        group has taken all of its records, or if no group reads here."""
        selective_count = len(self.cursors) - len(self.plain_cursors)
        if selective_count > len(self.pending_cursors) or not self.cursors:
            return 0  # a selective cursor without pending records has taken all of them
        fastest_plain = max((cursor.index for cursor in self.plain_cursors), default=0)
        fastest_selective = max((cursor.pending[0] for cursor in self.pending_cursors), default=0)
        return self.end_index - max(fastest_plain, fastest_selective, self.first_index)

    def is_ahead_by(self, count: int) -> bool:
        """Whether the slowest group has still to take at least the last `count` records."""
        return len(self.records) >= count and self.end_index - self.slowest_index >= count

    @property
    def slowest_index(self) -> int:
        """Index of the first record that some group has still to take; if there is none,
        `end_index`."""
        slowest_plain = min((cursor.index for cursor in self.plain_cursors), default=self.end_index)
        return min([slowest_plain, *(cursor.pending[0] for cursor in self.pending_cursors)])

    def covers(self, position: Position) -> bool:
        """Whether a group with this next position can continue in this buffer at once. Its offset
        must be one from `start` to `end` (inclusive), and its leader epoch must not contradict the
        log that the buffer reads."""
        return self.start <= position.offset <= self.end and self.epochs.allows(position)

    def accepts(self, position: Position, ahead: int) -> bool:
        """Whether a cursor may join this buffer at the position: between `start` and `end`, or at
        most `ahead` offsets after `end` while more records follow. In the latter case
        `find_contradicted` checks the position once the records before it are read."""
        if position.offset > self.end:
            return position.offset <= self.end + ahead and self.known_end != self.end
        offset = max(0, position.offset)  # `BEGINNING` is negative
        return self.start <= offset and self.epochs.allows(position)

    def find_contradicted(self) -> list[Cursor]:
        """Return the unproven cursors that come from another log than this one: this log ends
        before their position, or has a record of a later leader epoch just below it. Cursors that
        turn out to belong to this log no longer count as unproven."""
        contradicted: list[Cursor] = []
        for cursor, epoch in list(self.unproven.items()):
            if cursor.offset > self.end:
                if self.known_end == self.end:
                    contradicted.append(cursor)
            elif self.epochs.allows(Position(cursor.offset, epoch)):
                del self.unproven[cursor]
            else:
                contradicted.append(cursor)
        return contradicted

    def join(self, cursor: Cursor, epoch: int = NO_EPOCH) -> None:
        """Add a cursor whose offset is `start` or higher, and notify its owner of records or of the
        end. `epoch` is the leader epoch of the offset; it matters only above `end`."""
        cursor.buffer = self
        if cursor.offset > self.end:
            self.unproven[cursor] = epoch
        cursor.index = self.first_index + bisect_left(self.records, cursor.offset, key=_offset_of)
        self.cursors.add(cursor)
        self.plain_cursors.add(cursor)
        if cursor.index < self.end_index:
            cursor.owner.notify(self.number, True)
        elif self.known_end > cursor.reported:
            cursor.owner.notify(self.number, False)

    def leave(self, cursor: Cursor) -> None:
        """Remove a cursor; it becomes a plain one, which may join another buffer. If it was
        selective, its drain learns what was skipped, and gets every record from then on."""
        if cursor.is_selective:
            self.catch_up(cursor)
            self.filter_index.remove(cursor)
            cursor.taken = 0
            _discard(self.pending_cursors, cursor)
            cursor.is_selective, cursor.pending = False, []
            if cursor.owner.drain is not None:
                cursor.owner.drain.set_selected_from(self.number, math.inf)
        else:
            _discard(self.plain_cursors, cursor)
        cursor.buffer = None
        self.unproven.pop(cursor, None)
        self.cursors.discard(cursor)

    def append(self, records: Sequence[SharedRecord]) -> list[Cursor]:
        """Append records (at least one) in the order of their offsets. Returns the cursors whose
        owners must be notified of them."""
        first_new_index = self.end_index
        self.records.extend(records)
        self.end = records[-1].offset() + 1
        self.size += sum(record.size for record in records)
        if len(self.cursors) == len(self.plain_cursors):
            return [*self.plain_cursors]  # none is selective
        return [*self._add_pending(first_new_index, records), *self.plain_cursors]

    def _add_pending(self, first_new_index: int, records: Sequence[SharedRecord]) -> list[Cursor]:
        """Add the records' indexes, from `first_new_index` on, to the selective cursors that they
        match. Returns the cursors that had no pending records before."""
        newly_pending: list[Cursor] = []
        for index, record in enumerate(records, first_new_index):
            for cursor in self._matching_cursors(record):
                if not cursor.pending:
                    newly_pending.append(cursor)
                cursor.pending.append(index)
        self.pending_cursors.update(newly_pending)
        return newly_pending

    def _matching_cursors(self, record: SharedRecord) -> Iterable[Cursor]:
        """Return the selective cursors whose filters match this record. If it can't be parsed or is
        traced, mark it as `is_for_all` and return all selective cursors."""
        try:
            envelope = envelope_of(record)
            if not self.wants_trace(envelope):
                return self.filter_index.matches(envelope.attributes)
        except Exception:  # each drain gives up the event itself, or reports the error
            pass
        record.is_for_all = True
        return [cursor for cursor in self.cursors if cursor.is_selective]

    def reach_end(self, end: int) -> None:
        """Note that everything below the offset `end` was read and nothing follows for now."""
        self.end = self.known_end = max(self.end, end)
        for cursor in self.plain_cursors:
            cursor.owner.notify(self.number, False)

    def take(self, cursor: Cursor, limit: int) -> Sequence[SharedRecord]:
        """Return at most `limit` next records of a cursor, and move the cursor past them."""
        if cursor.is_selective:
            return self._take_pending(cursor, limit)
        start = cursor.index - self.first_index
        records = self.records[start : start + limit]
        if records:
            cursor.index += len(records)
            if records[0].offset() < cursor.offset:  # the cursor joined above `end`
                records = records[bisect_left(records, cursor.offset, key=_offset_of) :]
            if records:
                cursor.offset = records[-1].offset() + 1
        return records

    def _take_pending(self, cursor: Cursor, limit: int) -> Sequence[SharedRecord]:
        """Return at most `limit` pending records of a selective cursor, and move the cursor past
        them; `catch_up` reports the records skipped between them."""
        pending = cursor.pending
        if not pending or limit <= 0:
            return ()
        indexes, cursor.pending = pending[:limit], pending[limit:]
        if not cursor.pending:
            _discard(self.pending_cursors, cursor)
        first_index = self.first_index
        records = [self.records[index - first_index] for index in indexes]
        cursor.taken += len(records)
        cursor.offset = records[-1].offset() + 1
        return records

    def make_selective(self, cursor: Cursor) -> None:
        """Make a plain cursor selective if it has taken all records and its drain allows it."""
        drain = cursor.owner.drain
        if drain is None or (selection := drain.selection) is None:
            return
        taken_all = cursor.index == self.end_index and cursor.offset <= self.end
        if taken_all and drain.may_select(self.number):
            _discard(self.plain_cursors, cursor)
            cursor.is_selective = True
            self.filter_index.add(cursor, selection)
            self.wants_trace = drain.wants_trace
            drain.set_selected_from(self.number, self.end)

    def catch_up(self, cursor: Cursor) -> None:
        """Report to the cursor's drain how many records were skipped for it, and up to where; for
        a plain cursor, which skips none, only where the partition ends."""
        drain = cursor.owner.drain
        if drain is None:
            return
        if not cursor.is_selective:
            if (end := self.take_end(cursor)) is not None:
                drain.settle_skipped(self.number, 0, end)
            return
        next_index, next_offset = self.end_index, self.end
        if cursor.pending:
            next_index = cursor.pending[0]
            next_offset = self.records[next_index - self.first_index].offset()
        if next_offset > cursor.offset or next_index > cursor.index:
            next_offset = max(cursor.offset, next_offset)
            skipped_count = next_index - cursor.index - cursor.taken
            drain.settle_skipped(self.number, skipped_count, next_offset)
            cursor.index, cursor.offset, cursor.taken = next_index, next_offset, 0
            cursor.reported = max(cursor.reported, next_offset)

    def next_offset(self, cursor: Cursor) -> int:
        """Return the offset from which the cursor continues: all records below it were taken or
        aren't for this cursor."""
        if not cursor.is_selective:
            return cursor.offset
        if not cursor.pending:
            return max(cursor.offset, self.end)
        return self.records[cursor.pending[0] - self.first_index].offset()

    def take_end(self, cursor: Cursor) -> int | None:
        """If the cursor has taken all records, and the buffer was read to the partition's end, move
        the cursor to that end, note the end as reported, and return it. Return None otherwise, and
        if this end was reported before."""
        if (
            cursor.next_index < self.end_index
            or self.known_end != self.end  # never seen, or more was read since it was
            or self.end <= cursor.reported
        ):
            return None
        cursor.reported = self.end
        cursor.offset = max(cursor.offset, self.end)
        return self.end

    def trim(self, spare: int) -> None:
        """Forget the records that every group has taken, but always keep the buffer's last `spare`
        records: a group of another buffer that lags a little can continue here."""
        if len(self.records) <= spare:
            return
        count = min(self.slowest_index, self.end_index - spare) - self.first_index
        if count > 0:
            forgotten = self.records[:count]
            del self.records[:count]
            self.first_index += count
            self.start = forgotten[-1].offset() + 1
            self.size -= sum(record.size for record in forgotten)


def _discard(cursors: set[Cursor], cursor: Cursor) -> None:
    """Remove a cursor from a set, and clear the set once it is empty. Else Python keeps the set's
    memory, and iterating over the set stays as slow as when it was full."""
    cursors.discard(cursor)
    if not cursors:
        cursors.clear()


def _offset_of(record: SharedRecord) -> int:
    """Return the record's offset, as the key of a binary search."""
    return record.offset()
