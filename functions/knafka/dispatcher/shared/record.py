"""A record that many drains read: parsed once, and its request encoded once for each format."""

from __future__ import annotations

from typing import Final, cast

from knafka.core.errors import InvalidEvent
from knafka.core.events.kafka_binding import Envelope, RecordHeaders, read
from knafka.dispatcher.engine.clients import Format
from knafka.dispatcher.engine.intake import encode_request
from knafka.ports.log import Record

OVERHEAD_BYTES: Final = 1000
"""Bytes that a record is assumed to take besides its value."""


class SharedRecord:
    """A `Record` that caches its parsed event and its encoded requests."""

    __slots__ = ("_headers", "_offset", "_partition", "_problem", "_record", "_value",
                 "is_for_all", "parsed", "requests")  # fmt: skip

    def __init__(self, record: Record) -> None:
        """Read the fields that all drains need. If the headers can't be read, keep the error for
        `headers` to raise."""
        self._record = record
        self._partition = record.partition()
        self._offset = record.offset()
        self._value = record.value()
        self._headers: RecordHeaders | None = None
        self._problem: Exception | None = None  # why the headers can't be read
        try:
            self._headers = record.headers()
        except Exception as error:  # such as a SystemError for a header name that isn't UTF-8
            self._problem = error
        self.is_for_all = False
        """Whether every drain gets the record and applies its own filter."""
        self.parsed: Envelope | InvalidEvent | None = None
        """The event, or why the record holds none; None: not parsed yet."""
        self.requests: dict[tuple[Format, bytes, int | None], tuple[bytes, bytes]] = {}
        """Encoded requests (head and body) by format, prefix and partition (`SharedParser`)."""

    def topic(self) -> str:
        """Return the topic's name."""
        return self._record.topic()

    def partition(self) -> int:
        """Return the partition's number."""
        return self._partition

    def offset(self) -> int:
        """Return the offset."""
        return self._offset

    def key(self) -> bytes | None:
        """Return the key; None: the record has none."""
        return self._record.key()

    def value(self) -> bytes | None:
        """Return the value; None: the record has none."""
        return self._value

    def headers(self) -> RecordHeaders | None:
        """Return the headers (None: the record has none), or raise the error that reading them has
        raised."""
        if self._problem is not None:
            raise self._problem.with_traceback(None)
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        """Return the timestamp's type and the timestamp (`Record.timestamp`)."""
        return self._record.timestamp()

    @property
    def size(self) -> int:
        """Approximate bytes in memory."""
        return len(self._value or b"") + OVERHEAD_BYTES


def envelope_of(record: SharedRecord) -> Envelope:
    """Return the record's event, parsed at the first call. Raises `InvalidEvent`, or
    confluent-kafka's error if the headers can't be read."""
    parsed = record.parsed
    if parsed is None:
        try:
            parsed = read(record.headers(), record.value())
        except InvalidEvent as error:
            parsed = error
        record.parsed = parsed
    if isinstance(parsed, InvalidEvent):
        raise parsed.with_traceback(None)
    return parsed


class SharedParser:
    """A `Parser` for `SharedRecord`s. All drains get the same objects, and must not change them."""

    def envelope(self, record: Record, headers: RecordHeaders | None) -> Envelope:
        """Return the record's event, parsed once for all drains; `headers` isn't used, as the
        record keeps its headers. Raises `InvalidEvent`, or confluent-kafka's error if the headers
        can't be read."""
        return envelope_of(cast(SharedRecord, record))

    def request(
        self, record: Record, envelope: Envelope, format_: Format, prefix: bytes,
        partition: int | None,
    ) -> tuple[bytes, bytes]:  # fmt: skip
        """Return the header lines and the body of the request that delivers the record's event
        (`intake.encode_request` has the parameters). The request is encoded once for all drains
        with the same `format_`, `prefix` and `partition`."""
        requests = cast(SharedRecord, record).requests
        encoded = requests.get((format_, prefix, partition))
        if encoded is None:
            encoded = encode_request(record, envelope, format_, prefix, partition)
            requests[format_, prefix, partition] = encoded
        return encoded
