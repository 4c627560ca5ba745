"""Offsets are known again once Kafka has been restarted.

Its partitions have leaders of a new epoch then, which an admin client doesn't notice (librdkafka
2.16.1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from support.waiting import stretched

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.consumers.kafka_bounded_reader import BoundedReader
from knafka.core.errors import LogError
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.io.kafka_connection import KafkaConnection
from knafka_jobs.job_errors import JobError
from knafka_local.kafka.kafka_server import KafkaServer

pytestmark = pytest.mark.kafka

T = TypeVar("T")


async def test_a_restart_of_kafka_leaves_no_client_without_offsets(own_kafka: KafkaServer) -> None:
    """They failed for minutes, with FENCED_LEADER_EPOCH."""
    admin = KafkaAdmin({"bootstrap.servers": own_kafka.bootstrap_servers}, request_timeout=3.0)
    await admin.ensure_topic("events", 1, 1, {})
    jobs = KafkaClient(KafkaConnection(own_kafka.bootstrap_servers))

    reader = BoundedReader({"bootstrap.servers": own_kafka.bootstrap_servers}, "reader")

    def first_offsets() -> object:
        return jobs.offsets_at([("events", 0)], 0.0)

    def all_records() -> object:
        return list(reader.read_all("events", 0))

    async def ask_each(group: str) -> list[object]:
        await answered(lambda: admin.ensure_committed(group, "events"))
        first = await answered(lambda: asyncio.to_thread(first_offsets))
        return [first, await answered(lambda: asyncio.to_thread(all_records))]

    before = await ask_each("first")
    await own_kafka.stop()
    await own_kafka.start()
    assert await ask_each("second") == before
    await asyncio.to_thread(reader.close)


async def answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Its first answer: a client may have read while Kafka stopped that there is no leader."""
    async with asyncio.timeout(stretched(30)):
        while True:
            try:
                return await ask()
            except (LogError, JobError):
                await asyncio.sleep(0.2)
