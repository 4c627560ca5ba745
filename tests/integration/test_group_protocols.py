"""Which group protocol a reader joins by, and a group that goes over from one to the other."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.kafka import Kafka, MakeTopic

from knafka.clients.kafka.consumers.kafka_group_consumer import GroupProtocol
from knafka.clients.kafka.consumers.kafka_reader import KafkaReader
from knafka.ports.log import Commits, OffsetAndMetadata
from knafka_local.kafka.kafka_distribution import KafkaDistribution
from knafka_local.kafka.kafka_server import KafkaServer

pytestmark = pytest.mark.kafka

SOON = 30.0
CONSUMER, CLASSIC = GroupProtocol.CONSUMER, GroupProtocol.CLASSIC


class Member:
    """A reader and what it has read; it commits that when its partitions go."""

    def __init__(self, bootstrap: str, place: str, protocol: GroupProtocol) -> None:
        self.owned: set[int] = set()
        self.next: dict[int, int] = {}
        self.values: list[bytes] = []
        self.reader = KafkaReader({"bootstrap.servers": bootstrap}, place, place, self, protocol)
        self._reading = asyncio.create_task(self._read())

    def on_assigned(self, partitions: Mapping[int, OffsetAndMetadata | None]) -> None:
        self.owned.update(partitions)

    async def on_revoked(self, partitions: Sequence[int]) -> Commits:
        self.owned.difference_update(partitions)
        return {
            each: OffsetAndMetadata(self.next.pop(each)) for each in partitions if each in self.next
        }

    def on_lost(self, partitions: Sequence[int]) -> None:
        self.owned.difference_update(partitions)

    async def _read(self) -> None:
        while True:
            for record in await self.reader.read(500, 0.1):
                self.next[record.partition()] = record.offset() + 1
                self.values.append(record.value() or b"")

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait({self._reading})
        await self.reader.close(15)


def produce(bootstrap: str, topic: str, values: Sequence[int]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, b"%d" % value, b"%d" % value)
    assert producer.flush(SOON) == 0


async def test_a_broker_with_the_classic_protocol_alone_is_read_by_that(
    kafka_distribution: KafkaDistribution, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # a client of an earlier test logs until it is collected
    properties = {"group.coordinator.rebalance.protocols": "classic"}
    server = KafkaServer(kafka_distribution, tmp_path / "kafka", properties=properties)
    await server.start()
    try:
        client = AdminClient({"bootstrap.servers": server.bootstrap_servers})
        topic = "events"
        await asyncio.wrap_future(client.create_topics([NewTopic(topic, 2, 1)])[topic])
        await asyncio.to_thread(produce, server.bootstrap_servers, topic, range(20))
        member = Member(server.bootstrap_servers, topic, CONSUMER)
        async with asyncio.timeout(SOON):
            while len(member.values) < 20:  # noqa: ASYNC110  # nobody signals it
                await asyncio.sleep(0.02)
        assert member.reader.protocol is CLASSIC
        assert [each for each in caplog.records if each.levelname in ("ERROR", "CRITICAL")] == []
        await member.close()
    finally:
        await server.stop()


@pytest.mark.parametrize(("before", "after"), [(CLASSIC, CONSUMER), (CONSUMER, CLASSIC)])
async def test_a_group_goes_over_from_one_protocol_to_the_other_while_it_reads(
    kafka: Kafka, topic: MakeTopic, before: GroupProtocol, after: GroupProtocol
) -> None:
    """An upgrade of Knafka or of Kafka: for a while both kinds of member are there."""
    place = topic(partitions=6)
    produced = iter(range(0, 10_000, 100))

    async def send() -> None:
        start = next(produced)
        await asyncio.to_thread(produce, kafka.bootstrap_servers, place, range(start, start + 100))

    async def until_shared(*members: Member) -> None:
        async with asyncio.timeout(SOON):
            while not (  # noqa: ASYNC110
                all(each.owned for each in members)
                and sorted(number for each in members for number in each.owned) == [*range(6)]
            ):
                await asyncio.sleep(0.02)

    await send()
    old = [Member(kafka.bootstrap_servers, place, before) for _ in range(2)]
    await until_shared(*old)
    new = [Member(kafka.bootstrap_servers, place, after)]
    await send()
    await until_shared(*old, *new)
    new.append(Member(kafka.bootstrap_servers, place, after))
    await send()
    await until_shared(*old, *new)
    for each in old:
        await each.close()
        await send()
    await until_shared(*new)
    await send()
    every = [*old, *new]
    sent = next(produced)
    async with asyncio.timeout(SOON):
        while len({value for each in every for value in each.values}) < sent:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    # Kafka takes a member of the new kind into a group of the old one only while that is stable;
    # who comes in a rebalance joins as the others did.
    assert {each.reader.protocol for each in new} <= {after, CLASSIC}
    for each in new:
        await each.close()
    values = sorted(int(value) for each in every for value in each.values)
    assert sorted(set(values)) == list(range(sent)), "nothing is lost"
    if after is CONSUMER:  # the way back may fence a classic member, which then reads again
        assert len(values) == sent, "each once"
