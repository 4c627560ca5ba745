"""A contract's topic, as an operator writes it, in memory and on Kafka."""

from __future__ import annotations

import json

from confluent_kafka import Producer
from support.memory.log import MemoryLog

from knafka.core.contract import Egress, Ingress, SharedEgress
from knafka.core.documents import dump

COMPACTED = {"cleanup_policy": "compact"}
"""What such a topic is made with, for the fixture `topic`."""


def record(shard: str, egress: Egress) -> tuple[bytes, bytes]:
    """Key and value."""
    value = json.dumps(dump(SharedEgress(shard=shard, egress=egress)))
    return egress.group.encode(), value.encode()


def ingress_record(ingress: Ingress) -> tuple[bytes, bytes]:
    """Key and value, as a receiver's operator writes them."""
    return ingress.path.encode(), json.dumps(dump(ingress)).encode()


class MemoryContract:
    """Each method gives the position that a dispatcher tells once it delivers by the record."""

    def __init__(self, memory: MemoryLog, topic: str = "contract") -> None:
        self.memory = memory
        self.topic = topic
        memory.create(topic)

    def write(self, shard: str, *egresses: Egress) -> int:
        for each in egresses:
            self.put(*record(shard, each))
        return self.end

    def remove(self, *egresses: Egress) -> int:
        for each in egresses:
            self.put(each.group.encode(), None)
        return self.end

    def put(self, key: bytes, value: bytes | None) -> int:
        self.memory.store(self.topic, key, value, None)
        return self.end

    @property
    def end(self) -> int:
        return len(self.memory.topics[self.topic][0])


class KafkaContract:
    """The same on Kafka; the topic is there already."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.topic = topic
        self._producer = Producer(
            {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True}
        )
        self._end = 0

    def write(self, shard: str, *egresses: Egress) -> int:
        for each in egresses:
            self.put(*record(shard, each))
        return self._end

    def remove(self, *egresses: Egress) -> int:
        for each in egresses:
            self.put(each.group.encode(), None)
        return self._end

    def put(self, key: bytes, value: bytes | None) -> int:
        def stored(error: object, message: object) -> None:
            assert error is None, error
            self._end = message.offset() + 1  # type: ignore[attr-defined]

        self._producer.produce(self.topic, value, key, partition=0, on_delivery=stored)
        assert self._producer.flush(60) == 0
        return self._end
