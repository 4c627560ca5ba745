"""The metadata of commits since which a leader was elected: of records that may be gone.

Events between are settled in them, or have had attempts. If the log was cut above the commit's
offset and grew again, other events have their offsets, which must be delivered (BRK-14).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from support.drains import World
from support.logs import SOON, Owner
from support.memory.log import MemoryLog
from support.memory.shared import MemoryMember, MemoryOffsets, MemoryPositionedReader
from support.waiting import until

from knafka.clients.kafka.consumers import (
    kafka_elections,
    kafka_group_consumer,
    kafka_replaced_topics,
)
from knafka.clients.kafka.consumers.kafka_cut_logs import cut_of
from knafka.clients.kafka.consumers.kafka_reader import KafkaReader
from knafka.clients.kafka.kafka_commits import NO_EPOCH
from knafka.core.contract import Conversion
from knafka.dispatcher import connecting
from knafka.dispatcher.shared.topic import SharedTopic
from knafka.ports.log import OffsetAndMetadata
from knafka.ports.shared_log import Commit, Position

TOPIC = "events"
COMMITTED = OffsetAndMetadata(5, "9 to 19 are settled")
AWAY = KafkaException(KafkaError(KafkaError._TIMED_OUT))


class ElectedConsumer:
    """A consumer of confluent-kafka whose group has committed all partitions, and that reads
    nothing; `ends` are the leader epochs in which its logs end, and errors that come before."""

    def __init__(self) -> None:
        self.epochs = [1]
        """The leader epoch of each commit, or none."""
        self.ends: list[int | KafkaException] = [1]
        self.asked: list[list[int]] = []
        self.commits: list[TopicPartition] = []
        self.positions: list[TopicPartition] = []
        self.partitions = [0]
        self._on_assign: Any = None

    def subscribe(self, topics: list[str], on_assign: Any, **callbacks: Any) -> None:
        self._on_assign = self._on_assign or on_assign

    def poll(self, timeout: float) -> None:
        if self._on_assign is not None and self.partitions:
            partitions, self.partitions = self.partitions, []
            self._on_assign(self, [TopicPartition(TOPIC, number) for number in partitions])
        time.sleep(0.01)

    def get_watermark_offsets(self, place: TopicPartition, *, cached: bool) -> tuple[int, int]:
        assert cached
        return (OFFSET_INVALID, OFFSET_INVALID)

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [
            TopicPartition(TOPIC, each.partition, *COMMITTED, *self.epochs)
            if each.partition < 2
            else TopicPartition(TOPIC, each.partition, -1001)
            for each in partitions
        ]

    def offsets_for_times(
        self, partitions: list[TopicPartition], timeout: float
    ) -> list[TopicPartition]:
        self.asked.append([each.partition for each in partitions])
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        if isinstance(end, KafkaException):
            raise end
        return [TopicPartition(TOPIC, each.partition, 90, "", end) for each in partitions]

    def list_topics(self, topic: str, timeout: float) -> None:
        raise AWAY

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        return self.positions or partitions

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        self.commits += offsets
        return []

    def incremental_assign(self, partitions: list[TopicPartition]) -> None: ...
    def incremental_unassign(self, partitions: list[TopicPartition]) -> None: ...
    def pause(self, partitions: list[TopicPartition]) -> None: ...
    def resume(self, partitions: list[TopicPartition]) -> None: ...
    def seek(self, partition: TopicPartition) -> None: ...
    def memberid(self) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> ElectedConsumer:
    scripted = ElectedConsumer()
    monkeypatch.setattr(kafka_group_consumer, "open_client", lambda *arguments: scripted)
    monkeypatch.setattr(kafka_elections, "ELECTION_TIMEOUT", 0.3)
    monkeypatch.setattr(kafka_replaced_topics, "FIRST_TOPIC_ID_DELAY", 3600.0)  # no real client
    return scripted


@pytest.fixture
async def owner() -> Owner:
    return Owner()


@pytest.fixture
async def open_reader(owner: Owner) -> AsyncIterator[Any]:
    opened: list[KafkaReader] = []

    async def open_assigned(**keywords: Any) -> KafkaReader:
        """Open a reader, and read until it has its partitions."""
        opened.append(KafkaReader({}, "group", TOPIC, owner, **keywords))
        async with asyncio.timeout(SOON):
            while not owner.owned:
                assert list(await opened[0].read(1, 0.1)) == []
        return opened[0]

    yield open_assigned
    for reader in opened:
        await reader.close(1.0)


async def test_metadata_are_kept_while_no_leader_is_elected(
    consumer: ElectedConsumer, owner: Owner, open_reader: Any
) -> None:
    await open_reader()
    assert owner.committed == {0: COMMITTED}


@pytest.mark.parametrize("ends", [[2], [AWAY, 2], [0], [AWAY]], ids=str)
async def test_metadata_are_left_out_if_a_leader_was_or_may_have_been_elected(
    consumer: ElectedConsumer, owner: Owner, open_reader: Any, ends: list[int | KafkaException]
) -> None:
    """Also if Kafka doesn't say: events repeat, none is lost."""
    consumer.ends = ends
    await open_reader()
    assert owner.committed == {0: OffsetAndMetadata(5)}


@pytest.mark.parametrize(
    ("read", "end", "committed"), [(NO_EPOCH, 3, 3), (0, 3, 3), (4, 3, 4), (NO_EPOCH, AWAY, 1)]
)
async def test_the_next_commits_have_the_epoch_of_the_logs_end_or_a_later_one(
    consumer: ElectedConsumer, open_reader: Any, read: int, end: Any, committed: int
) -> None:
    """So metadata are left out once after an election, though records of earlier leaders are
    read."""
    consumer.ends = [end]
    reader = await open_reader()
    consumer.positions = [TopicPartition(TOPIC, 0, 6, "", read)]
    reader.commit({0: OffsetAndMetadata(6, "new")})
    await until(lambda: bool(consumer.commits))
    assert [each.leader_epoch for each in consumer.commits] == [committed]


async def test_metadata_of_a_commit_without_an_epoch_are_kept(
    consumer: ElectedConsumer, owner: Owner, open_reader: Any
) -> None:
    consumer.epochs, consumer.ends = [], [2]
    await open_reader()
    assert owner.committed == {0: COMMITTED}
    assert consumer.asked == []


async def test_a_reader_that_trusts_metadata_gets_them_after_an_election_too(
    consumer: ElectedConsumer, owner: Owner, open_reader: Any
) -> None:
    """At most once, an event that has begun must not begin again."""
    consumer.ends = [2]
    await open_reader(may_repeat=False)
    assert owner.committed == {0: COMMITTED}
    assert consumer.asked == []


async def test_all_partitions_with_metadata_are_asked_for_with_one_request(
    consumer: ElectedConsumer, owner: Owner, open_reader: Any
) -> None:
    consumer.partitions = [0, 1, 2]
    await open_reader()
    assert owner.committed == {0: COMMITTED, 1: COMMITTED, 2: None}
    assert consumer.asked == [[0, 1]]


class ElectedOffsets(MemoryOffsets):
    """Offsets that were committed before a leader was elected."""

    def __init__(self, memory: MemoryLog) -> None:
        super().__init__(memory)
        self.made: list[Commit] = []

    async def committed(
        self, group: str, topic: str, partitions: Collection[int]
    ) -> Mapping[int, Commit]:
        return {0: Commit(1, "", 1, 4)}

    async def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> None:
        self.made += commits.values()


class StartedReader(MemoryPositionedReader):
    """Notes where it is to begin."""

    begun: Sequence[Position] = ()

    def begin(self, positions: Mapping[int, Position]) -> None:
        StartedReader.begun = list(positions.values())
        super().begin(positions)


@pytest.mark.looptime
async def test_a_shared_reader_commits_the_ends_epoch_but_begins_with_the_commits() -> None:
    """With the end's, Kafka would not say that the log was cut below the commit."""
    memory = MemoryLog()
    memory.create(TOPIC)
    for _ in range(3):
        memory.store(TOPIC, b"k", b"v", None)
    offsets = ElectedOffsets(memory)
    shared = SharedTopic(
        TOPIC,
        partial(MemoryMember, memory, "shard", TOPIC),
        partial(StartedReader, memory, TOPIC),
        offsets,
    )
    owner = Owner()
    reader = shared.open_reader("group", owner)
    records = await reader.read(10, 5.0)
    assert [record.offset() for record in records] == [1, 2]
    assert StartedReader.begun == [Position(1, 1)]
    reader.commit({0: OffsetAndMetadata(2, "new")})
    await asyncio.sleep(1)
    assert offsets.made == [Commit(2, "new", 4)]
    owner.seen, owner.metadata = {0: 3}, "last"
    await reader.close(5)
    await shared.close()
    assert offsets.made[1:] == [Commit(3, "last", 4)]


@pytest.mark.parametrize("at_most_once", [False, True])
@pytest.mark.parametrize("conversion", [None, Conversion(source="/orders")])
async def test_only_a_dispatcher_that_delivers_at_most_once_trusts_metadata(
    monkeypatch: pytest.MonkeyPatch, at_most_once: bool, conversion: Conversion | None
) -> None:
    opened: list[Mapping[str, Any]] = []

    def note_opened(*arguments: Any, **keywords: Any) -> None:
        opened.append(keywords)

    monkeypatch.setattr(connecting, "KafkaReader", note_opened)
    monkeypatch.setattr(connecting, "ConvertingReader", note_opened)
    monkeypatch.setattr(connecting, "KafkaWriter", lambda configuration: None)
    changes = {"at_most_once": at_most_once, "conversion": conversion}
    clients = connecting.connect(World().egress.model_copy(update=changes), {}, None)
    clients.open_reader(Owner())
    await clients.subscriber.close()
    assert opened == [{"may_repeat": not at_most_once}]


class Truncated:
    """The message by which librdkafka says where a log was cut."""

    def error(self) -> KafkaError:
        place = "broker end offset is 8 (offset leader epoch 1)"
        return KafkaError(KafkaError._LOG_TRUNCATION, f"truncated: {place}")

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return 0


@pytest.mark.parametrize(("ends", "cut"), [([2], 8), ([AWAY, AWAY, 2], 8), ([1], None)], ids=str)
def test_where_a_log_was_cut_is_known_once_kafka_says_in_which_epoch_it_ends(
    consumer: ElectedConsumer, ends: list[int | KafkaException], cut: int | None
) -> None:
    """If no leader was elected since, the topic was created anew."""
    consumer.ends = ends
    found = cut_of(cast(Consumer, consumer), cast(Message, Truncated()))
    assert (found and found.offset) == cut
