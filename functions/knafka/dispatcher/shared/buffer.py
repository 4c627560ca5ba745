"""The buffer of one partition: its latest records, and how far each group has taken them.

It has every record of its partition from the offset `start` up to `end`, so a group whose next
offset lies between them can go on in it: that is all that switching from one read to another takes.

    plain cursor:     gets every record, one index after the other
    selective cursor: gets those that the filter index finds for it; `pending` has their indexes

A cursor joins as a plain one, and may become selective when it has taken all there is. A selective
one without anything pending isn't touched by what is read: it has taken all, whenever it is asked.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from knafka.core.errors import LogError
from knafka.core.filter_index import FilterIndex
from knafka.core.kafka_binding import Envelope
from knafka.dispatcher.selecting import Selective
from knafka.dispatcher.shared.record import SharedRecord, envelope_of
from knafka.ports.shared_log import NO_EPOCH, Position

GIVEN_TOGETHER: Final = 50
"""Records that are given in one turn of the event loop, to all groups together: each is filtered,
encoded and begun to be sent there. Who gets none is woken, and takes them in a turn of its own."""


class CursorOwner(Protocol):
    """The reader that a cursor belongs to."""

    group: str
    drain: Selective | None
    """None: it wants every record."""

    def notify(self, number: int, is_record: bool, room: int = GIVEN_TOGETHER) -> int:
        """There is more of this partition: a record, or only its end. Returns how many records were
        given at once, `room` at most."""
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

    __slots__ = ("buffer", "index", "is_selective", "number", "offset", "owner", "paused",
                 "pending", "reported")  # fmt: skip

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
        """In the buffer, counted from its first record ever; of a selective one as far as it was
        told of what is passed over."""
        self.is_selective = False
        self.pending: list[int] = []
        """Of a selective one: indexes of records that are for it."""

    @property
    def next(self) -> int:
        """Index of the next record that is for it, or may be."""
        if not self.is_selective or self.buffer is None:
            return self.index
        return self.pending[0] if self.pending else self.buffer.behind

    @property
    def behind(self) -> int:
        """Records in the buffer from the next one on that is for it."""
        return 0 if self.buffer is None else self.buffer.behind - self.next


class PartitionBuffer:
    """All from `start` on: offsets that hold no record have been looked at, too."""

    __slots__ = ("cursors", "end", "epoch", "fastest", "first", "index", "number", "paused",
                 "plain", "reached", "records", "size", "start", "waiting",
                 "wants_trace")  # fmt: skip

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
        """The highest index up to which a plain cursor has taken all."""
        self.size = 0
        """Bytes, about."""
        self.paused = False
        self.cursors: set[Cursor] = set()
        self.plain: set[Cursor] = set()
        self.waiting: set[Cursor] = set()
        """Selective ones that have something pending."""
        self.index: FilterIndex[Cursor] = FilterIndex()
        """Of the selective ones."""
        self.wants_trace: Callable[[Envelope], bool] = lambda envelope: False

    @property
    def behind(self) -> int:
        """The index behind the last record."""
        return self.first + len(self.records)

    @property
    def ahead(self) -> int:
        """Records that no group has taken."""
        if len(self.index) > len(self.waiting) or not self.cursors:
            return 0  # one has taken all that was for it
        fastest = max((each.pending[0] for each in self.waiting), default=0)
        return self.behind - max(self.fastest, self.first, fastest)

    @property
    def held(self) -> int:
        """Records that not all groups have taken."""
        return self.behind - self.slowest

    @property
    def slowest(self) -> int:
        plain = min((each.index for each in self.plain), default=self.behind)
        return min([plain, *(each.pending[0] for each in self.waiting)])

    def covers(self, offset: int) -> bool:
        return self.start <= offset <= self.end

    def join(self, cursor: Cursor) -> None:
        """Have it go on here; its offset is covered, or lies ahead and is still to be read."""
        cursor.buffer = self
        cursor.index = self.first + bisect_left(self.records, cursor.offset, key=_offset_of)
        self.cursors.add(cursor)
        self.plain.add(cursor)
        self.fastest = max(self.fastest, cursor.index)
        if cursor.index < self.behind:
            cursor.owner.notify(self.number, True)
        elif self.reached > cursor.reported:
            cursor.owner.notify(self.number, False)

    def leave(self, cursor: Cursor) -> None:
        """It may join another one, as a plain cursor."""
        if cursor.is_selective:
            self.catch_up(cursor)
            self.index.remove(cursor)
            self.waiting.discard(cursor)
            cursor.is_selective, cursor.pending = False, []
            if cursor.owner.drain is not None:
                cursor.owner.drain.selected_from(self.number, math.inf)
        else:
            self.plain.discard(cursor)
            self.fastest = max((each.index for each in self.plain), default=self.first)
        cursor.buffer = None
        self.cursors.discard(cursor)

    def append(self, records: Sequence[SharedRecord]) -> None:
        """Records that were read, in order."""
        at = self.behind
        self.records.extend(records)
        self.end = records[-1].offset() + 1
        self.size += sum(each.size for each in records)
        concerned = self._selected(at, records) if len(self.index) else []
        concerned += self.plain
        room = GIVEN_TOGETHER
        for cursor in concerned:
            room -= cursor.owner.notify(self.number, True, room)

    def _selected(self, at: int, records: Sequence[SharedRecord]) -> list[Cursor]:
        """Note of each record for whom it is, the first one at index `at`; those who have
        something pending now and had nothing."""
        concerned: list[Cursor] = []
        for index, record in enumerate(records, at):
            for cursor in self._matching(record):
                if not cursor.pending:
                    concerned.append(cursor)
                cursor.pending.append(index)
        self.waiting.update(concerned)
        return concerned

    def _matching(self, record: SharedRecord) -> Iterable[Cursor]:
        try:
            envelope = envelope_of(record)
            if not self.wants_trace(envelope):
                return self.index.matches(envelope.attributes)
        except Exception:  # each drain has to give up the event, or to say what is wrong
            pass
        record.is_for_all = True
        return [each for each in self.cursors if each.is_selective]

    def reach(self, end: int) -> None:
        """Everything below `end` was read, and there is no more for now."""
        self.end = self.reached = max(self.end, end)
        for cursor in self.plain:
            cursor.owner.notify(self.number, False)

    def take(self, cursor: Cursor, limit: int) -> Sequence[SharedRecord]:
        """What is next for a group."""
        if cursor.is_selective:
            return self._take_pending(cursor, limit)
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

    def _take_pending(self, cursor: Cursor, limit: int) -> Sequence[SharedRecord]:
        pending, drain = cursor.pending, cursor.owner.drain
        if not pending or limit <= 0 or drain is None:
            return ()
        taken = pending[:limit]
        del pending[:limit]
        if not pending:
            self.waiting.discard(cursor)
        first = self.first
        some = [self.records[each - first] for each in taken]
        behind = taken[-1] + 1
        if passed := behind - cursor.index - len(taken):
            drain.passed_over(self.number, passed, 0)
        cursor.index = behind
        cursor.offset = some[-1].offset() + 1
        return some

    def select(self, cursor: Cursor) -> None:
        """Have a plain cursor that has taken all become selective, if its drain lets it."""
        drain = cursor.owner.drain
        if drain is None or (selection := drain.selection) is None:
            return
        taken_all = cursor.index == self.behind and cursor.offset <= self.end
        if taken_all and drain.may_select(self.number):
            self.plain.discard(cursor)
            self.fastest = max((each.index for each in self.plain), default=self.first)
            cursor.is_selective = True
            self.index.add(cursor, selection)
            self.wants_trace = drain.wants_trace
            drain.selected_from(self.number, self.end)

    def catch_up(self, cursor: Cursor) -> None:
        """Tell its drain what was passed over, or where a partition without more records ends."""
        drain = cursor.owner.drain
        if drain is None:
            return
        if not cursor.is_selective:
            if (end := self.end_for(cursor)) is not None:
                drain.passed_over(self.number, 0, end)
            return
        index, offset = cursor.next, self.offset_for(cursor)
        if offset > cursor.offset or index > cursor.index:
            drain.passed_over(self.number, index - cursor.index, offset)
            cursor.index, cursor.offset = index, max(cursor.offset, offset)
            cursor.reported = max(cursor.reported, cursor.offset)

    def offset_for(self, cursor: Cursor) -> int:
        """Where it goes on: all below that was given to it, or isn't for it."""
        if not cursor.is_selective:
            return cursor.offset
        if not cursor.pending:
            return max(cursor.offset, self.end)
        return self.records[cursor.pending[0] - self.first].offset()

    def end_for(self, cursor: Cursor) -> int | None:
        """The partition's end, if a group has taken all up to it and does not have it."""
        if cursor.next < self.behind or self.reached != self.end or self.end <= cursor.reported:
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
