"""Events as they arrive in topics, read beside everybody: no group, nothing committed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias, cast

from confluent_kafka import KafkaError, TopicPartition

from knafka.clients.kafka_client import log_error_of
from knafka.core import errors, json_format
from knafka.core.dead_letter import ATTRIBUTE_PREFIX
from knafka.core.errors import InvalidEvent, LogError
from knafka.core.filters import Predicate
from knafka.core.kafka_binding import read
from knafka.core.times import moment
from knafka.ports.log import Record
from knafka_client.topics.dead_letters import letter, shown
from knafka_client.topics.ranges import RangeReader

TAIL_POLL_INTERVAL: Final = 0.5
"""Seconds without an event after which Ctrl-C is looked for."""
ORDERED_RECORDS: Final = 50_000
"""Records of the past that are put in order."""
REASON_ATTRIBUTE: Final = f"{ATTRIBUTE_PREFIX}reason"
"""Attribute that every dead letter has."""

_SAID: Final = frozenset({"specversion", "type", "id", "source", "subject"})


class Format(StrEnum):
    """How an event is shown."""

    TEXT = "text"
    JSON = "json"
    WIDE = "wide"


class NoTopic(errors.KnafkaError):
    """None of the topics to tail exists."""

    def __init__(self, topics: Sequence[str]) -> None:
        super().__init__(
            f"there is no topic {', '.join(topics)} (a dead-letter topic is made with the first "
            "dead letter)"
        )


@dataclass(frozen=True, slots=True)
class Tail:
    """Which existing events are shown before new ones; none by default."""

    since: float | None = None
    """Seconds since the Unix epoch."""
    last: int | None = None
    """The last so many."""


def records(connection: Mapping[str, Any], topics: Sequence[str], tail: Tail) -> Iterator[Record]:
    """The past of the topics, oldest first, and then each record as it arrives, for ever.

    More than `ORDERED_RECORDS` records of the past are in the order of each partition only. A topic
    that isn't there is left out. Raises `LogError` if one can't be read, `NoTopic` without any.
    """
    with RangeReader(connection, "knafka-tail") as reader:
        starts, ends = _spans(reader, topics, tail)
        reader.consumer.assign([TopicPartition(*place, start) for place, start in starts.items()])
        # The past of all partitions is put in order before any of it is shown.
        unread = {place for place, start in starts.items() if start < ends[place]}
        past: list[Record] = []
        while True:
            message = reader.consumer.poll(TAIL_POLL_INTERVAL)
            if message is None:
                continue
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    unread.discard((cast(str, message.topic()), cast(int, message.partition())))
                elif not error.retriable():
                    raise log_error_of(error)
            elif past or unread:
                past.append(cast(Record, message))
            else:
                yield cast(Record, message)
            if past and (not unread or (tail.last is None and len(past) >= ORDERED_RECORDS)):
                yield from _last(past, ends, tail.last)
                past, unread = [], set()


Place: TypeAlias = tuple[str, int]
"""Topic and partition."""


def _spans(
    reader: RangeReader, topics: Sequence[str], tail: Tail
) -> tuple[Mapping[Place, int], Mapping[Place, int]]:
    """Where each partition is read from, and its end now. Raises `LogError`, `NoTopic`."""
    starts, ends = dict[Place, int](), dict[Place, int]()
    for topic in topics:
        try:
            spans = reader.spans(topic)
        except LogError as error:
            if not error.unknown_topic:
                raise
            continue
        since = {} if tail.since is None else reader.offsets_since(topic, spans, tail.since)
        for number, (low, end) in spans.items():
            last = 0 if tail.last is None and tail.since is None else tail.last
            start = low if last is None else max(low, end - last)
            ends[topic, number] = end
            starts[topic, number] = max(start, since.get(number, low))
    if not ends:
        raise NoTopic(topics)
    return starts, ends


def _last(past: list[Record], ends: Mapping[Place, int], count: int | None) -> list[Record]:
    """What was there already but for the last `count`, left out; in the order of time."""
    past.sort(key=lambda record: (record.timestamp()[1], record.offset()))
    if count is None:
        return past
    old = [record for record in past if record.offset() < ends[record.topic(), record.partition()]]
    dropped = {id(record) for record in old[: len(old) - count]}
    return [record for record in past if id(record) not in dropped]


def problem_of(record: Record) -> str | None:
    """Why a record holds no event, with its place; None: it holds one."""
    try:
        read(record.headers(), record.value())
    except InvalidEvent as error:
        return f"{_time(record)} no event at {_place(record)}: {error}"
    return None


def line_of(record: Record, wants: Predicate | None, format_: Format) -> str | None:
    """The event as a line; None if it isn't wanted. Raises `InvalidEvent` (see `problem_of`)."""
    event = read(record.headers(), record.value()).event
    about = event.attributes
    if wants is not None and not wants(about):
        return None
    if format_ is Format.JSON:
        return json_format.write(event).decode()
    subject = f" about {about['subject']}" if "subject" in about else ""
    said = shown(f"{about['type']} {about['id']} from {about['source']}{subject}")
    if REASON_ATTRIBUTE in about:
        failure = letter(record)
        how = f"{failure.reason} {failure.code}".strip()
        said += f" ({shown(how)} after {failure.attempts} attempts)"
    if format_ is Format.WIDE:
        said += f" {_more(record, about)}"
    data = (event.data or b"")[:1000].decode(errors="replace")
    return f"{_time(record)} {said}{f': {shown(data)}' if data else ''}"


def _more(record: Record, about: Mapping[str, str]) -> str:
    """Its place, its key, and the attributes that aren't in the line already."""
    key = record.key()
    pairs = {"key": key.decode(errors="replace")} if key is not None else {}
    pairs |= {name: value for name, value in about.items() if name not in _SAID}
    return " ".join([f"[{_place(record)}]", *(f"{k}={shown(v)}" for k, v in pairs.items())])


def _place(record: Record) -> str:
    return f"{record.topic()}/{record.partition()}/{record.offset()}"


def _time(record: Record) -> str:
    local = moment(record.timestamp()[1] / 1000).astimezone()
    return f"{local:%H:%M:%S}.{local.microsecond // 1000:03d}"
