"""Sensors: gives each declared Sensor its topics, a function, and the Triggers of its actions.

    observe (bus, topics, Triggers) -> decide (`sensors.decide`) -> act, until all is done

A Sensor's bus is a Broker or KafkaChannel that Knafka serves, as last observed. Its Triggers or
Subscriptions are reconciled by themselves (`triggers`), from the Sensor's status.

Not here: watching for changes (`engine.controller`), and decisions, which are pure functions
(`sensors.decide`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.decisions.effects import Annotate
from knafka_operator.decisions.status import EXPECTED, NotReady, is_ready, why_not_ready
from knafka_operator.engine.deletions import BeingDeleted
from knafka_operator.engine.effects import Effects, resource_of
from knafka_operator.engine.kind import BrokerReconciler, Kind, Reconciler, key_of
from knafka_operator.engine.work_queue import WorkQueue
from knafka_operator.functions import services
from knafka_operator.functions.applying import delete_service
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import desired
from knafka_operator.kafka.clusters import KafkaCluster, KafkaClusters
from knafka_operator.kafka.topic_creation import find_topic_to_delete
from knafka_operator.model.cluster import Cluster, Document, status_annotations
from knafka_operator.model.family import Family
from knafka_operator.model.identity import Identity, Key
from knafka_operator.model.resources import GROUP_STATUS, SERVING, Resource
from knafka_operator.model.sensors import (
    KNAFKA,
    SENSOR,
    SENSOR_NAME_KEY,
    TOPICS,
    Bus,
    Sensor,
    bus_of,
)
from knafka_operator.records.ownership import SensorOwnership, may_have_group, names_in_status
from knafka_operator.records.state import (
    BrokerRecord,
    BrokerState,
    SensorRecord,
    States,
    without_status,
)
from knafka_operator.scale.decide import Cause, ScalingStatus
from knafka_operator.scale.parsing import parse_off_loop, spec_size
from knafka_operator.sensors import decide as deciding
from knafka_operator.sensors import manifests as sensor_manifests
from knafka_operator.sensors.actions import owning_sensor
from knafka_operator.sensors.decide import ObservedSensor, SensorDecision, WatchedSensor
from knafka_operator.sensors.publishing import SensorPublishing
from knafka_operator.sensors.topics import candidate_names, recorded_topic

Observed = ObservedSensor[KafkaCluster]

UNIQUE_NAME_KEYS: Final = (GROUP_STATUS, *(name for name, _ in TOPICS.values()))
"""Keys of `status.annotations` whose values no other Sensor may have."""


@dataclass(eq=False)
class Sensors(Reconciler[Observed, SensorDecision, SensorRecord], Kind):
    """Reconciles all Sensors."""

    api_version = KNAFKA

    settings: Settings
    cluster: Cluster
    kafkas: KafkaClusters
    states: States
    """The states of Brokers, which also hold the records of Sensors."""
    effects: Effects
    now: Callable[[], str]
    """Returns the time, RFC 3339."""
    buses: dict[Family, BrokerReconciler[Any, Any]] = field(default_factory=dict)
    """The reconcilers of kinds that can be a bus, by family."""

    def __post_init__(self) -> None:
        self._own = SensorOwnership(self.states)
        self._seen_triggers: dict[Key, tuple[Document, str]] = {}
        """For each Trigger that a Sensor made: what it declared when last seen, and why it wasn't
        Ready (empty: it was)."""

    def note_trigger(self, trigger: Document, *, gone: bool) -> Key | None:
        """Note a Trigger that was seen or, with `gone`, deleted. Returns the key of the Sensor that
        made the Trigger if the Sensor must be reconciled: the Trigger is new or gone, or has a new
        declaration, readiness or reason. Otherwise returns None.

        The cache can't notice that, as it doesn't track lists, and a Sensor lists its Triggers.
        """
        key, sensor_name = key_of(trigger), owning_sensor(trigger)
        previous = self._seen_triggers.pop(key, None)
        if sensor_name is None:
            return None
        if not gone:
            seen = without_status(trigger), "" if is_ready(trigger) else why_not_ready(trigger)
            self._seen_triggers[key] = seen
            if seen == previous:
                return None
        return SENSOR, key[1], sensor_name

    def scaling_status(self, identity: Identity) -> ScalingStatus | None:
        """Return the scaler's status of a Sensor; None: it isn't scaled."""
        record = self.states.sensors.get(identity)
        if record is None or record.scaled is None:
            return None
        return record.scaled[0].scaler.status(record.id)

    def scaled_sensors(self) -> Mapping[Identity, tuple[ScalingStatus, Mapping[Cause, int]]]:
        """Return each scaled Sensor's status in the scaler, and how often it was woken by cause."""
        return {
            identity: (status, record.scaled[0].scaler.wakes(record.id))
            for identity, record in self.states.sensors.items()
            if record.scaled is not None and (status := self.scaling_status(identity)) is not None
        }

    async def publish(self, queue: WorkQueue) -> None:
        """Write lag, drains and held events of each Sensor into its status, until cancelled."""
        await SensorPublishing(self.cluster, self.states, queue).run()

    def remember(self, document: Document) -> SensorRecord:
        """Record a Sensor's bus, and claim its topics and group; returns its record."""
        record = self.states.ensure_sensor(document, bus_of(document))
        self.states.claim_sensor_names(record, names_in_status(document))
        return record

    def ensure_record(self, document: Document) -> SensorRecord:
        """Return the Sensor's record, created or updated (`remember`), before it is observed."""
        return self.remember(document)

    def decide(self, observed: Observed, record: SensorRecord) -> SensorDecision:
        """Decide what to do from `observed`, and reserve the names that will be recorded."""
        names_of_others = desired.NamesOfOthers(self.states.sensor_uid_by_name, record.uid)
        decision = deciding.decide(observed, names_of_others, self.settings)
        # Reserve before the next await, so that no other Sensor gets these names.
        for effect in decision.effects:
            if isinstance(effect, Annotate):
                recorded_names = {
                    effect.annotations[key] for key in UNIQUE_NAME_KEYS if key in effect.annotations
                }
                self.states.claim_sensor_names(record, recorded_names)
        return decision

    def status_of(
        self, observed: Observed, decision: SensorDecision, record: SensorRecord
    ) -> Mapping[str, Any]:
        """Return the last decision's status, with a condition if the function's roll-out waits."""
        self.states.rolls.add_condition(decision.conditions, self._function_identity(record))
        return super().status_of(observed, decision, record)

    async def stop_on_bus(self, bus: Bus) -> set[str]:
        """Delete the functions of all Sensors on a bus; returns the Sensors' own groups, for the
        caller to delete. Raises `ClusterError`.

        The bus's topic is about to be deleted. A later commit would count as a position in a
        recreated topic, so the groups must be deleted first. The Sensors then read their trigger
        topics again, and fire with the same ids.
        """
        groups = set()
        for identity in self.states.sensors_on(bus):
            record = self.states.sensors[identity]
            await self._delete_function(record)
            group = status_annotations(record.document).get(GROUP_STATUS)
            if group is None or not may_have_group(group, bus, identity):
                continue
            try:
                kafka = await self._find_kafka(record.document, record)
            except (NotReady, InvalidDocument):
                continue  # the bus's topic isn't deleted then either
            if await self._own.may_delete(record, group, kafka):
                groups.add(group)
        return groups

    async def delete(self, document: Document) -> None:
        """Delete a Sensor's Triggers and function; once the Triggers are gone, also its group and
        topics. Raises `BeingDeleted` while there is a Trigger, `ClusterError`, and the errors of
        `_delete_group_and_topics`."""
        record, sensor = self.remember(document), resource_of(document)
        family, namespace = record.bus.family, sensor.metadata.namespace
        trigger_kind = family.trigger_version, family.trigger
        triggers = await self._list_triggers(sensor, family)
        for name, trigger in triggers.items():
            if "deletionTimestamp" not in trigger["metadata"]:
                await self.cluster.delete(*trigger_kind, namespace, name)
        await self._delete_function(record)
        # Finalizers may keep deleted Triggers for a while.
        if remaining_triggers := sorted(await self._list_triggers(sensor, family)):
            raise BeingDeleted(f"{family.trigger}s {', '.join(remaining_triggers)} still exist")
        # The status names topics before they and the group are created.
        if any(name_key in status_annotations(document) for name_key, _ in TOPICS.values()):
            await self._delete_group_and_topics(document, record)
        await self.forget(document)

    async def _delete_group_and_topics(self, document: Document, record: SensorRecord) -> None:
        """Delete the group and the topics that a Sensor's status names, if they are the Sensor's
        own. Raises `NotReady`, `InvalidDocument`, and `LogError`, such as for a group in use."""
        annotations, own_names = status_annotations(document), names_in_status(document)
        kafka, group = await self._find_kafka(document, record), annotations.get(GROUP_STATUS)
        if group is not None and group in own_names:
            if await self._own.may_delete(record, group, kafka):
                await kafka.topics.delete_group(group)
        for name_key, id_key in TOPICS.values():
            topic = annotations.get(name_key)
            if topic not in own_names:
                continue
            recorded_id, claimed = annotations.get(id_key), self._own.is_claimed(record, topic)
            own = await find_topic_to_delete(kafka.topics, topic, recorded_id, claimed=claimed)
            if own is not None:
                await kafka.topics.delete_topic(topic)

    async def forget(self, document: Document) -> None:
        """End the drains of a Sensor that is gone, and forget it; nothing in Kafka is deleted."""
        if (record := self.states.sensors.get(Identity.of(document))) is not None:
            await self._stop_scaling(record)
        self.states.drop_sensor(Identity.of(document))

    # The scaler.

    async def _start_scaling(self, watched: WatchedSensor, record: SensorRecord) -> None:
        """Make the scaler scale a Sensor by the contract and autoscaling in `watched`, instead of
        the previous ones; returns once the previous drains have ended."""
        sensor, autoscaling = watched
        kafka, previous = record.kafka, record.scaled
        assert kafka is not None
        if previous is not None and previous[0] is not kafka:
            await self._stop_scaling(record)
        record.scaled = kafka, sensor
        function = self._function_identity(record)
        self.states.urls[record.id] = services.service_url(
            function.name, function.namespace, self.settings
        )
        kafka.watched |= {sensor.topic, sensor.trigger_topic}
        await kafka.scaler.watch_sensor(record.id, sensor, autoscaling)
        if previous is not None and previous[0] is kafka:
            _, previous_sensor = previous
            for topic in (previous_sensor.topic, previous_sensor.trigger_topic):
                kafka.unwatch(topic)

    async def _stop_scaling(self, record: SensorRecord) -> None:
        """Remove a Sensor from the scaler; returns once its drains have ended."""
        if record.scaled is None:
            return
        (kafka, sensor), record.scaled = record.scaled, None
        await kafka.scaler.forget(record.id)
        for topic in (sensor.topic, sensor.trigger_topic):
            kafka.unwatch(topic)

    # Observe.

    async def observe(self, document: Document, record: SensorRecord) -> Observed:
        """Read the Sensor's bus, topics, function and Triggers, and note its Kafka in the record.
        Raises `ClusterError`."""
        try:
            sensor = await parse_off_loop(lambda: parse(Sensor, document), spec_size(document))
        except InvalidDocument as error:
            return ObservedSensor(document, error)
        service = await self.cluster.get(SERVING, "Service", *self._function_identity(record))
        has_function = service is not None and services.is_owned(service, sensor)
        observed: Observed = ObservedSensor(
            document,
            sensor,
            function_exists=has_function,
            triggers=await self._list_triggers(sensor, record.bus.family),
            scaling=self.scaling_status(Identity.of(document)),
        )
        brokers, bus_record = self.buses.get(record.bus.family), self._bus_record(record.bus)
        if brokers is None:
            return replace(observed, served=False)
        state = bus_record.state if bus_record else None
        stored = await self._read_bus(record.bus) if state is None else None
        observed = replace(
            observed,
            broker=state,
            stored_broker=stored,
            ours=stored is None or brokers.is_ours(stored),
            stopped=bus_record.stopped if bus_record else None,
            handler=brokers.handler,
        )
        if state is None:
            return observed
        record.kafka = state.kafka
        return await self._with_topics(observed, sensor, state, record)

    async def _with_topics(
        self, observed: Observed, sensor: Sensor, bus: BrokerState, record: SensorRecord
    ) -> Observed:
        """Return `observed` with descriptions of the Sensor's topics, which of them may be somebody
        else's, and whether its group is. If Kafka fails, `topics` is the error."""
        annotations = status_annotations(observed.document)
        topics = await self._describe_topics(sensor, annotations, bus)
        try:
            disputed = await self._own.find_disputed_topics(annotations, topics, bus.kafka, record)
            is_group_foreign = await self._own.is_group_foreign(record, annotations, bus.kafka)
        except EXPECTED as error:
            return replace(observed, topics=error)
        return replace(
            observed, topics=topics, disputed=disputed, is_group_foreign=is_group_foreign
        )

    async def _describe_topics(
        self, sensor: Sensor, annotations: Mapping[str, str], bus: BrokerState
    ) -> Mapping[str, Any] | KnafkaError:
        """Describe the topics that the Sensor has or may get, by name; None for a topic that
        doesn't exist. An error of Kafka's is returned."""
        topic_names: list[str] = []
        for use in TOPICS:
            recorded = recorded_topic(sensor, use, annotations)
            topic_names += [recorded] if recorded is not None else candidate_names(sensor, use)
        try:
            return {
                topic_name: await bus.kafka.topics.describe_topic(topic_name)
                for topic_name in topic_names
            }
        except EXPECTED as error:
            return error

    async def _list_triggers(self, sensor: Resource, family: Family) -> Mapping[str, Document]:
        """Return the stored Triggers or Subscriptions that a Sensor owns, by name."""
        if family not in self.buses:
            return {}  # the operator may lack the right to list them
        labels = {SENSOR_NAME_KEY: sensor_manifests.sensor_label(sensor)}
        kind, namespace = (family.trigger_version, family.trigger), sensor.metadata.namespace
        stored_triggers = await self.cluster.list(*kind, labels, namespace)
        return {
            trigger["metadata"]["name"]: trigger
            for trigger in stored_triggers
            if services.is_owned(trigger, sensor)
        }

    async def _find_kafka(self, document: Document, record: SensorRecord) -> KafkaCluster:
        """Return the Kafka with a Sensor's topics, even if its bus was deleted first. Raises
        `NotReady`, `InvalidDocument`."""
        bus, bus_record = record.bus, self._bus_record(record.bus)
        bus_state = None if bus_record is None else bus_record.state
        known_kafka = record.kafka if bus_state is None else bus_state.kafka
        if known_kafka is not None:
            return known_kafka
        brokers = self.buses.get(bus.family)
        stored = None if brokers is None else await self._read_bus(bus)
        # If a channel is gone, the installation's settings are used, for the Kafka servers that the
        # Sensor's status names.
        kafka = (
            None if brokers is None else await brokers.connect_without_config(stored or document)
        )
        if kafka is not None:
            return kafka
        if stored is not None:
            message = f"{bus} has no topic yet"
            raise NotReady("BrokerNotConfigured", message, transient=True)
        # The bus was deleted before this operator started, so its credentials aren't known: try
        # the Kafka in the Sensor's status without any.
        return self.kafkas.ensure_cluster(
            status_annotations(document)[desired.BOOTSTRAP_SERVERS], None
        )

    def _bus_record(self, bus: Bus) -> BrokerRecord | None:
        """Return the record of a Sensor's bus; None: it isn't known, or its kind isn't served."""
        brokers = self.buses.get(bus.family)
        return None if brokers is None else brokers.states.brokers.get(bus.identity)

    async def _read_bus(self, bus: Bus) -> Document | None:
        """Return the stored Broker or channel that a Sensor reads; None: it doesn't exist. Raises
        `ClusterError`."""
        family = bus.family
        return await self.cluster.get(family.broker_version, family.broker, *bus.identity)

    def _function_identity(self, record: SensorRecord) -> Identity:
        """Return namespace and name of the Sensor's Knative Service."""
        family, sensor = record.bus.family, Identity.of(record.document)
        return sensor_manifests.function_identity(family, sensor, self.settings)

    # Effects.

    def kafka_of(self, observed: Observed, record: SensorRecord) -> KafkaCluster | None:
        """Return the Kafka of the Sensor's bus; None: it isn't known yet."""
        return record.kafka

    async def start_delivery(
        self, document: Document, watched: WatchedSensor, *, replaces: bool
    ) -> ScalingStatus | None:
        """Scale the Sensor by `watched`; returns the scaler's status. `replaces` is unused."""
        await self._start_scaling(watched, self.states.sensors[Identity.of(document)])
        return self.scaling_status(Identity.of(document))

    async def end_delivery(self, document: Document) -> None:
        """Stop scaling the Sensor (`_stop_scaling`); returns once its drains have ended."""
        await self._stop_scaling(self.states.sensors[Identity.of(document)])

    async def _delete_function(self, record: SensorRecord) -> None:
        """End a Sensor's drains and delete its Service; raises `ClusterError`."""
        await self._stop_scaling(record)
        namespace, name = self._function_identity(record)
        await delete_service(self.cluster, name, resource_of(record.document), namespace)
