"""Kafka as the jobs need it beside Spark: which topics there are, how far they go, what may go.

Spark reads the dead letters; this asks, deletes and (for replays) appends. Together with `storage`,
the only IO of the jobs. Refused here: deciding what may be deleted, or what is sent again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from knafka.core import names
from knafka.core.connection_errors import ConnectionErrors
from knafka.core.errors import InvalidDocument
from knafka.core.kafka_secret import for_java, for_librdkafka
from knafka_jobs.errors import JobError
from knafka_jobs.ingest import Position, Span

REQUEST_TIMEOUT: Final = 30.0
"""Seconds for one request to Kafka."""
LISTEN: Final = 2.0
"""Seconds between two looks at what is wrong while Kafka does not answer."""
ASK_AGAIN: Final = 0.2
"""Seconds before a request is repeated whose coordinator or leader is on its way."""
PASSING: Final = frozenset(
    {
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach Kafka, for both clients that the jobs use."""

    bootstrap_servers: str
    secret: Mapping[str, str] | None = None
    """The Secret's values by key; None: plaintext, no authentication."""

    @classmethod
    def from_folder(cls, bootstrap_servers: str, secret: Path | None) -> Connection:
        """With the Secret that is mounted at `secret`. Raises `InvalidDocument`."""
        if secret is None:
            return cls(bootstrap_servers)
        try:
            files = [each for each in secret.iterdir() if each.is_file()]
            values = {each.name: each.read_text(errors="replace").strip() for each in files}
        except OSError as error:
            raise InvalidDocument("secret", f"the Secret can't be read: {error}") from error
        return cls(bootstrap_servers, values)

    def for_librdkafka(self) -> dict[str, Any]:
        security = {} if self.secret is None else for_librdkafka(self.secret)
        return {"bootstrap.servers": self.bootstrap_servers, **security}

    def for_spark(self) -> dict[str, str]:
        """The options of Spark's Kafka source."""
        security = {} if self.secret is None else for_java(self.secret)
        configuration = {"bootstrap.servers": self.bootstrap_servers, **security}
        return {f"kafka.{key}": value for key, value in configuration.items()}


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now; one that is deleted and made again has another id."""

    name: str
    id: str
    spans: Mapping[int, Span]
    replication: int = 1


class Topics:
    """Kafka, asked by the jobs. Every method raises `JobError`."""

    def __init__(self, connection: Connection) -> None:
        self._errors = ConnectionErrors()
        self._configuration = {
            **connection.for_librdkafka(),
            "log_level": 0,
            "error_cb": self._errors.record,
        }
        try:
            self._admin = AdminClient(self._configuration)
        except KafkaException as error:  # a certificate that can't be used
            raise JobError(f"Kafka: {error.args[0].str()}") from error
        self.connection = connection

    def reach(self) -> None:
        """Wait until Kafka answers. Raises `JobError` with the reason if it doesn't."""
        deadline = time.monotonic() + REQUEST_TIMEOUT
        while True:
            try:
                self._admin.list_topics(timeout=LISTEN)
            except KafkaException as error:
                self._admin.poll(0)
                why = str(self._errors) or error.args[0].str()
                if self._errors.refusal or time.monotonic() > deadline:
                    raise JobError(f"Kafka did not answer: {why}") from error
            else:
                return

    def dead_letters(self, broker: tuple[str, str] | None = None) -> dict[str, Topic]:
        """All dead-letter topics, or those of one Broker (namespace, name), by name."""
        there = _asked(lambda: self._admin.list_topics(timeout=REQUEST_TIMEOUT)).topics
        return self.described([each for each in there if is_dead_letters_of(each, broker)])

    def described(self, wanted: Sequence[str]) -> dict[str, Topic]:
        """Those of the topics that exist."""
        if not wanted:
            return {}
        answers = self._admin.describe_topics(
            TopicCollection(list(wanted)), request_timeout=REQUEST_TIMEOUT
        )
        found = {}
        for name, answer in answers.items():
            try:
                found[name] = answer.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise _job_error(error) from error
        partitions = [
            TopicPartition(name, each.id)
            for name, topic in found.items()
            for each in topic.partitions
        ]
        starts = self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        ends = self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        spans: dict[str, dict[int, Span]] = {name: {} for name in found}
        for (name, partition), start in starts.items():
            spans[name][partition] = Span(start, ends[name, partition])
        return {
            name: Topic(name, str(each.topic_id), spans[name], len(each.partitions[0].replicas))
            for name, each in found.items()
        }

    def offsets_at(self, wanted: Iterable[Position], moment: float) -> dict[Position, int]:
        """The first offset of each partition whose record is not older than `moment` (Unix time).

        -1 where all are older.
        """
        partitions = [TopicPartition(*each) for each in wanted]
        return self._offsets(partitions, OffsetSpec.for_timestamp(int(moment * 1000)))

    def committed(self, group: str, topic: Topic) -> dict[int, int]:
        """Up to where a group is done with a topic; partitions without a commit are left out."""
        partitions = [TopicPartition(topic.name, each) for each in topic.spans]
        consumer = self.consumer(**{"group.id": group})
        try:
            answers = _asked(lambda: consumer.committed(partitions, REQUEST_TIMEOUT))
        finally:
            consumer.close()
        return {each.partition: each.offset for each in answers if each.offset >= 0}

    def ensure(
        self, topic: str, partitions: int, replication: int, config: Mapping[str, str]
    ) -> None:
        """Create a topic unless it exists."""
        new = NewTopic(topic, partitions, replication, config=dict(config))
        created = self._admin.create_topics([new], request_timeout=REQUEST_TIMEOUT)[topic]
        try:
            created.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise _job_error(error) from error

    def wait_for(self, topic: str) -> Topic:
        """A topic that was just made, once all of Kafka knows it."""
        deadline = time.monotonic() + REQUEST_TIMEOUT
        while time.monotonic() < deadline:
            if found := self.described([topic]):
                return found[topic]
            time.sleep(ASK_AGAIN)
        raise JobError(f"Kafka: {topic} was made and does not appear")

    def delete_before(self, until: Mapping[Position, int]) -> int:
        """Delete the records below each offset; returns how many partitions were cut."""
        if not until:
            return 0
        cuts = [TopicPartition(*where, offset) for where, offset in until.items()]
        answers = self._admin.delete_records(cuts, request_timeout=REQUEST_TIMEOUT)
        cut = 0
        for answer in answers.values():
            try:
                answer.result()
                cut += 1
            except KafkaException as error:
                # A topic that was deleted meanwhile has nothing left to delete.
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise _job_error(error) from error
        return cut

    def consumer(self, **configuration: Any) -> Consumer:
        return Consumer(
            {**self._configuration, "group.id": "knafka-unused", "enable.auto.commit": False}
            | configuration
        )

    def _offsets(self, partitions: list[TopicPartition], spec: Any) -> dict[Position, int]:
        if not partitions:
            return {}

        def ask() -> dict[Position, int]:
            answers = self._admin.list_offsets(
                {each: spec for each in partitions}, request_timeout=REQUEST_TIMEOUT
            )
            return {
                (each.topic, each.partition): answer.result().offset
                for each, answer in answers.items()
            }

        return _asked(ask)


def is_dead_letters_of(topic: str, broker: tuple[str, str] | None) -> bool:
    """Whether a topic holds dead letters (of that Broker: namespace, name).

    The digest in the name decides, as dashes alone leave open where a name ends. One so long that
    it was cut tells nothing, and is nobody's.
    """
    if broker is None:
        return topic.startswith(names.DEAD_LETTERS)
    prefix = f"{names.DEAD_LETTERS}{'-'.join(broker)}-"
    trigger = topic.removeprefix(prefix).rpartition("-")[0]
    return topic.startswith(prefix) and names.dead_letter_topic(*broker, trigger) == topic


def _asked(ask: Callable[[], T]) -> T:
    deadline = time.monotonic() + REQUEST_TIMEOUT
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in PASSING or time.monotonic() > deadline:
                raise _job_error(error) from error
        time.sleep(ASK_AGAIN)


def _job_error(error: KafkaException) -> JobError:
    return JobError(f"Kafka: {error.args[0].str()}")
