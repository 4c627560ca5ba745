"""Makes rows of a snapshot from the status of Kubernetes objects. Pure.

An object is a `Document`: the mapping that its JSON has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from knafka_client.state.snapshot import BrokerRow, ConditionRow, TriggerRow
from knafka_operator.decisions.status import DELIVERING
from knafka_operator.dispatchers.conditions import DELIVERY_PAUSED, LAG, REPLICAS
from knafka_operator.model.cluster import Document
from knafka_operator.model.conditions import READY, Severity
from knafka_operator.model.family import family_of
from knafka_operator.model.sensors import bus_of
from knafka_operator.sensors import waiting as sensor_waiting


def broker_row(document: Document) -> BrokerRow:
    """Return the row of a Broker or KafkaChannel, from its Kubernetes object `document`.

    The row's counts are 0, and its URL is empty unless the object is Ready.
    """
    kind = document["kind"]
    row = BrokerRow(
        _full_name(document),
        refused=not_ready_reason(document),
        kind=kind,
        **_condition_fields(document),
    )
    if row.refused:
        return row
    return replace(row, url=(document["status"].get("address") or {}).get("url") or "")


def trigger_row(document: Document) -> TriggerRow:
    """Return the row of a Trigger, Subscription or Sensor, from its Kubernetes object `document`.

    The row's lag is None, and its counts are 0.
    """
    kind = document["kind"]
    is_sensor = kind == "Sensor"
    # A Sensor's bus is the Broker or KafkaChannel whose events it evaluates.
    broker = bus_of(document).identity if is_sensor else family_of(kind).broker_of(document)
    return TriggerRow(
        _full_name(document),
        broker.name,
        kind=kind,
        refused=not_ready_reason(document),
        error=_delivery_warning(document),
        paused=condition(document, DELIVERING).get("reason") == DELIVERY_PAUSED.reason,
        waiting=tuple(
            sensor_waiting.waiting_lines((document.get("status") or {}).get("waiting") or ())
        ),
        **_condition_fields(document),
    )


def sensor_row(document: Document) -> TriggerRow:
    """Return the row of a Sensor, with the lag and the number of replicas from the annotations in
    its status. Without such an annotation, the lag is None, and the number of replicas 0."""
    annotations = (document.get("status") or {}).get("annotations") or {}
    lag, replicas = annotations.get(LAG, ""), annotations.get(REPLICAS, "")
    return replace(
        trigger_row(document),
        lag=int(lag) if lag.isdecimal() else None,
        replicas=int(replicas) if replicas.isdecimal() else 0,
    )


def not_ready_reason(document: Document) -> str:
    """Return why an object isn't Ready, as `Reason: message`; empty if it is Ready.

    While a change is being reconciled, this is still the reason from before the change.
    """
    ready = condition(document, READY)
    return "" if ready.get("status") == "True" else _condition_text(ready)


def condition(document: Document, type_: str) -> Document:
    """Return the object's condition of this type; empty if it has none."""
    return next((stored for stored in conditions(document) if stored["type"] == type_), {})


def conditions(document: Document) -> Sequence[Document]:
    """Return the conditions in an object's status; none if it has no status yet."""
    return (document.get("status") or {}).get("conditions") or ()


def _delivery_warning(document: Document) -> str:
    """Return the object's `Delivering` condition as text, if it is a warning; else empty."""
    delivering = condition(document, DELIVERING)
    warns = delivering.get("severity") == Severity.WARNING and delivering.get("status") == "False"
    return _condition_text(delivering) if warns else ""


def _condition_fields(document: Document) -> dict[str, Any]:
    """Return the fields `conditions` and `observed_generation` of a row, by name. The generation is
    0 if the object has no status yet."""
    fields = ("type", "status", "reason", "message", "severity")
    rows = tuple(
        ConditionRow(**{field: stored[field] for field in fields if field in stored})
        for stored in conditions(document)
    )
    observed = (document.get("status") or {}).get("observedGeneration", 0)
    return {"conditions": rows, "observed_generation": observed}


def _condition_text(stored: Document) -> str:
    """Return a condition of an object's status as text, `Reason: message`. An empty condition
    stands for one that the status doesn't have yet."""
    if not stored:
        return "not reconciled yet"
    return f"{stored.get('reason', '')}: {stored.get('message', '')}"


def _full_name(document: Document) -> str:
    """Return `namespace/name` of an object."""
    return f"{document['metadata']['namespace']}/{document['metadata']['name']}"
