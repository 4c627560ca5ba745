"""The events of a Broker as they arrive, read beside everybody: no group, nothing committed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from knafka.clients.kafka_client import log_error_of, open_client
from knafka.core import json_format
from knafka.core.errors import InvalidEvent
from knafka.core.filters import Predicate
from knafka.core.kafka_binding import read
from knafka.ports.log import Record
from knafka_local.dead_letters import shown

TIMEOUT: Final = 15.0
"""Seconds for one question to Kafka."""
POLL: Final = 0.5
"""Seconds without an event after which Ctrl-C is looked for."""


def records(connection: dict[str, Any], topic: str, last: int) -> Iterator[Record]:
    """The last so many records of the topic, oldest first, and then each as it arrives, for ever.

    Raises `LogError` if the topic can't be read.
    """
    consumer = open_client(
        Consumer,
        {
            **connection,
            "group.id": "knafka-tail",  # librdkafka wants one; it never joins and never commits
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
        },
    )
    try:
        spans = spans_of(consumer, topic)
        ends = {number: end for number, (_, end) in spans.items()}
        starts = {number: max(low, end - last) for number, (low, end) in spans.items()}
        consumer.assign([TopicPartition(topic, *each) for each in starts.items()])
        # The past of all partitions is put in order before any of it is shown.
        unread = {number for number, start in starts.items() if start < ends[number]}
        past: list[Record] = []
        while True:
            message = consumer.poll(POLL)
            if message is None:
                continue
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(cast(int, message.partition()))
                elif not error.retriable():
                    raise log_error_of(error)
            elif past or unread:
                past.append(cast(Record, message))
            else:
                yield cast(Record, message)
            if past and not unread:
                yield from _last(past, ends, last)
                past = []
    finally:
        consumer.close()


def spans_of(consumer: Consumer, topic: str) -> dict[int, tuple[int, int]]:
    """Start and end of each partition. Raises `LogError`."""
    try:
        metadata = consumer.list_topics(topic, timeout=TIMEOUT).topics[topic]
        if metadata.error is not None:
            raise log_error_of(metadata.error)
        return {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=TIMEOUT)
            for number in metadata.partitions
        }
    except KafkaException as error:
        raise log_error_of(error.args[0]) from error


def _last(past: list[Record], ends: dict[int, int], count: int) -> list[Record]:
    """What was there already but for the last `count`, left out; in the order of time."""
    past.sort(key=lambda each: (each.timestamp()[1], each.offset()))
    old = [each for each in past if each.offset() < ends[each.partition()]]
    dropped = {id(each) for each in old[: len(old) - count]}
    return [each for each in past if id(each) not in dropped]


def line_of(record: Record, wants: Predicate | None, *, as_json: bool) -> str | None:
    """The record as a line; None for an event that isn't wanted."""
    try:
        envelope = read(record.headers(), record.value())
    except InvalidEvent as error:
        where = f"partition {record.partition()}, offset {record.offset()}"
        return None if wants or as_json else f"{_time(record)} no event at {where}: {error}"
    event = envelope.event
    if wants is not None and not wants(event.attributes):
        return None
    if as_json:
        return json_format.write(event).decode()
    about = event.attributes
    subject = f" about {about['subject']}" if "subject" in about else ""
    data = (event.data or b"")[:1000].decode(errors="replace")
    said = f"{about['type']} {about['id']} from {about['source']}{subject}"
    return f"{_time(record)} {shown(said)}{f': {shown(data)}' if data else ''}"


def _time(record: Record) -> str:
    moment = datetime.fromtimestamp(record.timestamp()[1] / 1000)
    return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}"
