"""A record waits for no company on a real Kafka, whatever linger time the batches have."""

from __future__ import annotations

import asyncio

import pytest
from support.kafka import Kafka, MakeTopic

from knafka.clients.kafka.producers import kafka_writer, kafka_writer_producers
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.core.errors import LogError

LINGER_MS = 9_000
"""As long as a producer takes: far longer than the test waits."""
SOON = 5.0


@pytest.mark.kafka
async def test_records_that_come_in_short_order_are_written_without_lingering(
    kafka: Kafka, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, and some while others are in flight: neither waits for a batch."""
    monkeypatch.setattr(kafka_writer_producers, "LINGER_MS", LINGER_MS)
    writer = KafkaWriter({"bootstrap.servers": kafka.bootstrap_servers})
    name = topic()
    await writer.reach(SOON)
    for count in (1, 1, 1, 5, kafka_writer.MANY_IN_FLIGHT):
        answers = []
        for _ in range(count):
            answer: asyncio.Future[LogError | None] = asyncio.Future()
            writer.append(name, None, b"x", [], answer.set_result)
            answers.append(answer)
        assert await asyncio.wait_for(asyncio.gather(*answers), SOON) == [None] * count
    await writer.close(SOON)
