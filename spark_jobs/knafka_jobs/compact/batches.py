"""Batches: which dead letters are appended to `records` next, each position once.

    what was read, what Kafka has --next_batch--> what to read now, what was read after that

A batch is two writes: the offsets that are read after it, then its rows, in one commit with the
batch's number. The offsets that count are those of the last number in `records`; those whose rows
were never appended, as their run was killed, are never looked at again. So no second account of
what was read can disagree with the table, and no reading begins at a default.

Before anything is read, the logs are compared with what was read of them (`cuts`): one that was cut
goes on at the cut, as a log of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from knafka_jobs.compact.cuts import LogView, RowView, find_cuts
from knafka_jobs.topics import NOTHING, Offsets, Partition, Reached, Span


@dataclass(frozen=True, slots=True)
class Batch:
    """What is read at once."""

    ranges: Mapping[Partition, Span]
    """None of them is empty."""
    after: Offsets
    """Where reading goes on once the batch is appended; with the partitions it does not read."""
    missed: int
    """Records that were deleted from their topics before anybody read them."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """What all batches of a run came to."""

    records: int
    missed: int
    cuts: Mapping[Partition, Span] = field(default_factory=dict)
    """What was read of logs and lies in them no more: they were cut."""


class BatchStore(RowView, Protocol):
    """Keeps a batch's number with its rows, and offsets by number."""

    def last_batch(self) -> int | None:
        """The number of the batch appended last; None if none ever was."""

    def offsets_after(self, batch: int) -> Offsets | None:
        """The offsets saved for a batch; None if they are gone."""

    def offsets_of_rows(self) -> Offsets:
        """Where reading goes on by the rows themselves, for tables without saved offsets."""

    def save_offsets(self, batch: int, after: Offsets) -> None:
        """Save offsets; they are whole before any row of their batch is appended."""


Append: TypeAlias = Callable[[Batch, int, int | None], int]
"""Appends what is in a batch's ranges under a number, in one commit, unless the last batch is not
the one given; returns how many rows. Raises `JobError`."""


def next_batch(spans: Mapping[Partition, Span], read: Offsets, limit: int) -> Batch | None:
    """The next batch of about `limit` records; None if there is nothing to read or to save.

    `spans` is what Kafka has of the topics that are read now, `read` where reading goes on. What is
    in `read` goes on there, or where its records begin; what is not begins where its records do.
    """
    waiting: dict[Partition, Span] = {}
    after = dict(read)
    missed = 0
    for where, span in spans.items():
        reached = read.get(where, Reached(span.start))
        start = max(reached.next, span.start)
        missed += max(0, span.start - reached.next)
        if where in read and start > reached.next:
            after[where] = reached._replace(next=start)
        if start < span.end:
            waiting[where] = Span(start, span.end)
    total = sum(each.end - each.start for each in waiting.values())
    ranges = {
        where: Span(each.start, each.start + _share(each.end - each.start, limit, total))
        for where, each in waiting.items()
    }
    for where, each in ranges.items():
        after[where] = after.get(where, Reached(each.start, NOTHING))._replace(next=each.end)
    return Batch(ranges, after, missed) if after != read else None


def ingest(
    store: BatchStore,
    spans: Mapping[Partition, Span],
    log: LogView,
    limit: int,
    append: Append,
    clock: Callable[[], int],
) -> Ingested:
    """Append all that `spans` has and `store` has not, in batches; `clock` gives nanoseconds.

    Raises `JobError`.
    """
    last = store.last_batch()
    saved = None if last is None else store.offsets_after(last)
    read = dict(store.offsets_of_rows() if saved is None else saved)
    cuts, marks = find_cuts(read, spans, log, store)
    lost = {where: Span(offset, read[where].next) for where, offset in cuts.items()}
    read |= {where: read[where]._replace(mark=mark) for where, mark in marks.items()}
    read |= {where: read[where].cut_at(offset) for where, offset in cuts.items()}
    batch: Batch | None
    if cuts or (read and read != saved):
        # At once: what the rows alone tell, a purge takes away.
        up_to_cuts = {where: Span(spans[where].start, offset) for where, offset in cuts.items()}
        batch = Batch({}, marked(read, up_to_cuts, log), 0)
    else:
        batch = next_batch(spans, read, limit)
    records = missed = 0
    while batch is not None:
        # No two runs share a number, so none takes another's offsets for its own.
        number = max(clock(), (last or 0) + 1)
        batch = replace(batch, after=marked(batch.after, batch.ranges, log))
        store.save_offsets(number, batch.after)
        records += append(batch, number, last)
        missed += batch.missed
        last, batch = number, next_batch(spans, batch.after, limit)
    return Ingested(records, missed, lost)


def marked(read: Offsets, ranges: Mapping[Partition, Span], log: LogView) -> Offsets:
    """`read` with the last records of these ranges; of a range without records the mark stays."""
    marks = log.last_in({where: span for where, span in ranges.items() if span.start < span.end})
    return {**read, **{where: read[where]._replace(mark=mark) for where, mark in marks.items()}}


def _share(size: int, limit: int, total: int) -> int:
    """Of `size` records as many as fit, if all partitions give the same part; at least one."""
    return size if total <= limit else -(-size * limit // total)
