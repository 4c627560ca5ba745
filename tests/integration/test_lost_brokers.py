"""Clients go on after librdkafka has lost its brokers (confluentinc/librdkafka#5301).

A node that is fenced again and again, as one that gets too little CPU, answers metadata that name
no broker; some of its clients never find back to it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient
from support.gate import only_chaos
from support.waiting import until, until_found

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.kafka_client import Connection
from knafka.clients.kafka.kafka_liveness import MAX_CONSUMER_SILENCE, Liveness
from knafka.clients.kafka.producers import kafka_producer
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.core.errors import LogError
from knafka_client.sockets import free_port
from knafka_local.kafka.kafka_distribution import KafkaDistribution
from knafka_local.kafka.kafka_server import KafkaServer

pytestmark = pytest.mark.kafka

FLAPPING = {"broker.session.timeout.ms": "400", "broker.heartbeat.interval.ms": "700"}
"""It is fenced 0.3 s of every 0.7 s."""
CLIENTS = 5
LOST_AFTER = 3.0
"""Seconds without an answer, of a node that answers every 0.7 s, after which a client is lost."""
ROUNDS = 5
TOPIC = "events"


class Asking:
    """A client of librdkafka that asks for metadata, twice a second, in a thread."""

    def __init__(self, client: AdminClient | Consumer) -> None:
        self.client = client
        self._answered_at = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        while not self._stopped.wait(0.5):
            try:
                self.client.list_topics(timeout=1)
            except KafkaException:
                continue
            self._answered_at = time.monotonic()

    @property
    def is_lost(self) -> bool:
        return time.monotonic() - self._answered_at > LOST_AFTER

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


@contextmanager
def asking(
    open_one: Callable[[Connection], AdminClient | Consumer], kafka: Connection
) -> Iterator[list[Asking]]:
    clients = [Asking(open_one({**kafka, "log_level": 0})) for _ in range(CLIENTS)]
    try:
        yield clients
    finally:
        for each in clients:
            each.stop()


@pytest.fixture
async def node(kafka_distribution: KafkaDistribution, tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(kafka_distribution, tmp_path / "kafka")
    await made.start({})
    yield made
    await made.server.stop()


class Node:
    """A Kafka that is started with other properties, at the same address."""

    def __init__(self, distribution: KafkaDistribution, directory: Path) -> None:
        self._distribution = distribution
        self._directory = directory
        self._port = 0
        self.server = KafkaServer(distribution, directory)

    async def start(self, properties: dict[str, str]) -> None:
        await self.server.stop()
        self.server = KafkaServer(
            self._distribution, self._directory, port=self._port, properties=properties
        )
        await self.server.start()
        self._port = int(self.server.bootstrap_servers.rpartition(":")[2])
        self.connection: Connection = {"bootstrap.servers": self.server.bootstrap_servers}


async def test_a_consumer_that_reaches_no_broker_is_known_where_kafka_answers_others(
    node: Node,
) -> None:
    """It ends nothing while Kafka answers nobody."""
    await KafkaAdmin(node.connection).ensure_topic(TOPIC, 1, 1, {})
    elsewhere = {"bootstrap.servers": f"127.0.0.1:{free_port()}", "group.id": "g", "log_level": 0}
    with closing(Consumer(elsewhere)) as lost:
        assert await asyncio.to_thread(is_known_as_lost, lost, node)
        await node.server.stop()
        assert not await asyncio.to_thread(is_known_as_lost, lost, node)


@only_chaos
async def test_clients_that_have_lost_their_brokers_are_known_and_replaced(node: Node) -> None:
    """A topic that exists, or a partition that is read, makes librdkafka find back mostly; what
    only asks does not. Which of them is lost for good is luck, so there are some rounds."""
    ours = [KafkaAdmin(node.connection, request_timeout=2) for _ in range(CLIENTS)]
    await ours[0].ensure_topic(TOPIC, 1, 1, {})
    grouped = {**node.connection, "group.id": "g"}
    known: list[AdminClient | Consumer] = []
    with (
        asking(lambda kafka: AdminClient(dict(kafka)), node.connection) as admins,
        asking(lambda kafka: Consumer(dict(kafka)), grouped) as consumers,
    ):
        for _ in range(ROUNDS):
            await node.start(FLAPPING)
            asked = [asyncio.create_task(ask_on(each)) for each in ours]
            await until(lambda: any(each.is_lost for each in admins), 60)
            for each in asked:
                each.cancel()
            await node.start({})
            await asyncio.gather(*(until_found(partial(answered, each)) for each in ours))

            lost = [each.client for each in (*admins, *consumers) if each.is_lost]
            known = [each for each in lost if await asyncio.to_thread(is_known_as_lost, each, node)]
            if known:
                break
    assert known
    with closing(Consumer({**grouped, "log_level": 0})) as found:
        assert not await asyncio.to_thread(is_known_as_lost, found, node)


def is_known_as_lost(client: AdminClient | Consumer, node: Node) -> bool:
    """What `Liveness` says of a client that has heard nothing for long enough to ask."""
    liveness = Liveness(node.connection, TOPIC)
    liveness._ask_at -= MAX_CONSUMER_SILENCE
    try:
        liveness.check(client, heard=False)
    except LogError as error:
        return "lost its brokers" in str(error)
    return False


async def ask_on(admin: KafkaAdmin) -> None:
    while True:
        await answered(admin)


async def answered(admin: KafkaAdmin) -> bool:
    try:
        return await admin.describe_topic(TOPIC) is not None
    except LogError:
        return False


async def renewed(writer: KafkaWriter) -> None:
    before = writer._producers.prompt._producer
    writer._producers.renew()
    await until(lambda: writer._producers.prompt._producer is not before)


async def test_a_writer_goes_on_with_another_producer(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A node that gets too little CPU is fenced for longer than the usual ten seconds.
    monkeypatch.setattr(kafka_producer, "DELIVERY_TIMEOUT", 60.0)
    admin = KafkaAdmin(node.connection)
    await admin.ensure_topic(TOPIC, 1, 1, {})
    writer = KafkaWriter(node.connection)
    reported: list[LogError | None] = []
    for number in range(100):
        if number % 25 == 0:
            await renewed(writer)
        writer.append(TOPIC, b"key", b"%d" % number, [], reported.append)
        await until(lambda: not writer.in_flight)
    assert reported == [None] * 100
    values = [record.value() for record in await admin.read_last(TOPIC, 1000)]
    assert values == [b"%d" % number for number in range(100)]
    await writer.close(5)
