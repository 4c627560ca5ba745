"""A Broker's contract on a real Kafka: written by one operator, read by the next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.kafka import Kafka
from support.waiting import until

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.consumers import kafka_replaced_topics
from knafka.clients.kafka.consumers.kafka_identified import KafkaIdentifiedReader
from knafka.clients.kafka.kafka_requests import AdminCalls
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.contract_topic import ContractFollower
from knafka.core import contract
from knafka.core.contract import Egress, SharedEgress, Sink
from knafka.dispatcher.shared.entries import ShardEntryParser
from knafka_operator.kafka.clusters import KafkaCluster
from knafka_operator.kafka.contracts import SharedContractTopic
from knafka_operator.model.identity import Identity
from knafka_operator.model.topics import Topic
from knafka_operator.scale.scaler import Scaler

COMPACTED = {"cleanup.policy": "compact"}


class World:
    """Operators, one after the other, with one Broker's contract."""

    def __init__(self, kafka: Kafka, name: str) -> None:
        self.connection = {"bootstrap.servers": kafka.bootstrap_servers}
        self.topic = Topic(name, 1, 1, COMPACTED)
        self.admin = KafkaAdmin(self.connection)
        self.broker = Identity("shop", name)
        self._clusters: list[KafkaCluster] = []

    def operator(self, *, known: bool = False) -> SharedContractTopic:
        drains: Any = None
        cluster = KafkaCluster(
            self.admin,
            Scaler(self.admin, drains),
            self.connection["bootstrap.servers"],
            lambda: KafkaWriter(self.connection),
        )
        self._clusters.append(cluster)
        return SharedContractTopic(self.broker, self.topic.name, cluster, known=known)

    def shared(self, trigger: str) -> SharedEgress:
        egress = Egress(
            namespace="shop", broker="default", trigger=trigger,
            topic="events", group=trigger, dead_letter_topic="dead",
            kafka=contract.Kafka(bootstrap_servers="kafka:9092"),
            subscriber=Sink(url="http://there/"),
        )  # fmt: skip
        return SharedEgress(shard="shard-0", egress=egress)

    async def close(self) -> None:
        for each in self._clusters:
            if each._writer is not None:
                await each._writer.close(1)
        await self.admin.delete_topic(self.topic.name)
        await self.admin.close()


@pytest.fixture
async def world(kafka: Kafka, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    world = World(kafka, f"contract-{abs(hash(request.node.name))}")
    yield world
    await world.close()


async def test_what_one_operator_wrote_the_next_one_reads(world: World) -> None:
    first = world.operator()
    await first.load()
    assert (first.exists, first.records) == (False, {}), "the topic isn't there yet"
    await first.ensure_created(world.topic)
    triggers = [f"t{number}" for number in range(200)]
    await asyncio.gather(*(first.write(each, world.shared(each)) for each in triggers))
    await first.write("t0", None)
    assert first.position == 201
    described = await world.admin.describe_topic(world.topic.name)
    assert described is not None
    assert (described.partitions, described.config["cleanup.policy"]) == (1, "compact")

    second = world.operator()
    await second.load()
    assert second.records == first.records == {each: world.shared(each) for each in triggers[1:]}
    assert (second.exists, second.position) == (True, 201)
    assert not await second.reload_if_changed()
    await first.write("t1", None)
    assert await second.reload_if_changed()
    assert "t1" not in second.records


async def test_a_follower_reads_the_first_records_of_a_topic_that_replaced_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new topic has grown past the follower's position before its next fetch."""
    monkeypatch.setattr(kafka_replaced_topics, "FIRST_TOPIC_ID_DELAY", 0.0)
    monkeypatch.setattr(kafka_replaced_topics, "TOPIC_ID_INTERVAL", 0.2)
    await world.operator().ensure_created(world.topic)
    ids_read: list[str] = []
    find_id = kafka_replaced_topics.read_topic_id

    async def read_topic_id(calls: AdminCalls, topic: str) -> str:
        ids_read.append(await find_id(calls, topic))
        return ids_read[-1]

    monkeypatch.setattr(kafka_replaced_topics, "read_topic_id", read_topic_id)
    readers: list[KafkaIdentifiedReader] = []

    def open_reader() -> KafkaIdentifiedReader:
        readers.append(KafkaIdentifiedReader(world.connection, world.topic.name))
        return readers[-1]

    follower = ContractFollower(ShardEntryParser("shard-0"), open_reader)
    task = asyncio.create_task(follower.follow())
    try:
        await _write_all(world, "old", "older")
        await until(lambda: set(follower.contract.entries) == {"old", "older"})
        await until(lambda: ids_read)
        readers[0].pause({0})
        await world.admin.delete_topic(world.topic.name)
        await _write_all(world, "new", "newer", "newest")
        readers[0].resume({0})
        await until(lambda: set(follower.contract.entries) == {"new", "newer", "newest"})
        assert follower.contract.position == 3
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _write_all(world: World, *triggers: str) -> None:
    """Write records of these Triggers into the topic, which is created unless it exists."""
    operator = world.operator()
    await operator.load()
    await operator.ensure_created(world.topic)
    for trigger in triggers:
        await operator.write(trigger, world.shared(trigger))
