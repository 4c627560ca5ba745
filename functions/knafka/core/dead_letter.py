"""Makes dead letters: records of events that could not be delivered, with the reason.

The CloudEvent stays as it is (specversion, data, partitionkey); attributes are added. Upstream's
three attributes say where and how delivery failed, and a subscriber's `kne-` response headers
become attributes as upstream has it (KN-DLV-08); Knafka's own attributes begin with `knafka`. An
undecodable record keeps its raw bytes and headers and gets the same additions. If a dead letter is
too large for its topic, a stub without the data is stored.

Not here: writing dead letters; see `dispatcher.sender`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from knafka.core.delivery import Outcome, Reason
from knafka.core.events import json_format
from knafka.core.events.event import CORE, REQUIRED, Event, is_attribute_name, is_legal
from knafka.core.events.http_binding import HttpHeaders, decode_header_value
from knafka.core.events.kafka_binding import Draft, Envelope, RecordHeaders, read, to_record
from knafka.core.times import rfc3339

ERROR_DATA_BYTES: Final = 1024
"""Most bytes that are kept of a failing response's body, or of the sentence in its place, as in
upstream's Kafka Broker: at most 1368 characters of base64, always decodable."""

ATTRIBUTE_PREFIX: Final = "knafka"
"""Begins the names of the attributes that Knafka adds."""

_UPSTREAM: Final = ("knativeerrordest", "knativeerrorcode", "knativeerrordata")
"""Attributes of a dead letter that upstream adds, too."""
_OURS: Final = tuple(
    "reason attempts firsttime lasttime namespace broker trigger topic partition offset"
    " extensions omitted attemptlog hops replyattempts".split()
)
"""Attributes of a dead letter that only Knafka adds, without `ATTRIBUTE_PREFIX`."""

EXTENSIONS: Final = f"{ATTRIBUTE_PREFIX}extensions"
"""Attribute: comma-separated names of the attributes from the subscriber's `kne-` headers."""
OMITTED: Final = f"{ATTRIBUTE_PREFIX}omitted"
"""Attribute of a stub: what was too large for the topic, `data` or `data,attributes`."""

ATTEMPT_LOG: Final = f"{ATTRIBUTE_PREFIX}attemptlog"
"""Attribute: the last attempts at the subscriber, as `TIME RESULT` and comma-separated."""
REPLY_ATTEMPTS: Final = f"{ATTRIBUTE_PREFIX}replyattempts"
"""Attribute: failed attempts to store or send the reply, if there are any."""
LOGGED_ATTEMPTS: Final = 10
"""Most attempts in `ATTEMPT_LOG`, which has fewer than 500 characters then."""

_EXTENSION_HEADER_PREFIX: Final = b"kne-"
"""Begins the names of response headers by which a subscriber adds attributes to a dead letter."""
EXTENSION_BYTES: Final = 4096
"""Most bytes of names and values that are kept from `kne-` headers; further headers are left
out."""

STUB_BYTES: Final = 4096
"""Most bytes of names and values of the event's own attributes in a stub; the largest are left
out."""
MAX_STUB_KEY: Final = 1024
"""Longest record key, in bytes, that a stub keeps."""

_ADDED_NAMES: Final = frozenset((*_UPSTREAM, *(f"{ATTRIBUTE_PREFIX}{name}" for name in _OURS)))
"""Names of all attributes that a dead letter may add to its event."""

_PROTECTED_ATTRIBUTES: Final = CORE | {"datacontentencoding", "knativebrokerttl"}
"""Attributes that no `kne-` header may set. `datacontentencoding` says how the data of an event of
CloudEvents 0.3 are encoded, `knativebrokerttl` is `hops.TTL`."""

FAILURE_HEADERS: Final = frozenset(f"ce_{name}" for name in _ADDED_NAMES)
"""The record headers of `_ADDED_NAMES`."""

REPLAY_TOPIC: Final = {
    "cleanup.policy": "delete",
    "retention.ms": str(30 * 24 * 3600 * 1000),
    "message.timestamp.type": "LogAppendTime",
}
"""Configuration of every replay topic: records are kept for 30 days, and their timestamps are those
of the log, so that it is known whether an event failed again after it was sent."""

EDITED: Final = "knafkaedited"
"""Attribute of an event that a replay has edited: comma-separated names of the edited attributes,
and `data` if the data were edited."""

REPLAY: Final = "knafka-replay"
"""Header of a replayed record (no attribute of the event): replay id, a slash, failure id."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The Trigger of a dead letter, and the place of its record in the Broker's topic."""

    namespace: str
    broker: str
    trigger: str
    """Name of the Trigger; empty if the record holds no event, and so concerns no particular
    Trigger."""
    topic: str
    partition: int
    offset: int


class Attempt(NamedTuple):
    """A failed attempt at the subscriber."""

    began: float
    """Seconds since the Unix epoch."""
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Failure:
    """How the delivery of an event finally failed."""

    destination: str
    """The URL that was tried."""
    reason: Reason
    attempts: int
    """Attempts at the subscriber."""
    first_attempt: float
    """Seconds since the Unix epoch."""
    last_attempt: float
    """Seconds since the Unix epoch."""
    status: int | None = None
    """Status of the last response; None: the last attempt had none."""
    body: bytes = b""
    """The response's body, or a sentence about what went wrong where there was no response."""
    extensions: Sequence[tuple[str, str]] = ()
    """Attributes that the subscriber's `kne-` headers ask for (`extensions_of`)."""
    log: Sequence[Attempt] = ()
    """The last attempts, oldest first, as far as they are known one by one."""
    reply_attempts: int = 0
    """Attempts to store or send the subscriber's reply that have failed."""


def attempt_log(attempts: Sequence[Attempt]) -> str:
    """Format the last attempts as an attribute's text: `TIME RESULT`, comma-separated."""
    last = attempts[-LOGGED_ATTEMPTS:]
    return ",".join(f"{timestamp(began)} {outcome.text}" for began, outcome in last)


def parse_attempt_log(text: str) -> Sequence[tuple[str, str]]:
    """Parse an attempt log: return time and result of each attempt, both as text. Any text is
    accepted; a part without a space is a time without a result."""
    entries = (entry.partition(" ") for entry in text.split(",") if entry)
    return [(time, result) for time, _, result in entries]


def extensions_of(headers: HttpHeaders) -> Sequence[tuple[str, str]]:
    """Return the attributes that a failed attempt's `kne-` response headers ask for (KN-DLV-08).

    `headers` have names in lower case. Names that are no extensions are left out: a `time` or
    `subject` would pass for the event's own, and could make it invalid (CE-H12). So are names of
    attributes that upstream or Knafka adds, empty values, values with characters that CloudEvents
    forbids, and headers beyond `EXTENSION_BYTES`.
    """
    extensions: dict[str, str] = {}
    remaining_bytes = EXTENSION_BYTES
    for header, raw in headers:
        if not header.startswith(_EXTENSION_HEADER_PREFIX):
            continue
        name = header.removeprefix(_EXTENSION_HEADER_PREFIX).decode("latin-1")
        value = decode_header_value(raw)
        remaining_bytes -= len(name) + len(raw)
        if remaining_bytes >= 0 and value and _is_extension(name) and is_legal(value):
            extensions[name] = value
    return tuple(extensions.items())


def _is_extension(name: str) -> bool:
    """Whether a `kne-` header may set the attribute of this name."""
    is_taken = name in _ADDED_NAMES or name in _PROTECTED_ATTRIBUTES
    return is_attribute_name(name) and not is_taken


def dead_letter_of(
    headers: RecordHeaders, value: bytes | None, failure: Failure, origin: Origin
) -> tuple[RecordHeaders, bytes | None]:
    """Return headers and value of the dead letter of the record with these `headers` and `value`.
    Attributes are added that say how delivery failed (`failure`) and which record it was
    (`origin`). Raises `InvalidEvent` if the record holds no event, though `failure.reason` isn't
    `UNDECODABLE`.

    A record that holds its event as JSON is rewritten in binary mode, where headers hold the
    attributes (CE-K7), unless the event doesn't fit that mode (`event_of_dead_letter`); every other
    record keeps its value byte for byte, decodable or not.
    """
    failure_attributes = _failure_attributes(failure, origin)
    # The event's own attributes stay as they are (KN-BRK-10). Its datacontenttype is in the header
    # `content-type`, so it has to be named here.
    own_names = {"ce_datacontenttype"}
    if failure.reason is not Reason.UNDECODABLE:
        envelope = read(headers, value)
        if envelope.document is not None:  # the event is JSON
            attributes = {
                name: text for name, text in envelope.attributes.items() if name not in _ADDED_NAMES
            }
            _, headers, value = to_record(Event(attributes, envelope.data), envelope.passed)
            own_names |= {f"ce_{name}" for name in attributes}
    own_headers = [(name, raw) for name, raw in headers if name not in FAILURE_HEADERS]
    own_names |= {name for name, _ in own_headers}
    new_extensions = {
        name: text for name, text in failure.extensions if f"ce_{name}" not in own_names
    }
    failure_attributes |= new_extensions | {EXTENSIONS: ",".join(new_extensions)}
    added_headers = [
        (f"ce_{name}", text.encode()) for name, text in failure_attributes.items() if text
    ]
    return own_headers + added_headers, value


def event_of_dead_letter(headers: RecordHeaders, value: bytes | None) -> Envelope:
    """Parse a dead letter as `kafka_binding.read` does, with the added attributes in the event.

    They are only beside the event if the record is in structured mode, because the event's data are
    CloudEvents themselves (`kafka_binding.fits_binary`): its headers are no attributes, so that a
    replay, which removes them, sends the event as it was. Raises `InvalidEvent`.
    """
    envelope = read(headers, value)
    if envelope.document is None:
        return envelope
    added = {name[3:]: raw.decode() for name, raw in headers if name.startswith("ce_")}
    attributes = envelope.attributes | added
    document = json_format.write(Event(attributes, envelope.data))
    return envelope._replace(attributes=attributes, document=document)


def _failure_attributes(failure: Failure, origin: Origin) -> dict[str, str]:
    """Return the attributes that say how delivery failed and which record it was, without those
    that the subscriber asked for. Attributes with an empty text aren't added to a dead letter."""
    return {
        "knativeerrordest": failure.destination,
        "knativeerrorcode": "" if failure.status is None else str(failure.status),
        "knativeerrordata": base64.b64encode(_truncated_body(failure.body)).decode(),
        f"{ATTRIBUTE_PREFIX}reason": failure.reason.value,
        f"{ATTRIBUTE_PREFIX}attempts": str(failure.attempts),
        f"{ATTRIBUTE_PREFIX}firsttime": timestamp(failure.first_attempt),
        f"{ATTRIBUTE_PREFIX}lasttime": timestamp(failure.last_attempt),
        ATTEMPT_LOG: attempt_log(failure.log),
        REPLY_ATTEMPTS: str(failure.reply_attempts or ""),
        f"{ATTRIBUTE_PREFIX}namespace": origin.namespace,
        f"{ATTRIBUTE_PREFIX}broker": origin.broker,
        f"{ATTRIBUTE_PREFIX}trigger": origin.trigger,
        f"{ATTRIBUTE_PREFIX}topic": origin.topic,
        f"{ATTRIBUTE_PREFIX}partition": str(origin.partition),
        f"{ATTRIBUTE_PREFIX}offset": str(origin.offset),
    }


def origin_of(headers: RecordHeaders) -> tuple[str, int, int] | None:
    """Return topic, partition and offset of the record that failed, as the `headers` of its dead
    letter state them; None if one of the three is missing or invalid."""
    header_values = dict(headers)
    topic, partition, offset = (
        header_values.get(f"ce_{ATTRIBUTE_PREFIX}{field_name}") or b""
        for field_name in ("topic", "partition", "offset")
    )
    # Anybody may have forged the headers. Kafka's numbers have 64 bits, so at most 19 digits.
    are_numbers = all(number.isdigit() and len(number) < 20 for number in (partition, offset))
    if not topic or not are_numbers:
        return None
    return topic.decode(errors="replace"), int(partition), int(offset)


def stub_of(letter: Draft) -> Draft:
    """Return a dead letter without its data, for a topic that refuses it as too large. The stub
    keeps the attributes that were added to the event, and up to `STUB_BYTES` of the event's own
    attributes: the required ones first, then the shortest. `OMITTED` says what is missing."""
    # The headers of a foreign record may have no value, which is None in Kafka's client.
    all_headers = [(name, raw or b"") for name, raw in letter.headers]
    own_headers = [header for header in all_headers if header[0] not in FAILURE_HEADERS]
    kept_names = _names_within_stub(own_headers)
    omitted_parts: list[str] = []
    if letter.value:
        omitted_parts.append("data")
    if len(kept_names) < len(own_headers):
        omitted_parts.append("attributes")
    headers = [
        header for header in all_headers if header[0] in FAILURE_HEADERS or header[0] in kept_names
    ]
    key = letter.key if letter.key and len(letter.key) <= MAX_STUB_KEY else None
    return Draft(key, [*headers, (f"ce_{OMITTED}", ",".join(omitted_parts).encode())], None)


def _names_within_stub(own_headers: RecordHeaders) -> set[str]:
    """Return the names of those of the event's own headers that a stub keeps: the required ones
    first, then the shortest, up to `STUB_BYTES` of names and values."""
    required = {f"ce_{name}" for name in REQUIRED}
    required_then_shortest = sorted(
        own_headers, key=lambda header: (header[0] not in required, len(header[1]))
    )
    kept_names: set[str] = set()
    remaining_bytes = STUB_BYTES
    for name, raw in required_then_shortest:
        remaining_bytes -= len(name) + len(raw)
        if remaining_bytes < 0:
            break
        kept_names.add(name)
    return kept_names


def headers_for_replay(headers: Iterable[tuple[str, bytes]], replay: str) -> RecordHeaders:
    """Return the headers with which a dead letter's event is sent again: the dead letter's
    `headers` without those that it added to the event, and with `REPLAY`, whose value is `replay`.

    The record's key and value are sent again as they are.
    """
    all_headers = list(headers)
    removed_names = FAILURE_HEADERS | {REPLAY}
    for name, raw in all_headers:
        if name == f"ce_{EXTENSIONS}":
            # Any bytes are accepted, as anybody with the right to write to the topic can forge this
            # header.
            removed_names |= {
                f"ce_{attribute}" for attribute in (raw or b"").decode(errors="replace").split(",")
            }
    return [(name, raw) for name, raw in all_headers if name not in removed_names] + [
        (REPLAY, replay.encode())
    ]


def _truncated_body(body: bytes) -> bytes:
    """Return at most `ERROR_DATA_BYTES` of a body, not cut within a UTF-8 character."""
    # A character has at most 4 bytes, and all but its first are 10xxxxxx: the body is cut before a
    # byte of another form. If none of the last 4 is, the body isn't UTF-8 and may be cut anywhere.
    for end in range(ERROR_DATA_BYTES, ERROR_DATA_BYTES - 4, -1):
        if end >= len(body) or body[end] & 0xC0 != 0x80:
            return body[:end]
    return body[:ERROR_DATA_BYTES]


def timestamp(seconds: float) -> str:
    """Format a Unix time in seconds as RFC 3339, in UTC and to the millisecond, for a dead letter's
    attributes."""
    return rfc3339(seconds)
