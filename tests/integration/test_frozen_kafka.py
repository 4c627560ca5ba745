"""A dispatcher ends in time even when Kafka neither answers nor hangs up."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from support import functions, traffic
from support.waiting import until, until_frozen

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core.contract import Egress, Kafka, Sink
from knafka.core.drain import DrainRequest
from knafka_local.kafka.kafka_distribution import KafkaDistribution
from knafka_local.kafka.kafka_server import KafkaServer


@pytest.mark.kafka
async def test_sigterm_ends_a_dispatcher_within_10_s_while_kafka_is_frozen(
    kafka_distribution: KafkaDistribution, tmp_path: Path
) -> None:
    """librdkafka's close hangs for as long as Kafka is frozen; the process must not."""
    server = KafkaServer(kafka_distribution, tmp_path / "kafka")
    await server.start()
    assert server.pid is not None
    try:
        admin = KafkaAdmin({"bootstrap.servers": server.bootstrap_servers})
        await admin.ensure_topic("events", 2, 1, {})
        async with traffic.CountingSubscriber() as subscriber:
            egress = Egress(
                namespace="test", broker="b", trigger="t", topic="events", group="g",
                dead_letter_topic="dead", subscriber=Sink(url=subscriber.url),
                kafka=Kafka(bootstrap_servers=server.bootstrap_servers),
            )  # fmt: skip
            async with functions.dispatcher(egress, tmp_path / "log") as dispatcher:
                await dispatcher.ready()
                owned: list[int] = []

                async def drain() -> None:
                    async for progress in functions.drain(dispatcher, DrainRequest()):
                        owned[:] = progress.partitions

                draining = asyncio.create_task(drain())
                await until(lambda: len(owned) == 2)
                os.kill(server.pid, signal.SIGSTOP)
                await until_frozen(server.pid)
                await dispatcher.terminate(within=10)
                draining.cancel()
    finally:
        os.kill(server.pid, signal.SIGCONT)
        await server.stop()
