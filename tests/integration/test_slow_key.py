"""One slow key doesn't slow the others, on one partition of a real Kafka."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support import functions, traffic
from support.kafka import Kafka, MakeTopic

from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.core import contract
from knafka.core.contract import Egress, Sink
from knafka.core.drain import DrainRequest
from knafka.core.errors import LogError

SLOW_SECONDS = 2.0
OTHERS = [f"other-{number}" for number in range(20)]
PER_KEY = 10


@pytest.mark.kafka
async def test_the_other_keys_are_done_while_a_slow_key_still_waits(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """Per-key order without head-of-line blocking: upstream's order blocks them all."""
    name = topic(partitions=1)
    slow_began = asyncio.Event()

    async def behave(key: str, number: int) -> int:
        if key == "slow":
            slow_began.set()
            await asyncio.sleep(SLOW_SECONDS)
        return 200

    writer = KafkaWriter({"bootstrap.servers": kafka.bootstrap_servers})
    reports: list[LogError | None] = []
    for number in range(PER_KEY):
        for key in ("slow", *OTHERS):
            event = {
                "ce_specversion": "1.0", "ce_type": "t", "ce_source": "/s",
                "ce_id": f"{key}-{number}", "ce_subject": key,
            }  # fmt: skip
            headers = [(header, value.encode()) for header, value in event.items()]
            writer.append(name, key.encode(), b"x", headers, reports.append)
    await writer.close(10)
    assert reports == [None] * PER_KEY * (1 + len(OTHERS))

    async with traffic.CountingSubscriber(behave) as subscriber:
        egress = Egress(
            namespace="test", broker="b", trigger="t", topic=name, group=f"group-{name}",
            dead_letter_topic="unused", subscriber=Sink(url=subscriber.url),
            kafka=contract.Kafka(bootstrap_servers=kafka.bootstrap_servers),
        )  # fmt: skip
        async with functions.dispatcher(egress, tmp_path / "log") as dispatcher:
            await dispatcher.ready()

            async def drain() -> None:
                async for _ in functions.drain(dispatcher, DrainRequest(idle=30, budget=60)):
                    pass

            draining = asyncio.create_task(drain())
            await subscriber.arrivals.reach(PER_KEY * len(OTHERS), within=30)
            assert slow_began.is_set(), "the slow key was under way all the time"
            slow = subscriber.arrivals.first("slow")
            assert len(slow) <= 2, "ten slow events take 20 s: the others did not wait for them"
            for key in OTHERS:
                assert subscriber.arrivals.first(key) == list(range(PER_KEY))
            await subscriber.arrivals.reach(PER_KEY * len(OTHERS) + 3, within=30)
            slow = subscriber.arrivals.first("slow")
            assert slow == list(range(len(slow))), "and the slow key keeps its own order"
            draining.cancel()
