"""Groups of a shared topic whose commits may be of an earlier topic of the name, on fake time."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial

import pytest
from support.logs import Owner
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog
from support.memory.shared import MemoryMember, MemoryOffsets, MemoryPositionedReader

from knafka.core.errors import LogError
from knafka.dispatcher.shared.topic import GROUP_COMMITS_TIMEOUT, SharedTopic
from knafka.ports.log import OffsetAndMetadata
from knafka.ports.shared_log import Commit

pytestmark = pytest.mark.looptime

TOPIC = "events"
END = 5


async def old() -> str:
    return "old"


async def new() -> str:
    return "new"


async def none() -> str:
    return ""


async def refused() -> str:
    raise LogError("refused")


async def unanswered() -> str:
    await asyncio.sleep(3600)
    return "new"


class MarkedOffsets(MemoryOffsets):
    """The group has committed an offset, with a mark or without one."""

    def __init__(
        self,
        memory: MemoryLog,
        mark: str,
        present: Callable[[], Awaitable[str]],
        committed: int = 3,
    ) -> None:
        super().__init__(memory)
        self._mark, self._present, self._offset = mark, present, committed
        self.made: list[Commit] = []
        self.known = ""
        self.read_at = 0.0
        """When the id was read last (`time.monotonic`)."""

    async def committed(
        self, group: str, topic: str, partitions: Collection[int]
    ) -> Mapping[int, Commit]:
        return {0: Commit(self._offset, topic=self._mark)}

    async def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> None:
        self.made += commits.values()

    async def present_topic(self, topic: str) -> str:
        return await self._present()

    def known_topic(self, topic: str, since: float = -math.inf) -> str:
        return self.known if self.read_at >= since else ""


async def open_topic(offsets: MarkedOffsets, memory: MemoryLog) -> SharedTopic:
    memory.create(TOPIC)
    for _ in range(END):
        memory.store(TOPIC, b"k", b"v", None)
    return SharedTopic(
        TOPIC,
        partial(MemoryMember, memory, "shard", TOPIC),
        partial(MemoryPositionedReader, memory, TOPIC),
        offsets,
    )


@pytest.mark.parametrize(
    ("mark", "present", "first", "next_mark"),
    [
        ("old", old, 3, "old"),
        ("old", new, 0, "new"),
        ("", new, 3, "new"),
        ("old", none, 3, "old"),
        ("old", refused, 3, "old"),
        ("old", unanswered, 3, "old"),
        ("", refused, 3, ""),
    ],
)
async def test_only_a_commit_of_another_topic_is_passed_over(
    mark: str, present: Callable[[], Awaitable[str]], first: int, next_mark: str
) -> None:
    """While the present topic isn't known, commits keep their mark, for the next process."""
    memory, owner = MemoryLog(), Owner()
    offsets = MarkedOffsets(memory, mark, present)
    shared = await open_topic(offsets, memory)
    reader = shared.open_reader("group", owner)
    records = await reader.read(END, 10.0)
    assert [record.offset() for record in records] == list(range(first, END))
    assert owner.committed == {0: OffsetAndMetadata(3) if first else None}
    reader.commit({0: OffsetAndMetadata(END)})
    await asyncio.sleep(1)
    assert [commit.topic for commit in offsets.made] == [next_mark]
    await reader.close(5)
    await shared.close()


@pytest.mark.parametrize(
    ("mark", "known", "read_again"),
    [("old", "new", [*range(END)]), ("old", "old", []), ("", "new", [])],
)
async def test_a_commit_is_compared_with_the_topic_once_that_is_known(
    mark: str, known: str, read_again: list[int]
) -> None:
    """A start doesn't wait for the topic's id, however long Kafka takes to send it."""
    memory, owner = MemoryLog(), Owner()
    offsets = MarkedOffsets(memory, mark, unanswered)
    shared = await open_topic(offsets, memory)
    reader = shared.open_reader("group", owner)
    records = await reader.read(END, GROUP_COMMITS_TIMEOUT / 2)
    assert [record.offset() for record in records] == [3, 4]
    reader.commit({0: OffsetAndMetadata(END)})
    await asyncio.sleep(1)
    reader.commit({0: OffsetAndMetadata(END)})
    offsets.known, offsets.read_at = known, time.monotonic()
    records = await reader.read(END, 1.0)
    assert [record.offset() for record in records] == read_again
    assert owner.losses == ([[0]] if read_again else [])
    reader.commit({0: OffsetAndMetadata(END)})
    await asyncio.sleep(1)
    assert {commit.topic for commit in offsets.made[:1]} == {mark}
    assert {commit.topic for commit in offsets.made[1:]} == {known}
    await reader.close(5)
    await shared.close()


async def test_an_id_that_was_read_before_the_commit_restarts_nothing() -> None:
    """This process may not know yet that the topic was replaced, as the one that committed did."""
    memory, owner = MemoryLog(), Owner()
    offsets = MarkedOffsets(memory, "new", unanswered)
    offsets.known, offsets.read_at = "old", time.monotonic()
    shared = await open_topic(offsets, memory)
    reader = shared.open_reader("group", owner)
    assert [record.offset() for record in await reader.read(END, 1.0)] == [3, 4]
    offsets.known, offsets.read_at = "new", time.monotonic()
    assert list(await reader.read(END, 1.0)) == []
    assert owner.losses == []
    await reader.close(5)
    await shared.close()


async def test_a_restart_forgets_the_end_that_the_read_under_way_has_reached() -> None:
    """Else the drain would settle all records below it, which it hasn't read."""
    memory, owner = MemoryLog(), Owner()
    offsets = MarkedOffsets(memory, "old", unanswered, END)
    shared = await open_topic(offsets, memory)
    reader = shared.open_reader("group", owner)
    assert list(await reader.read(2, 1.0)) == []
    assert reader.ends == {0: END}
    offsets.known, offsets.read_at = "new", time.monotonic()
    reader.check_topic()  # as the topic does in each of its rounds
    assert owner.losses == [[0]]
    assert reader.ends == {}
    assert [record.offset() for record in await reader.read(2, 1.0)] == [0, 1]
    assert reader.ends == {}
    await reader.close(5)
    await shared.close()


async def test_commits_after_a_lost_log_name_the_topic_once_its_id_was_read_again() -> None:
    memory, owner = MemoryLog(), Owner()
    offsets = MarkedOffsets(memory, "old", old)
    offsets.known = "old"
    shared = await open_topic(offsets, memory)
    reader = shared.open_reader("group", owner)
    await reader.read(END, 10.0)
    await MemoryAdmin(memory).delete_topic(TOPIC)
    memory.create(TOPIC)
    memory.store(TOPIC, b"k", b"v", None)
    async with asyncio.timeout(100):
        while not await reader.read(END, 1.0):
            pass
    for _ in range(2):
        reader.commit({0: OffsetAndMetadata(1)})
        await asyncio.sleep(1)
        offsets.known, offsets.read_at = "new", time.monotonic()
    await asyncio.sleep(1)
    assert [commit.topic for commit in offsets.made] == ["", "new"]
    await reader.close(5)
    await shared.close()


async def test_commits_have_the_mark_of_the_topic_that_replaced_the_one_that_was_read() -> None:
    memory, owner = MemoryLog(), Owner()
    offsets = MarkedOffsets(memory, "old", old)
    shared = await open_topic(offsets, memory)
    reader = shared.open_reader("group", owner)
    await reader.read(END, 10.0)
    await MemoryAdmin(memory).delete_topic(TOPIC)
    memory.create(TOPIC)
    memory.store(TOPIC, b"k", b"v", None)
    offsets.known = "new"
    async with asyncio.timeout(100):
        while not (records := await reader.read(END, 1.0)):
            pass
    assert [record.offset() for record in records] == [0]
    reader.commit({0: OffsetAndMetadata(1)})
    await asyncio.sleep(1)
    assert [commit.topic for commit in offsets.made] == ["new"]
    await reader.close(5)
    await shared.close()
