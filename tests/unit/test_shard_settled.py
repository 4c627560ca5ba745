"""What a shard's last line says of its groups' commits: enough for the operator to know that
nothing waits, and never more than Kafka has confirmed. On fake time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest
from support.drains import TOPIC, World, until
from support.logs import shared_memory
from support.memory.records import Marker
from support.memory.shared import MemoryOffsets
from support.shards import Shard, lines_of

from knafka.core.contract import Delivery
from knafka.core.drain import Ended, Settled, ShardProgress
from knafka.core.errors import LogError
from knafka.ports.log import OffsetAndMetadata
from knafka.ports.shared_log import Commit

pytestmark = pytest.mark.looptime

GROUPS = ("group-0", "group-1", "group-2")


class Three(Shard):
    """Three Egresses whose groups began at the start of three partitions."""

    def __init__(self) -> None:
        super().__init__(World(partitions=3, delivery=Delivery(retry=0)))
        for number in range(3):
            self.add(number)
            self.begin_group(f"group-{number}")

    def begin_group(self, group: str) -> None:
        committed = self.world.log.group(group).committed
        committed.update({(TOPIC, number): OffsetAndMetadata(0) for number in range(3)})

    async def last_line(self) -> ShardProgress:
        exchange = self.drain(idle="PT5S")
        await exchange.task
        return lines_of(exchange)[-1]


@pytest.fixture
async def three() -> AsyncIterator[Three]:
    shard = Three()
    await shard.start()
    yield shard
    await shard.dispatcher.stop()


def settled(offsets: Mapping[int, int], *without: str) -> Settled:
    return Settled(topic=TOPIC, offsets=dict(offsets), without=without)


async def test_the_last_line_tells_what_every_group_has_committed(three: Three) -> None:
    for number in range(5):
        three.world.store_at(number % 2, str(number))
    last = await three.last_line()
    assert last.ended is Ended.IDLE
    assert last.settled == settled({0: 3, 1: 2, 2: 0})
    assert [three.committed(number) for number in range(3)] == [5, 5, 5]


async def test_only_the_last_line_of_one_that_was_idle_tells_it(three: Three) -> None:
    three.world.send("1")
    exchange = three.drain(idle="PT1H", budget="PT5S")
    await exchange.task
    lines = lines_of(exchange)
    assert lines[-1].ended is Ended.BUDGET
    assert {each.settled for each in lines} == {None}


async def test_offsets_that_hold_no_record_are_settled_too(three: Three) -> None:
    """A transaction's marker is the last of what it wrote."""
    three.world.store_at(0, "1")
    three.world.log.topics[TOPIC][0].append(Marker(TOPIC, 0, 1, None, None, None))
    three.world.log.wake()
    assert (await three.last_line()).settled == settled({0: 2, 1: 0, 2: 0})


async def test_a_group_whose_last_commit_is_not_confirmed_is_left_out(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = MemoryOffsets.commit

    async def refuse(
        self: MemoryOffsets, group: str, topic: str, commits: Mapping[int, Commit]
    ) -> None:
        if group == "group-1":
            raise LogError("not now")
        await commit(self, group, topic, commits)

    monkeypatch.setattr(MemoryOffsets, "commit", refuse)
    three.world.store_at(0, "1")
    assert (await three.last_line()).settled == settled({0: 1, 1: 0, 2: 0}, "group-1")


async def test_a_commit_without_an_answer_is_not_taken_for_made(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = MemoryOffsets.commit

    async def hang(
        self: MemoryOffsets, group: str, topic: str, commits: Mapping[int, Commit]
    ) -> None:
        await commit(self, group, topic, commits)
        if group == "group-2":
            await asyncio.sleep(1e6)

    monkeypatch.setattr(MemoryOffsets, "commit", hang)
    three.world.store_at(0, "1")
    assert (await three.last_line()).settled == settled({0: 1, 1: 0, 2: 0}, "group-2")


async def test_an_egress_whose_drain_failed_is_left_out(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = MemoryOffsets.committed

    async def refuse(
        self: MemoryOffsets, group: str, topic: str, partitions: object
    ) -> Mapping[int, Commit]:
        if group == "group-0":
            raise LogError("no coordinator")
        return await committed(self, group, topic, partitions)  # type: ignore[arg-type]

    monkeypatch.setattr(MemoryOffsets, "committed", refuse)
    three.world.store_at(0, "1")
    last = await three.last_line()
    assert last.settled == settled({0: 1, 1: 0, 2: 0}, "group-0")
    assert last.egresses["group-0"].error == "no coordinator"


async def test_an_egress_that_reads_another_topic_is_left_out() -> None:
    three = Three()
    three.add(3, topic="another")
    await three.start()
    three.world.store_at(0, "1")
    assert (await three.last_line()).settled == settled({0: 1, 1: 0, 2: 0}, "group-3")
    await three.dispatcher.stop()


async def test_a_partition_of_another_process_is_not_told_of(three: Three) -> None:
    three.world.store_at(0, "1")
    exchange = three.drain(idle="PT5S")
    await until(lambda: three.committed(0) == 1)
    other = shared_memory(three.world.log, three.name, TOPIC)
    reader = other.open_reader("group-elsewhere", Nobody())
    await exchange.task
    found = lines_of(exchange)[-1].settled
    assert found is not None
    assert 0 < len(found.offsets) < 3
    await reader.close(5)
    await other.close()


class Nobody:
    """Is given partitions, and does nothing with them."""

    def on_assigned(self, partitions: Mapping[int, OffsetAndMetadata | None]) -> None: ...

    async def on_revoked(self, partitions: object) -> dict[int, OffsetAndMetadata]:
        return {}

    def on_lost(self, partitions: object) -> None: ...


async def test_what_was_lost_to_another_process_is_not_told_of(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    three.world.store_at(0, "1")
    exchange = three.drain(idle="PT5S")
    await until(lambda: three.committed(0) == 1)
    three.shared.on_lost([0, 1])
    await exchange.task
    found = lines_of(exchange)[-1].settled
    assert found is not None
    assert set(found.offsets) == {2}
