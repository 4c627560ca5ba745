"""Finding an event in a Broker's topic: from the newest record back, not further than a time.

Read beside everybody, as `tailing` does: no group, nothing committed. Kafka finds the offset of a
time by itself, so that what is older isn't read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from knafka.core.errors import InvalidEvent
from knafka.core.kafka_binding import CONTENT_TYPE, Mode, mode_of, read
from knafka.ports.log import Record
from knafka_client.topics.ranges import RangeReader

SEARCH_CHUNK_OFFSETS: Final = 10_000
"""Offsets of each partition that are read before older ones are."""
SEARCH_QUEUE_KILOBYTES: Final = 8192
"""What the client reads ahead of a partition; what lies behind a chunk's end is read in vain."""


@dataclass
class Search:
    """The search of one topic, with what it has found so far: an interrupted search keeps that."""

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
    settings = {"queued.max.messages.kbytes": SEARCH_QUEUE_KILOBYTES}
    try:
        with RangeReader(connection, "knafka-trace", settings) as reader:
            spans = reader.spans(search.topic)
            starts = reader.offsets_since(search.topic, spans, since)
            ends = {number: end for number, (_, end) in spans.items()}
            search.total = sum(ends[number] - start for number, start in starts.items())
            search.whole = all(start == spans[number][0] for number, start in starts.items())
            while any(ends[number] > start for number, start in starts.items()):
                froms = {
                    number: max(starts[number], end - SEARCH_CHUNK_OFFSETS)
                    for number, end in ends.items()
                }
                search.found += filter(is_wanted, reader.records(search.topic, froms, ends))
                search.read += sum(ends[number] - start for number, start in froms.items())
                ends = froms
                progress(search)
    finally:
        search.found.sort(key=lambda record: (record.timestamp()[1], record.offset()))
