"""Logs that lost their ends while nobody read them, and grew again beyond their groups' commits.

Each log had 20 records, which were delivered. An unclean election took all but the first 5, and new
ones got the offsets from 5 on: they were acknowledged, so each of them must be delivered (BRK-14).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from confluent_kafka import Consumer, TopicPartition
from support.cut_logs import RECORDS, CutLogs
from support.logs import SOON, Owner, shared_kafka
from support.transactions import Holder
from support.waiting import until_frozen, until_settled

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.admin.kafka_offsets import KafkaOffsets
from knafka.clients.kafka.consumers import kafka_committed_topics, kafka_cut_logs
from knafka.clients.kafka.consumers.kafka_group_consumer import GroupProtocol
from knafka.clients.kafka.consumers.kafka_reader import KafkaReader
from knafka.clients.kafka.producers.kafka_transactions import KafkaTransactions
from knafka.core.progress import Progress, encode
from knafka.core.sensor.order import Place, Taken
from knafka.core.sensor.records import commit_metadata
from knafka.ports.log import LogReader, OffsetAndMetadata
from knafka.ports.transactions import Partition
from knafka_client.topics.ranges import RangeReader
from knafka_local.kafka.kafka_distribution import KafkaDistribution
from knafka_local.kafka.kafka_server import KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.asyncio(loop_scope="module")]

KEPT = 5
NEW = 95
SETTLED_TOPICS = ["settled-own", "settled-shared", "settled-sensor"]
GROWN = [*(ONE_GROUP := ["consumer", "classic", "latest", "rewound"]), "shared", "sensor-consumer",
         "sensor-classic", "frozen", *SETTLED_TOPICS]  # fmt: skip
"""Topics that grow again; each is read by groups of its own."""
SHORT = ["short", "short-shared"]
"""Topics that don't."""
UNCUT = ["uncut-own", "uncut-shared", "uncut-sensor"]
"""Topics that lose nothing when their leader is elected."""
SETTLED = encode(3, Progress([(9, 20)]), 0)[0]
"""Metadata of a commit behind 3 records, in the log before it is cut."""
TAKEN = commit_metadata({}, None, Taken(20, Place(7, 0, 19)))
"""The same of a Sensor."""
ALL_OLD = [b"old-%d" % number for number in range(RECORDS)]
ALL_NEW = [b"new-%d" % number for number in range(NEW)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def logs(
    kafka_distribution: KafkaDistribution, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[CutLogs]:
    server = KafkaServer(kafka_distribution, tmp_path_factory.mktemp("kafka"))
    await server.start()
    logs = CutLogs(server)
    logs.make([*GROWN, *SHORT, *UNCUT])
    admin = KafkaAdmin(logs.connection)
    await admin.ensure_committed("latest", "latest", "latest")
    await admin.close()
    with RangeReader(logs.connection, "rewound") as rewinding:
        rewinding.commit([TopicPartition("rewound", 0, RECORDS // 2)])
    await deliver_old(logs, "shared", "slow", 3)
    for topic in [*GROWN, *SHORT]:
        if topic not in ("latest", "rewound") and not topic.startswith("settled"):
            await deliver_old(logs, topic, topic, RECORDS)
    for topic in [*SETTLED_TOPICS, *UNCUT]:
        metadata = TAKEN if topic.endswith("sensor") else SETTLED
        await deliver_old(logs, topic, topic, 3, metadata)
    await logs.cut(dict.fromkeys([*GROWN, *SHORT], KEPT))
    for topic in GROWN:
        logs.append(topic, NEW)
    yield logs
    await server.stop()


async def deliver_old(
    logs: CutLogs, topic: str, group: str, count: int, metadata: str = ""
) -> None:
    """Read a log before it is cut, and commit behind so many records."""
    reader = KafkaReader(logs.connection, group, topic, Owner(), GroupProtocol.CLASSIC)
    assert await values_of(reader, RECORDS) == ALL_OLD
    await reader.commit_now({0: OffsetAndMetadata(count, metadata)})
    await reader.close(SOON)


async def values_of(reader: LogReader, count: int) -> list[bytes | None]:
    """Read so many records."""
    values: list[bytes | None] = []
    async with asyncio.timeout(SOON):
        while len(values) < count:
            values += [record.value() for record in await reader.read(500, 1.0)]
    return values


@pytest.mark.parametrize("group", ONE_GROUP)
async def test_a_group_reads_on_where_its_log_was_cut(logs: CutLogs, group: str) -> None:
    """Also one that was to begin at the log's end, or was rewound, and has read nothing since."""
    protocol = GroupProtocol.CLASSIC if group == "classic" else GroupProtocol.CONSUMER
    owner = Owner()
    reader = KafkaReader(logs.connection, group, group, owner, protocol)
    assert await values_of(reader, NEW) == ALL_NEW
    assert (owner.losses, owner.committed, owner.owned) == ([[0]], {0: None}, {0})
    reader.commit({0: OffsetAndMetadata(50)})
    await reader.close(SOON)

    reader = KafkaReader(logs.connection, group, group, owner, protocol)
    assert await values_of(reader, 50) == ALL_NEW[-50:]
    assert owner.losses == [[0]]
    await reader.close(SOON)


async def test_a_kafka_that_does_not_say_where_an_epoch_ends_holds_up_nothing_but_its_records(
    logs: CutLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = asyncio.Event()
    loop, pid = asyncio.get_running_loop(), logs.server.pid
    assert pid is not None

    def assign_frozen(consumer: Consumer, starts: Sequence[TopicPartition]) -> None:
        os.kill(pid, signal.SIGSTOP)
        asyncio.run_coroutine_threadsafe(until_frozen(pid), loop).result()
        kafka_cut_logs.assign_checked(consumer, starts)
        loop.call_soon_threadsafe(frozen.set)

    monkeypatch.setattr(kafka_committed_topics, "assign_checked", assign_frozen)
    reader = KafkaReader(logs.connection, "frozen", "frozen", Owner())
    try:
        async with asyncio.timeout(SOON):
            while not frozen.is_set():
                assert list(await reader.read(500, 0.1)) == []
            for _ in range(5):
                assert list(await reader.read(500, 0.2)) == []
    finally:
        os.kill(pid, signal.SIGCONT)
    assert await values_of(reader, NEW) == ALL_NEW
    await reader.close(SOON)


async def test_each_group_of_a_shared_dispatcher_reads_on_where_its_log_was_cut(
    logs: CutLogs,
) -> None:
    """Groups before the cut go on undisturbed, though all are read together."""
    offsets = KafkaOffsets(logs.connection)
    shared = shared_kafka(logs.connection, "shard", "shared", offsets)
    owners = {group: Owner() for group in ("slow", "shared", "beginning")}
    readers = {group: shared.open_reader(group, owner) for group, owner in owners.items()}
    counts = {"slow": NEW + KEPT - 3, "shared": NEW, "beginning": NEW + KEPT}
    read = await asyncio.gather(
        *(values_of(reader, counts[group]) for group, reader in readers.items())
    )
    for values, count in zip(read, counts.values(), strict=True):
        assert values == [*ALL_OLD[:KEPT], *ALL_NEW][-count:]
    assert owners["slow"].losses == owners["beginning"].losses == []
    assert owners["shared"].losses == [[0]]
    await asyncio.gather(*(reader.close(SOON) for reader in readers.values()))
    await shared.close()
    await offsets.close()


@asynccontextmanager
async def reader_of(logs: CutLogs, kind: str, topic: str, owner: Owner) -> AsyncIterator[LogReader]:
    """Open a group's reader, of an own or a shared dispatcher."""
    offsets = KafkaOffsets(logs.connection)
    shared = shared_kafka(logs.connection, f"shard-of-{topic}", topic, offsets)
    if kind == "own":
        reader: LogReader = KafkaReader(logs.connection, topic, topic, owner)
    else:
        reader = shared.open_reader(topic, owner)
    yield reader
    await reader.close(SOON)
    await shared.close()
    await offsets.close()


@pytest.mark.parametrize("kind", ["own", "shared"])
async def test_a_log_that_is_shorter_than_its_commit_is_settled_at_its_end(
    logs: CutLogs, kind: str
) -> None:
    """Or its dispatcher would be kept awake for ever. What is left may be delivered again: if a
    fetch comes first, Kafka only says that it has no such offset."""
    topic = "short" if kind == "own" else "short-shared"
    admin = KafkaAdmin(logs.connection)
    async with reader_of(logs, kind, topic, Owner()) as reader:
        values: list[bytes | None] = []
        async with asyncio.timeout(SOON):
            while not reader.ends:
                values += [record.value() for record in await reader.read(500, 1.0)]
        assert reader.ends == {0: KEPT}
        assert values in ([], ALL_OLD[:KEPT])
        reader.commit({0: OffsetAndMetadata(KEPT)})
        await until_settled(admin, topic, topic, SOON)
        assert (await admin.lags([topic], topic))[topic].beyond_end == frozenset()
    await admin.close()


@pytest.mark.parametrize("kind", ["own", "shared"])
@pytest.mark.parametrize("log", ["settled", "uncut"])
async def test_what_is_known_above_a_commit_is_forgotten_if_the_log_was_cut_there(
    logs: CutLogs, kind: str, log: str
) -> None:
    """New records have the offsets of those that are settled. If nothing was lost when a leader was
    elected, as when Kafka's nodes are restarted, what is known is kept."""
    topic, owner = f"{log}-{kind}", Owner()
    async with reader_of(logs, kind, topic, owner) as reader:
        # Only records of the leader before the election are read.
        async with asyncio.timeout(SOON):
            while not (records := await reader.read(1, 1.0)):
                pass
        assert [record.value() for record in records] == [b"old-3"]
        known = SETTLED if log == "uncut" else ""
        assert owner.committed == {0: OffsetAndMetadata(3, known)}
        owner.saw(records)
        owner.metadata = SETTLED

    for _ in range(2):
        owner = Owner()
        async with reader_of(logs, kind, topic, owner) as reader:
            rest = [*ALL_OLD[:KEPT], *ALL_NEW] if log == "settled" else ALL_OLD
            assert await values_of(reader, len(rest) - 4) == rest[4:]
            assert owner.committed == {0: OffsetAndMetadata(4, SETTLED)}
            assert owner.losses == []
            owner.seen, owner.metadata = {0: 4}, SETTLED


@pytest.mark.parametrize("protocol", GroupProtocol)
async def test_a_sensor_reads_on_where_its_log_was_cut(
    logs: CutLogs, protocol: GroupProtocol
) -> None:
    topic, holder = f"sensor-{protocol}", Holder()
    assert await asyncio.to_thread(read_as_sensor, logs, topic, holder, NEW, protocol) == ALL_NEW
    assert holder.committed == {Partition(topic, 0): None}


@pytest.mark.parametrize("log", ["settled", "uncut"])
async def test_what_a_sensor_knows_above_its_commit_is_forgotten_if_the_log_was_cut_there(
    logs: CutLogs, log: str
) -> None:
    topic, holder = f"{log}-sensor", Holder()
    rest = [*ALL_OLD[:KEPT], *ALL_NEW][3:] if log == "settled" else ALL_OLD[3:]
    assert await asyncio.to_thread(read_as_sensor, logs, topic, holder, len(rest)) == rest
    known = TAKEN if log == "uncut" else ""
    assert holder.committed == {Partition(topic, 0): OffsetAndMetadata(3, known)}


def read_as_sensor(
    logs: CutLogs,
    topic: str,
    holder: Holder,
    count: int,
    protocol: GroupProtocol = GroupProtocol.CONSUMER,
) -> list[bytes | None]:
    """Read so many records in transactions."""
    log = KafkaTransactions(logs.connection, topic, [topic], holder, topic, protocol=protocol)
    values: list[bytes | None] = []
    while len(values) < count:
        values += [record.value() for record in log.read(500, 1.0)]
    log.close(SOON)
    return values
