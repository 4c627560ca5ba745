"""What a reader commits beside an offset, and that it asks for it itself."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from support.kafka import Kafka, MakeTopic

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.consumers import (
    kafka_elections,
    kafka_group_consumer,
    kafka_membership,
)
from knafka.clients.kafka.consumers.kafka_reader import KafkaReader
from knafka.clients.kafka.kafka_commits import metadata_of
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.core.errors import LogError
from knafka.ports.log import Commits, OffsetAndMetadata, Record, Start
from knafka_local.kafka.kafka_distribution import KafkaDistribution
from knafka_local.kafka.kafka_server import KafkaServer

pytestmark = pytest.mark.kafka

COMMITTED = OffsetAndMetadata(1, "what must not be lost")


class Noting:
    """An `Assignment` that notes what it is told."""

    def __init__(self) -> None:
        self.committed: dict[int, OffsetAndMetadata | None] = {}
        self.losses: list[list[int]] = []

    def on_assigned(self, partitions: Mapping[int, OffsetAndMetadata | None]) -> None:
        self.committed.update(partitions)

    async def on_revoked(self, partitions: Sequence[int]) -> Commits:
        assert set(partitions) <= set(self.committed), "nothing is taken that wasn't given"
        return {}

    def on_lost(self, partitions: Sequence[int]) -> None:
        self.losses.append(list(partitions))


class HasRead(Noting):
    """Notes as well what is revoked, and commits the first record of it."""

    def __init__(self) -> None:
        super().__init__()
        self.revoked: list[int] = []

    async def on_revoked(self, partitions: Sequence[int]) -> Commits:
        self.revoked += partitions
        return dict.fromkeys(partitions, OffsetAndMetadata(1, "revoked"))


class Unanswered(Consumer):
    """A consumer whose first questions for what is committed fail."""

    failures = 0

    def committed(self, *args: Any, **kwargs: Any) -> list[TopicPartition]:
        if Unanswered.failures:
            Unanswered.failures -= 1
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return super().committed(*args, **kwargs)


@pytest.fixture
def place(kafka: Kafka, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A topic of two records and a group that has committed the first one."""
    name, group = topic(), uuid.uuid4().hex
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in (b"0", b"1"):
        producer.produce(name, value)
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(name, 0, *COMMITTED)], asynchronous=False)
    consumer.close()
    monkeypatch.setattr(kafka_group_consumer, "Consumer", Unanswered)
    return name, group


async def test_a_question_that_fails_for_a_while_is_asked_again(
    kafka: Kafka, place: tuple[str, str]
) -> None:
    name, group = place
    Unanswered.failures = 3
    owner = Noting()
    reader = KafkaReader({"bootstrap.servers": kafka.bootstrap_servers}, group, name, owner)
    async with asyncio.timeout(30):
        while not (records := await reader.read(10, 1.0)):
            pass
    assert [record.value() for record in records] == [b"1"]
    assert owner.committed == {0: COMMITTED}
    await reader.close(5)


async def test_without_an_answer_nothing_is_read_and_every_read_says_so(
    kafka: Kafka, place: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, group = place
    monkeypatch.setattr(kafka_membership, "COMMITTED_TIMEOUT", 0.5)
    Unanswered.failures = 1_000_000
    owner = Noting()
    reader = KafkaReader({"bootstrap.servers": kafka.bootstrap_servers}, group, name, owner)
    async with asyncio.timeout(30):
        while owner.committed == {}:
            try:
                assert list(await reader.read(10, 1.0)) == []
            except LogError:
                break
    with pytest.raises(LogError):
        await reader.read(10, 1.0)
    assert owner.committed == {}
    await reader.close(5)


async def test_a_commit_has_the_leader_epoch_of_what_was_read_and_the_next_reader_goes_on_there(
    kafka_distribution: KafkaDistribution, tmp_path: Path
) -> None:
    """By it a member that reads when a leader is elected learns that the log has lost that offset;
    too low an epoch would take a new leader for that, and the topic would be read again."""
    server = KafkaServer(kafka_distribution, tmp_path / "kafka")
    await server.start()
    connection = {"bootstrap.servers": server.bootstrap_servers}
    admin, writer = KafkaAdmin(connection), KafkaWriter(connection)
    try:
        await admin.ensure_topic("events", 1, 1, {})
        owner = Noting()
        reader = KafkaReader(connection, "group", "events", owner)
        epochs = []
        for value in (b"before", b"after"):
            stored: asyncio.Future[LogError | None] = asyncio.get_running_loop().create_future()
            writer.append("events", None, value, [], stored.set_result)
            assert await stored is None
            record = cast(Message, await one_record(reader))
            epochs.append(record.leader_epoch())
            reader.commit({0: OffsetAndMetadata(cast(int, record.offset()) + 1, "text")})
            if value == b"before":
                await server.stop()
                await server.start()
        await reader.close(10)
        assert epochs[0] is not None
        assert epochs[1] is not None
        assert epochs[1] > epochs[0]
        asked = Consumer({**connection, "group.id": "group"})
        (committed,) = await asyncio.to_thread(asked.committed, [TopicPartition("events", 0)], 30)
        asked.close()
        assert (committed.offset, metadata_of(committed)) == (2, "text")
        assert committed.leader_epoch == epochs[1]

        reader = KafkaReader(connection, "group", "events", owner)
        async with asyncio.timeout(30):
            while owner.committed != {0: OffsetAndMetadata(2, "text")}:
                assert list(await reader.read(10, 0.1)) == []
        assert list(await reader.read(10, 1.0)) == []
        await reader.close(10)
        assert owner.losses == []
    finally:
        await writer.close(1)
        await admin.close()
        await server.stop()


async def test_the_last_commit_of_a_revoked_partition_has_the_epoch_of_its_present_leader(
    kafka_distribution: KafkaDistribution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if all records that were read are older than that leader. Else the next reader would
    drop the commit's metadata: they hold only until another leader is elected."""
    # What Kafka doesn't say in time is taken as lost: a busy machine has more time here.
    monkeypatch.setattr(kafka_elections, "ELECTION_TIMEOUT", 15.0)
    server = KafkaServer(kafka_distribution, tmp_path / "kafka")
    await server.start()
    connection = {"bootstrap.servers": server.bootstrap_servers}
    admin, writer = KafkaAdmin(connection), KafkaWriter(connection)
    readers: list[KafkaReader] = []
    try:
        await admin.ensure_topic("events", 2, 1, {})
        for key in (b"%d" % number for number in range(20)):
            stored: asyncio.Future[LogError | None] = asyncio.get_running_loop().create_future()
            writer.append("events", key, b"", [], stored.set_result)
            assert await stored is None
        asked = Consumer({**connection, "group.id": "group"})
        begin = [TopicPartition("events", number, 0, "text", 0) for number in range(2)]
        await asyncio.to_thread(asked.commit, offsets=begin, asynchronous=False)
        asked.close()
        await server.stop()
        await server.start()

        first, second = HasRead(), HasRead()
        readers.append(KafkaReader(connection, "group", "events", first))
        async with asyncio.timeout(60):
            for _ in range(20):
                await one_record(readers[0], at_most=1)
            readers.append(KafkaReader(connection, "group", "events", second))
            while not second.committed:
                for reader in readers:
                    await reader.read(10, 0.1)
        ((revoked, commit),) = second.committed.items()
        assert first.revoked == [revoked]
        assert commit == OffsetAndMetadata(1, "revoked"), "the leader is the one of the commit"
    finally:
        for reader in readers:
            await reader.close(10)
        await writer.close(1)
        await admin.close()
        await server.stop()


@pytest.mark.parametrize("start", ["latest", "earliest", 1])
async def test_the_start_of_a_new_group_has_a_leader_epoch(
    kafka: Kafka, place: tuple[str, str], start: Start
) -> None:
    """Without it no leader that is elected later could say that the log has lost its end."""
    connection = {"bootstrap.servers": kafka.bootstrap_servers}
    topic, group = place[0], uuid.uuid4().hex
    admin = KafkaAdmin(connection)
    await admin.ensure_committed(group, topic, start)
    await admin.close()
    consumer = Consumer({**connection, "group.id": group})
    (committed,) = await asyncio.to_thread(consumer.committed, [TopicPartition(topic, 0)], 30)
    consumer.assign([TopicPartition(topic, 0, 0)])
    (record,) = await asyncio.to_thread(consumer.consume, 1, 30)
    consumer.close()
    assert committed.offset == (2 if start == "latest" else 0)
    assert committed.leader_epoch is not None
    assert committed.leader_epoch == record.leader_epoch()


async def one_record(reader: KafkaReader, at_most: int = 10) -> Record:
    async with asyncio.timeout(60):
        while not (records := await reader.read(at_most, 1.0)):
            pass
    (record,) = records
    return record
