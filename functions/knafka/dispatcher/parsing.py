"""How a drain takes a record apart, and makes a request of it: each time anew, by itself.

Where many drains get the same record, `shared.record` does it once for all.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

from knafka.core.http_binding import located_request_of, request_of
from knafka.core.kafka_binding import Envelope, RecordHeaders, read
from knafka.core.numbering import partition_of
from knafka.ports.log import Record

Format: TypeAlias = Literal["json", "binary", "batch"] | None


class Parser(Protocol):
    """`headers` are those of the record, which were asked for already."""

    def envelope(self, record: Record, headers: RecordHeaders | None) -> Envelope:
        """Raises `InvalidEvent`."""
        ...

    def request(
        self, record: Record, envelope: Envelope, form: Format, prefix: bytes, located: bool
    ) -> tuple[bytes, bytes]:
        """Header lines, `prefix` in front of them, and the body; `located`: with the attributes
        that say where the record lies."""
        ...


class OwnParser:
    """Keeps nothing."""

    def envelope(self, record: Record, headers: RecordHeaders | None) -> Envelope:
        return read(headers, record.value())

    def request(
        self, record: Record, envelope: Envelope, form: Format, prefix: bytes, located: bool
    ) -> tuple[bytes, bytes]:
        head, body = request_for(record, envelope, form, located)
        return prefix + head, body


def request_for(
    record: Record, envelope: Envelope, form: Format, located: bool
) -> tuple[bytes, bytes]:
    """Header lines and body of the request that delivers a record's event."""
    if located:
        partition = partition_of(record.partition())
        return located_request_of(envelope, partition, record.offset(), form)
    return request_of(envelope, form)
