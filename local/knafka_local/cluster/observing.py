"""Observing: takes snapshots of a LocalCluster, from its objects' status and the scaler's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus

from knafka_client.state.condition_rows import (
    broker_row,
    condition,
    conditions,
    not_ready_reason,
    trigger_row,
)
from knafka_client.state.snapshot import BrokerRow, Snapshot, TriggerRow
from knafka_local.cluster.local_cluster import FOLDER_ANNOTATION, LocalCluster, kind_and_name
from knafka_local.cluster.local_controller import LocalController
from knafka_local.cluster.local_serving import dispatcher_of, most_replicas
from knafka_local.processes.receiver_process import RequestCounts
from knafka_operator.model.cluster import Document
from knafka_operator.model.conditions import READY
from knafka_operator.model.family import BROKERS, CHANNELS, FAMILIES, family_of
from knafka_operator.model.resources import BROKER_CLASS
from knafka_operator.model.sensors import SENSOR
from knafka_operator.scale.decide import ScalingStatus


@dataclass(frozen=True, slots=True)
class _ObservedTrigger:
    """The row of a Trigger, Subscription or Sensor, and all that the row was made from. Stored
    objects are replaced, never changed, so the same object means the same content."""

    document: Document
    is_ours: bool
    """Whether Knafka handles the Trigger; False: another implementation of Brokers does."""
    service: Document | None
    """The Service of its dispatcher; None if there is none."""
    status: ScalingStatus | None
    """The scaler's status; None if it isn't scaled."""
    row: TriggerRow


class Observer:
    """Takes snapshots, and reuses the row of a Trigger that hasn't changed: there may be a
    thousand, shown several times a second."""

    def __init__(self, cluster: LocalCluster, controller: LocalController) -> None:
        """Take snapshots of `cluster`, with the scaler's status from `controller`."""
        self._cluster = cluster
        self._controller = controller
        self._previous: dict[tuple[str, str], _ObservedTrigger] = {}
        """The Triggers, Subscriptions and Sensors of the last snapshot, by kind and
        `namespace/name`."""

    def take_snapshot(
        self,
        answered: RequestCounts,
        channels_answered: RequestCounts,
        problems: Sequence[str],
        kafka: str,
    ) -> Snapshot:
        """Take a snapshot of all objects.

        `answered` counts requests to Brokers, and `channels_answered` counts requests to
        KafkaChannels: a Broker and a KafkaChannel may have the same name. `problems` are sentences
        about the manifest files; `kafka` says where Kafka is and whether it runs.
        """
        cluster, is_ours = self._cluster, self._controller.is_ours
        kinds = [*(family.trigger for family in FAMILIES), SENSOR]
        observed = [
            self._observe_trigger(document)
            for kind in kinds
            for document in self._shown_objects(kind)
        ]
        self._previous = {(trigger.row.kind, trigger.row.name): trigger for trigger in observed}
        channels = tuple(
            _observed_broker_row(document, is_ours(document), channels_answered)
            for document in self._shown_objects(CHANNELS.broker)
        )
        brokers = tuple(
            _observed_broker_row(document, is_ours(document), answered)
            for document in self._shown_objects("Broker")
        )
        service_problems = filter(None, map(_service_problem, cluster.of("Service")))
        return Snapshot(
            kafka=kafka,
            brokers=brokers + channels,
            triggers=tuple(trigger.row for trigger in observed if trigger.row.kind != SENSOR),
            problems=(*problems, *service_problems),
            sensors=tuple(trigger.row for trigger in observed if trigger.row.kind == SENSOR),
        )

    def _shown_objects(self, kind: str) -> Iterator[Document]:
        """Yield the objects of a kind that a snapshot shows. Objects that are being deleted aren't
        shown, nor are ours without a status yet; objects of another implementation are shown as
        such."""
        return (
            document
            for document in self._cluster.of(kind)
            if "deletionTimestamp" not in document["metadata"]
            and (conditions(document) or not self._controller.is_ours(document))
        )

    def _observe_trigger(self, document: Document) -> _ObservedTrigger:
        """Return a Trigger, Subscription or Sensor with its row; the one of the last snapshot if
        nothing has changed."""
        namespace, name = document["metadata"]["namespace"], document["metadata"]["name"]
        is_ours = self._controller.is_ours(document)
        service = dispatcher_of(self._cluster, document)
        scaling_status = self._controller.scaling_status(namespace, name, document["kind"])
        full_name = f"{namespace}/{name}"
        previous = self._previous.get((document["kind"], full_name))
        is_unchanged = (
            previous is not None
            and previous.document is document
            and previous.is_ours == is_ours
            and previous.service is service
            and previous.status == scaling_status
        )
        if previous is not None and is_unchanged:
            return previous
        row = _observed_trigger_row(full_name, document, is_ours, service, scaling_status)
        return _ObservedTrigger(document, is_ours, service, scaling_status, row)


def _observed_broker_row(document: Document, is_ours: bool, answered: RequestCounts) -> BrokerRow:
    """Return the row of a Broker or KafkaChannel; if it is Ready, with the number of accepted and
    rejected events.

    `is_ours` is False if another implementation serves it; `answered` counts answered requests by
    namespace, name and status code.
    """
    metadata, kind = document["metadata"], document["kind"]
    if not is_ours:
        name = f"{metadata['namespace']}/{metadata['name']}"
        broker_class = (metadata.get("annotations") or {}).get(BROKER_CLASS)
        refused = f"its class {broker_class} is another implementation's"
        return BrokerRow(name, refused=refused, kind=kind)
    row = broker_row(document)
    if row.refused:  # why it isn't Ready
        return row
    counts = {
        code: count
        for (namespace, broker, code), count in answered.items()
        if (namespace, broker) == (metadata["namespace"], metadata["name"])
    }
    return replace(
        row,
        accepted=counts.get(HTTPStatus.ACCEPTED, 0),
        # Answers to probes (200) and to handshakes count as neither accepted nor rejected.
        rejected=sum(count for code, count in counts.items() if code >= HTTPStatus.BAD_REQUEST),
    )


def _observed_trigger_row(
    name: str,
    document: Document,
    is_ours: bool,
    service: Document | None,
    scaling_status: ScalingStatus | None,
) -> TriggerRow:
    """Return the row of a Trigger, Subscription or Sensor, with the scaler's counts.

    `is_ours` is False if its Broker or channel is another implementation's. `service` is the
    Service of its dispatcher; `scaling_status` is None if it isn't scaled.
    """
    kind = document["kind"]
    if not is_ours:
        family = family_of(kind)
        broker_kind = "Broker" if family is BROKERS else "channel"
        broker = family.broker_of(document).name
        return TriggerRow(
            name, broker, kind=kind, refused=f"its {broker_kind} is another implementation's"
        )
    row = replace(trigger_row(document), most_replicas=most_replicas(service))
    return row if scaling_status is None else _with_counts(row, scaling_status)


def _with_counts(row: TriggerRow, status: ScalingStatus) -> TriggerRow:
    """Return a row with the lag, replicas, counts and decision of the scaler's status."""
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


def _service_problem(document: Document) -> str:
    """Return a Service's name and why it isn't Ready. Empty if it is Ready or starting, or if no
    file declares it (the operator made it)."""
    is_declared = FOLDER_ANNOTATION in (document["metadata"].get("annotations") or {})
    has_failed = condition(document, READY).get("status") == "False"
    if not (is_declared and has_failed):
        return ""
    return f"{kind_and_name(document)}: {not_ready_reason(document)}"
