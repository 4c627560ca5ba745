"""Commits of a topic that was deleted and created again, which its reader made in the new one.

Kafka deletes a topic's commits with it. But a reader that hasn't noticed the new topic yet goes on
at its old position, and commits it. If its process ends then, the next one must not begin there, or
the new topic's first records would never be delivered (BRK-14).
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.drains import World
from support.kafka import Kafka, MakeTopic
from support.logs import SOON, Owner, shared_kafka
from support.transactions import Holder
from support.waiting import until, until_found

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.admin.kafka_offsets import KafkaOffsets
from knafka.clients.kafka.consumers import kafka_replaced_topics
from knafka.clients.kafka.consumers.kafka_group_consumer import GroupProtocol
from knafka.clients.kafka.consumers.kafka_reader import KafkaReader
from knafka.clients.kafka.producers.kafka_transactions import KafkaTransactions
from knafka.core.commit_metadata import mark, short_id
from knafka.core.errors import LogError
from knafka.core.progress import Progress, encode
from knafka.ports.log import OffsetAndMetadata
from knafka.ports.transactions import Partition
from knafka_cli.triggers.rewinding import rewind

pytestmark = pytest.mark.kafka

OLD, NEW = ([b"%b %d" % (log, number) for number in range(7)] for log in (b"old", b"new"))
FEW = 3
"""Records of the old topic, fewer than the new one has."""
NEVER = 3600.0


class Process(ABC):
    """A process that reads a topic for a group, which has the topic's name."""

    def __init__(self, servers: str, topic: str) -> None:
        self.connection = {"bootstrap.servers": servers}
        self.topic = topic

    async def read(self, count: int) -> Sequence[bytes | None]:
        """Read so many records, and commit them."""
        values: list[bytes | None] = []
        async with asyncio.timeout(SOON):
            while len(values) < count:
                values += await self.read_some()
        return values

    @abstractmethod
    async def read_some(self) -> Sequence[bytes | None]: ...

    @abstractmethod
    def knows_id(self) -> bool:
        """Whether it has read the topic's id."""

    @abstractmethod
    async def commit(self, offset: int) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...


class OwnDispatcher(Process):
    """Reads as a member of the group."""

    def __init__(
        self,
        servers: str,
        topic: str,
        protocol: GroupProtocol = GroupProtocol.CONSUMER,
        may_repeat: bool = True,
    ) -> None:
        super().__init__(servers, topic)
        self.owner = Owner()
        self.reader = KafkaReader(
            self.connection, topic, topic, self.owner, protocol, may_repeat=may_repeat
        )

    async def read_some(self) -> Sequence[bytes | None]:
        records = await self.reader.read(100, 0.2)
        if records:
            await self.reader.commit_now({0: OffsetAndMetadata(records[-1].offset() + 1)})
        return [record.value() for record in records]

    def knows_id(self) -> bool:
        return bool(self.reader._replaced.topic_id(self.topic))

    async def commit(self, offset: int) -> None:
        await self.reader.commit_now({0: OffsetAndMetadata(offset)})

    async def close(self) -> None:
        await self.reader.close(SOON)


class SharedDispatcher(Process):
    """Reads for groups without members."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(servers, topic)
        self.owner, self.offsets = Owner(), KafkaOffsets(self.connection)
        self.shared = shared_kafka(self.connection, f"shard-of-{topic}", topic, self.offsets)
        self.reader = self.shared.open_reader(topic, self.owner)

    async def read_some(self) -> Sequence[bytes | None]:
        records = await self.reader.read(100, 0.2)
        if records:
            self.reader.commit({0: OffsetAndMetadata(records[-1].offset() + 1)})
        return [record.value() for record in records]

    def knows_id(self) -> bool:
        return bool(self.offsets.known_topic(self.topic))

    async def commit(self, offset: int) -> None:
        self.reader.commit({0: OffsetAndMetadata(offset)})

    async def close(self) -> None:
        await self.reader.close(SOON)
        await self.shared.close()
        await self.offsets.close()


class Sensor(Process):
    """Commits in transactions."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(servers, topic)
        self.log = KafkaTransactions(self.connection, topic, [topic], Holder(), topic)

    async def read_some(self) -> Sequence[bytes | None]:
        return await asyncio.to_thread(self._read_some)

    def _read_some(self) -> Sequence[bytes | None]:
        records = self.log.read(100, 0.2)
        if records:
            end = records[-1].offset() + 1
            self.log.commit([], {Partition(self.topic, 0): OffsetAndMetadata(end)})
        return [record.value() for record in records]

    def knows_id(self) -> bool:
        return bool(self.log._member._replaced.topic_id(self.topic))

    async def commit(self, offset: int) -> None:
        offsets = {Partition(self.topic, 0): OffsetAndMetadata(offset)}
        await asyncio.to_thread(self.log.commit, [], offsets)

    async def close(self) -> None:
        await asyncio.to_thread(self.log.close, SOON)


KINDS: dict[str, Callable[[str, str], Process]] = {
    "consumer": OwnDispatcher,
    "classic": partial(OwnDispatcher, protocol=GroupProtocol.CLASSIC),
    "shared": SharedDispatcher,
    "sensor": Sensor,
}


def produce(servers: str, topic: str, values: Sequence[bytes]) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


@pytest.fixture
async def admin(kafka: Kafka) -> AsyncIterator[KafkaAdmin]:
    admin = KafkaAdmin({"bootstrap.servers": kafka.bootstrap_servers})
    yield admin
    await admin.close()


async def replace(kafka: Kafka, admin: KafkaAdmin, topic: str) -> None:
    """Delete the topic and create it again, with more records than it had."""
    await admin.delete_topic(topic)
    await until_found(partial(admin.ensure_topic, topic, 1, 1, {}))
    await asyncio.to_thread(produce, kafka.bootstrap_servers, topic, NEW)


@pytest.fixture
def late_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are read once: the process ends before it reads them again."""
    monkeypatch.setattr(kafka_replaced_topics, "FIRST_TOPIC_ID_DELAY", 0.0)
    monkeypatch.setattr(kafka_replaced_topics, "TOPIC_ID_INTERVAL", NEVER)


async def end_in_new_topic(
    kafka: Kafka, admin: KafkaAdmin, topic: str, open_process: Callable[[str, str], Process]
) -> None:
    """Have the group's position in the old topic committed in the new one, as by a process that
    hasn't noticed the new one before it ends."""
    servers = kafka.bootstrap_servers
    await asyncio.to_thread(produce, servers, topic, OLD[:FEW])
    process = open_process(servers, topic)
    assert await process.read(FEW) == OLD[:FEW]
    await until(process.knows_id)
    # It compares commits with an id, and marks them by it, when it reads next.
    assert await process.read_some() == []
    await process.commit(FEW)
    await process.close()
    consumer = Consumer({"bootstrap.servers": servers, "group.id": topic})
    place = [TopicPartition(topic, 0)]
    (committed,) = await asyncio.to_thread(consumer.committed, place)
    assert committed.metadata, "else nothing is to be shown"
    await replace(kafka, admin, topic)
    (deleted,) = await asyncio.to_thread(consumer.committed, place)
    assert deleted.offset < 0, "Kafka deletes the topic's commits"
    again = TopicPartition(topic, 0, len(NEW), committed.metadata, committed.leader_epoch)
    await asyncio.to_thread(consumer.commit, offsets=[again], asynchronous=False)
    consumer.close()


async def test_a_process_that_ends_before_it_notices_a_new_topic_hides_none_of_its_records(
    kafka: Kafka, topic: MakeTopic, admin: KafkaAdmin, late_comparisons: None
) -> None:
    """A classic group doesn't hear of the new topic; its member is paused, or a fetch may find a
    log without its position."""
    name, servers = topic(), kafka.bootstrap_servers
    await asyncio.to_thread(produce, servers, name, OLD[:FEW])
    process = OwnDispatcher(servers, name, GroupProtocol.CLASSIC)
    assert await process.read(FEW) == OLD[:FEW]
    await until(process.knows_id)
    process.reader.pause([0])
    assert await process.read_some() == []
    await replace(kafka, admin, name)
    process.reader.resume([0])
    assert await process.read(len(NEW) - FEW) == NEW[FEW:], "else nothing is to be shown"
    await process.close()
    assert (await admin.lags([name], name))[name].total == len(NEW)
    process = OwnDispatcher(servers, name, GroupProtocol.CLASSIC)
    assert await process.read(len(NEW)) == NEW
    await process.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_the_next_process_reads_all_of_a_topic_that_replaced_the_one_of_its_commits(
    kafka: Kafka, topic: MakeTopic, admin: KafkaAdmin, late_comparisons: None, kind: str
) -> None:
    """And it is woken to do that, as its group has a lag."""
    name = topic()
    await end_in_new_topic(kafka, admin, name, KINDS[kind])
    assert (await admin.lags([name], name))[name].total == len(NEW)
    for expected in (NEW, [b"last"]):
        if expected != NEW:
            await asyncio.to_thread(produce, kafka.bootstrap_servers, name, expected)
        process = KINDS[kind](kafka.bootstrap_servers, name)
        assert await process.read(len(expected)) == expected
        await until(process.knows_id)
        await process.close()
    assert (await admin.lags([name], name))[name].total == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_an_id_that_is_known_late_makes_the_topic_be_read_from_its_start_then(
    kafka: Kafka,
    topic: MakeTopic,
    admin: KafkaAdmin,
    late_comparisons: None,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """What a process commits before it knows the id stays marked as the old topic's."""
    name = topic()
    await end_in_new_topic(kafka, admin, name, KINDS[kind])
    monkeypatch.setattr(KafkaOffsets, "present_topic", unanswered)
    await asyncio.to_thread(produce, kafka.bootstrap_servers, name, [b"a"])
    monkeypatch.setattr(kafka_replaced_topics, "FIRST_TOPIC_ID_DELAY", NEVER)
    process = KINDS[kind](kafka.bootstrap_servers, name)
    assert await process.read(1) == [b"a"]
    await process.close()

    await asyncio.to_thread(produce, kafka.bootstrap_servers, name, [b"b"])
    monkeypatch.setattr(kafka_replaced_topics, "FIRST_TOPIC_ID_DELAY", 1.0)
    # A request that fails is repeated.
    monkeypatch.setattr(kafka_replaced_topics, "TOPIC_ID_INTERVAL", 1.0)
    process = KINDS[kind](kafka.bootstrap_servers, name)
    values: list[bytes | None] = []
    async with asyncio.timeout(SOON):
        while values[-len(NEW) - 2 :] != [*NEW, b"a", b"b"]:
            values += await process.read_some()
    await process.close()
    assert (await admin.lags([name], name))[name].total == 0


async def unanswered(offsets: KafkaOffsets, topic: str) -> str:
    """Take the place of the request by which a shared dispatcher's start reads the id."""
    raise LogError("Kafka does not answer in time")


async def test_a_group_that_delivers_at_most_once_goes_on_at_its_position(
    kafka: Kafka, topic: MakeTopic, admin: KafkaAdmin, late_comparisons: None
) -> None:
    """Its commits stand, also for a dispatcher that delivers at least once later."""
    name, servers = topic(), kafka.bootstrap_servers
    await end_in_new_topic(kafka, admin, name, OwnDispatcher)
    for value, may_repeat in ((b"once", False), (b"at least once", True)):
        await asyncio.to_thread(produce, servers, name, [value])
        process = OwnDispatcher(servers, name, may_repeat=may_repeat)
        assert await process.read(1) == [value]
        await process.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_commit_that_names_no_topic_is_trusted(
    kafka: Kafka, topic: MakeTopic, admin: KafkaAdmin, late_comparisons: None, kind: str
) -> None:
    """As that of Kafka's own tools."""
    name = topic()
    await end_in_new_topic(kafka, admin, name, KINDS[kind])
    tool = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": name})
    place = TopicPartition(name, 0, 5)
    await asyncio.to_thread(tool.commit, offsets=[place], asynchronous=False)
    tool.close()
    process = KINDS[kind](kafka.bootstrap_servers, name)
    await until_found(lambda: read_more(process))
    await until(process.knows_id)
    await asyncio.to_thread(produce, kafka.bootstrap_servers, name, [b"last"])
    assert await process.read(1) == [b"last"]
    await process.close()


async def read_more(process: Process) -> bool:
    """Read on from the offset 5; returns whether there was something."""
    values = await process.read_some()
    assert values in ([], NEW[5:])
    return bool(values)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_rewind_makes_no_position_of_an_earlier_topic_one_of_this_topic(
    kafka: Kafka, topic: MakeTopic, admin: KafkaAdmin, late_comparisons: None, kind: str
) -> None:
    name = topic()
    await end_in_new_topic(kafka, admin, name, KINDS[kind])
    egress = World().egress.model_copy(update={"topic": name, "group": name})
    connection = {"bootstrap.servers": kafka.bootstrap_servers}
    since, late = time.time(), [b"late", b"later"]
    await asyncio.to_thread(produce, kafka.bootstrap_servers, name, late)
    stale = Consumer({**connection, "group.id": name})
    (committed,) = await asyncio.to_thread(stale.committed, [TopicPartition(name, 0)])
    end = TopicPartition(name, 0, len(NEW) + 2, committed.metadata, committed.leader_epoch)
    await asyncio.to_thread(stale.commit, offsets=[end], asynchronous=False)
    stale.close()

    assert await asyncio.to_thread(rewind, connection, egress, since, dry_run=False) == 0
    process = KINDS[kind](kafka.bootstrap_servers, name)
    assert await process.read(len(NEW) + 2) == [*NEW, *late]
    await process.close()
    assert await asyncio.to_thread(rewind, connection, egress, since, dry_run=False) == 2
    process = KINDS[kind](kafka.bootstrap_servers, name)
    assert await process.read(2) == late
    await process.close()


async def test_what_is_known_above_a_commit_survives_its_mark(
    kafka: Kafka, topic: MakeTopic, admin: KafkaAdmin, late_comparisons: None
) -> None:
    name, servers = topic(), kafka.bootstrap_servers
    await asyncio.to_thread(produce, servers, name, OLD)
    process = OwnDispatcher(servers, name)
    await process.read(len(OLD))
    await until(process.knows_id)
    assert await process.read_some() == []  # commits are marked from then on
    metadata, _ = encode(2, Progress([(4, 6)]), 0)
    await process.reader.commit_now({0: OffsetAndMetadata(2, metadata)})
    await process.close()

    description = await admin.describe_topic(name)
    assert description is not None
    marked = mark(metadata, short_id(description.id))
    consumer = Consumer({"bootstrap.servers": servers, "group.id": name})
    (committed,) = await asyncio.to_thread(consumer.committed, [TopicPartition(name, 0)])
    assert (committed.offset, committed.metadata) == (2, marked)
    assert (await admin.lags([name], name))[name].total == len(OLD) - 2 - 2
    process = OwnDispatcher(servers, name)
    assert await process.read(5) == OLD[2:]
    assert process.owner.committed == {0: OffsetAndMetadata(2, metadata)}
    await process.close()
    consumer.close()
