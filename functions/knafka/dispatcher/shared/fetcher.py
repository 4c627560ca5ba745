"""A fetcher: one consumer that fills one buffer for each partition that it reads.

It hands what it has read to the groups that wait for it, some in each turn of the event loop, and
reads as soon as some group has taken nearly all records, so it keeps up with the fastest group.
A group that falls behind by a whole buffer is moved to another fetcher (`Placement`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from knafka.core.errors import LogError
from knafka.dispatcher.shared.buffer import Cursor, PartitionBuffer
from knafka.dispatcher.shared.record import SharedRecord
from knafka.ports.log import Record
from knafka.ports.shared_log import BEGINNING, Position, PositionedReader

log = logging.getLogger(__name__)

FETCHER_READ_LIMIT: Final = 100
"""Most records of one read. They are fewer than for a reader of a single group, as all groups wait
meanwhile."""
RECORDS_PER_TURN: Final = 50
"""Most records handed to all groups together in one turn of the event loop. In that turn they are
filtered and encoded; they are sent in the next one."""
FETCHER_READ_TIMEOUT: Final = 0.5
"""Most seconds that a read waits for a first record; a newly added partition may wait as long."""
FETCHER_CLOSE_TIMEOUT: Final = 5.0
"""Seconds to close the consumer."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How many records a fetcher holds; `records` is a limit for each partition."""

    ahead: int = 1000
    """Records that no group has taken yet, over all partitions: while there are as many, nothing is
    read."""
    records: int = 5000
    """Records by which the slowest group of a partition may lag behind the last one read."""
    size: int = 32 * 1024 * 1024
    """Approximate bytes of the records of all partitions; twice as many if no group takes the
    records of some partitions, as the others may have their share nevertheless."""
    spare: int = 1000
    """Records, over all partitions, that are kept although all groups have taken them: a group that
    lags a little can continue in them."""
    patience: float = 0.1
    """Seconds that a full buffer waits for its slowest groups before they are evicted."""
    pause_after: float = 1.0
    """Seconds after which partitions are paused if no group takes their records. A pause discards
    the records that librdkafka has prefetched."""


class Placement(Protocol):
    """Decides which fetcher a group reads from."""

    def evict(self, cursor: Cursor, fetcher: Fetcher) -> None:
        """Move a cursor that lags behind from this fetcher to another one."""
        ...

    def place(self, cursor: Cursor, position: Position) -> None:
        """Make a cursor read from this position, in an existing or a new buffer."""
        ...

    def restart_unplaced(self, number: int, replaced_from: Position) -> None:
        """Restart the cursors of the partition `number` that are in no buffer, as it has another
        log from `replaced_from` on."""
        ...

    def merge(self, fetcher: Fetcher) -> None:
        """Move the cursors of this fetcher to other fetchers that have read further and hold the
        records from the cursors' positions on."""
        ...

    def fail(self, fetcher: Fetcher, error: LogError) -> None:
        """Fail the readers of a fetcher that stopped with this error."""
        ...

    def forget_fetcher(self, fetcher: Fetcher) -> None:
        """Forget a fetcher whose `run` is about to end."""
        ...


class Fetcher:
    """Reads partitions for many groups; `run` lasts until it has no partitions left."""

    def __init__(self, source: PositionedReader, placement: Placement, limits: FetchLimits) -> None:
        """Begin without partitions. `source` is the consumer, which this fetcher closes;
        `placement` moves groups to other fetchers."""
        self.buffers: dict[int, PartitionBuffer] = {}
        """The buffer of each partition that is read, by number."""
        self.changed = asyncio.Event()
        """Set when a group has taken records, joined or left."""
        self._source = source
        self._placement = placement
        self._limits = limits
        self._added_starts: dict[int, Position] = {}
        """Partitions added since the last read, with the positions to start at; the next read has
        them."""
        self._dropped: set[int] = set()
        """Partitions dropped since the last read; the next read doesn't have them."""

    def add(self, number: int, position: Position) -> PartitionBuffer:
        """Add a partition, which the next read begins to read at this position; returns its
        buffer."""
        start = 0 if position.offset == BEGINNING else position.offset
        buffer = self.buffers[number] = PartitionBuffer(number, start, position.epoch)
        self._added_starts[number] = position
        self.changed.set()
        return buffer

    def drop(self, number: int) -> None:
        """Stop reading a partition from the next read on; its buffer must have no cursors."""
        buffer = self.buffers.pop(number)
        assert not buffer.cursors
        if self._added_starts.pop(number, None) is None:
            self._dropped.add(number)
        self.changed.set()

    def drop_unused(self) -> None:
        """Stop reading the partitions whose buffers have no cursors."""
        for number in [number for number, buffer in self.buffers.items() if not buffer.cursors]:
            self.drop(number)

    async def run(self) -> None:
        """Read until there are no partitions left, then close the consumer. Errors go to
        `Placement.fail`."""
        try:
            while self.buffers:
                await self._wait_for_demand()
                self._change_assignment()
                if self.buffers:
                    # A buffer that was created during the read gets no records of it.
                    reading = dict(self.buffers)
                    records = await self._source.read(FETCHER_READ_LIMIT, FETCHER_READ_TIMEOUT)
                    await self._hand_out(self._update_buffers(records, reading))
                    self._trim()
                    self._placement.merge(self)
        except LogError as error:
            self._placement.fail(self, error)
        finally:
            self._placement.forget_fetcher(self)
            await self._source.close(FETCHER_CLOSE_TIMEOUT)

    def _change_assignment(self) -> None:
        """Make the consumer read the added partitions, and no longer the dropped ones."""
        if self._dropped:
            self._source.drop(self._dropped)
            self._dropped = set()
        if self._added_starts:
            self._source.begin(self._added_starts)
            self._added_starts = {}

    def _update_buffers(
        self, records: Sequence[Record], reading: dict[int, PartitionBuffer]
    ) -> list[Cursor]:
        """Update the buffers by the result of a read. In this order: partitions whose log was
        replaced get new buffers, records are appended, ends are noted, and cursors that belong to
        another log are evicted. `reading` has the buffers that existed when the read began; newer
        ones get no records. Returns the cursors to hand records to."""
        for number, replaced_from in self._source.restarted.items():
            if (buffer := self._unchanged_buffer(number, reading)) is not None:
                reading[number] = self._restart(buffer, replaced_from)
        concerned: list[Cursor] = []
        by_partition: defaultdict[int, list[SharedRecord]] = defaultdict(list)
        for record in records:
            by_partition[record.partition()].append(SharedRecord(record))
        for number, partition_records in by_partition.items():
            if (buffer := self._unchanged_buffer(number, reading)) is not None:
                if starts := self._source.new_epochs.get(number):
                    buffer.epochs.add(starts)
                concerned += buffer.append(partition_records)
        for number, end in self._source.ends.items():
            if (buffer := self._unchanged_buffer(number, reading)) is not None:
                buffer.reach_end(end)
        for number in {*by_partition, *self._source.ends}:
            buffer = self._unchanged_buffer(number, reading)
            for cursor in buffer.find_contradicted() if buffer is not None else ():
                self._placement.evict(cursor, self)
        return concerned

    async def _hand_out(self, cursors: Sequence[Cursor]) -> None:
        """Hand new records to the groups that they are for, at most `RECORDS_PER_TURN` in one turn
        of the event loop. To wake the groups, so that they take the records themselves, would cost
        several times as much."""
        room = RECORDS_PER_TURN
        for cursor in cursors:
            waiting = cursor.waiting
            if room < min(waiting, RECORDS_PER_TURN):
                await asyncio.sleep(0)
                room = RECORDS_PER_TURN
                waiting = cursor.waiting
            if waiting:  # 0 if during the pause the group has taken its records or left
                room -= cursor.owner.hand_over(cursor)

    def _unchanged_buffer(
        self, number: int, reading: dict[int, PartitionBuffer]
    ) -> PartitionBuffer | None:
        """Return the partition's buffer if it is the one in `reading`, the buffers when the read
        began; None: it was replaced, dropped or added since."""
        buffer = self.buffers.get(number)
        return buffer if buffer is not None and reading.get(number) is buffer else None

    def _restart(self, buffer: PartitionBuffer, replaced_from: Position) -> PartitionBuffer:
        """Replace the buffer of a partition that has another log from `replaced_from` on; returns
        the new buffer, which begins there. Cursors above `replaced_from` are restarted (all
        cursors, if it is the partition's beginning). Cursors up to it keep their offsets, and are
        placed in a buffer anew. So are cursors that may belong to another log than this buffer
        (`PartitionBuffer.unproven`)."""
        number, start = buffer.number, max(0, replaced_from.offset)
        if start > 0:  # the source reads from the partition's beginning
            self._source.drop({number})
            self._added_starts[number] = replaced_from
        new_buffer = self.buffers[number] = PartitionBuffer(number, start, replaced_from.epoch)
        for cursor in list(buffer.cursors):
            epoch = cursor.owner.position_of(cursor).epoch
            is_unproven = cursor in buffer.unproven
            buffer.leave(cursor)
            if start > 0 and (is_unproven or cursor.offset <= start):
                self._placement.place(cursor, Position(cursor.offset, epoch))
                continue
            cursor.owner.restart(cursor, replaced_from)
            if cursor.offset >= start:
                new_buffer.join(cursor)
            else:
                self._placement.place(cursor, cursor.owner.position_of(cursor))
        self._placement.restart_unplaced(number, replaced_from)
        return new_buffer

    # Demand

    def _trim(self) -> None:
        """Forget the records that all groups have taken, except spare ones (`FetchLimits.spare`).
        While the buffers take more than half of their bytes, forget the spare ones, too."""
        limits = self._limits
        spare = limits.spare // max(1, len(self.buffers))
        if self.size > limits.size // 2:
            spare = 0
        for buffer in self.buffers.values():
            buffer.trim(spare)

    @property
    def size(self) -> int:
        """Approximate bytes of the records in all buffers."""
        return sum(buffer.size for buffer in self.buffers.values())

    async def _wait_for_demand(self) -> None:
        """Wait until more records may be read, or no partition is left. If buffers are full, evict
        slow groups meanwhile; if no group takes records, pause the partitions that are stuck."""
        limits = self._limits
        while self.buffers:
            self.changed.clear()
            self._resume()
            active = [buffer for buffer in self.buffers.values() if not buffer.paused]
            # There is demand while few records are left that no group has taken.
            has_demand = bool(active) and sum(buffer.untaken for buffer in active) < limits.ahead
            full_buffers = self._full_buffers(active) if has_demand else []
            if has_demand and not full_buffers:
                return
            if not active:
                await self.changed.wait()
            elif full_buffers:  # the fastest groups need records, for which there is no room
                await self._wait_for_change(limits.patience)
                self._trim()
                for buffer in self._full_buffers(active):
                    self._evict_slow(buffer)
                self._trim()
                full_buffers = self._full_buffers(active)
                if full_buffers and not await self._wait_for_change(limits.pause_after):
                    # Without any group that takes records, no other partition would be read.
                    if len(active) > 1:
                        self._pause([buffer for buffer in full_buffers if buffer.untaken])
            elif not await self._wait_for_change(limits.pause_after):
                max_untaken = self._max_untaken_per_partition(len(active))
                self._pause([buffer for buffer in active if buffer.untaken >= max_untaken])

    def _full_buffers(self, active: Sequence[PartitionBuffer]) -> list[PartitionBuffer]:
        """Return which of the buffers `active` may get no more records until their slowest groups
        have taken some. These are the buffers that hold as many records as allowed. If there is
        none, but they hold too many bytes together, it is the largest one. All buffers may hold
        `FetchLimits.size`; the active ones their share of it at least, as no group may ever take
        the records of paused ones."""
        limits = self._limits
        full_buffers = [buffer for buffer in active if buffer.is_ahead_by(limits.records)]
        active_size = sum(buffer.size for buffer in active)
        paused_size = self.size - active_size
        room = max(limits.size - paused_size, limits.size // max(1, len(self.buffers)))
        if not full_buffers and active and active_size >= room:
            full_buffers = [max(active, key=lambda buffer: buffer.size)]
        return full_buffers

    def _evict_slow(self, buffer: PartitionBuffer) -> None:
        """Evict the groups that lag by more than half of the buffer's records, the slowest first:
        it may get a new buffer, which the next ones can join. If all groups lag so, evict none.
        In either case forget, in all buffers, the records that all remaining groups have taken."""
        slow_cursors = [
            cursor for cursor in buffer.cursors if cursor.lag > len(buffer.records) // 2
        ]
        if len(slow_cursors) < len(buffer.cursors):
            for cursor in sorted(slow_cursors, key=buffer.next_offset):
                self._placement.evict(cursor, self)
        self._trim()

    async def _wait_for_change(self, timeout: float) -> bool:
        """Wait until a group has taken records, joined or left (`changed`), at most `timeout`
        seconds; returns whether one has."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.changed.wait()
        return self.changed.is_set()

    def _pause(self, stuck_buffers: Sequence[PartitionBuffer]) -> None:
        """Pause the partitions of these buffers, whose records no group takes, so that the other
        partitions are read."""
        for buffer in stuck_buffers:
            buffer.paused = True
        # The consumer doesn't know the partitions in `_added_starts` yet.
        stuck_partitions = {buffer.number for buffer in stuck_buffers} - self._added_starts.keys()
        if stuck_partitions:
            self._source.pause(stuck_partitions)

    def _max_untaken_per_partition(self, partitions: int) -> int:
        """Return how many records that no group has taken each partition may hold, if there are
        `partitions` partitions; at least 1."""
        return max(1, self._limits.ahead // max(1, partitions))

    def _resume(self) -> None:
        """Resume the paused partitions whose groups have taken enough records: all of them, while
        the buffers take more than half of their bytes."""
        max_untaken = self._max_untaken_per_partition(len(self.buffers))
        if self.size > self._limits.size // 2:
            max_untaken = 1
        resumed_buffers = [
            buffer
            for buffer in self.buffers.values()
            if buffer.paused and buffer.untaken < max_untaken
        ]
        for buffer in resumed_buffers:
            buffer.paused = False
        if resumed_buffers:
            self._source.resume({buffer.number for buffer in resumed_buffers})
