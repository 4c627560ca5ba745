"""Offsets: what may be committed of one partition, given what has been settled.

A record is *tracked* when it is read and *settled* when it is delivered, filtered out or durably
dead-lettered, in any order. What may be committed is the position: everything below it is settled.
Only the unsettled records are kept, since all others below the next one to read are settled: six
million records that are settled behind one that isn't cost what that one costs. Gaps in the
offsets (compaction, transactions) cost nothing either.

Never forgotten is an unsettled record: it holds the position for as long as the partition is ours.
That is the promise of at-least-once (BRK-12, BRK-15).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")

OffsetRange: TypeAlias = tuple[int, int]
"""First offset, and the first one behind the last."""


class OffsetTracker(Generic[T]):
    """The unsettled records of one partition, in offset order, each with what is known of it.

    `settled_ahead` are ranges that an earlier owner of the partition has settled, as the commit
    tells that it began from, in ascending order: their records are read, and passed over.
    """

    __slots__ = ("_ahead", "_next", "_unsettled")

    def __init__(self, settled_ahead: Iterable[OffsetRange] = ()) -> None:
        self._unsettled: dict[int, T] = {}
        self._next: int | None = None
        self._ahead = list(settled_ahead)[::-1]

    @property
    def has_settled_ahead(self) -> bool:
        """Whether records are still to be read that are settled already."""
        return bool(self._ahead)

    def was_settled(self, offset: int) -> bool:
        """Whether an earlier owner has settled the record, the next one in order."""
        ahead = self._ahead
        while ahead and ahead[-1][1] <= offset:
            ahead.pop()
        return bool(ahead) and ahead[-1][0] <= offset

    def track(self, offset: int, record: T) -> None:
        """A record was read. Offsets must rise; a ValueError says that they did not."""
        self.skip(offset)
        self._unsettled[offset] = record

    def skip(self, offset: int) -> None:
        """A record was read that is settled with that; ValueError as in `track`."""
        if self._next is not None and offset < self._next:
            raise ValueError(f"offset {offset} was read after {self._next - 1}")
        self._next = offset + 1

    def reach(self, end: int) -> None:
        """Everything below `end` was read: what wasn't tracked of it holds no records."""
        if self._next is None or end > self._next:
            self._next = end

    def settle(self, offset: int) -> None:
        """A tracked record is decided for good; KeyError: not tracked, or settled twice."""
        del self._unsettled[offset]

    @property
    def unsettled(self) -> Mapping[int, T]:
        """Records that are tracked and not settled, in offset order."""
        return self._unsettled

    @property
    def position(self) -> int | None:
        """The offset to commit: the lowest unsettled one, else the next to read; None: nothing was
        read."""
        return next(iter(self._unsettled), self._next)

    def settled_ahead(self) -> list[OffsetRange]:
        """Ranges above the position whose records are settled, or aren't there, in order."""
        if self._next is None:
            return self._ahead[::-1]
        ranges: list[OffsetRange] = []
        end: int | None = None
        for offset in self._unsettled:
            if end is not None and end < offset:
                ranges.append((end, offset))
            end = offset + 1
        if end is not None and end < self._next:
            ranges.append((end, self._next))
        for first, behind in reversed(self._ahead):
            if behind > self._next:
                ranges.append((max(first, self._next), behind))
        return ranges
