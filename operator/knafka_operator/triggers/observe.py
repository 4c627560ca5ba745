"""Observing: reads what the decision about a Trigger needs: its Broker, sinks, dependency and
contract; where reading fails, the error stands for the value.

Not here: the decision (`decide`), and running its effects (`engine.effects`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from knafka.core.contract import Sink
from knafka.core.errors import InvalidDocument, KnafkaError, LogError
from knafka_operator.decisions.resolving import not_allowed_error
from knafka_operator.decisions.sink_addresses import observe_sink
from knafka_operator.decisions.status import NotReady
from knafka_operator.dispatchers.conditions import declared_dependency
from knafka_operator.dispatchers.shard_services import Shards
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import egresses
from knafka_operator.kafka.clusters import KafkaCluster
from knafka_operator.kafka.desired import SensorActions
from knafka_operator.kafka.shards import SharedContract
from knafka_operator.model.cluster import Cluster, Document, NotAllowed
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import AUTOSCALING, Destination, Trigger
from knafka_operator.records.namespace_totals import granted_min_scale, min_scale_of_others
from knafka_operator.records.state import BrokerState, States, TriggerRecord, broker_of
from knafka_operator.scale.parsing import parse_off_loop, spec_size
from knafka_operator.triggers.observed import ObservedTrigger

MIN_SCALE_ANNOTATIONS: Final = (f"{AUTOSCALING}min-scale", f"{AUTOSCALING}class")
"""Annotations that may give a Trigger pods that always run."""


@dataclass(eq=False)
class TriggerObserver:
    """Reads everything that a Trigger's decision needs."""

    settings: Settings
    cluster: Cluster
    is_ours: Callable[[Document], bool]
    """Whether Knafka serves a Broker or channel."""
    shards: Shards
    states: States
    sensor_actions: Callable[[Document, BrokerState], Awaitable[SensorActions | KnafkaError | None]]
    """Reads the Sensor's actions that a Trigger delivers, from the Trigger and its Broker's state;
    None: the Trigger delivers its Broker's events."""

    async def observe(self, document: Document) -> ObservedTrigger[KafkaCluster]:
        """Read a Trigger and everything that its decision needs. Raises `ClusterError`."""
        identity, broker = Identity.of(document), broker_of(document)
        read_trigger = self.states.family.read_trigger
        try:
            trigger = await parse_off_loop(lambda: read_trigger(document), spec_size(document))
        except InvalidDocument as error:
            return ObservedTrigger(
                document, error, watched=self.states.ensure_trigger(document).watched
            )
        record = self.states.ensure_trigger(document)
        broker_record = self.states.brokers.get(broker)
        state = self.states.broker_state(broker)  # None: the Broker has no topic yet
        family = self.states.family
        kind = family.broker_version, family.broker
        stored = None if state else await self.cluster.get(*kind, *broker)
        if stored is not None and not self.is_ours(stored):
            return ObservedTrigger(document, trigger, stored_broker=stored)
        observed = ObservedTrigger(
            document,
            trigger,
            broker=state,
            stored_broker=stored,
            stopped=broker_record.stopped if broker_record else None,
            watched=record.watched,
            may_have_old_pods=record.may_have_old_pods,
            contract=await self._read_contract(broker) if state else None,
            actions=await self.sensor_actions(document, state) if state else None,
        )
        observed = await self.with_destinations(observed, identity)
        # Read last, as it may change during the calls above.
        return replace(observed, chosen_isolation=record.chosen_isolation)

    async def with_destinations(
        self, observed: ObservedTrigger[KafkaCluster], identity: Identity
    ) -> ObservedTrigger[KafkaCluster]:
        """Return `observed`, whose `trigger` must be valid, with the Trigger's destinations and its
        dependency. Raises `ClusterError`."""
        trigger, state = observed.trigger, observed.broker
        assert isinstance(trigger, Trigger)
        namespace, subscriber = identity.namespace, trigger.spec.subscriber
        sink = egresses.dead_letter_destination(trigger, state.broker) if state else None
        reply = self.states.family.reply_of(observed.document)
        self._record_references(identity, subscriber, reply, sink)
        return replace(
            observed,
            dependency=await self._read_dependency(trigger),
            subscriber=await self._observe_sink(subscriber, namespace),
            dead_letter_sink=await self._observe_sink(sink, namespace) if sink else None,
            reply=await self._observe_sink(reply, namespace) if reply else None,
        )

    def with_min_scales(
        self, observed: ObservedTrigger[KafkaCluster], record: TriggerRecord
    ) -> ObservedTrigger[KafkaCluster]:
        """Return `observed` with the min-scales that the Trigger and its namespace's other Triggers
        have now; unchanged if the Trigger declares none. To be called by the decision, as others
        may get theirs at any `await`."""
        annotations = observed.document["metadata"].get("annotations") or {}
        if not any(annotation in annotations for annotation in MIN_SCALE_ANNOTATIONS):
            return observed
        others = min_scale_of_others(self.states, Identity.of(observed.document))
        return replace(
            observed, granted_min_scale=granted_min_scale(record), others_min_scale=others
        )

    async def _read_contract(self, broker: Identity) -> SharedContract | KnafkaError | None:
        """Return the contract of a Broker's shared dispatchers, None if it has none, or the error
        of reading it."""
        try:
            contract = await self.shards.load_contract(broker)
            return None if contract is None else contract.snapshot()
        except (LogError, NotReady) as error:
            return error

    def _record_references(self, identity: Identity, *destinations: Destination | None) -> None:
        """Record which objects a Trigger's destinations refer to now, so that changes of these
        objects enqueue the Trigger."""
        self.states.clear_references(identity)
        for destination in destinations:
            if destination is not None and destination.ref is not None:
                namespace = destination.ref.namespace or identity.namespace
                self.states.add_reference(identity, Identity(namespace, destination.ref.name))

    async def _observe_sink(self, destination: Destination, namespace: str) -> Sink | KnafkaError:
        """Return the address of a destination, or the error if it has none. Raises
        `ClusterError`."""
        return await observe_sink(self.cluster, destination, namespace, self.settings)

    async def _read_dependency(self, trigger: Trigger) -> Document | KnafkaError | None:
        """Return the object that a Trigger depends on (KN-TRG-13), or the error if the operator may
        not read it. None: the Trigger names no object, or the object doesn't exist."""
        try:
            reference = declared_dependency(trigger.metadata)
        except InvalidDocument:
            return None  # the decision reports the invalid annotation
        if reference is None:
            return None
        location = (
            reference.api_version, reference.kind, trigger.metadata.namespace, reference.name,
        )  # fmt: skip
        try:
            return await self.cluster.get(*location)
        except NotAllowed:
            return not_allowed_error(*location)
