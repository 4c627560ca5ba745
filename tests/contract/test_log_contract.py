"""What every log does: one suite for the log in memory and for real Kafka (issue 3, item 7)."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from support.kafka import transact

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.clients.kafka_log import KafkaReader, KafkaWriter
from knafka.clients.log import (
    Assignment,
    LogAdmin,
    LogReader,
    LogWriter,
    Positions,
    Record,
)
from knafka.clients.memory_log import MemoryAdmin, MemoryLog, MemoryReader, MemoryWriter
from knafka.core.contract import MAX_EVENT_BYTES
from knafka.core.errors import LogError
from knafka.core.kafka_binding import RecordHeaders

NOTHING = 0.3
"""Seconds of waiting for what should not come."""
SOON = 30.0
"""Seconds for what should: a busy machine's Kafka takes its time."""


class Owner:
    """An `Assignment` that notes what it is told and commits what it has been shown."""

    def __init__(self) -> None:
        self.owned: set[int] = set()
        self.seen: dict[int, int] = {}
        self.revocations: list[list[int]] = []
        self.finish: Callable[[], None] = lambda: None

    def assigned(self, partitions: Sequence[int]) -> None:
        self.owned.update(partitions)

    async def revoked(self, partitions: Sequence[int]) -> Positions:
        assert self.owned >= set(partitions)
        await asyncio.sleep(0.05)  # what is in flight takes a while
        self.finish()
        self.revocations.append(sorted(partitions))
        self.owned.difference_update(partitions)
        return {each: self.seen[each] for each in partitions if each in self.seen}

    def lost(self, partitions: Sequence[int]) -> None:
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
        return name

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
        await reader.close()

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
            await reader.close()
        await self.writer.close(SOON)
        for name in self._topics:
            await self.admin.delete_topic(name)
        await self.admin.close()


def grow(connection: dict[str, Any], topic: str, partitions: int) -> None:
    admin = AdminClient(connection)
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(SOON)


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
async def log(request: pytest.FixtureRequest) -> AsyncIterator[Log]:
    if request.param == "memory":
        memory = MemoryLog()
        made = Log(
            lambda: MemoryWriter(memory),
            lambda group, topic, owner: MemoryReader(memory, group, topic, owner),
            MemoryAdmin(memory),
            memory.grow,
            memory.transact,
        )
    else:
        connection = {
            "bootstrap.servers": request.getfixturevalue("kafka").bootstrap_servers,
            "topic.metadata.refresh.interval.ms": 1000,
        }
        made = Log(
            lambda: KafkaWriter(connection),
            lambda group, topic, owner: KafkaReader(connection, group, topic, owner),
            KafkaAdmin(connection),
            lambda topic, partitions: grow(connection, topic, partitions),
            lambda topic, values, commit: transact(
                connection["bootstrap.servers"], topic, values, commit=commit
            ),
        )
    yield made
    await made.close()


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


async def test_an_append_is_reported_once_when_it_is_durable(log: Log) -> None:
    topic = await log.topic()
    reports: list[LogError | None] = []
    reported = asyncio.Event()

    def report(error: LogError | None) -> None:
        reports.append(error)
        reported.set()

    log.writer.append(topic, None, b"x", [], report)
    assert reports == [], "never from within append"
    assert log.writer.in_flight == 1
    async with asyncio.timeout(SOON):
        await reported.wait()
    assert values(await log.admin.read_all(topic, 10)) == [b"x"]
    assert (reports, log.writer.in_flight) == ([None], 0)


async def test_equal_keys_share_a_partition_and_stay_in_order(log: Log) -> None:
    """CE-K9."""
    topic = await log.topic(partitions=4)
    reports: asyncio.Queue[LogError | None] = asyncio.Queue()
    for number in range(400):
        key = b"key-%d" % (number % 20)
        log.writer.append(topic, key, b"%d" % number, [], reports.put_nowait)
    async with asyncio.timeout(SOON):
        assert [await reports.get() for _ in range(400)] == [None] * 400
    records = await log.admin.read_all(topic, 1000)
    homes = {record.key(): record.partition() for record in records}
    assert all(homes[record.key()] == record.partition() for record in records)
    assert len(set(homes.values())) > 1
    for each in homes:
        mine = [record for record in records if record.key() == each]
        mine.sort(key=lambda record: record.offset())
        numbers = [int(record.value() or b"") for record in mine]
        assert numbers == sorted(numbers)
        assert len(numbers) == 20


async def test_a_record_survives_byte_for_byte(log: Log) -> None:
    """CE-K1, CE-K3: no value is not an empty one."""
    topic = await log.topic()
    before = int(time.time() * 1000)
    every = list(
        itertools.product(
            (None, b"", b"k\x00\xff", "schlüssel".encode()),
            (None, b"", b"\x00\xff{", b"x" * (MAX_EVENT_BYTES - 100)),
            (
                [],
                [("ce_id", "ü ".encode()), ("content-type", b""), ("x", b"\x00"), ("x", b"again")],
            ),
        )
    )
    for key, value, headers in every:
        await log.append(topic, value, key, headers)
    records = await log.admin.read_all(topic, 100)
    assert [each.offset() for each in records] == list(range(len(every)))
    assert {(each.topic(), each.partition()) for each in records} == {(topic, 0)}
    assert [(each.key(), each.value(), each.headers() or []) for each in records] == every
    assert all(before <= each.timestamp()[1] <= time.time() * 1000 for each in records)


@pytest.mark.parametrize("part", ["key", "value", "headers"])
async def test_a_record_beyond_kafkas_limit_is_too_large(log: Log, part: str) -> None:
    """The topic's own limit (1 MiB by default) judges; key, value and headers count."""
    topic = await log.topic()
    large = b"x" * 1_048_589
    with pytest.raises(LogError) as raised:
        await log.append(
            topic,
            large if part == "value" else b"",
            large if part == "key" else b"k",
            [("ce_x", large)] if part == "headers" else [],
        )
    assert raised.value.too_large
    assert not raised.value.retriable
    await log.append(topic, b"the next one")
    assert values(await log.admin.read_all(topic, 10)) == [b"the next one"]
    assert log.writer.in_flight == 0


async def test_an_append_to_an_unknown_topic_is_reported_as_failed(log: Log) -> None:
    with pytest.raises(LogError) as raised:
        await log.append("contract-nowhere", b"x")
    assert not raised.value.too_large
    assert raised.value.retriable
    assert log.writer.in_flight == 0


async def test_a_report_that_breaks_silences_no_other(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await log.topic()
    broken: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))

    def report(_: LogError | None) -> None:
        raise ZeroDivisionError

    log.writer.append(topic, None, b"1", [], report)
    await log.append(topic, b"2")
    assert len(broken) == 1
    assert len(await log.admin.read_all(topic, 10)) == 2


async def test_close_waits_for_what_is_in_flight_and_takes_no_more(log: Log) -> None:
    topic = await log.topic()
    reports: list[LogError | None] = []
    for _ in range(100):
        log.writer.append(topic, None, b"x", [], reports.append)
    await log.writer.close(SOON)
    assert reports == [None] * 100
    assert len(await log.admin.read_all(topic, 1000)) == 100
    with pytest.raises(LogError):
        log.writer.append(topic, None, b"x", [], reports.append)


async def test_a_log_that_answers_is_reached(log: Log) -> None:
    await log.writer.reach(SOON)


async def test_read_returns_as_soon_as_there_is_one_record(log: Log, group: str) -> None:
    topic = await log.topic()
    reader = log.reader(group, topic)
    await log.append(topic, b"first")
    assert values(await read(reader, 1)) == [b"first"]
    waiting = asyncio.create_task(reader.read(500, SOON))
    await asyncio.sleep(0.05)
    started = time.monotonic()
    await log.append(topic, b"second")
    assert values(await waiting) == [b"second"]
    assert time.monotonic() - started < 5, "far from the timeout"


async def test_read_gives_at_most_limit_records_in_order_per_partition(
    log: Log, group: str
) -> None:
    topic = await log.topic(partitions=3)
    reports: asyncio.Queue[LogError | None] = asyncio.Queue()
    for number in range(300):
        log.writer.append(topic, b"%d" % (number % 10), b"%d" % number, [], reports.put_nowait)
    async with asyncio.timeout(SOON):
        assert [await reports.get() for _ in range(300)] == [None] * 300
    records = await read(log.reader(group, topic), 300, limit=7)
    for partition in range(3):
        offsets = [each.offset() for each in records if each.partition() == partition]
        assert offsets == list(range(len(offsets)))
    assert len(records) == 300


async def test_read_gives_nothing_after_its_timeout(log: Log, group: str) -> None:
    topic = await log.topic()
    reader = log.reader(group, topic)
    await log.append(topic)
    await read(reader, 1)
    started = time.monotonic()
    assert list(await reader.read(500, NOTHING)) == []
    assert time.monotonic() - started > NOTHING * 0.9


async def test_a_group_without_a_commit_starts_at_the_beginning(log: Log, group: str) -> None:
    topic = await log.topic(partitions=2)
    for number in range(10):
        await log.append(topic, b"%d" % number, b"%d" % number)
    assert len(await read(log.reader(group, topic), 10)) == 10


@pytest.mark.conformance("KN-TRG-06")
async def test_a_group_starts_at_its_commit_and_uncommitted_partitions_at_the_beginning(
    log: Log, group: str
) -> None:
    """KN-TRG-06: what came before the Trigger was Ready is not its."""
    topic = await log.topic(partitions=1)
    await log.append(topic, b"before")
    await log.admin.ensure_committed(group, topic)
    await log.append(topic, b"after")
    assert values(await read(log.reader(group, topic), 1)) == [b"after"]


async def test_a_new_reader_resumes_where_the_last_one_committed(log: Log, group: str) -> None:
    topic = await log.topic()
    for number in range(5):
        await log.append(topic, b"%d" % number)
    owner = Owner()
    first = log.reader(group, topic, owner)
    await read(first, 5)
    first.commit({0: 2})
    await log.close_reader(first)
    assert owner.revocations == [[0]], "close revokes"
    assert values(await read(log.reader(group, topic), 3)) == [b"2", b"3", b"4"]


async def test_close_commits_what_revoked_says(log: Log, group: str) -> None:
    topic = await log.topic(partitions=2)
    for number in range(20):
        await log.append(topic, b"%d" % number, b"%d" % number)
    owner = Owner()
    first = log.reader(group, topic, owner)
    await read(first, 20, owner)
    await log.close_reader(first)
    assert owner.owned == set()
    assert list(await log.reader(group, topic).read(500, NOTHING)) == []
    assert (await log.admin.lags([group], topic))[group].total == 0


async def test_two_readers_share_the_partitions_and_nothing_is_read_twice(
    log: Log, group: str
) -> None:
    """The first one finishes and commits what it must give up before the second one reads it."""
    topic = await log.topic(partitions=4)
    for number in range(40):
        await log.append(topic, b"%d" % number, b"%d" % number)
    first_owner, second_owner = Owner(), Owner()
    first = log.reader(group, topic, first_owner)
    records = await read(first, 40, first_owner)
    assert first_owner.owned == {0, 1, 2, 3}

    second = log.reader(group, topic, second_owner)
    finished: list[bool] = []
    first_owner.finish = lambda: finished.append(second_owner.owned == set())
    async with asyncio.timeout(SOON):
        while len(second_owner.owned) < 2 or len(first_owner.owned) > 2:
            some = await asyncio.gather(first.read(500, 0.1), second.read(500, 0.1))
            assert [len(each) for each in some] == [0, 0], "all of it was committed"
    assert first_owner.owned | second_owner.owned == {0, 1, 2, 3}
    assert first_owner.owned & second_owner.owned == set()
    assert finished == [True] * len(finished) != []

    for number in range(40, 80):
        await log.append(topic, b"%d" % number, b"%d" % number)
    async with asyncio.timeout(SOON):
        while len(records) < 80:
            mine, theirs = await asyncio.gather(first.read(500, 0.1), second.read(500, 0.1))
            first_owner.saw(mine)
            second_owner.saw(theirs)
            records += [*mine, *theirs]
    assert sorted(int(value or b"") for value in values(records)) == list(range(80))

    await log.close_reader(second)
    async with asyncio.timeout(SOON):
        while first_owner.owned != {0, 1, 2, 3}:
            assert list(await first.read(500, 0.1)) == []


async def test_what_a_reader_is_told_waits_for_no_read(log: Log, group: str) -> None:
    """The loop, on which it is told, has events to deliver meanwhile."""
    topic = await log.topic()
    await log.append(topic, b"1")
    reader = log.reader(group, topic)
    await read(reader, 1)
    reading = asyncio.create_task(reader.read(1, SOON))
    await asyncio.sleep(NOTHING)
    reader.commit({0: 1})
    reader.pause([0])
    reader.resume([0])
    done, _ = await asyncio.wait({reading}, timeout=NOTHING)
    assert not done
    await log.append(topic, b"2")
    assert values(await reading) == [b"2"]
    await log.close_reader(reader)
    assert (await log.admin.lags([group], topic))[group].total == 1


async def test_a_commit_while_partitions_go_holds_nobody_up_and_moves_none_of_them(
    log: Log, group: str
) -> None:
    topic = await log.topic(partitions=2)
    for number in range(40):
        await log.append(topic, b"%d" % number, b"%d" % number)
    first_owner, second_owner = Owner(), Owner()
    first = log.reader(group, topic, first_owner)
    records = await read(first, 40, first_owner)
    first_owner.finish = lambda: first.commit({0: 1, 1: 1})
    second = log.reader(group, topic, second_owner)
    async with asyncio.timeout(SOON / 2):
        while not second_owner.owned:
            await asyncio.gather(first.read(500, 0.1), second.read(500, 0.1))
    (gone,), (kept,) = second_owner.owned, first_owner.owned
    uncommitted = sum(each.partition() == kept for each in records) - 1
    lag = {kept: 0}
    async with asyncio.timeout(SOON):
        while lag[kept] != uncommitted:
            first.commit({0: 1, 1: 1})
            await first.read(500, 0.1)
            lag = dict((await log.admin.lags([group], topic))[group].by_partition)
    assert lag[gone] == 0, "its next owner begins where revoked said"


async def test_pause_and_resume_lose_nothing(log: Log, group: str) -> None:
    topic = await log.topic(partitions=2)
    for number in range(100):
        await log.append(topic, b"%d" % number, b"%d" % number)
    owner = Owner()
    reader = log.reader(group, topic, owner)
    records = await read(reader, 10, owner, limit=1)
    reader.pause([0])
    async with asyncio.timeout(SOON):
        while some := await reader.read(3, 1.0):
            assert {record.partition() for record in some} == {1}
            records += some
    for number in range(100, 120):
        await log.append(topic, b"%d" % number, b"%d" % number)
    reader.pause([1])
    reader.resume([0])
    async with asyncio.timeout(SOON):
        while some := await reader.read(3, 1.0):
            assert {record.partition() for record in some} == {0}
            records += some
    reader.resume([1])
    records += await read(reader, 120 - len(records))
    for partition in (0, 1):
        offsets = [each.offset() for each in records if each.partition() == partition]
        assert offsets == list(range(len(offsets)))
    assert sorted(int(value or b"") for value in values(records)) == list(range(120))


async def test_a_pause_ends_with_the_ownership(log: Log, group: str) -> None:
    topic = await log.topic()
    await log.append(topic, b"1")
    owner = Owner()
    first = log.reader(group, topic, owner)
    await read(first, 1, owner)
    first.pause([0])
    await log.close_reader(first)
    await log.append(topic, b"2")
    assert values(await read(log.reader(group, topic), 1)) == [b"2"]


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
async def test_a_reader_at_the_end_says_where_it_goes_on_behind_a_transaction(
    log: Log, group: str, commit: bool
) -> None:
    """Its marker has an offset, too: whoever commits only what was read has a lag for ever."""
    topic = await log.topic()
    await log.append(topic, b"1")
    await log.transact(topic, b"2", b"3", commit=commit)
    reader = log.reader(group, topic)
    assert (
        values(await read(reader, 3 if commit else 1)) == [b"1", b"2", b"3"][: 3 if commit else 1]
    )
    assert await end_of(reader) == {0: 4}
    reader.commit({0: 4})
    await log.close_reader(reader)
    assert (await log.admin.lags([group], topic))[group].total == 0
    await log.append(topic, b"4")
    assert values(await read(log.reader(group, topic), 1)) == [b"4"]


async def test_a_reader_that_begins_at_the_end_says_so_once(log: Log, group: str) -> None:
    topic = await log.topic(partitions=2)
    await log.transact(topic, b"1")
    await log.admin.ensure_committed(group, topic)
    owner = Owner()
    reader = log.reader(group, topic, owner)
    found: dict[int, int] = {}
    async with asyncio.timeout(SOON):
        while len(found) < 2:
            assert list(await reader.read(500, 0.1)) == []
            found |= reader.ends
    assert found == {0: 2, 1: 0}
    assert list(await reader.read(500, NOTHING)) == []
    assert reader.ends == {}


async def test_a_reader_of_a_missing_topic_reads_nothing(log: Log, group: str) -> None:
    assert list(await log.reader(group, "contract-nowhere").read(10, NOTHING)) == []


async def test_a_reader_that_never_read_can_be_closed(log: Log, group: str) -> None:
    topic = await log.topic()
    await log.close_reader(log.reader(group, topic))


async def test_a_topic_is_made_once(log: Log) -> None:
    topic = await log.topic(partitions=3)
    assert not await log.admin.ensure_topic(topic, 5, 1, {})
    assert (await log.admin.topics())[topic] == 3
    await log.admin.delete_topic(topic)
    await log.admin.delete_topic(topic)
    async with asyncio.timeout(SOON):
        while topic in await log.admin.topics():
            pass


async def test_a_topic_is_described_as_it_is(log: Log) -> None:
    topic = await log.topic()
    assert await log.admin.describe_topic("contract-nowhere") is None
    plain = await log.admin.describe_topic(topic)
    assert plain is not None
    assert (plain.partitions, plain.replication, plain.config) == (1, 1, {})

    await log.admin.delete_topic(topic)
    async with asyncio.timeout(SOON):
        while topic in await log.admin.topics():
            pass
    assert await log.admin.describe_topic(topic) is None
    config = {"retention.ms": "3600000", "cleanup.policy": "compact"}
    assert await log.admin.ensure_topic(topic, 3, 1, config)
    again = await log.admin.describe_topic(topic)
    assert again is not None
    assert (again.partitions, again.replication, again.config) == (3, 1, config)
    assert again.id != plain.id, "another topic of the same name"


async def test_the_cluster_has_an_id(log: Log) -> None:
    assert await log.admin.cluster_id()


async def test_end_offsets_are_those_of_the_next_records(log: Log) -> None:
    topic = await log.topic(partitions=2)
    assert await log.admin.end_offsets(topic) == {0: 0, 1: 0}
    for _ in range(3):
        await log.append(topic, key=b"k")
    assert sorted((await log.admin.end_offsets(topic)).values()) == [0, 3]


async def test_many_topics_tell_together_which_have_grown(log: Log) -> None:
    topics = [await log.topic(partitions=2), await log.topic()]
    asked = [*topics, "contract-nowhere"]
    before = {topics[0]: {0: 0, 1: 0}, topics[1]: {0: 0}}
    async with asyncio.timeout(SOON):
        while await log.admin.end_offsets_of_all(asked) != before:  # until they have leaders
            pass
    await log.append(topics[1])
    assert await log.admin.end_offsets_of_all(asked) == {**before, topics[1]: {0: 1}}
    await log.admin.delete_topic(topics[0])
    async with asyncio.timeout(SOON):
        while topics[0] in await log.admin.end_offsets_of_all(asked):
            pass
    assert await log.admin.end_offsets_of_all([]) == {}


@pytest.mark.conformance("KN-TRG-06")
async def test_partitions_that_come_later_are_read_from_their_start(log: Log, group: str) -> None:
    """KN-TRG-06: the Trigger was Ready when they came, so whatever is in them is its."""
    topic = await log.topic()
    await log.append(topic, b"before")
    await log.admin.ensure_committed(group, topic)
    await log.grow(topic, 3)
    owner = Owner()
    reader = log.reader(group, topic, owner)
    async with asyncio.timeout(SOON):
        while not owner.owned:
            await reader.read(1, 0.1)
    await log.admin.ensure_committed(group, topic)  # somebody reads: nothing can be committed now
    await log.close_reader(reader)
    count = 0
    async with asyncio.timeout(SOON):
        while not all((await log.admin.end_offsets(topic)).values()):  # the writer learns of them
            await log.append(topic, key=b"%d" % count)
            count += 1
    await log.admin.ensure_committed(group, topic)
    lag = (await log.admin.lags([group], topic))[group]
    assert (lag.total, set(lag.by_partition)) == (count, {0, 1, 2})
    assert len(await read(log.reader(group, topic), count)) == count


@pytest.mark.conformance("KN-TRG-06")
async def test_a_group_that_has_offsets_keeps_its_place(log: Log, group: str) -> None:
    """KN-TRG-06: a Trigger that is reconciled again keeps its place."""
    topic = await log.topic(partitions=2)
    await log.append(topic, key=b"k")
    await log.admin.ensure_committed(group, topic)
    for number in range(20):
        await log.append(topic, key=b"%d" % number)
    await log.admin.ensure_committed(group, topic)
    lag = (await log.admin.lags([group], topic))[group]
    assert (lag.total, set(lag.by_partition)) == (20, {0, 1})


async def test_lag_counts_uncommitted_partitions_from_the_logs_start(log: Log, group: str) -> None:
    """Committed offsets list only the partitions that have one (kafka-and-spark.md)."""
    topic = await log.topic(partitions=3)
    for number in range(30):
        await log.append(topic, key=b"%d" % number)
    ends = await log.admin.end_offsets(topic)
    reader = log.reader(group, topic)
    await read(reader, 30)
    reader.commit({1: 2})
    await log.close_reader(reader)
    lags = await log.admin.lags([group, "contract-unknown"], topic)
    assert dict(lags[group].by_partition) == {**ends, 1: ends[1] - 2}
    assert lags["contract-unknown"].total == 30
    assert await log.admin.lags([], topic) == {}


async def test_lag_is_right_however_often_it_is_asked(log: Log, group: str) -> None:
    """What is remembered of a group that was at the end must never hide an event."""
    topic = await log.topic(partitions=2)
    await log.append(topic, b"before")
    groups = [group, f"{group}-other"]
    for each in groups:
        await log.admin.ensure_committed(each, topic)

    async def lags() -> list[int]:
        found = await log.admin.lags(groups, topic)
        return [found[each].total for each in groups]

    assert await lags() == [0, 0]
    assert await lags() == [0, 0]
    await log.append(topic, b"1", b"k")
    assert await lags() == [1, 1]
    owner = Owner()
    reader = log.reader(group, topic, owner)
    await read(reader, 1, owner)
    await log.close_reader(reader)
    assert await lags() == [0, 1]
    await log.append(topic, b"2", b"other")
    assert await lags() == [1, 2]
    await log.grow(topic, 4)
    assert await lags() == [1, 2]
    for number in range(40):
        await log.append(topic, b"", b"%d" % number)
    assert await lags() == [41, 42]


async def test_a_topic_made_again_has_nothing_to_do_with_the_old_one(log: Log, group: str) -> None:
    topic = await log.topic()
    for _ in range(2):
        await log.append(topic)
    await log.admin.ensure_committed(group, topic)
    assert (await log.admin.lags([group], topic))[group].total == 0
    await log.admin.delete_topic(topic)
    async with asyncio.timeout(SOON):
        while topic in await log.admin.topics():
            pass
    await log.admin.ensure_topic(topic, 1, 1, {})
    for _ in range(2):
        await log.append(topic)
    async with asyncio.timeout(SOON):
        while (await log.admin.lags([group], topic))[group].total != 2:
            pass


async def test_a_deleted_group_has_forgotten_its_offsets(log: Log, group: str) -> None:
    topic = await log.topic()
    await log.append(topic)
    await log.admin.ensure_committed(group, topic)
    assert (await log.admin.lags([group], topic))[group].total == 0
    await log.admin.delete_group(group)
    assert (await log.admin.lags([group], topic))[group].total == 1
    await log.admin.delete_group(group)


async def test_a_group_with_members_is_not_deleted(log: Log, group: str) -> None:
    topic = await log.topic()
    await log.append(topic)
    await read(log.reader(group, topic), 1)
    with pytest.raises(LogError):
        await log.admin.delete_group(group)


async def test_read_all_gives_the_last_records_oldest_first(log: Log) -> None:
    topic = await log.topic(partitions=3)
    last = 0
    for number in range(12):
        while (now := time.time_ns() // 1_000_000) == last:
            pass
        last = now
        await log.append(topic, b"%d" % number, b"%d" % number)
    assert values(await log.admin.read_all(topic, 100)) == [b"%d" % each for each in range(12)]
    assert values(await log.admin.read_all(topic, 3)) == [b"9", b"10", b"11"]
    assert list(await log.admin.read_all(await log.topic(), 3)) == []


@pytest.mark.parametrize(
    "ask",
    [
        lambda admin: admin.end_offsets("contract-nowhere"),
        lambda admin: admin.lags(["g"], "contract-nowhere"),
        lambda admin: admin.ensure_committed("g", "contract-nowhere"),
        lambda admin: admin.read_all("contract-nowhere", 10),
    ],
    ids=["end_offsets", "lags", "ensure_committed", "read_all"],
)
async def test_a_missing_topic_is_a_log_error(
    log: Log, ask: Callable[[LogAdmin], asyncio.Future[object]]
) -> None:
    with pytest.raises(LogError):
        await ask(log.admin)
