"""Converts events to Kafka records, and records to events (CE-K1 to CE-K7).

Records are written in binary mode, whatever mode an event came in, unless a KafkaSink wants them in
structured mode. The one exception is an event whose datacontenttype is itself that of a structured
event or a batch: in binary mode a reader would mistake it (CE-K2).
Not here: Kafka clients, topics and partitions; record keys on the way out (CE-K4: a key says
nothing about the event); any percent-encoding (CE-K1).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from knafka.core.errors import InvalidEvent, UnsupportedContentMode
from knafka.core.events import json_format
from knafka.core.events.event import (
    SPEC_VERSIONS,
    Attributes,
    Event,
    is_attribute_name,
    is_legal,
    key_of,
    validate,
)

RecordHeaders: TypeAlias = list[tuple[str, bytes]]
"""Record headers in confluent-kafka's form."""

CONTENT_TYPE: Final = "content-type"
"""Record header with the event's datacontenttype; in structured mode, with the content type of this
mode."""

MODE: Final = "knafka-mode"
"""Record header (no attribute of the event). `structured`: the event came as JSON and is delivered
as JSON, too, unless the delivery declares another format, because common servers wouldn't accept
its attributes as header lines."""

_matches_passed = re.compile(
    r"traceparent|tracestate|x-request-id|(?:x-b3|knative)-[a-z0-9_.-]+"
).fullmatch
"""Matches the names of headers that are passed on with an event."""


class Draft(NamedTuple):
    """A record to be appended; a key or value that is None means that the record has none."""

    key: bytes | None
    headers: RecordHeaders
    value: bytes | None


class Envelope(NamedTuple):
    """A record's event and headers, parsed once for filters and for the HTTP request."""

    attributes: dict[str, str]
    data: bytes | None
    passed: RecordHeaders
    """Headers that are passed on with the event (KN-DP-10, KN-DP-11), unchanged in HTTP."""
    document: bytes | None = None
    """The record's value if it holds the whole event as JSON (CE-K7); None: the record is in binary
    mode."""
    sent_as_json: bool = False
    """Whether the record's header `MODE` is `structured`."""

    @property
    def event(self) -> Event:
        """The record's event, without the headers that are passed on."""
        return Event(self.attributes, self.data)


class Mode(Enum):
    """Content mode of a request or a record, by its content type alone (CE-H1, CE-K2)."""

    BINARY = "binary"
    STRUCTURED = "structured"
    BATCH = "batch"
    UNREADABLE = "unreadable"
    """The content type of an event format other than JSON. If the message has headers with
    attributes, it is in binary mode nevertheless (CE-H2)."""


def mode_of(content_type: str) -> Mode:
    """Return the content mode that a content type declares."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type.startswith("application/cloudevents-batch"):
        return Mode.BATCH
    if media_type == json_format.MEDIA_TYPE:
        return Mode.STRUCTURED
    if media_type.startswith("application/cloudevents"):
        return Mode.UNREADABLE
    return Mode.BINARY


def fits_binary(attributes: Attributes) -> bool:
    """Whether an event with these attributes can be in binary mode. It can't if its
    datacontenttype is that of a structured event or a batch, as a reader would take the record
    for one (CE-K2)."""
    mode = mode_of(attributes.get("datacontenttype", ""))
    return mode not in (Mode.STRUCTURED, Mode.BATCH)


_MAX_CACHED_WEIGHT: Final = 64
"""Greatest weight of a key that a cache keeps."""
_MAX_CACHED_VALUES: Final = 1024
"""Number of values at which a cache is full."""

Key = TypeVar("Key", bound=str | bytes | tuple[str, ...])
Value = TypeVar("Value")


class BoundedCache(dict[Key, Value], Generic[Key, Value]):
    """Caches `compute(key)` by key, for header names and content types.

    The cache is bounded, as keys come from outside: a key whose weight (by default its length) is
    above `_MAX_CACHED_WEIGHT` isn't kept, and a full cache is emptied.
    """

    def __init__(self, compute: Callable[[Key], Value], weigh: Callable[[Key], int] = len) -> None:
        """`compute` returns the value of a key, `weigh` a key's weight."""
        super().__init__()
        self._compute = compute
        self._weigh = weigh

    def __missing__(self, key: Key) -> Value:
        """Compute and return the value of a key that isn't cached, and cache it unless the key
        weighs too much. Python's dict calls this method for a missing key."""
        value = self._compute(key)
        if self._weigh(key) <= _MAX_CACHED_WEIGHT:
            if len(self) >= _MAX_CACHED_VALUES:
                self.clear()
            self[key] = value
        return value


def is_passed_on(name: str) -> bool:
    """Whether the header of this name (in lower case) is passed on with the event, such as
    `traceparent` (KN-DP-10, KN-DP-11)."""
    return _matches_passed(name) is not None


def to_record(event: Event, passed: RecordHeaders | None = None) -> Draft:
    """Return the record of a valid event: in binary mode if it `fits_binary`, else in structured
    mode. `passed`: headers of the event's request or record that are passed on with it; None: no
    headers."""
    key = key_of(event.attributes)
    headers = [
        (CONTENT_TYPE if name == "datacontenttype" else f"ce_{name}", value.encode())
        for name, value in event.attributes.items()
    ]
    value = event.data
    if not fits_binary(event.attributes):
        headers = [(CONTENT_TYPE, b"application/cloudevents+json; charset=UTF-8")]
        value = json_format.write(event)
    return Draft(None if key is None else key.encode(), headers + (passed or []), value)


def in_structured_mode(record: Draft) -> Draft:
    """Return the record of the same event in structured mode (CE-K7). Raises `InvalidEvent` if the
    record holds no event.

    Headers that are passed on with the event are kept. The content type is upstream's, without a
    charset.
    """
    envelope = read(record.headers, record.value)
    document = envelope.document
    if document is None:
        document = json_format.write(envelope.event)
    headers = [(CONTENT_TYPE, json_format.MEDIA_TYPE.encode()), *envelope.passed]
    return Draft(record.key, headers, document)


class HasHeaders(Protocol):
    """A record of confluent-kafka's, as far as `headers_of` needs it."""

    def headers(self) -> RecordHeaders | None:
        """Return the headers; None: the record has none. May raise any error if they can't be
        read."""
        ...


def headers_of(record: HasHeaders) -> RecordHeaders | None:
    """Return the record's headers, for `read`; None: it has none. Raises `InvalidEvent` if they
    can't be read, as such a record holds no event (CE-K8)."""
    try:
        return record.headers()
    except Exception as error:  # a SystemError for a name that isn't UTF-8
        cause = error.__cause__ or error
        raise InvalidEvent(f"the record's headers can't be read: {cause}") from error


def read(headers: Iterable[tuple[str, bytes | None]] | None, value: bytes | None) -> Envelope:
    """Parse a record's event and headers. Raises `InvalidEvent` if the record holds no event
    (CE-K8); for a batch or a format other than JSON, its subclass `UnsupportedContentMode`.

    Only the rules on which filters and HTTP rely are checked: UTF-8, a known specversion, the
    required attributes, no characters that CloudEvents forbids. Of headers with the same name the
    last one counts (CE-K6).
    """
    attributes: dict[str, str] = {}
    passed: dict[str, bytes] = {}
    try:
        for name, raw in headers or ():
            if attribute := _ATTRIBUTES[name]:
                if raw is None:
                    raise InvalidEvent(f"the record header {name} has no value")
                attributes[attribute] = raw.decode()
            elif attribute is None and raw is not None:
                passed[name] = raw
    except UnicodeDecodeError:
        raise InvalidEvent(f"the record header {name} is not UTF-8") from None

    sent_as_json = bool(passed) and passed.pop(MODE, None) == b"structured"
    passed_headers = (
        [(name, raw) for name, raw in passed.items() if _is_printable(raw)] if passed else []
    )
    content_type = attributes.get("datacontenttype")
    if content_type is not None and content_type[:23].lower() == "application/cloudevents":
        match mode_of(content_type):
            case Mode.STRUCTURED:
                event = json_format.read(value or b"")
                return Envelope(dict(event.attributes), event.data, passed_headers, value)
            case Mode.BATCH:
                raise UnsupportedContentMode("a record can't hold a batch of events")
            case Mode.UNREADABLE if len(attributes) == 1:  # no header makes it a binary event
                raise UnsupportedContentMode(f"{content_type!r:.80} is not read here, only JSON is")
    elif content_type == "":
        del attributes["datacontenttype"]  # an empty header counts as none
    text = "".join(attributes.values())
    if not (
        attributes.get("specversion") in SPEC_VERSIONS
        and attributes.get("id")
        and attributes.get("source")
        and attributes.get("type")
        and is_legal(text)
        and (content_type is None or content_type.isascii())
    ):
        validate(attributes)  # raises, and names every broken rule
    return Envelope(attributes, value, passed_headers, None, sent_as_json)


def _is_printable(raw: bytes) -> bool:
    """Whether a header's value is printable ASCII, so that it can be sent in HTTP as it is."""
    return raw.isascii() and raw.decode().isprintable()


def _attribute_of(name: str) -> str | None:
    """Return the attribute that a record header holds. None: the header holds none, and is passed
    on with the event, or is `MODE`. Empty: the header is ignored. Raises `InvalidEvent` for a
    header `ce_…` that names no attribute."""
    if name.startswith("ce_"):
        attribute = name[3:]
        if attribute == "datacontenttype" or not is_attribute_name(attribute):
            raise InvalidEvent(f"the record header {name!r:.80} names no attribute")
        return attribute
    if name.lower() == CONTENT_TYPE:
        return "datacontenttype"
    return None if is_passed_on(name) or name == MODE else ""


_ATTRIBUTES = BoundedCache[str, "str | None"](_attribute_of)
"""`_attribute_of` by the record header's name; cached."""
