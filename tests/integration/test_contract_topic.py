"""A Broker's contract on a real Kafka: written by one operator, read by the next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.kafka import Kafka

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.core import contract
from knafka.core.contract import Egress, SharedEgress, Sink
from knafka_operator.decide.desired import Topic
from knafka_operator.model.identity import Identity
from knafka_operator.reconcile.contracts import SharedContractTopic
from knafka_operator.scale.kafka_clusters import KafkaCluster
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
