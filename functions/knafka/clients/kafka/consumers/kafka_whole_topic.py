"""Reads a topic once: its last records, or the last record with a key.

Not here: following a topic (`kafka_reader`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from knafka.clients.kafka.kafka_client import (
    REQUEST_CONSUMER_SETTINGS,
    Connection,
    log_error_of,
    open_client,
)
from knafka.clients.kafka.kafka_requests import read_watermarks
from knafka.core.errors import LogError
from knafka.ports.log import Record

RECORD_BYTES: Final = 500
"""Approximate bytes of memory that a record takes besides its key, value and headers."""
ODD_RECORD_BYTES: Final = 1_000_000
"""Bytes of memory assumed for a record whose headers can't be read."""

BLOCK_GROWTH: Final = 16
"""`read_last_with_key` makes each block this many times as large as the one before."""

UNUSED_GROUP: Final = "knafka-unused"
"""Group id of this consumer, which never joins a group: librdkafka requires one."""


def read_last_records(
    connection: Connection, topic: str, limit: int, *, timeout: float, max_bytes: int | None = None
) -> list[Record]:
    """Return the last `limit` records of a topic, oldest first. Blocks; gives up if Kafka sends
    nothing for `timeout` seconds.

    Reads the last `limit` offsets of each partition. Some of them may have no record, because of
    compaction and transactions; then the result may be shorter. Raises `LogError` if the records
    read take more than `max_bytes` of memory (None: no limit), and `LogError` or `KafkaException`
    if Kafka fails. If `max_bytes` is set, the caller can't read the records' headers, as
    confluent-kafka returns them only once.
    """
    consumer = _open_consumer(connection)
    records: list[Record] = []
    memory_bytes = 0
    try:
        unfinished = set()  # numbers of the partitions that aren't read to their ends
        assigned = []
        bounds = _read_bounds(consumer, topic, timeout)
        for number, (first, end) in bounds.items():
            if first < end:
                unfinished.add(number)
                # Any partition may have all of the topic's last `limit` records.
                assigned.append(TopicPartition(topic, number, max(first, end - limit)))
        consumer.assign(assigned)
        while unfinished:
            message = consumer.poll(timeout)
            if message is None:
                raise LogError(f"Kafka did not answer within {timeout:g} s")
            error = message.error()
            if error is None:
                records.append(cast(Record, message))
                if max_bytes is not None:
                    memory_bytes += _memory_bytes_of(message)
                    if memory_bytes > max_bytes:
                        limit_text = f"{max_bytes} bytes, the most that may be read of it"
                        raise LogError(f"topic {topic} has more than {limit_text}")
            elif error.code() == KafkaError._PARTITION_EOF:
                unfinished.discard(message.partition())
            elif not error.retriable():
                raise log_error_of(error)
    finally:
        consumer.close()
    records.sort(key=lambda record: (record.timestamp()[1], record.offset()))
    return records[-limit:]  # up to `limit` records of each partition were read


def read_last_with_key(
    connection: Connection, topic: str, key: bytes, *, timeout: float
) -> Record | None:
    """Return the last record of a topic that has this key: of all partitions, the one with the
    latest timestamp. None: there is none. Blocks; gives up if Kafka sends nothing for `timeout`
    seconds. Raises `LogError` or `KafkaException`.

    Each partition is read in blocks, backwards from its end, until a block has a record with the
    key, so that only one record is kept in memory. A block is a range of offsets, some of which may
    have no record, because of compaction and transactions.
    """
    consumer = _open_consumer(connection)
    newest: Message | None = None
    try:
        for number, (first, end) in _read_bounds(consumer, topic, timeout).items():
            block_size = 1  # in offsets
            last: Message | None = None
            while end > first and last is None:
                start = max(first, end - block_size)
                block_start = TopicPartition(topic, number, start)
                last = _last_in_block(consumer, block_start, end, key, timeout)
                end, block_size = start, block_size * BLOCK_GROWTH
            if last is not None and (newest is None or _time_of(newest) <= _time_of(last)):
                newest = last
    finally:
        consumer.close()
    return cast("Record | None", newest)


def _last_in_block(
    consumer: Consumer, start: TopicPartition, end: int, key: bytes, timeout: float
) -> Message | None:
    """Return the last record with this key in a block: from the position `start` up to the offset
    `end`, exclusive. None: there is none. Raises `LogError`, also if Kafka doesn't answer within
    `timeout` seconds."""
    consumer.assign([start])
    last = None
    while True:
        message = consumer.poll(timeout)
        if message is None:
            raise LogError(f"Kafka did not answer within {timeout:g} s")
        error = message.error()
        if error is None:
            offset = cast(int, message.offset())
            if offset < end and message.key() == key:
                last = message
            if offset >= end - 1:
                return last
        elif error.code() == KafkaError._PARTITION_EOF:
            return last
        elif not error.retriable():
            raise log_error_of(error)


def _time_of(record: Message) -> int:
    """Return a record's timestamp, in milliseconds since the Unix epoch."""
    return record.timestamp()[1]


def _open_consumer(connection: Connection) -> Consumer:
    """Open a consumer that joins no group."""
    return open_client(
        Consumer,
        {
            **connection,
            **REQUEST_CONSUMER_SETTINGS,
            "group.id": UNUSED_GROUP,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        },
    )


def _read_bounds(consumer: Consumer, topic: str, timeout: float) -> Mapping[int, tuple[int, int]]:
    """Return the first offset and the end offset of each partition, by number. Blocks, for at most
    `timeout` seconds for each request. Raises `LogError` or `KafkaException`."""
    metadata = consumer.list_topics(topic, timeout=timeout).topics[topic]
    if metadata.error is not None:
        raise log_error_of(metadata.error)
    return read_watermarks(consumer, topic, metadata.partitions, timeout)


def _memory_bytes_of(record: Message) -> int:
    """Return the approximate bytes of memory that a record takes. Don't read the headers of this
    record again: if a name isn't UTF-8, confluent-kafka's second answer crashes the process."""
    try:
        headers = cast("list[tuple[str, bytes | None]]", record.headers() or [])
    except SystemError:  # a header name that isn't UTF-8
        return ODD_RECORD_BYTES
    header_bytes = sum(len(name) + len(value or b"") for name, value in headers)
    return RECORD_BYTES + len(record.key() or b"") + len(record.value() or b"") + header_bytes
