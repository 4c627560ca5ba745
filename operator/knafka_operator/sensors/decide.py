"""Sensor: decides the status and the next effects of an observed Sensor. Pure.

Read top-down, as `brokers.decide`: each condition is one step. `decide` is called again with the
results of its effects, until it returns none. An error that is raised within `conditions.step(X)`
goes no further: it becomes the reason of the condition X.

A Sensor's bus is the Broker or KafkaChannel whose events it reads. A drain is a lease by which one
pod of the Sensor's function handles events.

Not here: its topics (`topics`), and what its Triggers deliver (`actions`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, NamedTuple, NoReturn, TypeVar

from knafka.core import names
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka.core.sensor import contract
from knafka.ports.log import TopicDescription
from knafka_operator.decisions.effects import (
    Annotate,
    Apply,
    ApplyService,
    CommitOffsets,
    CreateTopic,
    Delete,
    Effect,
    ObjectName,
    Refusal,
    StartDelivery,
    StopDelivery,
)
from knafka_operator.decisions.observed import Needed, ObservedObject
from knafka_operator.decisions.status import (
    FUNCTION_READY,
    SENSOR_CONDITIONS,
    SENSOR_ON_CHANNEL_CONDITIONS,
    TOPICS_READY,
    ConditionSet,
    NotReady,
    is_ready,
    ready_condition,
    value_or_raise,
    why_not_ready,
)
from knafka_operator.decisions.steps import Step
from knafka_operator.dispatchers.conditions import check_broker
from knafka_operator.installation.handler import Handler
from knafka_operator.installation.settings import Settings
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.family import BROKERS
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import GROUP_STATUS, SERVING
from knafka_operator.model.sensors import TOPICS, TRIGGER, Sensor, bus_of
from knafka_operator.model.topics import Topic
from knafka_operator.records.delivery import BrokerState
from knafka_operator.scale.decide import ScalingStatus
from knafka_operator.sensors import manifests as sensor_manifests
from knafka_operator.sensors import scaling as sensor_scaling
from knafka_operator.sensors import topics as sensor_topics
from knafka_operator.sensors.function_contract import function_contract

BUS: Final = "knafka.dev/bus"
"""Key of `status.annotations`: name of the bus's topic. It is written once the Sensor's group has
its first offsets on that topic."""

K = TypeVar("K")
"""The type of a connection to Kafka, which is passed on but never used here."""


class WatchedSensor(NamedTuple):
    """A Sensor's contract and autoscaling, for the scaler."""

    sensor: contract.SensorContract
    """The contract of the Sensor's function."""
    autoscaling: Autoscaling


@dataclass(frozen=True)
class ObservedSensor(ObservedObject, Generic[K]):
    """A Sensor and everything read for its decision; where reading failed, the error stands for the
    value."""

    sensor: Sensor | InvalidDocument
    broker: BrokerState[K] | None = None
    """The state of the Sensor's Broker or channel; None: it has no topic yet."""
    stored_broker: Mapping[str, Any] | None = None
    """The Broker's document. None: it wasn't read, as the Broker has a topic, or doesn't exist."""
    ours: bool = True
    """Whether Knafka serves that Broker."""
    served: bool = True
    """Whether KafkaChannels are served here, if the Sensor's bus is one."""
    handler: Handler | None = Handler.OWN
    """The controller that reconciles the Sensor's Subscriptions; None: not known yet."""
    stopped: str | None = None
    """Why the Sensor's Broker may not use its topic; None: it may."""
    topics: Mapping[str, TopicDescription | None] | KnafkaError = field(default_factory=dict)
    """Descriptions of topics that may be the Sensor's own, by name; None: the topic doesn't
    exist."""
    disputed: frozenset[str] = frozenset()
    """Topics whose ownership isn't proved: the Sensor's status names them without an id, and they
    have records or are also named by another Sensor's status."""
    is_group_foreign: bool = False
    """Whether a consumer group of the usual name exists that isn't proved to be the Sensor's."""
    function_exists: bool = False
    """Whether the Sensor's Knative Service exists."""
    scaling: ScalingStatus | None = None
    """The scaler's status of the Sensor; None: it isn't scaled yet."""
    scaled: bool = False
    """Whether the scaler uses the declared contract and autoscaling."""
    applied: bool = False
    """Whether the Sensor's Triggers have been applied as declared."""
    triggers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The Sensor's Triggers or Subscriptions, by name."""

    def after(self, effect: Effect, result: Any) -> ObservedSensor[K]:
        """Return a copy that includes an effect's result."""
        observed = super().after(effect, result)
        match effect:
            case Delete(Step.DELETE_FUNCTIONS):
                return replace(observed, function_exists=False)
            case CreateTopic(topic) if isinstance(observed.topics, Mapping):
                return replace(observed, topics={**observed.topics, topic.name: result})
            case ApplyService():
                return replace(observed, function_exists=True)
            case StartDelivery():
                return replace(observed, scaled=True, scaling=result)
            case Apply(Step.APPLY_TRIGGERS):
                triggers = {trigger["metadata"]["name"]: trigger for trigger in result}
                return replace(observed, triggers=triggers, applied=True)
        return observed


@dataclass(frozen=True, slots=True)
class SensorDecision:
    """Effects to run next, and the status, which is final once there are no effects."""

    effects: tuple[Effect, ...]
    conditions: ConditionSet
    status: Mapping[str, Any]
    """The status without its conditions."""


class _SensorSteps(Generic[K]):
    """The decision of one Sensor while its steps are taken."""

    def __init__(self, observed: ObservedSensor[K], settings: Settings) -> None:
        """Begin without effects, and with all conditions Unknown."""
        family = bus_of(observed.document).family
        types = SENSOR_CONDITIONS if family is BROKERS else SENSOR_ON_CHANNEL_CONDITIONS
        # The first and the last condition have other names on a channel than on a Broker.
        self.bus_ready, _, _, self.triggers_ready = types
        self.observed = observed
        self.settings = settings
        self.conditions = ConditionSet(types)
        self.needed = Needed(observed.failed)
        """The effects that must run before the decision can go on."""
        self.annotations = observed.annotations
        """Annotations of the new status."""

    def decision(self) -> SensorDecision:
        """Return the decision with the effects and the status of the steps taken so far."""
        status = {
            "observedGeneration": self.observed.document["metadata"].get("generation", 0),
            "annotations": self.annotations,
        }
        return SensorDecision(tuple(self.needed.effects), self.conditions, status)

    def request_function_deletion(self) -> NoReturn:
        """Request that the Sensor's drains are ended and its function is deleted; group and topics
        stay. Raises `NotReady`, which ends the condition's step until the function is deleted, or
        the error by which that has failed."""
        family = bus_of(self.observed.document).family
        function = sensor_manifests.function_identity(
            family, Identity.of(self.observed.document), self.settings
        )
        objects = (ObjectName(SERVING, "Service", *function),)  # deleted if the Sensor owns it
        self.needed.run_first(StopDelivery(), Delete(Step.DELETE_FUNCTIONS, objects, owned=True))


def decide(
    observed: ObservedSensor[K], names_of_others: Container[str], settings: Settings
) -> SensorDecision:
    """Decide a Sensor's conditions, status and next effects; the effects are in the order in which
    they must run (`decisions.steps.SENSOR_ORDER`).

    `names_of_others` has the topics and consumer groups of other Sensors.
    """
    steps = _SensorSteps(observed, settings)
    sensor, broker = observed.sensor, observed.broker
    if isinstance(sensor, InvalidDocument):
        steps.conditions.fail(FUNCTION_READY, sensor)
        return steps.decision()
    with steps.conditions.step(steps.bus_ready):
        check_bus(sensor, observed)
    if broker is None or observed.stopped is not None:
        with steps.conditions.step(FUNCTION_READY):
            if observed.function_exists and _is_bus_gone(observed):
                steps.request_function_deletion()
            bus_kind = bus_of(observed.document).family.broker
            message = f"it has no {bus_kind} whose events it could read"
            raise NotReady("Waiting", message, transient=True)
        return steps.decision()
    topics = _ensure_topics(sensor, broker, names_of_others, steps)
    if topics is None:
        return steps.decision()
    _decide_function(sensor, broker, topics[TRIGGER].partitions, steps)
    _decide_triggers(sensor, steps)
    return steps.decision()


def _ensure_topics(
    sensor: Sensor,
    broker: BrokerState[K],
    names_of_others: Container[str],
    steps: _SensorSteps[K],
) -> Mapping[str, Topic] | None:
    """Decide `TopicsReady`: the Sensor's own topics exist, and its group has its first offsets.
    Returns these topics; None: not all of this holds yet, and the condition says why."""
    observed, annotations = steps.observed, steps.annotations
    with steps.conditions.step(TOPICS_READY):
        existing_topics = value_or_raise(observed.topics)
        desired_topics = sensor_topics.desired_topics(
            sensor, broker, annotations, existing_topics, names_of_others
        )
        group = _consumer_group(
            sensor, annotations, names_of_others, foreign=observed.is_group_foreign
        )
        if annotations_to_write := sensor_topics.annotations_to_record(
            desired_topics, group, broker, annotations, existing_topics
        ):
            steps.needed.run_first(Annotate(Step.RECORD_TOPIC, annotations_to_write))
        maxima, disputed = steps.settings.maxima, observed.disputed
        if topics_to_create := sensor_topics.topics_to_create(
            desired_topics, annotations, existing_topics, maxima, disputed
        ):
            steps.needed.run_first(*topics_to_create)
        ids = {
            id_key: sensor_topics.topic_id(existing_topics[desired_topics[use].name])
            for use, (_, id_key) in TOPICS.items()
        }
        sensor_topics.check_partitions(desired_topics, existing_topics)
        steps.conditions.set(sensor_topics.as_declared_condition(desired_topics, existing_topics))
        bus_topic, trigger_topic = broker.topic.name, desired_topics[TRIGGER].name
        if annotations.get(BUS) != bus_topic:
            _commit_first_offsets(group, trigger_topic, bus_topic, ids, steps)
        annotations.update(ids)
        return desired_topics
    return None  # the step failed


def _commit_first_offsets(
    group: str, trigger_topic: str, bus_topic: str, ids: Mapping[str, str], steps: _SensorSteps[K]
) -> NoReturn:
    """Request that the Sensor's group gets its first offsets on its trigger topic and its bus's
    topic, and that the status then records this, with the `ids` of the Sensor's topics. A running
    function is deleted first. Raises `NotReady`, or the error by which a request has failed."""
    if steps.observed.function_exists:
        # While the function runs, its group has members and accepts no offsets on another topic.
        steps.request_function_deletion()
    steps.needed.run_first(
        # The trigger topic first: an offset there proves that the group is the Sensor's.
        CommitOffsets(group, trigger_topic, "earliest"),
        CommitOffsets(group, bus_topic, "latest"),
        Annotate(Step.PROMISE_SENSOR, {**ids, BUS: bus_topic}),
    )


def _decide_function(
    sensor: Sensor, broker: BrokerState[K], trigger_partitions: int, steps: _SensorSteps[K]
) -> None:
    """Decide `FunctionReady`: request that the Sensor's function is applied as declared, and
    scaled. If the Sensor is paused, its drains are ended and its function is deleted instead.
    `trigger_partitions` is the number of partitions of its trigger topic."""
    observed, settings = steps.observed, steps.settings
    with steps.conditions.step(FUNCTION_READY):
        function = function_contract(sensor, broker, steps.annotations)
        autoscaling = sensor_scaling.sensor_autoscaling(sensor, settings.maxima)
        for condition in (
            sensor_scaling.sensor_delivering_condition(autoscaling, observed.scaling),
            sensor_scaling.dead_letters_condition(observed.scaling),
            sensor_scaling.in_order_condition(observed.scaling),
        ):
            if condition is not None:
                steps.conditions.set(condition)
        if autoscaling.paused:
            if observed.function_exists:
                # Pods that min-scale keeps running drain without requests until they are deleted.
                steps.request_function_deletion()
        elif observed.revision is None:
            partitions = max(broker.partitions, trigger_partitions)
            manifest = sensor_manifests.function_service(
                sensor, function, autoscaling, partitions, broker.secret, settings
            )
            steps.needed.run_first(ApplyService(Step.APPLY_FUNCTION, manifest))
        if not observed.scaled:
            steps.needed.run_first(StartDelivery(WatchedSensor(function, autoscaling)))


def _decide_triggers(sensor: Sensor, steps: _SensorSteps[K]) -> None:
    """Decide `TriggersReady`, or `SubscriptionsReady`: request that the Triggers or Subscriptions
    that deliver the Sensor's actions are applied as declared, and that undeclared ones are deleted.
    The condition holds once all are Ready."""
    observed, family = steps.observed, sensor.bus.family
    declared = sensor_manifests.trigger_manifests(sensor, observed.document)
    with steps.conditions.step(steps.triggers_ready):
        check_subscriptions_handler(observed.handler)
        if not observed.applied:
            declared_names = {manifest["metadata"]["name"] for manifest in declared}
            undeclared_names = observed.triggers.keys() - declared_names
            kind = family.trigger_version, family.trigger, sensor.metadata.namespace
            triggers_to_delete = tuple(ObjectName(*kind, name) for name in sorted(undeclared_names))
            reasons = f"{family.trigger}NotOurs", f"{family.trigger}Rejected"
            apply_triggers = Apply(
                Step.APPLY_TRIGGERS, tuple(declared), Refusal("this Sensor", *reasons)
            )
            delete_effects = (
                (Delete(Step.DELETE_TRIGGERS, triggers_to_delete),) if triggers_to_delete else ()
            )
            steps.needed.run_first(apply_triggers, *delete_effects)
        for manifest in declared:
            check_trigger(observed.triggers[manifest["metadata"]["name"]])


def check_bus(sensor: Sensor, observed: ObservedSensor[K]) -> None:
    """Check that a Sensor's Broker or channel is served by Knafka and Ready; raises `NotReady`."""
    if not observed.ours:
        raise NotReady("BrokerNotOurs", f"{sensor.bus} is another implementation's")
    family, identity = sensor.bus
    if not observed.served:
        message = f"KNAFKA_CHANNELS is not enabled: {family.broker}s are not served here"
        raise NotReady("ChannelsDisabled", message)
    check_broker(family, identity.name, observed.stopped, observed.broker, observed.stored_broker)


def check_subscriptions_handler(handler: Handler | None) -> None:
    """Check that Knafka reconciles Subscriptions, as only then a Sensor's Subscriptions deliver its
    actions and not their channel's events. Raises `NotReady`."""
    if handler is None:
        message = "it isn't known yet whether Knative Eventing is here"
        raise NotReady("Waiting", message, transient=True)
    if handler is not Handler.OWN:
        raise NotReady(
            "SubscriptionsNotOurs",
            "Knative Eventing's controller handles Subscriptions here, and a Sensor's want "
            "Knafka to: set KNAFKA_SUBSCRIPTIONS=own, or name a Broker",
        )


def check_trigger(document: Mapping[str, Any]) -> None:
    """Check that a stored Trigger or Subscription of the Sensor is Ready. Raises `NotReady`, which
    is transient unless the object's condition Ready is False."""
    if not is_ready(document):
        kind = document["kind"]
        message = f"{kind} {document['metadata']['name']}: {why_not_ready(document)}"
        ready = ready_condition((document.get("status") or {}).get("conditions") or ())
        raise NotReady(f"{kind}NotReady", message, transient=ready.get("status") != "False")


def _is_bus_gone(observed: ObservedSensor[K]) -> bool:
    """Whether the Sensor's bus is gone or another implementation's, or its topic may not be used.
    False while the bus exists and only has no topic yet."""
    stored = observed.stored_broker
    is_being_deleted = stored is None or "deletionTimestamp" in stored["metadata"]
    return observed.stopped is not None or not observed.ours or is_being_deleted


def _consumer_group(
    sensor: Sensor,
    annotations: Mapping[str, str],
    names_of_others: Container[str],
    *,
    foreign: bool,
) -> str:
    """Return the name of a Sensor's consumer group: the one that the status (`annotations`) has,
    else the usual one (BUS-S14), or a distinct one if somebody else has the usual one. `foreign`:
    whether a group of the usual name exists that isn't proved to be the Sensor's. Raises `NotReady`
    if it is foreign, and the status says that the Sensor has used it."""
    name_parts = sensor.metadata.namespace, sensor.bus.family.own_name(sensor.metadata.name)
    recorded_group, usual_group = annotations.get(GROUP_STATUS), names.sensor_group(*name_parts)
    is_recorded_foreign = foreign and recorded_group == usual_group
    if (
        recorded_group is not None
        and names.is_sensor_group(recorded_group, *name_parts)
        and not is_recorded_foreign
    ):
        return recorded_group
    if recorded_group == usual_group and annotations.get(BUS):
        topic = annotations.get(TOPICS[TRIGGER][0], "")
        raise NotReady(
            "GroupNotOurs",
            f"consumer group {usual_group} has no offset on {topic}, so it isn't known to be this "
            "Sensor's: delete the group if nobody needs it, or give the Sensor another name",
        )
    if foreign or usual_group in names_of_others:
        return names.distinct_sensor_group(*name_parts)
    return usual_group
