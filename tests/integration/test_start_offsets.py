"""Where a group of a real Kafka begins that an application has used before."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from confluent_kafka import Consumer, Producer, TopicPartition
from support.kafka import Kafka, MakeTopic
from support.waiting import until

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core.commit_metadata import mark
from knafka.core.errors import LogError

pytestmark = pytest.mark.kafka

GROUP_HAS = {1: 0, 3: 1}
"""Offsets that the application has committed: it has never read partitions 0, 2 and 4."""


class Application:
    """A topic of five partitions with two records each, and a group with offsets on two."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self.topic, self.group = topic, uuid.uuid4().hex
        self.connection = {"bootstrap.servers": kafka.bootstrap_servers}
        producer = Producer(self.connection)
        for number in range(5):
            for _ in range(2):
                producer.produce(topic, b"any", partition=number)
        assert producer.flush(30) == 0

    def consumer(self) -> Consumer:
        return Consumer({**self.connection, "group.id": self.group})

    def commit(self, metadata: str = "") -> None:
        offsets = [
            TopicPartition(self.topic, number, offset, metadata)
            for number, offset in GROUP_HAS.items()
        ]
        consumer = self.consumer()
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()

    async def committed(self) -> dict[int, int]:
        consumer = self.consumer()
        asked = [TopicPartition(self.topic, number) for number in range(5)]
        answers = await asyncio.to_thread(consumer.committed, asked, 30)
        consumer.close()
        return {each.partition: each.offset for each in answers if each.offset >= 0}


@pytest.fixture
def application(kafka: Kafka, topic: MakeTopic) -> Application:
    return Application(kafka, topic(5))


@pytest_asyncio.fixture
async def admin(application: Application) -> AsyncIterator[KafkaAdmin]:
    admin = KafkaAdmin(application.connection)
    yield admin
    await admin.close()


async def test_what_was_never_read_begins_where_it_is_said_below_what_was(
    application: Application, admin: KafkaAdmin
) -> None:
    """A partition above the last one that was read may have been added since."""
    application.commit()
    await admin.ensure_committed(application.group, application.topic)
    assert await application.committed() == GROUP_HAS, "only if gaps are to be filled"
    await admin.ensure_committed(application.group, application.topic, fills_gaps=True)
    assert await application.committed() == {**GROUP_HAS, 0: 2, 2: 2}


async def test_what_a_group_of_ours_has_no_offset_on_was_added_later(
    application: Application, admin: KafkaAdmin
) -> None:
    """Knafka begins with all partitions; its commits say of which topic they are."""
    application.commit(mark("", "some-topic-"))
    await admin.ensure_committed(application.group, application.topic, fills_gaps=True)
    assert await application.committed() == GROUP_HAS


async def test_a_group_that_is_read_must_be_left_before_its_gaps_are_filled(
    application: Application, admin: KafkaAdmin
) -> None:
    application.commit()
    consumer = application.consumer()
    consumer.subscribe([application.topic])
    await until(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()), within=60)
    with pytest.raises(LogError, match="has 1 members and has never read partitions 0, 2 of"):
        await admin.ensure_committed(application.group, application.topic, fills_gaps=True)
    consumer.close()
    await admin.ensure_committed(application.group, application.topic, fills_gaps=True)
    assert (await application.committed()).keys() >= {0, 1, 2, 3}
