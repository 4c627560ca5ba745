"""Making a topic where one is seldom needed: a dispatcher at its first dead letter.

The admin client is imported and opened for each request, and let go after it, so that a cold start
pays nothing for it. Not here: all else that an admin client can do (`kafka_admin`).
"""

from __future__ import annotations

from collections.abc import Mapping

from knafka.clients.kafka.kafka_client import Connection


class KafkaTopics:
    """`TopicMaker` on real Kafka."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def ensure_topic(
        self, topic: str, partitions: int, replication: int, config: Mapping[str, str]
    ) -> bool:
        """Create the topic unless it exists; returns whether it was created. Raises `LogError`."""
        from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin

        admin = KafkaAdmin(self._connection)
        try:
            return await admin.ensure_topic(topic, partitions, replication, config)
        finally:
            await admin.close()
