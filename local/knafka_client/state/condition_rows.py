"""Rows of a snapshot from the status of stored objects, as every place stores them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from knafka_client.state.snapshot import BrokerRow, ConditionRow, TriggerRow
from knafka_operator.decide import sensor_waiting
from knafka_operator.decide.status import DELIVERING
from knafka_operator.decide.trigger_conditions import LAG, PAUSED, REPLICAS
from knafka_operator.model.cluster import Document
from knafka_operator.model.conditions import READY, Severity
from knafka_operator.model.family import family_of
from knafka_operator.model.sensors import bus_of


def broker_row(document: Document) -> BrokerRow:
    """A Broker's or KafkaChannel's row without counts."""
    kind = document["kind"]
    row = BrokerRow(_name(document), refused=why_not(document), kind=kind, **_observed(document))
    if row.refused:
        return row
    return replace(row, url=(document["status"].get("address") or {}).get("url") or "")


def trigger_row(document: Document) -> TriggerRow:
    """A Trigger's, Subscription's or Sensor's row without lag and counts."""
    kind = document["kind"]
    sensor = kind == "Sensor"
    broker = bus_of(document).identity if sensor else family_of(kind).broker_of(document)
    return TriggerRow(
        _name(document),
        broker.name,
        kind=kind,
        refused=why_not(document),
        error=_warning(document),
        paused=condition(document, DELIVERING).get("reason") == PAUSED.reason,
        waiting=tuple(
            sensor_waiting.waiting_lines((document.get("status") or {}).get("waiting") or ())
        ),
        **_observed(document),
    )


def sensor_row(document: Document) -> TriggerRow:
    """A Sensor's row, with the lag and the processes that its status says it had last."""
    annotations = (document.get("status") or {}).get("annotations") or {}
    lag, replicas = annotations.get(LAG, ""), annotations.get(REPLICAS, "")
    return replace(
        trigger_row(document),
        lag=int(lag) if lag.isdecimal() else None,
        replicas=int(replicas) if replicas.isdecimal() else 0,
    )


def why_not(document: Document) -> str:
    """Why an object isn't Ready, as `Reason: message`; empty: it is Ready. While a change is
    reconciled, the last known reason counts."""
    ready = condition(document, READY)
    return "" if ready.get("status") == "True" else _said(ready)


def condition(document: Document, type_: str) -> Document:
    """The object's condition of this type; empty if it has none."""
    return next((row for row in conditions(document) if row["type"] == type_), {})


def conditions(document: Document) -> Sequence[Document]:
    return (document.get("status") or {}).get("conditions") or ()


def _warning(document: Document) -> str:
    delivering = condition(document, DELIVERING)
    warns = delivering.get("severity") == Severity.WARNING and delivering.get("status") == "False"
    return _said(delivering) if warns else ""


def _observed(document: Document) -> dict[str, Any]:
    """Its conditions, and what they are about."""
    fields = ("type", "status", "reason", "message", "severity")
    rows = tuple(
        ConditionRow(**{field: stored[field] for field in fields if field in stored})
        for stored in conditions(document)
    )
    observed = (document.get("status") or {}).get("observedGeneration", 0)
    return {"conditions": rows, "observed_generation": observed}


def _said(row: Document) -> str:
    if not row:
        return "not looked at yet"
    return f"{row.get('reason', '')}: {row.get('message', '')}"


def _name(document: Document) -> str:
    return f"{document['metadata']['namespace']}/{document['metadata']['name']}"
