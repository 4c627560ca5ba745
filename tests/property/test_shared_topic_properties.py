"""Groups that share one read of a topic: each gets every record once and in order, whatever the
others do."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from support import fake_clock
from support.examples import examples
from support.logs import shared_memory
from support.memory.log import MemoryLog

from knafka.dispatcher.shared.fetcher import FetchLimits
from knafka.dispatcher.shared.topic import SharedTopic
from knafka.ports.log import Commits, LogReader, OffsetAndMetadata

TOPIC = "events"
SMALL = FetchLimits(ahead=5, records=20, size=1_000_000, spare=4)
"""So that buffers are full and groups leave them within a few records."""
SCHEDULES = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 1), st.integers(1, 30)),
        st.tuples(st.just("read"), st.integers(0, 3), st.integers(1, 40)),
        st.tuples(st.just("pause"), st.integers(0, 3), st.integers(0, 1)),
        st.tuples(st.just("resume"), st.integers(0, 3), st.integers(0, 1)),
        st.tuples(st.just("restart"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("wait"), st.just(0), st.integers(1, 3)),
    ),
    max_size=60,
)


class Group:
    """A group that commits all it has read when it gives its partitions up."""

    def __init__(self, name: str, start: int) -> None:
        self.name = name
        self.got: dict[int, list[int]] = defaultdict(lambda: list(range(start)))
        """By partition, the offsets that it was given, and those before it began."""
        self.owned: set[int] = set()
        self.paused: set[int] = set()
        self.reader: LogReader

    def on_assigned(self, partitions: Mapping[int, OffsetAndMetadata | None]) -> None:
        for number, committed in partitions.items():
            assert (committed.offset if committed else 0) == len(self.got[number])
            self.owned.add(number)

    async def on_revoked(self, partitions: Sequence[int]) -> Commits:
        return {each: OffsetAndMetadata(len(self.got[each])) for each in partitions}

    def on_lost(self, partitions: Sequence[int]) -> None:
        raise AssertionError

    def begin(self, shared: SharedTopic) -> None:
        self.owned.clear()
        self.paused.clear()
        self.reader = shared.open_reader(self.name, self)

    async def read(self, limit: int, timeout: float) -> int:
        records = await self.reader.read(limit, timeout)
        assert len(records) <= limit
        for record in records:
            assert record.partition() not in self.paused
            assert record.offset() == len(self.got[record.partition()]), "the next one"
            self.got[record.partition()].append(record.offset())
        return len(records)


class World:
    def __init__(self, starts: Sequence[int]) -> None:
        self.memory = MemoryLog()
        self.memory.create(TOPIC, 2)
        for number in (0, 1):
            self.append(number, max(starts))
        self.groups = [Group(f"group-{number}", each) for number, each in enumerate(starts)]
        for group, start in zip(self.groups, starts, strict=True):
            for number in (0, 1):
                commit = OffsetAndMetadata(start)
                self.memory.group(group.name).committed[TOPIC, number] = commit
        self.shared = shared_memory(self.memory, "shard", TOPIC, SMALL)
        for group in self.groups:
            group.begin(self.shared)

    def append(self, partition: int, count: int) -> None:
        records = self.memory.topics[TOPIC][partition]
        for _ in range(count):
            one = self.memory.store(TOPIC, b"k", None, None)
            self.memory.topics[TOPIC][one.partition()].pop()
            records.append(type(one)(TOPIC, partition, len(records), b"k", None, None))

    async def do(self, what: str, which: int, argument: int) -> None:
        group = self.groups[which % len(self.groups)]
        if what == "append":
            self.append(which, argument)
        elif what == "read":
            await group.read(argument, 0.3)
        elif what == "pause":
            group.reader.pause([argument])
            group.paused |= group.owned & {argument}
        elif what == "resume":
            group.paused.discard(argument)
            group.reader.resume([argument])
        elif what == "restart":
            await group.reader.close(5)
            group.begin(self.shared)
        else:
            await asyncio.sleep(argument)

    async def finish(self) -> None:
        """Read all there is, and end."""
        for group in self.groups:
            group.paused.clear()
            group.reader.resume([0, 1])
        ends = {number: len(each) for number, each in enumerate(self.memory.topics[TOPIC])}
        async with asyncio.timeout(1000):
            for group in self.groups:
                while {number: len(group.got[number]) for number in ends} != ends:
                    await group.read(7, 1.0)
        await asyncio.gather(*(each.reader.close(5) for each in self.groups))
        await self.shared.close()
        for group in self.groups:
            committed = self.memory.group(group.name).committed
            assert {number: committed[TOPIC, number].offset for number in ends} == ends
        assert self.shared.fetchers == []


@settings(deadline=None, max_examples=examples(150))
@given(st.lists(st.integers(0, 60), min_size=1, max_size=4), SCHEDULES)
def test_every_group_gets_every_record_once_and_in_order_whatever_others_do(
    starts: list[int], schedule: list[tuple[str, int, int]]
) -> None:
    async def run() -> None:
        world = World(starts)
        for what, which, argument in schedule:
            await world.do(what, which, argument)
        await world.finish()

    with asyncio.Runner(loop_factory=fake_clock.new_event_loop) as runner:
        runner.run(run())
