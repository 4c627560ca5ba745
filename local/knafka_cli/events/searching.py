"""Searches a Broker's topic for an event, from the newest record back to a given time.

The search joins no consumer group and commits nothing. Kafka finds the offset of the given time, so
older records aren't read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from knafka.core.errors import InvalidEvent
from knafka.core.events.kafka_binding import CONTENT_TYPE, Mode, mode_of, read
from knafka.ports.log import Record
from knafka_client.topics.ranges import RangeReader

SEARCH_CHUNK_OFFSETS: Final = 10_000
"""Number of offsets of each partition that are read at a time, the newest first."""
SEARCH_QUEUE_KILOBYTES: Final = 8192
"""The most kilobytes that the client reads ahead: records that it reads beyond a chunk's end are
read in vain."""


@dataclass
class TopicSearch:
    """The search of one topic, and its results so far, which an interrupted search keeps."""

    topic: str
    matching_records: list[Record] = field(default_factory=list)
    """The matching records, oldest first once the search has ended."""
    offsets_read: int = 0
    """Number of offsets that were searched."""
    offsets_total: int | None = None
    """Number of offsets since the given time; None: not known yet."""
    covers_topic: bool = False
    """Whether the search covers the whole topic, since no record is older than the given time."""
    leaderless: Collection[int] = ()
    """Partitions that can't be searched, as they have no leader."""

    @property
    def ended(self) -> bool:
        """Whether all records since the given time were searched."""
        return self.offsets_total is not None and self.offsets_read >= self.offsets_total


def holds_event_with(id_: str, source: str | None) -> Callable[[Record], bool]:
    """Return a function that says of a record whether it holds the event with this id and source.
    `source` None: an event with this id of any source."""
    encoded_id = id_.encode()
    encoded_source = None if source is None else source.encode()

    def is_same_event(record: Record) -> bool:
        """Whether a record holds the event: by its headers `ce_id` and `ce_source`, or, without a
        `ce_id`, by the structured event in its value."""
        headers = dict(record.headers() or ())
        if (record_id := headers.get("ce_id")) is not None:
            return record_id == encoded_id and encoded_source in (None, headers.get("ce_source"))
        if mode_of(_content_type(headers)) is not Mode.STRUCTURED:
            return False
        try:
            attributes = read(record.headers(), record.value()).attributes
        except InvalidEvent:
            return False
        return attributes["id"] == id_ and source in (None, attributes["source"])

    return is_same_event


def is_traceable(record: Record) -> bool:
    """Whether a record holds a valid event, so that it can be traced. A search also finds records
    that have an event's id but are no valid event."""
    try:
        read(record.headers(), record.value())
    except InvalidEvent:
        return False
    return True


def _content_type(headers: Mapping[str, bytes | None]) -> str:
    """Return the record's `content-type` header; empty if it has none."""
    content_types = (value for name, value in headers.items() if name.lower() == CONTENT_TYPE)
    return (next(content_types, None) or b"").decode(errors="replace")


def run_search(
    connection: dict[str, Any],
    search: TopicSearch,
    matches: Callable[[Record], bool],
    since: float,
    progress: Callable[[TopicSearch], None],
) -> None:
    """Search a topic for records for which `matches` returns True, from its end back to the time
    `since`, in seconds since the Unix epoch.

    `search` names the topic and gets the results, also those of an interrupted search. `progress`
    is called with `search` after each chunk. `connection` is librdkafka's configuration. Raises
    `LogError`.
    """
    settings = {"queued.max.messages.kbytes": SEARCH_QUEUE_KILOBYTES}
    try:
        with RangeReader(connection, "knafka-trace", settings) as reader:
            spans, search.leaderless = reader.readable_spans(search.topic)
            starts = reader.offsets_since(search.topic, spans, since)
            # A span is the first offset of a partition and the end offset.
            ends = {partition: end for partition, (_, end) in spans.items()}
            search.offsets_total = sum(
                ends[partition] - start for partition, start in starts.items()
            )
            search.covers_topic = not search.leaderless and all(
                start == spans[partition][0] for partition, start in starts.items()
            )
            # Read a chunk of each partition at a time, from the end to the start.
            while any(ends[partition] > start for partition, start in starts.items()):
                chunk_starts = {
                    partition: max(starts[partition], end - SEARCH_CHUNK_OFFSETS)
                    for partition, end in ends.items()
                }
                search.matching_records += filter(
                    matches, reader.records(search.topic, chunk_starts, ends)
                )
                search.offsets_read += sum(
                    ends[partition] - start for partition, start in chunk_starts.items()
                )
                ends = chunk_starts
                progress(search)
    finally:
        search.matching_records.sort(key=lambda record: (record.timestamp()[1], record.offset()))
