"""Shards: assigns Triggers of a Broker to shared dispatchers, each of which is a shard. Pure.

    annotations             -> Isolation: own dispatcher, or shared
    a shared Trigger        -> a shard's number: that of its record, else the lowest with room

The Broker's contract topic alone determines where a Trigger is delivered: by the shard in its
record, or without a record by its own Service (docs/decisions/0019-contract-topic.md).

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
"""Key of a Broker's `status.annotations`: the contract topic's name, written before the topic is
created, so that an operator that finds no such key needn't read Kafka."""

DISPATCHER_KEY: Final = "knafka.dev/dispatcher"
"""Key of a Trigger's `status.annotations`: the Service that delivers the Trigger. If that is its
own Service, the name is recorded before the Service is created, and until it is deleted."""

MAX_SHARDS: Final = 10_000
"""Upper limit of the search for a shard's number; no Broker has as many shards."""


@dataclass(frozen=True, slots=True)
class ShardPlacement:
    """One of a Broker's shards, with its number."""

    number: int
    """Unique among the shards of a Broker, from 0."""
    shard: Shard
    """The contract of the shard's dispatcher, with the shard's name."""


@dataclass(frozen=True, slots=True)
class SharedContract:
    """The contract of a Broker's shared dispatchers, the content of its contract topic, as
    decisions see it."""

    exists: bool = False
    """Whether the contract topic exists."""
    records: Mapping[str, SharedEgress] = field(default_factory=dict)
    """The record of each Trigger in a shard, by consumer group."""
    leaving: Collection[str] = ()
    """Groups whose records were removed, but whose shards may not have read the removal yet."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """The shard number of each group, including groups whose record is about to be written."""


def effective_isolation(trigger: Trigger, broker: Broker, default: Isolation) -> Isolation:
    """Return a Trigger's isolation: its own, else its Broker's, else `default`, the installation's.
    Raises `InvalidDocument`."""
    own_isolation = kafka_settings.required_isolation(trigger.metadata.annotations)
    return own_isolation or declared_isolation(broker.metadata.annotations) or default


def automatic_isolation(
    needed: Isolation | None,
    delivered: Isolation | None,
    *,
    drains_always: bool,
    has_record: bool,
    has_own: bool,
) -> Isolation:
    """Return whether a Trigger with the declared isolation `auto` gets its own dispatcher or a
    shared one, by the first of these that applies:

    - `drains_always` True: the Trigger has a min-scale, so it gets its own dispatcher.
    - `needed`: the isolation that was chosen by its activity; None: none was chosen yet.
    - `delivered`: the isolation by which it is delivered now; None: it isn't delivered.
    - `has_own` True and `has_record` False: the Trigger has its own dispatcher and no record in the
      contract, so it keeps its dispatcher.
    - Else it is shared.
    """
    if drains_always:
        return Isolation.OWN
    initial = Isolation.OWN if has_own and not has_record else Isolation.SHARED
    return needed or delivered or initial


def shard_number_for(group: str, numbers: Mapping[str, int], size: int) -> int:
    """Return the shard number for a consumer group: its present one, else the lowest number whose
    shard has fewer than `size` groups. `numbers` has the number of each group of the Broker."""
    if group in numbers:
        return numbers[group]
    group_counts = Counter(numbers.values())
    return next(number for number in count() if group_counts[number] < size)


def shard_placement(broker: Broker, number: int, kafka: Kafka) -> ShardPlacement:
    """Return a Broker's shard with this number, whose dispatcher connects to `kafka`."""
    namespace, internal_name = _name_parts(broker)
    shard = Shard(
        group=names.shard_group(namespace, internal_name, number),
        kafka=kafka,
        contract_topic=names.contract_topic(namespace, internal_name),
    )
    return ShardPlacement(number, shard)


def _name_parts(broker: Broker) -> tuple[str, str]:
    """Return a Broker's namespace and internal name (for a KafkaChannel, a name that no Broker
    has), of which the names of its contract topic and its shards are made."""
    metadata = broker.metadata
    return metadata.namespace, family_of(broker.kind).own_name(metadata.name)


def contract_topic(broker: Broker, topic: Topic) -> Topic:
    """Return the desired contract topic of a Broker's shared dispatchers, as durable as the
    Broker's own topic.

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
    """Parse the records of a contract topic, oldest first; returns the last one of each consumer
    group, by group. A group whose last record is a tombstone is left out, and so is one whose last
    record is invalid: it is written again when the Trigger is reconciled."""
    egresses: dict[str, SharedEgress] = {}
    for record in records:
        group, value = (record.key() or b"").decode("utf-8", "replace"), record.value()
        egresses.pop(group, None)  # the earlier record, which this one replaces
        if value is not None:  # else it is a tombstone
            try:
                egresses[group] = parse_json(SharedEgress, value.decode("utf-8", "replace"))
            except InvalidDocument:
                continue
    return egresses


def shard_numbers(
    namespace: str, broker: str, records: Mapping[str, SharedEgress]
) -> dict[str, int]:
    """Return the shard number of each consumer group with a record; `broker` is the Broker's
    internal name (`_name_parts`).

    A record has only its shard's name, which ends in a digest: so the names of the shards 0, 1, 2
    and so on are built until all names in the records are found. Groups are left out if no number
    below `MAX_SHARDS` gives their shard's name.
    """
    shard_names = {shared_egress.shard for shared_egress in records.values()}
    numbers_by_shard: dict[str, int] = {}
    for number in range(MAX_SHARDS):
        if len(numbers_by_shard) == len(shard_names):
            break
        if (shard := names.shard_group(namespace, broker, number)) in shard_names:
            numbers_by_shard[shard] = number
    return {
        group: numbers_by_shard[shared_egress.shard]
        for group, shared_egress in records.items()
        if shared_egress.shard in numbers_by_shard
    }
