"""Triggers: from what is declared to a dispatcher that is woken when events wait for it.

    observe (Broker, sinks, dependency) -> decide (`decide.trigger`) -> act, in that order

While a change is rolled out the Revision before it delivers, for as long as the new one isn't
Ready: a function that can't start stops nobody. From the moment the Trigger is Ready for its new
generation every event meets what is declared then; until then an event may still meet what was
declared before. Where a subscriber can't be resolved, or the topic is another one, nothing drains:
events wait in Kafka.

Not here: hearing of changes (`handlers`), Brokers (`brokers`), how many drains (`scaler`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from knafka.core import names
from knafka.core.contract import Sink
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.decide import admission, desired, services
from knafka_operator.decide import status as statuses
from knafka_operator.decide import trigger as deciding
from knafka_operator.decide.delivery_status import delivering, scaling
from knafka_operator.decide.effects import (
    ApplyDispatcher,
    AwaitReplacement,
    ClaimGroup,
    CommitOffsets,
    DeleteFunctions,
    DeleteGroup,
    Effect,
    PromiseGroup,
    PublishStatus,
    StartDelivery,
    StopDelivery,
)
from knafka_operator.decide.resolving import not_allowed
from knafka_operator.decide.scaling import TriggerStatus
from knafka_operator.decide.status import EXPECTED, SUBSCRIPTION_READY, NotReady
from knafka_operator.decide.trigger import (
    DEAD_LETTER_TOPIC,
    ObservedTrigger,
)
from knafka_operator.model.cluster import Cluster, Document, NotAllowed
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import (
    CORE,
    EVENTING,
    GROUP_STATUS,
    START,
    Destination,
    Resource,
    Trigger,
)
from knafka_operator.model.settings import Settings
from knafka_operator.reconcile.brokers import Brokers
from knafka_operator.reconcile.destinations import observe_sink
from knafka_operator.reconcile.functions import apply_service, delete_service
from knafka_operator.reconcile.state import (
    BrokerState,
    States,
    TriggerRecord,
    Watched,
    broker_of,
    group_in_status,
)
from knafka_operator.scale.kafka_clusters import KafkaCluster


@dataclass(slots=True)
class _Acting:
    """A Trigger while its effects run."""

    document: Document
    record: TriggerRecord
    broker: BrokerState | None = None
    watched: Watched | None = None
    """What is to be delivered."""
    annotations: dict[str, str | None] = field(default_factory=dict)
    """Of the status that will be written."""
    revision: str = ""
    """The dispatcher's that is Ready."""

    @property
    def identity(self) -> Identity:
        return Identity.of(self.document)


@dataclass(eq=False)
class Triggers:
    """All Triggers of Brokers that are ours."""

    settings: Settings
    cluster: Cluster
    brokers: Brokers
    states: States
    now: Callable[[], str]
    """The time, RFC 3339."""

    @property
    def watched(self) -> dict[Identity, Watched]:
        """Every Trigger that is delivered to."""
        records = self.states.triggers.items()
        return {who: each.watched for who, each in records if each.watched is not None}

    async def reconcile(self, document: Document) -> Mapping[str, Any] | None:
        """Reconcile one Trigger; return its new status. Raises `ClusterError`.

        None: it is another implementation's, or not known yet to be ours; nothing was written.
        """
        identity, record = Identity.of(document), self.states.trigger(document)
        broker = self.states.brokers.get(broker_of(document))
        if broker is not None and broker.stopped is not None:
            for stopping in deciding.STOP:
                await self.run(stopping, _Acting(document, record))
        seen = await self._observe(document)
        if seen.stored_broker is not None:
            if not self.brokers.is_ours(seen.stored_broker):
                await self.leave(document)
                return None
            if seen.watched is not None and not (broker is not None and broker.reconciled):
                # It was resumed, and its Broker's turn is to come, which wakes it: until then what
                # its status says is the best that is known.
                return None
        taken = desired.OthersNames(self.states.groups, record.uid)
        decision = deciding.decide(seen, taken, self.settings)
        annotations = decision.status["annotations"]
        acting = _Acting(document, record, seen.broker, decision.watched, annotations)
        for effect in decision.effects:
            try:
                await self.run(effect, acting)
            except EXPECTED as error:
                decision.conditions.fail(SUBSCRIPTION_READY, error)
                break
        scaled = self.status(identity)
        annotations.update(scaling(scaled))
        if scaled is not None:
            decision.conditions.set(delivering(scaled))
        before = document.get("status") or {}
        conditions = decision.conditions.conditions(before.get("conditions") or (), self.now())
        status = {**decision.status, "conditions": conditions}
        await self.run(PublishStatus(statuses.changes(before, status)), acting)
        return status

    async def leave(self, document: Document) -> None:
        """Its Broker is another implementation's: deliver nothing, and take our status back."""
        acting = _Acting(document, self.states.trigger(document))
        for effect in deciding.leave(document):
            await self.run(effect, acting)

    async def delete(self, document: Document) -> None:
        """Delete its group; its dead letters stay.

        Raises `LogError` while drains go on, `NotReady` while it isn't known where its Kafka is.
        """
        identity = Identity.of(document)
        await self.stop_delivery(identity)
        if group := group_in_status(document):
            broker, record = broker_of(document), self.states.triggers.get(identity)
            state, of_broker = self.states.broker_state(broker), self.states.brokers.get(broker)
            kafka = state.kafka if state else record.kafka if record else None
            kafka = kafka or (of_broker.kafka if of_broker else None)
            if kafka is not None:
                await kafka.topics.delete_group(group)
            elif await self.cluster.get(EVENTING, "Broker", *broker) is not None:
                raise NotReady("BrokerNotConfigured", f"Broker {broker.name} has no topic yet")
        self.forget(document)

    def forget(self, document: Document) -> None:
        """It is gone, whatever is left of it in Kafka."""
        self.states.drop_trigger(Identity.of(document))

    def status(self, identity: Identity) -> TriggerStatus | None:
        """What the scaler knows of it; None: it isn't scaled."""
        record = self.states.triggers.get(identity)
        watched = record.watched if record is not None else None
        return watched.kafka.scaler.status(str(identity)) if watched else None

    async def resume(self, trigger: Document, watched: Watched) -> None:
        """Deliver what a Service of this Trigger's says, before it is reconciled."""
        self.states.claim_group(self.states.trigger(trigger), watched.egress.group)
        await self.deliver(Identity.of(trigger), watched)

    async def deliver(self, identity: Identity, watched: Watched) -> None:
        """Deliver so from now on; returns when drains of what was before are over."""
        record = self.states.triggers.get(identity)
        if record is None:
            return  # it went meanwhile
        name = names.child(identity.name, services.DISPATCHER_SUFFIX)
        self.states.urls[str(identity)] = services.url(name, identity.namespace, self.settings)
        before = record.watched
        if before is not None and before.kafka is not watched.kafka:
            await self.stop_delivery(identity)
        record.watched, record.kafka = watched, watched.kafka
        watched.kafka.watched.add(watched.egress.topic)
        await watched.kafka.scaler.watch(str(identity), watched.egress, watched.autoscaling)

    async def stop_delivery(self, identity: Identity) -> None:
        """Deliver nothing for now; returns when its drains are over."""
        record = self.states.triggers.get(identity)
        watched = record.watched if record is not None else None
        if record is None or watched is None:
            return
        record.watched = None
        await watched.kafka.scaler.forget(str(identity))
        topic = watched.egress.topic
        if not watched.kafka.scaler.has_triggers(topic):
            watched.kafka.watched.discard(topic)
        if record.gone and record.watched is None:
            self.states.drop_trigger(identity)

    # Observe.

    async def _observe(self, document: Document) -> ObservedTrigger[KafkaCluster]:
        """Raises `ClusterError`."""
        identity, broker = Identity.of(document), broker_of(document)
        record = self.states.trigger(document)
        try:
            trigger = parse(Trigger, document)
        except InvalidDocument as error:
            return ObservedTrigger(document, error, watched=record.watched)
        state, of_broker = self.states.broker_state(broker), self.states.brokers.get(broker)
        stored = None if state else await self.cluster.get(EVENTING, "Broker", *broker)
        if stored is not None and not self.brokers.is_ours(stored):
            return ObservedTrigger(document, trigger, stored_broker=stored)
        sink = desired.dead_letter_destination(trigger, state.broker) if state else None
        self._refer(identity, trigger.spec.subscriber, sink)
        return ObservedTrigger(
            document,
            trigger,
            broker=state,
            stored_broker=stored,
            stopped=of_broker.stopped if of_broker else None,
            dependency=await self._dependency(trigger),
            subscriber=await self._sink(trigger.spec.subscriber, identity.namespace),
            dead_letter_sink=await self._sink(sink, identity.namespace) if sink else None,
            watched=record.watched,
            replaced=record.replaced,
        )

    def _refer(self, identity: Identity, *destinations: Destination | None) -> None:
        """Have changes of these lead to this Trigger, and of nothing else."""
        self.states.refer_to_nothing(identity)
        for each in destinations:
            if each is not None and each.ref is not None:
                namespace = each.ref.namespace or identity.namespace
                self.states.refer(identity, Identity(namespace, each.ref.name))

    async def _sink(self, destination: Destination, namespace: str) -> Sink | KnafkaError:
        domain = self.settings.cluster_domain
        return await observe_sink(self.cluster, destination, namespace, domain)

    async def _dependency(self, trigger: Trigger) -> Document | KnafkaError | None:
        """KN-TRG-13: the object that its annotation names."""
        try:
            reference = admission.dependency(trigger.metadata)
        except InvalidDocument:
            return None  # which is decided upon
        if reference is None:
            return None
        named = (
            reference.api_version, reference.kind, trigger.metadata.namespace, reference.name,
        )  # fmt: skip
        try:
            return await self.cluster.get(*named)
        except NotAllowed:
            return not_allowed(*named)

    # Act.

    async def run(self, effect: Effect, acting: _Acting) -> None:
        """Run one effect; raises `EXPECTED` and `ClusterError`."""
        identity, record, state = acting.identity, acting.record, acting.broker
        match effect:
            case StopDelivery():
                await self.stop_delivery(identity)
            case DeleteFunctions():
                await self._delete_functions(acting.document)
            case ClaimGroup(group) if state is not None:
                self.states.claim_group(record, group)
                record.kafka = state.kafka
            case DeleteGroup(group) if state is not None:
                await state.kafka.topics.delete_group(group)
            case CommitOffsets(group, topic, start) if state is not None:
                await state.kafka.topics.ensure_committed(group, topic, start)
                declared = (acting.document["metadata"].get("annotations") or {}).get(START)
                if declared is not None and group_in_status(acting.document) != group:
                    acting.annotations[START] = declared
            case PromiseGroup(group, dead_letter_topic):
                promise = {GROUP_STATUS: group, DEAD_LETTER_TOPIC: dead_letter_topic}
                if group_in_status(acting.document) != group:
                    await self.cluster.write_status(acting.document, {"annotations": promise})
                acting.annotations.update(promise)
            case ApplyDispatcher(manifest):
                owner = parse(Trigger, acting.document)
                acting.revision = await apply_service(self.cluster, manifest, owner)
            case StartDelivery(replaces):
                await self._start(acting, replaces=replaces)
            case AwaitReplacement(service):
                await self._until_replaced(identity, service, acting.revision)
                record.replaced = False
            case PublishStatus(patch):
                if patch:
                    await self.cluster.write_status(acting.document, patch)
            case _:
                raise TypeError(f"no effect of a Trigger's: {effect}")

    async def _start(self, acting: _Acting, *, replaces: bool) -> None:
        watched, broker = acting.watched, broker_of(acting.document)
        assert watched is not None
        if self.states.broker_state(broker) is None:
            message = f'Broker "{broker.name}" is being deleted'
            raise NotReady("BrokerDoesNotExist", message)
        acting.record.replaced = replaces
        await self.deliver(acting.identity, watched)

    async def _until_replaced(self, identity: Identity, service: str, revision: str) -> None:
        """Raise `NotReady` while pods of an older Revision, which drain unasked, run.

        A pod that is asked to end runs on for half a minute and more: Knative waits for requests
        that are late.
        """
        labels = {"serving.knative.dev/service": service}
        older = {
            each["metadata"]["labels"].get("serving.knative.dev/revision", "")
            for each in await self.cluster.list(CORE, "Pod", labels)
            if each["metadata"]["namespace"] == identity.namespace and _runs(each)
        } - {revision}
        if older:
            message = f"pods of the Revision before it still deliver: {', '.join(sorted(older))}"
            raise NotReady("OldRevisionDelivers", message, transient=True)

    async def _delete_functions(self, document: Document) -> None:
        """Also those of a Trigger that can't be read."""
        of = parse(Resource, {key: document[key] for key in ("apiVersion", "kind", "metadata")})
        for name in (services.dispatcher_name(of), services.replayer_name(of)):
            await delete_service(self.cluster, name, of)


def _runs(pod: Document) -> bool:
    """Whether the function in it does; Knative's proxy beside it stays longer."""
    statuses_ = (pod.get("status") or {}).get("containerStatuses") or ()
    return any("running" in each["state"] for each in statuses_ if each["name"] != "queue-proxy")
