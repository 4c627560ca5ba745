"""Decides which dead letters are appended to `records` next, so that each position is read once.

    offsets already read, Kafka's offsets --next_batch--> spans to read now, offsets read after them

A batch is two writes: first the offsets at which reading goes on after it, then its rows, in one
commit with the batch's number. Only the offsets of the last number in `records` count. Offsets of a
run that was killed before its rows were appended are never used. So the offsets can't disagree with
the table, and reading never begins at a default.

Before anything is read, the logs are compared with what was read of them (`cuts`): reading of a
partition whose log was cut (an unclean election took its end away) goes on at the cut, as another
log. A mark (`RecordMark`) identifies the last record that was read of a log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from knafka_jobs.compact.cuts import LogView, RowView, find_cuts
from knafka_jobs.topic_offsets import NO_MARK, Offsets, OffsetSpan, Partition, ReadState


@dataclass(frozen=True, slots=True)
class IngestBatch:
    """The dead letters that one batch reads and appends."""

    ranges: Mapping[Partition, OffsetSpan]
    """The offsets to read of each partition; no range is empty."""
    after: Offsets
    """How far each partition is read once the batch is appended, including partitions that the
    batch doesn't read."""
    missed: int
    """Number of records that were deleted from their topics before a compaction read them."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The result of all batches of a run."""

    records: int
    """Number of records that were appended."""
    missed: int
    """Number of records that were deleted from their topics before a compaction read them."""
    cuts: Mapping[Partition, OffsetSpan] = field(default_factory=dict)
    """The offsets of each partition that were read, and that a cut of its log then took away."""


class BatchStore(RowView, Protocol):
    """Stores the number of a batch with its rows, and saves offsets by batch number."""

    def last_batch(self) -> int | None:
        """Return the number of the batch appended last; None before the first batch."""

    def offsets_after(self, batch: int) -> Offsets | None:
        """Return the offsets saved for a batch; None if they are missing or broken."""

    def offsets_of_rows(self) -> Offsets:
        """Return how far partitions were read, as the stored rows show; for tables without saved
        offsets."""

    def save_offsets(self, batch: int, after: Offsets) -> None:
        """Save the offsets of a batch, durably, before any of its rows is appended."""


Append: TypeAlias = Callable[[IngestBatch, int, int | None], int]
"""Appends the rows of a batch and returns how many: `(batch, number, last number)`. It is one
commit with the batch's number. Raises `JobError`, also if the last batch has another number."""


def next_batch(
    spans: Mapping[Partition, OffsetSpan], offsets_read: Offsets, limit: int
) -> IngestBatch | None:
    """Return the next batch, of about `limit` records; None if there is nothing to read and no
    offset to save.

    `spans` are the offsets that Kafka has of the partitions to read. `offsets_read` is how far
    partitions were read: reading goes on there, or at the first record that Kafka has if that is
    later or the partition was never read.
    """
    to_read: dict[Partition, OffsetSpan] = {}
    offsets_after = dict(offsets_read)
    missed = 0
    for partition, span in spans.items():
        reached = offsets_read.get(partition, ReadState(span.start))
        start = max(reached.next, span.start)
        missed += max(0, span.start - reached.next)
        if partition in offsets_read and start > reached.next:
            # Noted even if there is nothing to read, so that no later run counts them as missed.
            offsets_after[partition] = reached._replace(next=start)
        if start < span.end:
            to_read[partition] = OffsetSpan(start, span.end)
    total = sum(span.end - span.start for span in to_read.values())
    ranges = {
        partition: OffsetSpan(
            span.start, span.start + _share_of_batch(span.end - span.start, limit, total)
        )
        for partition, span in to_read.items()
    }
    for partition, span in ranges.items():
        offsets_after[partition] = offsets_after.get(
            partition, ReadState(span.start, NO_MARK)
        )._replace(next=span.end)
    return IngestBatch(ranges, offsets_after, missed) if offsets_after != offsets_read else None


def ingest_spans(
    store: BatchStore,
    spans: Mapping[Partition, OffsetSpan],
    log: LogView,
    limit: int,
    append: Append,
    clock: Callable[[], int],
) -> IngestResult:
    """Append the records of these spans that were not read yet, in batches of about `limit`
    records; returns the sums of all batches.

    If logs were cut, a first batch without records saves the offsets at which reading goes on.
    `clock` returns nanoseconds, from which batch numbers are made. Raises `JobError`.
    """
    last_number = store.last_batch()
    saved = None if last_number is None else store.offsets_after(last_number)
    offsets_read = dict(store.offsets_of_rows() if saved is None else saved)
    cuts, marks = find_cuts(offsets_read, spans, log, store)
    cut_spans = {
        partition: OffsetSpan(offset, offsets_read[partition].next)
        for partition, offset in cuts.items()
    }
    # Go on with the marks that were unknown, and at the cut in each log that was cut.
    offsets_read |= {
        partition: offsets_read[partition]._replace(mark=mark) for partition, mark in marks.items()
    }
    offsets_read |= {
        partition: offsets_read[partition].after_cut_at(offset)
        for partition, offset in cuts.items()
    }
    batch: IngestBatch | None
    if cuts or (offsets_read and offsets_read != saved):
        # Save this before any row: a purge may later delete the rows that show the offsets.
        up_to_cuts = {
            partition: OffsetSpan(spans[partition].start, offset)
            for partition, offset in cuts.items()
        }
        batch = IngestBatch({}, with_marks_of_ranges(offsets_read, up_to_cuts, log), 0)
    else:
        batch = next_batch(spans, offsets_read, limit)
    records = missed = 0
    while batch is not None:
        # Batch numbers of two runs differ, so that no run uses another run's offsets.
        number = max(clock(), (last_number or 0) + 1)
        batch = replace(batch, after=with_marks_of_ranges(batch.after, batch.ranges, log))
        store.save_offsets(number, batch.after)
        records += append(batch, number, last_number)
        missed += batch.missed
        last_number, batch = number, next_batch(spans, batch.after, limit)
    return IngestResult(records, missed, cut_spans)


def with_marks_of_ranges(
    offsets_read: Offsets, ranges: Mapping[Partition, OffsetSpan], log: LogView
) -> Offsets:
    """Return `offsets_read` with new marks (`RecordMark`): for each partition whose range has a
    record, the mark of the range's last record, which `log` reads. Raises `JobError`."""
    marks = log.last_in(
        {partition: span for partition, span in ranges.items() if span.start < span.end}
    )
    return {
        **offsets_read,
        **{
            partition: offsets_read[partition]._replace(mark=mark)
            for partition, mark in marks.items()
        },
    }


def _share_of_batch(size: int, limit: int, total: int) -> int:
    """Return how many of a partition's `size` offsets a batch of about `limit` offsets reads, if
    all partitions together have `total` offsets: of each partition the same fraction, rounded
    up."""
    if total <= limit:
        return size
    return -(-size * limit // total)  # `//` rounds down: of the negative number, so up
