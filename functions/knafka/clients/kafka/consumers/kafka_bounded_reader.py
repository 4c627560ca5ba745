"""Reads partitions from their start to their present end, and finds the end offsets of topics.

It also reads a group's committed offsets, without joining the group, so that no rebalance delays
it: Kafka answers no request of a member whose JoinGroup waits for other members. A process uses
this reader for state that it needs before it goes on. Every call blocks, and all calls must come
from one thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, cast

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from knafka.clients.kafka.consumers.kafka_group_consumer import committed_of
from knafka.clients.kafka.consumers.kafka_topic_marks import read_topic_mark
from knafka.clients.kafka.kafka_client import (
    CONSUMER_DEFAULTS,
    TRANSIENT_ERRORS,
    Connection,
    log_error_of,
    open_admin,
    open_client,
)
from knafka.clients.kafka.kafka_commits import MIN_REQUEST_TIMEOUT, metadata_of, topic_mark_of
from knafka.clients.kafka.kafka_requests import (
    MOVING_ERRORS,
    MOVING_LEADER_ERRORS,
    NO_ANSWER_ERRORS,
    REQUEST_RETRY_INTERVAL,
    refresh_metadata,
)
from knafka.core.commit_metadata import is_of_another_topic
from knafka.core.errors import LogError
from knafka.core.kafka_settings.connection_errors import ConnectionErrors
from knafka.ports.log import OffsetAndMetadata, Positions, Record

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

BOUNDED_READ_REQUEST_TIMEOUT: Final = 15.0
"""Most seconds for a request with all its tries, enough for a leader to move meanwhile."""
STALLED_READ_TIMEOUT: Final = 60.0
"""Seconds without progress after which reading fails: longer than Kafka keeps the transaction of a
dead producer open."""
SINGLE_REQUEST_TIMEOUT: Final = 5.0
"""Most seconds for one try of a request, as an answer may be lost."""
PARTITIONS_VALID_SECONDS: Final = 10.0
"""Seconds for which a topic's partitions are cached."""
OTHER_MARK_VALID_SECONDS: Final = 1.0
"""Seconds for which a topic's mark is cached if a commit's mark differs from it; while they agree,
it is cached for `PARTITIONS_VALID_SECONDS`."""
QUICK_REQUEST_TIMEOUT: Final = 1.0
"""Most seconds for the request of `reachable_ends`, which the caller soon makes again."""
READ_POLL_TIMEOUT: Final = 1.0
"""Most seconds of one poll for records, after which `STALLED_READ_TIMEOUT` is checked."""
READ_BATCH_RECORDS: Final = 5_000
"""Most records that `read_all` yields at a time."""

_BOUNDED_READ_SETTINGS: Final = {
    **CONSUMER_DEFAULTS,
    "auto.offset.reset": "earliest",
    # The marker of a transaction follows its last record. Only a response without records shows
    # that the marker was reached, and Kafka waits this long before it sends one.
    "fetch.wait.max.ms": 10,
    # The process has no other work meanwhile, so there is no reason to fetch little.
    "fetch.message.max.bytes": 4 * 1024 * 1024,
    "queued.min.messages": 100_000,
    "queued.max.messages.kbytes": 64 * 1024,
}
"""Settings of all consumers of a `BoundedReader`."""

T = TypeVar("T")


class _Partitions(NamedTuple):
    """The partitions of a topic."""

    known: list[TopicPartition]
    """All partitions."""
    led: list[TopicPartition]
    """Partitions that have a leader."""


class BoundedReader:
    """Reads topics up to their present ends, and committed offsets. Its consumers and its admin
    client are opened at their first use, and then kept."""

    def __init__(self, connection: Connection, group: str) -> None:
        """Store the connection; clients are opened at their first use. `group`: the consumer group
        whose committed offsets are read."""
        self._connection = connection
        self._group = group
        self._errors = ConnectionErrors()
        """What librdkafka has reported of its connections, for the text of a `LogError`."""
        self._opened_consumer: Consumer | None = None  # None: it isn't opened yet
        self._opened_admin: AdminClient | None = None  # None: it isn't opened yet
        self._opened_uncommitted_consumer: Consumer | None = None
        """The consumer of `committed_now`; None: it isn't opened yet."""
        self._cached_partitions: dict[str, tuple[_Partitions, float]] = {}
        """Partitions of topics, and when they were requested (`time.monotonic`)."""
        self._cached_marks: dict[str, tuple[str, float]] = {}
        """Marks of topics, and when they were requested (`time.monotonic`)."""

    @property
    def _consumer(self) -> Consumer:
        """The consumer of committed records, which is opened at its first use. Raises
        `LogError`."""
        if self._opened_consumer is None:
            self._opened_consumer = open_client(
                Consumer,
                {**_BOUNDED_READ_SETTINGS, **self._connection, "group.id": self._group},
            )
        return self._opened_consumer

    @property
    def _admin(self) -> AdminClient:
        """The admin client, which is opened at its first use. Raises `LogError`."""
        if self._opened_admin is None:
            self._opened_admin = open_admin(self._connection, self._errors.record)
        return self._opened_admin

    def read_all(self, topic: str, partition: int) -> Iterator[Sequence[Record]]:
        """Return an iterator over a partition's records from its start to its present end, in
        batches; empty if there are none. The end is read now, the records while iterating. Only one
        partition can be read at a time. Raises `LogError`."""
        topic_partition = TopicPartition(topic, partition)
        try:
            end = self._read_ends([topic_partition])[partition]
        except LogError:
            # If this raises, too, its error is clearer than that of a request for offsets.
            self.partitions(topic)
            raise
        return self._read_to(end, topic_partition) if end else iter(())

    def _read_to(self, end: int, topic_partition: TopicPartition) -> Iterator[Sequence[Record]]:
        """Yield the records of a partition in batches, up to the offset `end`. Raises `LogError`,
        also after `STALLED_READ_TIMEOUT` seconds without progress."""
        # The offset is 0, not OFFSET_BEGINNING: for that, librdkafka sends a request of its own,
        # but only after half a second. If the log no longer has the offset 0, librdkafka requests
        # the beginning at once.
        self._consumer.assign([TopicPartition(topic_partition.topic, topic_partition.partition, 0)])
        next_offset = 0
        give_up_at = time.monotonic() + STALLED_READ_TIMEOUT
        try:
            while next_offset < end:
                records, offset_after_batch = self._next_records(next_offset)
                if records:
                    yield records
                if offset_after_batch > next_offset:
                    give_up_at = time.monotonic() + STALLED_READ_TIMEOUT
                elif time.monotonic() > give_up_at:
                    raise LogError(
                        f"partition {topic_partition.partition} of "
                        f"{topic_partition.topic} can't be read beyond offset "
                        f"{next_offset} of {end}: no progress in {STALLED_READ_TIMEOUT:g} s"
                    )
                next_offset = offset_after_batch
        finally:
            self._consumer.unassign()

    def _next_records(self, next_offset: int) -> tuple[list[Record], int]:
        """Wait up to `READ_POLL_TIMEOUT` for records from `next_offset` on. Return the records that
        have arrived, maybe none, and the offset at which the next call continues. Raises
        `LogError`."""
        # `consume` alone would wait for the whole batch.
        first_message = self._consumer.poll(READ_POLL_TIMEOUT)
        messages = (
            []
            if first_message is None
            else [first_message, *self._consumer.consume(READ_BATCH_RECORDS - 1, 0)]
        )
        records: list[Record] = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(cast(Record, message))
            elif error.code() == KafkaError._PARTITION_EOF:
                next_offset = max(next_offset, cast(int, message.offset()))
            elif not error.retriable() and error.code() not in TRANSIENT_ERRORS:
                raise log_error_of(error)
        if records:
            next_offset = max(next_offset, records[-1].offset() + 1)
        return records, next_offset

    def ends(self, topic: str) -> Positions:
        """Return the end offset of each partition of a topic, by number. Raises `LogError`."""
        return self._read_ends(self.partitions(topic))

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic. Raises `LogError`, also if the topic doesn't exist."""
        return self._describe_topic(topic).known

    def _describe_topic(self, topic: str) -> _Partitions:
        """Read from Kafka, and return, a topic's partitions, with a list of the partitions that
        have a leader. Raises `LogError`, also if the topic doesn't exist."""
        metadata = self._ask_until_answered(
            lambda timeout: self._admin.list_topics(topic, timeout=timeout)
        )
        described = metadata.topics[topic]
        if described.error is not None:
            raise log_error_of(described.error)
        partitions = [TopicPartition(topic, number) for number in sorted(described.partitions)]
        led = [
            partition
            for partition in partitions
            if described.partitions[partition.partition].leader >= 0
        ]
        return _Partitions(partitions, led)

    def ensure_topic(
        self, topic: str, partitions: int, replication: int, config: Mapping[str, str]
    ) -> None:
        """Create a topic unless it exists, with these numbers of partitions and of replicas
        (`replication`), and these settings. For an existing topic, the right to create topics isn't
        needed. Raises `LogError`."""
        try:
            self.partitions(topic)
        except LogError as error:
            if not error.unknown_topic:
                raise
        else:
            return
        from confluent_kafka.cimpl import NewTopic

        new_topic = NewTopic(topic, partitions, replication, config=dict(config))
        try:
            self._ask_until_answered(
                lambda timeout: self._admin.create_topics([new_topic], request_timeout=timeout)[
                    topic
                ].result()
            )
        except LogError as error:
            # Another process may have created the topic meanwhile.
            if not self._topic_exists(topic):
                raise LogError(
                    f"topic {topic} could not be created ({error}): create it, or allow this "
                    "function's Kafka user to create it"
                ) from error

    def _topic_exists(self, topic: str) -> bool:
        """Whether a topic exists; False also if that can't be found out."""
        try:
            self.partitions(topic)
        except LogError:
            return False
        return True

    def committed(self, topic: str, timeout: float) -> Positions:
        """Return the offsets that the group has committed, by partition; partitions without a
        commit are left out. Waits for transactions under way. Raises `LogError` after `timeout`
        seconds."""
        # A consumer asks, as librdkafka's admin client may crash at this request (`kafka_groups`).
        topic_partitions = committed_of(self._consumer, self.partitions(topic), timeout)
        return {
            partition.partition: partition.offset
            for partition in topic_partitions
            if partition.offset >= 0
        }

    def reachable_ends(self, topic: str) -> Mapping[int, int | None]:
        """Return the end offset of each partition of a topic, by number; None for a partition whose
        end can't be read now. Sends one quick request (`QUICK_REQUEST_TIMEOUT`), and more only if
        the partitions aren't cached. Raises `LogError` if the partitions can't be read."""
        from confluent_kafka.admin._listoffsets import OffsetSpec

        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        partitions, led = self._cached_topic_partitions(topic)
        # Only partitions with a leader are requested: one without a leader would delay the others.
        ends: dict[int, int | None] = dict.fromkeys(partition.partition for partition in partitions)
        if not led:
            return ends
        futures = self._admin.list_offsets(
            dict.fromkeys(led, latest),
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=QUICK_REQUEST_TIMEOUT,
        )
        for partition, answer in futures.items():
            try:
                ends[partition.partition] = answer.result().offset
            except KafkaException:
                self._cached_partitions.pop(topic, None)  # its leader may have gone
        return ends

    def _cached_topic_partitions(self, topic: str) -> _Partitions:
        """Return a topic's partitions, cached for `PARTITIONS_VALID_SECONDS` seconds. Raises
        `LogError`."""
        partitions, read_at = self._cached_partitions.get(topic, (None, 0.0))
        if partitions is None or time.monotonic() - read_at > PARTITIONS_VALID_SECONDS:
            partitions = self._describe_topic(topic)
            self._cached_partitions[topic] = partitions, time.monotonic()
        return partitions

    def committed_now(self, topic: str) -> Mapping[int, OffsetAndMetadata]:
        """Return the group's commits of the present topic, by partition. Commits by transactions
        under way are left out; `committed` waits for them. Raises `LogError`."""
        if self._opened_uncommitted_consumer is None:
            # A consumer that reads only committed records would wait for transactions under way.
            group_settings = {"isolation.level": "read_uncommitted", "group.id": self._group}
            settings = {**_BOUNDED_READ_SETTINGS, **self._connection, **group_settings}
            self._opened_uncommitted_consumer = open_client(Consumer, settings)
        partitions = list(self._cached_topic_partitions(topic).known)
        topic_partitions = committed_of(
            self._opened_uncommitted_consumer, partitions, BOUNDED_READ_REQUEST_TIMEOUT
        )
        return {
            partition.partition: OffsetAndMetadata(partition.offset, metadata_of(partition))
            for partition in topic_partitions
            if partition.offset >= 0 and not self._is_of_earlier_topic(partition)
        }

    def _is_of_earlier_topic(self, committed: TopicPartition) -> bool:
        """Whether a commit's mark shows that it was made on an earlier topic of the same name. The
        present topic's mark is read from Kafka if it isn't cached. Raises `LogError`."""
        topic, mark = committed.topic, topic_mark_of(committed)
        present_mark, read_at = self._cached_marks.get(topic, ("", -math.inf))
        valid_seconds = (
            PARTITIONS_VALID_SECONDS if mark == present_mark else OTHER_MARK_VALID_SECONDS
        )
        if mark and time.monotonic() - read_at > valid_seconds:
            present_mark = self._ask_until_answered(
                lambda timeout: read_topic_mark(self._admin, topic, timeout)
            )
            self._cached_marks[topic] = present_mark, time.monotonic()
        return is_of_another_topic(mark, present_mark)

    def _read_ends(self, partitions: Sequence[TopicPartition]) -> Positions:
        """Read the end offset of each partition, and return the ends by number. The end is behind
        all records, those of open transactions included. Raises `LogError`."""
        from confluent_kafka.admin._listoffsets import OffsetSpec

        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        specs: dict[TopicPartition, OffsetSpec] = dict.fromkeys(partitions, latest)

        def ask(timeout: float) -> Positions:
            """Request all end offsets at once and return them by partition number. Raises
            `KafkaException` for a partition's error."""
            futures = self._admin.list_offsets(
                specs,
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=timeout,
            )
            return {
                partition.partition: answer.result().offset for partition, answer in futures.items()
            }

        return self._ask_until_answered(ask) if specs else {}

    def _ask_until_answered(self, ask: Callable[[float], T]) -> T:
        """Call `ask` with a timeout (seconds), and return its result. `ask` raises `KafkaException`
        if it fails; while a leader moves or Kafka doesn't answer, the call is repeated for at most
        `BOUNDED_READ_REQUEST_TIMEOUT` seconds. Raises `LogError`."""
        deadline = time.monotonic() + BOUNDED_READ_REQUEST_TIMEOUT
        while True:
            timeout = min(SINGLE_REQUEST_TIMEOUT, deadline - time.monotonic())
            try:
                return ask(max(MIN_REQUEST_TIMEOUT, timeout))
            except KafkaException as error:
                reason = error.args[0]
                if refusal := self._errors.refusal:
                    raise LogError(refusal) from error
                if reason.code() not in MOVING_ERRORS | NO_ANSWER_ERRORS:
                    raise log_error_of(reason) from error
                if time.monotonic() > deadline:
                    report = f": {self._errors}" if str(self._errors) else ""
                    raise LogError(
                        f"Kafka did not answer within {BOUNDED_READ_REQUEST_TIMEOUT:g} s{report}"
                    ) from error
                if reason.code() in MOVING_LEADER_ERRORS:
                    refresh_metadata(self._admin, SINGLE_REQUEST_TIMEOUT)
            self._admin.poll(0)
            time.sleep(REQUEST_RETRY_INTERVAL)

    def close(self) -> None:
        """Close the consumers; this may block while Kafka is frozen."""
        for consumer in (self._opened_consumer, self._opened_uncommitted_consumer):
            if consumer is not None:
                consumer.close()
