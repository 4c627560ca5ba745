"""The commits of one group in a shared topic: stored by its reader, made in the topic's rounds.

Kafka gets more than the drain's offset and metadata: the leader epoch of the last record read, by
which a later reader finds out whether the log was cut, and the mark of the topic, which shows
whether the topic was created anew. A commit that fails is made again with the next ones.

Not here: which of a topic's groups commit in a round, and how many at once (`topic`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from knafka.core.commit_metadata import CommitMarks
from knafka.core.errors import LogError
from knafka.core.progress import MAX_METADATA
from knafka.dispatcher.shared.buffer import Cursor
from knafka.ports.log import Commits, OffsetAndMetadata
from knafka.ports.shared_log import (
    BEGINNING,
    NO_EPOCH,
    Commit,
    GroupHasMembers,
    GroupOffsets,
    Position,
)

log = logging.getLogger(__name__)


class GroupCommits:
    """Commits of one group in the partitions that its reader owns."""

    def __init__(
        self,
        group: str,
        topic: str,
        offsets: GroupOffsets,
        cursors: Mapping[int, Cursor],
        enqueue: Callable[[], None],
        fail: Callable[[LogError], None],
    ) -> None:
        """Begin without partitions. `offsets` reads and makes the commits of `group` on `topic`.
        `cursors` are the reader's, by assigned partition. `enqueue` makes the topic call
        `start_commit` soon; `fail` ends the reader if its group has members of its own."""
        self.committed: dict[int, int] = {}
        """By partition: the offset that Kafka has confirmed last. Has the partitions that are
        assigned, or were when the reader closed."""
        self.epochs: dict[int, int] = {}
        """By partition: the leader epoch of its commit at the assignment, or of a later record."""
        self._group = group
        self._topic = topic
        self._offsets = offsets
        self._cursors = cursors
        self._enqueue = enqueue
        self._fail = fail
        self._end_epochs: dict[int, int] = {}
        """By partition: the leader epoch of the log's end at the assignment (`Commit.end_epoch`); a
        commit has this epoch or a later one. The position to read from doesn't use it."""
        self._marks: CommitMarks[int] = CommitMarks(
            lambda number, since: offsets.known_topic(topic, since)
        )
        """By partition: the start of the id of the topic to which its offsets belong
        (`Commit.topic`), which shows whether the topic was created anew."""
        self._settled: dict[int, int] = {}
        """By assigned partition: the offset below which the drain has settled everything."""
        self._to_commit: dict[int, OffsetAndMetadata] = {}  # stored commits, not made yet
        self._committing: asyncio.Task[None] | None = None  # the commit under way
        self._restarted: set[int] = set()
        """Partitions that were restarted (`restart`) since the last commit began: that commit says
        nothing about their present logs."""
        self._is_given_up = False  # whether `give_up` was called
        self._changed = asyncio.Event()
        """Set when a commit has ended, or when there may be no commit to wait for any more."""

    # Partitions

    async def fetch(self, numbers: Collection[int]) -> Mapping[int, Commit]:
        """Read the group's commits of these partitions from Kafka and return them; partitions
        without a commit are left out. Raises `LogError`."""
        return await self._offsets.committed(self._group, self._topic, numbers)

    def assign(
        self, number: int, commit: Commit | None, present_mark: str, asked_at: float
    ) -> None:
        """Record a partition that was just assigned, and the group's commit there (None: none).

        `present_mark`: the start of the present topic's id. Empty: it isn't known yet. The commit's
        mark is then compared later, with an id that is requested no earlier than the commit was, at
        `asked_at` (`time.monotonic`).
        """
        # An id of the topic that was requested before `asked_at` may be older than the commit.
        commit_mark = "" if commit is None else commit.topic
        self._marks.begin(number, commit_mark, present_mark, asked_at)
        self.epochs[number] = NO_EPOCH if commit is None else commit.epoch
        self._end_epochs[number] = NO_EPOCH if commit is None else commit.end_epoch
        self._settled[number] = BEGINNING if commit is None else commit.offset
        if commit is not None:
            self.committed[number] = commit.offset

    def restart(self, number: int, replaced_from: Position) -> Position:
        """Drop the commits of a partition that has another log from `replaced_from` on. Returns
        where to read it again: at `replaced_from` or, if that is lower, at the first offset that
        the drain hasn't settled. If one of the two isn't known: at `BEGINNING`, without a leader
        epoch."""
        offset = min(replaced_from.offset, self._settled.get(number, BEGINNING))
        start = Position(BEGINNING) if offset < 0 else Position(offset, replaced_from.epoch)
        self._to_commit.pop(number, None)
        self.epochs[number] = start.epoch
        self._end_epochs.pop(number, None)
        if start.offset == BEGINNING:
            self._marks.restart(number, time.monotonic())
        self._settled[number] = start.offset
        self.committed.pop(number, None)
        self._restarted.add(number)
        return start

    def forget(self, number: int) -> None:
        """Forget the commits of a partition that belongs to another process."""
        self._marks.stop_checking(number)
        self._to_commit.pop(number, None)
        self.committed.pop(number, None)

    # Marks

    @property
    def has_marks_to_check(self) -> bool:
        """Whether the mark of some partition must still be compared with the topic's id."""
        return self._marks.has_unchecked

    def pop_partitions_of_another_topic(self) -> Sequence[int]:
        """Check the marks, as the topic's id is known now. Returns the partitions that began at a
        commit of an earlier topic: the reader must `restart` them at `BEGINNING`."""
        return self._marks.pop_partitions_of_another_topic()

    def stop_checking(self, number: int) -> None:
        """Leave the mark of a partition that is revoked as it is, for its last commit."""
        self._marks.stop_checking(number)

    # Leader epochs

    def update_epochs(self, numbers: Collection[int]) -> dict[int, int]:
        """Update the leader epochs of these partitions (`epochs`), and return the epoch to commit
        for each. It is the higher one of two: that of the last record read, and that of the log's
        end at the assignment (`_end_epochs`)."""
        return {
            number: max(self.update_epoch(number), self._end_epochs.get(number, NO_EPOCH))
            for number in numbers
        }

    def update_epoch(self, number: int) -> int:
        """Update a partition's leader epoch (`epochs`) to that of the last record read, and return
        it; `NO_EPOCH` if it isn't known. A consumer that resumes with too low an epoch would report
        lost data."""
        epoch, cursor = self.epochs.get(number, NO_EPOCH), self._cursors.get(number)
        buffer = None if cursor is None else cursor.buffer
        if buffer is not None and cursor not in buffer.unproven:
            epoch = self.epochs[number] = max(epoch, buffer.epochs.last)
        return epoch

    # Commits

    def store(self, commits: Commits) -> None:
        """Store commits until the topic makes them. A commit whose metadata is too long is dropped,
        and an earlier stored one stays."""
        for number, commit in commits.items():
            self._settled[number] = commit.offset
            # Kafka would refuse a commit with longer metadata, and storing it here would replace an
            # earlier one that is valid.
            if number in self._cursors and len(commit.metadata) <= MAX_METADATA:
                self._to_commit[number] = commit
        self._enqueue_stored()

    def _enqueue_stored(self) -> None:
        """Ask the topic to make the stored commits, if there are any."""
        if self._to_commit:
            self._enqueue()

    @property
    def to_commit(self) -> Mapping[int, OffsetAndMetadata]:
        """The commits that may be made now; none while another commit is under way."""
        return self._to_commit if self._committing is None else {}

    def start_commit(self) -> None:
        """Start to make the stored commits, without waiting for Kafka."""
        commits, self._to_commit = self._to_commit, {}
        self._restarted.clear()
        self._committing = asyncio.create_task(self._commit_or_store_again(commits))

    async def _commit_or_store_again(self, commits: dict[int, OffsetAndMetadata]) -> None:
        """Make one commit. If it fails, store its offsets for the next commit. If Kafka refuses it
        because the group has members of its own, fail the reader."""
        try:
            await self._commit(commits, self.update_epochs(commits))
        except GroupHasMembers as error:
            self._fail(error)
        except LogError as error:
            log.info("a commit of %s failed, and is made again: %s", self._group, error)
            unchanged = self._cursors.keys() - self._restarted
            failed_commits = {
                number: commit for number, commit in commits.items() if number in unchanged
            }
            self._to_commit = {**failed_commits, **self._to_commit}
        finally:
            self._committing = None
            self._enqueue_stored()
            self._changed.set()

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
        await self._offsets.commit(self._group, self._topic, full_commits)
        for number in full_commits.keys() & self._cursors.keys() - self._restarted:
            self.committed[number] = full_commits[number].offset

    async def commit_last(
        self, numbers: Collection[int], commits: Commits, epochs: Mapping[int, int]
    ) -> None:
        """Make the last commits of partitions that go to another process: `commits`, which the
        drain has returned, and stored ones, with these leader epochs. A commit that fails is only
        logged."""
        stored_commits = {
            number: self._to_commit.pop(number) for number in numbers if number in self._to_commit
        }
        while self._committing is not None:
            await self._wait_for_change()
        for number in numbers:
            self.committed.pop(number, None)
        commits_to_make = {
            number: commit
            for number, commit in {**stored_commits, **commits}.items()
            if number in numbers
        }
        if commits_to_make:
            try:
                await self._commit(commits_to_make, epochs)
            except LogError as error:
                # The next owner starts at the group's last commit: events repeat, none is lost.
                log.warning("the last commit of %s failed: %s", self._group, error)
        self._changed.set()  # `wait_until_made` may wait for it

    async def _wait_for_change(self) -> None:
        """Wait until a commit ends, or until there may be no commit to wait for any more."""
        self._changed.clear()
        await self._changed.wait()

    async def wait_until_made(self) -> None:
        """Wait until all stored commits are made, or given up."""
        while not self._is_given_up and (self._to_commit or self._committing is not None):
            await self._wait_for_change()

    def give_up(self) -> None:
        """Let `wait_until_made` end, as the reader has failed."""
        self._is_given_up = True
        self._changed.set()

    def close(self) -> None:
        """Forget the commits that are not made, and end the one under way."""
        self._to_commit = {}
        if self._committing is not None:
            self._committing.cancel()
