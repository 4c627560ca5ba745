"""Operator: creates the reconcilers, and enqueues the objects that a change affects.

    Broker changed     -> the Broker, its Triggers
    Trigger changed    -> the Trigger
    Service changed    -> its owner, and Triggers whose subscriber it is
    receiver started   -> open drains of its Broker's Triggers, as an event is on its way

Not here: hearing of changes (`runtime.controller`), and what reconciling is (the `kind` of each
room).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

from knafka.ports.log import LogAdmin, LogWriter
from knafka_operator.brokers.kind import Brokers
from knafka_operator.channels import entries
from knafka_operator.channels.entry_cluster import ClusterWithEntries
from knafka_operator.channels.kind import Channels
from knafka_operator.channels.subscriptions import Subscriptions
from knafka_operator.decisions import status as statuses
from knafka_operator.dispatchers.activity import DEFAULT_LIMITS, ActivityLimits
from knafka_operator.dispatchers.dead_letter_monitor import DeadLetterMonitor
from knafka_operator.dispatchers.moves import Moves
from knafka_operator.dispatchers.replays import Replays
from knafka_operator.dispatchers.resuming import Resuming
from knafka_operator.dispatchers.shard_services import Shards
from knafka_operator.engine.effects import Effects
from knafka_operator.engine.kind import rfc3339_now as _now
from knafka_operator.engine.work_queue import BACK_OFF, GONE, Verdict, WorkQueue
from knafka_operator.functions import services
from knafka_operator.functions.applying import ROLL_CHECK_INTERVAL, Rolls
from knafka_operator.functions.probe import probe, wake
from knafka_operator.functions.trust_bundles import TrustBundleCopies
from knafka_operator.installation.handler import Handling
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka.clusters import KafkaCluster, KafkaClusters
from knafka_operator.model.cluster import Cluster, Document
from knafka_operator.model.family import BROKERS, CHANNELS, SOURCES
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import SERVING
from knafka_operator.model.sensors import SENSOR, Bus
from knafka_operator.receivers.event_types import EVENT_TYPES_INTERVAL as EVENT_TYPES_INTERVAL
from knafka_operator.receivers.event_types import EventTypes, PodEventTypes
from knafka_operator.receivers.receivers import PodPositions, Receivers, ReplicaPositions
from knafka_operator.records.state import States, broker_of, has_contract, without_status
from knafka_operator.scale.drains import HttpDrains
from knafka_operator.scale.repeat import run_repeatedly
from knafka_operator.scale.scaler import Drains
from knafka_operator.sensors.kind import Sensors
from knafka_operator.sensors.observe_actions import observe_actions
from knafka_operator.sinks.kind import KafkaSinks
from knafka_operator.sinks.model import KAFKA_SINK
from knafka_operator.sources.kind import KafkaSources
from knafka_operator.sources.observe import SourceObserver
from knafka_operator.triggers.kind import Triggers
from knafka_operator.triggers.observe import TriggerObserver
from knafka_operator.triggers.publishing import Publishing

log = logging.getLogger(__name__)

DISPATCHERS: Final = {services.ROLE_LABEL: services.DISPATCHER_ROLE}
"""Labels of dispatchers' Services, without replayers."""

SHARD_LABELS: Final = {services.ROLE_LABEL: services.SHARD_ROLE}
"""Labels of the Services of shared dispatchers."""

PUBLISH_INTERVAL: Final = 5.0
"""Seconds between two rounds of publishing the scaler's view of each Trigger."""

MOVE_INTERVAL: Final = 5.0
"""Seconds between two checks for `auto` Triggers that need another dispatcher."""

PREWARM_LIMIT: Final = 5
"""Most Triggers of one Broker that are woken when its receiver starts. With more Triggers, most
would find no event, and lag wakes them anyway."""


class Operator:
    """The reconcilers of one family of kinds; created inside its event loop."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        connect: Callable[[Mapping[str, Any]], LogAdmin],
        *,
        open_writer: Callable[[Mapping[str, Any]], LogWriter],
        drains: Drains | None = None,
        probe: Callable[[str], Awaitable[None]] = probe,
        wake: Callable[[str], Awaitable[None]] = wake,
        activity: ActivityLimits = DEFAULT_LIMITS,
        move_interval: float = MOVE_INTERVAL,
        beside: Operator | None = None,
        positions: ReplicaPositions | None = None,
    ) -> None:
        """`connect` returns the admin client of a Kafka for a configuration of librdkafka, and
        `open_writer` a writer, for contracts. `drains` defaults to drains over HTTP. `probe` raises
        `NotReady` for an address that doesn't answer, and so does `wake`, which starts a pod of a
        dispatcher. `activity` has the limits between busy and quiet `auto` Triggers.

        An operator with `beside`, the operator of Brokers, reconciles KafkaChannels and
        Subscriptions, and shares its queue and connections. `positions` returns how far replicas of
        receivers have read their contract; by default it asks the pods.
        """
        self.settings = settings
        self.family = BROKERS if beside is None else CHANNELS
        self.entries: ClusterWithEntries | None = None
        """The cluster that shows channels' entries as Subscriptions; None: the family is
        Brokers."""
        if beside is not None:
            cluster = self.entries = ClusterWithEntries(cluster, Handling(settings.subscriptions))
        self.cluster = cluster
        self._beside: list[Operator] = []
        self.queue: WorkQueue = WorkQueue() if beside is None else beside.queue
        rolls = Rolls(settings.max_rolls, self.queue.enqueue)
        self.states: States = States(
            self.family, rolls if beside is None else beside.states.rolls, settings.naming
        )
        if beside is None:
            self._http = HttpDrains(self.states.urls, settings.shard_size, settings.tokens)
            self._kafkas = KafkaClusters(
                connect,
                drains or self._http,
                self._used_kafkas,
                self.queue.retry_failed,
                self.states.unwritten_topics,
                open_writer,
                settings.allowed_servers,
                settings.kafka_trust,
            )
        else:
            beside._beside.append(self)
            self._http, self._kafkas = beside._http, beside._kafkas
            self.states.urls = beside.states.urls
            self.states.policies = beside.states.policies
        enqueue = self.queue.enqueue
        shards = self._shards = Shards(settings, cluster, self.states, enqueue)
        self.brokers: Brokers | Channels
        # Channels' receivers are in the operator's namespace, where no mesh or NetworkPolicy blocks
        # their pods.
        url_of = partial(services.service_url, settings=settings) if self.entries is None else None
        positions = positions or PodPositions(cluster, url_of, bearers=self._bearers)
        receivers = Receivers(settings, cluster, self.states, positions, enqueue)
        self.trust_bundles: TrustBundleCopies = (
            TrustBundleCopies(settings, cluster) if beside is None else beside.trust_bundles
        )
        effect_parts = self.states, shards, receivers, self.trust_bundles
        self.effects = Effects(cluster, *effect_parts, probe, wake)
        broker_arguments = (
            settings,
            cluster,
            self._kafkas,
            shards,
            self.states,
            receivers,
            self.effects,
            _now,
        )
        self.brokers = (
            Brokers(*broker_arguments)
            if self.entries is None
            else Channels(*broker_arguments, self.entries.handling)
        )
        self.sources: KafkaSources | None = None
        """The reconciler of KafkaSources; None: they aren't served."""
        self._publishing_sources: Publishing | None = None
        self.sinks: KafkaSinks | None = None
        self.sensors: Sensors | None = None
        """The reconciler of Sensors, shared by both families, as either may have a Sensor's bus."""
        if beside is not None:
            self.sensors = beside.sensors
        elif settings.sensors:
            self.sensors = Sensors(settings, cluster, self._kafkas, self.states, self.effects, _now)
        if self.sensors is not None:
            self.sensors.buses[self.family] = self.brokers
        actions = partial(observe_actions, settings, cluster)
        of_observer = settings, cluster, self.brokers.is_ours, shards, self.states, actions
        observer = TriggerObserver(*of_observer)
        self.dead_letters = DeadLetterMonitor(self.states, enqueue)
        trigger_parts = self.states, observer, self.dead_letters, self.effects, _now, enqueue
        trigger_arguments = settings, cluster, self.brokers, shards, *trigger_parts
        self.triggers = (
            Triggers(*trigger_arguments)
            if self.entries is None
            else Subscriptions(*trigger_arguments, self.entries)
        )
        self.brokers.neighbours = self.triggers.neighbours = self
        self.publishing = Publishing(cluster, self.states, self.triggers, self.queue, _now)
        publishing = run_repeatedly(
            "publishing lags", self.publishing.publish_lags, PUBLISH_INTERVAL
        )
        self.moves = Moves(self.states, self.queue.enqueue, activity)
        moving = run_repeatedly("moving Triggers", self.moves.move_triggers, move_interval)
        counting = run_repeatedly(
            "counting dead letters", self.dead_letters.check_topics, PUBLISH_INTERVAL
        )
        event_type_parts = self.states, receivers, PodEventTypes(self._bearers)
        self.event_types = EventTypes(settings, cluster, *event_type_parts)
        creating_event_types = run_repeatedly(
            "making EventTypes", self.event_types.create_new_types, EVENT_TYPES_INTERVAL
        )
        replaying = Replays(settings, cluster, self.states).run()
        running = [publishing, moving, counting, creating_event_types, replaying]
        if beside is None:
            if settings.trust_bundles:
                running.append(self.trust_bundles.run())
            running.append(
                run_repeatedly("rolling", partial(rolls.end_turns, cluster), ROLL_CHECK_INTERVAL)
            )
            if self.sensors is not None:
                running.append(self.sensors.publish(self.queue))
            if settings.sinks:
                sink_arguments = settings, cluster, self._kafkas, self.states, self.effects, _now
                self.sinks = KafkaSinks(*sink_arguments, self._has_topic)
            if settings.sources:
                self.sources = self._make_sources(probe, wake)
                running += self._source_tasks(self.sources)
        self._tasks = {asyncio.create_task(coroutine) for coroutine in running}

    def _has_topic(self, topic: str) -> bool:
        """Whether a Broker or KafkaChannel has a topic of this name."""
        return any(topic in family_operator.states.topics for family_operator in self.all_operators)

    def _make_sources(
        self,
        probe: Callable[[str], Awaitable[None]],
        wake: Callable[[str], Awaitable[None]],
    ) -> KafkaSources:
        """Create the reconciler of KafkaSources, with its own states."""
        settings, enqueue, cluster = self.settings, self.queue.enqueue, self.cluster
        states = States(SOURCES, self.states.rolls, settings.naming)
        states.urls, states.policies = self.states.urls, self.states.policies
        shards = Shards(settings, cluster, states, enqueue)
        parts = states, shards, self.effects.receivers, self.trust_bundles
        effects = Effects(cluster, *parts, probe, wake)
        actions = partial(observe_actions, settings, cluster)
        of_observer = settings, cluster, lambda broker: True, shards, states, actions
        observer = TriggerObserver(*of_observer)
        dead_letters = DeadLetterMonitor(states, enqueue)
        return KafkaSources(
            *(settings, cluster, self.brokers, shards, states, observer, dead_letters),
            *(effects, _now, enqueue),
            source_observer=SourceObserver(
                settings, cluster, self._kafkas, states, self._has_topic
            ),
        )

    def _source_tasks(self, sources: KafkaSources) -> list[Coroutine[Any, Any, None]]:
        """Return the periodic tasks for KafkaSources."""
        cluster_and_states, dead_letters = (self.cluster, sources.states), sources.dead_letters
        publishing = self._publishing_sources = Publishing(
            *cluster_and_states, sources, self.queue, _now
        )
        return [
            run_repeatedly("publishing sources' lags", publishing.publish_lags, PUBLISH_INTERVAL),
            run_repeatedly(
                "counting sources' dead letters", dead_letters.check_topics, PUBLISH_INTERVAL
            ),
            Replays(self.settings, *cluster_and_states).run(),
        ]

    async def resume(self) -> int:
        """Resume the drains of every Trigger from its Service; returns the number of delivered
        Triggers.

        Called before anything is reconciled, so that waiting events are delivered at once. Raises
        `ClusterError`.
        """
        brokers, triggers, dispatcher_services = await asyncio.gather(
            self.cluster.list(self.family.broker_version, self.family.broker),
            self.cluster.list(self.family.trigger_version, self.family.trigger),
            self.cluster.list(SERVING, "Service", DISPATCHERS),
        )
        for each in brokers:
            self.remember_class(each, gone=False)
        own_brokers = {Identity.of(each): each for each in brokers if self._is_delivered(each)}
        triggers_by_broker: dict[Identity, list[Document]] = {each: [] for each in own_brokers}
        for each in triggers:
            if (broker := broker_of(each)) in triggers_by_broker:
                triggers_by_broker[broker].append(each)
        brokers_with_shards = {
            identity: each for identity, each in own_brokers.items() if has_contract(each)
        }
        resuming = Resuming(self.cluster, self._kafkas, self._shards, self.settings)
        unshared_triggers = [
            each
            for identity, some in triggers_by_broker.items()
            if identity not in brokers_with_shards
            for each in some
        ]
        for trigger, watched in await resuming.find_delivered_by_services(
            unshared_triggers, dispatcher_services
        ):
            await self.triggers.resume(trigger, watched)
        if brokers_with_shards:
            shards = await self.cluster.list(SERVING, "Service", SHARD_LABELS)

            async def resume(broker: Identity) -> None:
                """Resume the delivery of one Broker's Triggers that shared dispatchers serve, and
                of its others."""
                some = await resuming.find_delivered_with_shards(
                    brokers_with_shards[broker],
                    triggers_by_broker[broker],
                    dispatcher_services,
                    shards,
                )
                for trigger, watched in some:
                    await self.triggers.resume(trigger, watched)

            await asyncio.gather(*map(resume, brokers_with_shards))
        return len(self.triggers.watched)

    async def prepare(self) -> None:
        """Prepare for `resume`: list all Services, and connect to every Kafka that they use."""
        service_lists = await asyncio.gather(
            self.cluster.list(SERVING, "Service", DISPATCHERS),
            self.cluster.list(SERVING, "Service", SHARD_LABELS),
        )
        resuming = Resuming(self.cluster, self._kafkas, self._shards, self.settings)
        await resuming.connect([*service_lists[0], *service_lists[1]])

    def _bearers(self, name: str, namespace: str) -> Sequence[str]:
        """Return the tokens that a function accepts from the operator."""
        return self.settings.tokens.bearers(services.service_url(name, namespace, self.settings))

    def remember_class(self, broker: Document, *, gone: bool) -> None:
        """Record whether another implementation serves a Broker; thread-safe."""
        if gone or self.brokers.is_ours(broker):
            self.states.foreign_brokers.discard(Identity.of(broker))
        else:
            self.states.foreign_brokers.add(Identity.of(broker))

    def _is_delivered(self, broker: Document) -> bool:
        return self.brokers.is_ours(broker) and "deletionTimestamp" not in broker["metadata"]

    @property
    def all_operators(self) -> Sequence[Operator]:
        """Return this operator and the operators of other families beside it."""
        return [self, *self._beside]

    async def close(self) -> None:
        """End all tasks and drain requests, and wait for that; the drains themselves go on."""
        for family_operator in self._beside:
            await family_operator.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self.publishing.close()
        if self._publishing_sources is not None:
            await self._publishing_sources.close()
        if self.family is BROKERS:
            await self._kafkas.close()
            await self._http.close()

    def may_be_ours(self, trigger: Mapping[str, Any]) -> bool:
        """Whether no other implementation is known to serve the Trigger's Broker."""
        return self.triggers.is_ours(trigger)

    async def stop_triggers(self, broker: Identity) -> None:
        """End all delivery to the Triggers and Sensors of a Broker; raises `KnafkaError` while
        drains go on."""
        await self._stop_delivery(broker)
        if self.sensors is not None:
            await self.sensors.stop_on_bus(Bus(self.family, broker))

    async def _stop_delivery(self, broker: Identity) -> None:
        """Stop the delivery of all Triggers of a Broker; raises the first error after all have been
        tried."""
        # Concurrently, so that the removals from shards' contracts are written as one batch.
        triggers = self.states.triggers_of(broker)
        stopping = (self.triggers.stop_delivery(trigger) for trigger in triggers)
        for failure in await asyncio.gather(*stopping, return_exceptions=True):
            if failure is not None:
                raise failure

    async def delete_broker(self, document: Document) -> None:
        """End all delivery from a Broker, and delete its topic and groups; raises `KnafkaError`."""
        identity = Identity.of(document)
        # First, or a Trigger that is just being reconciled would begin to drain again.
        self.states.ensure_broker(document).state = None
        await self.brokers.remember_kafka(document)
        await self._stop_delivery(identity)
        triggers = self.states.triggers_of(identity)
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
        """Forget a Broker or Trigger that is gone; nothing in Kafka is deleted."""
        is_broker = document["kind"] == self.family.broker
        (self.brokers if is_broker else self.triggers).drop(document)
        if not is_broker:
            self._enqueue_suspended(Identity.of(document))
            self._enqueue_channel(broker_of(document))

    def on_change(self, document: Document, *, gone: bool) -> None:
        """Handle a Broker or Trigger that has changed or, with `gone`, was deleted; enqueue it
        unless only its status has changed."""
        is_broker = document["kind"] == self.family.broker
        if is_broker:
            self.on_broker(document, gone=gone)
        elif self.sensors is not None:
            if (sensor := self.sensors.sensor_to_wake(document, gone=gone)) is not None:
                self.queue.enqueue(sensor)
        if self.entries is None:
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
        """Reconcile a channel, as the entry of one of its Subscriptions must be removed."""
        if self.entries is not None and channel in self.states.brokers:
            self.queue.enqueue((self.family.broker, *channel))

    def on_eventing(self, seen: bool | None) -> None:
        """Handle whether Knative Eventing is installed (None: not known); enqueue all objects if
        that changes who handles Subscriptions."""
        if self.entries is None:
            return
        previous_handler = self.entries.handling.handler
        self._on_subscriptions_changed(self.entries.on_handling(seen))
        if self.entries.handling.handler is not previous_handler:
            for broker in self.states.brokers:
                self.queue.enqueue((self.family.broker, *broker))
                self._wake_sensors(broker)

    def _on_subscriptions_changed(self, changed: Collection[Identity]) -> None:
        """Handle Subscriptions that may have changed or disappeared."""
        assert self.entries is not None
        for identity in changed:
            if (subscription := self.entries.known(identity)) is not None:
                self.on_trigger(subscription, gone=False)
            else:
                self.states.declared.pop((self.family.trigger, *identity), None)
                self.queue.enqueue((self.family.trigger, *identity))

    async def suspend_absent(
        self, identity: Identity
    ) -> float | Literal[Verdict.BACK_OFF, Verdict.GONE]:
        """End the delivery of a Subscription that doesn't exist, temporarily or for good; returns
        when to reconcile it again (`WorkQueue`).

        Its group stays for a while, see `Entries`. Raises `ClusterError`.
        """
        if self.entries is None:
            return GONE
        record = self.states.triggers.get(identity)
        try:
            if record is not None:
                await self.triggers.suspend(identity)
        except statuses.EXPECTED as error:
            log.info("%s %s is delivered still: %s", self.family.trigger, identity, error)
            return BACK_OFF
        self._enqueue_suspended(identity)
        if record is not None and record.broker is not None:
            self._enqueue_channel(record.broker)
        requeue_after = self.entries.requeue_after(identity)
        return GONE if requeue_after is None else requeue_after

    def _enqueue_suspended(self, identity: Identity) -> None:
        """Enqueue the Subscriptions that waited for the end of the delivery under this name."""
        if self.entries is None:
            return
        for waiting in self.entries.release_name(identity):
            self.queue.enqueue((self.family.trigger, *waiting))
        subscription = self.entries.known(identity)
        if subscription is not None and "deletionTimestamp" not in subscription["metadata"]:
            # The Subscription was recreated meanwhile.
            self.states.declared.pop((self.family.trigger, *identity), None)
            self._on_subscriptions_changed([identity])

    def on_broker(self, document: Document, *, gone: bool) -> None:
        """Handle a Broker or channel that has changed or was deleted; enqueue it, and its Triggers
        if needed."""
        identity, is_ours = Identity.of(document), self.brokers.is_ours(document)
        self.remember_class(document, gone=gone)
        if gone:
            self.brokers.drop(document)
        elif is_ours:
            self.brokers.remember_topic(document)
        # Triggers that were seen before their foreign Broker were taken for ours.
        if self._enqueue_if_changed(document, gone=gone) and (gone or not is_ours):
            self.wake_triggers(identity)

    def on_trigger(self, document: Document, *, gone: bool) -> None:
        """Handle a Trigger that has changed or was deleted; enqueue it unless only its status has
        changed."""
        identity = Identity.of(document)
        if gone:
            self.states.mark_trigger_gone(identity)
        else:
            self.states.store_trigger(document)
        record = self.states.triggers.get(identity)
        if (
            self._enqueue_if_changed(document, gone=gone)
            and record is not None
            and record.watched is not None
        ):
            # A user may have reset the group's offsets, and annotated the Trigger so that this is
            # noticed at once.
            record.watched.kafka.topics.forget_group(record.watched.egress.group)

    def _enqueue_if_changed(self, document: Document, *, gone: bool) -> bool:
        """Enqueue an object if more than its status has changed; returns whether it has."""
        key, current = (
            (document["kind"], *Identity.of(document)),
            None if gone else without_status(document),
        )
        previous = self.states.declared.pop(key, None)
        if current is not None:
            self.states.declared[key] = current
        if current is not None and current == previous:
            return False
        self.queue.enqueue(key)
        return True

    def on_service(self, document: Document) -> None:
        """Enqueue the owners of a changed Knative Service, and the Triggers that refer to it."""
        namespace, name = Identity.of(document)
        for owner in document["metadata"].get("ownerReferences") or ():
            self.queue.enqueue((owner["kind"], namespace, owner["name"]))
        for trigger in self.states.subscribers.get(Identity(namespace, name), ()):
            self.queue.enqueue((self.family.trigger, *trigger))

    def on_policies(self, changed: Sequence[Document], gone: Sequence[Document]) -> None:
        """Update the EventPolicies that have changed, and enqueue the owners of receivers in their
        namespaces."""
        namespaces = self.states.policies.update(changed, gone)
        self._enqueue_receivers_owners(lambda broker: broker.namespace in namespaces)

    def on_policies_known(self, known: bool) -> None:
        """Record whether all EventPolicies are known; a change enqueues all owners of receivers."""
        if self.states.policies.is_known != known:
            self.states.policies.is_known = known
            self._enqueue_receivers_owners(lambda broker: known)

    def _enqueue_receivers_owners(self, is_affected: Callable[[Identity], bool]) -> None:
        """Enqueue the Brokers, channels and KafkaSinks for which `is_affected` is true."""
        for family_operator in self.all_operators:
            for identity in filter(is_affected, list(family_operator.states.brokers)):
                self.queue.enqueue((family_operator.family.broker, *identity))
        for identity in filter(
            is_affected, list(self.sinks.records) if self.sinks is not None else ()
        ):
            self.queue.enqueue((KAFKA_SINK, *identity))

    def on_receiver(self, pod: Document, *, new: bool = True, gone: bool = False) -> None:
        """Record that a receiver's pod exists or, with `gone`, was deleted. A `new` pod means that
        an event is on its way: open drains of the Broker's Triggers."""
        state = self.states.track_receiver_pod(pod, gone=gone)
        if state is not None and new and not gone:
            state.kafka.scaler.prewarm(state.topic.name, PREWARM_LIMIT)

    def _used_kafkas(self) -> set[KafkaCluster]:
        """Return the Kafka clusters that any object uses now; the others' clients may be closed."""
        used = set[KafkaCluster]().union(
            *(reconciler.states.kafkas() for reconciler in self.delivering_kinds)
        )
        return used if self.sinks is None else used | self.sinks.used_kafkas()

    @property
    def delivering_kinds(self) -> Sequence[Triggers]:
        """Return the reconcilers of all kinds that deliver events: Triggers, Subscriptions,
        KafkaSources."""
        triggers = [family_operator.triggers for family_operator in self.all_operators]
        return triggers if self.sources is None else [*triggers, self.sources]

    def wake_triggers(self, broker: Identity) -> None:
        """Enqueue the Triggers and Sensors of a Broker."""
        for identity in self.states.triggers_of(broker):
            self.queue.enqueue((self.family.trigger, *identity))
        self._wake_sensors(broker)

    def _wake_sensors(self, broker: Identity) -> None:
        if self.sensors is not None:
            for identity in self.sensors.states.sensors_on(Bus(self.family, broker)):
                self.queue.enqueue((SENSOR, *identity))
