"""Every setting that a Broker or Trigger may make, at once, on a real Kafka: events still pass."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest
from support.kafka import Kafka, MakeTopic
from support.logs import SOON, Owner

from knafka.clients.kafka.consumers.kafka_reader import KafkaReader
from knafka.clients.kafka.kafka_connection import consumer_configuration, producer_configuration
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.core import contract
from knafka.core.errors import LogError

pytestmark = pytest.mark.kafka

COUNT: Final = 300
CONNECTIONS: Final = {
    "connections.max.idle.ms": "180000",
    "metadata.max.age.ms": "180000",
    "socket.keepalive.enable": "true",
}


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_events_pass_with_every_setting(
    kafka: Kafka, topic: MakeTopic, compression: str
) -> None:
    name = topic()
    kafka_of_contract = contract.Kafka(
        bootstrap_servers=kafka.bootstrap_servers,
        producer={
            "compression.type": compression,
            "compression.level": "3",
            "linger.ms": "20",
            "batch.size": "16384",
            **CONNECTIONS,
        },
        consumer={
            "client.rack": "zone-a",
            "fetch.min.bytes": "100",
            "fetch.max.wait.ms": "50",
            "fetch.max.bytes": "1048576",
            "max.partition.fetch.bytes": "16384",
            **CONNECTIONS,
        },
    )
    writer = KafkaWriter(producer_configuration(kafka_of_contract))
    reader = KafkaReader(consumer_configuration(kafka_of_contract), name, name, Owner())
    failures: list[LogError | None] = []
    sent = [b"%d" % number * 100 for number in range(COUNT)]
    for value in sent:
        writer.append(name, b"k", value, [], failures.append)
    got: list[bytes | None] = []
    async with asyncio.timeout(SOON):
        while len(got) < COUNT:
            got += [each.value() for each in await reader.read(100, 0.2)]
    assert got == sent
    await reader.close(5)
    # A record can be read before its producer has been told: it has been once the writer is closed.
    await writer.close(5)
    assert failures == [None] * COUNT
