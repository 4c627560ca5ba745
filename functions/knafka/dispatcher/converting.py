"""Reads a KafkaSource's topics: each record becomes an event when its headers are read.

A converted record is handled like a record of a Broker's topic: filtered, delivered, dead-lettered
and replayed. `core.events.foreign_records` defines the event.
"""

from __future__ import annotations

from collections.abc import Sequence

from knafka.clients.kafka.consumers.kafka_reader import KafkaReader
from knafka.clients.kafka.kafka_client import Connection
from knafka.core.contract import Conversion
from knafka.core.events.foreign_records import RecordPosition, as_event
from knafka.core.events.kafka_binding import RecordHeaders
from knafka.ports.log import Assignment, Record


class ConvertedRecord:
    """A `Record` of a KafkaSource: `headers()` converts it into an event, whose value `value()`
    returns from then on."""

    __slots__ = (
        "_conversion",
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
        # The conversion doesn't affect these methods, so the record's own ones are used.
        self.key, self.offset, self.topic = record.key, record.offset, record.topic
        self.timestamp = record.timestamp

    def partition(self) -> int:
        """Return the partition's number among the partitions of all of the source's topics."""
        return self._number

    def value(self) -> bytes | None:
        """Return the record's value; after `headers()`, the event's. None: it has none."""
        return self._value

    def headers(self) -> RecordHeaders | None:
        """Convert the record and return the event's headers; None: it has none. After that, `value`
        returns the event's value. Raises any error of the record's own `headers`."""
        record = self._record
        timestamp_type, timestamp = record.timestamp()  # type 0: the record has no timestamp
        position = RecordPosition(
            record.topic(),
            record.partition(),
            record.offset(),
            timestamp if timestamp_type else -1,
        )
        headers, self._value = as_event(
            self._conversion, position, record.key(), record.headers(), record.value()
        )
        return headers


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
