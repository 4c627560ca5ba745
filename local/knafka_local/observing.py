"""Observing: a snapshot of a LocalCluster, from the statuses of its objects and the scaler's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from knafka_local.cluster import FOLDER, LocalCluster, name_of
from knafka_local.controller import Controller
from knafka_local.receiver_process import Answered
from knafka_local.serving import dispatcher_of, most_replicas
from knafka_local.snapshot import BrokerRow, ConditionRow, Snapshot, TriggerRow
from knafka_operator.decide.delivery_status import PAUSED
from knafka_operator.decide.scaling import TriggerStatus
from knafka_operator.decide.status import DELIVERING
from knafka_operator.model.cluster import Document
from knafka_operator.model.conditions import READY, Severity
from knafka_operator.model.family import BROKERS, CHANNELS, FAMILIES, family_of
from knafka_operator.model.resources import BROKER_CLASS


@dataclass(frozen=True, slots=True)
class _Known:
    """The row of a Trigger, and what it was made of: what is stored is replaced, never changed."""

    document: Document
    is_ours: bool
    service: Document | None
    status: TriggerStatus | None
    row: TriggerRow


class Observer:
    """Takes snapshots. A row whose Trigger hasn't changed is the same as before, as a thousand of
    them are looked at several times a second."""

    def __init__(self, cluster: LocalCluster, controller: Controller) -> None:
        self._cluster = cluster
        self._controller = controller
        self._known: dict[tuple[str, str], _Known] = {}
        """By kind and name of a row."""

    def take(
        self, answered: Answered, of_channels: Answered, problems: Sequence[str], kafka: str
    ) -> Snapshot:
        """Put together what the parts know; requests to Brokers and to KafkaChannels are counted
        apart, as two may have one name."""
        cluster, is_ours = self._cluster, self._controller.is_ours
        kinds = [family.trigger for family in FAMILIES]
        known = [self._trigger(each) for kind in kinds for each in self._shown(kind)]
        self._known = {(each.row.kind, each.row.name): each for each in known}
        channels = tuple(
            replace(_broker(each, is_ours(each), of_channels), kind="KafkaChannel")
            for each in self._shown(CHANNELS.broker)
        )
        brokers = tuple(_broker(each, is_ours(each), answered) for each in self._shown("Broker"))
        return Snapshot(
            kafka,
            brokers + channels,
            tuple(each.row for each in known),
            (*problems, *filter(None, map(_service, cluster.of("Service")))),
        )

    def _shown(self, kind: str) -> Iterator[Document]:
        """What is being deleted is gone for who deleted it, and what is new says something soon."""
        return (
            each
            for each in self._cluster.of(kind)
            if "deletionTimestamp" not in each["metadata"]
            and (_conditions(each) or not self._controller.is_ours(each))
        )

    def _trigger(self, document: Document) -> _Known:
        namespace, name = document["metadata"]["namespace"], document["metadata"]["name"]
        is_ours = self._controller.is_ours(document)
        service = dispatcher_of(self._cluster, document)
        status = self._controller.scaled(namespace, name, document["kind"])
        shown = f"{namespace}/{name}"
        known = self._known.get((document["kind"], shown))
        if (
            known is not None
            and known.document is document
            and known.is_ours == is_ours
            and known.service is service
            and known.status == status
        ):
            return known
        row = _row(shown, document, is_ours, service, status)
        return _Known(document, is_ours, service, status, row)


def _broker(document: Document, is_ours: bool, answered: Answered) -> BrokerRow:
    metadata = document["metadata"]
    name = f"{metadata['namespace']}/{metadata['name']}"
    if not is_ours:
        class_ = (metadata.get("annotations") or {}).get(BROKER_CLASS)
        return BrokerRow(name, refused=f"its class {class_} is another implementation's")
    if refused := _why_not(document):
        return BrokerRow(name, refused=refused, **_told(document))
    ours = {
        code: count
        for (namespace, broker, code), count in answered.items()
        if (namespace, broker) == (metadata["namespace"], metadata["name"])
    }
    return BrokerRow(
        name,
        document["status"]["address"]["url"],
        ours.get(HTTPStatus.ACCEPTED, 0),
        # A probe (200) or a handshake is neither.
        sum(count for code, count in ours.items() if code >= HTTPStatus.BAD_REQUEST),
        **_told(document),
    )


def _row(
    name: str,
    document: Document,
    is_ours: bool,
    service: Document | None,
    status: TriggerStatus | None,
) -> TriggerRow:
    kind, family = document["kind"], family_of(document["kind"])
    row = TriggerRow(name, family.broker_of(document).name, kind=kind)
    if not is_ours:
        what = "Broker" if family is BROKERS else "channel"
        return replace(row, refused=f"its {what} is another implementation's")
    row = replace(
        row,
        refused=_why_not(document),
        error=_warning(document),
        paused=_condition(document, DELIVERING).get("reason") == PAUSED.reason,
        most_replicas=most_replicas(service),
        **_told(document),
    )
    return row if status is None else _with_counts(row, status)


def _with_counts(row: TriggerRow, status: TriggerStatus) -> TriggerRow:
    counts = status.counts
    return replace(
        row,
        lag=status.lag,
        replicas=status.replicas,
        read=counts.read,
        filtered=counts.filtered,
        delivered=counts.delivered,
        retried=counts.retried,
        buried=counts.dead_lettered,
        decision=status.scale.reason,
    )


def _service(document: Document) -> str:
    """What stands in the way of a declared Service; empty: nothing."""
    declared = FOLDER in (document["metadata"].get("annotations") or {})
    failed = _condition(document, READY).get("status") == "False"
    return f"{name_of(document)}: {_why_not(document)}" if declared and failed else ""


def _why_not(document: Document) -> str:
    """As it was seen last, also while a change is looked at; empty: it is Ready."""
    ready = _condition(document, READY)
    return "" if ready.get("status") == "True" else _said(ready)


def _warning(document: Document) -> str:
    found = _condition(document, DELIVERING)
    warns = found.get("severity") == Severity.WARNING and found.get("status") == "False"
    return _said(found) if warns else ""


def _condition(document: Document, type_: str) -> Document:
    return next((each for each in _conditions(document) if each["type"] == type_), {})


def _told(document: Document) -> dict[str, Any]:
    """Its conditions, and what they are about."""
    fields = ("type", "status", "reason", "message", "severity")
    rows = tuple(
        ConditionRow(**{each: found[each] for each in fields if each in found})
        for found in _conditions(document)
    )
    observed = (document.get("status") or {}).get("observedGeneration", 0)
    return {"conditions": rows, "observed_generation": observed}


def _conditions(document: Document) -> Sequence[Document]:
    return (document.get("status") or {}).get("conditions") or ()


def _said(condition: Document) -> str:
    return f"{condition.get('reason', '')}: {condition.get('message', '')}"
