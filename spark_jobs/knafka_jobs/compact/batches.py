"""Batches: which dead letters are appended to `records` next, each position once.

    what was read, what Kafka has --next_batch--> what to read now, what was read after that

A batch is two writes: the offsets that are read after it, then its rows, in one commit with the
batch's number. The offsets that count are those of the last number in `records`; those whose rows
were never appended, as their run was killed, are never looked at again. So no second account of
what was read can disagree with the table, and no reading begins at a default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from knafka_jobs.topics import Offsets, Partition, Span


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


class BatchStore(Protocol):
    """Keeps a batch's number with its rows, and offsets by number."""

    def last_batch(self) -> int | None:
        """The number of the batch appended last; None if none ever was."""

    def offsets_after(self, batch: int) -> Offsets | None:
        """The offsets saved for a batch; None if they are gone."""

    def offsets_of_rows(self) -> Offsets:
        """Where reading goes on by the rows themselves, for tables without saved offsets."""

    def save_offsets(self, batch: int, after: Offsets) -> None:
        """Save offsets; they are whole before any row of their batch is appended."""


Append: TypeAlias = Callable[[Mapping[Partition, Span], int, int | None], int]
"""Appends what is in the ranges under a batch's number, in one commit, unless the last batch is not
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
        known = read.get(where, span.start)
        # Beyond its end a log was cut off (unclean election): what is appended there since is new.
        start = min(max(known, span.start), span.end)
        missed += max(0, span.start - known)
        if where in read:
            after[where] = start
        if start < span.end:
            waiting[where] = Span(start, span.end)
    total = sum(each.end - each.start for each in waiting.values())
    ranges = {
        where: Span(each.start, each.start + _share(each.end - each.start, limit, total))
        for where, each in waiting.items()
    }
    after |= {where: each.end for where, each in ranges.items()}
    return Batch(ranges, after, missed) if after != read else None


def ingest(
    store: BatchStore,
    spans: Mapping[Partition, Span],
    limit: int,
    append: Append,
    clock: Callable[[], int],
) -> Ingested:
    """Append all that `spans` has and `store` has not, in batches; `clock` gives nanoseconds.

    Raises `JobError`.
    """
    last = store.last_batch()
    saved = None if last is None else store.offsets_after(last)
    read = store.offsets_of_rows() if saved is None else saved
    # What the rows alone tell is saved at once: a purge takes rows away.
    batch = Batch({}, read, 0) if saved is None and read else next_batch(spans, read, limit)
    records = missed = 0
    while batch is not None:
        # No two runs share a number, so none takes another's offsets for its own.
        number = max(clock(), (last or 0) + 1)
        store.save_offsets(number, batch.after)
        records += append(batch.ranges, number, last)
        missed += batch.missed
        last, batch = number, next_batch(spans, batch.after, limit)
    return Ingested(records, missed)


def _share(size: int, limit: int, total: int) -> int:
    """Of `size` records as many as fit, if all partitions give the same part; at least one."""
    return size if total <= limit else -(-size * limit // total)
