"""Event types: parses receivers' reports of new event types, and builds EventTypes like upstream's.
Pure.

Anyone who may create pods in a namespace can impersonate a receiver, so reports are checked as any
external input.

Not here: asking receivers, and how many are made at a time (`receivers.event_types`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeGuard

from knafka.core.events.event import is_legal
from knafka_operator.model.cluster import Document
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import MAX_OBJECT_NAME

EVENT_TYPE_VERSION: Final = "eventing.knative.dev/v1beta2"
"""The version that eventing-kafka-broker creates; Knative Eventing also serves newer ones."""
EVENT_TYPE: Final = "EventType"
MAX_TYPE_TEXT: Final = 512
"""Most characters of a path, a type, a source or a schema that a receiver reports."""
DESCRIPTION: Final = "Event Type auto-created by controller"
"""Description of each EventType; the text is upstream's."""


class ReportedType(NamedTuple):
    """One type of events that a receiver has stored for the first time."""

    path: str
    """Path of the Broker or channel at the receiver."""
    type: str
    source: str
    """The events' `source`."""
    schema: str | None = None
    """The events' `dataschema`; None: they have none."""


def parse_reported_types(answer: bytes) -> list[ReportedType]:
    """Parse the event types in a receiver's answer, and leave out malformed ones. Raises
    `ValueError` if the answer isn't JSON with a list `eventTypes`."""
    document = json.loads(answer)
    entries = document.get("eventTypes") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("it has no eventTypes")
    parsed = (_parse_reported_type(entry) for entry in entries)
    return [reported_type for reported_type in parsed if reported_type is not None]


def _parse_reported_type(entry: object) -> ReportedType | None:
    """Parse one event type in a receiver's answer; None: it is malformed. If only its schema is
    malformed, the event type has none."""
    if not isinstance(entry, dict):
        return None
    path, type_, source = (entry.get(name) for name in ("path", "type", "source"))
    schema = entry.get("schema")
    if not (_is_text(path) and _is_text(type_) and _is_text(source)):
        return None
    return ReportedType(path, type_, source, schema if _is_text(schema) else None)


def _is_text(value: object) -> TypeGuard[str]:
    """Whether a value is text that an EventType may have: printable, not empty, and not too
    long."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TYPE_TEXT:
        return False
    return value.isprintable() and is_legal(value)


def event_type_name(owner: Identity, reported_type: ReportedType) -> str:
    """Return the name of the EventType for a reported type of `owner`, a Broker or KafkaChannel. It
    is the name that eventing-kafka-broker gives, whose existing EventTypes are so recognised."""
    text = f"{reported_type.type}{reported_type.source}{owner.namespace}{owner.name}"
    suffix = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    return f"et-{owner.name}-{suffix}".lower()[:MAX_OBJECT_NAME]


def event_type(owner: Document, reported_type: ReportedType) -> Mapping[str, Any]:
    """Return the manifest of the EventType for a reported type; `owner` is the stored Broker or
    KafkaChannel, which owns the EventType."""
    identity = Identity.of(owner)
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": identity.name}
    spec = {
        "type": reported_type.type,
        "source": reported_type.source,
        "description": DESCRIPTION,
        "reference": {**reference, "namespace": identity.namespace},
    }
    return {
        "apiVersion": EVENT_TYPE_VERSION,
        "kind": EVENT_TYPE,
        "metadata": {
            "name": event_type_name(identity, reported_type),
            "namespace": identity.namespace,
            "ownerReferences": [{**reference, "uid": owner["metadata"]["uid"]}],
        },
        "spec": spec if reported_type.schema is None else {**spec, "schema": reported_type.schema},
    }


def is_owned_by(event_type: Document, uid: str) -> bool:
    """Whether the object with this UID owns a stored EventType."""
    owners = event_type["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)
