"""Records in memory, and what readers find between them."""

from __future__ import annotations

from collections.abc import Sequence

from knafka.core.events.kafka_binding import RecordHeaders

CREATE_TIME = 1
LOG_APPEND_TIME = 2
"""Kinds of timestamps, as confluent-kafka numbers them."""


class MemoryRecord:
    """A record with confluent-kafka's accessors."""

    __slots__ = (
        "_headers",
        "_key",
        "_kind",
        "_millis",
        "_offset",
        "_partition",
        "_topic",
        "_value",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders | None,
        millis: int = 0,
        time_kind: int = CREATE_TIME,
    ) -> None:
        self._kind = time_kind
        self._topic = topic
        self._partition = partition
        self._offset = offset
        self._key = key
        self._value = value
        self._headers = headers
        self._millis = millis

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> RecordHeaders | None:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return (self._kind, self._millis)


class Marker(MemoryRecord):
    """An offset without a record for a reader: the end of a transaction, or what it aborted."""

    __slots__ = ()


class Undecided(MemoryRecord):
    """A record of a transaction under way: readers go no further."""

    __slots__ = ()


def readable(
    records: Sequence[MemoryRecord], position: int, limit: int
) -> tuple[list[MemoryRecord], int]:
    """Up to `limit` records from a position, and the position behind them. A reader passes over
    markers, however many there are, and goes no further than a transaction under way."""
    found: list[MemoryRecord] = []
    while position < len(records) and len(found) < limit:
        record = records[position]
        if isinstance(record, Undecided):
            break
        if not isinstance(record, Marker):
            found.append(record)
        position += 1
    return found, position


def size_of(key: bytes | None, value: bytes | None, headers: RecordHeaders) -> int:
    """Bytes that count towards a topic's limit."""
    named = sum(len(name) + len(each or b"") for name, each in headers)
    return len(key or b"") + len(value or b"") + named
