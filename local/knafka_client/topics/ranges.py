"""RangeReader: reads offsets, times and records of topics without joining a consumer group.

`knafka tail`, `trace`, `trigger rewind`, `sensor next` and `sensor skip` read with it. It never
joins the group whose name it has; only `commit` writes.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from knafka.clients.kafka.consumers.kafka_topic_marks import read_topic_mark
from knafka.clients.kafka.kafka_client import log_error_of, open_admin, open_client
from knafka.clients.kafka.kafka_commits import metadata_of, topic_mark_of, with_epochs
from knafka.clients.kafka.kafka_requests import REQUEST_RETRY_INTERVAL, read_watermarks
from knafka.core.commit_metadata import is_of_another_topic, mark
from knafka.core.errors import LogError
from knafka.ports.log import Commits, OffsetAndMetadata, Record
from knafka.ports.shared_log import GroupHasMembers

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._metadata import PartitionMetadata

KAFKA_ANSWER_TIMEOUT: Final = 15.0
"""Seconds for one request to Kafka."""
LEADER_TIMEOUT: Final = 3.0
"""Seconds to wait for partitions without a leader: enough to elect another."""
READ_BATCH_RECORDS: Final = 1000
"""Largest number of records that `records` takes from the client at once."""
BATCH_WAIT: Final = 0.1
"""Seconds to wait for a full batch; the last batch of a range is smaller."""

OffsetSpans: TypeAlias = Mapping[int, tuple[int, int]]
"""First offset and end offset of each partition of a topic."""

_GROUP_HAS_MEMBERS_ERRORS: Final = frozenset(
    {
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.NON_EMPTY_GROUP,
    }
)
"""Errors by which Kafka refuses a commit from outside a group that has members."""


class TopicMarks:
    """The marks of topics in one Kafka. A mark tells a topic from an earlier one of the same name
    (`core.commit_metadata`); each is read once, at its first use. Several readers, also on several
    threads, may share one instance."""

    def __init__(self, connection: Mapping[str, Any]) -> None:
        """`connection` is the librdkafka configuration that reaches Kafka; a client is opened at
        the first use."""
        self._connection = connection
        self._lock = Lock()
        self._admin: AdminClient | None = None
        self._marks: dict[str, str] = {}
        """The marks that were read, by topic."""

    def get(self, topic: str) -> str:
        """Return the mark of the topic of this name. Reads it from Kafka at the first call; later
        calls return the same mark, even if the topic was replaced. Raises `KafkaException`."""
        with self._lock:
            if topic not in self._marks:
                if self._admin is None:
                    self._admin = open_admin(self._connection, lambda error: None)
                self._marks[topic] = read_topic_mark(self._admin, topic, KAFKA_ANSWER_TIMEOUT)
            return self._marks[topic]


class RangeReader:
    """Reads ranges of offsets; use it with `with`, in one thread. All methods raise `LogError`."""

    def __init__(
        self,
        connection: Mapping[str, Any],
        group: str,
        settings: Mapping[str, Any] | None = None,
        marks: TopicMarks | None = None,
    ) -> None:
        """`connection` is the librdkafka configuration that reaches Kafka, and `settings` are
        further librdkafka settings. `group` is the consumer group whose offsets `committed` reads
        and `commit` sets. `marks` are shared with other readers; None: this one has its own."""
        self._marks = marks or TopicMarks(connection)
        self.consumer = open_client(
            Consumer,
            {
                **(settings or {}),
                **connection,
                "group.id": group,  # librdkafka requires it even of a reader that never commits
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
            },
        )

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the consumer. A `KafkaException` that was raised inside is raised as a `LogError`
        instead."""
        self.consumer.close()
        if isinstance(error, KafkaException):
            raise log_error_of(error.args[0]) from error

    def readable_spans(self, topic: str) -> tuple[dict[int, tuple[int, int]], Collection[int]]:
        """Return the first offset and the end offset of each partition of a topic that can be read,
        and the numbers of the others, which have no leader. Waits up to `LEADER_TIMEOUT` seconds
        for leaders first. Raises `LogError`, also if the topic doesn't exist."""
        deadline = time.monotonic() + LEADER_TIMEOUT
        while True:
            partitions = self._partitions(topic)
            # librdkafka's -1 stands for no leader.
            leaderless = {
                number for number, partition in partitions.items() if partition.leader < 0
            }
            if not leaderless or time.monotonic() > deadline:
                readable = [number for number in partitions if number not in leaderless]
                return self._spans_of(topic, readable), leaderless
            time.sleep(REQUEST_RETRY_INTERVAL)

    def spans(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return the first offset of each partition of a topic, and its end offset: the one after
        its last record. Raises `LogError`, also if a partition has no leader, or if the topic
        doesn't exist."""
        return self._spans_of(topic, self._partitions(topic))

    def _spans_of(self, topic: str, numbers: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Return the first offset and the end offset of these partitions of a topic. Raises
        `LogError`."""
        try:
            return read_watermarks(self.consumer, topic, numbers, KAFKA_ANSWER_TIMEOUT)
        except KafkaException as error:
            raise log_error_of(error.args[0]) from error

    def _partitions(self, topic: str) -> Mapping[int, PartitionMetadata]:
        """Return Kafka's metadata of each partition of a topic, by number. Raises `LogError`."""
        try:
            metadata = self.consumer.list_topics(topic, timeout=KAFKA_ANSWER_TIMEOUT).topics[topic]
        except KafkaException as error:
            raise log_error_of(error.args[0]) from error
        if metadata.error is not None:
            raise log_error_of(metadata.error)
        partitions: Mapping[int, PartitionMetadata] = metadata.partitions
        return partitions

    def offsets_since(self, topic: str, spans: OffsetSpans, since: float) -> dict[int, int]:
        """Return the offset of each partition's first record since a time, in seconds since the
        Unix epoch.

        If there is no such record, the offset is the partition's end offset. `spans` has the first
        offset and the end offset of each partition to look at.
        """
        times = [TopicPartition(topic, number, int(since * 1000)) for number in spans]
        starts = {}
        try:
            for position in self.consumer.offsets_for_times(times, timeout=KAFKA_ANSWER_TIMEOUT):
                if position.error is not None:
                    raise log_error_of(position.error)
                low, end = spans[position.partition]
                # A negative offset stands for no record since that time.
                starts[position.partition] = (
                    max(low, position.offset) if position.offset >= 0 else end
                )
        except KafkaException as error:
            raise log_error_of(error.args[0]) from error
        return starts

    def committed(self, topic: str, partitions: Collection[int]) -> Commits:
        """Return the group's committed offset and metadata by partition. A partition is left out if
        it has no commit, or one for an earlier topic of this name."""
        topic_partitions = [TopicPartition(topic, number) for number in partitions]
        try:
            present_mark = self._marks.get(topic)
            positions = self.consumer.committed(topic_partitions, timeout=KAFKA_ANSWER_TIMEOUT)
        except KafkaException as error:
            raise log_error_of(error.args[0]) from error
        for position in positions:
            if position.error is not None:
                raise log_error_of(position.error)
        return {
            position.partition: OffsetAndMetadata(position.offset, metadata_of(position))
            for position in positions
            if position.offset >= 0  # a negative one stands for no commit
            and not is_of_another_topic(topic_mark_of(position), present_mark)
        }

    def commit(self, positions: Sequence[TopicPartition]) -> None:
        """Commit these offsets for the group, each with its metadata.

        Raises `GroupHasMembers` if the group has any member.

        Each offset is committed with the partition's current leader epoch, so that the group's next
        reader notices if the partition loses its last records. Its metadata gets the mark of its
        topic, so that the reader notices if the topic is deleted and created again.
        """
        try:
            marked = [
                TopicPartition(
                    entry.topic,
                    entry.partition,
                    entry.offset,
                    mark(entry.metadata or "", self._marks.get(entry.topic)),
                )
                for entry in positions
            ]
            offsets = with_epochs(self.consumer, marked, KAFKA_ANSWER_TIMEOUT)
            for position in self.consumer.commit(offsets=offsets, asynchronous=False) or ():
                if position.error is not None:
                    raise KafkaException(position.error)
        except KafkaException as error:
            problem = error.args[0]
            if problem.code() in _GROUP_HAS_MEMBERS_ERRORS:
                raise GroupHasMembers(str(problem.str())) from error
            raise log_error_of(problem) from error

    def records(
        self, topic: str, starts: Mapping[int, int], ends: Mapping[int, int]
    ) -> Iterator[Record]:
        """Yield the records of each partition in `ends`, from its offset in `starts` to before its
        offset in `ends`. Records of different partitions are mixed.

        Raises `LogError` also if Kafka sends nothing for `KAFKA_ANSWER_TIMEOUT` seconds.
        """
        unread = {number for number, end in ends.items() if starts[number] < end}
        self.consumer.assign([TopicPartition(topic, number, starts[number]) for number in unread])
        last_answer = time.monotonic()
        while unread:
            messages = self.consumer.consume(READ_BATCH_RECORDS, BATCH_WAIT)
            if messages:
                last_answer = time.monotonic()
            elif time.monotonic() > last_answer + KAFKA_ANSWER_TIMEOUT:
                raise LogError(
                    f"Kafka has not answered for {KAFKA_ANSWER_TIMEOUT:.0f} s: {topic} can't be "
                    "read on"
                )
            for message in messages:
                number, offset = cast(int, message.partition()), cast(int, message.offset())
                if (error := message.error()) is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        unread.discard(number)
                    elif not error.retriable():
                        raise log_error_of(error)
                    continue
                if offset < ends[number]:
                    yield cast(Record, message)
                # The record before the end offset may be missing: a transaction's marker, or
                # compaction, leaves an offset without a record.
                if offset >= ends[number] - 1 and number in unread:
                    unread.discard(number)
                    # Not `pause`: a pause outlives the assignment and would hold up the next one.
                    self.consumer.incremental_unassign([TopicPartition(topic, number)])

    def first_record(self, topic: str, number: int, offset: int, timeout: float) -> Record | None:
        """Return the first record of partition `number` of a topic at or after an offset.

        None if there is none, or if Kafka doesn't send it within `timeout` seconds.
        """
        self.consumer.assign([TopicPartition(topic, number, offset)])
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            message = self.consumer.poll(1.0)
            if message is None:
                continue
            if (error := message.error()) is None:
                return cast(Record, message)
            if error.code() == KafkaError._PARTITION_EOF:
                return None
            if not error.retriable():
                raise log_error_of(error)
        return None


def leaderless_text(topic: str, numbers: Collection[int]) -> str:
    """Return the beginning of a sentence for users: partitions of a topic, by `numbers`, have no
    leader."""
    names = ", ".join(map(str, sorted(numbers)))
    if len(numbers) == 1:
        return f"partition {names} of {topic} has no leader"
    return f"partitions {names} of {topic} have no leader"
