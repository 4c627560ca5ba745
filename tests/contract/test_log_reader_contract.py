"""What every log's reader does: in memory and on real Kafka."""

from __future__ import annotations

import asyncio
import time

import pytest
from support.logs import NOTHING, SOON, Log, Owner, each_reader, end_of, read, values

from knafka.core.errors import LogError
from knafka.core.progress import MAX_METADATA
from knafka.ports.log import OffsetAndMetadata, Record

pytestmark = each_reader


async def test_read_returns_as_soon_as_there_is_one_record(log: Log, group: str) -> None:
    topic = await log.topic()
    reader = log.reader(group, topic)
    await log.append(topic, b"first")
    assert values(await read(reader, 1)) == [b"first"]
    waiting = asyncio.create_task(reader.read(500, SOON))
    await asyncio.sleep(0.05)
    started = time.monotonic()
    await log.append(topic, b"second")
    assert values(await waiting) == [b"second"]
    assert time.monotonic() - started < 5, "far from the timeout"


async def test_read_gives_at_most_limit_records_in_order_per_partition(
    log: Log, group: str
) -> None:
    topic = await log.topic(partitions=3)
    reports: asyncio.Queue[LogError | None] = asyncio.Queue()
    for number in range(300):
        log.writer.append(topic, b"%d" % (number % 10), b"%d" % number, [], reports.put_nowait)
    async with asyncio.timeout(SOON):
        assert [await reports.get() for _ in range(300)] == [None] * 300
    records = await read(log.reader(group, topic), 300, limit=7)
    for partition in range(3):
        offsets = [each.offset() for each in records if each.partition() == partition]
        assert offsets == list(range(len(offsets)))
    assert len(records) == 300


async def test_read_gives_nothing_after_its_timeout(log: Log, group: str) -> None:
    topic = await log.topic()
    reader = log.reader(group, topic)
    await log.append(topic)
    await read(reader, 1)
    started = time.monotonic()
    assert list(await reader.read(500, NOTHING)) == []
    assert time.monotonic() - started > NOTHING * 0.9


async def test_a_group_without_a_commit_starts_at_the_beginning(log: Log, group: str) -> None:
    topic = await log.topic(partitions=2)
    for number in range(10):
        await log.append(topic, b"%d" % number, b"%d" % number)
    assert len(await read(log.reader(group, topic), 10)) == 10


@pytest.mark.conformance("KN-TRG-06")
async def test_a_group_starts_at_its_commit_and_uncommitted_partitions_at_the_beginning(
    log: Log, group: str
) -> None:
    """KN-TRG-06: what came before the Trigger was Ready is not its."""
    topic = await log.topic(partitions=1)
    await log.append(topic, b"before")
    await log.admin.ensure_committed(group, topic)
    await log.append(topic, b"after")
    assert values(await read(log.reader(group, topic), 1)) == [b"after"]


async def test_a_new_reader_resumes_where_the_last_one_committed(log: Log, group: str) -> None:
    topic = await log.topic()
    for number in range(5):
        await log.append(topic, b"%d" % number)
    owner = Owner()
    first = log.reader(group, topic, owner)
    await read(first, 5)
    first.commit({0: OffsetAndMetadata(2)})
    await log.close_reader(first)
    assert owner.revocations == [[0]], "close revokes"
    assert values(await read(log.reader(group, topic), 3)) == [b"2", b"3", b"4"]


async def test_close_commits_what_revoked_says(log: Log, group: str) -> None:
    topic = await log.topic(partitions=2)
    for number in range(20):
        await log.append(topic, b"%d" % number, b"%d" % number)
    owner = Owner()
    first = log.reader(group, topic, owner)
    await read(first, 20, owner)
    await log.close_reader(first)
    assert owner.owned == set()
    assert list(await log.reader(group, topic).read(500, NOTHING)) == []
    assert (await log.admin.lags([group], topic))[group].total == 0


async def test_a_commits_metadata_is_what_the_next_owner_is_told(log: Log, group: str) -> None:
    topic = await log.topic(partitions=2)
    for number in range(20):
        await log.append(topic, b"%d" % number, b"%d" % number)
    first_owner = Owner()
    first = log.reader(group, topic, first_owner)
    await read(first, 20)
    assert first_owner.committed == {0: None, 1: None}
    committed = {0: OffsetAndMetadata(2, 'ümlaut, " and so on'), 1: OffsetAndMetadata(3)}
    first.commit(committed)
    await log.close_reader(first)
    second_owner = Owner()
    ends = await log.admin.end_offsets(topic)
    await read(log.reader(group, topic, second_owner), sum(ends.values()) - 5)
    assert second_owner.committed == committed


async def test_what_revoked_says_keeps_its_metadata(log: Log, group: str) -> None:
    topic = await log.topic()
    await log.append(topic, b"1")
    await log.append(topic, b"2")
    first_owner, second_owner = Owner(), Owner()
    first_owner.metadata = "x" * MAX_METADATA
    first = log.reader(group, topic, first_owner)
    await read(first, 1, first_owner, limit=1)
    await log.close_reader(first)
    assert values(await read(log.reader(group, topic, second_owner), 1)) == [b"2"]
    assert second_owner.committed == {0: OffsetAndMetadata(1, first_owner.metadata)}


async def test_metadata_beyond_kafkas_limit_is_not_committed_and_its_offset_neither(
    log: Log, group: str
) -> None:
    topic = await log.topic()
    for number in range(3):
        await log.append(topic, b"%d" % number)
    first, owner = log.reader(group, topic), Owner()
    await read(first, 3)
    first.commit({0: OffsetAndMetadata(1, "short")})
    first.commit({0: OffsetAndMetadata(2, "x" * (MAX_METADATA + 1))})
    await log.close_reader(first)
    assert values(await read(log.reader(group, topic, owner), 2)) == [b"1", b"2"]
    assert owner.committed == {0: OffsetAndMetadata(1, "short")}


async def test_two_readers_share_the_partitions_and_nothing_is_read_twice(
    log: Log, group: str
) -> None:
    """The first one finishes and commits what it must give up before the second one reads it."""
    topic = await log.topic(partitions=4)
    for number in range(40):
        await log.append(topic, b"%d" % number, b"%d" % number)
    first_owner, second_owner = Owner(), Owner()
    first = log.reader(group, topic, first_owner)
    records = await read(first, 40, first_owner)
    assert first_owner.owned == {0, 1, 2, 3}

    second = log.reader(group, topic, second_owner)
    finished: list[bool] = []
    first_owner.finish = lambda: finished.append(second_owner.owned == set())
    async with asyncio.timeout(SOON):
        while len(second_owner.owned) < 2 or len(first_owner.owned) > 2:
            some = await asyncio.gather(first.read(500, 0.1), second.read(500, 0.1))
            assert [len(each) for each in some] == [0, 0], "all of it was committed"
    assert first_owner.owned | second_owner.owned == {0, 1, 2, 3}
    assert first_owner.owned & second_owner.owned == set()
    assert finished == [True] * len(finished) != []

    for number in range(40, 80):
        await log.append(topic, b"%d" % number, b"%d" % number)
    async with asyncio.timeout(SOON):
        while len(records) < 80:
            mine, theirs = await asyncio.gather(first.read(500, 0.1), second.read(500, 0.1))
            first_owner.saw(mine)
            second_owner.saw(theirs)
            records += [*mine, *theirs]
    assert sorted(int(value or b"") for value in values(records)) == list(range(80))

    await log.close_reader(second)
    async with asyncio.timeout(SOON):
        while first_owner.owned != {0, 1, 2, 3}:
            assert list(await first.read(500, 0.1)) == []


async def test_what_a_reader_is_told_waits_for_no_read(log: Log, group: str) -> None:
    """The loop, on which it is told, has events to deliver meanwhile."""
    topic = await log.topic()
    await log.append(topic, b"1")
    reader = log.reader(group, topic)
    await read(reader, 1)
    reading = asyncio.create_task(reader.read(1, SOON))
    await asyncio.sleep(NOTHING)
    reader.commit({0: OffsetAndMetadata(1)})
    reader.pause([0])
    reader.resume([0])
    done, _ = await asyncio.wait({reading}, timeout=NOTHING)
    assert not done
    await log.append(topic, b"2")
    assert values(await reading) == [b"2"]
    await log.close_reader(reader)
    assert (await log.admin.lags([group], topic))[group].total == 1


async def test_a_commit_while_partitions_go_holds_nobody_up_and_moves_none_of_them(
    log: Log, group: str
) -> None:
    topic = await log.topic(partitions=2)
    for number in range(40):
        await log.append(topic, b"%d" % number, b"%d" % number)
    first_owner, second_owner = Owner(), Owner()
    first = log.reader(group, topic, first_owner)
    records = await read(first, 40, first_owner)
    first_owner.finish = lambda: first.commit({0: OffsetAndMetadata(1), 1: OffsetAndMetadata(1)})
    second = log.reader(group, topic, second_owner)
    async with asyncio.timeout(SOON / 2):
        while not second_owner.owned:
            await asyncio.gather(first.read(500, 0.1), second.read(500, 0.1))
    (gone,), (kept,) = second_owner.owned, first_owner.owned
    uncommitted = sum(each.partition() == kept for each in records) - 1
    lag = {kept: 0}
    async with asyncio.timeout(SOON):
        while lag[kept] != uncommitted:
            first.commit({0: OffsetAndMetadata(1), 1: OffsetAndMetadata(1)})
            await first.read(500, 0.1)
            lag = dict((await log.admin.lags([group], topic))[group].by_partition)
    assert lag[gone] == 0, "its next owner begins where revoked said"


async def test_pause_and_resume_lose_nothing(log: Log, group: str) -> None:
    topic = await log.topic(partitions=2)
    for number in range(100):
        await log.append(topic, b"%d" % number, b"%d" % number)
    owner = Owner()
    reader = log.reader(group, topic, owner)
    records = await read(reader, 10, owner, limit=1)
    reader.pause([0])
    async with asyncio.timeout(SOON):
        while some := await reader.read(3, 1.0):
            assert {record.partition() for record in some} == {1}
            records += some
    for number in range(100, 120):
        await log.append(topic, b"%d" % number, b"%d" % number)
    reader.pause([1])
    reader.resume([0])
    async with asyncio.timeout(SOON):
        while some := await reader.read(3, 1.0):
            assert {record.partition() for record in some} == {0}
            records += some
    reader.resume([1])
    records += await read(reader, 120 - len(records))
    for partition in (0, 1):
        offsets = [each.offset() for each in records if each.partition() == partition]
        assert offsets == list(range(len(offsets)))
    assert sorted(int(value or b"") for value in values(records)) == list(range(120))


async def test_where_a_pause_is_free_a_resume_ends_a_read_that_waits(log: Log, group: str) -> None:
    """With the other readers what is resumed comes with a later read."""
    topic = await log.topic()
    owner = Owner()
    reader = log.reader(group, topic, owner)
    await log.append(topic, b"1")
    await read(reader, 1, owner)
    reader.pause([0])
    await log.append(topic, b"2")
    assert list(await reader.read(1, NOTHING)) == []
    waiting = asyncio.create_task(reader.read(1, SOON if reader.pause_is_free else NOTHING))
    await asyncio.sleep(0.05)
    started = time.monotonic()
    reader.resume([0])
    records = await waiting
    assert time.monotonic() - started < 5, "far from the timeout"
    assert records or not reader.pause_is_free
    assert values(records or await read(reader, 1)) == [b"2"]


async def test_a_pause_ends_with_the_ownership(log: Log, group: str) -> None:
    topic = await log.topic()
    await log.append(topic, b"1")
    owner = Owner()
    first = log.reader(group, topic, owner)
    await read(first, 1, owner)
    first.pause([0])
    await log.close_reader(first)
    await log.append(topic, b"2")
    assert values(await read(log.reader(group, topic), 1)) == [b"2"]


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
async def test_a_reader_at_the_end_says_where_it_goes_on_behind_a_transaction(
    log: Log, group: str, commit: bool
) -> None:
    """Its marker has an offset, too: whoever commits only what was read has a lag for ever."""
    topic = await log.topic()
    await log.append(topic, b"1")
    await log.transact(topic, b"2", b"3", commit=commit)
    reader = log.reader(group, topic)
    assert (
        values(await read(reader, 3 if commit else 1)) == [b"1", b"2", b"3"][: 3 if commit else 1]
    )
    assert await end_of(reader) == {0: 4}
    reader.commit({0: OffsetAndMetadata(4)})
    await log.close_reader(reader)
    assert (await log.admin.lags([group], topic))[group].total == 0
    await log.append(topic, b"4")
    assert values(await read(log.reader(group, topic), 1)) == [b"4"]


async def test_a_reader_that_begins_at_the_end_says_so_once(log: Log, group: str) -> None:
    topic = await log.topic(partitions=2)
    await log.transact(topic, b"1")
    await log.admin.ensure_committed(group, topic)
    owner = Owner()
    reader = log.reader(group, topic, owner)
    found: dict[int, int] = {}
    async with asyncio.timeout(SOON):
        while len(found) < 2:
            assert list(await reader.read(500, 0.1)) == []
            found |= reader.ends
    assert found == {0: 2, 1: 0}
    assert list(await reader.read(500, NOTHING)) == []
    assert reader.ends == {}


async def test_an_end_lies_behind_the_records_that_came_with_it(log: Log, group: str) -> None:
    """BUS-5: a reader that commits an end must not go back behind what it has given."""
    topic = await log.topic()
    reader = log.reader(group, topic)
    assert await end_of(reader) == {0: 0}
    for number in range(3):
        reading = asyncio.ensure_future(reader.read(500, SOON))
        await asyncio.wait([reading], timeout=NOTHING)  # it waits behind the end
        await log.append(topic, b"%d" % number)
        (record,) = await reading
        assert reader.ends.get(0, number + 1) > record.offset()


async def test_a_commit_beyond_the_end_begins_at_the_start_of_what_is_there(
    log: Log, group: str
) -> None:
    """Fault 6: a topic that was made anew, or has lost its end in an unclean election."""
    topic = await log.topic()
    for number in range(3):
        await log.append(topic, b"%d" % number)
    first, owner = log.reader(group, topic), Owner()
    await read(first, 3)
    first.commit({0: OffsetAndMetadata(70, "of another log")})
    await log.close_reader(first)
    second = log.reader(group, topic, owner)
    assert values(await read(second, 3, owner)) == [b"0", b"1", b"2"]
    assert (owner.committed, owner.losses, owner.owned) == ({0: None}, [[0]], {0})
    await log.close_reader(second)
    assert owner.losses == [[0]]
    assert (await log.admin.lags([group], topic))[group].total == 0


async def test_a_topic_made_anew_under_a_reader_is_read_from_its_start(
    log: Log, group: str
) -> None:
    topic = await log.topic()
    for number in range(20):
        await log.append(topic, b"%d" % number)
    owner = Owner()
    reader = log.reader(group, topic, owner)
    await read(reader, 20, owner)
    reader.pause([0])
    reader.resume([0])
    await log.admin.delete_topic(topic)
    async with asyncio.timeout(SOON):
        while topic in await log.admin.topics():
            pass
    await log.admin.ensure_topic(topic, 1, 1, {})
    async with asyncio.timeout(SOON):
        while True:
            try:
                await log.append(topic, b"new")
                break
            except LogError:
                pass
    records: list[Record] = []
    async with asyncio.timeout(SOON):
        while not records:
            records += await reader.read(500, 1.0)
    assert [(record.offset(), record.value()) for record in records] == [(0, b"new")]
    owner.saw(records)
    assert owner.committed == {0: None}
    assert owner.owned == {0}
    await log.close_reader(reader)
    assert (await log.admin.lags([group], topic))[group].total == 0


async def test_a_reader_of_a_missing_topic_reads_nothing(log: Log, group: str) -> None:
    assert list(await log.reader(group, "contract-nowhere").read(10, NOTHING)) == []


async def test_a_reader_that_never_read_can_be_closed(log: Log, group: str) -> None:
    topic = await log.topic()
    await log.close_reader(log.reader(group, topic))
