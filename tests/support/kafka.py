"""A real Kafka for the tests: one node for the whole run, started when a test first asks for it.

`KNAFKA_TEST_BOOTSTRAP=host:port` uses a running Kafka instead, which saves its start at every run.
Where Java or the jars can't be had, the tests that need them are skipped with the reason, and fail
in CI (`CI=true`). Registered by `pytest_plugins` in tests/conftest.py.
"""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.gate import IN_CI

from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import RecordHeaders, to_record
from knafka_local.kafka.kafka_distribution import KafkaDistribution, LocalKafkaError, obtain
from knafka_local.kafka.kafka_server import KafkaServer

MakeTopic: TypeAlias = Callable[..., str]
"""`topic(partitions=1, **config) -> name`: a new topic; a config's dots are written as `_`."""

NEVER_KILLED: Final = {
    "broker.session.timeout.ms": "30000",
    "broker.heartbeat.interval.ms": "2000",
}
"""Properties of a node that no test kills. With `DEVELOPMENT_NODE`'s 2 s, a node that gets no
processor for so long is taken for dead, and its partitions get leaders of a new epoch."""
CLASSIC_PROTOCOL: Final = (pytest.mark.kafka, pytest.mark.integration)
"""Marks of a test that is tried with the older group protocol as well; `make test` tries the newer
one."""


@dataclass(frozen=True, slots=True)
class Kafka:
    """The Kafka that all tests share; one that must be stopped or killed makes its own."""

    bootstrap_servers: str


@pytest.fixture(scope="session")
def kafka_distribution() -> KafkaDistribution:
    """Java and the jars, or a skip."""
    try:
        return obtain()
    except LocalKafkaError as error:
        if IN_CI:
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """A running Kafka, for sync and async tests alike."""
    if running := os.environ.get("KNAFKA_TEST_BOOTSTRAP"):
        yield Kafka(running)
        return
    distribution: KafkaDistribution = request.getfixturevalue("kafka_distribution")
    directories: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    server = KafkaServer(distribution, directories.mktemp("kafka"), properties=NEVER_KILLED)
    # A loop and a thread of its own: tests have loops of theirs, each for a single test.
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="kafka", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result()
        yield Kafka(server.bootstrap_servers)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
async def own_kafka(
    kafka_distribution: KafkaDistribution, tmp_path: Path
) -> AsyncIterator[KafkaServer]:
    """A Kafka that may be stopped and killed: not the one that other tests share."""
    # A node that gets no processor for `DEVELOPMENT_NODE`'s 2 s would count as killed; one that is
    # killed comes back after these 6.
    properties = {"broker.session.timeout.ms": "6000"}
    server = KafkaServer(kafka_distribution, tmp_path / "kafka", properties=properties)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def topic(kafka: Kafka) -> Iterator[MakeTopic]:
    """Makes topics with names of their own; they are deleted when the test is over."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    made: list[str] = []

    def make(partitions: int = 1, **config: str | int) -> str:
        name = f"test-{uuid.uuid4().hex}"
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        admin.create_topics([new])[name].result()
        made.append(name)
        return name

    yield make
    if made:
        for deleted in admin.delete_topics(made).values():
            deleted.exception()  # waits; a test may have deleted its topic itself


def transact(
    bootstrap_servers: str,
    topic: str,
    values: Sequence[bytes | None],
    *,
    headers: RecordHeaders | None = None,
    commit: bool = True,
) -> None:
    """Append to partition 0 in one transaction; its marker takes an offset behind the records."""
    producer = Producer(
        {"bootstrap.servers": bootstrap_servers, "transactional.id": uuid.uuid4().hex}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0, headers=headers)  # type: ignore[arg-type]
    assert producer.flush(30) == 0
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def fill(bootstrap_servers: str, topic: str, keys: int, per_key: int) -> None:
    """Store numbered events, as `traffic.Sender` sends them: `per_key` for each of the keys."""
    # Idempotent: a topic that was just made refuses some batches, which would go behind later ones.
    settings = {"batch.size": 16_384, "enable.idempotence": True}
    producer = Producer({"bootstrap.servers": bootstrap_servers, **settings})
    for number in range(per_key):
        for key in range(keys):
            named = {"specversion": "1.0", "id": f"{key}-{number}", "source": "/s", "type": "t"}
            draft = to_record(Event({**named, "subject": str(key)}, b"x" * 100))
            headers: list[tuple[str, str | bytes | None]] = [*draft.headers]
            producer.produce(topic, draft.value, draft.key, headers=headers)
        producer.poll(0)
    assert producer.flush(60) == 0


def names_in(admin: AdminClient) -> set[str]:
    """Of all topics and consumer groups."""
    topics = admin.list_topics(timeout=30).topics
    groups = admin.list_consumer_groups(request_timeout=30).result().valid
    return {*topics, *(each.group_id for each in groups)}
