"""Topics: the one of a Broker or KafkaChannel, made where it isn't there.

Not here: whose it is, and how it should be (`decide.topics`, `decide.desired`).
"""

from __future__ import annotations

from knafka.ports.log import TopicDescription
from knafka_operator.decide.desired import Topic
from knafka_operator.decide.topics import TopicRefused
from knafka_operator.scale.kafka_clusters import KafkaCluster


async def made_topic(kafka: KafkaCluster, wanted: Topic) -> TopicDescription:
    """Have this topic; gives it as Kafka has it. Raises `LogError`, and `TopicRefused` for one that
    is made and not there."""
    topics = kafka.topics
    await topics.ensure_topic(wanted.name, wanted.partitions, wanted.replication, wanted.config)
    found = await topics.describe_topic(wanted.name)
    if found is None:
        raise TopicRefused("TopicNotFound", f"topic {wanted.name} was made and is not there")
    return found
