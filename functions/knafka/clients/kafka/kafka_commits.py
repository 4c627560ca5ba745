"""The commits of a reader's offsets, on the thread that polls its consumer.

Regular commits don't wait. If one fails during a rebalance it is repeated; any other failure shows
as lag until the next commit. A partition's last commit waits for Kafka, as no other follows. Not
here: which offsets are committed (`dispatcher.engine.drain`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from knafka.clients.kafka.kafka_client import PartitionKey
from knafka.core.commit_metadata import unmark
from knafka.core.numbering import Numbering, partition_of
from knafka.ports.log import Commits, OffsetAndMetadata

COMMIT_RETRY_INTERVAL: Final = 0.1
"""Seconds before a commit is repeated."""
COMMIT_TIMEOUT: Final = 5.0
"""Seconds for which the commit of a revoked partition is repeated during a rebalance."""
MIN_REQUEST_TIMEOUT: Final = 0.1
"""Least seconds for a request, even if its deadline is nearer or has passed."""
NO_EPOCH: Final = -1
"""librdkafka's value for an unknown leader epoch."""
NO_LEADER: Final = -1
"""librdkafka's value for the leader of a partition that has none."""

REBALANCING_ERRORS: Final = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
    }
)
"""Errors of a commit that may succeed a moment later, as during a rebalance."""

Epochs: TypeAlias = Mapping[int, int]
"""The least leader epoch for a commit of each partition, by the partition's number."""
OwnedEpochs: TypeAlias = Epochs
"""The `Epochs` of the partitions that the reader owns: no other partition may be committed."""

Mark: TypeAlias = Callable[[PartitionKey, str], str]
"""Gets a partition and the metadata of its commit; returns the metadata with the mark of the
partition's topic (`core.commit_metadata`)."""


class OffsetCommits:
    """Makes the commits of one reader, whose partitions are identified by their numbers."""

    def __init__(self, numbering: Numbering, mark: Mark) -> None:
        """Begin without commits. `numbering` converts numbers to topics and partitions; `mark` adds
        the mark of a partition's topic to a commit's metadata."""
        self._numbering = numbering
        self._mark = mark
        self._last_commits: dict[int, OffsetAndMetadata] = {}
        """The last commit of each partition: this reader's, or the one that the group had when the
        partition was assigned."""
        self._to_repeat: dict[int, OffsetAndMetadata] = {}
        """Commits that have failed during a rebalance and are made again by `repeat`."""
        self._repeat_at = 0.0
        """Monotonic time from which on `_to_repeat` may be committed."""

    def commit(self, consumer: Consumer, commits: Commits, owned: OwnedEpochs) -> None:
        """Make the commits of partitions that are still `owned`, without waiting for Kafka, and
        drop the others. Failed earlier commits of all these partitions are no longer repeated.
        Never raises: the consumer's `on_commit` gets Kafka's answer, and must pass it to
        `note_result`."""
        owned_commits = {number: commit for number, commit in commits.items() if number in owned}
        self._drop_repetitions(commits)
        if owned_commits:
            self._last_commits.update(owned_commits)
            with suppress(KafkaException):
                consumer.commit(
                    offsets=self._to_topic_partitions(consumer, owned_commits, owned),
                    asynchronous=True,
                )

    def repeat(self, consumer: Consumer, owned: OwnedEpochs) -> None:
        """Repeat the commits that have failed during a rebalance, if `COMMIT_RETRY_INTERVAL`
        seconds have passed since the last failure."""
        if self._to_repeat and time.monotonic() > self._repeat_at:
            self.commit(consumer, self._to_repeat, owned)

    def _drop_repetitions(self, commits: Commits) -> None:
        """Stop repeating failed commits of the partitions in `commits`, which replaces them."""
        self._to_repeat = {
            number: earlier_commit
            for number, earlier_commit in self._to_repeat.items()
            if number not in commits
        }

    def note_result(
        self, error: KafkaError | None, partitions: list[TopicPartition], owned: OwnedEpochs
    ) -> None:
        """Note the result of a commit made without waiting. `error`: the error of the whole
        request; None: there is none. Each of `partitions` may have an error of its own. If a commit
        has failed during a rebalance, is its partition's last one, and the partition is still
        `owned`, the commit is repeated later (`repeat`)."""
        for entry in partitions:
            entry_error = entry.error or error
            number = self._numbering.number(entry.topic, entry.partition)
            last_commit = self._last_commits.get(number)
            failed_in_rebalance = (
                entry_error is not None and entry_error.code() in REBALANCING_ERRORS
            )
            if (
                failed_in_rebalance
                and number in owned
                and last_commit is not None
                and last_commit.offset == entry.offset  # no later commit was requested
            ):
                self._to_repeat[number] = last_commit
                self._repeat_at = time.monotonic() + COMMIT_RETRY_INTERVAL

    def commit_now(self, consumer: Consumer, commits: Commits, owned: OwnedEpochs) -> None:
        """Make these commits, and wait for Kafka; failed earlier commits of the same partitions are
        no longer repeated. Raises `KafkaException` if Kafka refuses a commit."""
        self._drop_repetitions(commits)
        self._last_commits.update(commits)
        self.commit_unrecorded(consumer, commits, owned)

    def commit_unrecorded(self, consumer: Consumer, commits: Commits, epochs: Epochs) -> None:
        """Make these commits, and wait for Kafka. Unlike `commit_now`, this doesn't note them as
        the partitions' last commits, and failed earlier commits are still repeated. Raises
        `KafkaException` if Kafka refuses a commit."""
        offsets = self._to_topic_partitions(consumer, commits, epochs)
        for entry in consumer.commit(offsets=offsets, asynchronous=False) or ():
            if entry.error is not None:
                raise KafkaException(entry.error)

    def commit_revoked(self, consumer: Consumer, commits: Commits, epochs: Epochs) -> None:
        """Make the last commits of revoked partitions, and wait for Kafka. If that fails during a
        rebalance, repeat the commits for `COMMIT_TIMEOUT` seconds. Raises `KafkaException` if they
        fail otherwise, or for longer."""
        deadline = time.monotonic() + COMMIT_TIMEOUT
        while True:
            try:
                self.commit_unrecorded(consumer, commits, epochs)
            except KafkaException as error:
                if error.args[0].code() not in REBALANCING_ERRORS or time.monotonic() > deadline:
                    raise
                time.sleep(COMMIT_RETRY_INTERVAL)
            else:
                return

    def note_committed(self, partition: int, committed: OffsetAndMetadata) -> None:
        """Note the group's commit of a partition that was just assigned."""
        self._last_commits[partition] = committed

    def last_offset(self, partition: int) -> int | None:
        """Return the offset of the partition's last commit, below which everything is settled;
        None: nothing was committed."""
        last_commit = self._last_commits.get(partition)
        return None if last_commit is None else last_commit.offset

    def forget(self, partition: int) -> None:
        """Forget the commits of a partition that is no longer owned."""
        self._last_commits.pop(partition, None)
        self._to_repeat.pop(partition, None)

    def _to_topic_partitions(
        self, consumer: Consumer, commits: Commits, epochs: Epochs
    ) -> list[TopicPartition]:
        """Return these commits as confluent-kafka's objects, with leader epochs, by which the next
        reader notices that the log has lost records before its offset. A commit gets the epoch of
        the last record that was read, or the one in `epochs` if that is later."""
        # If the epoch is later than that of the record at the offset, that does no harm; if it were
        # earlier, the log would seem to have lost records.
        epochs, numbering = dict(epochs), self._numbering
        for entry in consumer.position(
            [topic_partition_of(numbering, number) for number in commits]
        ):
            number = numbering.number(entry.topic, entry.partition)
            epochs[number] = max(epoch_of(entry), epochs.get(number, NO_EPOCH))
        return [
            TopicPartition(
                numbering.topic(number),
                partition_of(number),
                entry.offset,
                self._mark((numbering.topic(number), partition_of(number)), entry.metadata),
                epochs.get(number, NO_EPOCH),
            )
            for number, entry in commits.items()
        ]


def with_epochs(
    consumer: Consumer, offsets: Sequence[TopicPartition], timeout: float
) -> list[TopicPartition]:
    """Return these offsets with leader epochs, to be committed for a group without members: by the
    epoch, a reader that continues there notices if the log was cut.

    Each offset gets the epoch in which its partition's log ends now. That may be later than the
    epoch of the record at the offset, which does no harm: only with an earlier epoch would the log
    seem to have lost records. Blocks for `timeout` seconds at most. Raises `KafkaException`."""
    # `OFFSET_END` in place of a time asks for the log's end, and the answer has the end's epoch.
    queries = [TopicPartition(entry.topic, entry.partition, OFFSET_END) for entry in offsets]
    ends = {(end.topic, end.partition): end for end in consumer.offsets_for_times(queries, timeout)}
    offsets_with_epochs = []
    for entry in offsets:
        end = ends[entry.topic, entry.partition]
        if end.error is not None:
            raise KafkaException(end.error)
        offsets_with_epochs.append(
            TopicPartition(
                entry.topic, entry.partition, entry.offset, entry.metadata or "", epoch_of(end)
            )
        )
    return offsets_with_epochs


def end_epochs(
    consumer: Consumer, partitions: Sequence[TopicPartition], timeout: float
) -> dict[PartitionKey, int]:
    """Return the leader epochs in which the logs of these partitions end now, by topic and
    partition. Failed requests are repeated for `timeout` seconds; partitions without an answer by
    then are left out. Blocks. Never raises."""
    deadline = time.monotonic() + timeout
    epochs: dict[PartitionKey, int] = {}
    # `OFFSET_END` in place of a time asks for the log's end, as in `with_epochs`.
    missing = [TopicPartition(entry.topic, entry.partition, OFFSET_END) for entry in partitions]
    requests = [missing]
    # The first request has all partitions, and may fail as a whole: half of the time is kept for
    # requests by leader.
    request_timeout = timeout if len(missing) < 2 else timeout / 2
    while True:
        for request in requests:
            with suppress(KafkaException):
                for end in consumer.offsets_for_times(
                    request, max(MIN_REQUEST_TIMEOUT, request_timeout)
                ):
                    if end.error is None:
                        epochs[end.topic, end.partition] = epoch_of(end)
        missing = [entry for entry in missing if (entry.topic, entry.partition) not in epochs]
        if not missing or time.monotonic() + COMMIT_RETRY_INTERVAL > deadline:
            return epochs
        time.sleep(COMMIT_RETRY_INTERVAL)
        # librdkafka's request fails as a whole if one partition has no leader, or one leader
        # doesn't answer.
        requests = _group_by_leader(consumer, missing, deadline - time.monotonic())
        request_timeout = (deadline - time.monotonic()) / max(1, len(requests))


def _group_by_leader(
    consumer: Consumer, partitions: Sequence[TopicPartition], timeout: float
) -> list[list[TopicPartition]]:
    """Group partitions by leader; those without a leader are left out. If there is only one
    partition, or Kafka doesn't name the leaders of a topic within `timeout` / 2 seconds, all
    partitions are returned as one group. Never raises."""
    if len(partitions) < 2:
        return [list(partitions)]
    groups: dict[int, list[TopicPartition]] = {}
    try:
        for topic in dict.fromkeys(entry.topic for entry in partitions):
            metadata = consumer.list_topics(topic, max(MIN_REQUEST_TIMEOUT, timeout / 2))
            described = metadata.topics[topic].partitions
            for entry in partitions:
                if entry.topic == topic and entry.partition in described:
                    leader = described[entry.partition].leader
                    groups.setdefault(leader, []).append(entry)
    except KafkaException:
        return [list(partitions)]
    groups.pop(NO_LEADER, None)
    return list(groups.values())


def topic_partition_of(numbering: Numbering, number: int) -> TopicPartition:
    """Return confluent-kafka's object for the partition with this number."""
    return TopicPartition(numbering.topic(number), partition_of(number))


def epoch_of(partition: TopicPartition) -> int:
    """Return the leader epoch of an offset; `NO_EPOCH` if it has none."""
    return NO_EPOCH if partition.leader_epoch is None else partition.leader_epoch


def metadata_of(committed: TopicPartition) -> str:
    """Return the metadata of a group's commit, without its topic's mark; empty: there are none."""
    _, metadata = unmark(committed.metadata or "")
    return metadata


def topic_mark_of(committed: TopicPartition) -> str:
    """Return the mark in a group's commit, which is the `short_id` of its topic; empty if the
    commit has no mark."""
    topic_mark, _ = unmark(committed.metadata or "")
    return topic_mark
