"""Parse a record's event and encode the request that delivers it, again for each drain.

Where many drains read the same record, `shared.record` does both only once.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

from knafka.core.contract import Egress
from knafka.core.events.http_binding import located_request_of, request_of
from knafka.core.events.kafka_binding import Envelope, RecordHeaders, read
from knafka.ports.log import Record

Format: TypeAlias = Literal["json", "binary", "batch"] | None
"""How the request holds the event: in structured or binary mode, or its data as a JSON batch; None:
in the mode of its record."""


class Parser(Protocol):
    """Parses records and encodes requests. `headers` are the record's, as these may be read only
    once."""

    def envelope(self, record: Record, headers: RecordHeaders | None) -> Envelope:
        """Parse the record's event. Raises `InvalidEvent`."""
        ...

    def request(
        self, record: Record, envelope: Envelope, format_: Format, prefix: bytes,
        partition: int | None,
    ) -> tuple[bytes, bytes]:  # fmt: skip
        """Encode the request that delivers the event, in the mode `format_` (None: its record's);
        returns its header lines, after those of `prefix`, and its body. `partition`: Kafka's number
        of the record's partition, to include the attributes with it and the record's offset; None:
        leave them out."""
        ...


class OwnParser:
    """A `Parser` that caches nothing."""

    def envelope(self, record: Record, headers: RecordHeaders | None) -> Envelope:
        """Parse the record's event. Raises `InvalidEvent`."""
        return read(headers, record.value())

    def request(
        self, record: Record, envelope: Envelope, format_: Format, prefix: bytes,
        partition: int | None,
    ) -> tuple[bytes, bytes]:  # fmt: skip
        """Encode the request that delivers the event, in the mode `format_` (None: its record's);
        returns its header lines, after those of `prefix`, and its body. `partition`: Kafka's number
        of the record's partition, to include the attributes with it and the record's offset; None:
        leave them out."""
        head, body = encode_request(record, envelope, format_, partition)
        return prefix + head, body


def encode_request(
    record: Record, envelope: Envelope, format_: Format, partition: int | None
) -> tuple[bytes, bytes]:
    """Encode the request that delivers a record's event, in the mode `format_` (None: its
    record's); returns its header lines and its body. `partition`: Kafka's number of the record's
    partition, to include the attributes with it and the record's offset; None: leave them out."""
    if partition is None:
        return request_of(envelope, format_)
    return located_request_of(envelope, partition, record.offset(), format_)


def delivery_head(egress: Egress) -> bytes:
    """Return the header lines that each delivery of this Egress has besides its event's."""
    return b"kn-namespace: %s\r\n" % egress.namespace.encode()
