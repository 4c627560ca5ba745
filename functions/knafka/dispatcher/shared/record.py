"""A record that many drains read: parsed once, and its request encoded once for each format."""

from __future__ import annotations

from typing import Final, cast

from knafka.core.errors import InvalidEvent
from knafka.core.events.kafka_binding import Envelope, RecordHeaders, read
from knafka.dispatcher.engine.parsing import Format, encode_request
from knafka.ports.log import Record

OVERHEAD_BYTES: Final = 1000
"""Bytes that a record is assumed to take besides its value."""


class SharedRecord:
    """A `Record` that caches its parsed event and its encoded requests."""

    __slots__ = ("_headers", "_offset", "_partition", "_problem", "_record", "_value",
                 "is_for_all", "parsed", "requests")  # fmt: skip

    def __init__(self, record: Record) -> None:
        """Read the record's fields once; an error of its headers is kept, and raised by
        `headers`."""
        self._record = record
        self._partition = record.partition()
        self._offset = record.offset()
        self._value = record.value()
        self._headers: RecordHeaders | None = None
        self._problem: Exception | None = None
        try:
            self._headers = record.headers()
        except Exception as error:  # such as a SystemError for a header name that isn't UTF-8
            self._problem = error
        self.is_for_all = False
        """Whether every drain gets the record and applies its own filter."""
        self.parsed: Envelope | InvalidEvent | None = None
        """The event, or why the record holds none; None: not parsed yet."""
        self.requests: dict[tuple[Format, bytes, bool], tuple[bytes, bytes]] = {}
        """Encoded requests (head and body) by format, prefix and `located` (`SharedParser`)."""

    def topic(self) -> str:
        return self._record.topic()

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._record.key()

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> RecordHeaders | None:
        """Return the headers, or raise the error that the first reading of them raised."""
        if self._problem is not None:
            raise self._problem.with_traceback(None)
        return self._headers

    def timestamp(self) -> tuple[int, int]:
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
        """Return the record's event, parsed once for all drains. Raises `InvalidEvent`, or
        confluent-kafka's error if the headers can't be read."""
        return envelope_of(cast(SharedRecord, record))

    def request(
        self, record: Record, envelope: Envelope, format_: Format, prefix: bytes, located: bool
    ) -> tuple[bytes, bytes]:
        """Return header lines and body of the record's request; the lines begin with those of
        `prefix`. `located` says whether the event gets attributes with the record's partition and
        offset. The request is encoded once for each format, prefix and value of `located`."""
        requests = cast(SharedRecord, record).requests
        encoded = requests.get((format_, prefix, located))
        if encoded is None:
            head, body = encode_request(record, envelope, format_, located)
            encoded = requests[format_, prefix, located] = prefix + head, body
        return encoded
