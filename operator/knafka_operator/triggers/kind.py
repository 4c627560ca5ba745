"""Triggers: gives each declared Trigger a dispatcher that is woken when events wait for it.

    observe (Broker, sinks, dependency) -> decide (`triggers.decide`) -> act, in that order

During a rollout the previous Revision delivers until the new one is Ready, so a function that can't
start interrupts nothing. Once the Trigger is Ready for its new generation, every event is handled
by the new declaration; until then by either. If a subscriber can't be resolved, or the topic has
changed, nothing drains: events wait in Kafka.

Not here: when a Trigger is reconciled (`engine.controller`), Brokers (`brokers.kind`), the number
of drains, which are leases by which a dispatcher's pods deliver (`scaler`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.decisions.effects import AwaitReplacement, Effect
from knafka_operator.decisions.status import ConditionSet, NotReady
from knafka_operator.decisions.steps import Step
from knafka_operator.dispatchers.conditions import delivering_condition, scaling_annotations
from knafka_operator.dispatchers.dead_letter_monitor import DeadLetterMonitor
from knafka_operator.dispatchers.shard_services import Shards
from knafka_operator.engine.effects import Effects, resource_of
from knafka_operator.engine.kind import BrokerReconciler, Kind, Neighbours, Reconciler
from knafka_operator.engine.work_queue import Requeue
from knafka_operator.functions import dispatcher_services, services
from knafka_operator.functions.applying import delete_service
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import desired
from knafka_operator.kafka.clusters import KafkaCluster
from knafka_operator.kafka.shards import DISPATCHER_KEY
from knafka_operator.model.cluster import Cluster, Document, status_annotations
from knafka_operator.model.family import CHANNELS, is_of_kafka_channel
from knafka_operator.model.identity import Identity, Key
from knafka_operator.records.ownership import GroupOwnership
from knafka_operator.records.state import States, TriggerRecord, Watched, broker_of, group_in_status
from knafka_operator.scale.decide import ScalingStatus
from knafka_operator.triggers import decide as deciding
from knafka_operator.triggers import leaving
from knafka_operator.triggers.decide import TriggerDecision
from knafka_operator.triggers.delivery_effects import own_services, stop_effects
from knafka_operator.triggers.observe import TriggerObserver
from knafka_operator.triggers.observed import ObservedTrigger

log = logging.getLogger(__name__)

Observed = ObservedTrigger[KafkaCluster]
Decision = TriggerDecision[KafkaCluster]


@dataclass(eq=False)
class Triggers(Reconciler[Observed, Decision, TriggerRecord], Kind):
    """Reconciles all Triggers of Brokers that Knafka serves."""

    settings: Settings
    cluster: Cluster
    brokers: BrokerReconciler[Any, Any]
    """The reconciler of the Brokers or channels of these objects."""
    shards: Shards
    states: States
    observer: TriggerObserver
    dead_letters: DeadLetterMonitor
    effects: Effects
    now: Callable[[], str]
    """Returns the time, RFC 3339."""
    enqueue: Callable[[Key], None]
    """Makes an object due for reconciliation."""
    neighbours: Neighbours = field(init=False)
    """The operator, which knows the Brokers of these objects."""

    def __post_init__(self) -> None:
        self.api_version = self.states.family.trigger_version
        self.own = GroupOwnership(self.cluster, self.states)
        """Decides which consumer groups are a Trigger's own."""

    @property
    def watched(self) -> dict[Identity, Watched]:
        """The delivery of each delivered Trigger."""
        records = self.states.triggers.items()
        return {
            identity: record.watched for identity, record in records if record.watched is not None
        }

    def on_change(self, document: Document, *, gone: bool) -> Collection[Key]:
        """Pass the change to the operator, which enqueues the objects that depend on it."""
        self.neighbours.on_change(document, gone=gone)
        return ()

    def is_ours(self, document: Document) -> bool:
        """Whether no other implementation is known to serve the Trigger's Broker. False for a
        Subscription that names no KafkaChannel."""
        if self.states.family is CHANNELS and not is_of_kafka_channel(document):
            return False
        return broker_of(document) not in self.states.foreign_brokers

    async def needs_finalizer(self, document: Document) -> bool:
        """Whether the Trigger's Broker exists and is served by Knafka."""
        family = self.states.family
        broker = await self.cluster.get(family.broker_version, family.broker, *broker_of(document))
        return broker is not None and self.brokers.is_ours(broker)

    async def on_absent(self, identity: Identity) -> Requeue:
        """Suspend a Trigger that doesn't exist, temporarily or for good; returns when to reconcile
        it again."""
        return await self.neighbours.suspend_absent(identity)

    async def forget(self, document: Document) -> None:
        """End the delivery of a deleted Trigger (`abandon`), then drop its record."""
        await self.abandon(Identity.of(document))
        self.neighbours.forget(document)

    def ensure_record(self, document: Document) -> TriggerRecord:
        """Return the Trigger's record, creating it if needed."""
        return self.states.ensure_trigger(document)

    async def observe(self, document: Document, record: TriggerRecord) -> Observed | None:
        """Read everything that a Trigger's decision needs. Delivery stops first if the Broker may
        not use its topic. None: another implementation serves the Broker, so the Trigger was handed
        over; or the Trigger was resumed, and its Broker hasn't been reconciled yet."""
        broker = self.states.brokers.get(broker_of(document))
        if broker is not None and broker.stopped is not None:
            await self._run_stop_effects(_unread_trigger(document), record)
        observed = await self.observer.observe(document)
        if observed.stored_broker is not None:
            if not self.brokers.is_ours(observed.stored_broker):
                await self.hand_over(document)
                return None
            if observed.watched is not None and not (broker is not None and broker.reconciled):
                # The Trigger was resumed, and its Broker's first reconciliation, which enqueues it,
                # is still to come: keep the stored status until then.
                return None
        if observed.broker is not None:
            await self.own.claim_if_proved(
                document, record, self._groups_of_others(record), observed.broker
            )
            foreign = await self.own.find_foreign_groups(document, observed.broker)
            observed = replace(observed, foreign_groups=foreign)
        return observed

    def _groups_of_others(self, record: TriggerRecord) -> desired.NamesOfOthers:
        """Return the consumer groups that other Triggers have claimed."""
        return desired.NamesOfOthers(self.states.groups, record.uid)

    def decide(self, observed: Observed, record: TriggerRecord) -> Decision:
        """Decide what to do, reserve group, min-scale and shard place, record the isolation."""
        observed = self.observer.with_min_scales(observed, record)
        others = self._groups_of_others(record)
        names_of_others = replace(others, applications=observed.foreign_groups)
        decision = deciding.decide(observed, names_of_others, self.settings)
        if decision.watched is not None and not observed.acted:
            # Not only by the effect: by then another Trigger may have chosen the same group.
            group, document = decision.watched.egress.group, observed.document
            self.states.claim_group(self.states.ensure_trigger(document), group)
            self.shards.reserve(broker_of(document), decision.watched)
            record.granted_min_scale = decision.watched.autoscaling.min_scale
            record.chosen_isolation = decision.chosen_isolation
        return decision

    async def run_effects(
        self, effects: Iterable[Effect], observed: Observed, record: TriggerRecord
    ) -> Observed:
        """Run the effects, and return the observation marked as `acted`: the next decision is then
        only about the status, and asks for no effects."""
        return replace(await super().run_effects(effects, observed, record), acted=True)

    def status_of(
        self, observed: Observed, decision: Decision, record: TriggerRecord
    ) -> Mapping[str, Any]:
        """Return the last decision's status, with scaling, dead letters and roll-outs."""
        document, conditions, status = observed.document, decision.conditions, decision.status
        family, identity = self.states.family, Identity.of(document)
        scaling = self.scaling_status(identity)
        status["annotations"].update(scaling_annotations(scaling))
        if scaling is not None:
            conditions.set(delivering_condition(scaling))
        self.dead_letters.add_to_status(document, conditions, status["annotations"])
        namespace = services.function_namespace(family, identity, self.settings)
        dispatcher = Identity(namespace, dispatcher_services.dispatcher_name(family, identity))
        self.states.rolls.add_condition(conditions, dispatcher)
        conditions, status = self.translate_to_kind(observed, conditions, status)
        return {**status, "conditions": self.conditions(observed, conditions)}

    def translate_to_kind(
        self, observed: Observed, conditions: ConditionSet, status: dict[str, Any]
    ) -> tuple[ConditionSet, dict[str, Any]]:
        """Return a Trigger's conditions and status, unchanged. Kinds that are reconciled like a
        Trigger, such as Subscriptions, override this method, and rename conditions and fields."""
        return conditions, status

    async def hand_over(self, document: Document) -> None:
        """Hand over a Trigger whose Broker another implementation serves: stop its delivery, delete
        its functions, and remove our part of its status. Its group stays, as the other
        implementation uses it. Raises `KnafkaError` if any of that fails."""
        observed, record = _unread_trigger(document), self.states.ensure_trigger(document)
        if DISPATCHER_KEY in status_annotations(document):
            await self.stop_delivery(Identity.of(document))
            await self._delete_functions(document)
        # Not `self.run_effects`, which marks the observation for a decision that isn't made here.
        observed_after = await super().run_effects(
            leaving.effects_of_leaving(document), observed, record
        )
        if observed_after.failure is not None:
            raise observed_after.failure

    async def delete(self, document: Document) -> None:
        """Delete a Trigger's functions and consumer group (`_delete_group`); its dead letters stay.
        Raises `LogError` while drains go on, and the errors of `_delete_group`."""
        identity = Identity.of(document)
        await self.stop_delivery(identity)
        # Delete functions before the group: pods of min-scale drain without requests, and are
        # members until they end. Functions in the operator's namespace have no owner that deletes
        # them.
        await self._delete_functions(document)
        if group := group_in_status(document, self.states.naming):
            await self._delete_group(group, identity, broker_of(document))
        self.drop(document)

    async def _delete_group(self, group: str, trigger: Identity, broker: Identity) -> None:
        """Delete a Trigger's consumer group. It stays if another object's status names it, or if
        its Kafka can't be found because the Broker is gone. Raises `LogError`, `ClusterError`,
        `InvalidDocument`, and `NotReady` while the Broker exists and its Kafka isn't known."""
        # After a crash of the operator, a Trigger that was never delivered may be in the contract.
        await self.shards.withdraw(broker, [group])
        family, kafka = self.states.family, self._known_kafka(trigger, broker)
        kind = family.broker_version, family.broker
        stored = None if kafka else await self.cluster.get(*kind, *broker)
        if stored is not None:
            kafka = await self.brokers.connect_without_config(stored)
        if await self.own.is_claimed(trigger, group):
            log.warning("group %s is not deleted: another status names it, too", group)
        elif kafka is not None:
            await kafka.topics.delete_group(group)
        elif stored is not None:
            message = f"{family.broker} {broker.name} has no topic yet"
            raise NotReady(f"{family.short_name}NotConfigured", message)

    def _known_kafka(self, trigger: Identity, broker: Identity) -> KafkaCluster | None:
        """Return the Kafka with a Trigger's group, from the records in memory: by its Broker's
        state, else as last used; None: not known."""
        state, broker_record = self.states.broker_state(broker), self.states.brokers.get(broker)
        if state is not None:
            return state.kafka
        record = self.states.triggers.get(trigger)
        last_used = None if record is None else record.kafka
        return last_used or (None if broker_record is None else broker_record.kafka)

    def drop(self, document: Document) -> None:
        """Drop the record of a Trigger that is gone; stops nothing and deletes nothing in Kafka."""
        self.states.drop_trigger(Identity.of(document))

    def scaling_status(self, identity: Identity) -> ScalingStatus | None:
        """Return the scaler's status of a Trigger; None: it isn't scaled."""
        record = self.states.triggers.get(identity)
        watched = record.watched if record is not None else None
        family = self.states.family
        return watched.kafka.scaler.status(family.trigger_id(identity)) if watched else None

    async def resume(self, trigger: Document, watched: Watched) -> None:
        """Resume the delivery that a Trigger's Service describes, before it is reconciled."""
        self.states.claim_group(self.states.ensure_trigger(trigger), watched.egress.group)
        await self.deliver(Identity.of(trigger), watched)

    async def deliver(self, identity: Identity, watched: Watched) -> None:
        """Start the delivery `watched` of a Trigger, unless it was deleted; returns once the
        previous drains have ended."""
        record = self.states.triggers.get(identity)
        if record is None:
            return
        place, broker, family = watched.place, watched.broker, self.states.family
        trigger_id = family.trigger_id(identity)
        # Set the URLs of the shard and of the own dispatcher, to which the scaler sends requests.
        if place is not None:
            url = self._url(dispatcher_services.shard_name(family, broker, place.number), broker)
            self.states.set_shard_url(broker, place.shard.group, url)
        own_dispatcher = dispatcher_services.dispatcher_name(family, identity)
        self.states.urls[trigger_id] = self._url(own_dispatcher, identity)
        previous = record.watched
        if previous is not None and previous.kafka is not watched.kafka:
            await self.stop_scaling(identity)
        record.watched, record.kafka = watched, watched.kafka
        watched.kafka.watched.update(watched.egress.topics)
        shard = place.shard if place else None
        await watched.kafka.scaler.watch(trigger_id, watched.egress, watched.autoscaling, shard)

    def _url(self, service: str, owner: Identity) -> str:
        """Return the URL of the Knative Service `service`, a function of the Trigger or Broker
        `owner`."""
        namespace = services.function_namespace(self.states.family, owner, self.settings)
        return services.service_url(service, namespace, self.settings)

    async def stop_delivery(self, identity: Identity) -> None:
        """Withdraw a Trigger from its shard and stop scaling it; returns once its drains have ended
        and no shard delivers it. Its functions, group and record stay.

        Raises `LogError`, and `NotReady` while a shard still has it.
        """
        record = self.states.triggers.get(identity)
        if record is None:
            return
        brokers, groups = {record.broker}, set(record.groups)
        if record.watched is not None:
            # Both may be other ones if the Trigger has moved, or was created again, since.
            brokers.add(record.watched.broker)
            groups.add(record.watched.egress.group)
        for broker in filter(None, brokers):
            await self.shards.withdraw(broker, groups)
        await self.stop_scaling(identity)

    async def suspend(self, identity: Identity) -> None:
        """Stop the delivery of a Trigger that doesn't exist, delete its functions and mark its
        record as gone; its group stays, as the Trigger may come back. Raises `LogError`,
        `ClusterError`, and `NotReady` while a shard still has it."""
        document = self.states.triggers[identity].document
        await self.stop_delivery(identity)
        if document is not None:
            await self._delete_functions(document)
        self.states.mark_trigger_gone(identity)

    async def abandon(self, identity: Identity) -> None:
        """Stop the delivery of a Trigger that is gone, without raising `KnafkaError`: if it can't
        be withdrawn from its shard, only scaling stops, with a warning. Deletes no functions."""
        try:
            await self.stop_delivery(identity)
        except KnafkaError as error:
            kind = self.states.family.trigger
            log.warning("%s %s is gone, and its shard may deliver it: %s", kind, identity, error)
            await self.stop_scaling(identity)

    async def stop_scaling(self, identity: Identity) -> None:
        """Remove a Trigger from the scaler; returns once its drains have ended. A shard may still
        deliver it."""
        record = self.states.triggers.get(identity)
        if record is None or (watched := record.watched) is None:
            return
        record.watched = record.subscribed = None
        await watched.kafka.scaler.forget(self.states.family.trigger_id(identity))
        for topic in watched.egress.topics:
            watched.kafka.unwatch(topic)
        # A new delivery may have begun while the drains ended.
        if record.gone and record.watched is None:
            self.states.drop_trigger(identity)

    # Effects.

    def kafka_of(self, observed: Observed, record: TriggerRecord) -> KafkaCluster | None:
        """Return the Kafka of the Trigger's Broker; None: the Broker has no topic yet."""
        return None if observed.broker is None else observed.broker.kafka

    async def follow_up(
        self, effect: Effect, observed: Observed, record: TriggerRecord
    ) -> Observed:
        """Record after an effect which pods have ended."""
        if isinstance(effect, AwaitReplacement):
            record.may_have_old_pods = False
        elif effect.step is Step.DELETE_FUNCTIONS and record.watched is None:
            record.granted_min_scale = 0
        return observed

    async def start_delivery(
        self, document: Document, watched: Watched, *, replaces: bool
    ) -> ScalingStatus | None:
        """Start the delivery `watched`; returns the scaler's status once the previous drains have
        ended. `replaces`: pods of the previous delivery may still deliver. Raises
        `NotReady` if the Broker is being deleted."""
        identity = Identity.of(document)
        self.shards.active_record(broker_of(document))  # raises `NotReady` without one
        self.states.ensure_trigger(document).may_have_old_pods = replaces
        await self.deliver(identity, watched)
        return self.scaling_status(identity)

    async def end_delivery(self, document: Document) -> None:
        """Handle the effect `StopDelivery` (`stop_delivery`). Raises `LogError` and `NotReady`."""
        await self.stop_delivery(Identity.of(document))

    async def _run_stop_effects(self, observed: Observed, record: TriggerRecord) -> None:
        """Stop the delivery of a Trigger whose Broker may not use its topic, and delete its
        functions; a failure is logged."""
        effects = stop_effects(observed.document, self.settings)
        stopped = await super().run_effects(effects, observed, record)
        if stopped.failure is not None:
            kind, identity = self.states.family.trigger, Identity.of(observed.document)
            log.warning("%s %s could not be stopped: %s", kind, identity, stopped.failure)

    async def _delete_functions(self, document: Document) -> None:
        """Delete the Trigger's own Services, dispatcher and replayer, if they exist, and release
        its min-scale. Raises `ClusterError`."""
        owner = resource_of(document)
        for service in own_services(document, self.settings):
            await delete_service(self.cluster, service.name, owner, service.namespace)
        self.states.ensure_trigger(document).granted_min_scale = 0


def _unread_trigger(document: Document) -> Observed:
    """Return an observation of a Trigger that wasn't read, for effects that end its delivery."""
    return Observed(document, InvalidDocument("", "it was not read"))
