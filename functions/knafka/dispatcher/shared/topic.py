"""A shared topic: one process's partitions of one topic, read for many groups.

    This process is a member of one consumer group, which assigns its partitions. One fetcher reads
    them while all groups are near each other; groups that lag far behind get more fetchers. Each
    group has a reader, and its drain works as if it were alone.

A group's offsets are committed without a member in that group, so only this process's own
membership keeps other processes out: Kafka confirms it before each round of commits, and makes
other members wait while partitions are released. A commit's mark, the start of Kafka's id of the
topic, shows whether the topic was created anew since.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeAlias, TypeVar

from knafka.core.commit_metadata import is_of_another_topic
from knafka.core.errors import LogError
from knafka.dispatcher.shared.buffer import Cursor
from knafka.dispatcher.shared.fetcher import Fetcher, FetchLimits
from knafka.dispatcher.shared.reader import GroupReader
from knafka.ports.log import Assignment, Commits, OffsetAndMetadata
from knafka.ports.shared_log import Commit, GroupMember, GroupOffsets, Position, PositionedReader

log = logging.getLogger(__name__)

_T = TypeVar("_T")

COMMIT_ROUND_SECONDS: Final = 0.1
"""Seconds of one round of commits: a commit is made at most this much later than its group asked
for it."""
CONCURRENT_COMMITS: Final = 4
"""Commits of a round that begin together; the others follow, spread over the round. Commits of 200
groups at once would delay all groups' events by tens of milliseconds."""
CONFIRMATION_VALID_SECONDS: Final = 2.0
"""Seconds for which a confirmed membership counts: less than any session timeout. A process that
stood still for longer has its membership confirmed again before it commits."""
GROUP_COMMITS_TIMEOUT: Final = 2.0
"""Seconds to wait for all groups' committed offsets, so that groups near each other start in one
buffer; a group that answers later starts later."""
TOPIC_CLOSE_TIMEOUT: Final = 5.0
"""Seconds to leave the consumer group."""


class SharedTopic:
    """Reads one topic for many groups, as a member of a consumer group while it has readers. It is
    the `Assignment` of its member, and the `Placement` of its fetchers."""

    def __init__(
        self,
        name: str,
        open_member: Callable[[Assignment], GroupMember],
        open_source: Callable[[], PositionedReader],
        offsets: GroupOffsets,
        limits: FetchLimits | None = None,
    ) -> None:
        """Open nothing yet: the process joins the consumer group at the first `open_reader`.
        `open_member` opens its membership, `open_source` the consumer of a fetcher; `offsets` reads
        and makes the groups' commits. `limits` are those of each fetcher; None: the usual ones."""
        self.name = name
        self.fetchers: list[Fetcher] = []  # in the order in which they were opened
        self._open_member = open_member
        self._open_source = open_source
        self._offsets = offsets
        self._limits = limits or FetchLimits()
        self._readers: list[GroupReader] = []  # one for each group
        self._committing_readers: dict[GroupReader, None] = {}
        """The readers that may have something to commit, in the order in which they asked."""
        self._unchecked_readers: dict[GroupReader, None] = {}
        """The readers with marks (starts of the topic's id) that can be checked only once the
        topic's id is known. With many readers, most have none, and asking all of them in each round
        would take a part of a core."""
        self._owned: set[int] = set()
        """Partitions that the consumer group has assigned to this process."""
        self._serving: asyncio.Task[None] | None = None
        """The task of the membership in the consumer group; None: there are no readers."""
        self._tasks: set[asyncio.Task[object]] = set()
        """Tasks in the background, such as the fetchers'."""

    def open_reader(self, group: str, assignment: Assignment) -> GroupReader:
        """Open the reader of one more group; `assignment` is the group's drain."""
        reader = GroupReader(self, group, assignment, self._offsets)
        self._readers.append(reader)
        if self._owned:
            self._start_task(self._assign_readers([reader], sorted(self._owned)))
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        return reader

    @property
    def reader_count(self) -> int:
        """Number of groups that read this topic."""
        return len(self._readers)

    def enqueue_commit(self, reader: GroupReader) -> None:
        """Make the reader's commits in the next round."""
        self._committing_readers[reader] = None

    def enqueue_check(self, reader: GroupReader) -> None:
        """Check the reader's marks in the rounds of commits, until all are checked."""
        self._unchecked_readers[reader] = None

    def detach(self, reader: GroupReader) -> None:
        """Forget a reader that is closed or has failed, with the commits that wait for a round."""
        self._committing_readers.pop(reader, None)
        self._unchecked_readers.pop(reader, None)
        if reader in self._readers:
            self._readers.remove(reader)

    async def close(self) -> None:
        """Wait until the process has left the consumer group; all readers must be closed."""
        if self._serving is not None:
            await asyncio.wait({self._serving})
        while self._tasks:
            await asyncio.wait(self._tasks)

    # The membership

    async def _serve(self) -> None:
        """Stay a member of the consumer group while there are readers, joining again after an
        error."""
        try:
            while self._readers:
                await self._be_member()
        finally:
            self._serving = None

    async def _be_member(self) -> None:
        """Join the consumer group, commit round after round while there are readers, then leave. A
        `LogError` fails all readers."""
        member: GroupMember | None = None
        try:
            member = self._open_member(self)
            while self._readers:
                await self._commit_round(member)
        except LogError as error:
            for reader in list(self._readers):
                reader.fail(error)
                self.detach(reader)
        finally:
            if member is not None:
                await member.close(TOPIC_CLOSE_TIMEOUT)
            self._owned.clear()

    async def _commit_round(self, member: GroupMember) -> None:
        """Check readers' marks. Then make the waiting commits, spread over `COMMIT_ROUND_SECONDS`,
        if Kafka confirms that the partitions still belong to this process. Commits that it doesn't
        confirm, or whose confirmation has become too old, wait for the next round. Meanwhile
        `member` stays in its group (`GroupMember.serve`)."""
        loop = asyncio.get_running_loop()
        self._check_marks()
        # Without `to_commit`, a commit is under way: the reader enqueues itself when that ends.
        committing_readers = [reader for reader in self._committing_readers if reader.to_commit]
        self._committing_readers = dict.fromkeys(committing_readers)
        confirmed_at = loop.time()
        if committing_readers and not await member.confirm(_highest_offsets(committing_readers)):
            committing_readers = []
        batch_starts = range(0, len(committing_readers), CONCURRENT_COMMITS)
        serving = asyncio.ensure_future(member.serve(COMMIT_ROUND_SECONDS))
        try:
            for start in batch_starts:
                if loop.time() - confirmed_at < CONFIRMATION_VALID_SECONDS:
                    for reader in committing_readers[start : start + CONCURRENT_COMMITS]:
                        self._committing_readers.pop(reader, None)
                        if reader.to_commit:  # else its commits were dropped meanwhile
                            reader.start_commit()
                if start != batch_starts[-1]:
                    await asyncio.sleep(COMMIT_ROUND_SECONDS / len(batch_starts))
            await serving
        finally:
            serving.cancel()

    def _check_marks(self) -> None:
        """Let the unchecked readers check their marks, if the topic's id is known by now."""
        if self._offsets.known_topic(self.name):
            for reader in list(self._unchecked_readers):
                reader.check_topic()
                if not reader.has_marks_to_check:
                    self._unchecked_readers.pop(reader, None)

    def on_assigned(self, partitions: Mapping[int, OffsetAndMetadata | None]) -> None:
        """Start to read these partitions for all groups. The values, commits of the member's own
        group, aren't used."""
        self._owned.update(partitions)
        self._start_task(self._assign_readers(list(self._readers), sorted(partitions)))

    async def on_revoked(self, partitions: Sequence[int]) -> Commits:
        """Make all readers finish their attempts of these partitions and commit. Returns no
        commits, as this process's own group has none."""
        self._owned.difference_update(partitions)
        releases = (reader.release_partitions(partitions) for reader in self._readers)
        for error in await asyncio.gather(*releases, return_exceptions=True):
            if error is not None:
                log.error("partitions were not given up in order", exc_info=error)
        return {}

    def on_lost(self, partitions: Sequence[int]) -> None:
        """Make all readers forget these partitions."""
        self._owned.difference_update(partitions)
        for reader in self._readers:
            reader.lose_partitions(partitions)

    def _start_task(self, work: Coroutine[None, None, _T]) -> asyncio.Task[_T]:
        """Run this coroutine in the background until `close`; returns its task."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _assign_readers(self, readers: Sequence[GroupReader], numbers: Sequence[int]) -> None:
        """Start readers in these partitions at their groups' committed offsets, or at the beginning
        if a commit was made on an earlier topic of this name. If the topic's id isn't known in
        time, the readers check later on which topic (`check_topic`)."""
        if not readers:
            return
        asked_at = time.monotonic()
        reading_mark = self._start_task(self._read_mark())
        readers_by_task = {
            asyncio.create_task(reader.fetch_committed(numbers)): reader for reader in readers
        }
        pending_tasks = set(readers_by_task)
        while pending_tasks:
            done, pending_tasks = await asyncio.wait(pending_tasks, timeout=GROUP_COMMITS_TIMEOUT)
            present_mark = reading_mark.result() if reading_mark.done() else ""
            starts: list[_Start] = []
            for task in done:
                reader = readers_by_task[task]
                if reader not in self._readers or reader.is_closing:
                    task.exception()  # else asyncio would log that nobody retrieved it
                    continue
                if (error := task.exception()) is not None:
                    if not isinstance(error, LogError):
                        error = LogError(f"{type(error).__name__}: {error}")
                    reader.fail(error)
                    continue
                group_commits = task.result()
                # Meanwhile partitions may have been revoked, or assigned by another call.
                new_numbers = [
                    number for number in numbers if number in self._owned - reader.cursors.keys()
                ]
                committed = {
                    number: _usable_commit(present_mark, group_commits.get(number))
                    for number in new_numbers
                }
                if committed:
                    reader.assign_partitions(committed, present_mark, asked_at)
                starts += [(reader, number, commit) for number, commit in committed.items()]
            # In the order of the offsets, so that groups near each other share a buffer.
            for reader, number, commit in sorted(starts, key=_order_of_start):
                reader.start_reading(number, commit)

    async def _read_mark(self) -> str:
        """Return the mark of commits on the present topic, the first characters of Kafka's id of
        the topic; empty if Kafka doesn't answer within `GROUP_COMMITS_TIMEOUT` seconds."""
        with suppress(LogError, TimeoutError):
            async with asyncio.timeout(GROUP_COMMITS_TIMEOUT):
                return await self._offsets.present_topic(self.name)
        return ""

    # Placement of groups in fetchers

    def place(self, cursor: Cursor, position: Position) -> None:
        """Make a cursor read from this position, in an existing or a new buffer."""
        self._place(cursor, position, None)

    def _place(self, cursor: Cursor, position: Position, avoid: Fetcher | None) -> None:
        """Add a cursor to a buffer near its position, of any fetcher but `avoid` (None: of any). If
        there is none, add a buffer to a fetcher that doesn't read this partition yet, or to a new
        one. Its consumer then learns from Kafka if the position belongs to an earlier log."""
        number = cursor.number
        other_fetchers = [fetcher for fetcher in self.fetchers if fetcher is not avoid]
        for fetcher in other_fetchers:
            buffer = fetcher.buffers.get(number)
            if buffer is not None and buffer.accepts(position, self._limits.records):
                buffer.join(cursor, position.epoch)
                fetcher.changed.set()
                return
        for fetcher in other_fetchers:
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
        self._start_task(fetcher.run())

    def leave(self, cursor: Cursor) -> None:
        """Remove a cursor from its buffer, if it is in one; drop the buffer with its last cursor,
        and wake the fetcher."""
        buffer = cursor.buffer
        if buffer is None:
            return
        buffer.leave(cursor)
        for fetcher in self.fetchers:
            if fetcher.buffers.get(cursor.number) is buffer:
                if not buffer.cursors:
                    fetcher.drop(cursor.number)
                fetcher.changed.set()

    def wake_fetcher(self, cursor: Cursor) -> None:
        """Wake the fetcher from which the cursor reads, as the cursor has taken records."""
        for fetcher in self.fetchers:
            if fetcher.buffers.get(cursor.number) is cursor.buffer:
                fetcher.changed.set()

    def evict(self, cursor: Cursor, fetcher: Fetcher) -> None:
        """Move a cursor from this fetcher, whose buffer can't serve it, to another one. A paused
        cursor is only removed here; it is placed when it is resumed."""
        assert cursor.buffer is not None
        epoch = cursor.owner.position_of(cursor).epoch
        cursor.buffer.leave(cursor)
        log.info("%s leaves its fetcher in partition %d", cursor.owner.group, cursor.number)
        if not cursor.paused:
            self._place(cursor, Position(cursor.offset, epoch), fetcher)

    def restart_unplaced(self, number: int, replaced_from: Position) -> None:
        """Restart the cursors of the partition `number` that are in no buffer, such as paused ones.
        Else they would not notice that the partition has another log from `replaced_from` on, and
        skip its records below their old offsets. Drop the commits of readers that are closing."""
        for reader in list(self._readers):
            cursor = reader.cursors.get(number)
            if cursor is None or cursor.buffer is not None:
                continue
            if reader.is_closing:
                reader.lose_partitions([number])
            else:
                reader.restart(cursor, replaced_from)
                self.place(cursor, reader.position_of(cursor))

    def merge(self, fetcher: Fetcher) -> None:
        """Move this fetcher's cursors to fetchers that have read further and whose buffers cover
        the cursors' offsets."""
        own_index = self.fetchers.index(fetcher)
        for number, buffer in list(fetcher.buffers.items()):
            for index, other_fetcher in enumerate(self.fetchers):
                other_buffer = other_fetcher.buffers.get(number)
                if other_fetcher is fetcher or other_buffer is None:
                    continue
                # Of two buffers with the same end, that of the earlier fetcher stays.
                if (other_buffer.end, -index) > (buffer.end, -own_index):
                    covered: list[Cursor] = []
                    for cursor in buffer.cursors:
                        epoch = cursor.owner.position_of(cursor).epoch
                        if other_buffer.covers(Position(buffer.next_offset(cursor), epoch)):
                            covered.append(cursor)
                    for cursor in covered:
                        buffer.leave(cursor)
                        other_buffer.join(cursor)
                        other_fetcher.changed.set()
        fetcher.drop_unused()

    def fail(self, fetcher: Fetcher, error: LogError) -> None:
        """Make all readers that read from this fetcher raise `error`."""
        cursors = [cursor for buffer in fetcher.buffers.values() for cursor in buffer.cursors]
        for owner in {cursor.owner for cursor in cursors}:
            owner.fail(error)

    def forget_fetcher(self, fetcher: Fetcher) -> None:
        """Forget a fetcher that has ended; does nothing if it is forgotten already."""
        if fetcher in self.fetchers:
            self.fetchers.remove(fetcher)


_Start: TypeAlias = tuple[GroupReader, int, Commit | None]
"""A reader to start in a partition, with its group's commit there; None: there is none."""


def _order_of_start(start: _Start) -> tuple[int, int, int]:
    """Return the partition, offset and leader epoch of a start, as the key by which starts are
    sorted; groups without a commit come first."""
    _, number, commit = start
    if commit is None:
        commit = Commit(-1)
    return number, commit.offset, commit.epoch


def _usable_commit(present_mark: str, commit: Commit | None) -> Commit | None:
    """Return a group's commit; None if there is none, or if its mark shows that it was made for an
    earlier topic. `present_mark` is the mark of the present topic; empty: unknown."""
    return None if commit is None or is_of_another_topic(commit.topic, present_mark) else commit


def _highest_offsets(readers: Iterable[GroupReader]) -> dict[int, int]:
    """Return, by partition, the highest offset that any reader has to commit: these are what the
    member commits to confirm its membership."""
    offsets: dict[int, int] = {}
    for reader in readers:
        for number, commit in reader.to_commit.items():
            offsets[number] = max(commit.offset, offsets.get(number, 0))
    return offsets
