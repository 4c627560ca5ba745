"""The logs of the contract suite: the one in memory and real Kafka behind one face.

`log` is the fixture; `Owner` is an `Assignment` that notes what it is told. Registered by
`pytest_plugins` in tests/conftest.py.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from support.kafka import CLASSIC_PROTOCOL, transact
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog, MemoryReader, MemoryWriter
from support.memory.shared import MemoryMember, MemoryOffsets, MemoryPositionedReader
from support.waiting import until_found

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.admin.kafka_offsets import KafkaOffsets
from knafka.clients.kafka.consumers.kafka_group_consumer import GroupProtocol
from knafka.clients.kafka.consumers.kafka_member import KafkaMember
from knafka.clients.kafka.consumers.kafka_positioned import KafkaPositionedReader
from knafka.clients.kafka.consumers.kafka_reader import KafkaReader
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.core.errors import LogError
from knafka.core.events.kafka_binding import RecordHeaders
from knafka.dispatcher.shared.fetcher import FetchLimits
from knafka.dispatcher.shared.topic import SharedTopic
from knafka.ports.log import (
    Assignment,
    Commits,
    LogAdmin,
    LogReader,
    LogWriter,
    OffsetAndMetadata,
    Positions,
    Record,
)

NOTHING: Final = 0.3
"""Seconds of waiting for what should not come."""
SOON: Final = 30.0
"""Seconds for what should: a busy machine's Kafka takes its time."""


class Owner:
    """An `Assignment` that notes what it is told and commits what it has been shown."""

    def __init__(self) -> None:
        self.owned: set[int] = set()
        self.committed: dict[int, OffsetAndMetadata | None] = {}
        """Of each partition when it was assigned."""
        self.metadata = ""
        self.seen: dict[int, int] = {}
        self.revocations: list[list[int]] = []
        self.losses: list[list[int]] = []
        self.finish: Callable[[], None] = lambda: None

    def on_assigned(self, partitions: Mapping[int, OffsetAndMetadata | None]) -> None:
        self.owned.update(partitions)
        self.committed.update(partitions)

    async def on_revoked(self, partitions: Sequence[int]) -> Commits:
        assert self.owned >= set(partitions)
        await asyncio.sleep(0.05)  # what is in flight takes a while
        self.finish()
        self.revocations.append(sorted(partitions))
        self.owned.difference_update(partitions)
        return {
            each: OffsetAndMetadata(self.seen[each], self.metadata)
            for each in partitions
            if each in self.seen
        }

    def on_lost(self, partitions: Sequence[int]) -> None:
        self.losses.append(sorted(partitions))
        self.owned.difference_update(partitions)

    def saw(self, records: Sequence[Record]) -> None:
        for record in records:
            assert record.partition() in self.owned
            self.seen[record.partition()] = record.offset() + 1


class Log:
    """One implementation: makes writers, readers and topics, and closes what it has made."""

    def __init__(
        self,
        writer: Callable[[], LogWriter],
        reader: Callable[[str, str, Assignment], LogReader],
        admin: LogAdmin,
        grow: Callable[[str, int], object],
        transact: Callable[[str, Sequence[bytes], bool], object],
    ) -> None:
        self._make_reader = reader
        self._grow = grow
        self._transact = transact
        self._topics: list[str] = []
        self._readers: list[LogReader] = []
        self.writer = writer()
        self.admin = admin

    async def topic(self, partitions: int = 1) -> str:
        name = f"contract-{uuid.uuid4().hex}"
        self._topics.append(name)
        assert await self.admin.ensure_topic(name, partitions, 1, {})
        await until_found(partial(self._has_leaders, name, partitions), within=10)
        return name

    async def _has_leaders(self, topic: str, partitions: int) -> bool:
        """Whether each partition of a new topic can be read: Kafka describes it a moment before."""
        try:
            return len(await self.admin.end_offsets(topic)) == partitions
        except LogError:
            return False

    async def grow(self, topic: str, partitions: int) -> None:
        """Give it more partitions, as its owner may, and wait until they are there."""
        await asyncio.to_thread(self._grow, topic, partitions)
        async with asyncio.timeout(SOON):
            while (await self.admin.topics())[topic] < partitions:
                pass

    async def transact(self, topic: str, *values: bytes, commit: bool = True) -> None:
        """Append to partition 0 in one transaction, which is committed or aborted."""
        await asyncio.to_thread(self._transact, topic, values, commit)

    def reader(self, group: str, topic: str, owner: Owner | None = None) -> LogReader:
        reader = self._make_reader(group, topic, owner or Owner())
        self._readers.append(reader)
        return reader

    async def close_reader(self, reader: LogReader) -> None:
        self._readers.remove(reader)
        await reader.close(SOON)

    async def append(
        self,
        topic: str,
        value: bytes | None = b"",
        key: bytes | None = None,
        headers: RecordHeaders | None = None,
    ) -> None:
        """Append and wait for the report; its error is raised."""
        reports: asyncio.Queue[LogError | None] = asyncio.Queue()
        self.writer.append(topic, key, value, headers or [], reports.put_nowait)
        async with asyncio.timeout(SOON):
            error = await reports.get()
        assert reports.empty()
        if error is not None:
            raise error

    async def close(self) -> None:
        for reader in self._readers:
            await reader.close(SOON)
        await self.writer.close(SOON)
        for name in self._topics:
            await self.admin.delete_topic(name)
        await self.admin.close()


def grow(connection: dict[str, Any], topic: str, partitions: int) -> None:
    admin = AdminClient(connection)
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(SOON)


PROTOCOLS: Final = {
    "kafka": GroupProtocol.CONSUMER,
    "kafka-consumer": GroupProtocol.CONSUMER,
    "kafka-classic": GroupProtocol.CLASSIC,
    "kafka-shared": GroupProtocol.CONSUMER,
}

each_reader = pytest.mark.parametrize(
    "log",
    [
        "memory",
        "memory-shared",
        pytest.param("kafka-consumer", marks=pytest.mark.kafka),
        pytest.param("kafka-classic", marks=CLASSIC_PROTOCOL),
        pytest.param("kafka-shared", marks=pytest.mark.kafka),
    ],
    indirect=True,
)
"""What readers do, they do with both group protocols, and for a group of a shared topic."""

each_protocol = pytest.mark.parametrize(
    "log",
    [
        "memory",
        pytest.param("kafka-consumer", marks=pytest.mark.kafka),
        pytest.param("kafka-classic", marks=CLASSIC_PROTOCOL),
    ],
    indirect=True,
)
"""What readers do, they do with both group protocols."""


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
async def log(request: pytest.FixtureRequest) -> AsyncIterator[Log]:
    """Override its params with `each_protocol` where readers are what is tested."""
    shared: list[SharedTopic] = []
    offsets: list[KafkaOffsets] = []
    open_reader: Callable[[str, str, Assignment], LogReader]
    if request.param in ("memory", "memory-shared"):
        memory = MemoryLog()

        def of_shared_memory(group: str, topic: str, owner: Assignment) -> LogReader:
            shared.append(shared_memory(memory, f"shard-{group}", topic))
            return shared[-1].open_reader(group, owner)

        open_reader = of_shared_memory
        if request.param == "memory":
            open_reader = partial(MemoryReader, memory)
        made = Log(
            lambda: MemoryWriter(memory),
            open_reader,
            MemoryAdmin(memory),
            memory.grow,
            memory.transact,
        )
    else:
        protocol = PROTOCOLS[request.param]
        connection = {
            "bootstrap.servers": request.getfixturevalue("kafka").bootstrap_servers,
            "topic.metadata.refresh.interval.ms": 1000,
        }

        def of_shared_kafka(group: str, topic: str, owner: Assignment) -> LogReader:
            if not offsets:
                offsets.append(KafkaOffsets(connection))
            shared.append(shared_kafka(connection, f"shard-{group}", topic, offsets[0]))
            return shared[-1].open_reader(group, owner)

        open_reader = of_shared_kafka
        if request.param != "kafka-shared":
            open_reader = partial(KafkaReader, connection, protocol=protocol)
        made = Log(
            lambda: KafkaWriter(connection),
            open_reader,
            KafkaAdmin(connection),
            lambda topic, partitions: grow(connection, topic, partitions),
            lambda topic, values, commit: transact(
                connection["bootstrap.servers"], topic, values, commit=commit
            ),
        )
    yield made
    await made.close()
    for each in shared:
        await each.close()
    for kept in offsets:
        await kept.close()


def shared_memory(
    memory: MemoryLog, shard: str, topic: str, limits: FetchLimits | None = None
) -> SharedTopic:
    """A process of its own, as far as its groups know."""
    return SharedTopic(
        topic,
        partial(MemoryMember, memory, shard, topic),
        partial(MemoryPositionedReader, memory, topic),
        MemoryOffsets(memory),
        limits,
    )


def shared_kafka(
    connection: Mapping[str, Any],
    shard: str,
    topic: str,
    offsets: KafkaOffsets,
    limits: FetchLimits | None = None,
) -> SharedTopic:
    return SharedTopic(
        topic,
        partial(KafkaMember, connection, shard, topic),
        partial(KafkaPositionedReader, connection, topic, offsets.topic_ids),
        offsets,
        limits,
    )


@pytest.fixture
def group() -> str:
    return f"contract-{uuid.uuid4().hex}"


async def read(
    reader: LogReader, count: int, owner: Owner | None = None, limit: int = 500
) -> list[Record]:
    """Exactly `count` records, in the order in which they were read."""
    records: list[Record] = []
    async with asyncio.timeout(SOON):
        while len(records) < count:
            some = await reader.read(limit, 1.0)
            assert len(some) <= limit
            if owner is not None:
                owner.saw(some)
            records += some
    assert len(records) == count
    return records


async def end_of(reader: LogReader) -> Positions:
    """Where a reader goes on that has read all; what it has read comes before its end."""
    async with asyncio.timeout(SOON):
        while not reader.ends:
            assert list(await reader.read(500, 0.1)) == []
    return reader.ends


def values(records: Sequence[Record]) -> list[bytes | None]:
    return [record.value() for record in records]
