"""Shards: which Triggers of a Broker share which dispatcher. Pure.

    annotations -> Isolation; shared -> the number of a shard: where its record is, else the lowest
    with room

Where a Trigger is delivered is one fact: it has a record in its Broker's contract topic, then that
shard delivers it, or it has none, then its own Service does
(docs/decisions/0019-contract-topic.md).

Not here: a shard's Service (`services`), and reading and writing the topic (`reconcile.contracts`).
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
from knafka_operator.decide import kafka_settings
from knafka_operator.decide.desired import MIN_IN_SYNC, Topic
from knafka_operator.model.family import family_of
from knafka_operator.model.isolation import Isolation, declared_isolation
from knafka_operator.model.resources import Broker, Trigger

CONTRACT: Final = "knafka.dev/contract-topic"
"""Key of a Broker's `status.annotations`: written before the topic is made, so that an operator
that finds no such key need not ask Kafka."""

DISPATCHER: Final = "knafka.dev/dispatcher"
"""Key of a Trigger's `status.annotations`: the Service that delivers it. That of its own stands
there before the Service is made, and until it is deleted."""


@dataclass(frozen=True, slots=True)
class Place:
    """One of a Broker's shards."""

    number: int
    shard: Shard


@dataclass(frozen=True, slots=True)
class Contract:
    """What a Broker's shared dispatchers deliver, as far as it is known."""

    exists: bool = False
    """Whether there is such a topic."""
    records: Mapping[str, SharedEgress] = field(default_factory=dict)
    """By consumer group."""
    leaving: Collection[str] = ()
    """Groups whose records are gone, but whose shards may not know that yet."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """The shard of each group, of those included whose record is about to be written."""


def isolation(trigger: Trigger, broker: Broker, default: Isolation) -> Isolation:
    """The Trigger's own, else its Broker's, else the installation's. Raises `InvalidDocument`."""
    own = kafka_settings.isolation_of(trigger.metadata.annotations)
    return own or declared_isolation(broker.metadata.annotations) or default


def automatic(
    needed: Isolation | None,
    delivered: Isolation | None,
    *,
    drains_always: bool,
    has_record: bool,
    has_own: bool,
) -> Isolation:
    """What an `auto` Trigger has: the first of these that says something.

    That it wants dispatchers always; what it was found to need; how it is delivered now; its
    record in the contract, or a Service of its own. A new one is shared.
    """
    if drains_always:
        return Isolation.OWN
    at_start = Isolation.OWN if has_own and not has_record else Isolation.SHARED
    return needed or delivered or at_start


def number_for(group: str, numbers: Mapping[str, int], size: int) -> int:
    """The shard of a group: the one it is in, else the lowest with room for one more."""
    if group in numbers:
        return numbers[group]
    members = Counter(numbers.values())
    return next(each for each in count() if members[each] < size)


def place(broker: Broker, number: int, kafka: Kafka) -> Place:
    """One shard of a Broker, as its dispatchers have it."""
    of = _parts(broker)
    shard = Shard(
        group=names.shard_group(*of, number),
        kafka=kafka,
        contract_topic=names.contract_topic(*of),
    )
    return Place(number, shard)


def _parts(broker: Broker) -> tuple[str, str]:
    """What names of its contract and shards are made from."""
    metadata = broker.metadata
    return metadata.namespace, family_of(broker.kind).own_name(metadata.name)


def contract_topic(broker: Broker, topic: Topic) -> Topic:
    """The topic with a Broker's contract, as durable as the Broker's own topic.

    One partition, since its records have one order; each is kept until there is a newer one.
    """
    config = {"cleanup.policy": "compact"}
    if MIN_IN_SYNC in topic.config and not topic.external:
        config[MIN_IN_SYNC] = topic.config[MIN_IN_SYNC]
    return Topic(
        name=names.contract_topic(*_parts(broker)),
        partitions=1,
        # How many replicas an external topic has isn't known here.
        replication=-1 if topic.external else topic.replication,
        config=config,
    )


def read(records: Iterable[Record]) -> dict[str, SharedEgress]:
    """What a contract's topic says, oldest record first; what can't be read is passed over, as
    dispatchers do, and is written anew when its Trigger is reconciled."""
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


def numbers_of(namespace: str, broker: str, records: Mapping[str, SharedEgress]) -> dict[str, int]:
    """The number of each group's shard."""
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
