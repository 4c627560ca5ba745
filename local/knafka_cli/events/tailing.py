"""Reads events as they arrive in topics, without a consumer group and without commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias, cast

from confluent_kafka import KafkaError, TopicPartition

from knafka.clients.kafka.kafka_client import log_error_of
from knafka.core import errors
from knafka.core.dead_letter import ATTRIBUTE_PREFIX
from knafka.core.errors import InvalidEvent, LogError
from knafka.core.events import json_format
from knafka.core.events.kafka_binding import read
from knafka.core.filters.predicates import Predicate
from knafka.core.times import utc_datetime
from knafka.ports.log import Record
from knafka_client.topics.dead_letters import parse_dead_letter, preview_text
from knafka_client.topics.ranges import RangeReader, leaderless_text

TAIL_POLL_INTERVAL: Final = 0.5
"""Seconds that a poll waits for an event, and so the longest delay of Ctrl-C."""
ORDERED_RECORDS: Final = 50_000
"""The most existing records that are put in the order of time."""
PREVIEW_BYTES: Final = 1000
"""Bytes of an event's data that are decoded for a line; `preview_text` cuts the text further."""
REASON_ATTRIBUTE: Final = f"{ATTRIBUTE_PREFIX}reason"
"""An attribute that every dead letter has."""

_SHOWN_ATTRIBUTES: Final = frozenset({"specversion", "type", "id", "source", "subject"})
"""Attributes that a line of text shows by itself."""


class OutputFormat(StrEnum):
    """The output format of an event."""

    TEXT = "text"
    JSON = "json"
    WIDE = "wide"


class TopicsMissing(errors.KnafkaError):
    """None of the topics that `knafka tail` is to read exists."""

    def __init__(self, topics: Sequence[str]) -> None:
        """`topics` are the names of the missing topics."""
        super().__init__(
            f"there is no topic {', '.join(topics)} (a dead-letter topic is made with the first "
            "dead letter)"
        )


@dataclass(frozen=True, slots=True)
class TailStart:
    """Which existing events are read before new ones; none by default."""

    since: float | None = None
    """Seconds since the Unix epoch."""
    last: int | None = None
    """How many of the newest existing events are read; None: all since `since`, or no existing
    event if `since` is None, too."""


def tail_records(
    connection: Mapping[str, Any],
    topics: Sequence[str],
    tail_start: TailStart,
    show_problem: Callable[[str], None],
) -> Iterator[Record]:
    """Yield the existing records of the topics that `tail_start` selects, oldest first, and then
    each new record, for ever.

    Beyond `ORDERED_RECORDS`, existing records are in order within each partition only. A topic that
    doesn't exist is skipped. Partitions without a leader are skipped, too, and `show_problem` is
    called with a sentence that names them. `connection` is librdkafka's configuration.

    Raises `LogError` if a topic can't be read, and `TopicsMissing` if none exists.
    """
    with RangeReader(connection, "knafka-tail") as reader:
        starts, ends = _offsets_to_read(reader, topics, tail_start, show_problem)
        reader.consumer.assign([TopicPartition(*place, start) for place, start in starts.items()])
        # The existing records of all partitions are ordered before the first one is yielded.
        unread = {place for place, start in starts.items() if start < ends[place]}
        existing: list[Record] = []
        while True:
            message = reader.consumer.poll(TAIL_POLL_INTERVAL)
            if message is None:
                continue
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    unread.discard((cast(str, message.topic()), cast(int, message.partition())))
                elif not error.retriable():
                    raise log_error_of(error)
            elif existing or unread:
                # Until the existing records are yielded, new ones are collected and sorted, too.
                existing.append(cast(Record, message))
            else:
                yield cast(Record, message)
            # To keep the newest `last`, all existing records must have been read.
            is_full = tail_start.last is None and len(existing) >= ORDERED_RECORDS
            if existing and (not unread or is_full):
                yield from _keep_newest(existing, ends, tail_start.last)
                existing, unread = [], set()


TopicAndPartition: TypeAlias = tuple[str, int]
"""Name of a topic, and number of a partition."""


def _offsets_to_read(
    reader: RangeReader,
    topics: Sequence[str],
    tail_start: TailStart,
    show_problem: Callable[[str], None],
) -> tuple[Mapping[TopicAndPartition, int], Mapping[TopicAndPartition, int]]:
    """Return two mappings from the partitions of these topics: to the offset at which reading
    starts, as `tail_start` says, and to the present end offset.

    Topics that don't exist are skipped. Partitions without a leader are skipped, too, and
    `show_problem` is called with a sentence that names them. Raises `LogError`, also if no
    partition has a leader, and `TopicsMissing` if no topic exists.
    """
    starts: dict[TopicAndPartition, int] = {}
    ends: dict[TopicAndPartition, int] = {}
    leaderless_topic: str | None = None
    for topic in topics:
        try:
            spans, leaderless = reader.readable_spans(topic)
        except LogError as error:
            if not error.unknown_topic:
                raise
            continue
        if leaderless:
            show_problem(f"{leaderless_text(topic, leaderless)}: events there aren't shown")
            if not spans:
                leaderless_topic = topic
                continue
        since, last = tail_start.since, tail_start.last
        offsets_since = {} if since is None else reader.offsets_since(topic, spans, since)
        # The most existing records to read of a partition; None: all since `since`.
        most_existing = 0 if last is None and since is None else last
        for partition, (low, end) in spans.items():
            # The newest N records of all partitions are among the newest N of each partition.
            start = low if most_existing is None else max(low, end - most_existing)
            ends[topic, partition] = end
            starts[topic, partition] = max(start, offsets_since.get(partition, low))
    if not ends and leaderless_topic is not None:
        raise LogError(f"no partition of {leaderless_topic} has a leader")
    if not ends:
        raise TopicsMissing(topics)
    return starts, ends


def _keep_newest(
    records: list[Record], ends: Mapping[TopicAndPartition, int], count: int | None
) -> list[Record]:
    """Return `records` in the order of time, without those existing ones that aren't among the
    newest `count`; `count` None: return all. Sorts `records` in place.

    A record is an existing one if its offset is below its partition's end offset at the start of
    the command (`ends`). The others are new, and always returned.
    """
    records.sort(key=lambda record: (record.timestamp()[1], record.offset()))
    if count is None:
        return records
    existing = [
        record for record in records if record.offset() < ends[record.topic(), record.partition()]
    ]
    dropped = {id(record) for record in existing[: max(0, len(existing) - count)]}
    return [record for record in records if id(record) not in dropped]


def problem_of(record: Record) -> str | None:
    """Return why a record holds no event, with its time and place; None if it holds one."""
    try:
        read(record.headers(), record.value())
    except InvalidEvent as error:
        return f"{_time_text(record)} no event at {_place_text(record)}: {error}"
    return None


def line_of(record: Record, predicate: Predicate | None, format_: OutputFormat) -> str | None:
    """Return one line about a record's event in this format; None if `predicate` refuses the event.
    Without a `predicate` (None), every event gets a line.

    Raises `InvalidEvent` if the record holds no event.
    """
    event = read(record.headers(), record.value()).event
    attributes = event.attributes
    if predicate is not None and not predicate(attributes):
        return None
    if format_ is OutputFormat.JSON:
        return json_format.write(event).decode()
    subject = f" about {attributes['subject']}" if "subject" in attributes else ""
    text = preview_text(
        f"{attributes['type']} {attributes['id']} from {attributes['source']}{subject}"
    )
    if REASON_ATTRIBUTE in attributes:
        failure = parse_dead_letter(record)
        reason = f"{failure.reason} {failure.code}".strip()
        text += f" ({preview_text(reason)} after {failure.attempts} attempts)"
    if format_ is OutputFormat.WIDE:
        text += f" {_remaining_attributes(record, attributes)}"
    data = (event.data or b"")[:PREVIEW_BYTES].decode(errors="replace")
    return f"{_time_text(record)} {text}{f': {preview_text(data)}' if data else ''}"


def _remaining_attributes(record: Record, attributes: Mapping[str, str]) -> str:
    """Return as text the record's place and key, and those of the event's `attributes` that aren't
    in `_SHOWN_ATTRIBUTES`."""
    key = record.key()
    pairs = {"key": key.decode(errors="replace")} if key is not None else {}
    pairs |= {name: value for name, value in attributes.items() if name not in _SHOWN_ATTRIBUTES}
    return " ".join(
        [
            f"[{_place_text(record)}]",
            *(f"{name}={preview_text(value)}" for name, value in pairs.items()),
        ]
    )


def _place_text(record: Record) -> str:
    """Return the record's place: `TOPIC/PARTITION/OFFSET`."""
    return f"{record.topic()}/{record.partition()}/{record.offset()}"


def _time_text(record: Record) -> str:
    """Return the record's local time, to the millisecond."""
    local = utc_datetime(record.timestamp()[1] / 1000).astimezone()
    return f"{local:%H:%M:%S}.{local.microsecond // 1000:03d}"
