"""Dead letters: what an event carries when it could not be delivered.

The CloudEvent stays as it is (specversion, data, partitionkey); attributes are added. Upstream's
three say where and how it failed (KN-DLV-08), ours, with one prefix, tell the rest of the story. An
undecodable record keeps its raw bytes and headers and gets the same additions.

Refused here: writing it anywhere.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from knafka.core.delivery import Reason
from knafka.core.kafka_binding import RecordHeaders, read, to_record

ERROR_DATA_BYTES: Final = 768
"""Bytes of a failing response's body, or of the sentence in its place, that are kept: 1024
characters of base64, always decodable."""

PREFIX: Final = "knafka"

_UPSTREAM: Final = ("knativeerrordest", "knativeerrorcode", "knativeerrordata")
_OURS: Final = (
    *("reason", "attempts", "firsttime", "lasttime"),
    *("namespace", "broker", "trigger", "topic", "partition", "offset"),
)

STORY: Final = frozenset(
    f"ce_{name}" for name in (*_UPSTREAM, *(f"{PREFIX}{each}" for each in _OURS))
)
"""The record headers that a dead letter adds to its event."""

REPLAY: Final = "knafka-replay"
"""Header of a record that was sent again: replay id, a slash, failure id. No attribute."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose event it is and where it lies: the Trigger and the record in the Broker's topic."""

    namespace: str
    broker: str
    trigger: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Failure:
    """How it failed, at last."""

    destination: str
    """The URL that was tried."""
    reason: Reason
    attempts: int
    first_attempt: float
    """Seconds since the Unix epoch."""
    last_attempt: float
    status: int | None = None
    body: bytes = b""
    """The response's body, or a sentence about what went wrong where there was no response."""


def dead_letter_of(
    headers: RecordHeaders, value: bytes | None, failure: Failure, origin: Origin
) -> tuple[RecordHeaders, bytes | None]:
    """Headers and value of the dead letter: the record's own, and the story of its failure.

    A record that holds its event as JSON is written anew in binary mode, as there the headers are
    the event (CE-K7); every other record keeps its value byte for byte, decodable or not.
    """
    story = {
        "knativeerrordest": failure.destination,
        "knativeerrorcode": "" if failure.status is None else str(failure.status),
        "knativeerrordata": base64.b64encode(_beginning(failure.body)).decode(),
        f"{PREFIX}reason": failure.reason.value,
        f"{PREFIX}attempts": str(failure.attempts),
        f"{PREFIX}firsttime": _timestamp(failure.first_attempt),
        f"{PREFIX}lasttime": _timestamp(failure.last_attempt),
        f"{PREFIX}namespace": origin.namespace,
        f"{PREFIX}broker": origin.broker,
        f"{PREFIX}trigger": origin.trigger,
        f"{PREFIX}topic": origin.topic,
        f"{PREFIX}partition": str(origin.partition),
        f"{PREFIX}offset": str(origin.offset),
    }
    if failure.reason is not Reason.UNDECODABLE:
        envelope = read(headers, value)
        if envelope.document is not None:
            headers, value = to_record(envelope.event, envelope.passed)[1:]
    told = {f"ce_{name}": text.encode() for name, text in story.items()}
    kept = [(name, raw) for name, raw in headers if name not in told]
    return kept + [(name, raw) for name, raw in told.items() if raw], value


def restored(headers: Iterable[tuple[str, bytes]], replay: str) -> RecordHeaders:
    """Headers of the event as it was before it became a dead letter, marked as `replay`'s.

    Its key and value need no restoring.
    """
    added = STORY | {REPLAY}
    return [(name, raw) for name, raw in headers if name not in added] + [(REPLAY, replay.encode())]


def _beginning(body: bytes) -> bytes:
    """As much as is kept, and no half of a character where it is UTF-8."""
    for end in range(ERROR_DATA_BYTES, ERROR_DATA_BYTES - 4, -1):
        if end >= len(body) or body[end] & 0xC0 != 0x80:
            return body[:end]
    return body[:ERROR_DATA_BYTES]


def _timestamp(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
