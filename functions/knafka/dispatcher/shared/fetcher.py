"""A fetcher: one consumer that fills buffers, one for each partition that it reads.

It reads while somebody has taken nearly all there is, so it goes at the pace of the fastest group
in it; a group that falls behind by a whole buffer leaves it and reads elsewhere (`Placement`).
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

READ_LIMIT: Final = 100
"""Records taken at once: fewer than in a drain of its own, since all neighbours wait meanwhile."""
READ_TIMEOUT: Final = 0.5
"""Seconds a read waits for a first record; also how soon another partition is read."""
CLOSE_TIMEOUT: Final = 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a fetcher holds. `records` are those of one partition."""

    ahead: int = 1000
    """Records that no group has taken: while there are more, none are read."""
    records: int = 5000
    """Records that the slowest group of a partition may be behind the last one read."""
    size: int = 32 * 1024 * 1024
    """Bytes, about, over all partitions."""
    spare: int = 1000
    """Records that all groups have taken, over all partitions: one that reads by itself finds its
    way back among them."""
    patience: float = 0.1
    """Seconds that a full buffer waits for its slowest groups."""
    pause_after: float = 1.0
    """Seconds without a move after which partitions that nobody takes are paused, which throws away
    what librdkafka prefetched."""


class Placement(Protocol):
    """Says where groups read."""

    def evict(self, cursor: Cursor, fetcher: Fetcher) -> None:
        """Have it read elsewhere."""
        ...

    def merge(self, fetcher: Fetcher) -> None:
        """Have those go on elsewhere for whom another fetcher has read everything already."""
        ...

    def fail(self, fetcher: Fetcher, error: LogError) -> None:
        """It can't go on."""
        ...

    def ended(self, fetcher: Fetcher) -> None: ...


class Fetcher:
    """Runs from its first partition until it has none; `run` is its whole life."""

    def __init__(self, source: PositionedReader, placement: Placement, limits: Limits) -> None:
        self.buffers: dict[int, PartitionBuffer] = {}
        self.moved = asyncio.Event()
        """A group has taken records, or has come or gone."""
        self._source = source
        self._placement = placement
        self._limits = limits
        self._beginning: dict[int, Position] = {}
        self._dropping: set[int] = set()

    def add(self, number: int, position: Position) -> PartitionBuffer:
        """Read this partition too, from here."""
        start = 0 if position.offset == BEGINNING else position.offset
        buffer = self.buffers[number] = PartitionBuffer(number, start)
        buffer.epoch = position.epoch
        self._beginning[number] = position
        self.moved.set()
        return buffer

    def drop(self, number: int) -> None:
        """Read this partition no more; nobody is in it."""
        buffer = self.buffers.pop(number)
        assert not buffer.cursors
        if self._beginning.pop(number, None) is None:
            self._dropping.add(number)
        self.moved.set()

    def drop_unused(self) -> None:
        for number in [each for each, buffer in self.buffers.items() if not buffer.cursors]:
            self.drop(number)

    async def run(self) -> None:
        try:
            while self.buffers:
                await self._wait_for_demand()
                self._change_assignment()
                if self.buffers:
                    # A buffer that is new when the read is over gets nothing of it.
                    reading = dict(self.buffers)
                    records = await self._source.read(READ_LIMIT, READ_TIMEOUT)
                    self._store(records, reading)
                    self._placement.merge(self)
        except LogError as error:
            self._placement.fail(self, error)
        finally:
            self._placement.ended(self)
            await self._source.close(CLOSE_TIMEOUT)

    def _change_assignment(self) -> None:
        if self._dropping:
            self._source.drop(self._dropping)
            self._dropping = set()
        if self._beginning:
            self._source.begin(self._beginning)
            self._beginning = {}

    def _store(self, records: Sequence[Record], reading: dict[int, PartitionBuffer]) -> None:
        for number in self._source.restarted:
            if (buffer := self._same(number, reading)) is not None:
                reading[number] = self._restart(buffer)
        by_partition: defaultdict[int, list[SharedRecord]] = defaultdict(list)
        for record in records:
            by_partition[record.partition()].append(SharedRecord(record))
        for number, some in by_partition.items():
            if (buffer := self._same(number, reading)) is not None:
                buffer.epoch = self._source.epochs.get(number, buffer.epoch)
                buffer.append(some)
        for number, end in self._source.ends.items():
            if (buffer := self._same(number, reading)) is not None:
                buffer.reach(end)
        self._trim()

    def _same(self, number: int, reading: dict[int, PartitionBuffer]) -> PartitionBuffer | None:
        buffer = self.buffers.get(number)
        return buffer if buffer is not None and reading.get(number) is buffer else None

    def _restart(self, buffer: PartitionBuffer) -> PartitionBuffer:
        anew = self.buffers[buffer.number] = PartitionBuffer(buffer.number, 0)
        for cursor in list(buffer.cursors):
            buffer.leave(cursor)
            cursor.owner.restart(cursor)
            anew.join(cursor)
        return anew

    # How much is read

    def _trim(self) -> None:
        limits = self._limits
        spare = limits.spare // max(1, len(self.buffers))
        if self.size > limits.size // 2:
            spare = 0
        for buffer in self.buffers.values():
            buffer.trim(spare)

    @property
    def size(self) -> int:
        return sum(each.size for each in self.buffers.values())

    async def _wait_for_demand(self) -> None:
        """Until more may be read."""
        limits = self._limits
        while self.buffers:
            self.moved.clear()
            self._resume()
            active = [each for each in self.buffers.values() if not each.paused]
            wanted = bool(active) and sum(each.ahead for each in active) < limits.ahead
            full = self._full(active) if wanted else []
            if wanted and not full:
                return
            if not active:
                await self.moved.wait()
            elif full:
                await self._has_moved(limits.patience)
                self._trim()
                for buffer in self._full(active):
                    self._evict_slow(buffer)
                if not self._room_for(active):
                    await self._has_moved(limits.pause_after)
            elif not await self._has_moved(limits.pause_after):
                self._pause(active)

    def _full(self, active: Sequence[PartitionBuffer]) -> list[PartitionBuffer]:
        """Those that may take no more as long as their slowest group is in them."""
        limits = self._limits
        full = [each for each in active if each.held >= limits.records]
        if not full and self.size >= limits.size:
            full = [max(active, key=lambda each: each.size)]
        return full

    def _room_for(self, active: Sequence[PartitionBuffer]) -> bool:
        self._trim()
        return not self._full(active)

    def _evict_slow(self, buffer: PartitionBuffer) -> None:
        """Those behind by more than half of the buffer, the slowest first: the others can join it
        where it goes on."""
        slow = [each for each in buffer.cursors if each.behind > len(buffer.records) // 2]
        if len(slow) < len(buffer.cursors):
            for cursor in sorted(slow, key=buffer.offset_for):
                self._placement.evict(cursor, self)
        self._trim()

    async def _has_moved(self, timeout: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.moved.wait()
        return self.moved.is_set()

    def _pause(self, active: Sequence[PartitionBuffer]) -> None:
        """Those that nobody takes, so that the others are read."""
        share = self._limits.ahead // max(1, len(active))
        stuck = [each for each in active if each.ahead >= max(1, share)]
        for buffer in stuck:
            buffer.paused = True
        begun = {each.number for each in stuck} - self._beginning.keys()
        if begun:
            self._source.pause(begun)

    def _resume(self) -> None:
        share = self._limits.ahead // max(1, len(self.buffers))
        moved = [each for each in self.buffers.values() if each.paused and each.ahead < share]
        for buffer in moved:
            buffer.paused = False
        if moved:
            self._source.resume({each.number for each in moved})
