"""Makes a Sensor's dead letters: for records that it could not handle, and for events with which a
trigger could not fire.

A record becomes a dead letter as in a dispatcher (`core.dead_letter`): the event as it was, and the
reason. Events that a trigger held, or with which it could not fire, aren't copied, as they may be
megabytes together and are in the bus's topic: one dead letter, an event of type `FAILED`, names
them.

Pure. Not here: writing them, which is part of the Sensor's transaction (`sensor.batch`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from knafka.core import names
from knafka.core.dead_letter import Failure, Origin, dead_letter_of
from knafka.core.delivery import Reason
from knafka.core.errors import InvalidEvent
from knafka.core.events import json_format
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import CONTENT_TYPE, Draft, RecordHeaders, to_record
from knafka.core.sensor import records
from knafka.core.sensor.contract import SensorContract
from knafka.core.sensor.held import HeldEvent
from knafka.core.times import rfc3339

FAILED: Final = "dev.knafka.sensor.failed"
"""The type of the event that names the events with which a trigger could not fire."""
MAX_NAMED_BYTES: Final = 16_384
"""Most bytes of names of events in a dead letter; further events are only counted."""
MAX_NAMED_EVENT_CHARACTERS: Final = 256
"""Most characters that are kept of an event's source, and of its id."""


class TooLarge(Exception):
    """Raised when a record to be written is larger than its topic takes."""


def failure_of(error: Exception) -> tuple[Reason, str]:
    """Return the reason and the text of a dead letter for this error. Every error other than
    `TooLarge` and `InvalidEvent` is a bug of Knafka, so its reason is `INTERNAL_ERROR`."""
    if isinstance(error, TooLarge):
        return Reason.TOO_LARGE, str(error)
    if isinstance(error, InvalidEvent):
        return Reason.UNDECODABLE, str(error)
    return Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}"


def of_record(
    sensor: SensorContract,
    place: tuple[str, int, int],
    draft: Draft,
    failure: tuple[Reason, str],
    now: float,
    trigger: str | None = None,
) -> Draft:
    """Return the dead letter of the record `draft` at `place` (topic, partition, offset).
    `failure`: the reason, and a text that explains it. `trigger`: the only trigger for which the
    record failed; None: the record failed for all triggers. `now`: seconds since the Unix epoch."""
    headers, value = draft.headers, draft.value
    reason, failure_text = failure
    extensions = () if trigger is None else ((records.TRIGGER, trigger),)
    failure_details = _failure_of_letter(sensor, reason, failure_text, now, extensions)
    origin = _origin(sensor, place)
    try:
        letter = dead_letter_of(headers, value, failure_details, origin)
    except Exception:  # the record holds no event, so only its key and value are kept
        undecodable = _failure_of_letter(sensor, Reason.UNDECODABLE, failure_text, now, extensions)
        letter = dead_letter_of([], value, undecodable, origin)
    return Draft(draft.key, *letter)


def structured_headers(document: bytes | None) -> RecordHeaders:
    """Return the headers of a record whose value is `document`, an event as JSON: the content type
    of structured mode. A tombstone (None) gets no headers."""
    return [] if document is None else [(CONTENT_TYPE, json_format.MEDIA_TYPE.encode())]


def of_events(
    sensor: SensorContract,
    key: str,
    events: Sequence[HeldEvent],
    partition: int,
    failure: tuple[Reason, str],
    now: float,
) -> Draft:
    """Return the dead letter that names `events`, at least one, which are held at `key`
    (`records.key_of`) in a partition of the trigger topic. `failure`: the reason, and a text that
    explains it. `now`: seconds since the Unix epoch."""
    trigger, correlation = records.trigger_of(key), records.correlation_of(key)
    last_offset = max(event.offset for event in events)
    attributes = {
        "specversion": "1.0",
        "id": f"{sensor.namespace}.{sensor.name}.{trigger}.{partition}.{last_offset}",
        "source": records.source_of(sensor.namespace, sensor.name),
        "type": FAILED,
        "time": rfc3339(now),
        "datacontenttype": "application/json",
        records.TRIGGER: trigger,
    }
    if correlation:
        attributes["subject"] = correlation
    data = json.dumps(
        {
            "count": len(events),
            "bytes": sum(len(event.document) for event in events),
            "events": _named_events(events),
        },
        separators=(",", ":"),
    )
    draft = to_record(Event(attributes, data.encode()))
    place = sensor.trigger_topic, partition, last_offset
    return of_record(sensor, place, draft._replace(key=key.encode()), failure, now)


def _named_events(events: Sequence[HeldEvent]) -> Sequence[dict[str, Any]]:
    """Return for each event the values that name it in a dead letter: dependency, source, id, time,
    and offset in the trigger topic. Events beyond `MAX_NAMED_BYTES` are left out."""
    named_events: list[dict[str, Any]] = []
    remaining_bytes = MAX_NAMED_BYTES
    for event in events:
        source, _, event_id = event.identity.partition(" ")
        names_of_event = {
            "dependency": event.dependency,
            "source": source[:MAX_NAMED_EVENT_CHARACTERS],
            "id": event_id[:MAX_NAMED_EVENT_CHARACTERS],
            "time": rfc3339(event.at / 1000),
            "offset": event.offset,
        }
        remaining_bytes -= len(json.dumps(names_of_event))
        if remaining_bytes < 0:
            break
        named_events.append(names_of_event)
    return named_events


def _failure_of_letter(
    sensor: SensorContract,
    reason: Reason,
    failure_text: str,
    now: float,
    extensions: Sequence[tuple[str, str]] = (),
) -> Failure:
    """Return the failure of a Sensor's dead letter: its reason, the text that explains it, and
    attributes to add (`extensions`). No delivery was attempted, so both times are `now`, in seconds
    since the Unix epoch."""
    return Failure(
        destination=f"sensor:{sensor.name}.{sensor.namespace}",
        reason=reason,
        attempts=0,
        first_attempt=now,
        last_attempt=now,
        body=failure_text.encode(errors="replace"),
        extensions=extensions,
    )


def _origin(sensor: SensorContract, place: tuple[str, int, int]) -> Origin:
    """Return the origin of a Sensor's dead letter: the bus as its Broker, the Sensor as its
    Trigger. `place`: the record's topic, partition and offset."""
    return Origin(sensor.namespace, sensor.bus, names.of_sensor(sensor.name), *place)
