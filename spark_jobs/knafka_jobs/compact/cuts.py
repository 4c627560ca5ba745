"""Finds cuts: logs that lost their end in an unclean election and grew again with other records.

    offsets already read, Kafka's records --find_cuts--> the offset at which each log was cut

Above a cut, Kafka gives offsets to new records that older records had before, so a position alone
does not identify a record. Before reading goes on, and before anything is deleted, the last record
that was read must therefore still be at its offset; its mark (`RecordMark`: offset, leader epoch,
time and a digest of its content) tells. If it isn't, the cut is searched for: by leader epochs,
which every election raises, or, if these don't help (the epoch is unknown, or a disk was restored),
by comparing with the table's rows. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from knafka.core.times import LATEST
from knafka_jobs.topic_offsets import Offsets, OffsetSpan, Partition, ReadState, RecordMark


class LogView(Protocol):
    """Reads single committed records from Kafka. Raises `JobError`."""

    def first_at(self, offsets: Mapping[Partition, int]) -> Mapping[Partition, RecordMark]:
        """Return the mark of the first record at or after each offset. Partitions without such a
        record are left out."""

    def last_in(self, spans: Mapping[Partition, OffsetSpan]) -> Mapping[Partition, RecordMark]:
        """Return the mark of the last record of each span. Spans without a record are left out."""


class CommittedRecord(Protocol):
    """A committed record, as a consumer returns it."""

    def offset(self) -> int:
        """Return the record's offset in its partition."""


class RowView(Protocol):
    """Reads single rows of the table `records`."""

    def rows_read_last(
        self, partitions: Mapping[Partition, ReadState]
    ) -> Mapping[Partition, RecordMark]:
        """Return the mark of the row at the offset before `ReadState.next`, for each partition that
        has this row. The epochs of these marks are unknown."""

    def last_row(self, partition: Partition, reached: ReadState) -> RecordMark | None:
        """Return the mark of a partition's last row below `reached.next`; None if it has no such
        row."""


def find_cuts(
    offsets_read: Offsets, spans: Mapping[Partition, OffsetSpan], log: LogView, rows: RowView
) -> tuple[dict[Partition, int], dict[Partition, RecordMark]]:
    """Return two mappings: the offset at which each cut log was cut, and the mark of each uncut
    partition whose `ReadState` has no mark yet.

    `spans` are the offsets that Kafka has now. Only cuts below the offsets that were read count.
    Raises `JobError`.
    """
    read_partitions = {
        partition: reached
        for partition, reached in offsets_read.items()
        if partition in spans and spans[partition].start < reached.next
    }
    unmarked = {
        partition: reached for partition, reached in read_partitions.items() if reached.mark is None
    }
    marks = {
        partition: reached.mark
        for partition, reached in read_partitions.items()
        if reached.mark is not None
    }
    if unmarked:
        marks |= rows.rows_read_last(unmarked)
    cuts, new_marks = {}, {}
    for partition, compared in _compare_logs(read_partitions, spans, marks, log).items():
        if compared.mark is None and not compared.is_short:
            continue  # the last row was purged, so nothing can be compared
        if compared.is_unchanged:
            if partition in unmarked and compared.at_mark is not None:
                new_marks[partition] = compared.at_mark
            continue
        cut_offset = _find_cut(partition, compared.reached, compared.span, compared.mark, log, rows)
        if cut_offset is None:
            cut_offset = compared.first_changed_offset()
        if cut_offset is not None:
            cuts[partition] = cut_offset
    return cuts, new_marks


def _compare_logs(
    read_partitions: Offsets,
    spans: Mapping[Partition, OffsetSpan],
    marks: Mapping[Partition, RecordMark],
    log: LogView,
) -> dict[Partition, _ComparedLog]:
    """Compare what was read of each of these partitions with what Kafka has there now.

    `spans` are the offsets that Kafka has. `marks` are the last records that were read, as far as
    they are known. Raises `JobError`.
    """
    at_marks = log.first_at(
        {
            partition: mark.offset
            for partition, mark in marks.items()
            if spans[partition].start <= mark.offset < spans[partition].end
        }
    )
    # When the mark's record was read, there were no records between it and `next`.
    behind_marks = {
        partition: OffsetSpan(
            max(mark.offset + 1, spans[partition].start),
            min(read_partitions[partition].next, spans[partition].end),
        )
        for partition, mark in marks.items()
    }
    after_marks = log.first_at(
        {partition: span.start for partition, span in behind_marks.items() if span.start < span.end}
    )
    return {
        partition: _ComparedLog(
            reached,
            spans[partition],
            marks.get(partition),
            at_marks.get(partition),
            after_marks.get(partition),
        )
        for partition, reached in read_partitions.items()
    }


class _ComparedLog(NamedTuple):
    """What was read of a partition's log, and what Kafka has of it now."""

    reached: ReadState
    """How far the log was read."""
    span: OffsetSpan
    """The offsets that Kafka has now."""
    mark: RecordMark | None
    """The last record that was read; None: unknown."""
    at_mark: RecordMark | None
    """Kafka's first record at the mark's offset or after it."""
    after_mark: RecordMark | None
    """Kafka's first record after the mark's offset; looked for below the offset up to which the log
    was read."""

    @property
    def is_short(self) -> bool:
        """Whether the log ends before the offset up to which it was read."""
        return self.span.end < self.reached.next

    @property
    def has_unexpected_record(self) -> bool:
        """Whether a record lies after the last record that was read and below the offset up to
        which the log was read. There was none when it was read."""
        return self.after_mark is not None and self.after_mark.offset < self.reached.next

    @property
    def still_has_mark(self) -> bool:
        """Whether the last record that was read is still at its offset. True also if that record
        isn't known, or Kafka doesn't have its offset any more."""
        if self.mark is None or self.mark.offset < self.span.start:
            return True
        return self.at_mark is not None and is_same_record(self.at_mark, self.mark)

    @property
    def is_unchanged(self) -> bool:
        """Whether nothing shows that the log is another one than the log that was read."""
        return self.still_has_mark and not self.is_short and not self.has_unexpected_record

    def first_changed_offset(self) -> int | None:
        """Return the first offset that is known to have changed; None if none is known."""
        mark, at_mark = self.mark, self.at_mark
        if self.has_unexpected_record and mark is not None:
            return max(mark.offset + 1, self.span.start)
        if not self.still_has_mark and mark and at_mark and at_mark.offset == mark.offset:
            return mark.offset  # another record has this offset now
        # If the mark's record is still there, only offsets behind it are lost, such as that of a
        # transaction's marker.
        return self.span.end if self.is_short else None


def is_same_record(record: RecordMark, mark_read: RecordMark) -> bool:
    """Whether Kafka's record is the record that was read. Epochs are compared only if both are
    known, and the time only if it is a possible one: tables store another time for others."""
    epochs_fit = None in (record.epoch, mark_read.epoch) or record.epoch == mark_read.epoch
    times_fit = record.time == mark_read.time or not 0 <= record.time <= LATEST * 1000
    content_fits = (record.offset, record.digest) == (mark_read.offset, mark_read.digest)
    return content_fits and epochs_fit and times_fit


def _find_cut(
    partition: Partition,
    reached: ReadState,
    span: OffsetSpan,
    mark: RecordMark | None,
    log: LogView,
    rows: RowView,
) -> int | None:
    """Return the offset at which a log was cut, by the epoch of `mark` (the last record read), or
    else by comparing rows with Kafka's records. None if neither tells. `span` has the offsets that
    Kafka has now."""
    offsets_read = range(span.start, min(reached.next, span.end))

    def first_at(offset: int) -> RecordMark | None:
        """Return the first record at or after an offset; None if there is none."""
        return log.first_at({partition: offset}).get(partition)

    if mark is not None and (epoch := mark.epoch) is not None:

        def is_newer(offset: int) -> bool:
            """Whether the record at an offset was appended after an election since `mark`, or there
            is none."""
            record = first_at(offset)
            return record is None or record.epoch is None or record.epoch > epoch

        if (cut_offset := first_offset_where(offsets_read, is_newer)) is not None:
            return cut_offset

    def row_at(offset: int) -> RecordMark | None:
        """Return the last row up to an offset that Kafka may still have; None if there is none."""
        row = rows.last_row(partition, reached._replace(next=offset + 1))
        return row if row is not None and row.offset >= span.start else None

    def differs(offset: int) -> bool:
        """Whether the last row up to an offset isn't the record that Kafka has there."""
        if (row := row_at(offset)) is None:
            return False  # the row was purged, so nothing can be compared
        record = first_at(row.offset)
        return record is None or not is_same_record(record, row)

    if (cut_offset := first_offset_where(offsets_read, differs)) is None:
        return None
    # Rows that were purged in between can't be compared: rather read records twice than never.
    last = row_at(cut_offset - 1) if cut_offset > span.start else None
    return span.start if last is None else last.offset + 1


def first_offset_where(offsets: range, holds: Callable[[int], bool]) -> int | None:
    """Return the first offset for which `holds` is true, by binary search; None if it never is.

    Once `holds` is true for an offset, it must be true for all later offsets.
    """
    low, high = offsets.start, offsets.stop
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low if low < offsets.stop else None


def deletable_until(
    span: OffsetSpan,
    in_table: Iterable[OffsetSpan],
    messages: Callable[[OffsetSpan], Iterable[CommittedRecord]],
) -> int:
    """Return the offset below which all committed records of a span are in the table, so that they
    may be deleted from their topic.

    `in_table` are the spans that the table has without a gap. For a gap, `messages` returns the
    committed records that Kafka has there: offsets of markers and aborted records have none.
    """
    until = span.start
    remaining = sorted(in_table, key=lambda stretch: stretch.start)
    # The table has everything up to its first gap.
    while remaining and remaining[0].start <= until:
        until = max(until, remaining.pop(0).end)
    if until >= span.end:
        return span.end
    # Behind the gap, the table may lack only offsets that have no committed record.
    for record in messages(OffsetSpan(until, span.end)):
        offset = record.offset()
        while remaining and remaining[0].end <= offset:
            remaining.pop(0)
        if not (remaining and remaining[0].start <= offset):
            return max(offset, until)  # the table lacks this record, so it must stay
    return span.end
