"""Operator: enqueues the objects that a change affects, and resumes and ends deliveries.

    Broker changed     -> the Broker, its Triggers
    Trigger changed    -> the Trigger
    Service changed    -> its owner, and Triggers whose subscriber it is
    receiver started   -> open drains of its Broker's Triggers, as an event is on its way

A drain is a period in which a dispatcher delivers; requests of the operator begin and extend it. An
operator serves one family: Broker and Trigger, or KafkaChannel and Subscription; where this module
says Broker and Trigger, either pair is meant. `entries` shows the elements of a channel's
`spec.subscribers` as Subscriptions.

Not here: the reconcilers and their tasks (`wiring`), hearing of changes (`runtime.controller`), and
what reconciling does (the module `kind` of each package).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal

from knafka_operator.channels import entries
from knafka_operator.decisions import status as statuses
from knafka_operator.dispatchers.resuming import Resuming
from knafka_operator.dispatchers.startup import (
    DISPATCHER_LABELS,
    connect_kafkas,
    resume_deliveries,
)
from knafka_operator.engine.work_queue import BACK_OFF, GONE, Verdict
from knafka_operator.model.cluster import ClusterError, Document
from knafka_operator.model.family import SOURCES
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import SERVING
from knafka_operator.model.sensors import SENSOR, Bus
from knafka_operator.records.namespace_totals import restore_min_scales
from knafka_operator.records.state import broker_of, without_status
from knafka_operator.sinks.model import KAFKA_SINK
from knafka_operator.wiring import OperatorParts

log = logging.getLogger(__name__)

PREWARM_LIMIT: Final = 5
"""Most Triggers of one Broker that are woken when its receiver starts. With more Triggers, most
would find no event, and lag wakes them anyway."""


class Operator(OperatorParts):
    """The reconcilers of one family of kinds; created inside its event loop."""

    async def resume(self) -> int:
        """Resume the drains of every Trigger whose delivery has begun, as its dispatcher's Service
        or its Broker's contract shows. Returns the number of these Triggers.

        Called before anything is reconciled, so that waiting events are delivered at once. Raises
        `ClusterError`.
        """
        brokers, triggers, dispatcher_services = await asyncio.gather(
            self.cluster.list(self.family.broker_version, self.family.broker),
            self.cluster.list(self.family.trigger_version, self.family.trigger),
            self.cluster.list(SERVING, "Service", DISPATCHER_LABELS),
        )
        for broker in brokers:
            self.remember_class(broker, gone=False)
        restore_min_scales(self.states, triggers, dispatcher_services)
        await resume_deliveries(
            self.cluster,
            self._create_resuming(),
            {Identity.of(broker): broker for broker in brokers if self._is_delivered(broker)},
            triggers,
            dispatcher_services,
            self.triggers.resume,
        )
        await self._restore_sources(dispatcher_services)
        return len(self.triggers.watched)

    async def _restore_sources(self, dispatcher_services: Sequence[Document]) -> None:
        """Restore the min-scales that KafkaSources were granted, if these are served. Where they
        can't be listed, as without their definition, no Trigger waits for that: it is logged."""
        if self.sources is None:
            return
        try:
            sources = await self.cluster.list(SOURCES.trigger_version, SOURCES.trigger)
        except ClusterError as error:
            log.warning("can't list KafkaSources for their min-scales: %s", error)
        else:
            restore_min_scales(self.sources.states, sources, dispatcher_services)

    async def prepare(self) -> None:
        """Prepare for `resume`: list all Services, and connect to every Kafka that they use. Raises
        `ClusterError`."""
        await connect_kafkas(self.cluster, self._create_resuming())

    def _create_resuming(self) -> Resuming:
        """Create a finder of running deliveries; each pass over the Services needs its own."""
        return Resuming(self.cluster, self._kafkas, self._shards, self.settings)

    def remember_class(self, broker: Document, *, gone: bool) -> None:
        """Record whether another implementation serves a Broker that exists or, with `gone`, was
        deleted; thread-safe."""
        if gone or self.brokers.is_ours(broker):
            self.states.foreign_brokers.discard(Identity.of(broker))
        else:
            self.states.foreign_brokers.add(Identity.of(broker))

    def _is_delivered(self, broker: Document) -> bool:
        """Whether Knafka serves a stored Broker or channel that isn't being deleted."""
        return self.brokers.is_ours(broker) and "deletionTimestamp" not in broker["metadata"]

    def may_be_ours(self, trigger: Mapping[str, Any]) -> bool:
        """Whether Knafka serves the Broker of a stored Trigger, as far as is known: True unless
        another implementation is known to serve the Broker (`Triggers.is_ours`)."""
        return self.triggers.is_ours(trigger)

    async def stop_triggers(self, broker: Identity) -> None:
        """End all delivery to the Triggers and Sensors of a Broker; raises `KnafkaError` while
        drains go on."""
        await self._stop_only_triggers(broker)
        if self.sensors is not None:
            await self.sensors.stop_on_bus(Bus(self.family, broker))

    async def _stop_only_triggers(self, broker: Identity) -> None:
        """End all delivery to the Triggers of a Broker, but not to its Sensors; raises the first
        error after all Triggers have been tried."""
        # Concurrently, so that the removals from shards' contracts are written as one batch.
        triggers = self.states.triggers_of(broker)
        stop_calls = (self.triggers.stop_delivery(trigger) for trigger in triggers)
        for failure in await asyncio.gather(*stop_calls, return_exceptions=True):
            if failure is not None:
                raise failure

    async def delete_broker(self, document: Document) -> None:
        """End all delivery from a Broker or channel, and delete its topic and the groups that read
        the topic. Raises `KnafkaError`."""
        identity = Identity.of(document)
        # First: without this, a Trigger that is being reconciled now would begin to drain again.
        self.states.ensure_broker(document).drop_state()
        await self.brokers.remember_kafka(document)
        await self._stop_only_triggers(identity)
        triggers = self.states.triggers_of(identity)
        # A group that the status of another Trigger names, too, isn't deleted.
        groups = {
            group
            for trigger in triggers
            if (record := self.states.triggers.get(trigger)) is not None
            for group in list(record.groups)
            if not await self.triggers.own.is_claimed(trigger, group)
        }
        groups |= {entries.entry_group(identity, uid) for uid in entries.promised_uids(document)}
        if self.sensors is not None:
            groups |= await self.sensors.stop_on_bus(Bus(self.family, identity))
        await self.brokers.delete_topic(document, groups)

    def forget(self, document: Document) -> None:
        """Drop what is in memory about a deleted Broker or Trigger; nothing in Kafka is deleted.
        For a Subscription also enqueue its channel, and Subscriptions that waited for its name."""
        if document["kind"] == self.family.broker:
            self.brokers.drop(document)
            return
        self.triggers.drop(document)
        self._enqueue_after_suspension(Identity.of(document))
        self._enqueue_channel(broker_of(document))

    def on_change(self, document: Document, *, gone: bool) -> None:
        """Handle a Broker or Trigger that has changed or, with `gone`, was deleted: enqueue it
        unless only its status has changed, and the objects that depend on it. For a channel or
        Subscription, also handle each Subscription that `entries` shows differently after the
        change.
        """
        is_broker = document["kind"] == self.family.broker
        if is_broker:
            self.on_broker(document, gone=gone)
        elif self.sensors is not None:
            if (sensor := self.sensors.note_trigger(document, gone=gone)) is not None:
                self.queue.enqueue(sensor)
        if self.entries is None:  # the family is Brokers
            if not is_broker:
                self.on_trigger(document, gone=gone)
            return
        handle_change = self.entries.on_channel if is_broker else self.entries.on_subscription
        changed = handle_change(document, gone=gone)
        if gone and not is_broker:
            self.on_trigger(document, gone=True)
            self._enqueue_channel(broker_of(document))
        self._on_subscriptions_changed(changed)

    def _enqueue_channel(self, channel: Identity) -> None:
        """Enqueue a channel, so that the entry of a deleted Subscription is removed. Does nothing
        for a Broker, nor for a channel that isn't known."""
        if self.entries is not None and channel in self.states.brokers:
            self.queue.enqueue((self.family.broker, *channel))

    def on_eventing(self, installed: bool | None) -> None:
        """Record whether Knative Eventing is `installed` (None: not known), and handle the
        Subscriptions that are shown differently then. If this changes which controller reconciles
        Subscriptions, enqueue all channels and the Sensors on them. Does nothing for Brokers."""
        if self.entries is None:
            return
        previous_handler = self.entries.handling.handler
        self._on_subscriptions_changed(self.entries.on_handling(installed))
        if self.entries.handling.handler is not previous_handler:
            for broker in self.states.brokers:
                self.queue.enqueue((self.family.broker, *broker))
                self._enqueue_sensors(broker)

    def _on_subscriptions_changed(self, changed: Collection[Identity]) -> None:
        """Handle Subscriptions that `entries` may show differently now. Those that are no longer
        shown are enqueued, so that their delivery ends."""
        assert self.entries is not None
        for identity in changed:
            if (subscription := self.entries.find_subscription(identity)) is not None:
                self.on_trigger(subscription, gone=False)
            else:
                # Forgotten, so that it counts as changed if it is shown again.
                self.states.declarations.pop((self.family.trigger, *identity), None)
                self.queue.enqueue((self.family.trigger, *identity))

    async def suspend_absent(
        self, identity: Identity
    ) -> float | Literal[Verdict.BACK_OFF, Verdict.GONE]:
        """End the delivery of a Subscription that doesn't exist now, and may come back. Returns
        `BACK_OFF` while its delivery goes on, so that this is called again; then the seconds until
        it counts as deleted, or `GONE` if nothing is left to do. For a Trigger, do nothing and
        return `GONE`.

        The consumer group stays for a while (`channels.entry_cluster`). Raises `ClusterError`.
        """
        if self.entries is None:
            return GONE
        record = self.states.triggers.get(identity)
        try:
            if record is not None:
                await self.triggers.suspend(identity)
        except statuses.EXPECTED as error:
            log.info("%s %s is still delivered: %s", self.family.trigger, identity, error)
            return BACK_OFF
        self._enqueue_after_suspension(identity)
        if record is not None and record.broker is not None:
            self._enqueue_channel(record.broker)
        requeue_after = self.entries.requeue_after(identity)
        return GONE if requeue_after is None else requeue_after

    def _enqueue_after_suspension(self, identity: Identity) -> None:
        """Enqueue the Subscriptions that have waited until the delivery under the name `identity`
        ended, and the Subscription of that name itself if it was recreated. Does nothing for
        Triggers."""
        if self.entries is None:
            return
        for waiting_subscription in self.entries.release_name(identity):
            self.queue.enqueue((self.family.trigger, *waiting_subscription))
        subscription = self.entries.find_subscription(identity)
        if subscription is not None and "deletionTimestamp" not in subscription["metadata"]:
            # The Subscription was recreated meanwhile.
            self.states.declarations.pop((self.family.trigger, *identity), None)
            self._on_subscriptions_changed([identity])

    def on_broker(self, document: Document, *, gone: bool) -> None:
        """Handle a Broker or channel that has changed or, with `gone`, was deleted: update its
        record, and enqueue it unless only its status has changed. If the Broker is gone or another
        implementation serves it, also enqueue its Triggers and Sensors."""
        identity, is_ours = Identity.of(document), self.brokers.is_ours(document)
        self.remember_class(document, gone=gone)
        if gone:
            self.brokers.drop(document)
        elif is_ours:
            self.brokers.claim_topic_in_status(document)
        # Triggers that were seen before their Broker counted as ours. They are reconciled again if
        # the Broker is gone, or if another implementation serves it.
        if self._enqueue_if_changed(document, gone=gone) and (gone or not is_ours):
            self.enqueue_triggers_and_sensors(identity)

    def on_trigger(self, document: Document, *, gone: bool) -> None:
        """Handle a Trigger that has changed or, with `gone`, was deleted; enqueue it unless only
        its status has changed."""
        identity = Identity.of(document)
        if gone:
            self.states.mark_trigger_gone(identity)
        else:
            self.states.store_trigger(document)
        if not self._enqueue_if_changed(document, gone=gone):
            return
        record = self.states.triggers.get(identity)
        if record is not None and record.watched is not None:
            # A user may have reset the group's offsets, and annotated the Trigger so that this is
            # noticed at once.
            record.watched.kafka.topics.forget_group(record.watched.egress.group)

    def _enqueue_if_changed(self, document: Document, *, gone: bool) -> bool:
        """Enqueue an object if more than its status has changed since the last call for it, or if
        it is `gone`; returns whether it was enqueued. Remembers the document for the next call."""
        key = document["kind"], *Identity.of(document)
        previous = self.states.declarations.pop(key, None)
        if not gone:
            current = self.states.declarations[key] = without_status(document)
            if current == previous:
                return False
        self.queue.enqueue(key)
        return True

    def on_service(self, document: Document) -> None:
        """Enqueue the owners of a changed Knative Service, and the Triggers that refer to it."""
        namespace, name = Identity.of(document)
        for owner in document["metadata"].get("ownerReferences") or ():
            self.queue.enqueue((owner["kind"], namespace, owner["name"]))
        for trigger in self.states.triggers_by_reference.get(Identity(namespace, name), ()):
            self.queue.enqueue((self.family.trigger, *trigger))

    def on_policies(self, changed: Sequence[Document], gone: Sequence[Document]) -> None:
        """Record the EventPolicies that have `changed` or are `gone`, and enqueue the owners of
        receivers in their namespaces, as receivers enforce the policies."""
        namespaces = self.states.policies.update(changed, gone)
        self._enqueue_receiver_owners(lambda broker: broker.namespace in namespaces)

    def on_policies_known(self, known: bool) -> None:
        """Record whether all EventPolicies are `known`. When they become known, enqueue all owners
        of receivers."""
        if self.states.policies.is_known == known:
            return
        self.states.policies.is_known = known
        if known:
            self._enqueue_receiver_owners(lambda broker: True)

    def _enqueue_receiver_owners(self, is_affected: Callable[[Identity], bool]) -> None:
        """Enqueue the Brokers, channels and KafkaSinks for whose identity `is_affected` returns
        True."""
        for family_operator in self.all_operators:
            for identity in filter(is_affected, list(family_operator.states.brokers)):
                self.queue.enqueue((family_operator.family.broker, *identity))
        sinks = list(self.sinks.records) if self.sinks is not None else []
        for identity in filter(is_affected, sinks):
            self.queue.enqueue((KAFKA_SINK, *identity))

    def on_receiver(self, pod: Document, *, new: bool = True, gone: bool = False) -> None:
        """Record that a receiver's pod exists or, with `gone`, was deleted. A `new` pod, one that
        was started after the operator, is about to receive an event, so open drains of up to
        `PREWARM_LIMIT` of the Broker's Triggers."""
        state = self.states.track_receiver_pod(pod, gone=gone)
        if state is not None and new and not gone:
            state.kafka.scaler.prewarm(state.topic.name, PREWARM_LIMIT)

    def enqueue_triggers_and_sensors(self, broker: Identity) -> None:
        """Enqueue the Triggers and Sensors of a Broker; opens no drains."""
        for identity in self.states.triggers_of(broker):
            self.queue.enqueue((self.family.trigger, *identity))
        self._enqueue_sensors(broker)

    def _enqueue_sensors(self, broker: Identity) -> None:
        """Enqueue the Sensors on a Broker or channel."""
        if self.sensors is not None:
            for identity in self.sensors.states.sensors_on(Bus(self.family, broker)):
                self.queue.enqueue((SENSOR, *identity))
