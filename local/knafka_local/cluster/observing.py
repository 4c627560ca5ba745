"""Observing: a snapshot of a LocalCluster, from the statuses of its objects and the scaler's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus

from knafka_client.state.condition_rows import (
    broker_row,
    condition,
    conditions,
    trigger_row,
    why_not,
)
from knafka_client.state.snapshot import BrokerRow, Snapshot, TriggerRow
from knafka_local.cluster.local_cluster import FOLDER_ANNOTATION, LocalCluster, name_of
from knafka_local.cluster.local_controller import LocalController
from knafka_local.cluster.local_serving import dispatcher_of, most_replicas
from knafka_local.processes.receiver_process import Answered
from knafka_operator.decide.scaling import TriggerStatus
from knafka_operator.model.cluster import Document
from knafka_operator.model.conditions import READY
from knafka_operator.model.family import BROKERS, CHANNELS, FAMILIES, family_of
from knafka_operator.model.resources import BROKER_CLASS
from knafka_operator.model.sensors import SENSOR


@dataclass(frozen=True, slots=True)
class _ObservedTrigger:
    """The row of a Trigger, and what it was made of: what is stored is replaced, never changed."""

    document: Document
    is_ours: bool
    service: Document | None
    status: TriggerStatus | None
    row: TriggerRow


class Observer:
    """Takes snapshots. A row whose Trigger hasn't changed is the same as before, as a thousand of
    them are looked at several times a second."""

    def __init__(self, cluster: LocalCluster, controller: LocalController) -> None:
        self._cluster = cluster
        self._controller = controller
        self._known: dict[tuple[str, str], _ObservedTrigger] = {}
        """By kind and name of a row."""

    def take(
        self, answered: Answered, of_channels: Answered, problems: Sequence[str], kafka: str
    ) -> Snapshot:
        """Put together what the parts know; requests to Brokers and to KafkaChannels are counted
        apart, as two may have one name."""
        cluster, is_ours = self._cluster, self._controller.is_ours
        kinds = [*(family.trigger for family in FAMILIES), SENSOR]
        known = [self._trigger(document) for kind in kinds for document in self._shown(kind)]
        self._known = {(trigger.row.kind, trigger.row.name): trigger for trigger in known}
        channels = tuple(
            _broker(document, is_ours(document), of_channels)
            for document in self._shown(CHANNELS.broker)
        )
        brokers = tuple(
            _broker(document, is_ours(document), answered) for document in self._shown("Broker")
        )
        return Snapshot(
            kafka,
            brokers + channels,
            tuple(trigger.row for trigger in known if trigger.row.kind != SENSOR),
            (*problems, *filter(None, map(_service, cluster.of("Service")))),
            tuple(trigger.row for trigger in known if trigger.row.kind == SENSOR),
        )

    def _shown(self, kind: str) -> Iterator[Document]:
        """What is being deleted is gone for who deleted it, and what is new says something soon."""
        return (
            document
            for document in self._cluster.of(kind)
            if "deletionTimestamp" not in document["metadata"]
            and (conditions(document) or not self._controller.is_ours(document))
        )

    def _trigger(self, document: Document) -> _ObservedTrigger:
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
        return _ObservedTrigger(document, is_ours, service, status, row)


def _broker(document: Document, is_ours: bool, answered: Answered) -> BrokerRow:
    metadata, kind = document["metadata"], document["kind"]
    if not is_ours:
        name = f"{metadata['namespace']}/{metadata['name']}"
        class_ = (metadata.get("annotations") or {}).get(BROKER_CLASS)
        return BrokerRow(name, refused=f"its class {class_} is another implementation's", kind=kind)
    row = broker_row(document)
    if row.refused:
        return row
    ours = {
        code: count
        for (namespace, broker, code), count in answered.items()
        if (namespace, broker) == (metadata["namespace"], metadata["name"])
    }
    return replace(
        row,
        accepted=ours.get(HTTPStatus.ACCEPTED, 0),
        # A probe (200) or a handshake is neither.
        rejected=sum(count for code, count in ours.items() if code >= HTTPStatus.BAD_REQUEST),
    )


def _row(
    name: str,
    document: Document,
    is_ours: bool,
    service: Document | None,
    status: TriggerStatus | None,
) -> TriggerRow:
    kind = document["kind"]
    if not is_ours:
        family = family_of(kind)
        what = "Broker" if family is BROKERS else "channel"
        broker = family.broker_of(document).name
        return TriggerRow(
            name, broker, kind=kind, refused=f"its {what} is another implementation's"
        )
    row = replace(trigger_row(document), most_replicas=most_replicas(service))
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
        dead_lettered=counts.dead_lettered,
        decision=status.scale.reason,
    )


def _service(document: Document) -> str:
    """What stands in the way of a declared Service; empty: nothing."""
    declared = FOLDER_ANNOTATION in (document["metadata"].get("annotations") or {})
    failed = condition(document, READY).get("status") == "False"
    return f"{name_of(document)}: {why_not(document)}" if declared and failed else ""
