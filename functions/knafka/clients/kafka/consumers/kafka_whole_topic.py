"""Reads the last records of a topic, or all of them, once.

Not here: following a topic (`kafka_reader`).
"""

from __future__ import annotations

from typing import Final, cast

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from knafka.clients.kafka.kafka_client import ASKING, Connection, log_error_of, open_client
from knafka.clients.kafka.kafka_requests import read_watermarks
from knafka.core.errors import LogError
from knafka.ports.log import Record

RECORD_BYTES: Final = 500
"""Bytes of memory that a record takes besides its key, value and headers."""
ODD_RECORD_BYTES: Final = 1_000_000
"""Bytes of memory assumed for a record whose headers can't be read."""

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
    consumer = open_client(
        Consumer,
        {
            **connection,
            **ASKING,
            "group.id": UNUSED_GROUP,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        },
    )
    records: list[Record] = []
    size = 0
    try:
        metadata = consumer.list_topics(topic, timeout=timeout).topics[topic]
        if metadata.error is not None:
            raise log_error_of(metadata.error)
        unfinished = set()
        assigned = []
        bounds = read_watermarks(consumer, topic, metadata.partitions, timeout)
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


def _size_of(record: Message) -> int:
    """Return the approximate bytes of a record in memory."""
    try:
        headers = cast("list[tuple[str, bytes | None]]", record.headers() or [])
    except SystemError:  # a header name that isn't UTF-8
        return ODD_RECORD_BYTES
    header_bytes = sum(len(name) + len(value or b"") for name, value in headers)
    return RECORD_BYTES + len(record.key() or b"") + len(record.value() or b"") + header_bytes
