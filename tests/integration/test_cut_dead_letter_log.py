"""A dead-letter topic whose log was cut, as by an unclean election, on a real Kafka and Spark."""

from __future__ import annotations

import asyncio
import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.gate import only_chaos
from support.letters import DeadLetters, compacted

from knafka.core import names
from knafka_jobs.command_options import FailureSelection
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.io.kafka_connection import KafkaConnection
from knafka_jobs.replay.replay_run import replay
from knafka_jobs.topic_offsets import BrokerName
from knafka_local.kafka.kafka_distribution import KafkaDistribution
from knafka_local.kafka.kafka_server import KafkaServer

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(1200),  # it starts a Kafka three times
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves sockets open
]


class StoppedKafka:
    """A Kafka of one's own that may be stopped, and whose disk may be changed meanwhile."""

    def __init__(self, server: KafkaServer) -> None:
        self.server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result()

    def close(self) -> None:
        self.run(self.server.stop())
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def stopped_kafka(
    kafka_distribution: KafkaDistribution, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StoppedKafka]:
    kafka = StoppedKafka(KafkaServer(kafka_distribution, tmp_path_factory.mktemp("cut-kafka")))
    kafka.run(kafka.server.start())
    yield kafka
    kafka.close()


@only_chaos
@pytest.mark.parametrize("new", [30, 65, 70])
def test_of_a_log_that_was_cut_each_letter_is_tabled_sent_and_deleted_once(
    stopped_kafka: StoppedKafka, tables: Tables, new: int
) -> None:
    """From 100 to 60, and it grows again: 40 letters are in the table alone, the new ones that got
    their offsets are letters of their own, and only what is tabled is deleted."""
    server = stopped_kafka.server
    dead = DeadLetters(server.bootstrap_servers, f"cut{uuid.uuid4().hex[:8]}")
    client = KafkaClient(KafkaConnection(server.bootstrap_servers))
    mail = dead.topic("mail")

    def add(first: int, count: int) -> None:
        for number in range(first, first + count):
            dead.add("mail", 100 * number)  # whose keys are one, and so is their partition
        dead.flush()

    add(0, 60)
    spans = client.topics([mail])[mail].spans
    (filled,) = [number for number, span in spans.items() if span.end]
    stopped_kafka.run(server.stop())
    (log,) = Path(server.directory).rglob(f"{mail}-{filled}")
    shutil.copytree(log, kept := log.parent.parent / "kept")
    stopped_kafka.run(server.start())
    add(60, 40)
    assert compacted(tables, client, dead, keep_hours=1).records == 100
    stopped_kafka.run(server.stop())
    shutil.rmtree(log)
    kept.rename(log)
    stopped_kafka.run(server.start())
    add(1000, new)

    found = compacted(tables, client, dead)
    assert (found.records, found.deleted, found.missed) == (new, 60 + new, 0)
    topics = client.dead_letter_topics(BrokerName(dead.namespace, "main"))
    assert all(span.start == span.end for span in topics[mail].spans.values())
    rows = tables.read("failures").select("id", "failures").collect()
    numbers = [*range(100), *range(1000, 1000 + new)]
    expected = {str(100 * number) for number in numbers}
    assert {row["id"]: row["failures"] for row in rows} == dict.fromkeys(expected, 1)
    assert compacted(tables, client, dead).records == 0

    assert replay(tables, client, FailureSelection(), None, "me", None, print).sent == 100 + new
    replayed = names.replay_topic(dead.namespace, "main", "mail")
    consumer = client.consumer(**{"group.id": "all", "auto.offset.reset": "earliest"})
    consumer.subscribe([replayed])
    sent: Counter[str] = Counter()
    while len(sent) < 100 + new:
        record = consumer.poll(20)
        assert record is not None
        headers: dict[str, bytes] = dict(record.headers() or [])  # type: ignore[arg-type]
        assert record.value() == b"data of " + headers["ce_id"]
        sent[headers["ce_id"].decode()] += 1
    consumer.close()
    assert sent == Counter(expected)
