"""Counts how often replies and dead letters of an event have come back, so that loops end
(KN-BRK-13).

    event --reply--> event --reply--> ...           `knativebrokerttl`, upstream's: 254, 253, ... 1
    event --dead letter, to a sink--> event --> ... `knafkahops`: 1, 2, 3

A reply that would have no hop left is not stored or sent, so its event becomes a dead letter. A
dead letter that would have more hops than `MAX_HOPS` goes to the dead-letter topic, not to its
sink. Both counts are attributes, so that they pass from Broker to Broker; a reply inherits those of
its event.

Not here: handling replies and dead letters (`dispatcher.engine.sending`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from knafka.core.errors import InvalidEvent
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import CONTENT_TYPE, Draft, RecordHeaders, read, to_record

TTL: Final = "knativebrokerttl"
"""Attribute of a reply: how many replies in a row are left, this one included."""
FIRST_TTL: Final = 255
"""The value that is assumed for an event without the attribute, so that 254 replies may follow;
upstream's default."""
DEEP: Final = 10
"""Number of replies in a row at which a loop is reported."""

_STRUCTURED: Final = b"application/cloudevents"
"""Beginning of the content type of a record in structured mode."""

HOPS: Final = "knafkahops"
"""Attribute of a dead letter at a sink: how many times in a row its event has become a dead
letter."""
MAX_HOPS: Final = 3
"""Most dead letters in a row that go to sinks. The number is small because dead letters may
multiply: if many Triggers have their own Broker as the sink, each of them dead-letters each event
again at every hop."""


class HopLimit(InvalidEvent):
    """Raised for a reply that has no hop left."""


def ttl_of(headers: RecordHeaders | None, value: bytes | None) -> int:
    """Return the time to live of the event in a record: one more than the number of replies in a
    row that may still follow it. It is the event's attribute `TTL`, but at most `FIRST_TTL`, which
    is also the default."""
    return min(_counter_attribute(headers, value, TTL, FIRST_TTL), FIRST_TTL)


def hops_of(headers: RecordHeaders | None, value: bytes | None) -> int:
    """Return how many times in a row a record's event has become a dead letter at a sink; 0 if the
    event's attribute `HOPS` is missing or no number."""
    return _counter_attribute(headers, value, HOPS, 0)


def count_reply(
    headers: RecordHeaders | None, value: bytes | None, reply: Draft
) -> tuple[Draft, int]:
    """Count a reply to the event in the record with these `headers` and this `value`. Return the
    record `reply` with the event's counts, of which `TTL` is lowered by 1, and the new `TTL`: how
    many replies in a row are left, this one included. Raises `HopLimit` if none is left."""
    replies_left = ttl_of(headers, value) - 1
    if replies_left <= 0:
        raise HopLimit(
            f"it would be reply {FIRST_TTL} in a row: replies come back to who gives them; "
            "filter them out of the Trigger that they come from"
        )
    counts = {TTL: str(replies_left)}
    if hops := hops_of(headers, value):
        counts[HOPS] = str(hops)
    return with_attributes(reply, counts), replies_left


def with_attributes(draft: Draft, attributes: dict[str, str]) -> Draft:
    """Return the record `draft` with these attributes set in its event; the record's content mode
    stays as it is."""
    if _is_structured(draft.headers):
        envelope = read(draft.headers, draft.value)
        event = Event(envelope.attributes | attributes, envelope.data)
        return to_record(event, envelope.passed)._replace(key=draft.key)
    new_headers = {f"ce_{name}": value.encode() for name, value in attributes.items()}
    other_headers = [header for header in draft.headers if header[0] not in new_headers]
    return draft._replace(headers=[*other_headers, *new_headers.items()])


def _counter_attribute(
    headers: RecordHeaders | None, value: bytes | None, name: str, default: int
) -> int:
    """Return an attribute of the record's event as a number; `default` if it is missing or no
    number."""
    text = _event_attribute(headers or [], value, name)
    # int() would also accept signs, spaces and the digits of other scripts. A longer number is cut,
    # as no counter of ours gets that high.
    return int(text[:9]) if text and text.isascii() and text.isdigit() else default


def _event_attribute(headers: RecordHeaders, value: bytes | None, name: str) -> str | None:
    """Return the attribute `name` of the event in a record, in either content mode. None: the event
    doesn't have the attribute, or the record is structured and holds no valid event."""
    if _is_structured(headers):
        try:
            return read(headers, value).attributes.get(name)
        except InvalidEvent:
            return None
    attribute_header = f"ce_{name}"
    # Of headers with the same name the last one counts (CE-K6).
    for header, raw in reversed(headers):
        if header == attribute_header:
            return raw.decode("utf-8", "replace")
    return None


def _is_structured(headers: Iterable[tuple[str, bytes]]) -> bool:
    """Whether the record with these headers holds its event in structured mode: its content type
    begins with `_STRUCTURED`. The case of that header's name doesn't matter, as in
    `kafka_binding.read`."""
    return any(
        name.lower() == CONTENT_TYPE and raw[: len(_STRUCTURED)].lower() == _STRUCTURED
        for name, raw in headers
    )
