"""Read a KafkaSource's topics: each record becomes an event when its headers are read.

A converted record is handled like a record of a Broker's topic: filtered, delivered, dead-lettered
and replayed. `core.events.foreign_records` defines the event. A record whose headers can't be read
is converted without them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from knafka.clients.kafka.consumers.kafka_reader import KafkaReader
from knafka.clients.kafka.kafka_client import Connection
from knafka.core.contract import Conversion
from knafka.core.errors import InvalidEvent
from knafka.core.events.foreign_records import RecordPosition, as_event
from knafka.core.events.kafka_binding import RecordHeaders, headers_of
from knafka.observability import RateLimitedFilter
from knafka.ports.log import Assignment, Record

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter(by_wording=True))


class ConvertedRecord:
    """A `Record` of a KafkaSource: `headers()` converts it into an event, whose value `value()`
    returns from then on."""

    __slots__ = (
        "_conversion",
        "_headers",
        "_number",
        "_record",
        "_value",
        "key",
        "offset",
        "timestamp",
        "topic",
    )

    def __init__(self, record: Record, number: int, conversion: Conversion) -> None:
        """Wrap a record that isn't converted yet. `number` identifies its partition among those of
        all topics; `conversion` says how the record becomes an event."""
        self._record, self._number, self._conversion = record, number, conversion
        self._value = record.value()
        self._headers: RecordHeaders | None = None  # the event's; None: it isn't converted yet
        # These methods of a `Record` aren't affected by the conversion.
        self.key, self.offset, self.topic = record.key, record.offset, record.topic
        self.timestamp = record.timestamp

    def partition(self) -> int:
        """Return the partition's number among the partitions of all of the source's topics."""
        return self._number

    def value(self) -> bytes | None:
        """Return the record's value; after `headers()`, the event's."""
        return self._value

    def headers(self) -> RecordHeaders | None:
        """Convert the record and return the event's headers; from then on `value` returns the
        event's value. If the record's own headers can't be read, the event has none of them."""
        if self._headers is not None:
            return self._headers
        record = self._record
        kind, timestamp = record.timestamp()  # kind 0: the record has no timestamp
        position = RecordPosition(
            record.topic(), record.partition(), record.offset(), timestamp if kind else -1
        )
        try:
            record_headers = headers_of(record)
        except InvalidEvent as error:
            # Kafka's client gives all of them or none, and must not be asked again.
            record_headers = None
            log.warning(
                "an event without its headers, from %s, partition %d, offset %d: %s",
                *position[:3],
                error,
            )
        self._headers, self._value = as_event(
            self._conversion, position, record.key(), record_headers, record.value()
        )
        return self._headers


class ConvertingReader(KafkaReader):
    """A `KafkaReader` that returns the records of a KafkaSource's topics as `ConvertedRecord`s."""

    def __init__(
        self,
        conversion: Conversion,
        connection: Connection,
        group: str,
        topics: Sequence[str],
        assignment: Assignment,
        *,
        may_repeat: bool = True,
    ) -> None:
        """Join the group on the source's topics; `conversion` says how a record becomes an event.
        `may_repeat`: whether a topic that was deleted and created again is read again from its
        start; False for delivery at most once. Raises `LogError`."""
        super().__init__(connection, group, topics, assignment, may_repeat=may_repeat)
        self._conversion = conversion

    async def read(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return up to `limit` records, waiting up to `timeout` seconds for the first; they are
        converted when their headers are read. Raises `LogError`."""
        number_of, conversion = self.number_of, self._conversion
        records = await super().read(limit, timeout)
        return [ConvertedRecord(record, number_of(record), conversion) for record in records]
