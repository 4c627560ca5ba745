"""Makes the console's state of a cluster from its objects and figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from knafka.core.errors import InvalidDocument
from knafka_client.state.condition_rows import broker_row, trigger_row
from knafka_client.state.snapshot import BrokerRow, Snapshot, TriggerRow
from knafka_console.model import snapshot_document
from knafka_console.model.document import ConsoleBroker, ConsoleState
from knafka_console.sources.figures import Figures, TriggerFigures, TriggerKey
from knafka_operator.kafka.desired import BOOTSTRAP_SERVERS
from knafka_operator.model.cluster import Document
from knafka_operator.model.family import family_of, is_of_kafka_channel
from knafka_operator.model.resources import (
    BROKER_CLASS,
    BROKER_CLASSES,
    TOPIC_STATUS,
    Trigger,
    is_claimed_by_peer,
)


@dataclass(frozen=True, slots=True)
class StoredObjects:
    """The objects of a cluster that a viewer may see, each with its kind."""

    brokers: Sequence[Document] = ()
    """Brokers and KafkaChannels."""
    triggers: Sequence[Document] = ()
    """Triggers and Subscriptions."""
    problems: tuple[str, ...] = ()
    """A sentence for each kind that could not be listed."""

    def without_foreign(self) -> StoredObjects:
        """Return only the objects that Knafka handles: no Brokers and channels of other
        implementations, and no Triggers and Subscriptions of such Brokers and channels."""
        foreign = {_object_key(broker) for broker in self.brokers if not _is_ours(broker)}
        return StoredObjects(
            [broker for broker in self.brokers if _object_key(broker) not in foreign],
            [trigger for trigger in self.triggers if _is_delivered_by_us(trigger, foreign)],
            self.problems,
        )


def cluster_state(stored: StoredObjects, figures: Figures | None, place: str) -> ConsoleState:
    """Return the console's state of a cluster; `place` is the cluster's name on the page.

    `stored` holds only objects that Knafka handles. `figures` are lag, replicas and counts; None:
    they aren't known.
    """
    kafkas = {_status_annotation(broker, BOOTSTRAP_SERVERS) for broker in stored.brokers} - {""}
    snapshot = Snapshot(
        ", ".join(sorted(kafkas)),
        tuple(_broker_row_with_figures(broker, figures) for broker in stored.brokers),
        tuple(_trigger_row_with_figures(trigger, figures) for trigger in stored.triggers),
        stored.problems,
    )
    state = snapshot_document.state_document(snapshot, valid_triggers(stored.triggers), place)
    return state.model_copy(update={"brokers": tuple(map(_without_rejected_count, state.brokers))})


def valid_triggers(triggers: Sequence[Document]) -> Sequence[Trigger]:
    """Return the Triggers and Subscriptions whose documents are valid, Subscriptions as Triggers.
    What is wrong with the others is in a condition of their status."""
    valid = []
    for document in triggers:
        try:
            valid.append(family_of(document["kind"]).read_trigger(document))
        except InvalidDocument:
            continue
    return valid


def _without_rejected_count(broker: ConsoleBroker) -> ConsoleBroker:
    """Return the Broker with None as the count of rejected requests: only the receiver's metrics
    have that count, and they aren't read."""
    return broker.model_copy(update={"rejected": None})


def _broker_row_with_figures(document: Document, figures: Figures | None) -> BrokerRow:
    """Return the row of a Broker or KafkaChannel, with the number of records that were ever written
    to its topic; 0 if `figures` is None or lacks the topic."""
    row, topic = broker_row(document), _status_annotation(document, TOPIC_STATUS)
    accepted = 0 if figures is None else figures.written.get(topic, 0)
    return replace(row, accepted=accepted)


def _trigger_row_with_figures(document: Document, figures: Figures | None) -> TriggerRow:
    """Return the row of a Trigger or Subscription, with its lag, replicas and counts from
    `figures`. If `figures` is None or lacks the Trigger, its lag is None and the other numbers are
    0."""
    row, metadata = trigger_row(document), document["metadata"]
    assert row.kind != "Sensor", "a cluster's console shows none"
    key = TriggerKey(row.kind, metadata["namespace"], metadata["name"])
    figures_of_trigger = (
        TriggerFigures() if figures is None else figures.triggers.get(key, TriggerFigures())
    )
    counts = figures_of_trigger.outcomes
    return replace(
        row,
        lag=figures_of_trigger.lag,
        replicas=figures_of_trigger.replicas,
        read=counts.get("read", 0),
        filtered=counts.get("filtered", 0),
        delivered=counts.get("delivered", 0),
        retried=counts.get("retried", 0),
        dead_lettered=counts.get("dead_lettered", 0),
    )


def _is_ours(broker: Document) -> bool:
    """Whether Knafka handles this Broker or channel: no other implementation has claimed it by a
    finalizer, and a Broker's class is one of Knafka's."""
    if is_claimed_by_peer(broker, family_of(broker["kind"]).peers_finalizer):
        return False
    annotations: Mapping[str, str] = broker["metadata"].get("annotations") or {}
    return broker["kind"] != "Broker" or annotations.get(BROKER_CLASS, "") in BROKER_CLASSES


def _is_delivered_by_us(trigger: Document, foreign: set[tuple[str, str, str]]) -> bool:
    """Whether Knafka delivers for this Trigger or Subscription; `foreign` are kind, namespace and
    name of other implementations' Brokers and channels."""
    if trigger["kind"] == "Subscription" and not is_of_kafka_channel(trigger):
        return False
    family = family_of(trigger["kind"])
    return (family.broker, *family.broker_of(trigger)) not in foreign


def _object_key(document: Document) -> tuple[str, str, str]:
    """Return kind, namespace and name of an object."""
    metadata = document["metadata"]
    return document["kind"], metadata["namespace"], metadata["name"]


def _status_annotation(document: Document, key: str) -> str:
    """Return an annotation in an object's status; empty if it has none."""
    annotations = (document.get("status") or {}).get("annotations") or {}
    return str(annotations.get(key, ""))
