"""Cuts: logs that lost their end in an unclean election, and grew again with other records.

    what was read, Kafka --find_cuts--> the offset at which each log was cut

A position alone doesn't tell a record: offsets above a cut are given twice. So before reading goes
on, and before anything is deleted, the last record that was read has to lie where it lay. Where it
doesn't, the cut is looked for: by leader epochs, which every election raises, and where these don't
tell (no epoch is known, or somebody has restored a disk) by what the table has. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from knafka.core.times import LATEST
from knafka_jobs.topics import Mark, Offsets, Partition, Reached, Span


class LogView(Protocol):
    """Asks Kafka for single committed records. Raises `JobError`."""

    def first_at(self, wanted: Mapping[Partition, int]) -> Mapping[Partition, Mark]:
        """The first record at or after each offset; nothing of partitions without one."""

    def last_in(self, spans: Mapping[Partition, Span]) -> Mapping[Partition, Mark]:
        """The last record of each stretch; nothing of those without one."""


class Record(Protocol):
    """What lies at an offset."""

    def offset(self) -> int: ...


class RowView(Protocol):
    """Asks `records` for single rows."""

    def rows_read_last(self, wanted: Mapping[Partition, Reached]) -> Mapping[Partition, Mark]:
        """The rows of the last offset below `next`, of those partitions that have one there. Their
        epochs aren't known."""

    def last_row(self, where: Partition, reached: Reached) -> Mark | None:
        """The last row below `next` of a partition, wherever it is."""


def find_cuts(
    read: Offsets, spans: Mapping[Partition, Span], log: LogView, rows: RowView
) -> tuple[dict[Partition, int], dict[Partition, Mark]]:
    """Where logs were cut below what was read of them, and marks of those that had none."""
    known = {
        where: reached
        for where, reached in read.items()
        if where in spans and spans[where].start < reached.next
    }
    unmarked = {where: reached for where, reached in known.items() if reached.mark is None}
    marks = {where: reached.mark for where, reached in known.items() if reached.mark is not None}
    if unmarked:
        marks |= rows.rows_read_last(unmarked)
    there = log.first_at(
        {
            where: mark.offset
            for where, mark in marks.items()
            if spans[where].start <= mark.offset < spans[where].end
        }
    )
    # The mark is of the last record that was read: up to `next` there were none.
    behind = log.first_at(
        {
            where: start
            for where, mark in marks.items()
            if (start := max(mark.offset + 1, spans[where].start))
            < min(known[where].next, spans[where].end)
        }
    )
    cuts, found = {}, {}
    for where, reached in known.items():
        mark, at, new = marks.get(where), there.get(where), behind.get(where)
        is_short = spans[where].end < reached.next
        if mark is None and not is_short:
            continue  # what was read last was purged: nothing is known of it
        is_filled = new is not None and new.offset < reached.next
        is_there = (
            mark is None
            or mark.offset < spans[where].start
            or (at is not None and is_same(at, mark))
        )
        if is_there and not is_short and not is_filled:
            if where in unmarked and at is not None:
                found[where] = at
            continue
        cut = _cut(where, reached, spans[where], mark, log, rows)
        if cut is None and is_filled and mark is not None:
            cut = max(mark.offset + 1, spans[where].start)
        elif (
            cut is None
            and not is_there  # else only what follows the mark is lost, such as a marker
            and mark is not None
            and at is not None
            and at.offset == mark.offset
        ):
            cut = mark.offset
        elif cut is None and is_short:
            cut = spans[where].end
        if cut is not None:
            cuts[where] = cut
    return cuts, found


def is_same(record: Mark, other: Mark) -> bool:
    """Whether Kafka's record is the one that was seen; a time that can't be was not kept."""
    epochs_fit = None in (record.epoch, other.epoch) or record.epoch == other.epoch
    times_fit = record.time == other.time or not 0 <= record.time <= LATEST * 1000
    content_fits = (record.offset, record.digest) == (other.offset, other.digest)
    return content_fits and epochs_fit and times_fit


def _cut(
    where: Partition,
    reached: Reached,
    span: Span,
    mark: Mark | None,
    log: LogView,
    rows: RowView,
) -> int | None:
    """The first offset at which the log is another one; None: neither epochs nor rows tell."""
    read = range(span.start, min(reached.next, span.end))

    def first_at(offset: int) -> Mark | None:
        return log.first_at({where: offset}).get(where)

    if mark is not None and (epoch := mark.epoch) is not None:

        def is_newer(offset: int) -> bool:
            at = first_at(offset)
            return at is None or at.epoch is None or at.epoch > epoch

        if (cut := first_where(read, is_newer)) is not None:
            return cut

    def row_at(offset: int) -> Mark | None:
        row = rows.last_row(where, reached._replace(next=offset + 1))
        return row if row is not None and row.offset >= span.start else None

    def differs(offset: int) -> bool:
        if (row := row_at(offset)) is None:
            return False  # purged: nothing is told
        at = first_at(row.offset)
        return at is None or not is_same(at, row)

    if (cut := first_where(read, differs)) is None:
        return None
    # What was purged in between can't be compared: rather twice than never.
    last = row_at(cut - 1) if cut > span.start else None
    return span.start if last is None else last.offset + 1


def first_where(offsets: range, holds: Callable[[int], bool]) -> int | None:
    """The first offset from which on something holds, by halving; None if it holds nowhere."""
    low, high = offsets.start, offsets.stop
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low if low < offsets.stop else None


def deletable_until(
    span: Span, tabled: Iterable[Span], messages: Callable[[Span], Iterable[Record]]
) -> int:
    """Up to where a stretch may be deleted: all committed records before it are tabled.

    `tabled` is what the table has without a gap, stretch by stretch. Where it has a gap, `messages`
    tells whether Kafka has records there: markers and what was aborted are none.
    """
    until = span.start
    left = sorted(tabled, key=lambda each: each.start)
    while left and left[0].start <= until:
        until = max(until, left.pop(0).end)
    if until >= span.end:
        return span.end
    for record in messages(Span(until, span.end)):
        offset = record.offset()
        while left and left[0].end <= offset:
            left.pop(0)
        if not (left and left[0].start <= offset):
            return max(offset, until)
    return span.end
