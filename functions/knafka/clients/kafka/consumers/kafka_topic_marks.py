"""Reads the marks of topics (`core.commit_metadata`), for clients that block their thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import TopicCollection

from knafka.core.commit_metadata import short_id

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


def read_topic_mark(admin: AdminClient, topic: str, timeout: float) -> str:
    """Return the mark of the topic that has this name now; new commits must have this mark. Empty
    if Kafka sends no id of the topic. Blocks for `timeout` seconds at most. Raises
    `KafkaException`, also if there is no such topic."""
    names = TopicCollection([topic])
    description = admin.describe_topics(names, request_timeout=timeout)[topic].result()
    return short_id(str(description.topic_id))
