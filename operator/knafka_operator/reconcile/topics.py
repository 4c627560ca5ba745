"""Topics: the one of a Broker or KafkaChannel, made where it isn't there.

Not here: whose it is, and how it should be (`decide.topics`, `decide.desired`).
"""

from __future__ import annotations

from knafka.core.errors import LogError
from knafka.ports.log import TopicDescription
from knafka_operator.decide.desired import Topic
from knafka_operator.decide.topics import TopicRefused
from knafka_operator.scale.kafka_clusters import KafkaCluster


async def ensure_topic(kafka: KafkaCluster, wanted: Topic) -> None:
    """Have this topic, with fewer replicas where it may have fewer; raises `LogError`."""
    topic: Topic | None = wanted
    while topic is not None:
        try:
            await kafka.topics.ensure_topic(
                topic.name, topic.partitions, topic.replication, topic.config
            )
            return
        except LogError as error:
            if not error.too_few_brokers:
                raise
            if topic.fewer is None:
                raise LogError(
                    f"topic {topic.name} is to have a replication factor of {topic.replication}, "
                    f"which Kafka has too few brokers for ({error}): set {topic.replication_key}",
                    too_few_brokers=True,
                ) from error
            topic = topic.fewer


async def made_topic(kafka: KafkaCluster, wanted: Topic) -> TopicDescription:
    """Have this topic; gives it as Kafka has it. Raises `LogError`, and `TopicRefused` for one that
    is made and not there."""
    await ensure_topic(kafka, wanted)
    found = await kafka.topics.describe_topic(wanted.name)
    if found is None:
        raise TopicRefused("TopicNotFound", f"topic {wanted.name} was made and is not there")
    return found
