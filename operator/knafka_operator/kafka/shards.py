"""Shards: which Triggers of a Broker share which dispatcher. Pure.

    annotations -> Isolation; shared -> the number of a shard: where its record is, else the lowest
    with room

Where a Trigger is delivered is one fact: it has a record in its Broker's contract topic, then that
shard delivers it, or it has none, then its own Service does
(docs/decisions/0019-contract-topic.md).

Not here: a shard's Service (`functions.services`), and reading and writing the topic
(`kafka.contracts`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from knafka.core import names
from knafka.core.contract import Kafka, Shard, SharedEgress
from knafka.core.documents import parse_json
from knafka.core.errors import InvalidDocument
from knafka.ports.log import Record
from knafka_operator.kafka import kafka_settings
from knafka_operator.kafka.desired import MIN_IN_SYNC
from knafka_operator.model.family import family_of
from knafka_operator.model.isolation import Isolation, declared_isolation
from knafka_operator.model.resources import Broker, Trigger
from knafka_operator.model.topics import Topic

CONTRACT_TOPIC_KEY: Final = "knafka.dev/contract-topic"
"""Key of a Broker's `status.annotations`: written before the topic is made, so that an operator
that finds no such key need not ask Kafka."""

DISPATCHER_KEY: Final = "knafka.dev/dispatcher"
"""Key of a Trigger's `status.annotations`: the Service that delivers it. That of its own stands
there before the Service is made, and until it is deleted."""


@dataclass(frozen=True, slots=True)
class ShardPlacement:
    """One of a Broker's shards."""

    number: int
    shard: Shard


@dataclass(frozen=True, slots=True)
class SharedContract:
    """A snapshot of the contract of a Broker's shared dispatchers."""

    exists: bool = False
    """Whether the contract topic exists."""
    records: Mapping[str, SharedEgress] = field(default_factory=dict)
    """The record of each Trigger in a shard, by consumer group."""
    leaving: Collection[str] = ()
    """Groups whose records were removed, but whose shards may not have read that yet."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """The shard number of each group, including groups whose record is about to be written."""


def effective_isolation(trigger: Trigger, broker: Broker, default: Isolation) -> Isolation:
    """A Trigger's isolation: its own, else its Broker's, else `default`, the installation's. Raises
    `InvalidDocument`."""
    own = kafka_settings.required_isolation(trigger.metadata.annotations)
    return own or declared_isolation(broker.metadata.annotations) or default


def automatic_isolation(
    needed: Isolation | None,
    delivered: Isolation | None,
    *,
    drains_always: bool,
    has_record: bool,
    has_own: bool,
) -> Isolation:
    """The isolation of an `auto` Trigger, by the first of these that is known.

    Its min-scale (`drains_always`: own); what its activity `needed`; how it is `delivered` now; its
    record in the contract (shared) or its own Service (own). A new Trigger is shared.
    """
    if drains_always:
        return Isolation.OWN
    at_start = Isolation.OWN if has_own and not has_record else Isolation.SHARED
    return needed or delivered or at_start


def shard_number_for(group: str, numbers: Mapping[str, int], size: int) -> int:
    """The shard number of a group: the one it has, else the lowest shard with fewer than `size`."""
    if group in numbers:
        return numbers[group]
    members = Counter(numbers.values())
    return next(each for each in count() if members[each] < size)


def shard_placement(broker: Broker, number: int, kafka: Kafka) -> ShardPlacement:
    """Number and contract of one of a Broker's shards."""
    of = _name_parts(broker)
    shard = Shard(
        group=names.shard_group(*of, number),
        kafka=kafka,
        contract_topic=names.contract_topic(*of),
    )
    return ShardPlacement(number, shard)


def _name_parts(broker: Broker) -> tuple[str, str]:
    """Namespace and internal name of a Broker, from which names of contract and shards are made."""
    metadata = broker.metadata
    return metadata.namespace, family_of(broker.kind).own_name(metadata.name)


def contract_topic(broker: Broker, topic: Topic) -> Topic:
    """The declared contract topic of a Broker's shared dispatchers, as durable as its own topic.

    It has one partition, which orders its records, and keeps the last record of each group.
    """
    config = {"cleanup.policy": "compact"}
    if MIN_IN_SYNC in topic.config and not topic.external:
        config[MIN_IN_SYNC] = topic.config[MIN_IN_SYNC]
    return Topic(
        name=names.contract_topic(*_name_parts(broker)),
        partitions=1,
        # How many replicas an external topic has isn't known here.
        replication=-1 if topic.external else topic.replication,
        config=config,
    )


def read_shared_egresses(records: Iterable[Record]) -> dict[str, SharedEgress]:
    """Parse the records of a contract topic, oldest first; returns the last of each group. Invalid
    records are left out; they are rewritten when their Trigger is reconciled."""
    found: dict[str, SharedEgress] = {}
    for record in records:
        group, value = (record.key() or b"").decode("utf-8", "replace"), record.value()
        found.pop(group, None)
        if value is not None:
            try:
                found[group] = parse_json(SharedEgress, value.decode("utf-8", "replace"))
            except InvalidDocument:
                continue
    return found


def shard_numbers(
    namespace: str, broker: str, records: Mapping[str, SharedEgress]
) -> dict[str, int]:
    """The shard number of each group with a record."""
    wanted = {each.shard for each in records.values()}
    numbers: dict[str, int] = {}
    for number in range(MAX_SHARDS):
        if len(numbers) == len(wanted):
            break
        if (shard := names.shard_group(namespace, broker, number)) in wanted:
            numbers[shard] = number
    return {group: numbers[each.shard] for group, each in records.items() if each.shard in numbers}


MAX_SHARDS: Final = 10_000
"""More than any Broker has: where the search for a shard's number ends."""
