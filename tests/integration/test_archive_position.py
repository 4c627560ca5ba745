"""What a DeadLetterArchive's Job has compacted, as the operator reads it of a real Kafka."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from support.kafka import Kafka
from support.letters import DeadLetters

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core import names
from knafka_jobs.topic_offsets import BrokerName
from knafka_operator.archives.uncompacted import UncompactedCounts
from knafka_operator.archives.uncompacted import UncompactedDeadLetters as Waits
from knafka_operator.kafka.clusters import KafkaCluster

if TYPE_CHECKING:
    from knafka_jobs.io.kafka import KafkaClient

pytestmark = pytest.mark.kafka


async def test_what_a_job_commits_waits_no_more_and_what_came_since_does(
    kafka: Kafka, dead: DeadLetters, client: KafkaClient
) -> None:
    """Without a word between Job and operator but the group's offsets."""
    for number in range(30):
        dead.add("mail", number)
    dead.flush()
    admin = KafkaAdmin({"bootstrap.servers": kafka.bootstrap_servers})
    cluster = KafkaCluster(admin, None, None)  # type: ignore[arg-type]  # nothing is scaled
    group, known = names.archive_group(dead.namespace, "kept", "uid"), UncompactedCounts()

    async def waiting() -> int:
        known.forget()
        return await Waits().count_uncompacted(cluster, dead.namespace, "main", group, known)

    try:
        assert await waiting() == 30
        broker = BrokerName(dead.namespace, "main")
        seen = await asyncio.to_thread(client.dead_letter_topics, broker)
        for number in range(30, 37):
            dead.add("bill", number)
        dead.flush()
        await asyncio.to_thread(client.commit, group, seen)
        assert await waiting() == 7
    finally:
        await admin.close()
