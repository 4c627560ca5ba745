"""Observed: a Trigger, Subscription or KafkaSource with everything that was read for its decision.

Not here: the reading (`observe`), and what follows from it (`decide`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from knafka.core.contract import Sink
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.decisions.effects import CommitOffsets, Effect
from knafka_operator.decisions.observed import ObservedObject
from knafka_operator.kafka.desired import SensorActions
from knafka_operator.kafka.shards import SharedContract
from knafka_operator.model.cluster import status_annotations
from knafka_operator.model.isolation import Isolation
from knafka_operator.model.resources import GROUP_STATUS, START, Trigger
from knafka_operator.records.delivery import BrokerState, Watched
from knafka_operator.triggers.started_topics import (
    STARTED_TOPICS,
    is_same_kafka,
    started_topics,
    started_topics_annotation,
    was_started_by_older_release,
)

K = TypeVar("K")
"""The type of a connection to Kafka, which is passed on but never used here."""


@dataclass(frozen=True)
class ObservedTrigger(ObservedObject, Generic[K]):
    """A Trigger and everything read for its decision; where reading failed, the error stands for
    the value."""

    trigger: Trigger | InvalidDocument
    broker: BrokerState[K] | None = None
    """The state of the Trigger's Broker or channel; None: it has no topic yet."""
    stored_broker: Mapping[str, Any] | None = None
    """The Broker's document. None: it wasn't read, as the Broker has a topic, or doesn't exist."""
    stopped: str | None = None
    """Why the Trigger's Broker may not use its topic; None: it may."""
    unreachable: KnafkaError | None = None
    """Why a KafkaSource's Kafka, or one of its topics, can't be used; None: it can."""
    dependency: Mapping[str, Any] | KnafkaError | None = None
    """The object that the annotation `knative.dev/dependency` names; None: it doesn't exist."""
    subscriber: Sink | KnafkaError | None = None
    """The subscriber's address, or the error of resolving it; None: not read, as the Trigger is
    invalid."""
    dead_letter_sink: Sink | KnafkaError | None = None
    """Where dead letters are sent; None: neither the Trigger nor its Broker declares a sink."""
    reply: Sink | KnafkaError | None = None
    """Where replies are sent; None: to the Broker's topic, and those of a Subscription nowhere."""
    watched: Watched[K] | None = None
    """The delivery that is running; None: there is none."""
    may_have_old_pods: bool = False
    """Whether pods of an older Revision of the Trigger's Service may still deliver."""
    contract: SharedContract | KnafkaError | None = None
    """The contract of the Broker's shared dispatchers; None: the Broker has none."""
    actions: SensorActions | KnafkaError | None = None
    """A Sensor's firings, which the Trigger delivers; None: it delivers its Broker's events."""
    chosen_isolation: Isolation | None = None
    """The isolation chosen for an `auto` Trigger, `OWN` or `SHARED`; None: none was chosen yet."""
    foreign_groups: frozenset[str] = frozenset()
    """Existing groups of applications that have the name which a template gives to the Trigger's
    group: at most one."""
    granted_min_scale: int = 0
    """The min-scale that the Trigger has until now."""
    others_min_scale: int = 0
    """Sum of the min-scales that the other Triggers in the namespace have."""
    acted: bool = False
    """Whether the effects have run, up to the first that failed; then the decision contains
    none."""

    @property
    def failure(self) -> KnafkaError | None:
        """Return the error of the effect that failed; None: none has failed."""
        return next(iter(self.failed.values()), None)

    def after(self, effect: Effect, result: Any) -> ObservedTrigger[K]:
        """Return a copy that includes an effect's result. After start offsets were committed, its
        status annotations record the topic if it is external, and the declared start position if
        the status didn't name the group before."""
        observed = super().after(effect, result)
        start = (self.document["metadata"].get("annotations") or {}).get(START)
        status = status_annotations(self.document)
        match effect:
            case CommitOffsets(group, topic):
                if start is not None and status.get(GROUP_STATUS) != group:
                    observed = observed.with_annotations({START: start})
                if self.broker is not None and self.broker.topic.external:
                    return observed._with_started_topic(self.broker, group, topic)
        return observed

    def started_topics(self, topics: Collection[str], servers: str, group: str) -> tuple[str, ...]:
        """Return those of `topics`, which are external, on which the group has got its start
        offsets: the topics that the status records, and those of the running delivery. Without a
        running delivery, return all `topics` if an earlier release has started the group, since
        such a release recorded no topics."""
        started = {*started_topics(self.annotations, servers, group)}
        if self.watched is not None:
            egress = self.watched.egress
            if egress.group == group and is_same_kafka(egress.kafka.bootstrap_servers, servers):
                started |= {*egress.topics}
        elif was_started_by_older_release(self.document, group):
            started |= {*topics}
        return tuple(topic for topic in topics if topic in started)

    def _with_started_topic(
        self, broker: BrokerState[K], group: str, topic: str
    ) -> ObservedTrigger[K]:
        """Return a copy whose status annotations record that the group has its start offsets on
        this external topic."""
        servers = broker.defaults.kafka.bootstrap_servers
        topics = [*started_topics(self.annotations, servers, group), topic]
        value = started_topics_annotation(topics, servers, group)
        return self.with_annotations({STARTED_TOPICS: value})
