"""A shared topic: one process's partitions of one topic, read for many groups.

    member: which partitions are this process's
    fetchers: one, while all groups are near each other; more for those that lag far behind
    readers: one for each group, which drains as if it were alone

A commit is made as nobody's member, so what fences this process off is its own membership: Kafka
confirms it before each round of commits, and has others wait while partitions are given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Final

from knafka.core.errors import LogError
from knafka.dispatcher.shared.buffer import Cursor
from knafka.dispatcher.shared.fetcher import Fetcher, Limits
from knafka.dispatcher.shared.reader import GroupReader
from knafka.ports.log import Assignment, Commits, OffsetAndMetadata
from knafka.ports.shared_log import Commit, GroupMember, GroupOffsets, Position, PositionedReader

log = logging.getLogger(__name__)

SERVE: Final = 0.1
"""Seconds that a round of commits takes: as much later a commit comes than its group wanted it."""
COMMITS_TOGETHER: Final = 4
"""Of a round, those that begin at once; the others follow, spread over its time. Those of 200
groups together would hold up all neighbours' events for tens of milliseconds."""
CONFIRMED_FOR: Final = 2.0
"""Seconds for which a confirmation counts: less than any session. What stood still for longer asks
again before it commits."""
GIVE_TOGETHER: Final = 2.0
"""Seconds to wait for what all groups have committed, so that those near each other begin in one
buffer; who answers later begins later."""
CLOSE_TIMEOUT: Final = 5.0


class SharedTopic:
    """Is a member as long as it has readers. It is the `Assignment` of its member, and the
    `Placement` of its fetchers."""

    def __init__(
        self,
        name: str,
        open_member: Callable[[Assignment], GroupMember],
        open_source: Callable[[], PositionedReader],
        offsets: GroupOffsets,
        limits: Limits | None = None,
    ) -> None:
        self.name = name
        self.fetchers: list[Fetcher] = []
        self._open_member = open_member
        self._open_source = open_source
        self._offsets = offsets
        self._limits = limits or Limits()
        self._readers: list[GroupReader] = []
        self._owned: set[int] = set()
        self._serving: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def reader(self, group: str, assignment: Assignment) -> GroupReader:
        """Another group that reads here."""
        reader = GroupReader(self, group, assignment, self._offsets)
        self._readers.append(reader)
        if self._owned:
            self._begin(self._give([reader], sorted(self._owned)))
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        return reader

    @property
    def readers(self) -> int:
        """How many groups read here."""
        return len(self._readers)

    def detach(self, reader: GroupReader) -> None:
        if reader in self._readers:
            self._readers.remove(reader)

    async def close(self) -> None:
        """Wait until it has left its group; all readers are closed already."""
        if self._serving is not None:
            await asyncio.wait({self._serving})
        while self._tasks:
            await asyncio.wait(self._tasks)

    # The membership

    async def _serve(self) -> None:
        try:
            while self._readers:
                await self._be_member()
        finally:
            self._serving = None

    async def _be_member(self) -> None:
        member: GroupMember | None = None
        try:
            member = self._open_member(self)
            while self._readers:
                await self._commit(member)
        except LogError as error:
            for reader in list(self._readers):
                reader.fail(error)
                self.detach(reader)
        finally:
            if member is not None:
                await member.close(CLOSE_TIMEOUT)
            self._owned.clear()

    async def _commit(self, member: GroupMember) -> None:
        """A round: what waits of all groups, as long as Kafka knows us still."""
        loop = asyncio.get_running_loop()
        waiting = [each for each in self._readers if each.to_commit]
        asked_at = loop.time()
        if waiting and not await member.confirm(_positions(waiting)):
            waiting = []
        starts = range(0, len(waiting) or 1, COMMITS_TOGETHER)
        for start in starts:
            if loop.time() - asked_at < CONFIRMED_FOR:
                for reader in waiting[start : start + COMMITS_TOGETHER]:
                    if reader.to_commit:
                        reader.begin_commit()
            await member.serve(SERVE / len(starts))

    def assigned(self, partitions: Mapping[int, OffsetAndMetadata | None]) -> None:
        self._owned.update(partitions)
        self._begin(self._give(list(self._readers), sorted(partitions)))

    async def revoked(self, partitions: Sequence[int]) -> Commits:
        self._owned.difference_update(partitions)
        given_up = (each.give_up(partitions) for each in self._readers)
        for error in await asyncio.gather(*given_up, return_exceptions=True):
            if error is not None:
                log.error("partitions were not given up in order", exc_info=error)
        return {}

    def lost(self, partitions: Sequence[int]) -> None:
        self._owned.difference_update(partitions)
        for reader in self._readers:
            reader.lose(partitions)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _give(self, readers: Sequence[GroupReader], numbers: Sequence[int]) -> None:
        """Have them begin where their groups are, those near each other together."""
        asked = {asyncio.create_task(each.ask(numbers)): each for each in readers}
        waiting = set(asked)
        while waiting:
            done, waiting = await asyncio.wait(
                waiting,
                timeout=GIVE_TOGETHER,
                return_when=asyncio.ALL_COMPLETED,
            )
            begun: list[tuple[int, int, GroupReader, Commit | None]] = []
            for task in done:
                reader = asked[task]
                if reader not in self._readers or reader.is_closing:
                    task.exception()
                    continue
                if (error := task.exception()) is not None:
                    if not isinstance(error, LogError):
                        error = LogError(f"{type(error).__name__}: {error}")
                    reader.fail(error)
                    continue
                found = task.result()
                mine = [each for each in numbers if each in self._owned - reader.cursors.keys()]
                committed = {number: found.get(number) for number in mine}
                if committed:
                    reader.assign(committed)
                for number, each in committed.items():
                    begun.append((number, -1 if each is None else each.offset, reader, each))
            for number, _, reader, each in sorted(begun, key=lambda some: some[:2]):
                reader.begin(number, each)

    # Where groups read

    def place(self, cursor: Cursor, position: Position) -> None:
        self._place(cursor, position, None)

    def _place(self, cursor: Cursor, position: Position, avoid: Fetcher | None) -> None:
        number, others = cursor.number, [each for each in self.fetchers if each is not avoid]
        offset = max(0, position.offset)
        for fetcher in others:
            buffer = fetcher.buffers.get(number)
            if buffer is not None and buffer.start <= offset <= buffer.end + self._limits.records:
                buffer.join(cursor)
                fetcher.moved.set()
                return
        for fetcher in others:
            if number not in fetcher.buffers:
                fetcher.add(number, position).join(cursor)
                return
        try:
            source = self._open_source()
        except LogError as error:
            cursor.owner.fail(error)
            return
        fetcher = Fetcher(source, self, self._limits)
        fetcher.add(number, position).join(cursor)
        self.fetchers.append(fetcher)
        self._begin(fetcher.run())

    def leave(self, cursor: Cursor) -> None:
        buffer = cursor.buffer
        if buffer is None:
            return
        buffer.leave(cursor)
        for fetcher in self.fetchers:
            if fetcher.buffers.get(cursor.number) is buffer:
                if not buffer.cursors:
                    fetcher.drop(cursor.number)
                fetcher.moved.set()

    def taken(self, cursor: Cursor) -> None:
        for fetcher in self.fetchers:
            if fetcher.buffers.get(cursor.number) is cursor.buffer:
                fetcher.moved.set()

    def evict(self, cursor: Cursor, fetcher: Fetcher) -> None:
        """A paused one is placed when it is resumed."""
        assert cursor.buffer is not None
        cursor.buffer.leave(cursor)
        log.info("%s lags behind in partition %d", cursor.owner.group, cursor.number)
        if not cursor.paused:
            self._place(cursor, cursor.owner.position_of(cursor), fetcher)

    def merge(self, fetcher: Fetcher) -> None:
        mine = self.fetchers.index(fetcher)
        for number, buffer in list(fetcher.buffers.items()):
            for place, other in enumerate(self.fetchers):
                ahead = other.buffers.get(number)
                if other is fetcher or ahead is None:
                    continue
                if (ahead.end, -place) > (buffer.end, -mine):
                    covered = [
                        each for each in buffer.cursors if ahead.covers(buffer.offset_for(each))
                    ]
                    for cursor in covered:
                        buffer.leave(cursor)
                        ahead.join(cursor)
                        other.moved.set()
        fetcher.drop_unused()

    def fail(self, fetcher: Fetcher, error: LogError) -> None:
        cursors = [each for buffer in fetcher.buffers.values() for each in buffer.cursors]
        for owner in {each.owner for each in cursors}:
            owner.fail(error)

    def ended(self, fetcher: Fetcher) -> None:
        if fetcher in self.fetchers:
            self.fetchers.remove(fetcher)


def _positions(readers: Iterable[GroupReader]) -> dict[int, int]:
    """By partition, the highest one that waits to be committed."""
    positions: dict[int, int] = {}
    for reader in readers:
        for number, each in reader.to_commit.items():
            positions[number] = max(each.offset, positions.get(number, 0))
    return positions
