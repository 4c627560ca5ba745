"""Offsets: what may be committed, given what has been settled.

One `Ledger` per assigned partition. A record is *tracked* when it is read and *settled* when it is
delivered, filtered out or durably buried, in any order; what may be committed is the position
below which everything tracked is settled. Gaps in the offsets (compaction, transactions) cost
nothing, since only what was read is tracked; one at the partition's end is passed when that end is
*reached*.

Refused here: talking to Kafka, and forgetting: a record that was never settled holds the position
for as long as the partition is ours. That is the promise of at-least-once (BRK-12, BRK-15).
"""

from __future__ import annotations

from collections import deque


class Ledger:
    """The unsettled records of one partition, in offset order."""

    __slots__ = ("_committed", "_next", "_order", "_unsettled")

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._unsettled: set[int] = set()
        self._next: int | None = None
        self._committed: int | None = None

    def track(self, offset: int) -> None:
        """A record was read. Offsets must rise; a ValueError says that they did not."""
        if self._next is not None and offset < self._next:
            raise ValueError(f"offset {offset} was read after {self._next - 1}")
        self._order.append(offset)
        self._unsettled.add(offset)
        self._next = offset + 1

    def reach(self, end: int) -> None:
        """Everything below `end` was read: what wasn't tracked of it holds no records."""
        if self._next is None or end > self._next:
            self._next = end

    def settle(self, offset: int) -> None:
        """A tracked record is decided for good; KeyError: not tracked, or settled twice."""
        unsettled, order = self._unsettled, self._order
        unsettled.remove(offset)
        while order and order[0] not in unsettled:
            order.popleft()

    @property
    def unsettled(self) -> int:
        """How many records are tracked and not settled."""
        return len(self._unsettled)

    @property
    def position(self) -> int | None:
        """The offset to commit: the lowest unsettled, else the next to read; None: nothing read."""
        return self._order[0] if self._order else self._next

    def uncommitted(self) -> int | None:
        """The position, if it moved since the last `committed`; else None."""
        position = self.position
        return None if position == self._committed else position

    def committed(self, position: int) -> None:
        """Kafka has taken this position."""
        self._committed = position
