"""Finding an event in a Broker's topic: from the newest record back, not further than a time.

Read beside everybody, as `tailing` does: no group, nothing committed. Kafka finds the offset of a
time by itself, so that what is older isn't read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from knafka.clients.kafka_client import log_error_of, open_client
from knafka.core.errors import InvalidEvent, LogError
from knafka.core.kafka_binding import CONTENT_TYPE, Mode, mode_of, read
from knafka.ports.log import Record
from knafka_client.topics.ranges import KAFKA_ANSWER_TIMEOUT, offsets_since, spans_of

SEARCH_CHUNK_OFFSETS: Final = 10_000
"""Offsets of each partition that are read before older ones are."""
SEARCH_BATCH_RECORDS: Final = 1000
"""Records that are taken from the client at once."""
SEARCH_BATCH_WAIT: Final = 0.1
"""Seconds to wait for so many: the last of a chunk are fewer."""
SEARCH_QUEUE_KILOBYTES: Final = 8192
"""What the client reads ahead of a partition; what lies behind a chunk's end is read in vain."""


@dataclass
class Search:
    """One topic's search; what is found stays, also if it is interrupted."""

    topic: str
    found: list[Record] = field(default_factory=list)
    """Oldest first, once it has ended."""
    read: int = 0
    total: int = 0
    """Offsets since the time."""
    whole: bool = False
    """Whether nothing in the topic is older."""

    @property
    def ended(self) -> bool:
        return self.read >= self.total


def is_event(id_: str, source: str | None) -> Callable[[Record], bool]:
    """Whether a record holds the event of this id, of any source if none is given."""
    wanted_id = id_.encode()
    wanted_source = None if source is None else source.encode()

    def is_it(record: Record) -> bool:
        headers = dict(record.headers() or ())
        if (record_id := headers.get("ce_id")) is not None:
            return record_id == wanted_id and wanted_source in (None, headers.get("ce_source"))
        if mode_of(_content_type(headers)) is not Mode.STRUCTURED:
            return False
        try:
            about = read(record.headers(), record.value()).attributes
        except InvalidEvent:
            return False
        return about["id"] == id_ and source in (None, about["source"])

    return is_it


def _content_type(headers: Mapping[str, bytes | None]) -> str:
    content_types = (value for name, value in headers.items() if name.lower() == CONTENT_TYPE)
    return (next(content_types, None) or b"").decode(errors="replace")


def run(
    connection: dict[str, Any],
    search: Search,
    is_wanted: Callable[[Record], bool],
    since: float,
    progress: Callable[[Search], None],
) -> None:
    """Look for records since then (seconds since the Unix epoch). Raises `LogError`."""
    consumer = open_client(
        Consumer,
        {
            **connection,
            "group.id": "knafka-trace",  # librdkafka wants one; it never joins and never commits
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": SEARCH_QUEUE_KILOBYTES,
        },
    )
    try:
        spans = spans_of(consumer, search.topic)
        starts = offsets_since(consumer, search.topic, spans, since)
        ends = {number: end for number, (_, end) in spans.items()}
        search.total = sum(ends[number] - start for number, start in starts.items())
        search.whole = all(start == spans[number][0] for number, start in starts.items())
        while any(ends[number] > start for number, start in starts.items()):
            froms = {
                number: max(starts[number], end - SEARCH_CHUNK_OFFSETS)
                for number, end in ends.items()
            }
            search.found += filter(is_wanted, _records(consumer, search.topic, froms, ends))
            search.read += sum(ends[number] - start for number, start in froms.items())
            ends = froms
            progress(search)
    except KafkaException as error:
        raise log_error_of(error.args[0]) from error
    finally:
        consumer.close()
        search.found.sort(key=lambda record: (record.timestamp()[1], record.offset()))


def _records(
    consumer: Consumer, topic: str, froms: Mapping[int, int], ends: Mapping[int, int]
) -> Iterator[Record]:
    """The records between these offsets."""
    unread = {number for number, end in ends.items() if froms[number] < end}
    consumer.assign([TopicPartition(topic, number, froms[number]) for number in unread])
    heard = time.monotonic()
    while unread:
        messages = consumer.consume(SEARCH_BATCH_RECORDS, SEARCH_BATCH_WAIT)
        if messages:
            heard = time.monotonic()
        elif time.monotonic() > heard + KAFKA_ANSWER_TIMEOUT:
            raise LogError(
                f"Kafka has not answered for {KAFKA_ANSWER_TIMEOUT:.0f} s: {topic} can't be read on"
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
            # Not every offset has a record: the last may be a transaction's marker.
            if offset >= ends[number] - 1 and number in unread:
                unread.discard(number)
                # Not paused: that outlives an assignment, and one that ends it goes on elsewhere.
                consumer.incremental_unassign([TopicPartition(topic, number)])
