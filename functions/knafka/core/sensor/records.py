"""Encodes and decodes the records of a Sensor's three topics (BUS-7, BUS-18, BUS-S6).

    topic      key                                  value                         events that
    trigger    TRIGGER or TRIGGER/CORRELATION       one event, as JSON            a trigger may need
    changelog  OFFSET/ and the trigger topic's key  the same, or a tombstone      a trigger holds
    action     the trigger topic's key              CloudEvent (`action_record`)  have fired

All records for one trigger and correlation key have the same record key, so they are in one
partition, and one process at a time handles them (BUS-18, BUS-19). Changelog records of a partition
of the trigger topic are in the changelog's partition of the same number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from knafka.core.errors import InvalidEvent
from knafka.core.events.event import Attributes, Event
from knafka.core.events.kafka_binding import RecordHeaders, to_record
from knafka.core.progress import MARK_LENGTH, MAX_METADATA
from knafka.core.sensor.held import Firing, HeldEvent
from knafka.core.sensor.order import Place, Routed, Taken
from knafka.core.times import MAX_CLOCK_SKEW_MS, rfc3339

FIRED: Final = "dev.knafka.sensor.fired"
"""The type of the event that is written for a firing."""
TRIGGER: Final = "sensortrigger"
"""Extension attribute: the trigger that has fired."""
DEPENDENCIES: Final = "sensordependencies"
"""Extension attribute: the dependencies of the firing's events, in their order, comma-separated."""

# Record headers in the trigger topic and the changelog.
_DEPENDENCY, _IDENTITY, _AT, _GENERATION = "dependency", "identity", "at", "generation"
_ORIGIN: Final = "origin"
"""The event's partition and offset on the bus; in the trigger topic followed by a third number,
`TriggerTopicRecord.until`."""
_TRACE: Final = "traceparent"
"""Record header with the event's trace context, also in the action topic."""
NEVER: Final = -(2**62)
"""A time (ms) before all others."""


class TriggerTopicRecord(NamedTuple):
    """An event on its way to a trigger."""

    key: str
    """The trigger and its correlation key, as `key_of` joins them."""
    event: HeldEvent
    generation: int
    """Generation of the Sensor in the process that wrote the record."""
    until: int = NEVER
    """A time (ms): in this partition, every event with an earlier time comes before this record,
    except events that are written in the same transaction. `NEVER`: nothing is known."""


def key_of(trigger: str, correlation: str | None) -> str:
    """Return the key of all records of one trigger and correlation key, TRIGGER/CORRELATION; for a
    trigger without a correlation (None), TRIGGER alone."""
    return trigger if correlation is None else f"{trigger}/{correlation}"


def trigger_of(key: str) -> str:
    """Return the trigger's name in a record's key: the text before the first slash, as names have
    no slash."""
    return key.partition("/")[0]


def correlation_of(key: str) -> str | None:
    """Return the correlation key in a record's key; None: the trigger has no correlation."""
    _, slash, correlation = key.partition("/")
    return correlation if slash else None


def identity_of(attributes: Attributes) -> str:
    """Return the text that identifies an event with these attributes: its source (which has no
    spaces), a space, and its id."""
    return f"{attributes['source']} {attributes['id']}"


def source_of(namespace: str, sensor: str) -> str:
    """Return the attribute `source` of the events that a Sensor makes."""
    return f"/apis/v1/namespaces/{namespace}/sensors/{sensor}"


def headers_of(event: HeldEvent, generation: int, until: int | None = None) -> RecordHeaders:
    """Return the headers of an event's record. `generation`: the Sensor's generation in this
    process. `until`: `TriggerTopicRecord.until`, for a record of the trigger topic; None: the
    record is for the changelog."""
    origin = b"%d.%d" % event.origin
    headers: RecordHeaders = [
        (_DEPENDENCY, event.dependency.encode()),
        (_IDENTITY, event.identity.encode()),
        (_AT, b"%d" % event.at),
        (_GENERATION, b"%d" % generation),
        (_ORIGIN, origin if until is None else b"%b.%d" % (origin, until)),
    ]
    return [*headers, (_TRACE, event.trace)] if event.trace else headers


def read_trigger_record(
    key: bytes | None, value: bytes | None, headers: RecordHeaders | None, offset: int
) -> TriggerTopicRecord:
    """Decode the record at `offset` of the trigger topic. Raises `InvalidEvent` if it is no record
    that a Sensor writes there."""
    try:
        header_values: Mapping[str, bytes] = dict(headers or ())
        if key is None or value is None:
            raise ValueError("it has no key or no value")
        origin, until = _parse_origin(header_values.get(_ORIGIN))
        event = HeldEvent(
            header_values[_DEPENDENCY].decode(),
            header_values[_IDENTITY].decode(),
            int(header_values[_AT]),
            offset,
            value,
            header_values.get(_TRACE, b""),
            origin,
        )
        return TriggerTopicRecord(key.decode(), event, int(header_values[_GENERATION]), until)
    except (KeyError, ValueError) as error:
        raise InvalidEvent(f"the record is none of a Sensor's triggers: {error!r}") from None


def _parse_origin(raw: bytes | None) -> tuple[tuple[int, int], int]:
    """Parse the header `_ORIGIN`: return an event's partition and offset on the bus, and
    `TriggerTopicRecord.until`. Without the header (None), as in records of an earlier version,
    return (-1, -1) and `NEVER`. Raises ValueError for an invalid header."""
    if raw is None:
        return (-1, -1), NEVER
    partition, offset, *rest = (int(number) for number in raw.split(b".")[:3])
    until = rest[0] if rest else NEVER
    return (partition, offset), until


def changelog_key(key: str, offset: int) -> bytes:
    """Return the key of the changelog record for the event at this offset of the trigger topic.
    `key`: the event's record key in the trigger topic (`key_of`)."""
    return f"{offset}/{key}".encode()


def read_changelog_key(key: bytes | None) -> tuple[str, int]:
    """Decode a changelog record's key: return the key and the offset that the event's record has in
    the trigger topic. Raises `InvalidEvent` for a key that `changelog_key` doesn't make."""
    offset, _, trigger_topic_key = (key or b"").partition(b"/")
    try:
        return trigger_topic_key.decode(), int(offset)
    except ValueError:
        raise InvalidEvent("the record is none of a Sensor's changelog") from None


def action_record(
    source: str, identity: str, key: str, firing: Firing, trace: bytes = b""
) -> tuple[RecordHeaders, bytes]:
    """Return headers and value of the action topic's record about a firing: a CloudEvent whose data
    are a JSON array of the firing's events.

    `source` and `identity` become the CloudEvent's source and id. `identity` must be the same each
    time this firing is written, so that a subscriber can recognise duplicates. `key`: the trigger
    and the correlation key (`key_of`). `trace` becomes the header `traceparent`, unless it is
    empty.
    """
    correlation = correlation_of(key)
    attributes = {
        "specversion": "1.0",
        "id": identity,
        "source": source,
        "type": FIRED,
        "time": rfc3339(max(event.at for event in firing.events) / 1000),
        "datacontenttype": "application/json",
        TRIGGER: trigger_of(key),
        DEPENDENCIES: ",".join(event.dependency for event in firing.events),
    }
    if correlation is not None:
        attributes["subject"] = correlation
    data = b"[" + b",".join(event.document for event in firing.events) + b"]"
    trace_headers: RecordHeaders = [(_TRACE, trace)] if trace else []
    return to_record(Event(attributes, data), trace_headers).headers, data


DUE: Final = "@due"
"""Key in a commit's metadata: when (ms) timers must be checked again. The metadata's other keys are
names of triggers, which have no @."""
TAKEN_KEY: Final = "@taken"
"""Key in a commit's metadata: the records that were taken already (`order.Taken`)."""
UNTIL: Final = "@until"
"""Key in the metadata of a commit of the bus: `Routed.until`."""
BY_SENDER_KEY: Final = "@bysender"
"""Key in the metadata of a commit of the bus: `Routed.by_sender`."""


def commit_metadata(offsets: Mapping[str, int], due: int | None, taken: Taken | None = None) -> str:
    """Encode the metadata of a commit of the trigger topic.

    `offsets`: the first offset that each trigger still needs, by the trigger's name (BUS-16).
    `due`: when (ms since the Unix epoch) timers must be checked again; None: never. `taken`: which
    records after the committed offset were taken already; None: no records were.

    If the text would be longer than `MAX_METADATA` allows, the offsets are left out.
    """
    own_values: dict[str, Any] = {} if due is None else {DUE: due}
    if taken is not None:
        own_values[TAKEN_KEY] = [taken.read, *taken.last]
    text = json.dumps({**offsets, **own_values})
    if len(text) + MARK_LENGTH > MAX_METADATA:
        text = json.dumps(own_values) if own_values else ""
    return text


def parse_taken(metadata: str) -> Taken | None:
    """Decode from a commit's metadata which records after the committed offset were taken already.
    None: no records were, or the metadata aren't ours (BUS-S8)."""
    try:
        read_offset, *last = map(int, json.loads(metadata)[TAKEN_KEY])
        return Taken(read_offset, Place(*last))
    except (ValueError, KeyError, TypeError):
        return None


def bus_metadata(routed: Routed) -> str:
    """Encode the metadata of a commit of the bus, the topic whose events a Sensor reads: up to
    which time the bus's events were routed to triggers. Empty if nothing is known."""
    own_values: dict[str, Any] = {} if routed.until is None else {UNTIL: routed.until}
    if routed.by_sender:
        own_values[BY_SENDER_KEY] = True
    return json.dumps(own_values) if own_values else ""


def parse_routed(metadata: str, now: int) -> Routed:
    """Decode from a commit's metadata up to which time a partition of the bus was routed to
    triggers; `Routed()`, which says nothing, if the metadata aren't ours. A time that is later than
    `now` (ms) by more than `MAX_CLOCK_SKEW_MS` is from a process whose clock was wrong: it counts
    as not known, or events would be out of order until that time has come."""
    try:
        values = json.loads(metadata)
        until = values.get(UNTIL)
        if until is not None and int(until) > now + MAX_CLOCK_SKEW_MS:
            until = None
        return Routed(None if until is None else int(until), bool(values.get(BY_SENDER_KEY)))
    except (ValueError, AttributeError, TypeError):
        return Routed()


def parse_due(metadata: str) -> int | None:
    """Decode from a commit's metadata when (ms) timers must be checked again. None: never, or the
    metadata aren't ours (BUS-S8)."""
    try:
        values = json.loads(metadata)
        return int(values[DUE])
    except (ValueError, KeyError, TypeError):
        return None
