"""Tracks which offset of a partition may be committed, given the settled records.

A record is *tracked* when it is read, and *settled* when it is delivered, filtered out or durably
dead-lettered; records are settled in any order. The *position* may be committed: every record below
it is settled. Only unsettled records are kept in memory, as all others below the next offset are
settled: one unsettled record costs the same even if six million settled ones follow it. Gaps in the
offsets (compaction, transactions) cost nothing either.

An unsettled record is never forgotten: it holds the position for as long as the partition is ours.
That guarantees at-least-once delivery (BRK-12, BRK-15).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")

OffsetRange: TypeAlias = tuple[int, int]
"""The first offset of a range, and the offset after its last."""


class OffsetTracker(Generic[T]):
    """The unsettled records of one partition, in offset order.

    `inherited` are ranges, in ascending order, that an earlier owner of the partition has settled,
    from the metadata of its commit: their records are read and skipped.
    """

    __slots__ = ("_inherited", "_next", "_unsettled")

    def __init__(self, inherited: Iterable[OffsetRange] = ()) -> None:
        self._unsettled: dict[int, T] = {}
        """Records that were read and aren't settled, by offset in ascending order."""
        self._next: int | None = None
        """The offset after the last one that was read; None: nothing was read."""
        self._inherited = list(inherited)[::-1]
        """Ranges that an earlier owner has settled and that are still to be read. In descending
        order, so that the next one can be popped."""

    @property
    def next_offset(self) -> int | None:
        """The offset after the last one that was read; None: nothing was read."""
        return self._next

    @property
    def has_inherited_ranges(self) -> bool:
        """Whether an earlier owner has settled some of the records that are still to be read."""
        return bool(self._inherited)

    def was_settled(self, offset: int) -> bool:
        """Whether an earlier owner has settled this record. Offsets must be passed in ascending
        order, as the ranges below `offset` are dropped."""
        inherited = self._inherited
        while inherited and inherited[-1][1] <= offset:
            inherited.pop()
        return bool(inherited) and inherited[-1][0] <= offset

    def track(self, offset: int, record: T) -> None:
        """Add a record that was read, as unsettled. Raises ValueError if its offset isn't above all
        earlier ones."""
        self.skip(offset)  # checks the order, and notes the record as read
        self._unsettled[offset] = record

    def skip(self, offset: int) -> None:
        """Note a record that was read and isn't tracked, as it is settled already. Raises
        ValueError if its offset isn't above all earlier ones."""
        if self._next is not None and offset < self._next:
            raise ValueError(f"offset {offset} was read after {self._next - 1}")
        self._next = offset + 1

    def reach(self, end: int) -> None:
        """Note that everything below the offset `end` was read: offsets there that weren't passed
        to `track` or `skip` hold no records."""
        if self._next is None or end > self._next:
            self._next = end

    def settle(self, offset: int) -> None:
        """Settle a tracked record. Raises KeyError if the record isn't tracked, or was settled
        before."""
        del self._unsettled[offset]

    @property
    def unsettled(self) -> Mapping[int, T]:
        """Records that are tracked and not settled, in offset order."""
        return self._unsettled

    @property
    def position(self) -> int | None:
        """The offset to commit: that of the first unsettled record; without one, the offset after
        the last record that was read. None: nothing was read."""
        return next(iter(self._unsettled), self._next)

    def settled_ahead(self) -> list[OffsetRange]:
        """Return, in ascending order, the ranges of offsets above the position whose records are
        settled (by this owner of the partition or an earlier one) or don't exist. While nothing was
        read: the inherited ranges."""
        if self._next is None:
            return self._inherited[::-1]
        ranges: list[OffsetRange] = []
        # Between two unsettled records, and after the last one, everything that was read is
        # settled.
        start: int | None = None  # the offset after the last unsettled record so far
        for offset in self._unsettled:
            if start is not None and start < offset:
                ranges.append((start, offset))
            start = offset + 1
        if start is not None and start < self._next:
            ranges.append((start, self._next))
        # Ranges that an earlier owner has settled and this one hasn't read yet, or only in part.
        for first, range_end in reversed(self._inherited):
            if range_end > self._next:
                ranges.append((max(first, self._next), range_end))
        return ranges
