"""Dead letters in a real Kafka, and the jobs that table them.

Registered by `pytest_plugins` in tests/conftest.py.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.kafka import Kafka

from knafka.core import names
from knafka.core.dead_letter import Failure, Origin, dead_letter_of
from knafka.core.delivery import Reason

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from knafka_jobs.compact.compact_run import CompactResult
    from knafka_jobs.io.delta import Tables
    from knafka_jobs.io.kafka import KafkaClient

TRIGGERS = ("mail", "bill", "ship")
REASONS = [each for each in Reason if each is not Reason.UNDECODABLE]
PARTITIONS = 3


@dataclass
class DeadLetters:
    """Dead letters of one Broker, written as the dispatcher does."""

    bootstrap_servers: str
    namespace: str

    def __post_init__(self) -> None:
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        self.producer = Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "enable.idempotence": True,  # else refused batches end up last
                "linger.ms": 20,
                "message.max.bytes": 64 * 1024 * 1024,  # as the dispatcher's
            }
        )
        for trigger in TRIGGERS:
            self.make(trigger)

    def topic(self, trigger: str) -> str:
        return names.dead_letter_topic(self.namespace, "main", trigger)

    def make(self, trigger: str, **config: str) -> None:
        topic = self.topic(trigger)
        new = NewTopic(topic, PARTITIONS, 1, config=config)
        self.admin.create_topics([new])[topic].result()
        self.until(lambda: topic in self.admin.list_topics(timeout=10).topics)

    def delete(self, *topics: str) -> None:
        for answer in self.admin.delete_topics(list(topics)).values():
            answer.exception()
        self.until(lambda: not set(topics) & set(self.admin.list_topics(timeout=10).topics))

    @staticmethod
    def until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def add(
        self,
        trigger: str,
        number: int,
        reason: Reason = Reason.STATUS,
        word: str = "",
        at: int = 0,
        data: bytes | None = None,
    ) -> None:
        """One of the event of that number; a `word` is its id, and in its data, if there are no
        other `data`; `at` is the record's time in milliseconds, if it has one of its own."""
        id_ = word.encode() or b"%d" % number
        headers = [
            ("ce_specversion", b"1.0"),
            ("ce_id", id_),
            ("ce_source", b"/test"),
            ("ce_type", b"test"),
        ]
        now = time.time()
        code = 503 if reason is Reason.STATUS else None
        failure = Failure(f"http://{trigger}/", reason, 3, now - 1, now, code, b"no")
        origin = Origin(self.namespace, "main", trigger, "broker", 0, number)
        data = b"data of " + id_ if data is None else data
        headers, value = dead_letter_of(headers, data, failure, origin)
        self.append(trigger, headers, value, key=b"%d" % (number % 100), at=at)

    def append(
        self,
        trigger: str,
        headers: list[tuple[str, bytes]] | None,
        value: bytes | None,
        key: bytes | None = None,
        at: int = 0,
    ) -> None:
        topic = self.topic(trigger)
        self.producer.produce(topic, value, key, headers=headers, timestamp=at)  # type: ignore[arg-type]
        self.producer.poll(0)

    def flush(self) -> None:
        assert self.producer.flush(30) == 0

    def clean(self) -> None:
        made = self.admin.list_topics(timeout=10).topics
        if ours := [each for each in made if f"-{self.namespace}-" in each]:
            self.delete(*ours)


@pytest.fixture
def dead(kafka: Kafka) -> Iterator[DeadLetters]:
    made = DeadLetters(kafka.bootstrap_servers, f"test{uuid.uuid4().hex[:8]}")
    yield made
    made.clean()


@pytest.fixture
def client(kafka: Kafka) -> KafkaClient:
    from knafka_jobs.io.kafka import KafkaClient
    from knafka_jobs.io.kafka_connection import KafkaConnection

    return KafkaClient(KafkaConnection(kafka.bootstrap_servers))


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Tables:
    from knafka_jobs.io.delta import Tables

    return Tables(spark, str(tmp_path / "tables"))


def compacted(
    tables: Tables,
    client: KafkaClient,
    dead: DeadLetters,
    keep_hours: float = 0,
    progress: Callable[[str], object] = str,
) -> CompactResult:
    from knafka_jobs.command_options import CompactOptions
    from knafka_jobs.compact.compact_run import compact
    from knafka_jobs.topic_offsets import BrokerName

    options = CompactOptions(BrokerName(dead.namespace, "main"), keep_hours)
    return compact(tables, client, options, progress)


def held(tables: Tables) -> list[tuple[str, int, int]]:
    rows = tables.read("records").select("topic", "partition", "offset").collect()
    return [(row["topic"], row["partition"], row["offset"]) for row in rows]
