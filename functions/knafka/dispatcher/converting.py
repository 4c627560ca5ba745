"""Converting: a reader whose records are made into events as they are read, for a KafkaSource.

From here on such a record is one of a Broker's topic: filtered, delivered, dead-lettered and
replayed as any other. What it becomes is `core.foreign_records`'.
"""

from __future__ import annotations

from collections.abc import Sequence

from knafka.clients.kafka_client import Connection
from knafka.clients.kafka_reader import KafkaReader
from knafka.core.contract import Conversion
from knafka.core.foreign_records import RecordPosition, as_event
from knafka.core.kafka_binding import RecordHeaders
from knafka.ports.log import Assignment, Record


class ConvertedRecord:
    """A record as it was read, and the event that it becomes once its headers are asked for."""

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
        self._record, self._number, self._conversion = record, number, conversion
        self._value = record.value()
        self.key, self.offset, self.topic = record.key, record.offset, record.topic
        self.timestamp = record.timestamp

    def partition(self) -> int:
        """Its number among those of all topics."""
        return self._number

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> RecordHeaders | None:
        """The event's; raises what the record's own raise."""
        record = self._record
        kind, at = record.timestamp()
        place = RecordPosition(
            record.topic(), record.partition(), record.offset(), at if kind else -1
        )
        headers, self._value = as_event(
            self._conversion, place, record.key(), record.headers(), record.value()
        )
        return headers


class ConvertingReader(KafkaReader):
    """Reads a source's topics."""

    def __init__(
        self,
        conversion: Conversion,
        connection: Connection,
        group: str,
        topics: Sequence[str],
        assignment: Assignment,
    ) -> None:
        super().__init__(connection, group, topics, assignment)
        self._conversion = conversion

    async def read(self, limit: int, timeout: float) -> Sequence[Record]:
        number_of, conversion = self.number_of, self._conversion
        records = await super().read(limit, timeout)
        return [ConvertedRecord(each, number_of(each), conversion) for each in records]
