"""KafkaSources: reconciled as Triggers whose Broker is the source itself, with the user's topics.

    observe (Secrets, Kafka, topics, sinks) -> decide (`triggers.decide`) -> act, as a Trigger

Not here: observing (`observe`), and the texts of the status (`decide`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.decisions.status import EXPECTED, ConditionSet
from knafka_operator.engine.kind import Kind
from knafka_operator.engine.work_queue import GONE, Requeue
from knafka_operator.kafka.clusters import KafkaCluster
from knafka_operator.model.cluster import Document, status_annotations
from knafka_operator.model.family import SOURCES
from knafka_operator.model.identity import Identity, Key
from knafka_operator.model.resources import KNAFKA_PREFIX, is_claimed_by_peer
from knafka_operator.model.sources import (
    PEERS_SOURCE_FINALIZER,
    SourceTrigger,
    consumer_group_of,
    group_of_uid,
    has_generated_group,
)
from knafka_operator.records.state import TriggerRecord, Watched
from knafka_operator.scale.decide import ScalingStatus
from knafka_operator.sources.decide import source_conditions, source_status
from knafka_operator.sources.observe import SourceObserver
from knafka_operator.triggers.kind import Triggers
from knafka_operator.triggers.observed import ObservedTrigger

Observed = ObservedTrigger[KafkaCluster]


@dataclass(eq=False)
class KafkaSources(Triggers):
    """Reconciles all KafkaSources, as Triggers."""

    source_observer: SourceObserver = field(kw_only=True)
    """Reads what a source has instead of a Broker."""
    left_behind: str = "Kafka still has its consumer group, which nobody will delete"
    """For users: what may still exist if a deletion was given up."""

    # Changes of objects, and operations on one object.

    def on_change(self, document: Document, *, gone: bool) -> Collection[Key]:
        """Record a change and return the keys to reconcile, as `Kind.on_change` does; also drop the
        cached offsets of the source's group, so that they are read again."""
        changed_keys = Kind.on_change(self, document, gone=gone)
        record = self.states.triggers.get(Identity.of(document))
        if changed_keys and record is not None and record.watched is not None:
            # A user who resets the group's offsets annotates the source, to have them read at once.
            record.watched.kafka.topics.forget_group(record.watched.egress.group)
        return changed_keys

    def remember(self, document: Document) -> object:
        """Update the source's record from its document, and return the record."""
        return self.states.store_trigger(document)

    def is_ours(self, document: Document) -> bool:
        """Whether no other implementation serves this KafkaSource (docs/decisions/0046). Whether
        Knafka serves KafkaSources at all, a setting, isn't checked."""
        return not is_claimed_by_peer(document, PEERS_SOURCE_FINALIZER)

    async def hand_over(self, document: Document) -> None:
        """Stop delivering for a source that another implementation has claimed: delete its
        functions, and our annotations and all conditions in its status, but leave its consumer
        group. Does nothing if the status has no annotations of Knafka's. Raises `KnafkaError`."""
        knafka_annotations = [
            key for key in status_annotations(document) if key.startswith(KNAFKA_PREFIX)
        ]
        if not knafka_annotations:
            return
        identity = Identity.of(document)
        await self.stop_delivery(identity)
        await self._delete_functions(document)
        self.drop(document)
        # A None removes the annotation.
        patch = {"annotations": dict.fromkeys(knafka_annotations), "conditions": []}
        await self.cluster.write_status(document, patch)

    async def needs_finalizer(self, document: Document) -> bool:
        """Return True: a source always has a function, and mostly a group, to delete."""
        return True

    async def on_absent(self, identity: Identity) -> Requeue:
        """End the delivery of a source that doesn't exist. Returns `GONE`: nothing is left to
        do."""
        if identity in self.states.triggers:
            await self.abandon(identity)
            self.states.mark_trigger_gone(identity)
        return GONE

    async def forget(self, document: Document) -> None:
        """End the delivery of a deleted source, and drop its record."""
        await self.abandon(Identity.of(document))
        self.drop(document)

    # Reconcile.

    async def observe(self, document: Document, record: TriggerRecord) -> Observed | None:
        """Read the source's Secrets, Kafka, topics and destinations, and note its Kafka in the
        record; never returns None. Raises `ClusterError`."""
        family, identity = self.states.family, Identity.of(document)
        try:
            trigger = family.read_trigger(document)
        except InvalidDocument as error:
            return Observed(document, error, watched=record.watched)
        assert isinstance(trigger, SourceTrigger)
        observed = Observed(
            document, trigger, watched=record.watched, may_have_old_pods=record.may_have_old_pods
        )
        try:
            broker, missing_error = await self.source_observer.observe_broker_state(
                document, trigger.source
            )
        except EXPECTED as error:
            # A running delivery goes on, as for a stored Broker without a topic.
            observed = replace(observed, unreachable=error, stored_broker=document)
        else:
            record.kafka = broker.kafka
            observed = replace(observed, broker=broker, unreachable=missing_error)
        return await self.observer.with_destinations(observed, identity)

    def translate_to_kind(
        self, observed: Observed, conditions: ConditionSet, status: dict[str, Any]
    ) -> tuple[ConditionSet, dict[str, Any]]:
        """Translate a Trigger's conditions and status to a KafkaSource's."""
        trigger = observed.trigger
        assert isinstance(trigger, SourceTrigger | KnafkaError)
        scaling = self.scaling_status(Identity.of(observed.document))
        translated_status = source_status(status, observed.document, trigger, scaling)
        return source_conditions(conditions, observed.failed), translated_status

    async def start_delivery(
        self, document: Document, watched: Watched, *, replaces: bool
    ) -> ScalingStatus | None:
        """Start the delivery `watched`; returns the scaler's status once the previous drains have
        ended. `replaces`: pods of the previous delivery may still deliver."""
        self.states.ensure_trigger(document).may_have_old_pods = replaces
        await self.deliver(Identity.of(document), watched)
        return self.scaling_status(Identity.of(document))

    async def delete(self, document: Document) -> None:
        """Delete a source's functions, and its consumer group if the group's name was generated
        and no other KafkaSource names it; other groups belong to the user.

        Raises `LogError` while drains go on, `ClusterError`, and `NotReady` or `InvalidDocument` if
        the group's Kafka can't be connected to, such as without its Secret.
        """
        identity = Identity.of(document)
        await self.stop_delivery(identity)
        await self._delete_functions(document)
        record = self.states.triggers.get(identity)
        kafka = None if record is None else record.kafka
        try:
            trigger = self.states.family.read_trigger(document)
        except InvalidDocument:
            self.drop(document)  # the source is invalid, so its group isn't known
            return
        assert isinstance(trigger, SourceTrigger)
        group = consumer_group_of(trigger.source)
        is_generated = has_generated_group(trigger.source)
        if is_generated and not await self._is_group_shared(identity, group):
            if kafka is None:
                kafka, _ = await self.source_observer.connect_kafka(trigger.source)
            await kafka.topics.delete_group(group)
        self.drop(document)

    async def _is_group_shared(self, identity: Identity, group: str) -> bool:
        """Whether this is the group of a KafkaSource other than `identity`, too. Raises
        `ClusterError`."""
        sources = await self.cluster.list(SOURCES.trigger_version, SOURCES.trigger)
        return any(
            # Not parsed, as an invalid source may have read events, too.
            group
            == (
                (source.get("spec") or {}).get("consumerGroup")
                or group_of_uid(source["metadata"].get("uid", ""))
            )
            for source in sources
            if Identity.of(source) != identity
        )
