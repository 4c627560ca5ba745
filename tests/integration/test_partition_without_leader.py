"""One partition that can't be read hides nothing of the others (issue 12, item 11).

A real Kafka of two brokers, of which the second is killed: its partitions have no leader then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar, cast
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.kafka import Kafka as KafkaFixture
from support.scaling import NoSensors
from support.second_broker import NODE_ID, second_broker
from support.sensors import SensorWorld, process, rest
from support.transactions import Holder
from support.waiting import until

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.consumers.kafka_bounded_reader import BOUNDED_READ_REQUEST_TIMEOUT
from knafka.clients.kafka.producers.kafka_transactions import KafkaTransactions
from knafka.core.contract import Egress, Kafka, Shard, Sink
from knafka.core.drain import DrainProgress, DrainRequest, Ended, ShardProgress
from knafka.core.errors import LogError
from knafka.core.sensor.order import Place, Taken
from knafka.core.sensor.records import commit_metadata
from knafka.ports.log import OffsetAndMetadata, Record
from knafka.ports.transactions import Partition
from knafka_cli.events.searching import TopicSearch, run_search
from knafka_cli.events.tailing import TailStart, tail_records
from knafka_local.kafka.kafka_distribution import KafkaDistribution
from knafka_local.kafka.kafka_server import KafkaServer
from knafka_operator.kafka.clusters import KafkaClusters
from knafka_operator.model.autoscaling import Autoscaling

pytestmark = pytest.mark.kafka

T = TypeVar("T")

TIMEOUT = 4.0
"""Seconds for one request: one that goes to the broker that is away takes all of them."""


@dataclass
class Halved:
    """A Kafka whose second broker is away; `topic` has five records on each of two partitions, the
    second of which has no leader, `other` has all of its ten."""

    bootstrap_servers: str
    topic: str
    other: str
    asked_before: KafkaAdmin
    """It has looked while both brokers were there."""
    changelog: str
    """As `topic`, without records."""

    def admin(self) -> KafkaAdmin:
        connection = {"bootstrap.servers": self.bootstrap_servers, "log_level": 0}
        return KafkaAdmin(connection, request_timeout=TIMEOUT)

    def make_topic(self, partitions: int = 1, **config: str) -> str:
        """Make a topic, all on the first broker; as `support.kafka.MakeTopic`."""
        name = f"test-{uuid4().hex}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result()
        return name


@pytest.fixture
async def halved(kafka_distribution: KafkaDistribution, tmp_path: Path) -> AsyncIterator[Halved]:
    server = KafkaServer(kafka_distribution, tmp_path / "first")
    await server.start()
    try:
        servers = server.bootstrap_servers
        connection: dict[str, str | int | float | bool] = {
            "bootstrap.servers": servers,
            "log_level": 0,
        }
        topic, other = (f"test-{uuid4().hex}" for _ in range(2))
        asked_before = KafkaAdmin(connection, request_timeout=TIMEOUT)
        # All groups are on the first broker if they are on any before there is a second.
        await asked_before.ensure_topic(other, 1, 1, {})
        await asked_before.ensure_committed("first", other)
        async with second_broker(kafka_distribution, server, tmp_path / "second") as second:
            admin = AdminClient(connection)
            for name in (topic, changelog := f"changelog-{uuid4().hex}"):
                new = NewTopic(name, 2, replica_assignment=[[1], [NODE_ID]])
                admin.create_topics([new])[name].result()
            producer = Producer(connection)
            for number in range(10):
                producer.produce(topic, b"x", partition=number % 2)
                producer.produce(other, b"x")
            assert producer.flush(20) == 0
            assert (await asked_before.lags(["group"], topic))["group"].total == 10
            second.kill()
            await second.wait()
            await until(lambda: has_no_leader(admin, topic) and has_no_leader(admin, changelog))
            yield Halved(servers, topic, other, asked_before, changelog)
    finally:
        await server.stop()


def has_no_leader(admin: AdminClient, topic: str) -> bool:
    """Whether the second partition has lost its leader, as far as a broker answers."""
    with suppress(KafkaException):  # it may have asked the one that is away
        return admin.list_topics(timeout=5).topics[topic].partitions[1].leader == -1
    return False


async def answered(call: Callable[[], Awaitable[T]]) -> T:
    """Its first answer: some requests still go to the broker that is away, and end unanswered."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except LogError:
                await asyncio.sleep(0.05)


async def test_a_partition_without_a_leader_hides_nothing_of_the_others(halved: Halved) -> None:
    """It failed the look at its topic, and the one at all topics."""
    both = {halved.topic, halved.other}
    for admin in (halved.asked_before, halved.admin()):
        ends = await answered(partial(admin.end_offsets_of_all, both))
        assert ends == {halved.topic: {0: 5}, halved.other: {0: 10}}
        lags = await answered(partial(admin.lags, ["group"], halved.other))
        assert lags["group"].by_partition == {0: 10}
        lags = await answered(partial(admin.lags, ["group"], halved.topic))
        # Nothing can be added to it, so what was known of it still holds.
        waiting = 5 if admin is halved.asked_before else 0
        assert lags["group"].by_partition == {0: 5, 1: waiting}

    # A group that is new must not begin at a guess.
    with pytest.raises(LogError):
        await halved.asked_before.ensure_committed("new", halved.topic)
    with pytest.raises(LogError):
        await halved.asked_before.end_offsets(halved.topic)


async def test_a_partition_without_a_leader_delays_no_other_topics_drains(halved: Halved) -> None:
    """Issue 14, 5: from the event in Kafka to the drain it is as long as without it."""
    held = asyncio.Event()

    class Drains(NoSensors):
        async def hold(
            self, trigger_id: str, egress: Egress, request: DrainRequest, stop: asyncio.Event
        ) -> AsyncIterator[DrainProgress]:
            if trigger_id == "other":
                held.set()
            await stop.wait()
            yield DrainProgress(ended=Ended.STOPPED)

        def hold_shard(
            self, shard: Shard, request: DrainRequest, stop: asyncio.Event
        ) -> AsyncIterator[ShardProgress]:
            raise NotImplementedError

    kafkas = KafkaClusters(lambda _: halved.asked_before, Drains())
    kafka = kafkas.ensure_cluster(halved.bootstrap_servers, None)
    producer = Producer({"bootstrap.servers": halved.bootstrap_servers, "log_level": 0})
    await answered(partial(halved.asked_before.ensure_committed, "other", halved.other))
    try:
        for trigger, topic in (("bad", halved.topic), ("other", halved.other)):
            egress = Egress(
                namespace="test", broker="b", trigger=trigger, topic=topic, group=trigger,
                dead_letter_topic="dead", subscriber=Sink(url="http://unused/"),
                kafka=Kafka(bootstrap_servers=halved.bootstrap_servers),
            )  # fmt: skip
            await kafka.scaler.watch(trigger, egress, Autoscaling(polling_interval=1000))
            kafka.watched.add(topic)
        await asyncio.sleep(3)  # what is asked only once is over
        assert not held.is_set()
        began = time.monotonic()
        producer.produce(halved.other, b"x")
        assert producer.flush(20) == 0
        async with asyncio.timeout(60):
            await held.wait()
        assert time.monotonic() - began < 0.75 * TIMEOUT  # mostly half a second, as without it
    finally:
        await kafkas.close()


async def test_a_partition_without_a_leader_holds_up_no_other_of_its_sensor(halved: Halved) -> None:
    """Of it, Kafka can't say whether its log has lost the records that its commit speaks of."""
    connection = {"bootstrap.servers": halved.bootstrap_servers, "log_level": 0}
    metadata = commit_metadata({}, None, Taken(5, Place(7, 0, 4)))
    consumer = Consumer({**connection, "group.id": "first"})
    commits = [TopicPartition(halved.topic, number, 3, metadata, 0) for number in (0, 1)]
    await asyncio.to_thread(consumer.commit, offsets=commits, asynchronous=False)
    consumer.close()
    holder = Holder()

    def read_first() -> list[int]:
        """Read as a Sensor until it holds a partition, and what waits there."""
        log = KafkaTransactions(connection, "first", [halved.topic], holder, "sensor")
        try:
            offsets: list[int] = []
            give_up_at = time.monotonic() + 60
            while len(offsets) < 2 and time.monotonic() < give_up_at:
                offsets += [record.offset() for record in log.read(10, 0.5)]
            return offsets
        finally:
            committed.update(holder.committed)
            log.close(TIMEOUT)

    committed: dict[Partition, OffsetAndMetadata | None] = {}
    assert await asyncio.to_thread(read_first) == [3, 4]
    assert committed == {Partition(halved.topic, 0): OffsetAndMetadata(3, metadata)}


async def test_a_changelog_without_a_leader_holds_up_no_other_partition_of_its_sensor(
    halved: Halved,
) -> None:
    world = SensorWorld(KafkaFixture(halved.bootstrap_servers), halved.make_topic, partitions=2)
    world.changelog = halved.changelog
    trigger = {"name": "pair", "conditions": "a && b", "correlation": "order"}
    sensor = world.sensor([trigger])
    orders = [f"order-{number}" for number in range(8)]

    def fired() -> set[object]:
        records = (cast(Record, each) for each in world.read(world.action_topic))
        return {(dict(each.headers() or ())["ce_subject"] or b"").decode() for each in records}

    def run() -> None:
        processor = world.processor(sensor)
        try:
            for order in orders:
                world.publish("a", "b", order=order)
            began = time.monotonic()
            process([processor], lambda: bool(fired()))
            assert time.monotonic() - began < 2 * BOUNDED_READ_REQUEST_TIMEOUT
            rest([processor])
        finally:
            processor.close(TIMEOUT)

    await asyncio.to_thread(run)
    routed = {
        cast(bytes, each.key()).decode().partition("/")[2]: each.partition()
        for each in world.read(world.trigger_topic)
    }
    assert set(routed.values()) == {0, 1}
    assert fired() == {order for order in orders if routed[order] == 0}


async def test_tail_and_trace_read_what_has_a_leader_and_name_the_rest(halved: Halved) -> None:
    connection = {"bootstrap.servers": halved.bootstrap_servers, "log_level": 0}
    notes: list[str] = []

    def tailed(topics: Sequence[str], count: int) -> list[tuple[str, int]]:
        records = tail_records(connection, topics, TailStart(last=100), notes.append)
        return sorted((each.topic(), each.partition()) for each in islice(records, count))

    topics = [halved.topic, halved.other]
    expected = [(halved.other, 0)] * 10 + [(halved.topic, 0)] * 5
    assert await asyncio.to_thread(tailed, topics, 15) == sorted(expected)
    assert notes == [f"partition 1 of {halved.topic} has no leader: events there aren't shown"]

    search = TopicSearch(halved.topic)
    await asyncio.to_thread(
        run_search, connection, search, lambda record: True, 0.0, lambda search: None
    )
    assert [each.partition() for each in search.matching_records] == [0] * 5
    assert (search.ended, search.covers_topic) == (True, False)
    assert search.leaderless == {1}
