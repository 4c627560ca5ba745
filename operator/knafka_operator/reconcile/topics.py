"""Topics: the one of a Broker or KafkaChannel, made where it isn't there.

Not here: whose it is, and how it should be (`decide.topics`, `decide.desired`).
"""

from __future__ import annotations

import logging

from knafka.ports.log import LogAdmin, TopicDescription
from knafka_operator.decide.desired import Topic
from knafka_operator.decide.topics import TopicRefused, may_delete
from knafka_operator.scale.kafka_clusters import KafkaCluster

log = logging.getLogger(__name__)


async def made_topic(
    kafka: KafkaCluster, wanted: Topic, *, may_be_used: bool = False
) -> TopicDescription:
    """Have this topic; gives it as Kafka has it. Raises `LogError`, and `TopicRefused` for one that
    is made and not there, or that somebody else has made meanwhile."""
    topics = kafka.topics
    of = wanted.name, wanted.partitions, wanted.replication, wanted.config
    is_new = await topics.ensure_topic(*of)
    if not (is_new or may_be_used) and await is_used(topics, wanted.name):
        message = f"topic {wanted.name} was made by somebody else: delete it, or rename this object"
        raise TopicRefused("TopicNotOurs", message)
    found = await topics.describe_topic(wanted.name)
    if found is None:
        raise TopicRefused("TopicNotFound", f"topic {wanted.name} was made and is not there")
    return found


async def is_used(topics: LogAdmin, name: str) -> bool:
    """Whether anything was ever written to a topic; raises `LogError`."""
    return any((await topics.end_offsets(name)).values())


async def topic_to_delete(
    topics: LogAdmin, name: str, known_id: str | None, *, claimed: bool
) -> TopicDescription | None:
    """The topic, if it is the one that was made for an object that goes; None: it is not to be
    deleted. Raises `LogError`."""
    found = await topics.describe_topic(name)
    used = found is not None and not known_id and await is_used(topics, name)
    if may_delete(found, known_id, used=used, claimed=claimed):
        return found
    if found is not None:
        log.warning("topic %s is left: it isn't known to be that of what is deleted", name)
    return None
