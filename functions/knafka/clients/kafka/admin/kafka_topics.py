"""Creates a topic where one is rarely needed, as by a dispatcher at its first dead letter.

The admin client is imported and opened only for a request, and closed after it, so that it doesn't
slow a cold start. Not here: all other requests of an admin client (`kafka_admin`).
"""

from __future__ import annotations

from collections.abc import Mapping

from knafka.clients.kafka.kafka_client import Connection


class KafkaTopics:
    """`TopicMaker` on real Kafka."""

    def __init__(self, connection: Connection) -> None:
        """`connection` reaches Kafka; nothing is opened yet."""
        self._connection = connection

    async def ensure_topic(
        self, topic: str, partitions: int, replication: int, config: Mapping[str, str]
    ) -> bool:
        """Create the topic unless it exists, with these numbers of partitions and of replicas
        (`replication`), and these settings. Returns True if it was created, False if it exists
        already. Raises `LogError`."""
        from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin

        admin = KafkaAdmin(self._connection)
        try:
            return await admin.ensure_topic(topic, partitions, replication, config)
        finally:
            await admin.close()
