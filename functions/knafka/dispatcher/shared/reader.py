"""The reader of one group in a shared topic: a `LogReader` fed from buffers.

Each record is returned once and in order, whichever buffer it comes from: a cursor knows the next
offset. A `Selective` drain gets only records that match its selection; while it waits in `read`,
its `take` gets them without waking it.

A commit's mark, the start of Kafka's id of the topic, shows whether the topic was created anew
since; it is checked as soon as the present topic's id is known.

Not here: commits, which wait until the topic makes them (`group_commits`).

More than 400 lines, as reading and the changes of partitions share the cursors and the read that is
under way.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from knafka.core.drain import COMMIT_INTERVAL, MAX_COMMIT_INTERVAL
from knafka.core.errors import LogError
from knafka.dispatcher.engine.selecting import Selective
from knafka.dispatcher.shared.buffer import Cursor
from knafka.dispatcher.shared.group_commits import GroupCommits
from knafka.ports.log import Assignment, Commits, OffsetAndMetadata, Positions, Record
from knafka.ports.shared_log import BEGINNING, Commit, GroupOffsets, Position

log = logging.getLogger(__name__)

RECORDS_PER_READ: Final = 50
"""Most records of one read, as all groups wait while a read's records are filtered and encoded.
Also the most records that a drain takes while it waits in one read, so that it then checks again
whether it has room."""
MAX_COMMITS_PER_SECOND: Final = 200
"""Most commits of a topic in a second, over all its groups, as far as `MAX_COMMIT_INTERVAL` allows:
each takes 0.2 ms of CPU."""


class ReaderTopic(Protocol):
    """The methods of a shared topic that its readers use."""

    name: str

    @property
    def reader_count(self) -> int:
        """Number of groups that read this topic."""
        ...

    def place(self, cursor: Cursor, position: Position) -> None:
        """Make a cursor read from this position, in an existing or a new buffer."""
        ...

    def leave(self, cursor: Cursor) -> None:
        """Remove a cursor from its buffer."""
        ...

    def wake_fetcher(self, cursor: Cursor) -> None:
        """Wake the fetcher from which a cursor reads, as the cursor has taken records."""
        ...

    def enqueue_commit(self, reader: GroupReader) -> None:
        """Call the reader's `start_commit` soon."""
        ...

    def enqueue_check(self, reader: GroupReader) -> None:
        """Call the reader's `check_topic` once the topic's id is known."""
        ...

    def detach(self, reader: GroupReader) -> None:
        """Forget a reader that is closed or has failed, with the commits that wait for a round."""
        ...


class GroupReader:
    """A `LogReader` of one group in a shared topic; `SharedTopic.open_reader` creates it."""

    pause_is_free: Final = True
    """A pause discards no records (`ports.log.LogReader`)."""

    def __init__(
        self, topic: ReaderTopic, group: str, assignment: Assignment, offsets: GroupOffsets
    ) -> None:
        """Begin without partitions; `assignment` is the group's drain, which is notified of
        partitions, and `offsets` reads and makes commits."""
        self.group = group
        self.ends: Positions = {}
        """Partitions whose end the last read has reached, with the offsets of these ends."""
        self.cursors: dict[int, Cursor] = {}
        """The group's cursor in each assigned partition."""
        self.is_closing = False  # whether `close` was called
        self.drain: Selective | None = assignment if isinstance(assignment, Selective) else None
        """The drain, if it can say which records it wants; None: it gets every record."""
        self._topic = topic
        self._assignment = assignment
        self._commits = GroupCommits(
            group,
            topic.name,
            offsets,
            self.cursors,
            enqueue=lambda: topic.enqueue_commit(self),
            fail=self.fail,
        )
        self.committed: Mapping[int, int] = self._commits.committed
        """The offsets that Kafka has confirmed (`GroupCommits.committed`)."""
        self._partitions_with_news: dict[int, None] = {}
        """Partitions with untaken records, or with an end that was not reported."""
        self._waiter: asyncio.Future[None] | None = None  # what `read` waits for
        self._handed_over_count = 0
        """Number of records handed over to the drain since its last `read` began."""
        self._crash: Exception | None = None
        """The error that the drain raised when it took records, a bug of ours; its next read raises
        it."""
        self._interrupted = False  # whether `interrupt` was called during this read
        self._failure: LogError | None = None  # what every read raises from now on
        self._last_commits: asyncio.Future[Commits] | None = None
        """The drain's last commits, which `close` waits for; None: the reader isn't closing."""

    # Reading

    async def read(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return at most `limit` next records, waiting up to `timeout` seconds for the first; none
        if none came before the timeout or an `interrupt`. While this waits, a `Selective` drain
        gets new records by its `take` instead: then the result may be empty although records came.
        Raises `LogError`."""
        loop, limit = asyncio.get_running_loop(), min(limit, RECORDS_PER_READ)
        self.ends, self._handed_over_count = {}, 0
        # Create the waiter before the `sleep`, so that a record that comes during it is handed over
        # to `take`, too. Otherwise this read would return that record alone, and so might every
        # read after it.
        self._waiter = loop.create_future()
        timer: asyncio.TimerHandle | None = None
        try:
            await asyncio.sleep(0)  # other drains have their turn between the reads of a backlog
            records = self._take(limit)
            if records or self._must_return() or timeout <= 0:
                return self._records_or_raise(records)
            # What counts is that the timer has fired, not what time it is: a timer may fire just
            # before its deadline.
            timeout_over = loop.create_future()
            timer = loop.call_later(timeout, self._end_wait, timeout_over)
            while not (records or timeout_over.done() or self._must_return()):
                if self._waiter.done():
                    self._waiter = loop.create_future()
                await self._waiter
                records = self._take(limit)
        finally:
            if timer is not None:
                timer.cancel()
            self._waiter = None
        return self._records_or_raise(records)

    def _must_return(self) -> bool:
        """Whether a read that is under way has to return, even without records."""
        return (
            self._failure is not None
            or self.is_closing
            or self._interrupted
            or self._handed_over_count >= RECORDS_PER_READ
            or self._crash is not None
        )

    def _records_or_raise(self, records: list[Record]) -> list[Record]:
        """Return the records of a read, which ends an `interrupt`. Raises the drain's crash or, if
        there are no records, the topic's failure."""
        self._interrupted = False
        if self._crash is not None:
            raise self._crash
        if not records and self._failure is not None:
            raise self._failure
        return records

    def _end_wait(self, timeout_over: asyncio.Future[None]) -> None:
        """End a read that has waited for its full timeout."""
        timeout_over.set_result(None)
        self._wake()

    def _take(self, limit: int) -> list[Record]:
        """Take at most `limit` records from the buffers, and note in `ends` which partitions have
        been read to their end."""
        records: list[Record] = []
        for number in list(self._partitions_with_news):
            cursor = self.cursors.get(number)
            if cursor is None or cursor.paused or cursor.buffer is None:
                del self._partitions_with_news[number]
                continue
            buffer = cursor.buffer
            # Repeated, as `take` returns fewer records if it skips some below the cursor's offset.
            while len(records) < limit and cursor.has_more:
                records += buffer.take(cursor, limit - len(records))
            if cursor.has_more:
                break
            del self._partitions_with_news[number]
            if (end := buffer.take_end(cursor)) is not None:
                self.ends = {**self.ends, number: end}
            if not cursor.is_selective:
                buffer.make_selective(cursor)
            self._topic.wake_fetcher(cursor)
        return records

    def notify(self, number: int, has_records: bool) -> int:
        """Note that a partition has new records (`has_records` True) or only a new end. If the
        drain waits in `read`, hand the records over to it at once; returns how many it took."""
        self._partitions_with_news[number] = None
        if not has_records:
            return 0
        if self.drain is not None and self._waiter and not self._waiter.done():
            return self._hand_over_news(self.drain)
        self._wake()
        return 0

    def hand_over(self, cursor: Cursor) -> int:
        """Hand new records for this cursor over to the drain if it waits in `read`; returns how
        many it took. The fetcher calls this between reads. The usual case is handled here, as that
        costs less; `notify` handles all others."""
        drain, waiter, buffer = self.drain, self._waiter, cursor.buffer
        room = RECORDS_PER_READ - self._handed_over_count
        if (
            drain is None
            or waiter is None
            or waiter.done()
            or buffer is None
            or not cursor.is_selective
            or cursor.paused
            or self._partitions_with_news
            or len(cursor.pending) > room
        ):
            return self.notify(cursor.number, True)
        return self._give(drain, buffer.take(cursor, room))

    def _hand_over_news(self, drain: Selective) -> int:
        """Hand the new records of all partitions over to a drain that waits in `read`, as waking
        it would cost more than taking a record does. Returns how many it took."""
        records = self._take(RECORDS_PER_READ - self._handed_over_count)
        return self._give(drain, records) if records else 0

    def _give(self, drain: Selective, records: Sequence[Record]) -> int:
        """Make a drain that waits in `read` take these records; returns their number. End that
        read if the drain has taken enough, if there is more news, or if the drain raised an
        error."""
        self._handed_over_count += len(records)
        try:
            drain.take(records)
        except Exception as error:  # it must not end the fetcher, which reads for all groups
            self._crash = error
        if (
            self._crash is not None
            or self._handed_over_count >= RECORDS_PER_READ
            or self._partitions_with_news
        ):
            self._wake()
        return len(records)

    @property
    def commit_interval(self) -> float:
        """Seconds between commits of a drain that gets records. If the dispatcher is killed, the
        events that it delivered in this time are delivered again."""
        return min(MAX_COMMIT_INTERVAL, self.quiet_commit_interval)

    @property
    def quiet_commit_interval(self) -> float:
        """Seconds between commits of a drain that gets no records. Without such a commit, a later
        owner of the partition would only filter the skipped events again, so there is no upper
        limit."""
        return max(COMMIT_INTERVAL, self._topic.reader_count / MAX_COMMITS_PER_SECOND)

    def catch_up(self) -> None:
        """Report to the drain how many records were skipped until now, and up to where."""
        for cursor in self.cursors.values():
            if cursor.buffer is not None:
                cursor.buffer.catch_up(cursor)

    def interrupt(self) -> None:
        """Make the read that is under way return at once."""
        self._interrupted = True
        self._wake()

    def _wake(self) -> None:
        """Wake the read that is waiting, if there is one."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def pause(self, partitions: Sequence[int]) -> None:
        """Return no records of these partitions until `resume`."""
        for number in partitions:
            if cursor := self.cursors.get(number):
                cursor.paused = True

    def resume(self, partitions: Sequence[int]) -> None:
        """Return records of these partitions again."""
        for number in partitions:
            if (cursor := self.cursors.get(number)) is not None and cursor.paused:
                cursor.paused = False
                if cursor.buffer is None:  # it was evicted
                    self._topic.place(cursor, self.position_of(cursor))
                self.notify(number, True)

    # Partitions

    async def fetch_committed(self, numbers: Collection[int]) -> Mapping[int, Commit]:
        """Return the group's commits of these partitions, read from Kafka. Raises `LogError`."""
        return await self._commits.fetch(numbers)

    def assign_partitions(
        self,
        committed: Mapping[int, Commit | None],
        present_mark: str = "",
        asked_at: float = -math.inf,
    ) -> None:
        """Assign partitions to the drain, with the group's commits (None: nothing committed), which
        were requested at `asked_at` (`time.monotonic`). Nothing is read before `start_reading`.
        `present_mark`: the start of the present topic's id, which marks commits; empty:
        unknown."""
        for number, commit in committed.items():
            self._commits.assign(number, commit, present_mark, asked_at)
            offset = 0 if commit is None else commit.offset
            self.cursors[number] = Cursor(number, offset, self)
        self._enqueue_check()
        self._assignment.on_assigned(
            {
                number: None if commit is None else commit.offset_and_metadata
                for number, commit in committed.items()
            }
        )

    def start_reading(self, number: int, committed: Commit | None) -> None:
        """Start to read an assigned partition from the offset of `committed`; None: from its
        beginning. This is a step of its own, after `assign_partitions`, so that the topic can start
        all groups in the order of their offsets. Does nothing if the partition was revoked
        meanwhile."""
        if cursor := self.cursors.get(number):
            offset = BEGINNING if committed is None else committed.offset
            self._topic.place(cursor, Position(offset, self._commits.epochs[number]))

    def position_of(self, cursor: Cursor) -> Position:
        """Return the cursor's next offset with its leader epoch."""
        return Position(cursor.offset, self._commits.update_epoch(cursor.number))

    def restart(self, cursor: Cursor, replaced_from: Position) -> None:
        """Prepare to read again a partition that has another log from `replaced_from` on. The
        cursor moves there or, if that is lower, to the first offset that the drain hasn't settled.
        Commits that are not made yet are dropped, and the drain gets the partition anew. The caller
        then places the cursor in a buffer."""
        number = cursor.number
        self._forget_news(number)
        start = self._commits.restart(number, replaced_from)
        cursor.offset, cursor.reported, cursor.paused = max(0, start.offset), -1, False
        if start.offset == BEGINNING:
            self._enqueue_check()  # the log may be that of a topic that was created anew
        self._assignment.on_lost([number])
        self._assignment.on_assigned({number: None})

    def _forget_news(self, number: int) -> None:
        """Forget the records and the end that the read under way has found in a partition.
        Otherwise a drain to which the partition is assigned anew would take the end of the earlier
        log for the end of the present one."""
        self.ends = {
            other_number: end for other_number, end in self.ends.items() if other_number != number
        }
        self._partitions_with_news.pop(number, None)

    def _enqueue_check(self) -> None:
        """Ask the topic to call `check_topic`, if there are marks to check."""
        if self.has_marks_to_check:
            self._topic.enqueue_check(self)

    @property
    def has_marks_to_check(self) -> bool:
        """Whether some partition began at a commit whose mark (the start of a topic's id) must
        still be compared with the present topic's id, by `check_topic`."""
        return self._commits.has_marks_to_check

    def check_topic(self) -> None:
        """Check the marks of partitions, as the topic's id is known now: partitions that began at a
        commit of an earlier topic are read from their beginning."""
        if self.is_closing:
            # Too late to read partitions anew. The last commits get the marks of the commits at
            # which their partitions began, so the next owner checks them.
            return
        for number in self._commits.pop_partitions_of_another_topic():
            cursor = self.cursors[number]
            self._topic.leave(cursor)
            self.restart(cursor, Position(BEGINNING))
            self.start_reading(number, None)

    async def release_partitions(self, numbers: Collection[int]) -> None:
        """Release partitions that go to another process: stop reading them, let the drain finish
        their attempts, then make their last commits. A commit that fails is only logged."""
        owned = sorted(self.cursors.keys() & set(numbers))
        if not owned:
            return
        epochs = self._commits.update_epochs(owned)
        for number in owned:
            self._topic.leave(self.cursors.pop(number))
            self._forget_news(number)
            self._commits.stop_checking(number)
        if self._last_commits is None:  # else `close` has revoked them from the drain already
            commits = await self._assignment.on_revoked(owned)
        else:
            commits = await asyncio.shield(self._last_commits)
        await self._commits.commit_last(owned, commits, epochs)

    def lose_partitions(self, numbers: Collection[int]) -> None:
        """Forget partitions that belong to another process, without a commit."""
        owned = sorted(self.cursors.keys() & set(numbers))
        for number in owned:
            self._topic.leave(self.cursors.pop(number))
            self._forget_news(number)
            self._commits.forget(number)
        if owned and not self.is_closing:
            self._assignment.on_lost(owned)

    def fail(self, error: LogError) -> None:
        """Make every read raise this error, and forget all partitions without a commit: events
        delivered since the last commit will be delivered again."""
        self._failure = error
        self.lose_partitions(list(self.cursors))
        self._commits.give_up()
        self._wake()

    # Commits

    def commit(self, commits: Commits) -> None:
        """Store commits until the topic makes them. A commit whose metadata is too long is dropped,
        and an earlier stored one stays."""
        self._commits.store(commits)

    @property
    def to_commit(self) -> Mapping[int, OffsetAndMetadata]:
        """The commits that may be made now; none while another commit is under way."""
        return self._commits.to_commit

    def start_commit(self) -> None:
        """Start to make the stored commits, without waiting for Kafka."""
        self._commits.start_commit()

    # Closing

    async def close(self, timeout: float) -> None:
        """Revoke all partitions and make the last commits, within `timeout` seconds; commits that
        take longer are given up, and logged."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        self.is_closing = True
        self._wake()
        try:
            async with asyncio.timeout_at(deadline):
                if self.cursors:
                    self._commits.update_epochs(self.cursors)  # before buffers are left
                    for cursor in self.cursors.values():
                        self._topic.leave(cursor)
                    revoking = self._assignment.on_revoked(sorted(self.cursors))
                    self._last_commits = asyncio.ensure_future(revoking)
                    self.commit(await self._last_commits)
                await self._commits.wait_until_made()
        except TimeoutError:
            log.warning("the last commit of %s was not made in time", self.group)
        finally:
            self.cursors.clear()
            self._topic.detach(self)
            self._commits.close()
