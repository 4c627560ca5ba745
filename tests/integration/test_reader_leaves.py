"""A reader that closes has committed and left its group, also in the middle of a rebalance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from support.kafka import Kafka, MakeTopic
from support.waiting import until_found

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.consumers.kafka_group_consumer import (
    GroupConsumer,
    GroupProtocol,
    assign_paused,
)
from knafka.clients.kafka.consumers.kafka_reader import KafkaReader
from knafka.ports.log import Commits, OffsetAndMetadata

pytestmark = pytest.mark.kafka

PARTITIONS = 9
EACH = 50
"""Records in each partition."""
SOON = 30.0

each_protocol = pytest.mark.parametrize("protocol", list(GroupProtocol))


class Member:
    """A reader whose attempts may take as long as the test likes; it reads until it is closed."""

    def __init__(self, bootstrap: str, place: str, protocol: GroupProtocol) -> None:
        self.owned: set[int] = set()
        self.seen: dict[int, int] = {}
        self.revoking = asyncio.Event()
        self.may_finish = asyncio.Event()
        self.may_finish.set()
        self.reader = KafkaReader({"bootstrap.servers": bootstrap}, place, place, self, protocol)
        self._reading = asyncio.create_task(self._read())

    def on_assigned(self, partitions: Mapping[int, OffsetAndMetadata | None]) -> None:
        self.owned.update(partitions)

    async def on_revoked(self, partitions: Sequence[int]) -> Commits:
        self.revoking.set()
        await self.may_finish.wait()
        self.owned.difference_update(partitions)
        return {
            each: OffsetAndMetadata(self.seen[each]) for each in partitions if each in self.seen
        }

    def on_lost(self, partitions: Sequence[int]) -> None:
        self.owned.difference_update(partitions)

    async def _read(self) -> None:
        while True:
            for record in await self.reader.read(500, 0.1):
                self.seen[record.partition()] = record.offset() + 1

    async def close(self, timeout: float) -> None:
        self._reading.cancel()
        await asyncio.wait({self._reading})
        await self.reader.close(timeout)


class Unpolled(GroupConsumer):
    """A consumer that nobody polls until it leaves, and what happens then in its order."""

    def __init__(self, bootstrap: str, place: str, protocol: GroupProtocol) -> None:
        self.happened: list[str] = []
        super().__init__({"bootstrap.servers": bootstrap}, place, [place], protocol)
        self.consumer: Any = Closing(self.consumer, self.happened)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.happened.append("assigned")
        assign_paused(consumer, partitions)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.happened.append("revoked")
        consumer.incremental_unassign(partitions)

    _on_lost = _on_revoke


class Closing:
    """A consumer that notes when it is closed."""

    def __init__(self, consumer: Consumer, happened: list[str]) -> None:
        self._consumer = consumer
        self._happened = happened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def close(self) -> None:
        self._happened.append("closes")
        self._consumer.close()


class World:
    def __init__(self, bootstrap: str, place: str) -> None:
        self.bootstrap = bootstrap
        self.place = place
        self.members: list[Member] = []
        self.admin = KafkaAdmin({"bootstrap.servers": bootstrap})
        self._client = AdminClient({"bootstrap.servers": bootstrap})

    def join(self, protocol: GroupProtocol) -> Member:
        self.members.append(Member(self.bootstrap, self.place, protocol))
        return self.members[-1]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON):
            while not condition():  # noqa: ASYNC110  # the group's doing: nobody signals it
                await asyncio.sleep(0.02)

    async def lag(self) -> int:
        return (await self.admin.lags([self.place], self.place))[self.place].total

    async def in_group(self) -> int:
        """How many members Kafka counts."""
        return len(await self.assignments())

    async def assignments(self) -> list[Sequence[TopicPartition]]:
        """The partitions of each member that Kafka counts."""
        described = self._client.describe_consumer_groups([self.place])[self.place]
        members = (await asyncio.wrap_future(described)).members
        return [member.assignment.topic_partitions for member in members]


@pytest.fixture
async def world(kafka: Kafka, topic: MakeTopic) -> AsyncIterator[World]:
    name = topic(partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(PARTITIONS * EACH):
        producer.produce(name, b"x", partition=number % PARTITIONS)
    assert producer.flush(SOON) == 0
    world = World(kafka.bootstrap_servers, name)
    yield world
    for member in world.members:
        member.may_finish.set()
    await asyncio.gather(*(member.close(5) for member in world.members))
    await world.admin.close()


@each_protocol
async def test_a_reader_that_closes_while_another_holds_the_rebalance_up_has_committed_and_left(
    world: World, protocol: GroupProtocol
) -> None:
    """Fault 8: its last commit failed with ILLEGAL_GENERATION, and it never left."""
    first, second = world.join(protocol), world.join(protocol)
    await world.until(lambda: bool(first.owned and second.owned))
    await world.until(lambda: sum(map(len, (first.seen, second.seen))) >= PARTITIONS)
    second.may_finish.clear()
    third = world.join(protocol)
    async with asyncio.timeout(SOON):
        await asyncio.gather(first.revoking.wait(), second.revoking.wait())
    # `first` has given up what it had to, and waits for `second`, which still finishes.
    closing = asyncio.create_task(first.close(20))
    world.members.remove(first)
    await asyncio.sleep(6)
    second.may_finish.set()
    await closing
    assert await world.in_group() <= 2, "it has left"
    await world.until(lambda: len(second.owned) + len(third.owned) == PARTITIONS)
    for each in (second, third):
        world.members.remove(each)
        await each.close(20)
    assert await world.lag() == 0, "what it had read was committed"


@each_protocol
async def test_an_assignment_that_waits_is_accepted_before_librdkafkas_close(
    world: World, protocol: GroupProtocol
) -> None:
    """Accepted within it, the process stood still now and then (librdkafka#4884)."""
    member = Unpolled(world.bootstrap, world.place, protocol)

    async def is_assigned() -> bool:
        with suppress(KafkaException):  # the group has no coordinator yet
            return any(await world.assignments())
        return False

    await until_found(is_assigned, SOON)
    member.consumer.list_topics(timeout=SOON)  # the assignment's answer came before this one
    await asyncio.to_thread(member.leave)
    assert member.happened[:2] == ["assigned", "closes"]
    assert await world.in_group() == 0


@each_protocol
async def test_a_commit_while_another_holds_the_rebalance_up_is_made_when_that_is_over(
    world: World, protocol: GroupProtocol
) -> None:
    first, second = world.join(protocol), world.join(protocol)
    await world.until(lambda: bool(first.owned and second.owned))
    await world.until(lambda: sum(map(len, (first.seen, second.seen))) >= PARTITIONS)
    second.may_finish.clear()
    third = world.join(protocol)
    async with asyncio.timeout(SOON):
        await asyncio.gather(first.revoking.wait(), second.revoking.wait())
    await asyncio.sleep(1)  # `first` has sent its JoinGroup, behind which its commits wait
    kept = first.owned.copy()
    first.reader.commit({each: OffsetAndMetadata(EACH - 1) for each in kept})
    await asyncio.sleep(1)
    second.may_finish.set()
    await world.until(lambda: sum(len(each.owned) for each in (first, second, third)) == PARTITIONS)
    async with asyncio.timeout(SOON):
        while True:
            lag = (await world.admin.lags([world.place], world.place))[world.place]
            if all(lag.by_partition[each] == 1 for each in kept & first.owned):
                break
    assert kept & first.owned


@each_protocol
async def test_all_members_that_close_at_once_leave_and_replacements_take_over(
    world: World, protocol: GroupProtocol
) -> None:
    old = [world.join(protocol) for _ in range(3)]
    await world.until(lambda: all(each.owned for each in old))
    await world.until(lambda: sum(len(each.seen) for each in old) >= PARTITIONS)
    for each in old:
        each.may_finish.clear()
    new = [world.join(protocol) for _ in range(3)]
    closing = []
    for each in old:
        await asyncio.sleep(0.5)
        world.members.remove(each)
        closing.append(asyncio.create_task(each.close(20)))
    await asyncio.sleep(2)
    for each in old:
        each.may_finish.set()
        await asyncio.sleep(0.5)
    await asyncio.gather(*closing)
    assert await world.in_group() == 3
    await world.until(lambda: sum(len(each.owned) for each in new) == PARTITIONS)
    for each in new:
        assert not each.seen, "all of it was committed"


@each_protocol
async def test_a_member_that_waits_for_its_last_attempts_stays_in_the_group(
    world: World, protocol: GroupProtocol
) -> None:
    """For longer than a session: they may take what a pod's grace period leaves."""
    member = world.join(protocol)
    await world.until(lambda: len(member.seen) == PARTITIONS)
    member.may_finish.clear()
    world.members.remove(member)
    closing = asyncio.create_task(member.close(60))
    await asyncio.sleep(13)
    assert await world.in_group() == 1
    other = world.join(protocol)
    await asyncio.sleep(3)
    member.may_finish.set()
    await closing
    await world.until(lambda: len(other.owned) == PARTITIONS)
    assert not other.seen
