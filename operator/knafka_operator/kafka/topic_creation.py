"""Topic creation: creates an object's topic if it doesn't exist, and deletes what an object had in
Kafka.

Not here: who owns an existing topic (`kafka.topics`), and its desired state (`kafka.desired`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from knafka.core import names
from knafka.core.errors import LogError
from knafka.ports.log import LogAdmin, TopicDescription
from knafka_operator.kafka.clusters import KafkaCluster
from knafka_operator.kafka.topics import may_delete_topic
from knafka_operator.model.topics import Topic, TopicRefused

log = logging.getLogger(__name__)


async def ensure_topic(kafka: KafkaCluster, desired_topic: Topic) -> bool:
    """Create a topic unless it exists; returns whether it was created. While Kafka has too few
    brokers for the topic's replicas, try its `with_fewer_replicas` instead, and then that one's.
    Raises `LogError`, also if Kafka has too few brokers and that field is None."""
    topic = desired_topic
    while True:
        try:
            return await kafka.topics.ensure_topic(
                topic.name, topic.partitions, topic.replication, topic.config
            )
        except LogError as error:
            if not error.too_few_brokers:
                raise
            if topic.with_fewer_replicas is None:
                raise LogError(
                    f"topic {topic.name} is to have a replication factor of {topic.replication}, "
                    f"which Kafka has too few brokers for ({error}): set {topic.replication_key}",
                    too_few_brokers=True,
                ) from error
            topic = topic.with_fewer_replicas


async def ensure_own_topic(
    kafka: KafkaCluster, desired_topic: Topic, *, accepts_records: bool = False
) -> TopicDescription:
    """Create an object's own topic unless it exists; returns its description. A topic that exists
    already must never have had records, unless `accepts_records` is True. Raises `LogError`, and
    `TopicRefused` if it has had some, or if the topic isn't found afterwards."""
    topics = kafka.topics
    created = await ensure_topic(kafka, desired_topic)
    if not (created or accepts_records) and await has_records(topics, desired_topic.name):
        message = (
            f"topic {desired_topic.name} was made by somebody else: delete it, or rename "
            "this object"
        )
        raise TopicRefused("TopicNotOurs", message)
    description = await topics.describe_topic(desired_topic.name)
    if description is None:
        raise TopicRefused("TopicNotFound", f"topic {desired_topic.name} was made and is not there")
    return description


async def has_records(topics: LogAdmin, name: str) -> bool:
    """Whether a topic has ever had a record, even if none is left; raises `LogError`."""
    return any((await topics.end_offsets(name)).values())


async def find_topic_to_delete(
    topics: LogAdmin, name: str, known_id: str | None, *, claimed: bool
) -> TopicDescription | None:
    """Return the description of the topic `name` if it was created for the object that is being
    deleted. None: the topic doesn't exist, or it must stay, which is logged.

    `known_id` is the topic's id in the object's status: empty if the topic was about to be created,
    None if the status doesn't name the topic. `claimed`: whether another object's status names the
    topic, too. Raises `LogError`.
    """
    description = await topics.describe_topic(name)
    # With a known id, the topic may be deleted with its records.
    is_used = description is not None and not known_id and await has_records(topics, name)
    if may_delete_topic(description, known_id, used=is_used, claimed=claimed):
        return description
    if description is not None:
        log.warning("topic %s is not deleted: it isn't known to be the deleted object's", name)
    return None


async def delete_topic_and_groups(
    topics: LogAdmin, name: str, known_id: str | None, groups: Collection[str], *, claimed: bool
) -> None:
    """Delete the topic `name` and `groups`, the consumer groups that read it, if the topic was
    created for the object that is being deleted; does nothing otherwise. For `known_id` and
    `claimed` see `find_topic_to_delete`. Raises `LogError`, also while a group has members."""
    if await find_topic_to_delete(topics, name, known_id, claimed=claimed) is None:
        return
    for group in groups:
        # A dispatcher that hasn't left the group would commit its old offset, which Kafka applies
        # to a topic recreated under the same name: events would be skipped.
        await topics.delete_group(group)
    await topics.delete_topic(name)


async def delete_shard_contract(
    topics: LogAdmin, namespace: str, broker: str, shards: Iterable[int], topic: str | None
) -> None:
    """Delete the contract topic of a Broker's shards (its shared dispatchers), and the consumer
    groups with which the shards with these numbers read `topic`, the Broker's (None: it had none
    yet). `broker` is the Broker's internal name (`Family.own_name`). Raises `LogError`."""
    for number in shards:
        shard_name = names.shard_group(namespace, broker, number)
        await topics.delete_group(names.shard_members_group(shard_name, topic or ""))
    await topics.delete_topic(names.contract_topic(namespace, broker))


async def delete_broker_dead_letters(topics: LogAdmin, namespace: str, broker: str) -> None:
    """Delete the topic with a Broker's own dead letters, records that hold no event
    (docs/decisions/0031). Raises `LogError`."""
    # No owner is checked, as no other object can have a topic of this name. Most Brokers have no
    # such topic; then the operator needs no right to delete it.
    name = names.broker_dead_letter_topic(namespace, broker)
    if await topics.describe_topic(name) is not None:
        await topics.delete_topic(name)
        log.info("topic %s is deleted with its Broker", name)
