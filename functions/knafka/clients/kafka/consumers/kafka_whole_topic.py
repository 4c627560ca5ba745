"""Reads the last records of a topic, all of them, or the last one of a key, once.

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
"""Bytes of memory that a record takes besides its key, value and headers."""
ODD_RECORD_BYTES: Final = 1_000_000
"""Bytes of memory assumed for a record whose headers can't be read."""

BLOCK_GROWTH: Final = 16
"""How much larger each further block is in which a key is looked for."""

UNUSED_GROUP: Final = "knafka-unused"
"""Group id of this consumer, which never joins a group: librdkafka requires one."""


def read_whole(
    connection: Connection, topic: str, limit: int, *, timeout: float, max_bytes: int | None = None
) -> list[Record]:
    """Return the last `limit` records of a topic, oldest first; blocks, `timeout` seconds for each
    request.

    Raises `LogError`, also if the records take more than `max_bytes` of memory. With `max_bytes`,
    the caller must not read the records' headers, which confluent-kafka returns only once.
    """
    consumer = _open_consumer(connection)
    records: list[Record] = []
    size = 0
    try:
        unfinished = set()
        assigned = []
        bounds = _read_bounds(consumer, topic, timeout)
        for number, (low, high) in bounds.items():
            if low < high:
                unfinished.add(number)
                assigned.append(TopicPartition(topic, number, max(low, high - limit)))
        consumer.assign(assigned)
        while unfinished:
            message = consumer.poll(timeout)
            if message is None:
                raise LogError(f"Kafka did not answer within {timeout:g} s")
            error = message.error()
            if error is None:
                records.append(cast(Record, message))
                if max_bytes is not None:
                    size += _size_of(message)
                    if size > max_bytes:
                        limit_text = f"{max_bytes} bytes, which is all that is read"
                        raise LogError(f"topic {topic} has more than {limit_text}")
            elif error.code() == KafkaError._PARTITION_EOF:
                unfinished.discard(message.partition())
            elif not error.retriable():
                raise log_error_of(error)
    finally:
        consumer.close()
    records.sort(key=lambda record: (record.timestamp()[1], record.offset()))
    return records[-limit:]


def read_last_with_key(
    connection: Connection, topic: str, key: bytes, *, timeout: float
) -> Record | None:
    """Return the last record of a topic that has this key, None if there is none; blocks, `timeout`
    seconds for each request.

    Each partition is read in blocks from its end on, until one has the key, so that memory holds
    one record. A block is one of offsets: compaction and transactions leave some without a record.
    Raises `LogError`.
    """
    consumer = _open_consumer(connection)
    newest: Message | None = None
    try:
        for number, (low, high) in _read_bounds(consumer, topic, timeout).items():
            end, size = high, 1
            last: Message | None = None
            while end > low and last is None:
                start = max(low, end - size)
                block = TopicPartition(topic, number, start)
                last = _last_in_block(consumer, block, end, key, timeout)
                end, size = start, size * BLOCK_GROWTH
            if last is not None and (newest is None or _time_of(newest) <= _time_of(last)):
                newest = last
    finally:
        consumer.close()
    return cast("Record | None", newest)


def _last_in_block(
    consumer: Consumer, start: TopicPartition, end: int, key: bytes, timeout: float
) -> Message | None:
    """Return the last record with this key from the position `start` on and before the offset
    `end`; None: there is none. Raises `LogError`, also without an answer for `timeout` seconds."""
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
    """Return the first offset of each partition, and the one after its last record. Waits `timeout`
    seconds for each request. Raises `LogError`."""
    metadata = consumer.list_topics(topic, timeout=timeout).topics[topic]
    if metadata.error is not None:
        raise log_error_of(metadata.error)
    return read_watermarks(consumer, topic, metadata.partitions, timeout)


def _size_of(record: Message) -> int:
    """Return the approximate bytes of a record in memory."""
    try:
        headers = cast("list[tuple[str, bytes | None]]", record.headers() or [])
    except SystemError:  # a header name that isn't UTF-8
        return ODD_RECORD_BYTES
    header_bytes = sum(len(name) + len(value or b"") for name, value in headers)
    return RECORD_BYTES + len(record.key() or b"") + len(record.value() or b"") + header_bytes
