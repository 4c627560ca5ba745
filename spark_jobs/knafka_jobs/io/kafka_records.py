"""Reads single committed records from Kafka without Spark: at an offset, or in a short span.

At an offset that Kafka does not have, nothing is read: a consumer is never moved elsewhere.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.job_errors import JobError
from knafka_jobs.topic_offsets import NamedPartition, OffsetSpan, Partition, RecordMark

NEXT_RECORD_TIMEOUT: Final = 30.0
"""Seconds to wait for the next record or end of a partition."""
RECORDS_AT_ONCE: Final = 1000
"""Largest number of records that one call of the consumer returns."""
LOOKBACK_OFFSETS: Final = (10, 1000, sys.maxsize)
"""A span's last record is looked for among this many offsets before the span's end, one number
after the other: offsets of transaction markers and of aborted records have no committed record."""

_AT_END: Final = (
    KafkaError._PARTITION_EOF,
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.OFFSET_OUT_OF_RANGE,
)
"""Error codes for a partition's end and for an offset that Kafka doesn't have."""

_SETTINGS: Final[Mapping[str, Any]] = {
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
}
"""Settings of a consumer that reads a span."""
_SINGLE_RECORD_SETTINGS: Final[Mapping[str, Any]] = {
    **_SETTINGS,
    # Fetch as little as possible: only one record of it is used.
    "fetch.message.max.bytes": 16 * 1024,
    "queued.min.messages": 1,
}
"""Settings of a consumer that reads single records."""


class KafkaRecords:
    """Reads single records of Kafka; implements `compact.cuts.LogView`."""

    def __init__(self, kafka: KafkaClient, names: Mapping[str, str]) -> None:
        """Prepare to read topics of `kafka`; each call opens a consumer of its own. `names` maps
        topic ids to topic names."""
        self._kafka = kafka
        self._names = names
        self._ids = {name: topic_id for topic_id, name in names.items()}
        """The topic's id, by its name."""

    def first_at(self, offsets: Mapping[Partition, int]) -> Mapping[Partition, RecordMark]:
        """Return the mark (`RecordMark`) of the first record at or after each offset; partitions
        without one are left out. Raises `JobError`."""
        marks: dict[Partition, RecordMark] = {}
        consumer = self._kafka.consumer(**_SINGLE_RECORD_SETTINGS)
        try:
            waiting = {self._with_name(partition): offset for partition, offset in offsets.items()}
            for named_partition, message in _read_endlessly(consumer, waiting):
                partition = self._with_id(named_partition)
                if message is not None and partition not in marks:
                    marks[partition] = mark_of_message(message)
                # The partition stays assigned: records of it that are already fetched would be
                # returned anyway. They are ignored.
                waiting.pop(named_partition, None)
                if not waiting:
                    break
        finally:
            consumer.close()
        return marks

    def last_in(self, spans: Mapping[Partition, OffsetSpan]) -> Mapping[Partition, RecordMark]:
        """Return the mark (`RecordMark`) of the last record of each span; spans without one are
        left out. Raises `JobError`."""
        # Mostly the last offset has a record, so first ask for those of all spans at once.
        at_ends = self.first_at({partition: span.end - 1 for partition, span in spans.items()})
        marks = {
            partition: mark
            for partition, mark in at_ends.items()
            if mark.offset < spans[partition].end
        }
        for partition, span in spans.items():
            for lookback in LOOKBACK_OFFSETS:
                if partition in marks:
                    break
                end_of_span = OffsetSpan(max(span.start, span.end - lookback), span.end)
                for message in self.messages(partition, end_of_span):
                    marks[partition] = mark_of_message(message)  # the last message's mark stays
        return marks

    def messages(self, partition: Partition, span: OffsetSpan) -> Iterator[Any]:
        """Yield the committed records of a span, in order, as messages of confluent-kafka. Raises
        `JobError`."""
        consumer = self._kafka.consumer(**_SETTINGS)
        try:
            for _, message in _read_endlessly(consumer, {self._with_name(partition): span.start}):
                offset = None if message is None else message.offset()
                if offset is None or offset >= span.end:
                    return  # there is no further record in the span
                yield message
                if offset == span.end - 1:
                    return
        finally:
            consumer.close()

    def _with_name(self, partition: Partition) -> NamedPartition:
        """Return a partition with its topic's name in place of the topic's id."""
        return self._names[partition[0]], partition[1]

    def _with_id(self, partition: NamedPartition) -> Partition:
        """Return a partition with its topic's id in place of the topic's name."""
        return self._ids[partition[0]], partition[1]


def mark_of_parts(
    offset: int, key: bytes | None, value: bytes | None, time: int, epoch: int | None
) -> RecordMark:
    """Return the mark of a record, which identifies it, from its parts. `time` is in milliseconds
    since the Unix epoch, `epoch` is the leader epoch (None: unknown)."""
    digest = hashlib.blake2b(digest_size=8)
    # With each part's length, so that no other key and value have the same bytes together.
    for part in (key, value):
        digest.update(b"-" if part is None else b"%d:" % len(part))
        digest.update(part or b"")
    return RecordMark(offset, digest.hexdigest(), time, epoch)


def mark_of_message(message: Any) -> RecordMark:
    """Return the mark (`RecordMark`) of a message of confluent-kafka's consumer."""
    epoch = message.leader_epoch()
    return mark_of_parts(
        message.offset(),
        message.key(),
        message.value(),
        message.timestamp()[1],
        epoch if epoch is not None and epoch >= 0 else None,
    )


def _read_endlessly(
    consumer: Consumer, starts: Mapping[NamedPartition, int]
) -> Iterator[tuple[NamedPartition, Message | None]]:
    """Yield each record from these offsets on, with its partition; without end (but nothing if
    `starts` is empty).

    None in place of a record means that the partition has no further record now, or that Kafka does
    not have the offset. Raises `JobError` if nothing comes for `NEXT_RECORD_TIMEOUT` seconds.
    """
    if not starts:
        return
    consumer.assign([TopicPartition(*partition, offset) for partition, offset in starts.items()])
    deadline = time.monotonic() + NEXT_RECORD_TIMEOUT
    while True:
        for message in consumer.consume(RECORDS_AT_ONCE, 0.1):
            deadline = time.monotonic() + NEXT_RECORD_TIMEOUT
            partition, error = (message.topic(), message.partition()), message.error()
            if error is None:
                yield partition, message  # type: ignore[misc]
            elif error.code() in _AT_END:
                yield partition, None  # type: ignore[misc]
            elif not error.retriable():
                raise JobError(f"Kafka: {error.str()}")
        if time.monotonic() > deadline:
            raise JobError(
                f"Kafka has sent no records for {NEXT_RECORD_TIMEOUT:.0f} s: run the job again"
            )
