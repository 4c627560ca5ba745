"""`ports.shared_log` on a `MemoryLog`, for tests that need no Kafka."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping, Sequence

from support.memory.log import MemoryLog, MemoryReader
from support.memory.positions import MemoryPositions

from knafka.core.progress import MAX_METADATA
from knafka.ports.log import Assignment, Commits, OffsetAndMetadata, Positions, Record
from knafka.ports.shared_log import BEGINNING, Commit, EpochStart, GroupHasMembers, Position


class MemoryOffsets:
    """`GroupOffsets`; one commit or question at a time takes a turn of the loop."""

    def __init__(self, memory: MemoryLog) -> None:
        self._memory = memory
        self.commits = 0
        """How many were asked for."""

    async def committed(
        self, group: str, topic: str, partitions: Collection[int]
    ) -> Mapping[int, Commit]:
        await asyncio.sleep(0)
        self._refuse_members(group)
        found = self._memory.group(group).committed
        return {
            number: Commit(*found[topic, number])
            for number in partitions
            if (topic, number) in found
        }

    def _refuse_members(self, group: str) -> None:
        if self._memory.group(group).members:
            raise GroupHasMembers(f"the group {group} has members")

    async def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> None:
        self.commits += 1
        await asyncio.sleep(0)
        self._refuse_members(group)
        for number, each in commits.items():
            if len(each.metadata) <= MAX_METADATA:
                self._memory.group(group).committed[topic, number] = each.offset_and_metadata

    async def present_topic(self, topic: str) -> str:
        return ""

    def known_topic(self, topic: str, since: float = -math.inf) -> str:
        return ""

    async def close(self) -> None: ...


class _Told:
    """Tells an `Assignment` of partitions without commits, as a member that doesn't read does."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self.on_lost = assignment.on_lost

    def on_assigned(self, partitions: Mapping[int, OffsetAndMetadata | None]) -> None:
        self._assignment.on_assigned(dict.fromkeys(partitions))

    async def on_revoked(self, partitions: Sequence[int]) -> Commits:
        await self._assignment.on_revoked(partitions)
        return {}


class MemoryMember(MemoryReader):
    """`GroupMember`."""

    def __init__(self, memory: MemoryLog, group: str, topic: str, assignment: Assignment) -> None:
        super().__init__(memory, group, topic, _Told(assignment))

    def _take(self, limit: int) -> list[Record]:
        return []

    async def serve(self, timeout: float) -> None:
        await self.read(1, timeout)

    async def confirm(self, positions: Positions) -> bool:
        await asyncio.sleep(0)
        return self._joined and positions.keys() <= self._next.keys()


class MemoryPositionedReader(MemoryPositions):
    """`PositionedReader`."""

    def __init__(self, memory: MemoryLog, topic: str) -> None:
        super().__init__(memory, topic)
        self.new_epochs: Mapping[int, Sequence[EpochStart]] = {}
        self.restarted: Mapping[int, Position] = {}

    def begin(self, positions: Mapping[int, Position]) -> None:
        for number, each in positions.items():
            self._next[number] = max(0, each.offset)
            self._told.pop(number, None)

    def drop(self, partitions: Collection[int]) -> None:
        for number in partitions:
            self._next.pop(number, None)
            self._paused.discard(number)

    async def read(self, limit: int, timeout: float) -> Sequence[Record]:
        self.restarted = {}
        return await super().read(limit, timeout)

    def _on_start_anew(self, number: int) -> None:
        self.restarted = {**self.restarted, number: Position(BEGINNING)}

    async def close(self, timeout: float) -> None:
        self._next.clear()
