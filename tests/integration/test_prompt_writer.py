"""A real producer doesn't linger over a record that comes alone."""

from __future__ import annotations

import asyncio

import pytest
from support.kafka import Kafka, MakeTopic
from support.waiting import until

from knafka.clients import kafka_log
from knafka.clients.kafka_log import KafkaWriter
from knafka.core.errors import LogError

LINGER_MS = 9_000
"""As long as the producer takes: far longer than the test waits."""
SOON = 5.0


@pytest.mark.kafka
async def test_a_record_after_a_quiet_time_is_written_before_its_producer_would_send_it(
    kafka: Kafka, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_log, "LINGER_MS", LINGER_MS)
    monkeypatch.setattr(kafka_log, "QUIET", 0)
    monkeypatch.setattr(kafka_log, "HASTE", SOON)  # on a busy machine a millisecond is too short
    writer = KafkaWriter({"bootstrap.servers": kafka.bootstrap_servers})
    name = topic()
    reports: list[LogError | None] = []
    writer.append(name, None, b"x", [], reports.append)  # until it knows the topic it can't hurry
    await asyncio.to_thread(writer._producer.flush, SOON)
    for _ in range(3):
        answer: asyncio.Future[LogError | None] = asyncio.Future()
        await until(lambda: not writer._busy)
        writer.append(name, None, b"x", [], answer.set_result)
        assert await asyncio.wait_for(answer, SOON) is None
    await writer.close(SOON)
    assert reports == [None]
