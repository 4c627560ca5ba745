"""Kafka's admin API for the jobs: topics, offsets, commits, single writes and deletion of records.

Spark itself reads the dead letters (`read_spans`), and `replay.send` sends replayed events.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from knafka.core.commit_metadata import is_of_another_topic, short_id, unmark
from knafka.core.kafka_settings.connection_errors import ConnectionErrors
from knafka_jobs.io.kafka_connection import KafkaConnection
from knafka_jobs.job_errors import JobError
from knafka_jobs.topic_offsets import (
    BrokerName,
    NamedPartition,
    OffsetSpan,
    TopicState,
    is_dead_letter_topic,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOB_REQUEST_TIMEOUT: Final = 30.0
"""Seconds for one request to Kafka, including repetitions."""
CONNECT_CHECK_INTERVAL: Final = 2.0
"""Seconds between two tries while Kafka does not answer."""
RETRY_INTERVAL: Final = 0.2
"""Seconds before a request is repeated because a coordinator or leader is moving."""
TRANSIENT_ERRORS: Final = frozenset(
    {
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,  # of a partition that has just been created or moved
    }
)
"""Codes of errors after which a request is repeated."""
MAX_MESSAGE_BYTES: Final = "max.message.bytes"
"""Kafka's name of a topic's limit for the bytes of one batch of records, hence of one record."""

K = TypeVar("K", bound=Hashable)
"""What a request asks for, such as a topic."""
T = TypeVar("T")
"""The answer to a request."""


class KafkaClient:
    """Kafka's admin API and consumers for the jobs. Every method raises `JobError`."""

    def __init__(self, connection: KafkaConnection) -> None:
        """Open the admin client, without waiting for Kafka (`connect`). Raises `JobError` for
        credentials that can't be used."""
        self.connection = connection
        self._errors = ConnectionErrors()
        """The connection's last error, for the text of a `JobError`."""
        self._refusal: str | None = None
        """The first error that doesn't pass by itself; kept, as later errors would hide it."""
        configuration = {**connection.for_librdkafka(), "error_cb": self._record_error}
        try:
            self._admin = AdminClient(configuration)
        except KafkaException as error:  # a certificate that can't be used
            raise _job_error(error) from error

    def connect(self) -> None:
        """Wait for Kafka's answer. Raises `JobError` after `JOB_REQUEST_TIMEOUT`."""
        deadline = time.monotonic() + JOB_REQUEST_TIMEOUT
        while True:
            try:
                self._admin.list_topics(timeout=CONNECT_CHECK_INTERVAL)
            except KafkaException as error:
                self._admin.poll(0)
                reason = self._refusal or str(self._errors) or error.args[0].str()
                if self._refusal or time.monotonic() > deadline:
                    raise JobError(f"Kafka did not answer: {reason}") from error
            else:
                return

    def _record_error(self, error: KafkaError) -> None:
        """Keep an error of the connection for the text of a later `JobError`."""
        self._errors.record(error)
        self._refusal = self._refusal or self._errors.refusal

    def dead_letter_topics(self, broker: BrokerName | None = None) -> dict[str, TopicState]:
        """Return the dead-letter topics of one Broker, by name; if `broker` is None, those of all
        Brokers."""
        return self.topics(
            [name for name in self.topic_names() if is_dead_letter_topic(name, broker)]
        )

    def topic_names(self) -> list[str]:
        """Return the names of all topics."""
        listed = _with_retries(lambda: self._admin.list_topics(timeout=JOB_REQUEST_TIMEOUT))
        return list(listed.topics)

    def topics(self, names: Collection[str], *, committed: bool = True) -> dict[str, TopicState]:
        """Return the existing topics among `names`, by name, with the offsets of their partitions.

        With `committed`, offsets end after the last committed record; without, after the last
        record, also of open transactions.
        """
        if not names:
            return {}
        collection = TopicCollection(list(names))
        topics = _request_results(
            lambda: self._admin.describe_topics(collection, request_timeout=JOB_REQUEST_TIMEOUT),
            leaving_out=KafkaError.UNKNOWN_TOPIC_OR_PART,
        )
        partitions = [
            (name, partition.id) for name, topic in topics.items() for partition in topic.partitions
        ]
        starts = self._list_offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        # Committed records end where the first open transaction begins.
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        ends = self._list_offsets(partitions, latest, isolation_level=level)
        spans: dict[str, dict[int, OffsetSpan]] = {name: {} for name in topics}
        for name, partition in partitions:
            spans[name][partition] = OffsetSpan(starts[name, partition], ends[name, partition])
        return {
            name: TopicState(
                name, str(topic.topic_id), spans[name], len(topic.partitions[0].replicas)
            )
            for name, topic in topics.items()
        }

    def topics_at_rest(self, names: Collection[str]) -> dict[str, TopicState]:
        """Wait until all transactions that are open in these topics now have ended; return the
        existing topics, by name, with the offsets of their committed records.

        Kafka acknowledges a commit a moment before it ends the transaction in its partitions.
        Raises `JobError` if one hasn't ended after `JOB_REQUEST_TIMEOUT` seconds.
        """
        log_ends = {
            (name, number): span.end
            for name, topic in self.topics(names, committed=False).items()
            for number, span in topic.spans.items()
        }
        deadline = time.monotonic() + JOB_REQUEST_TIMEOUT
        while True:
            topics = self.topics(names)
            open_topics = [
                name
                for (name, number), end in log_ends.items()
                if name in topics and topics[name].spans[number].end < end
            ]
            if not open_topics:
                return topics
            if time.monotonic() > deadline:
                raise JobError(
                    f"Kafka: a transaction on {open_topics[0]} did not end within "
                    f"{JOB_REQUEST_TIMEOUT:.0f} s: run the job again"
                )
            time.sleep(RETRY_INTERVAL)

    def offsets_at(
        self, partitions: Iterable[NamedPartition], moment: float
    ) -> dict[NamedPartition, int]:
        """Return the offset of each partition's first record at or after `moment` (Unix time); -1
        if all records are older."""
        since = OffsetSpec.for_timestamp(int(max(0.0, moment) * 1000))  # it takes no earlier time
        return self._list_offsets(partitions, since)

    def committed(self, group: str, topic: TopicState) -> dict[int, int]:
        """Return a group's committed offsets in a topic, by partition. Partitions without a commit
        are left out, and so are commits for an earlier topic of this name."""
        partitions = [TopicPartition(topic.name, partition) for partition in topic.spans]
        consumer = self.consumer(**{"group.id": group})
        try:
            answers = _with_retries(lambda: consumer.committed(partitions, JOB_REQUEST_TIMEOUT))
        finally:
            consumer.close()
        # A commit's metadata begin with a mark of the topic that was read.
        return {
            answer.partition: answer.offset
            for answer in answers
            if answer.offset >= 0
            and not is_of_another_topic(unmark(answer.metadata or "")[0], short_id(topic.id))
        }

    def commit(self, group: str, topics: Mapping[str, TopicState]) -> None:
        """Commit, for a consumer group without members, the ends of these topics' spans, as if the
        group had read all. The offsets need no leader epochs: only the group's lag is looked at,
        and no reader begins there."""
        offsets = [
            TopicPartition(name, partition, span.end)
            for name, topic in topics.items()
            for partition, span in topic.spans.items()
        ]
        if not offsets:
            return
        consumer = self.consumer(**{"group.id": group})
        try:
            _with_retries(lambda: consumer.commit(offsets=offsets, asynchronous=False))
        finally:
            consumer.close()

    def create_topic(
        self, topic: str, partitions: int, replication: int, config: Mapping[str, str]
    ) -> TopicState:
        """Create a topic unless it exists, with these numbers of partitions and replicas and these
        settings. Returns it once Kafka lists it with its partitions.

        Raises `JobError`, also if that takes more than `JOB_REQUEST_TIMEOUT` seconds.
        """
        new_topic = NewTopic(topic, partitions, replication, config=dict(config))
        _request_results(
            lambda: self._admin.create_topics([new_topic], request_timeout=JOB_REQUEST_TIMEOUT),
            leaving_out=KafkaError.TOPIC_ALREADY_EXISTS,
        )
        deadline = time.monotonic() + JOB_REQUEST_TIMEOUT
        while time.monotonic() < deadline:
            if topics := self.topics([topic]):
                return topics[topic]
            time.sleep(RETRY_INTERVAL)
        raise JobError(f"Kafka: {topic} was made and does not appear")

    def write(
        self, topic: str, key: bytes, value: bytes, headers: Mapping[str, bytes], timeout: float
    ) -> None:
        """Write one compressed record, and wait until all replicas have it. Raises `JobError`, also
        after `timeout` seconds."""
        errors = {"error_cb": self._errors.record}
        configuration = {
            "acks": "all",
            "compression.type": "gzip",
            # librdkafka applies this limit before compression; Kafka applies its own after it.
            "message.max.bytes": 1_000_000_000,
            "delivery.timeout.ms": round(timeout * 1000),
        }
        problems: list[KafkaError] = []

        def report(error: KafkaError | None, _: object) -> None:
            """Keep the error if the record could not be delivered."""
            if error is not None:
                problems.append(error)

        try:
            producer = Producer({**self.connection.for_librdkafka(), **errors, **configuration})
            producer.produce(topic, value, key, headers=dict(headers), on_delivery=report)
            unsent = producer.flush(timeout)
        except KafkaException as error:
            raise _job_error(error) from error
        if problems or unsent:
            reason = problems[0].str() if problems else str(self._errors) or "no answer"
            raise JobError(f"Kafka: the topic {topic} did not take the record: {reason}")

    def record_limit(self, topic: str) -> int | None:
        """Return the largest size in bytes that a batch of records in this topic may have; None if
        the job lacks the ACL to read it."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        descriptions = _request_results(
            lambda: self._admin.describe_configs([resource], request_timeout=JOB_REQUEST_TIMEOUT),
            leaving_out=KafkaError.TOPIC_AUTHORIZATION_FAILED,
        )
        return int(descriptions[resource][MAX_MESSAGE_BYTES].value) if descriptions else None

    def raise_record_limit(self, topic: str, limit: int) -> None:
        """Set the largest size that a batch of records in this topic may have to `limit` bytes.
        Does nothing if the job lacks the ACL to change the topic's settings."""
        entry = ConfigEntry(
            MAX_MESSAGE_BYTES, str(limit), incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        _request_results(
            lambda: self._admin.incremental_alter_configs(
                [resource], request_timeout=JOB_REQUEST_TIMEOUT
            ),
            leaving_out=KafkaError.TOPIC_AUTHORIZATION_FAILED,
        )

    def delete_before(self, end_offsets: Mapping[NamedPartition, int]) -> None:
        """Delete the records of each partition below its offset in `end_offsets`."""
        if not end_offsets:
            return
        ends = [TopicPartition(*partition, offset) for partition, offset in end_offsets.items()]
        _request_results(
            lambda: self._admin.delete_records(ends, request_timeout=JOB_REQUEST_TIMEOUT),
            # A topic that was deleted meanwhile has nothing left to delete.
            leaving_out=KafkaError.UNKNOWN_TOPIC_OR_PART,
        )

    def consumer(self, **configuration: Any) -> Consumer:
        """Create a consumer with these settings of librdkafka (`group.id` only if it shall be in a
        group); the caller closes it."""
        # librdkafka demands an id; Kafka learns of the group only if the consumer joins or commits.
        default_settings = {"group.id": "knafka-unused", "enable.auto.commit": False}
        errors = {"error_cb": self._errors.record}
        return Consumer(
            {**self.connection.for_librdkafka(), **errors, **default_settings, **configuration}
        )

    def _list_offsets(
        self, partitions: Iterable[NamedPartition], spec: OffsetSpec, **options: Any
    ) -> dict[NamedPartition, int]:
        """Return the offset that `spec` asks for (such as the earliest) of each partition.
        `options` are those of librdkafka's request."""
        if not (specs := {TopicPartition(*partition): spec for partition in partitions}):
            return {}
        options["request_timeout"] = JOB_REQUEST_TIMEOUT

        def ask() -> Mapping[TopicPartition, Future[Any]]:
            """Read the leaders' epochs anew, then send the request: with former epochs it fails for
            minutes after a restart of Kafka (librdkafka 2.16.1)."""
            self._admin.list_topics(timeout=JOB_REQUEST_TIMEOUT)
            return self._admin.list_offsets(specs, **options)

        results = _request_results(ask)
        return {
            (partition.topic, partition.partition): result.offset
            for partition, result in results.items()
        }


def read_spans(
    spark: SparkSession, connection: KafkaConnection, spans: Mapping[NamedPartition, OffsetSpan]
) -> DataFrame:
    """Return the committed records of these spans, as Spark's Kafka source has them, with headers.

    Reading fails with Spark's error if Kafka has deleted a part of a span.
    """
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for (topic, partition), span in spans.items():
        assigned.setdefault(topic, []).append(partition)
        starts.setdefault(topic, {})[str(partition)] = span.start
        ends.setdefault(topic, {})[str(partition)] = span.end
    return (
        spark.read.format("kafka")
        .options(**connection.for_spark())
        .option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
        .load()
    )


def _request_results(
    ask: Callable[[], Mapping[K, Future[T]]], leaving_out: int | None = None
) -> dict[K, T]:
    """Return the answers to the request that `ask` sends, by what was asked for. Failures with the
    error code `leaving_out` are left out (None: none are). Raises `JobError` for others."""

    def answers() -> dict[K, T]:
        """Send the request and return its answers. Raises the first `KafkaException` whose code
        isn't `leaving_out`."""
        results = {}
        for key, answer in ask().items():
            try:
                results[key] = answer.result()
            except KafkaException as error:
                if error.args[0].code() != leaving_out:
                    raise
        return results

    return _with_retries(answers)


def _with_retries(ask: Callable[[], T]) -> T:
    """Return the answer of `ask`, which sends a request. It is called again while a coordinator or
    leader is moving, for at most `JOB_REQUEST_TIMEOUT` seconds. Raises `JobError`."""
    deadline = time.monotonic() + JOB_REQUEST_TIMEOUT
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in TRANSIENT_ERRORS or time.monotonic() > deadline:
                raise _job_error(error) from error
        time.sleep(RETRY_INTERVAL)


def _job_error(error: KafkaException) -> JobError:
    """Return a `JobError` with the text of librdkafka's error."""
    return JobError(f"Kafka: {error.args[0].str()}")
