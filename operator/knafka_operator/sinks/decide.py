"""Sink: decides the status and the next effects of an observed KafkaSink. Pure.

    ConfigParsed                   its Secret exists and is valid
    TopicReady                     its topic exists; created if it declares partitions and replicas
    DataPlaneAvailable             its receiver is Ready
    Addressable, ProbeSucceeded    its address is known, and the receiver has answered there

An error that is raised within `conditions.step(X)` goes no further: it becomes the reason of the
condition X.

A topic is the sink's own only if it was created for the sink: then the status has the topic's id in
Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from knafka.core.contract import Ingress, Kafka
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka.ports.log import TopicDescription
from knafka_operator.decisions.effects import ApplyService, CreateTopic, Effect, Probe
from knafka_operator.decisions.status import (
    ADDRESSABLE,
    CONFIG_PARSED,
    DATA_PLANE_AVAILABLE,
    PROBE_SUCCEEDED,
    TOPIC_READY,
    NotReady,
    value_or_raise,
)
from knafka_operator.decisions.steps import Step
from knafka_operator.functions import services
from knafka_operator.functions.receiver_services import PROBED, check_receiver_scaling
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import desired
from knafka_operator.kafka.desired import MIN_IN_SYNC
from knafka_operator.kafka.topics import TOPIC_ID, as_declared_condition, topic_effects
from knafka_operator.model.resources import TOPIC_STATUS
from knafka_operator.model.topics import Topic, TopicRefused
from knafka_operator.receivers.addressable import (
    AddressableDecision,
    AddressableSteps,
    ObservedAddressable,
    SenderRules,
)
from knafka_operator.sinks.manifests import sink_receiver_name, sink_receiver_service
from knafka_operator.sinks.model import EXTERNAL, MADE, TOPIC_OWNER, KafkaSink

SINK_CONDITIONS: Final = (
    CONFIG_PARSED,
    TOPIC_READY,
    DATA_PLANE_AVAILABLE,
    ADDRESSABLE,
    PROBE_SUCCEEDED,
)
"""Conditions of KafkaSinks: upstream's without the one of its ConfigMap, since here each receiver
has its own contract."""


@dataclass(frozen=True)
class ObservedSink(ObservedAddressable):
    """A KafkaSink and everything read for its decision; where reading failed, the error stands for
    the value."""

    sink: KafkaSink | InvalidDocument
    kafka: Kafka | KnafkaError | None = None
    """Kafka settings of the sink's receiver; None: the sink is invalid."""
    secret: tuple[str, str] | None = None
    """Name and version of the Secret that the receiver mounts; None: none is needed."""
    topic: TopicDescription | KnafkaError | None = None
    """The topic as Kafka describes it; None: it doesn't exist, or Kafka isn't known."""
    taken: bool = False
    """Whether another sink has created a topic of this name, or is about to."""
    disputed: bool = True
    """Whether an empty id in the status doesn't prove that the topic was created for the sink: the
    topic has records, or that wasn't read."""
    other_partitions: int = 0
    """Number of partitions of the other topics that were created for objects of the namespace."""

    def after(self, effect: Effect, result: Any) -> ObservedSink:
        """Return a copy that includes an effect's result. Only the description of a created topic
        is added here; the base class includes everything else."""
        observed = super().after(effect, result)
        match effect:
            case CreateTopic():
                return replace(observed, topic=result)
        return observed


def decide(observed: ObservedSink, settings: Settings) -> AddressableDecision:
    """Decide a KafkaSink's conditions, status and next effects; the effects are in the order in
    which they must run (`decisions.steps.BROKER_ORDER`)."""
    no_receiver = NotReady("NoReceiver", "no receiver has been Ready yet", transient=True)
    steps = AddressableSteps(observed, SINK_CONDITIONS, no_receiver)
    with steps.conditions.step(CONFIG_PARSED):
        sink, kafka = value_or_raise(observed.sink), value_or_raise(observed.kafka)
        authentication = value_or_raise(observed.authentication)
        rules = SenderRules(authentication, value_or_raise(observed.encryption))
    if not steps.conditions.holds(CONFIG_PARSED):
        return steps.decision()
    assert kafka is not None
    with steps.conditions.step(TOPIC_READY):
        topic = _ensure_topic(observed, sink, settings, steps)
    if not steps.conditions.holds(TOPIC_READY):
        return steps.decision()

    ingress = Ingress(
        namespace=sink.metadata.namespace,
        broker=sink.metadata.name,
        kind="KafkaSink",
        topic=sink.spec.topic,
        content_mode=sink.spec.content_mode,
        kafka=kafka,
        **desired.ingress_limits(topic.config),
    )
    ingress = rules.added_to(ingress, sink)
    with steps.conditions.step(DATA_PLANE_AVAILABLE):
        if observed.revision is None:
            check_receiver_scaling(sink.metadata.annotations, settings.maxima)
            manifest = sink_receiver_service(
                sink, ingress, observed.secret, settings, oidc=authentication.is_on
            )
            steps.needed.run_first(ApplyService(Step.APPLY_RECEIVER, manifest))
    if observed.revision is None:
        return steps.decision()
    name, namespace = sink_receiver_name(sink), sink.metadata.namespace
    url = services.service_url(name, namespace, settings) + ingress.path
    steps.set_addresses(url, ingress, observed.https, rules, sink)
    with steps.conditions.step(PROBE_SUCCEEDED):
        # Each Revision is probed once: the status names the last one that has answered.
        if observed.revision not in (steps.annotations.get(PROBED), observed.probed):
            steps.needed.run_first(Probe(url, observed.revision))
        steps.annotations[PROBED] = observed.revision
    return steps.decision()


def _ensure_topic(
    observed: ObservedSink, sink: KafkaSink, settings: Settings, steps: AddressableSteps
) -> TopicDescription:
    """Check the sink's topic, or request that it is created, and record in the annotations of the
    new status whose topic it is. Returns the topic as it exists in Kafka. Raises `NotReady` while
    the topic is being created, `TopicRefused` if it can't be, and the error of reading it."""
    existing, annotations = value_or_raise(observed.topic), steps.annotations
    topic_to_make = topic_to_create(sink)
    is_own = topic_to_make is not None and is_made_for(sink, existing, annotations, observed)
    if existing is None and topic_to_make is None:
        raise TopicRefused(
            "TopicNotFound",
            f"{sink.servers:.300} has no topic {sink.spec.topic}: create it, let the sink's user "
            "describe it, or have it made by spec.numPartitions and spec.replicationFactor",
        )
    if existing is None and observed.taken:
        message = f"topic {sink.spec.topic} is being made for another KafkaSink"
        raise NotReady("TopicNotOurs", message, transient=True)
    if topic_to_make is None or (existing is not None and not is_own):
        # The topic isn't the sink's own: don't change it, and don't delete it with the sink.
        for key in (TOPIC_STATUS, TOPIC_ID):
            annotations.pop(key, None)
        annotations[TOPIC_OWNER] = EXTERNAL
        assert existing is not None
        return existing
    recorded = {TOPIC_OWNER: MADE}
    if creating_effects := topic_effects(
        topic_to_make,
        existing,
        annotations,
        settings.maxima,
        observed.other_partitions,
        disputed=observed.disputed,
        recorded=recorded,
    ):
        steps.needed.run_first(*creating_effects)  # raises, which ends this step
    assert existing is not None  # else there would be effects that create the topic
    annotations.update(recorded)
    steps.conditions.set(as_declared_condition(topic_to_make, existing))
    return existing


def topic_to_create(sink: KafkaSink) -> Topic | None:
    """Return the topic that Knafka creates for the sink if it is missing; None: none is created, as
    the sink doesn't declare both partitions and replicas."""
    partitions, replication = sink.spec.num_partitions, sink.spec.replication_factor
    if partitions is None or replication is None:
        return None
    # An acknowledged record is on two replicas where there are three.
    config = {MIN_IN_SYNC: "2"} if replication >= 3 else {}
    key = "spec.replicationFactor"
    return Topic(sink.spec.topic, partitions, replication, config, replication_key=key)


def is_made_for(
    sink: KafkaSink,
    existing: TopicDescription | None,
    annotations: Mapping[str, str],
    observed: ObservedSink,
) -> bool:
    """Whether an existing topic was created for this sink: the status has the topic's id, or an
    empty id (the topic was about to be created) and nothing shows another owner. False if the topic
    doesn't exist. `annotations` are those of the sink's status."""
    recorded_id = annotations.get(TOPIC_ID)
    if existing is None or recorded_id is None or annotations.get(TOPIC_STATUS) != sink.spec.topic:
        return False
    if recorded_id == "":
        return not (observed.disputed or observed.taken)
    return recorded_id == existing.id
