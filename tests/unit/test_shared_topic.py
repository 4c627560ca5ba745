"""Groups that share one read of a topic, on fake time: who reads where, and who may commit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial

import pytest
from support.drains import until
from support.logs import Owner, shared_memory
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog, MemoryReader
from support.memory.shared import MemoryMember, MemoryOffsets

from knafka.core.errors import LogError
from knafka.dispatcher.shared.fetcher import FetchLimits
from knafka.dispatcher.shared.reader import GroupReader
from knafka.dispatcher.shared.topic import (
    COMMIT_ROUND_SECONDS,
    CONCURRENT_COMMITS,
    CONFIRMATION_VALID_SECONDS,
)
from knafka.ports.log import OffsetAndMetadata, Positions, Record
from knafka.ports.shared_log import Commit, GroupHasMembers

pytestmark = pytest.mark.looptime

TOPIC = "events"
LIMITS = FetchLimits(ahead=100, records=500, spare=50)


class World:
    def __init__(self) -> None:
        self.memory = MemoryLog()
        self.memory.create(TOPIC)
        self.shared = shared_memory(self.memory, "shard", TOPIC, LIMITS)
        self.readers: list[GroupReader] = []

    def append(self, count: int) -> None:
        for _ in range(count):
            self.memory.store(TOPIC, b"k", b"v", None)

    def commit(self, group: str, offset: int) -> None:
        self.memory.group(group).committed[TOPIC, 0] = OffsetAndMetadata(offset)

    def committed(self, group: str) -> int | None:
        found = self.memory.group(group).committed.get((TOPIC, 0))
        return found and found.offset

    async def make_anew(self) -> None:
        """The topic is deleted, and made again under its name."""
        await MemoryAdmin(self.memory).delete_topic(TOPIC)
        self.memory.create(TOPIC)

    def reader(self, group: str, owner: Owner | None = None) -> GroupReader:
        self.readers.append(self.shared.open_reader(group, owner or Owner()))
        return self.readers[-1]

    async def close(self) -> None:
        await asyncio.gather(*(each.close(5) for each in self.readers))
        await self.shared.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


async def read(reader: GroupReader, count: int, owner: Owner | None = None) -> Sequence[Record]:
    records: list[Record] = []
    async with asyncio.timeout(100):
        while len(records) < count:
            some = await reader.read(count - len(records), 1.0)
            if owner is not None:
                owner.saw(some)
            records += some
    return records


def offsets(records: Sequence[Record]) -> list[int]:
    return [each.offset() for each in records]


async def test_groups_near_each_other_are_given_the_same_records_from_one_read(
    world: World,
) -> None:
    world.append(200)
    for number in range(5):
        world.commit(f"group-{number}", number * 10)
    readers = [world.reader(f"group-{number}") for number in range(5)]
    found = [await read(each, 200 - number * 10) for number, each in enumerate(readers)]
    for number, records in enumerate(found):
        assert offsets(records) == list(range(number * 10, 200))
    assert all(each[-1] is found[0][-1] for each in found), "one record for all"
    assert len(world.shared.fetchers) == 1


async def test_a_group_that_takes_nothing_keeps_nobody_from_reading(world: World) -> None:
    stuck, quick = world.reader("stuck"), world.reader("quick")
    world.append(5000)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert offsets(await read(quick, 5000)) == list(range(5000))
    # One wait for the slow group, when the buffer was full for the first time.
    assert loop.time() - began < 3 * LIMITS.patience
    held = [
        each.end_index - each.first_index
        for at in world.shared.fetchers
        for each in at.buffers.values()
    ]
    assert max(held) <= LIMITS.records + LIMITS.ahead + 500, "memory is bounded"
    assert offsets(await read(stuck, 5000)) == list(range(5000))


async def test_a_group_with_a_backlog_leaves_its_neighbours_a_turn_between_two_reads(
    world: World,
) -> None:
    world.append(90)
    reader = world.reader("group")
    await read(reader, 1)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    for _ in range(20):
        assert len(await reader.read(4, 1)) == 4
    counting.cancel()
    assert turns >= 20


async def test_a_group_that_lags_far_behind_reads_by_itself_until_it_has_caught_up(
    world: World,
) -> None:
    world.append(5000)
    world.commit("late", 0)
    world.commit("early", 4990)
    late, early = world.reader("late"), world.reader("early")
    assert offsets(await read(early, 10)) == list(range(4990, 5000))
    assert offsets(await read(late, 1000)) == list(range(1000))
    assert len(world.shared.fetchers) == 2
    world.append(100)
    assert offsets(await read(early, 100)) == list(range(5000, 5100))
    assert offsets(await read(late, 4100)) == list(range(1000, 5100))
    await until(lambda: len(world.shared.fetchers) == 1)
    world.append(10)
    mine, others = await read(late, 10), await read(early, 10)
    assert mine[0] is others[0]


async def test_groups_that_lag_together_share_their_read_too(world: World) -> None:
    world.append(5000)
    for number in range(10):
        world.commit(f"late-{number}", 100 + number)
    world.commit("early", 5000)
    late = [world.reader(f"late-{number}") for number in range(10)]
    world.reader("early")
    for number, reader in enumerate(late):
        assert offsets(await read(reader, 50)) == list(range(100 + number, 150 + number))
    assert len(world.shared.fetchers) == 2


async def test_a_group_with_members_is_left_to_them(world: World) -> None:
    """An `own` dispatcher lives still: what it has delivered isn't all committed."""
    other = MemoryReader(world.memory, "group", TOPIC, Owner())
    await other.read(1, 0.1)
    world.append(1)
    reader = world.reader("group")
    with pytest.raises(GroupHasMembers):
        await reader.read(1, 10)
    await other.close(1)


async def test_who_joins_a_group_takes_its_partitions_from_the_shared_reader(world: World) -> None:
    world.append(10)
    owner, neighbour = Owner(), Owner()
    reader, beside = world.reader("group", owner), world.reader("neighbour", neighbour)
    await read(reader, 5, owner)
    await read(beside, 10, neighbour)
    other = MemoryReader(world.memory, "group", TOPIC, Owner())
    assert offsets(await other.read(100, 0.1)) == list(range(10))
    reader.commit({0: OffsetAndMetadata(5)})
    with pytest.raises(GroupHasMembers):
        await read(reader, 10)
    assert (owner.losses, owner.owned) == ([[0]], set())
    assert world.committed("group") is None
    beside.commit({0: OffsetAndMetadata(10)})
    await until(lambda: world.committed("neighbour") == 10)
    await other.close(1)


async def test_a_process_that_kafka_does_not_know_any_more_commits_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still for longer than its session: others have its partitions, and are further."""
    known = False

    async def confirm(self: MemoryMember, positions: Positions) -> bool:
        return known

    monkeypatch.setattr(MemoryMember, "confirm", confirm)
    world.append(10)
    reader = world.reader("group")
    await read(reader, 5)
    world.commit("group", 9)
    reader.commit({0: OffsetAndMetadata(5)})
    await asyncio.sleep(10)
    assert world.committed("group") == 9
    known = True
    await until(lambda: world.committed("group") == 5)


async def test_a_confirmation_that_came_late_counts_for_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes = 5.0

    async def confirm(self: MemoryMember, positions: Positions) -> bool:
        await asyncio.sleep(takes)
        return True

    monkeypatch.setattr(MemoryMember, "confirm", confirm)
    world.append(10)
    reader = world.reader("group")
    await read(reader, 5)
    reader.commit({0: OffsetAndMetadata(5)})
    await asyncio.sleep(20)
    assert world.committed("group") is None
    takes = 0.1
    await until(lambda: world.committed("group") == 5)


async def test_commits_of_many_groups_are_spread_over_the_time_of_a_round(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they would hold up everybody's events: one costs 0.16 ms."""
    loop, begun = asyncio.get_running_loop(), Counter[float]()
    begin = GroupReader.start_commit

    def count(self: GroupReader) -> None:
        begun[loop.time()] += 1
        begin(self)

    monkeypatch.setattr(GroupReader, "start_commit", count)
    world.append(1)
    readers = [world.reader(f"group-{number}") for number in range(50)]
    for reader in readers:
        await read(reader, 1)
        reader.commit({0: OffsetAndMetadata(1)})
    await until(lambda: all(world.committed(each.group) == 1 for each in readers))
    assert begun.total() == 50
    assert max(begun.values()) == CONCURRENT_COMMITS
    assert max(begun) - min(begun) <= COMMIT_ROUND_SECONDS


async def test_a_commit_waits_for_no_more_than_a_tenth_of_a_second(world: World) -> None:
    """Groups commit each second (docs/reference/delivery.md): a kill repeats that and the wait."""
    loop = asyncio.get_running_loop()
    world.append(10)
    reader = world.reader("group")
    await read(reader, 10)

    def is_committed(offset: int) -> bool:
        return world.committed("group") == offset

    for offset in range(1, 10):
        await asyncio.sleep(1.03)  # each at another moment of a round
        reader.commit({0: OffsetAndMetadata(offset)})
        wanted = loop.time()
        await until(partial(is_committed, offset))
        assert loop.time() - wanted <= 0.11


async def test_a_group_that_has_nothing_to_commit_is_not_asked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand groups would be asked ten times a second each."""
    asked: set[str] = set()
    to_commit = vars(GroupReader)["to_commit"].fget

    def note(self: GroupReader) -> Mapping[int, OffsetAndMetadata]:
        asked.add(self.group)
        return to_commit(self)  # type: ignore[no-any-return]

    monkeypatch.setattr(GroupReader, "to_commit", property(note))
    world.append(1)
    readers = [world.reader(group) for group in ("busy", "quiet")]
    for reader in readers:
        await read(reader, 1)
    readers[0].commit({0: OffsetAndMetadata(1)})
    await until(lambda: world.committed("busy") == 1)
    assert asked == {"busy"}


async def test_a_commit_that_is_asked_for_while_another_is_under_way_is_made_after_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered = asyncio.Event(), asyncio.Event()
    commit = MemoryOffsets.commit

    async def commit_slowly(
        self: MemoryOffsets, group: str, topic: str, commits: Mapping[int, Commit]
    ) -> None:
        asked.set()
        await answered.wait()
        await commit(self, group, topic, commits)

    monkeypatch.setattr(MemoryOffsets, "commit", commit_slowly)
    world.append(2)
    reader = world.reader("group")
    await read(reader, 2)
    reader.commit({0: OffsetAndMetadata(1)})
    await asked.wait()
    reader.commit({0: OffsetAndMetadata(2)})
    await asyncio.sleep(10 * COMMIT_ROUND_SECONDS)
    answered.set()
    await until(lambda: world.committed("group") == 2)


async def test_a_round_ends_with_the_time_for_which_its_confirmation_counts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Positions] = []

    async def confirm(self: MemoryMember, positions: Positions) -> bool:
        asked.append(positions)
        return True

    world.append(1)
    readers = [world.reader(f"group-{number}") for number in range(CONCURRENT_COMMITS + 1)]
    for reader in readers:
        await read(reader, 1)
    monkeypatch.setattr(MemoryMember, "confirm", confirm)
    monkeypatch.setattr(
        "knafka.dispatcher.shared.topic.COMMIT_ROUND_SECONDS", 2 * CONFIRMATION_VALID_SECONDS
    )
    for reader in readers:
        reader.commit({0: OffsetAndMetadata(1)})
    await until(lambda: world.committed(readers[-1].group) == 1)
    assert len(asked) == 2, "the last one waited for another round"


async def test_partitions_that_go_to_another_process_are_committed_for_every_group_first(
    world: World,
) -> None:
    world.append(10)
    owners = [Owner() for _ in range(3)]
    readers = [world.reader(f"group-{number}", owner) for number, owner in enumerate(owners)]
    for number, (reader, owner) in enumerate(zip(readers, owners, strict=True)):
        await read(reader, 4 + number, owner)
    for reader in readers:
        await reader.close(5)
    world.readers.clear()
    assert [world.committed(f"group-{number}") for number in range(3)] == [4, 5, 6]


async def test_a_commit_for_a_deleted_topic_does_not_go_to_the_new_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited when the topic was made anew, whose first events it would hide."""
    known = False

    async def confirm(self: MemoryMember, positions: Positions) -> bool:
        return known

    monkeypatch.setattr(MemoryMember, "confirm", confirm)
    world.append(10)
    reader = world.reader("group")
    await read(reader, 10)
    reader.commit({0: OffsetAndMetadata(10)})
    await world.make_anew()
    world.append(3)
    assert offsets(await read(reader, 3)) == [0, 1, 2]
    known = True
    await asyncio.sleep(10 * COMMIT_ROUND_SECONDS)
    assert world.committed("group") is None
    reader.commit({0: OffsetAndMetadata(3)})
    await until(lambda: reader.committed == {0: 3})
    assert world.committed("group") == 3


async def test_a_slow_group_that_is_paused_reads_all_of_a_topic_that_was_made_anew(
    world: World,
) -> None:
    """A paused group that lags behind is in no buffer, and would go on at its old offset."""
    slow, quick = world.reader("slow"), world.reader("quick")
    world.append(800)
    assert offsets(await read(slow, 30))[-1] == 29
    slow.pause([0])
    await read(quick, 800)
    await until(lambda: slow.cursors[0].buffer is None)
    await world.make_anew()
    world.append(10)
    assert offsets(await read(quick, 10)) == list(range(10))
    slow.resume([0])
    world.append(30)
    assert offsets(await read(slow, 40)) == list(range(40))


async def test_more_partitions_than_records_may_wait_go_on_after_nobody_took_any() -> None:
    """Each was paused, and none was resumed: its share of the records that may wait was none."""
    partitions = 8
    memory = MemoryLog()
    memory.create(TOPIC, partitions)
    for number in range(5 * partitions):
        memory.store(TOPIC, None, b"v", None, partition=number % partitions)
    limits = FetchLimits(ahead=partitions // 2, records=500, spare=50)
    shared = shared_memory(memory, "shard", TOPIC, limits)
    reader = shared.open_reader("group", Owner())
    await read(reader, 1)
    await asyncio.sleep(3 * limits.pause_after)
    assert any(buffer.paused for fetcher in shared.fetchers for buffer in fetcher.buffers.values())
    for number in range(partitions):
        memory.store(TOPIC, None, b"v", None, partition=number)
    await read(reader, 6 * partitions - 1)
    await reader.close(5)
    await shared.close()


async def test_partitions_of_large_records_that_nobody_takes_keep_no_other_from_being_read() -> (
    None
):
    """Their bytes reach the limit long before their number does."""
    memory = MemoryLog()
    memory.create(TOPIC, 3)

    def store(partition: int, count: int) -> None:
        for _ in range(count):
            memory.store(TOPIC, None, b"v" * 1000, None, partition=partition)

    limits = FetchLimits(ahead=5000, records=5000, spare=50, size=1_000_000)
    shared = shared_memory(memory, "shard", TOPIC, limits)
    reader = shared.open_reader("group", Owner())
    store(2, 1)
    await read(reader, 1)
    reader.pause([0, 1])
    store(0, 1000)
    store(1, 1000)
    await asyncio.sleep(5 * limits.pause_after)
    for _ in range(3):
        store(2, 200)
        assert {record.partition() for record in await read(reader, 200)} == {2}
    (fetcher,) = shared.fetchers
    assert fetcher.size < 2 * limits.size, "memory is bounded"
    reader.resume([0, 1])
    store(2, 10)
    found = await read(reader, 2010)
    assert Counter(record.partition() for record in found) == {0: 1000, 1: 1000, 2: 10}
    await reader.close(5)
    await shared.close()


async def test_a_commit_that_fails_while_its_topic_is_made_anew_is_not_made_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered = asyncio.Event(), asyncio.Event()
    commit = MemoryOffsets.commit

    async def fail(
        self: MemoryOffsets, group: str, topic: str, commits: Mapping[int, Commit]
    ) -> None:
        asked.set()
        await answered.wait()
        raise LogError("Broker: Unknown topic or partition")

    monkeypatch.setattr(MemoryOffsets, "commit", fail)
    world.append(10)
    reader = world.reader("group")
    await read(reader, 10)
    reader.commit({0: OffsetAndMetadata(10)})
    await asked.wait()
    await world.make_anew()
    world.append(3)
    assert offsets(await read(reader, 3)) == [0, 1, 2]
    monkeypatch.setattr(MemoryOffsets, "commit", commit)
    answered.set()
    await asyncio.sleep(10 * COMMIT_ROUND_SECONDS)
    assert world.committed("group") is None
    assert reader.committed == {}


async def test_a_log_that_fails_ends_the_reads_of_those_who_are_in_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.append(10)
    reader = world.reader("group")
    await read(reader, 10)

    async def fail(self: MemoryMember, timeout: float) -> None:
        raise LogError("Broker: Group authorization failed")

    monkeypatch.setattr(MemoryMember, "serve", fail)
    with pytest.raises(LogError, match="authorization"):
        await read(reader, 1)
