"""The reader of one group in a shared topic: a `LogReader` fed from buffers.

Each record is returned once and in order, whichever buffer it comes from: a cursor knows the next
offset. Commits wait in the reader until the topic makes them. A `Selective` drain gets only records
that match its selection; while it waits in `read`, its `take` gets them without waking it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

from knafka.core.commit_metadata import CommitMarks
from knafka.core.drain import COMMIT_INTERVAL, MAX_COMMIT_INTERVAL
from knafka.core.errors import LogError
from knafka.core.progress import MAX_METADATA
from knafka.dispatcher.engine.selecting import Selective
from knafka.dispatcher.shared.buffer import Cursor
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
    def readers(self) -> int:
        """Number of groups that read this topic."""
        ...

    def place(self, cursor: Cursor, position: Position) -> None:
        """Make a cursor read from this position, in an existing or a new buffer."""
        ...

    def leave(self, cursor: Cursor) -> None:
        """Remove a cursor from its buffer."""
        ...

    def note_taken(self, cursor: Cursor) -> None:
        """Note that a cursor has taken records."""
        ...

    def enqueue_commit(self, reader: GroupReader) -> None:
        """Call the reader's `begin_commit` soon."""
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
        self.committed: dict[int, int] = {}
        """The offset that Kafka has confirmed last, by partition that is assigned or was assigned
        when the reader closed."""
        self.is_closing = False  # whether `close` was called
        self.drain: Selective | None = assignment if isinstance(assignment, Selective) else None
        """The drain, if it can say which records it wants; None: the group wants every record."""
        self._topic = topic
        self._assignment = assignment
        self._offsets = offsets
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
        self._epochs: dict[int, int] = {}
        """By partition: the leader epoch of its commit at the assignment, or of a later record."""
        self._end_epochs: dict[int, int] = {}
        """By partition: the lowest leader epoch to commit (`Commit.end_epoch`). A position to read
        from doesn't use it: its epoch is that of the last record read."""
        self._marks: CommitMarks[int] = CommitMarks(
            lambda number, since: offsets.known_topic(topic.name, since)
        )
        """By partition: the start of the id of the topic to which its offsets belong
        (`Commit.topic`), which shows whether the topic was created anew."""
        self._settled: dict[int, int] = {}
        """Offset below which the drain has settled everything, by assigned partition."""
        self._to_commit: dict[int, OffsetAndMetadata] = {}  # stored commits, not made yet
        self._committing: asyncio.Task[None] | None = None  # the commit under way
        self._restarted: set[int] = set()
        """Partitions that were created anew since the last commit began, to which that commit
        doesn't apply."""
        self._last_commits: asyncio.Future[Commits] | None = None
        """The drain's last commits, which `close` waits for; None: the reader isn't closing."""
        self._committed = asyncio.Event()
        """Set when a commit has ended."""

    # Reading

    async def read(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return at most `limit` next records, waiting up to `timeout` seconds for the first.
        Raises `LogError`."""
        loop, limit = asyncio.get_running_loop(), min(limit, RECORDS_PER_READ)
        self.ends, self._handed_over_count = {}, 0
        # Create the waiter before the other drains' turn, so that what comes meanwhile is handed
        # over, too. Otherwise each read might return only the one record that came before it could
        # wait.
        self._waiter = loop.create_future()
        timer: asyncio.TimerHandle | None = None
        try:
            await asyncio.sleep(0)  # other drains have their turn between the reads of a backlog
            records = self._take(limit)
            if records or self._must_return() or timeout <= 0:
                return self._records_or_raise(records)
            # The timer ends the wait, not the clock, which may still be just before the deadline
            # when a timer fires.
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
        """Return the records of a read, or raise the drain's crash or, if there are no records, the
        topic's failure."""
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
            while len(records) < limit and cursor.has_more:
                records += buffer.take(cursor, limit - len(records))
            if cursor.has_more:
                break
            del self._partitions_with_news[number]
            if (end := buffer.take_end(cursor)) is not None:
                self.ends = {**self.ends, number: end}
            if not cursor.is_selective:
                buffer.make_selective(cursor)
            self._topic.note_taken(cursor)
        return records

    def notify(self, number: int, is_record: bool) -> int:
        """Note that a partition has new records (`is_record` True) or only a new end. If the drain
        waits in `read`, hand the records over to it at once; returns how many it took."""
        self._partitions_with_news[number] = None
        if not is_record:
            return 0
        if self.drain is not None and self._waiter and not self._waiter.done():
            return self._hand_over_news(self.drain)
        self._wake()
        return 0

    def hand_over(self, cursor: Cursor) -> int:
        """Hand new records for this cursor over to the drain if it waits in `read`; returns how
        many it took. The fetcher calls this between reads: it costs less than `notify`, to which it
        turns in all but the usual case."""
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
        """Seconds between commits of a drain that gets no records. Such a commit only spares a
        later owner of the partition from filtering the skipped events again, so this time has no
        upper limit."""
        return max(COMMIT_INTERVAL, self._topic.readers / MAX_COMMITS_PER_SECOND)

    def catch_up(self) -> None:
        """Report to the drain which records were skipped until now."""
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
        return await self._offsets.committed(self.group, self._topic.name, numbers)

    def assign_partitions(
        self,
        committed: Mapping[int, Commit | None],
        topic: str = "",
        asked_at: float = -math.inf,
    ) -> None:
        """Assign partitions to the drain, with the group's commits (None: nothing committed), which
        were requested at `asked_at` (`time.monotonic`). Nothing is read before `start_reading`.
        `topic`: the start of the present topic's id, which marks commits; empty: unknown."""
        for number, commit in committed.items():
            # An id of the topic that was requested before `asked_at` may be older than the commit.
            self._marks.begin(number, "" if commit is None else commit.topic, topic, asked_at)
            self._epochs[number] = NO_EPOCH if commit is None else commit.epoch
            self._end_epochs[number] = NO_EPOCH if commit is None else commit.end_epoch
            offset = 0 if commit is None else commit.offset
            self.cursors[number] = Cursor(number, offset, self)
            self._settled[number] = BEGINNING if commit is None else commit.offset
            if commit is not None:
                self.committed[number] = commit.offset
        self._enqueue_check()
        self._assignment.on_assigned(
            {number: commit and commit.value for number, commit in committed.items()}
        )

    def start_reading(self, number: int, committed: Commit | None) -> None:
        """Start to read an assigned partition from the offset of `committed`; None: from its
        beginning. `assign_partitions` got the same commit, but its caller starts all groups in the
        order of their offsets. Does nothing if the partition was revoked meanwhile."""
        if cursor := self.cursors.get(number):
            offset = BEGINNING if committed is None else committed.offset
            self._topic.place(cursor, Position(offset, self._epochs[number]))

    def position_of(self, cursor: Cursor) -> Position:
        """Return the cursor's next offset with its leader epoch."""
        return Position(cursor.offset, self._epoch_of(cursor.number))

    def restart(self, cursor: Cursor, shared: Position) -> None:
        """Prepare to read a partition again whose log was replaced from `shared` on: from `shared`
        or, if it is lower, from the first offset that the drain hasn't settled. Assigns the
        partition to the drain anew, and drops the commits that are not made yet. The caller then
        places the cursor."""
        number = cursor.number
        self._forget_news(number)
        start = Position(min(shared.offset, self._settled.get(number, BEGINNING)), shared.epoch)
        if start.offset < 0:  # `BEGINNING`, which has no leader epoch
            start = Position(BEGINNING)
        cursor.offset, cursor.reported, cursor.paused = max(0, start.offset), -1, False
        self._to_commit.pop(number, None)
        self._epochs[number] = start.epoch
        self._end_epochs.pop(number, None)
        if start.offset == BEGINNING:
            self._marks.restart(number, time.monotonic())
            self._enqueue_check()
        self._settled[number] = start.offset
        self.committed.pop(number, None)
        self._restarted.add(number)
        self._assignment.on_lost([number])
        self._assignment.on_assigned({number: None})

    def _forget_news(self, number: int) -> None:
        """Forget the records and the end that the read under way has found in a partition. If the
        partition is assigned to the drain anew, the drain would take the earlier log's end for one
        that it has reached."""
        self.ends = {other: end for other, end in self.ends.items() if other != number}
        self._partitions_with_news.pop(number, None)

    def _enqueue_check(self) -> None:
        """Have the topic call `check_topic`, if there are marks to check."""
        if self.has_marks_to_check:
            self._topic.enqueue_check(self)

    @property
    def has_marks_to_check(self) -> bool:
        """Whether the mark of some partition must still be compared with the topic's id
        (`check_topic`)."""
        return self._marks.has_unchecked

    def check_topic(self) -> None:
        """Check the marks of partitions, as the topic's id is known now: partitions that began at a
        commit of an earlier topic are read from their beginning."""
        if self.is_closing:
            return  # the last commits keep their marks
        for number in self._marks.find_others():
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
        epochs = self._epochs_of(owned)
        for number in owned:
            self._topic.leave(self.cursors.pop(number))
            self._forget_news(number)
            self._marks.stop_checking(number)
        if self._last_commits is None:  # else `close` has revoked them from the drain already
            commits = await self._assignment.on_revoked(owned)
        else:
            commits = await asyncio.shield(self._last_commits)
        waiting_commits = {
            number: self._to_commit.pop(number) for number in owned if number in self._to_commit
        }
        await self._wait_for_commit()
        for number in owned:
            self.committed.pop(number, None)
        commits_to_make = {
            number: commit
            for number, commit in {**waiting_commits, **commits}.items()
            if number in owned
        }
        if commits_to_make:
            try:
                await self._commit(commits_to_make, epochs)
            except LogError as error:
                # The next owner starts at the group's last commit: events repeat, none is lost.
                log.warning("the last commit of %s failed: %s", self.group, error)
        self._committed.set()  # `close` may wait for it

    def lose_partitions(self, numbers: Collection[int]) -> None:
        """Forget partitions that belong to another process, without a commit."""
        owned = sorted(self.cursors.keys() & set(numbers))
        for number in owned:
            self._topic.leave(self.cursors.pop(number))
            self._forget_news(number)
            self._marks.stop_checking(number)
            self._to_commit.pop(number, None)
            self.committed.pop(number, None)
        if owned and not self.is_closing:
            self._assignment.on_lost(owned)

    def fail(self, error: LogError) -> None:
        """Make every read raise this error, and forget all partitions without a commit: events
        delivered since the last commit will be delivered again."""
        self._failure = error
        self.lose_partitions(list(self.cursors))
        self._committed.set()
        self._wake()

    # Commits

    def commit(self, commits: Commits) -> None:
        """Store commits until the topic makes them; a commit whose metadata is too long is dropped
        in favour of an earlier one."""
        for number, commit in commits.items():
            self._settled[number] = commit.offset
            # Kafka would refuse a commit with longer metadata, and storing it here would replace an
            # earlier one that is valid.
            if number in self.cursors and len(commit.metadata) <= MAX_METADATA:
                self._to_commit[number] = commit
        self._enqueue_commit()

    def _enqueue_commit(self) -> None:
        """Have the topic make the stored commits, if there are any."""
        if self._to_commit:
            self._topic.enqueue_commit(self)

    @property
    def to_commit(self) -> Mapping[int, OffsetAndMetadata]:
        """The commits that may be made now; none while another commit is under way."""
        return self._to_commit if self._committing is None else {}

    def begin_commit(self) -> None:
        """Start to make the stored commits, without waiting for Kafka."""
        commits, self._to_commit = self._to_commit, {}
        self._restarted.clear()
        self._committing = asyncio.create_task(self._commit_regularly(commits))

    async def _commit_regularly(self, commits: dict[int, OffsetAndMetadata]) -> None:
        """Make one commit. If it fails, store its offsets for the next one; if the group has
        members of its own, fail the reader."""
        try:
            await self._commit(commits, self._epochs_of(commits))
        except GroupHasMembers as error:
            self.fail(error)
        except LogError as error:
            log.info("a commit of %s failed, and is made again: %s", self.group, error)
            unchanged = self.cursors.keys() - self._restarted
            failed_commits = {
                number: commit for number, commit in commits.items() if number in unchanged
            }
            self._to_commit = {**failed_commits, **self._to_commit}
        finally:
            self._committing = None
            self._enqueue_commit()
            self._committed.set()

    async def _commit(self, commits: Commits, epochs: Mapping[int, int]) -> None:
        """Commit these offsets with these leader epochs (both by partition), and wait for Kafka.
        Raises `LogError`."""
        full_commits = {
            number: Commit(
                commit.offset, commit.metadata, epochs[number], topic=self._marks.get(number)
            )
            for number, commit in commits.items()
        }
        # Until Kafka has answered, the commit may or may not be in effect.
        for number in full_commits:
            self.committed.pop(number, None)
        await self._offsets.commit(self.group, self._topic.name, full_commits)
        for number in full_commits.keys() & self.cursors.keys() - self._restarted:
            self.committed[number] = full_commits[number].offset

    def _epochs_of(self, numbers: Collection[int]) -> dict[int, int]:
        """Return the leader epoch to commit for each partition: that of the last record read, or
        that in which the log ended at the assignment (`_end_epochs`), whichever is later."""
        return {
            number: max(self._epoch_of(number), self._end_epochs.get(number, NO_EPOCH))
            for number in numbers
        }

    def _epoch_of(self, number: int) -> int:
        """Return, and note, the leader epoch of the last record read of a partition: a consumer
        that resumes with too low an epoch would report lost data."""
        epoch, cursor = self._epochs.get(number, NO_EPOCH), self.cursors.get(number)
        buffer = None if cursor is None else cursor.buffer
        if buffer is not None and cursor not in buffer.unproven:
            epoch = self._epochs[number] = max(epoch, buffer.epochs.last)
        return epoch

    async def _wait_for_commit(self) -> None:
        """Wait until no commit is under way."""
        while self._committing is not None:
            self._committed.clear()
            await self._committed.wait()

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
                    self._epochs_of(list(self.cursors))  # notes them before the buffers are left
                    for cursor in self.cursors.values():
                        self._topic.leave(cursor)
                    revoking = self._assignment.on_revoked(sorted(self.cursors))
                    self._last_commits = asyncio.ensure_future(revoking)
                    self.commit(await self._last_commits)
                while self._failure is None and (self._to_commit or self._committing is not None):
                    self._committed.clear()
                    await self._committed.wait()
        except TimeoutError:
            log.warning("the last commit of %s was not made in time", self.group)
        finally:
            self.cursors.clear()
            self._to_commit = {}
            self._topic.detach(self)
            if self._committing is not None:
                with suppress(asyncio.CancelledError):
                    self._committing.cancel()
