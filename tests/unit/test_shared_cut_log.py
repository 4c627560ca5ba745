"""Groups that share one read of a log that lost its end and grew again, on fake time.

The log's epochs are 0 before the offset 5, 2 before 40, and 3 from there on. What was committed
with the epochs 0 and 1 behind 5, or with 2 behind 40, was of records that are gone: each group must
be given what has replaced them (BRK-14).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import permutations

import pytest
from support.logs import Owner
from support.memory.log import MemoryLog
from support.memory.shared import MemoryMember, MemoryOffsets, MemoryPositionedReader

from knafka.dispatcher.shared.epochs import KnownEpochs
from knafka.dispatcher.shared.fetcher import FetchLimits
from knafka.dispatcher.shared.topic import SharedTopic
from knafka.ports.log import LogReader, OffsetAndMetadata, Record
from knafka.ports.shared_log import BEGINNING, Commit, EpochStart, Position

pytestmark = pytest.mark.looptime

TOPIC = "events"
EPOCHS = [0] * 5 + [2] * 35 + [3] * 60
END = len(EPOCHS)

STARTS: Mapping[str, tuple[Commit | None, int]] = {
    "new": (None, 0),
    "before": (Commit(3, epoch=0), 3),
    "at the cut": (Commit(5, epoch=1), 5),
    "beyond": (Commit(20, epoch=0), 5),
    "far beyond": (Commit(70, epoch=1), 5),
    "later": (Commit(30, epoch=2), 30),
    "cut twice": (Commit(50, epoch=2), 40),
    "of now": (Commit(60, epoch=3), 60),
    "at the end": (Commit(END, epoch=3), END),
    "behind the end": (Commit(END + 7, epoch=1), 5),
}
"""By group, what it has committed, and the first offset of what it must be given."""


class CutSource(MemoryPositionedReader):
    """A reader that knows where leader epochs end, as Kafka does."""

    _last_epoch: int | None = None

    def begin(self, positions: Mapping[int, Position]) -> None:
        self._cuts = getattr(self, "_cuts", {})
        starts = {}
        for number, position in positions.items():
            known = [offset for offset, epoch in enumerate(EPOCHS) if epoch <= position.epoch]
            starts[number] = position
            if position.epoch >= 0 and position.offset > len(known):
                self._cuts[number] = Position(len(known), EPOCHS[known[-1]])
                starts[number] = Position(BEGINNING)
        super().begin(starts)

    async def read(self, limit: int, timeout: float) -> Sequence[Record]:
        if self._cuts:
            self.ends, self.new_epochs = {}, {}
            self.restarted, self._cuts = self._cuts, {}
            await asyncio.sleep(0)
            return []
        records = await super().read(min(limit, 7), timeout)
        found: list[EpochStart] = []
        for record in records:
            epoch = EPOCHS[record.offset()]
            if epoch != self._last_epoch:
                found.append(EpochStart(record.offset(), epoch))
                self._last_epoch = epoch
        self.new_epochs = {0: found} if found else {}
        return records

    def drop(self, partitions: Collection[int]) -> None:
        super().drop(partitions)
        self._last_epoch = None


class EpochOffsets(MemoryOffsets):
    """Commits with leader epochs."""

    def __init__(self, memory: MemoryLog) -> None:
        super().__init__(memory)
        self.made: list[Commit] = []

    async def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> None:
        self.made += commits.values()
        await super().commit(group, topic, commits)

    async def committed(
        self, group: str, topic: str, partitions: Collection[int]
    ) -> Mapping[int, Commit]:
        commit = STARTS[group][0]
        return {} if commit is None else {0: commit}


async def offsets_of(reader: LogReader, first: int) -> list[int]:
    """Read up to the log's end."""
    offsets: list[int] = []
    async with asyncio.timeout(60):
        while not (offsets or [first - 1])[-1] == END - 1:
            offsets += [record.offset() for record in await reader.read(10, 1.0)]
    return offsets + [record.offset() for record in await reader.read(10, 5.0)]


@pytest.mark.parametrize("groups", [*permutations(STARTS, 2), tuple(STARTS)], ids="+".join)
async def test_each_group_is_given_every_record_that_it_has_not_delivered(
    groups: Sequence[str],
) -> None:
    memory = MemoryLog()
    memory.create(TOPIC)
    for _ in EPOCHS:
        memory.store(TOPIC, b"k", b"v", None)
    shared = SharedTopic(
        TOPIC,
        partial(MemoryMember, memory, "shard", TOPIC),
        partial(CutSource, memory, TOPIC),
        EpochOffsets(memory),
        FetchLimits(ahead=20, records=30, spare=10),
    )
    readers = {group: shared.open_reader(group, Owner()) for group in groups}
    read = await asyncio.gather(*(offsets_of(readers[group], STARTS[group][1]) for group in groups))
    for group, offsets in zip(groups, read, strict=True):
        assert offsets == list(range(STARTS[group][1], END)), group
    await asyncio.gather(*(reader.close(5) for reader in readers.values()))
    await shared.close()


async def test_a_commit_has_the_leader_epoch_of_the_last_record_that_was_read() -> None:
    """Else the next owner would take the records read since for those of another log."""
    memory = MemoryLog()
    memory.create(TOPIC)
    for _ in EPOCHS:
        memory.store(TOPIC, b"k", b"v", None)
    offsets = EpochOffsets(memory)
    shared = SharedTopic(
        TOPIC,
        partial(MemoryMember, memory, "shard", TOPIC),
        partial(CutSource, memory, TOPIC),
        offsets,
    )
    reader = shared.open_reader("before", Owner())
    await offsets_of(reader, STARTS["before"][1])
    reader.commit({0: OffsetAndMetadata(END)})
    await reader.close(5)
    await shared.close()
    assert [(commit.offset, commit.epoch) for commit in offsets.made] == [(END, EPOCHS[-1])]


def test_the_last_of_two_epochs_that_begin_in_one_read_is_the_last_ones() -> None:
    known = KnownEpochs(0, 0)
    known.add([EpochStart(5, 1), EpochStart(6, 2)])
    assert known.last == 2
