"""Clients that run go on with a topic that was deleted and created again
(confluentinc/librdkafka#4898).

A node that is restarted leads its partitions with a higher epoch; a new topic begins at 0.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import pytest
from confluent_kafka import Producer
from support.kafka import Kafka, MakeTopic, transact
from support.logs import Owner
from support.mock_kafka import MockKafka
from support.transactions import Holder
from support.waiting import until, until_found

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.consumers import kafka_replaced_topics, kafka_stalled_partitions
from knafka.clients.kafka.consumers.kafka_group_consumer import GroupProtocol
from knafka.clients.kafka.consumers.kafka_positioned import KafkaPositionedReader
from knafka.clients.kafka.consumers.kafka_reader import KafkaReader
from knafka.clients.kafka.consumers.kafka_stalled_partitions import StalledPartitions
from knafka.clients.kafka.producers import (
    kafka_producer,
    kafka_timed_out_topics,
    kafka_writer_producers,
)
from knafka.clients.kafka.producers.kafka_timed_out_topics import ids_of_topics_with_leader
from knafka.clients.kafka.producers.kafka_transactions import KafkaTransactions
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.core.errors import LogError
from knafka.ports.log import OffsetAndMetadata
from knafka.ports.shared_log import BEGINNING, Position
from knafka.ports.transactions import Partition
from knafka_local.kafka.kafka_server import KafkaServer

pytestmark = pytest.mark.kafka

TOPIC, BUSY_TOPIC = "events", "busy"
LOOKS = 5
"""Looks at a consumer's positions after which a stalled one has been replaced."""


@pytest.fixture(autouse=True)
def frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_stalled_partitions, "STALL_CHECK_INTERVAL", 0.5)
    monkeypatch.setattr(kafka_stalled_partitions, "SUSPECT_CHECK_INTERVAL", 0.5)
    # While Kafka restarts, looks are in vain; and a busy machine is slow to open a consumer.
    monkeypatch.setattr(kafka_stalled_partitions, "MAX_STALL_CHECK_INTERVAL", 1.0)
    monkeypatch.setattr(kafka_stalled_partitions, "NEW_CONSUMER_TIMEOUT", 10.0)


class Reading:
    """What a reader returns, which is opened anew after each error, as drains do it."""

    def __init__(self, open_reader: Callable[[], KafkaReader | KafkaPositionedReader]) -> None:
        self._open = open_reader
        self.reader = open_reader()
        self.values: list[bytes] = []
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while True:
            try:
                await self._read_on()
            except LogError:
                await self.reader.close(10)
                self.reader = self._open()

    async def _read_on(self) -> None:
        while True:
            records = await self.reader.read(100, 0.2)
            self.values += [record.value() or b"" for record in records]
            if records and isinstance(self.reader, KafkaReader):
                self.reader.commit({0: OffsetAndMetadata(records[-1].offset() + 1)})

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        await self.reader.close(10)


class TransactionalReading:
    """What a Sensor's log returns of the topic, beside another one's records; it is opened anew
    after each error, as drains do it."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str = TOPIC,
        protocol: GroupProtocol = GroupProtocol.CONSUMER,
    ) -> None:
        self.topic, self._protocol = topic, protocol
        self.log: KafkaTransactions | None = None
        self.values: list[bytes] = []
        self.errors: list[str] = []
        self._connection = {"bootstrap.servers": bootstrap_servers}
        self._ends = threading.Event()
        self._task = asyncio.create_task(asyncio.to_thread(self._read))

    def _read(self) -> None:
        while not self._ends.is_set():
            topics, group = [self.topic, BUSY_TOPIC], f"sensor-{self.topic}"
            log = KafkaTransactions(
                self._connection, group, topics, Holder(), group, protocol=self._protocol
            )
            self.log = log
            try:
                while not self._ends.is_set():
                    self._read_once(log)
            except LogError as error:
                self.errors.append(str(error))
            finally:
                log.close(10)

    def _read_once(self, log: KafkaTransactions) -> None:
        records = log.read(100, 0.2)
        self.values += [record.value() or b"" for record in records if record.topic() == self.topic]
        if records:
            positions = {
                Partition(record.topic(), 0): OffsetAndMetadata(record.offset() + 1)
                for record in records
            }
            log.commit([], positions)

    async def close(self) -> None:
        self._ends.set()
        await self._task


def has_read(reading: Reading | TransactionalReading, values: Sequence[bytes]) -> bool:
    """Whether a reading has these values, in this order, each at least once."""
    return list(dict.fromkeys(reading.values)) == values


def produce(bootstrap_servers: str, values: Sequence[bytes], topic: str = TOPIC) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def keep_busy(bootstrap_servers: str, ends: threading.Event) -> None:
    """Produce to the other topic without a pause in which a read would return nothing."""
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    while not ends.wait(0.02):
        producer.produce(BUSY_TOPIC, b"busy")
        producer.poll(0)
    producer.flush(30)


# A Sensor's producer is closed while its request to a Kafka that restarts is under way.
@pytest.mark.filterwarnings("ignore:Producer abort_transaction failed during close")
async def test_consumers_read_a_new_topic_whose_leader_epoch_is_lower_than_the_old_ones(
    own_kafka: KafkaServer,
) -> None:
    servers = own_kafka.bootstrap_servers
    connection = {"bootstrap.servers": servers}
    for topic in (TOPIC, BUSY_TOPIC):
        await KafkaAdmin(connection).ensure_topic(topic, 1, 1, {})
    ends = threading.Event()
    busy = asyncio.create_task(asyncio.to_thread(keep_busy, servers, ends))

    def open_positioned() -> KafkaPositionedReader:
        reader = KafkaPositionedReader(connection, TOPIC)
        reader.begin({0: Position(BEGINNING)})
        return reader

    def open_member(protocol: GroupProtocol) -> KafkaReader:
        return KafkaReader(connection, protocol, TOPIC, Owner(), protocol)

    sensor = TransactionalReading(servers)
    readings: list[Reading | TransactionalReading] = [
        sensor,
        Reading(open_positioned),
        *(Reading(partial(open_member, protocol)) for protocol in GroupProtocol),
    ]
    try:
        await own_kafka.stop()
        await own_kafka.start()
        old_values = [b"old %d" % number for number in range(3)]
        await asyncio.to_thread(produce, servers, old_values)
        for reading in readings:
            await until(partial(has_read, reading, old_values))

        admin = KafkaAdmin(connection)
        await admin.delete_topic(TOPIC)
        await until_found(partial(admin.ensure_topic, TOPIC, 1, 1, {}))
        # More than the old topic had, which are not to be skipped.
        new_values = [b"new %d" % number for number in range(7)]
        await asyncio.to_thread(produce, servers, new_values)
        for reading in readings:
            await until(partial(has_read, reading, old_values + new_values))
        assert any("it must be replaced" in error for error in sensor.errors)
    finally:
        ends.set()
        await asyncio.gather(busy, *(reading.close() for reading in readings))


async def test_readers_return_all_of_a_new_topic_that_has_more_records_than_the_old_one(
    kafka: Kafka, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka goes on at its position in the old one."""
    monkeypatch.setattr(kafka_replaced_topics, "TOPIC_ID_INTERVAL", 0.5)
    name, connection = topic(), {"bootstrap.servers": kafka.bootstrap_servers}

    def open_positioned() -> KafkaPositionedReader:
        reader = KafkaPositionedReader(connection, name)
        reader.begin({0: Position(BEGINNING)})
        return reader

    def open_member(protocol: GroupProtocol) -> KafkaReader:
        return KafkaReader(connection, f"{name}-{protocol}", name, Owner(), protocol)

    readings: list[Reading | TransactionalReading] = [
        # A group of the consumer protocol may hear of the new topic.
        TransactionalReading(kafka.bootstrap_servers, name, GroupProtocol.CLASSIC),
        Reading(open_positioned),
        *(Reading(partial(open_member, protocol)) for protocol in GroupProtocol),
    ]
    old_values, new_values = ([b"%b %d" % (log, n) for n in range(7)] for log in (b"old", b"new"))

    async def until_read(values: Sequence[bytes]) -> None:
        await asyncio.to_thread(produce, kafka.bootstrap_servers, values, name)
        for reading in readings:
            await until(partial(has_all, reading, values))

    try:
        await until_read(old_values[:3])
        for reading in readings:
            await until(partial(knows_id, reading, name))
        admin = KafkaAdmin(connection)
        await admin.delete_topic(name)
        await until_found(partial(admin.ensure_topic, name, 1, 1, {}))
        await until_read(new_values)
    finally:
        await asyncio.gather(*(reading.close() for reading in readings))


def has_all(reading: Reading | TransactionalReading, values: Sequence[bytes]) -> bool:
    """Whether a reading has these values, in any order."""
    return set(reading.values) >= set(values)


def knows_id(reading: Reading | TransactionalReading, topic: str) -> bool:
    """Whether the reader has read the topic's id, by which it notices another one of the name."""
    if isinstance(reading, Reading):
        return bool(reading.reader._replaced.topic_id(topic))
    return reading.log is not None and bool(reading.log._member._replaced.topic_id(topic))


async def test_a_consumer_that_waits_for_an_open_transaction_is_not_replaced(
    kafka: Kafka, topic: MakeTopic
) -> None:
    """Nor one that stands before a transaction's marker."""
    name = topic()
    await asyncio.to_thread(transact, kafka.bootstrap_servers, name, [b"1"])
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name})
    await asyncio.to_thread(producer.init_transactions, 30)
    reader = KafkaReader({"bootstrap.servers": kafka.bootstrap_servers}, name, name, Owner())
    reading = Reading(lambda: reader)
    try:
        await until(lambda: reading.values == [b"1"])
        membership = reader._membership
        consumer = membership.consumer
        await looked_at(membership.stalled)
        producer.begin_transaction()
        producer.produce(name, b"2", partition=0)
        assert await asyncio.to_thread(producer.flush, 30) == 0
        await looked_at(membership.stalled)
        await asyncio.to_thread(producer.commit_transaction, 30)
        await until(lambda: reading.values == [b"1", b"2"])
        await looked_at(membership.stalled)
        assert membership.consumer is consumer
    finally:
        await reading.close()


async def looked_at(stalled: StalledPartitions) -> None:
    """Wait until the positions were looked at as often as it takes to replace a consumer."""
    for _ in range(LOOKS):
        before = stalled._check_at
        await until(partial(lambda before: stalled._check_at != before, before))


@pytest.fixture
def impatient_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_producer, "DELIVERY_TIMEOUT", 2.0)
    monkeypatch.setattr(kafka_timed_out_topics, "DESCRIBE_DELAY", 0.1)
    monkeypatch.setattr(kafka_writer_producers, "RETIREMENT_TIME", 0.1)


async def test_a_writer_stores_records_in_a_new_topic_whose_leader_epoch_is_lower_than_the_old_ones(
    mock_kafka: MockKafka, impatient_writers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The mock has no controller, which describes topics.
    described: list[set[tuple[str, int]]] = []

    def ids(connection: object, partitions: set[tuple[str, int]]) -> dict[str, str]:
        described.append(partitions)
        return {TOPIC: "id"}

    monkeypatch.setattr(kafka_timed_out_topics, "ids_of_topics_with_leader", ids)
    mock_kafka.create_topic(TOPIC, leader=1)
    for leader in (2, 1):
        mock_kafka.lead(TOPIC, leader)
    writer = KafkaWriter({"bootstrap.servers": mock_kafka.bootstrap_servers})
    reported: list[LogError | None] = []

    async def is_stored() -> bool:
        """Append a record of a key that is always in flight, as its sender is busy."""
        with suppress(LogError):  # until records of the key in the former producer are reported
            writer.append(TOPIC, b"key", b"value", [], reported.append)
        return None in reported

    try:
        await until_found(is_stored)
        mock_kafka.delete_topic(TOPIC)
        mock_kafka.create_topic(TOPIC, leader=2)
        await until(lambda: not writer.in_flight)
        reported.clear()
        await until_found(is_stored)
        assert described == [{(TOPIC, 0)}]
    finally:
        await writer.close(1)


async def test_only_partitions_with_a_leader_make_a_writer_replace_its_producers(
    kafka: Kafka, topic: MakeTopic
) -> None:
    connection = {"bootstrap.servers": kafka.bootstrap_servers}
    name = topic()
    description = await KafkaAdmin(connection).describe_topic(name)
    assert description is not None
    partitions = {(name, 0), ("missing", 0)}
    assert await asyncio.to_thread(ids_of_topics_with_leader, connection, partitions) == {
        name: description.id
    }
    assert await asyncio.to_thread(ids_of_topics_with_leader, connection, {(name, 1)}) == {}
