"""One group's reader in a shared topic: a `LogReader` fed from buffers.

Each record is given once and in order, whichever buffer it comes from: a cursor knows the offset
that is next. What is to be committed waits here until the topic commits it. A drain that is
`Selective` is given only what is for it; and while it waits in `read`, without being woken for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

from knafka.core.errors import LogError
from knafka.core.progress import MAX_METADATA
from knafka.dispatcher.selecting import Selective
from knafka.dispatcher.shared.buffer import GIVEN_TOGETHER, Cursor
from knafka.ports.log import Assignment, Commits, OffsetAndMetadata, Positions, Record
from knafka.ports.shared_log import (
    BEGINNING,
    NO_EPOCH,
    Commit,
    GroupHasMembers,
    GroupOffsets,
    Position,
)

log = logging.getLogger(__name__)

TAKE_LIMIT: Final = 50
"""Records given at once: all neighbours wait while they are filtered and encoded. Also how many a
drain is given while it waits in one read: then it looks again whether it has room."""
QUIET_COMMITS: Final = 200
"""Commits a second of all groups of a topic for which nothing comes: each takes 0.2 ms of CPU, and
all that it saves is to look at events again that aren't for them."""
COMMIT_INTERVAL: Final = 1.0
"""Seconds between two of one group at least."""


class Places(Protocol):
    """The topic, as its readers know it."""

    name: str

    @property
    def readers(self) -> int:
        """How many groups read here."""
        ...

    def place(self, cursor: Cursor, position: Position) -> None:
        """Have it read from there, in some buffer."""
        ...

    def leave(self, cursor: Cursor) -> None: ...

    def taken(self, cursor: Cursor) -> None:
        """It has taken records."""
        ...

    def detach(self, reader: GroupReader) -> None:
        """The reader is closed."""
        ...


class GroupReader:
    """`LogReader`; made by `SharedTopic.reader`."""

    pause_is_free: Final = True

    def __init__(
        self, topic: Places, group: str, assignment: Assignment, offsets: GroupOffsets
    ) -> None:
        self.group = group
        self.ends: Positions = {}
        self.cursors: dict[int, Cursor] = {}
        """By partition that is ours."""
        self.committed: dict[int, int] = {}
        """By partition that is ours, or was until it closed: what Kafka has confirmed last."""
        self.is_closing = False
        self.drain: Selective | None = assignment if isinstance(assignment, Selective) else None
        self._topic = topic
        self._assignment = assignment
        self._offsets = offsets
        self._news: dict[int, None] = {}
        """Partitions with records that weren't taken, or an end that was not given."""
        self._waiter: asyncio.Future[None] | None = None
        self._given = 0
        """Records that the drain got since its last `read` began."""
        self._crash: Exception | None = None
        """What the drain has raised for some of them, a bug of ours: its next read raises it."""
        self._interrupted = False
        self._failure: LogError | None = None
        self._epochs: dict[int, int] = {}
        """Of what was committed when a partition was assigned."""
        self._to_commit: dict[int, OffsetAndMetadata] = {}
        self._committing: asyncio.Task[None] | None = None
        self._restarted: set[int] = set()
        """Partitions that are others since the last commit began: it is not for them."""
        self._last_commits: asyncio.Future[Commits] | None = None
        """Known when it closes."""
        self._committed = asyncio.Event()
        """A commit is over."""

    # Reading

    async def read(self, limit: int, timeout: float) -> Sequence[Record]:
        loop, limit = asyncio.get_running_loop(), min(limit, TAKE_LIMIT)
        self.ends, self._given = {}, 0
        await asyncio.sleep(0)  # a backlog is taken bit by bit: neighbours have turns between
        records = self._take(limit)
        if records or self._is_over() or timeout <= 0:
            return self._or_failure(records)
        # One timer, not the clock again: after a timer it may still be a hair before the time.
        over = loop.create_future()
        timer = loop.call_later(timeout, self._end_wait, over)
        try:
            while not (records or over.done() or self._is_over()):
                self._waiter = loop.create_future()
                await self._waiter
                records = self._take(limit)
        finally:
            timer.cancel()
            self._waiter = None
        return self._or_failure(records)

    def _is_over(self) -> bool:
        """Whether a read has to return, also without records."""
        return (
            self._failure is not None
            or self.is_closing
            or self._interrupted
            or self._given >= TAKE_LIMIT
            or self._crash is not None
        )

    def _or_failure(self, records: list[Record]) -> list[Record]:
        self._interrupted = False
        if self._crash is not None:
            raise self._crash
        if not records and self._failure is not None:
            raise self._failure
        return records

    def _end_wait(self, over: asyncio.Future[None]) -> None:
        over.set_result(None)
        self._wake()

    def _take(self, limit: int) -> list[Record]:
        records: list[Record] = []
        for number in list(self._news):
            cursor = self.cursors.get(number)
            if cursor is None or cursor.paused or cursor.buffer is None:
                del self._news[number]
                continue
            buffer = cursor.buffer
            while len(records) < limit and cursor.next < buffer.behind:
                records += buffer.take(cursor, limit - len(records))
            if cursor.next < buffer.behind:
                break
            del self._news[number]
            if (end := buffer.end_for(cursor)) is not None:
                self.ends = {**self.ends, number: end}
            if not cursor.is_selective:
                buffer.select(cursor)
            self._topic.taken(cursor)
        return records

    def notify(self, number: int, is_record: bool, room: int = GIVEN_TOGETHER) -> int:
        self._news[number] = None
        if not is_record:
            return 0
        if room > 0 and self.drain is not None and self._waiter and not self._waiter.done():
            return self._give(self.drain, room)
        self._wake()
        return 0

    def _give(self, drain: Selective, room: int) -> int:
        """Give what is new to a drain that waits for it; to wake it costs more than to take one."""
        records = self._take(min(room, TAKE_LIMIT - self._given))
        if not records:
            return 0
        self._given += len(records)
        try:
            drain.take(records)
        except Exception as error:  # it is not to end whoever reads for all
            self._crash = error
        if self._crash is not None or self._given >= TAKE_LIMIT or self._news:
            self._wake()
        return len(records)

    @property
    def commit_interval(self) -> float:
        return max(COMMIT_INTERVAL, self._topic.readers / QUIET_COMMITS)

    def catch_up(self) -> None:
        for cursor in self.cursors.values():
            if cursor.buffer is not None:
                cursor.buffer.catch_up(cursor)

    def interrupt(self) -> None:
        self._interrupted = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def pause(self, partitions: Sequence[int]) -> None:
        for number in partitions:
            if cursor := self.cursors.get(number):
                cursor.paused = True

    def resume(self, partitions: Sequence[int]) -> None:
        for number in partitions:
            if (cursor := self.cursors.get(number)) is not None and cursor.paused:
                cursor.paused = False
                if cursor.buffer is None:  # it was evicted
                    self._topic.place(cursor, self.position_of(cursor))
                self.notify(number, True)

    # Partitions

    async def ask(self, numbers: Collection[int]) -> Mapping[int, Commit]:
        """What the group has committed. Raises `LogError`."""
        return await self._offsets.committed(self.group, self._topic.name, numbers)

    def assign(self, committed: Mapping[int, Commit | None]) -> None:
        """They are ours; `begin` follows for each."""
        for number, found in committed.items():
            self._epochs[number] = NO_EPOCH if found is None else found.epoch
            offset = 0 if found is None else found.offset
            self.cursors[number] = Cursor(number, offset, self)
            if found is not None:
                self.committed[number] = found.offset
        self._assignment.assigned(
            {number: found and found.value for number, found in committed.items()}
        )

    def begin(self, number: int, committed: Commit | None) -> None:
        if cursor := self.cursors.get(number):
            offset = BEGINNING if committed is None else committed.offset
            self._topic.place(cursor, Position(offset, self._epochs[number]))

    def position_of(self, cursor: Cursor) -> Position:
        return Position(cursor.offset, self._epochs.get(cursor.number, NO_EPOCH))

    def restart(self, cursor: Cursor) -> None:
        """Its log has no such offset: it is another partition, read from its start."""
        number = cursor.number
        cursor.offset, cursor.reported, cursor.paused = 0, -1, False
        self._to_commit.pop(number, None)
        self._epochs.pop(number, None)
        self.committed.pop(number, None)
        self._restarted.add(number)
        self._assignment.lost([number])
        self._assignment.assigned({number: None})

    async def give_up(self, numbers: Collection[int]) -> None:
        """They go to another process: finish with them, and commit."""
        mine = sorted(self.cursors.keys() & set(numbers))
        if not mine:
            return
        epochs = self._epochs_of(mine)
        for number in mine:
            self._topic.leave(self.cursors.pop(number))
        if self._last_commits is None:
            commits = await self._assignment.revoked(mine)
        else:
            commits = await asyncio.shield(self._last_commits)
        waiting = {each: self._to_commit.pop(each) for each in mine if each in self._to_commit}
        await self._wait_for_commit()
        for number in mine:
            self.committed.pop(number, None)
        last = {number: each for number, each in {**waiting, **commits}.items() if number in mine}
        if last:
            try:
                await self._commit(last, epochs)
            except LogError as error:
                # The next one goes back to its last commit: duplicates, no loss.
                log.warning("the last commit of %s failed: %s", self.group, error)
        self._committed.set()

    def lose(self, numbers: Collection[int]) -> None:
        """They belong to somebody else: nothing may be committed."""
        mine = sorted(self.cursors.keys() & set(numbers))
        for number in mine:
            self._topic.leave(self.cursors.pop(number))
            self._to_commit.pop(number, None)
            self.committed.pop(number, None)
        if mine and not self.is_closing:
            self._assignment.lost(mine)

    def fail(self, error: LogError) -> None:
        """Every read raises it; what was delivered since the last commit will be again."""
        self._failure = error
        self.lose(list(self.cursors))
        self._committed.set()
        self._wake()

    # Commits

    def commit(self, commits: Commits) -> None:
        for number, each in commits.items():
            # Kafka refuses longer ones with their offsets; those before them would be lost here.
            if number in self.cursors and len(each.metadata) <= MAX_METADATA:
                self._to_commit[number] = each

    @property
    def to_commit(self) -> Mapping[int, OffsetAndMetadata]:
        """What may be committed now: nothing, as long as a commit is under way."""
        return self._to_commit if self._committing is None else {}

    def begin_commit(self) -> None:
        """Commit what waits, without waiting for it."""
        commits, self._to_commit = self._to_commit, {}
        self._restarted.clear()
        self._committing = asyncio.create_task(self._commit_regularly(commits))

    async def _commit_regularly(self, commits: dict[int, OffsetAndMetadata]) -> None:
        try:
            await self._commit(commits, self._epochs_of(commits))
        except GroupHasMembers as error:
            self.fail(error)
        except LogError as error:
            log.info("a commit of %s failed, and is made again: %s", self.group, error)
            same = self.cursors.keys() - self._restarted
            again = {number: each for number, each in commits.items() if number in same}
            self._to_commit = {**again, **self._to_commit}
        finally:
            self._committing = None
            self._committed.set()

    async def _commit(self, commits: Commits, epochs: Mapping[int, int]) -> None:
        whole = {
            number: Commit(each.offset, each.metadata, epochs[number])
            for number, each in commits.items()
        }
        # Until Kafka has answered, either may be so.
        for number in whole:
            self.committed.pop(number, None)
        await self._offsets.commit(self.group, self._topic.name, whole)
        for number in whole.keys() & self.cursors.keys() - self._restarted:
            self.committed[number] = whole[number].offset

    def _epochs_of(self, numbers: Collection[int]) -> dict[int, int]:
        """The leader epoch of the last record read; too low a one would be taken for a loss."""
        found: dict[int, int] = {}
        for number in numbers:
            cursor = self.cursors.get(number)
            known = self._epochs.get(number, NO_EPOCH)
            if cursor is not None and cursor.buffer is not None:
                known = self._epochs[number] = max(known, cursor.buffer.epoch)
            found[number] = known
        return found

    async def _wait_for_commit(self) -> None:
        while self._committing is not None:
            self._committed.clear()
            await self._committed.wait()

    # Closing

    async def close(self, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        self.is_closing = True
        self._wake()
        try:
            async with asyncio.timeout_at(deadline):
                if self.cursors:
                    for cursor in self.cursors.values():
                        self._topic.leave(cursor)
                    revoking = self._assignment.revoked(sorted(self.cursors))
                    self._last_commits = asyncio.ensure_future(revoking)
                    self.commit(await self._last_commits)
                while self._failure is None and (self._to_commit or self._committing is not None):
                    self._committed.clear()
                    await self._committed.wait()
        except TimeoutError:
            log.warning("the last commit of %s was not made within a bound", self.group)
        finally:
            self.cursors.clear()
            self._topic.detach(self)
            if self._committing is not None:
                with suppress(asyncio.CancelledError):
                    self._committing.cancel()
