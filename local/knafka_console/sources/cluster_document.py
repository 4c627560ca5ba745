"""The console's state of a cluster: stored objects, figures -> values. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from knafka.core.errors import InvalidDocument
from knafka_client.state.condition_rows import broker_row, trigger_row
from knafka_client.state.snapshot import BrokerRow, Snapshot, TriggerRow
from knafka_console.model import snapshot_document
from knafka_console.model.document import ConsoleBroker, ConsoleState
from knafka_console.sources.figures import Figures, TriggerFigures, TriggerKey
from knafka_operator.decide.desired import BOOTSTRAP_SERVERS
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
class Stored:
    """What a viewer may see of a cluster's objects, each with its kind."""

    brokers: Sequence[Document] = ()
    """Brokers and KafkaChannels."""
    triggers: Sequence[Document] = ()
    """Triggers and Subscriptions."""
    problems: tuple[str, ...] = ()

    def ours(self) -> Stored:
        """The same objects without those of other Broker and channel implementations."""
        foreign = {_key(broker) for broker in self.brokers if not _is_ours(broker)}
        return Stored(
            [broker for broker in self.brokers if _key(broker) not in foreign],
            [trigger for trigger in self.triggers if _is_delivered(trigger, foreign)],
            self.problems,
        )


def state(stored: Stored, figures: Figures | None, place: str) -> ConsoleState:
    """`stored` are `ours`; without figures rates and lag aren't known."""
    snapshot = Snapshot(
        ", ".join(
            sorted(
                filter(None, {_annotation(broker, BOOTSTRAP_SERVERS) for broker in stored.brokers})
            )
        ),
        tuple(_broker(broker, figures) for broker in stored.brokers),
        tuple(_trigger(trigger, figures) for trigger in stored.triggers),
        stored.problems,
    )
    shown = snapshot_document.state(snapshot, declared(stored.triggers), place)
    return shown.model_copy(update={"brokers": tuple(map(_uncounted, shown.brokers))})


def declared(triggers: Sequence[Document]) -> Sequence[Trigger]:
    """The Triggers and Subscriptions that can be read; the operator reports the others in a
    condition."""
    readable = []
    for document in triggers:
        try:
            readable.append(family_of(document["kind"]).read_trigger(document))
        except InvalidDocument:
            continue
    return readable


def _uncounted(broker: ConsoleBroker) -> ConsoleBroker:
    """What a receiver has refused is in its own pods' metrics only."""
    return broker.model_copy(update={"rejected": None})


def _broker(document: Document, figures: Figures | None) -> BrokerRow:
    row, topic = broker_row(document), _annotation(document, TOPIC_STATUS)
    accepted = 0 if figures is None else figures.written.get(topic, 0)
    return replace(row, accepted=accepted)


def _trigger(document: Document, figures: Figures | None) -> TriggerRow:
    row, metadata = trigger_row(document), document["metadata"]
    assert row.kind != "Sensor", "a cluster's console shows none"
    key = TriggerKey(row.kind, metadata["namespace"], metadata["name"])
    counted = TriggerFigures() if figures is None else figures.triggers.get(key, TriggerFigures())
    counts = counted.outcomes
    return replace(
        row,
        lag=counted.lag,
        replicas=counted.replicas,
        read=counts.get("read", 0),
        filtered=counts.get("filtered", 0),
        delivered=counts.get("delivered", 0),
        retried=counts.get("retried", 0),
        dead_lettered=counts.get("dead_lettered", 0),
    )


def _is_ours(broker: Document) -> bool:
    if is_claimed_by_peer(broker, family_of(broker["kind"]).peers_finalizer):
        return False
    annotations: Mapping[str, str] = broker["metadata"].get("annotations") or {}
    return broker["kind"] != "Broker" or annotations.get(BROKER_CLASS, "") in BROKER_CLASSES


def _is_delivered(trigger: Document, foreign: set[tuple[str, str, str]]) -> bool:
    if trigger["kind"] == "Subscription" and not is_of_kafka_channel(trigger):
        return False
    family = family_of(trigger["kind"])
    return (family.broker, *family.broker_of(trigger)) not in foreign


def _key(document: Document) -> tuple[str, str, str]:
    metadata = document["metadata"]
    return document["kind"], metadata["namespace"], metadata["name"]


def _annotation(document: Document, key: str) -> str:
    """Of its status; empty: it has none."""
    annotations = (document.get("status") or {}).get("annotations") or {}
    return str(annotations.get(key, ""))
