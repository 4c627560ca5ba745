"""A reader's partition whose log was created anew, on a consumer that is a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition
from support.waiting import until

from knafka.clients.kafka.consumers import kafka_group_consumer
from knafka.clients.kafka.consumers.kafka_reader import KafkaReader
from knafka.core.errors import LogError
from knafka.ports.log import Commits, OffsetAndMetadata

TOPIC = "events"


class ScriptedConsumer:
    """A consumer of confluent-kafka that owns partition 0, and returns what a test puts."""

    def __init__(self) -> None:
        self.messages: SimpleQueue[LostOffset | None] = SimpleQueue()
        self.polls = 0
        self.committed_offsets: list[int] = []
        self._on_assign: Any = None

    def subscribe(self, topics: list[str], on_assign: Any, **callbacks: Any) -> None:
        self._on_assign = on_assign

    def poll(self, timeout: float) -> LostOffset | None:
        if self._on_assign is not None:
            on_assign, self._on_assign = self._on_assign, None
            if not self.polls:
                on_assign(self, [TopicPartition(TOPIC, 0)])
        self.polls += 1
        return self.messages.get()

    def consume(self, number: int, timeout: float) -> list[Message]:
        return []

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [TopicPartition(each.topic, each.partition, 7) for each in partitions]

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        return partitions

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        self.committed_offsets += [each.offset for each in offsets]
        return []

    def incremental_assign(self, partitions: list[TopicPartition]) -> None: ...
    def incremental_unassign(self, partitions: list[TopicPartition]) -> None: ...
    def pause(self, partitions: list[TopicPartition]) -> None: ...
    def resume(self, partitions: list[TopicPartition]) -> None: ...
    def close(self) -> None: ...


class LostOffset:
    """The message by which librdkafka says that the log has no such offset."""

    def error(self) -> KafkaError:
        return KafkaError(KafkaError._AUTO_OFFSET_RESET)

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 9


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
    monkeypatch.setattr(kafka_group_consumer, "open_client", lambda *arguments: scripted)
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
