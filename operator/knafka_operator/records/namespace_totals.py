"""Namespace totals: sums over the other objects of an object's namespace, for limits, and what each
object takes of them.

An object counts as soon as it is decided that it gets something, and before the next `await`: of
objects that are reconciled at the same time, only as many get something as the maximum allows.
After the operator's start, what was granted before counts at once, by Services and statuses, so
that no new object takes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.functions import services
from knafka_operator.kafka.topics import ObservedTopic
from knafka_operator.model.identity import Identity
from knafka_operator.model.maxima import LARGEST_INT32, Maxima
from knafka_operator.model.resources import parse_whole_number
from knafka_operator.records.state import Document, States, TriggerRecord


def granted_min_scale(record: TriggerRecord) -> int:
    """Return the min-scale that a Trigger has: the larger one of its Service and of the delivery
    that goes on until that Service is Ready."""
    delivered = 0 if record.watched is None else record.watched.autoscaling.min_scale
    return max(record.granted_min_scale, delivered)


def min_scale_of_others(states: States, trigger: Identity) -> int:
    """Return the sum of the min-scales that all other Triggers in the namespace of `trigger`
    have."""
    return sum(
        granted_min_scale(record)
        for identity, record in states.triggers.items()
        if identity.namespace == trigger.namespace and identity != trigger
    )


def restore_min_scales(
    states: States, triggers: Iterable[Document], dispatcher_services: Iterable[Document]
) -> None:
    """Grant each stored Trigger the min-scale of its own dispatcher among `dispatcher_services`,
    whether or not that Service is Ready."""
    min_scale_by_owner = {
        uid: min_scale
        for service in dispatcher_services
        if (min_scale := _min_scale_of(service))
        for uid in services.owner_uids(service)
    }
    for trigger in triggers:
        granted = min_scale_by_owner.get(trigger["metadata"].get("uid", ""))
        if granted is not None:
            states.ensure_trigger(trigger).granted_min_scale = granted


def _min_scale_of(service: Document) -> int:
    """Return the min-scale of a dispatcher's Service; 0 also if somebody made it invalid."""
    annotations = service["spec"]["template"]["metadata"].get("annotations") or {}
    text, path = annotations.get(services.MIN_SCALE, "0"), services.MIN_SCALE
    try:
        return parse_whole_number(text, path, 0, LARGEST_INT32)
    except InvalidDocument:
        return 0


def partitions_of_others(states: States, broker: Identity) -> int:
    """Return the number of partitions that the topics of all other Brokers in the namespace of
    `broker` have together, or will have once they are created."""
    return sum(
        max(record.reserved_partitions, 0 if record.state is None else record.state.partitions)
        for identity, record in states.brokers.items()
        if identity.namespace == broker.namespace and identity != broker
    )


def reserve_partitions(
    states: States, broker: Identity, topic: ObservedTopic | KnafkaError | None, maxima: Maxima
) -> ObservedTopic | KnafkaError | None:
    """Reserve the partitions of a Broker's topic if the topic is to be created and is within
    `maxima`; release them if it is refused. Returns `topic` with the partitions of the namespace's
    other Brokers, unchanged if it exists or couldn't be read."""
    record = states.brokers.get(broker)
    if record is None or not isinstance(topic, ObservedTopic) or topic.existing is not None:
        return topic
    topic = replace(topic, other_partitions=partitions_of_others(states, broker))
    record.reserved_partitions = topic.partitions_to_create(maxima)
    return topic
