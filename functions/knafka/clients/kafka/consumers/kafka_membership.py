"""A consumer's membership in its group: joining, owned partitions, and leaving.

    joining --assigned--> member --finish--> finishing --last commit--> left
                          member --revoked: last commits of the partitions--> member

All methods are called on the thread that polls the consumer (docs/decisions/0004). The group's
callbacks run within such a poll, and wait there for `Assignment` on the event loop.

Not here: how a consumer joins (`kafka_group_consumer`), records (`kafka_reader`), and how offsets
are committed (`kafka_commits`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from knafka.clients.kafka.consumers.kafka_committed_topics import CommittedTopics
from knafka.clients.kafka.consumers.kafka_cut_logs import restart_of
from knafka.clients.kafka.consumers.kafka_elections import NO_ELECTION, elections_since
from knafka.clients.kafka.consumers.kafka_group_consumer import (
    COMMITTED_TIMEOUT,
    GroupConsumer,
    GroupProtocol,
    assign_paused,
    start_position_of,
)
from knafka.clients.kafka.consumers.kafka_stalled_partitions import StalledPartitions, names_of
from knafka.clients.kafka.kafka_client import Connection, log_error_of
from knafka.clients.kafka.kafka_commits import (
    MIN_REQUEST_TIMEOUT,
    NO_EPOCH,
    REBALANCING_ERRORS,
    OffsetCommits,
    epoch_of,
    topic_partition_of,
)
from knafka.core.errors import LogError
from knafka.core.numbering import Numbering
from knafka.ports.log import Assignment, Commits, OffsetAndMetadata

log = logging.getLogger(__name__)

REBALANCE_TIMEOUT: Final = 30.0
"""Most seconds that a rebalance waits for the event loop; `Assignment.on_revoked` has a limit of
its own."""
FINISHING_POLL_TIMEOUT: Final = 0.05
"""Seconds of a poll while the last attempts finish."""


class Membership(GroupConsumer):
    """A `GroupConsumer` on the topics of a `Numbering`, which numbers their partitions. `reads`:
    whether the records and commits of assigned partitions are read. `trusts_metadata`: whether the
    metadata of a commit are used even if a later leader election may have made them wrong."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        numbering: Numbering,
        assignment: Assignment,
        protocol: GroupProtocol,
        committed_topics: CommittedTopics,
        *,
        reads: bool = True,
        trusts_metadata: bool = False,
    ) -> None:
        """Join the group on the topics of `numbering`; called on the event loop, on which
        `assignment` is called too."""
        self._numbering = numbering
        self._committed_topics = committed_topics
        self._assignment = assignment
        self._reads = reads
        self._trusts_metadata = trusts_metadata
        self._loop = asyncio.get_running_loop()
        self.refusal: LogError | None = None
        """Why assigned partitions can't be read; every read raises it. None: they can be."""
        self.owned: dict[int, int] = {}
        """By owned partition, the lowest leader epoch that its commits may have: the epoch of the
        last commit or of the log's end at the assignment, whichever is later."""
        self.reached: dict[int, int] = {}
        """Ends that owned partitions have reached, and that no read has returned yet."""
        self.last_commits: Future[Commits] = Future()
        """The last commits to make, which `finish` requests from `Assignment`."""
        self._finishing: dict[int, int] = {}
        """After `finish`: the part of `owned` whose last commits aren't made yet."""
        self._is_finishing = self._closed = False  # whether `finish`, `close` were called
        self._restarts: dict[int, int] = {}
        """How often each partition was restarted."""
        self._of_present_topic: set[int] = set()
        """Owned partitions that surely read the present topic: they were restarted since they were
        assigned, or began at a commit with its mark."""
        self.known_restarts: Mapping[int, int] = {}
        """How often each partition was restarted, as far as `Assignment` knows; used only on the
        event loop."""
        self._commits = OffsetCommits(numbering, committed_topics.mark)
        self.stalled = StalledPartitions(connection)
        callbacks = {"on_commit": self._on_commit}
        super().__init__(connection, group, numbering.topics, protocol, callbacks)

    # While the consumer is a member

    def restart_partition(self, number: int, message: Message | None = None) -> int | None:
        """Read an owned partition again: from its start or, if `message` reports a lost offset,
        from the position that `restart_of` returns. Returns the offset, negative for the start;
        None: the partition isn't owned. `Assignment` is notified that the partition was lost, and
        then assigned anew without a commit."""
        if number not in self.owned:
            return None
        if message is None:
            restart = topic_partition_of(self._numbering, number)
            restart.offset = OFFSET_BEGINNING
        else:
            restart = restart_of(self.consumer, message, self._commits.last_offset(number))
        self.consumer.incremental_unassign([restart])
        self.consumer.incremental_assign([restart])
        self.consumer.resume([restart])
        self._forget_owned([restart])
        self.stalled.begin([restart])
        self.owned[number] = epoch_of(restart)
        if restart.offset >= 0:
            self._commits.note_committed(number, OffsetAndMetadata(restart.offset))
        else:
            self._committed_topics.note_restart((restart.topic, restart.partition), message is None)
        self._of_present_topic.add(number)
        self._restarts[number] = restarts = self._restarts.get(number, 0) + 1
        self._loop.call_soon_threadsafe(self._report_restart, number, restarts)
        return restart.offset

    def restart_topic(self, topic: str) -> None:
        """Read the owned partitions of a topic from their start, as the topic was created anew."""
        for number in [number for number in self.owned if self._numbering.topic(number) == topic]:
            self.restart_partition(number)

    def restart_assigned(self, topics: Collection[str]) -> Collection[int]:
        """Read owned partitions of these replaced topics from their start, unless they surely read
        the present topic, as after `restart_topic`. Returns the numbers of those restarted."""
        unsure = self.owned.keys() - self._of_present_topic
        numbers = [number for number in unsure if self._numbering.topic(number) in topics]
        for number in numbers:
            self.restart_partition(number)
        return numbers

    def _report_restart(self, number: int, restarts: int) -> None:
        """On the event loop: report a restarted partition to `Assignment` as lost and assigned
        anew, and note its `restarts` so far, by which `commit` drops commits requested before."""
        self.known_restarts = {**self.known_restarts, number: restarts}
        self._assignment.on_lost([number])
        self._assignment.on_assigned({number: None})

    def rejoin_if_stalled(self) -> None:
        """Join the group again with a new consumer if this one has stalled in a partition
        (`kafka_stalled_partitions`). Call this only when no record waits in its queue."""
        stalled = self.stalled.find(self.consumer)
        if not stalled:
            return
        log.warning(
            "the consumer of group %s has stalled in %s, where a new one would go on: it rejoins",
            self._group, names_of(stalled),
        )  # fmt: skip
        # Reported as lost, not revoked, so that nothing is committed for them: their offsets may be
        # of a log that is gone, and would hide records of the new one.
        self._loop.call_soon_threadsafe(self._assignment.on_lost, self._forget_owned(stalled))
        self.join_again()

    def pause(self, numbers: Iterable[int]) -> None:
        """Pause these partitions, which must be owned. Raises `KafkaException`."""
        partitions = self.partitions_of(numbers)
        self.consumer.pause(partitions)
        self.stalled.pause(partitions)

    def resume(self, numbers: Iterable[int]) -> None:
        """Resume these partitions, which must be owned. Raises `KafkaException`."""
        partitions = self.partitions_of(numbers)
        self.consumer.resume(partitions)
        self.stalled.resume(partitions)

    def partitions_of(self, numbers: Iterable[int]) -> list[TopicPartition]:
        """Return confluent-kafka's objects for these partitions."""
        return [topic_partition_of(self._numbering, number) for number in numbers]

    def number_of(self, partition: TopicPartition) -> int:
        """Return the number of confluent-kafka's object for a partition."""
        return self._numbering.number(partition.topic, partition.partition)

    def commit(self, commits: Commits, known_restarts: Mapping[int, int]) -> None:
        """Make the commits of partitions that are still owned, without waiting for Kafka.
        `known_restarts`: the value of that attribute when the commits were requested. Commits of
        partitions that were restarted since then are dropped."""
        if self._restarts:
            commits = {
                number: commit
                for number, commit in commits.items()
                if not self._was_restarted(number, known_restarts)
            }
        self._commits.commit(self.consumer, commits, self.owned)

    def _was_restarted(self, number: int, known_restarts: Mapping[int, int]) -> bool:
        """Whether a partition was restarted after a commit was requested (`known_restarts` as in
        `commit`): then the commit is of the former log, and would hide records of the new one."""
        return self._restarts.get(number, 0) != known_restarts.get(number, 0)

    def repeat_commit(self) -> None:
        """Make commits again that failed during a rebalance, if a repetition is due."""
        self._commits.repeat(self.consumer, self.owned)

    def commit_now(self, commits: Commits, known_restarts: Mapping[int, int]) -> None:
        """Make these commits and wait until Kafka confirms them. Raises `LogError`, also if a
        partition isn't owned, or was restarted since (`known_restarts` as in `commit`)."""
        refused = commits.keys() - self.owned.keys()
        refused |= {number for number in commits if self._was_restarted(number, known_restarts)}
        if refused:
            raise LogError(f"partitions aren't owned, or were restarted: {sorted(refused)}")
        try:
            self._commits.commit_now(self.consumer, commits, self.owned)
        except KafkaException as error:
            raise log_error_of(error.args[0]) from None

    def confirm(self, commits: Commits) -> bool:
        """Commit the offsets of owned partitions, and return whether Kafka accepts them, which
        proves that this is still a member; False also if none of the partitions is owned."""
        owned_commits = {
            number: commit for number, commit in commits.items() if number in self.owned
        }
        if not owned_commits:
            return False
        try:
            self._commits.commit_unrecorded(self.consumer, owned_commits, self.owned)
        except KafkaException as error:
            log.info("the group %s didn't confirm: %s", self._group, error.args[0].str())
            return False
        return True

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Pass the result of a commit on to `OffsetCommits`."""
        self._commits.note_result(error, partitions, self.owned)

    # Leaving

    def finish(self, timeout: float) -> None:
        """Stop reading, and request the last commits from `Assignment`. The future `last_commits`
        is done within `timeout` seconds."""
        self._is_finishing = True
        self._finishing, self.owned = self.owned, {}
        numbers = sorted(self._finishing)
        if not numbers:
            self.last_commits.set_result({})
            return
        self.consumer.pause(self.partitions_of(numbers))
        self.last_commits = asyncio.run_coroutine_threadsafe(
            self._request_last_commits(numbers, timeout), self._loop
        )

    async def _request_last_commits(self, numbers: Sequence[int], timeout: float) -> Commits:
        """Return the last commits of these partitions from `Assignment.on_revoked`; empty if that
        takes longer than `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                return await self._assignment.on_revoked(numbers)
        except TimeoutError:
            log.warning("the last attempts of %s take longer than there is time", self._group)
            return {}

    def serve(self) -> None:
        """Poll only to keep the membership, as reading has stopped."""
        self.send_due_heartbeat()
        self.consumer.poll(FINISHING_POLL_TIMEOUT)

    def commit_last(self, deadline: float) -> bool:
        """Make the last commits of partitions that still belong to this member. Returns False if
        this must be called again, because of a rebalance. `deadline`: by `time.monotonic`."""
        commits = self.last_commits.result()
        owned_commits = {
            number: commit for number, commit in commits.items() if number in self._finishing
        }
        try:
            if owned_commits:
                self._commits.commit_unrecorded(self.consumer, owned_commits, self._finishing)
            elif self.protocol is GroupProtocol.CLASSIC and self.consumer.memberid():
                # Ask for any commit only to learn from the answer that no JoinGroup is pending:
                # while one waits for other members, librdkafka gives up leaving after 5 s.
                timeout = max(MIN_REQUEST_TIMEOUT, deadline - time.monotonic())
                self.consumer.committed(self.partitions_of([0]), timeout)
        except KafkaException as error:
            if error.args[0].code() in REBALANCING_ERRORS:
                return False
            _log_failed_commit(error)
        self._finishing.clear()
        return True

    def close(self) -> None:
        """Leave the group, whether or not the last commits were made; further calls do nothing."""
        if not self._closed:
            self._closed = True
            self.leave()

    # Callbacks of the group, within a poll

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Read newly assigned partitions from the group's commits on; notify `Assignment`."""
        self.joined = True
        if self._is_finishing:
            assign_paused(consumer, partitions)
            return
        if not self._reads:
            assign_paused(consumer, partitions)
            without_commits = dict.fromkeys(map(self.number_of, partitions))
            self.owned.update(dict.fromkeys(without_commits, NO_EPOCH))
            self._loop.call_soon_threadsafe(self._assignment.on_assigned, without_commits)
            return
        topics = self._committed_topics
        try:
            committed = topics.start(consumer, partitions, COMMITTED_TIMEOUT)
        except LogError as error:
            self.refusal = error
            return
        self.stalled.begin(map(start_position_of, committed))
        elections = (
            {} if self._trusts_metadata else elections_since(consumer, self._connection, committed)
        )
        commits: dict[int, OffsetAndMetadata | None] = {}
        for entry in committed:
            number = self.number_of(entry)
            election = elections.get((entry.topic, entry.partition), NO_ELECTION)
            # With the end's epoch, the next commits' metadata hold until a leader is elected again.
            self.owned[number] = max(epoch_of(entry), election.end_epoch)
            if topics.is_of_present_topic(entry):
                self._of_present_topic.add(number)
            commit = commits[number] = election.commit_of(entry)
            if commit is not None:
                self._commits.note_committed(number, commit)
        self._loop.call_soon_threadsafe(self._assignment.on_assigned, commits)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Wait for `Assignment` to finish with revoked partitions, and make their last commits."""
        finishing = set(map(self.number_of, partitions)) & self._finishing.keys()
        epochs = {**self.owned, **self._finishing}
        numbers = self._forget_owned(partitions)
        try:
            commits = self._last_commits_of(numbers, finishing)
            if commits:
                self._commits.commit_revoked(consumer, commits, epochs)
        except (KafkaException, TimeoutError, CancelledError) as error:
            _log_failed_commit(error)
        finally:
            for number in finishing:
                del self._finishing[number]
            consumer.incremental_unassign(partitions)

    def _last_commits_of(self, numbers: Sequence[int], finishing: Collection[int]) -> Commits:
        """Wait until the attempts of revoked partitions have finished, and return their last
        commits. `finishing`: revoked partitions whose last commits `finish` has requested."""
        commits: dict[int, OffsetAndMetadata] = {}
        if numbers:
            revocation: Any = self._assignment.on_revoked(numbers)
            last_attempts = asyncio.run_coroutine_threadsafe(revocation, self._loop)
            commits |= last_attempts.result(REBALANCE_TIMEOUT)
        if finishing:
            last_commits = self.last_commits.result(REBALANCE_TIMEOUT)
            commits |= {
                number: commit for number, commit in last_commits.items() if number in finishing
            }
        return commits

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget partitions that already belong to another member; notify `Assignment`."""
        for entry in partitions:
            self._finishing.pop(self.number_of(entry), None)
        self._loop.call_soon_threadsafe(self._assignment.on_lost, self._forget_owned(partitions))
        consumer.incremental_unassign(partitions)

    def _forget_owned(self, partitions: list[TopicPartition]) -> list[int]:
        """Stop owning these partitions. Returns the numbers of those that were owned; `Assignment`
        knows only these."""
        numbers = [number for number in map(self.number_of, partitions) if number in self.owned]
        for number in numbers:
            del self.owned[number]
            self._of_present_topic.discard(number)
            self.reached.pop(number, None)
            self.stalled.drop(self.partitions_of([number]))
            self._commits.forget(number)
        return numbers


def _log_failed_commit(error: Exception) -> None:
    """Log that a revoked partition's last commit failed; some events will be delivered twice."""
    log.warning("the last commit of a revoked partition failed: %r", error)
