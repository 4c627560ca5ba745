"""Partitions whose log was created anew, for readers on a consumer that is a script."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from support.waiting import until

from knafka.clients.kafka.consumers import (
    kafka_group_consumer,
    kafka_positioned,
    kafka_replaced_topics,
)
from knafka.clients.kafka.consumers.kafka_positioned import KafkaPositionedReader
from knafka.clients.kafka.consumers.kafka_reader import KafkaReader
from knafka.core.commit_metadata import mark, short_id
from knafka.core.contract import Conversion, Egress, Kafka, Sink
from knafka.core.errors import LogError
from knafka.dispatcher import connecting
from knafka.ports.log import Commits, OffsetAndMetadata
from knafka.ports.shared_log import BEGINNING, Position

TOPIC = "events"


class ScriptedConsumer:
    """A consumer of confluent-kafka that owns partition 0, and returns what a test puts."""

    def __init__(self) -> None:
        self.messages: SimpleQueue[FakeMessage | int | None] = SimpleQueue()
        """What polls return; a number is a partition that is assigned meanwhile."""
        self.polls = 0
        self.starts: list[tuple[int, int]] = []
        """Partitions that were assigned, and where their reading starts."""
        self.refuses_assignment = self.is_closed = False
        self.committed_offsets: list[int] = []
        self.committed_metadata: list[str | None] = []
        self.group_metadata = ""
        """Metadata of the group's commits."""
        self.asked_for_ids: list[str] = []
        self.sends_ids = asyncio.Event()
        self.sends_ids.set()
        self._on_assign: Any = None

    def subscribe(self, topics: list[str], on_assign: Any, **callbacks: Any) -> None:
        self._on_assign = self._assign = on_assign

    def poll(self, timeout: float) -> FakeMessage | None:
        if self._on_assign is not None:
            on_assign, self._on_assign = self._on_assign, None
            if not self.polls:
                on_assign(self, [TopicPartition(TOPIC, 0)])
        self.polls += 1
        with suppress(Empty):
            while isinstance(message := self.messages.get(block=timeout > 0), int):
                self._assign(self, [TopicPartition(TOPIC, message)])
            return message
        return None

    def consume(self, number: int, timeout: float) -> list[Message]:
        return []

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        metadata = self.group_metadata
        return [TopicPartition(each.topic, each.partition, 7, metadata) for each in partitions]

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        return partitions

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        self.committed_offsets += [each.offset for each in offsets]
        self.committed_metadata += [each.metadata for each in offsets]
        return []

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        if self.refuses_assignment:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.starts += [(each.partition, each.offset) for each in partitions]

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None: ...
    def pause(self, partitions: list[TopicPartition]) -> None: ...
    def resume(self, partitions: list[TopicPartition]) -> None: ...

    async def read_topic_id(self, calls: object, topic: str) -> str:
        """Take the place of the request for a topic's id."""
        self.asked_for_ids.append(topic)
        await self.sends_ids.wait()
        return "id"

    def close(self) -> None:
        self.is_closed = True


class Client:
    """An admin client that is never asked."""

    def close(self) -> None: ...


class FakeMessage:
    """A record of a partition, at offset 9."""

    def __init__(self, number: int = 0) -> None:
        self._number = number

    def error(self) -> KafkaError | None:
        return None

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return self._number

    def offset(self) -> int:
        return 9

    def leader_epoch(self) -> int:
        return 0


class LostOffset(FakeMessage):
    """The message by which librdkafka says that the log has no such offset."""

    def error(self) -> KafkaError:
        return KafkaError(KafkaError._AUTO_OFFSET_RESET)


class Notes:
    """An `Assignment` that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_assigned(self, partitions: Mapping[int, OffsetAndMetadata | None]) -> None:
        self.calls.append("assigned")

    async def on_revoked(self, partitions: Sequence[int]) -> Commits:
        return {}

    def on_lost(self, partitions: Sequence[int]) -> None:
        self.calls.append("lost")


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> ScriptedConsumer:
    scripted = ScriptedConsumer()
    for seconds in ("FIRST_TOPIC_ID_DELAY", "TOPIC_ID_INTERVAL"):  # no id unless it is hastened
        monkeypatch.setattr(kafka_replaced_topics, seconds, 3600.0)
    monkeypatch.setattr(kafka_replaced_topics, "AdminCalls", lambda *arguments: Client())
    monkeypatch.setattr(kafka_replaced_topics, "read_topic_id", scripted.read_topic_id)
    for module in (kafka_group_consumer, kafka_positioned):
        monkeypatch.setattr(module, "open_client", lambda *arguments: scripted)
    return scripted


@pytest.fixture
async def assignment() -> Notes:
    return Notes()


@pytest.fixture
async def reader(consumer: ScriptedConsumer, assignment: Notes) -> AsyncIterator[KafkaReader]:
    opened = KafkaReader({}, "group", TOPIC, assignment)
    yield opened
    consumer.messages.put(None)
    consumer.messages.put(None)
    await opened.close(0.1)


@pytest.fixture
async def positioned(consumer: ScriptedConsumer) -> AsyncIterator[KafkaPositionedReader]:
    opened = KafkaPositionedReader({}, TOPIC)
    opened.begin({0: Position(9)})
    yield opened
    await opened.close(1)


@pytest.fixture(params=["reader", "positioned"])
def any_reader(request: pytest.FixtureRequest) -> KafkaReader | KafkaPositionedReader:
    found: KafkaReader | KafkaPositionedReader = request.getfixturevalue(request.param)
    return found


def replace_topic(reader: KafkaReader | KafkaPositionedReader) -> None:
    """Let the reader notice that its topic was deleted and created again."""
    reader._replaced._ids._note_id(TOPIC, "old id")
    reader._replaced._ids._note_id(TOPIC, "new id")


async def begin_read(reader: KafkaReader, consumer: ScriptedConsumer) -> asyncio.Task[Any]:
    """Begin a read that waits for a message; what is requested meanwhile waits for its end."""
    reading = asyncio.create_task(reader.read(1, 1))
    await until(lambda: consumer.polls == 1)
    return reading


async def test_a_commit_of_the_old_log_that_waits_while_the_partition_is_restarted_is_not_made(
    reader: KafkaReader, consumer: ScriptedConsumer, assignment: Notes
) -> None:
    reading = await begin_read(reader, consumer)
    reader.commit({0: OffsetAndMetadata(9)})
    consumer.messages.put(LostOffset())
    await reading
    reader.commit({0: OffsetAndMetadata(1)})
    await until(lambda: bool(consumer.committed_offsets))
    assert assignment.calls == ["assigned", "lost", "assigned"]
    assert consumer.committed_offsets == [1]


async def test_a_commit_that_must_be_confirmed_fails_if_its_log_was_restarted(
    reader: KafkaReader, consumer: ScriptedConsumer
) -> None:
    reading = await begin_read(reader, consumer)
    confirming = asyncio.create_task(reader.commit_now({0: OffsetAndMetadata(9)}))
    await asyncio.sleep(0)
    consumer.messages.put(LostOffset())
    await reading
    with pytest.raises(LogError):
        await confirming
    await reader.commit_now({0: OffsetAndMetadata(1)})
    assert consumer.committed_offsets == [1]


async def test_a_partition_assigned_soon_after_its_topic_was_replaced_is_read_from_its_start(
    reader: KafkaReader, consumer: ScriptedConsumer, assignment: Notes
) -> None:
    """Its former owner may have committed a position in the old topic."""
    consumer.messages.put(None)
    await reader.read(1, 1)
    replace_topic(reader)
    for message in (1, FakeMessage(1), FakeMessage(1)):
        consumer.messages.put(message)
    assert not await reader.read(1, 1), "the record is behind the start"
    assert len(await reader.read(1, 1)) == 1
    assert consumer.starts == [(0, 7), (0, OFFSET_BEGINNING), (1, 7), (1, OFFSET_BEGINNING)]
    assert assignment.calls == ["assigned", *["lost", "assigned"], "assigned", "lost", "assigned"]


async def test_commits_of_a_partition_assigned_soon_after_its_topic_was_replaced_name_the_topic(
    reader: KafkaReader, consumer: ScriptedConsumer
) -> None:
    consumer.messages.put(None)
    await reader.read(1, 1)
    replace_topic(reader)
    for message in (1, None):
        consumer.messages.put(message)
    await reader.read(1, 1)
    await reader.commit_now({0: OffsetAndMetadata(1), 1: OffsetAndMetadata(1)})
    assert consumer.committed_metadata == [mark("", "new id")] * 2


async def test_commits_after_a_lost_log_name_the_topic_once_its_id_was_read_again(
    reader: KafkaReader, consumer: ScriptedConsumer
) -> None:
    """The log may be lost as the topic was replaced, or as its retention is over."""

    async def commit_after(message: FakeMessage | None) -> None:
        consumer.messages.put(message)
        await reader.read(1, 1)
        await reader.commit_now({0: OffsetAndMetadata(1)})

    reader._replaced._ids._note_id(TOPIC, "id")
    await commit_after(None)
    consumer.sends_ids.clear()
    began = time.monotonic()
    for message in (LostOffset(), LostOffset(), None):
        await commit_after(message)
    consumer.sends_ids.set()
    await until(lambda: bool(reader._replaced.topic_id(TOPIC, began)))
    answered = time.monotonic()  # it may be a request that was sent before the second loss
    reader._replaced.hasten()
    await until(lambda: bool(reader._replaced.topic_id(TOPIC, answered)))
    await commit_after(None)
    assert consumer.committed_metadata == [mark("", "id"), "", "", "", mark("", "id")]


async def test_a_commit_of_a_topic_that_was_never_read_makes_the_topics_id_be_compared_at_once(
    reader: KafkaReader, consumer: ScriptedConsumer
) -> None:
    """Another member may know of a newer topic before this one does."""
    consumer.messages.put(None)
    await reader.read(1, 1)
    reader._replaced._ids._note_id(TOPIC, "id")
    consumer.group_metadata = mark("", short_id("idOfNewerTopic"))
    for message in (1, None):
        consumer.messages.put(message)
    await reader.read(1, 1)
    assert consumer.starts == [(0, 7), (1, OFFSET_BEGINNING)]
    await until(lambda: consumer.asked_for_ids == [TOPIC])


@pytest.mark.parametrize("conversion", [None, Conversion(source="s")])
@pytest.mark.parametrize("at_most_once", [False, True])
async def test_no_replaced_topic_is_read_from_its_start_at_most_once(
    consumer: ScriptedConsumer,
    assignment: Notes,
    monkeypatch: pytest.MonkeyPatch,
    at_most_once: bool,
    conversion: Conversion | None,
) -> None:
    """Events of the new topic that were begun before this was noticed would be begun again."""
    monkeypatch.setattr(connecting, "KafkaWriter", lambda *arguments: None)
    egress = Egress(
        namespace="shop", broker="default", trigger="t", topic=TOPIC, group="group",
        dead_letter_topic="dead", kafka=Kafka(bootstrap_servers="kafka:9092"),
        subscriber=Sink(url="http://there/"), at_most_once=at_most_once, conversion=conversion,
    )  # fmt: skip
    opened: Any = connecting.connect(egress, {}, None).open_reader(assignment)
    try:
        assert list(opened._replaced.topics) == ([] if at_most_once else [TOPIC])
    finally:
        consumer.messages.put(None)
        consumer.messages.put(None)
        await opened.close(0.1)


async def test_a_cut_in_a_replaced_topic_restarts_all_of_the_partition(
    positioned: KafkaPositionedReader, consumer: ScriptedConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = TopicPartition(TOPIC, 0, 5)
    monkeypatch.setattr(kafka_positioned, "cut_of", lambda consumer, message: cut)
    consumer.messages.put(LostOffset())
    await positioned.read(1, 1)
    assert positioned.restarted == {0: Position(5)}
    replace_topic(positioned)
    consumer.messages.put(LostOffset())
    await positioned.read(1, 1)
    assert positioned.restarted == {0: Position(BEGINNING)}


async def test_a_restart_that_librdkafka_refuses_fails_the_read(
    any_reader: KafkaReader | KafkaPositionedReader, consumer: ScriptedConsumer
) -> None:
    consumer.messages.put(None)
    await any_reader.read(1, 1)
    replace_topic(any_reader)
    consumer.refuses_assignment = True
    with pytest.raises(LogError):
        await any_reader.read(1, 1)


async def test_a_lost_log_that_was_not_cut_makes_the_topics_id_be_compared_at_once(
    any_reader: KafkaReader | KafkaPositionedReader, consumer: ScriptedConsumer
) -> None:
    consumer.messages.put(LostOffset())
    await any_reader.read(1, 1)
    await until(lambda: consumer.asked_for_ids == [TOPIC])


async def test_a_close_that_is_cancelled_still_closes_the_consumer(
    any_reader: KafkaReader | KafkaPositionedReader, consumer: ScriptedConsumer
) -> None:
    consumer.messages.put(None)
    await any_reader.read(1, 1)
    closing = asyncio.create_task(any_reader.close(30))
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    consumer.messages.put(None)
    consumer.messages.put(None)
    await until(lambda: consumer.is_closed)
