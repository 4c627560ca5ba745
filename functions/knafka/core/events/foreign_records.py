"""Converts any record of a KafkaSource's topics to a CloudEvent, in upstream's form.

    a CloudEvent, structured or binary -> that event
    any other record                   -> dev.knative.kafka.event, its value as the data

Every record becomes an event. A record that looks like a CloudEvent but isn't a valid one is
treated like any other record. Characters that CloudEvents forbids, and bytes that aren't UTF-8, are
replaced by U+FFFD. If the attributes are too large for header lines, as with a stack trace in a
header, the record is marked (`MODE`), so that the event is delivered as JSON.

Not here: Kafka clients, and requests that deliver the event (`kafka_binding`, `http_binding`).
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Iterable
from decimal import Decimal
from typing import Final, NamedTuple

from knafka.core.contract import Conversion
from knafka.core.errors import InvalidEvent
from knafka.core.events.event import Event, is_media_type, replace_forbidden
from knafka.core.events.http_binding import is_large
from knafka.core.events.kafka_binding import (
    CONTENT_TYPE,
    MODE,
    BoundedCache,
    RecordHeaders,
    is_passed_on,
    read,
    to_record,
)
from knafka.core.times import rfc3339

EVENT_TYPE: Final = "dev.knative.kafka.event"
"""The attribute `type` of an event that was no CloudEvent before."""
KEY_EXTENSION: Final = "key"
"""Extension that holds a record's key."""
HEADER_EXTENSION_PREFIX: Final = "kafkaheader"
"""Prefix of the extensions that hold a record's headers."""

_OTHER_CHARACTERS = re.compile("[^a-z0-9]")
_STRUCTURED: Final = b"application/cloudevents"
"""Beginning of the content type of a record in structured mode."""


class RecordPosition(NamedTuple):
    """A record's topic, partition, offset and timestamp."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since the Unix epoch; negative: the record has none."""


def as_event(
    conversion: Conversion,
    place: RecordPosition,
    key: bytes | None,
    headers: Iterable[tuple[str, bytes | None]] | None,
    value: bytes | None,
) -> tuple[RecordHeaders, bytes | None]:
    """Convert a KafkaSource's record to an event, as `conversion` declares. Return headers and
    value of a record that holds the event, for `kafka_binding.read`. Never raises, whatever the
    record holds."""
    record_headers = list(headers or ())
    if _looks_like_an_event(record_headers):
        try:
            envelope = read(record_headers, value)
        except InvalidEvent:
            pass  # convert it like any other record
        else:
            if not conversion.extensions:
                return [(name, raw) for name, raw in record_headers if raw is not None], value
            event = Event({**envelope.attributes, **conversion.extensions}, envelope.data)
            return to_record(event, envelope.passed)[1:]  # without the key
    attributes = {
        **_attributes_of_record(conversion, place, key, record_headers),
        **conversion.extensions,
    }
    passed_headers = [
        (name, raw) for name, raw in record_headers if raw is not None and is_passed_on(name)
    ]
    record = to_record(Event(attributes, value), passed_headers)
    if is_large(attributes):
        record.headers.append((MODE, b"structured"))
    return record.headers, record.value


def _looks_like_an_event(headers: Iterable[tuple[str, bytes | None]]) -> bool:
    """Whether a record's headers claim that it is a CloudEvent: one begins with `ce_`, or the
    content type is that of structured mode."""
    return any(
        name.startswith("ce_")
        or (
            raw is not None
            and name.lower() == CONTENT_TYPE
            and raw[: len(_STRUCTURED)].lower() == _STRUCTURED
        )
        for name, raw in headers
    )


def _attributes_of_record(
    conversion: Conversion,
    place: RecordPosition,
    key: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
) -> dict[str, str]:
    """Return the attributes of the event that a record becomes, as in upstream's KafkaSource: from
    the record's position, time, key and headers. Each header becomes an extension, except a valid
    content type, which becomes `datacontenttype`."""
    topic, partition, offset, timestamp = place
    attributes = {
        "specversion": "1.0",
        "id": f"partition:{partition}/offset:{offset}",
        "source": f"{conversion.source}#{topic}",
        "type": EVENT_TYPE,
        "subject": f"partition:{partition}#{offset}",
    }
    if timestamp >= 0:
        attributes["time"] = rfc3339(timestamp / 1000)
    if key:
        # Both are set, as upstream does. By `partitionkey`, a Broker that gets the events keeps
        # those of one key in order.
        attributes["partitionkey"] = attributes[KEY_EXTENSION] = key_text(key, conversion.key_type)
    for name, raw in headers:
        if raw is None:
            continue
        text = replace_forbidden(raw.decode(errors="replace"))
        if name.lower() == CONTENT_TYPE and (not text or is_media_type(text)):
            if text:  # an empty content type is left out
                attributes["datacontenttype"] = text.lower()
        else:
            attributes[_EXTENSIONS[name]] = text
    return attributes


_EXTENSIONS = BoundedCache[str, str](
    lambda name: HEADER_EXTENSION_PREFIX + _OTHER_CHARACTERS.sub("", name.lower())
)
"""The name of an extension by the name of its record header; cached."""


def key_text(key: bytes, key_type: str) -> str:
    """Return a record's key as an attribute's text. `key_type` (`Conversion.key_type`) says how to
    decode the key; for `byte-array` the text is base64. A key that should be an `int` or `float`
    but isn't 4 or 8 bytes long is decoded as a string."""
    if key_type == "byte-array":
        return base64.b64encode(key).decode()
    if key_type == "int" and len(key) in (4, 8):
        return str(int.from_bytes(key, signed=True))
    if key_type == "float" and len(key) in (4, 8):
        return _format_float(key)
    return replace_forbidden(key.decode(errors="replace"))


def _format_float(key: bytes) -> str:
    """Format a big-endian floating-point number of 4 or 8 bytes as Java does. The text has the
    fewest digits that identify the number, and an exponent if the absolute value is below 0.001 or
    at least 10,000,000."""
    struct_format = ">f" if len(key) == 4 else ">d"
    (number,) = struct.unpack(struct_format, key)
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    sign, digits, exponent = _shortest_decimal(number, struct_format, key).as_tuple()
    minus = "-" if sign else ""
    if number == 0:
        return f"{minus}0.0"
    assert isinstance(exponent, int)  # it is a letter only for numbers that aren't finite
    if 1e-3 <= abs(number) < 1e7:
        plain = f"{Decimal((0, digits, exponent)):f}"
        whole, _, fraction = plain.partition(".")
        return f"{minus}{whole}.{fraction.rstrip('0') or '0'}"
    significant_digits = "".join(map(str, digits)).rstrip("0") or "0"
    power = exponent + len(digits) - 1
    return f"{minus}{significant_digits[0]}.{significant_digits[1:] or '0'}E{power}"


def _shortest_decimal(number: float, struct_format: str, key: bytes) -> Decimal:
    """Return `number` as the decimal with the fewest digits that still has the same bytes, `key`,
    in this format of `struct`. The number is finite."""
    shortest = next(
        text
        for precision in range(1, 18)  # 17 significant digits identify every number of 8 bytes
        if _packs_to(struct_format, text := f"{number:.{precision}g}", key)
    )
    return Decimal(shortest)


def _packs_to(struct_format: str, text: str, key: bytes) -> bool:
    """Whether the number in `text` has exactly the bytes `key` in this format of `struct`."""
    try:
        return struct.pack(struct_format, float(text)) == key
    except OverflowError:
        return False  # the text is rounded up beyond the largest number
