"""Logs that have lost their ends, as in an unclean leader election, on a real Kafka.

logs = CutLogs(server)
logs.make(["events"])             # 20 records in each topic, of one leader epoch
await logs.cut({"events": 5})     # Kafka is restarted: 5 are left, and a new epoch begins there
logs.append("events", 95)         # its records take the offsets of lost ones
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from knafka_local.kafka.kafka_server import KafkaServer

RECORDS = 20
"""Records of each topic before it is cut."""


class CutLogs:
    """Topics of one partition on a Kafka that is stopped while they are cut."""

    def __init__(self, server: KafkaServer) -> None:
        self.server = server
        self.connection = {"bootstrap.servers": server.bootstrap_servers}

    def make(self, topics: Iterable[str]) -> None:
        """Create topics, and append the values `old-0` to `old-19`, each in a batch of its own."""
        names = list(topics)
        admin = AdminClient({**self.connection, "log_level": 0})
        for created in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
            created.result()
        producer = self._producer()
        for number in range(RECORDS):
            for name in names:
                producer.produce(name, b"old-%d" % number)
            assert producer.flush(30) == 0

    async def cut(self, ends: Mapping[str, int]) -> None:
        """Restart Kafka, and meanwhile take away each topic's records from this offset on."""
        await self.server.stop()
        for topic, end in ends.items():
            (folder,) = self.server.directory.rglob(f"{topic}-0")
            cut_log(folder, end)
        await self.server.start()

    def append(self, topic: str, count: int) -> None:
        """Append the values `new-0`, `new-1`, ..."""
        producer = self._producer()
        for number in range(count):
            producer.produce(topic, b"new-%d" % number)
        assert producer.flush(30) == 0

    def _producer(self) -> Producer:
        # Idempotent: on a busy machine others append a record twice whose answer comes too late.
        options = {"linger.ms": 0, "enable.idempotence": True, "log_level": 0}
        return Producer({**self.connection, **options})


def cut_log(folder: Path, end: int) -> None:
    """Take the batches from the offset `end` on out of a partition's only segment, while Kafka is
    stopped; its leader-epoch checkpoint stays, as in a replica that never had them."""
    (segment,) = folder.glob("*.log")
    data, position = segment.read_bytes(), 0
    while position < len(data):
        offset, size = struct.unpack_from(">qi", data, position)
        if offset >= end:
            break
        position += 12 + size
    segment.write_bytes(data[:position])
    for index in [*folder.glob("*.index"), *folder.glob("*.timeindex"), *folder.glob("*.snapshot")]:
        index.unlink()  # Kafka makes them anew
