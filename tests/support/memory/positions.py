"""Where a reader is in the partitions of one topic of a `MemoryLog`, and what it reads there.

Not here: which partitions it has (`log` for members of a group, `shared`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Protocol

from support.memory.records import MemoryRecord, readable

from knafka.ports.log import Positions, Record


class Topics(Protocol):
    """Topics in memory, by name, and how to wait for their next record; see `MemoryLog`."""

    topics: dict[str, list[list[MemoryRecord]]]
    grown: asyncio.Event

    def wake(self) -> None: ...


class MemoryPositions:
    """What readers have in common."""

    def __init__(self, memory: Topics, topic: str) -> None:
        self._memory = memory
        self._topic = topic
        self._next: dict[int, int] = {}
        self._told: dict[int, int] = {}
        self._paused: set[int] = set()
        self.ends: Positions = {}

    def pause(self, partitions: Collection[int]) -> None:
        self._paused.update(partitions)

    def resume(self, partitions: Collection[int]) -> None:
        self._paused.difference_update(partitions)

    async def read(self, limit: int, timeout: float) -> Sequence[Record]:
        try:
            async with asyncio.timeout(timeout):
                while not (records := self._take(limit)):
                    await self._memory.grown.wait()
        except TimeoutError:
            records = []
        self.ends = {
            number: position
            for number, position in self._next.items()
            if position == len(self._records(number))
            and position != self._told.get(number)
            and number not in self._paused
        }
        self._told.update(self.ends)
        return records

    def _take(self, limit: int) -> list[Record]:
        records: list[Record] = []
        self._start_anew()
        for number, position in self._next.items():
            if number in self._paused:
                continue
            some, self._next[number] = readable(self._records(number), position, limit)
            limit -= len(some)
            records += some
        return records

    def _start_anew(self) -> None:
        """What has no such offset any more is read from its start, as another partition."""
        for number, position in self._next.items():
            if self._topic in self._memory.topics and position > len(self._records(number)):
                self._next[number] = 0
                self._told.pop(number, None)
                self._paused.discard(number)
                self._on_start_anew(number)

    def _on_start_anew(self, number: int) -> None:
        """A partition is another one."""
        raise NotImplementedError

    def _records(self, number: int) -> list[MemoryRecord]:
        """Of a partition; none while its topic is deleted."""
        partitions = self._memory.topics.get(self._topic, [])
        return partitions[number] if number < len(partitions) else []
