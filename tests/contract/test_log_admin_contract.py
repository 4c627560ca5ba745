"""What every log's admin does: in memory and on real Kafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from support.logs import SOON, Log, Owner, read, values
from support.waiting import until

from knafka.core.errors import LogError
from knafka.ports.log import LogAdmin, OffsetAndMetadata, Range


async def test_a_topic_is_made_once(log: Log) -> None:
    topic = await log.topic(partitions=3)
    assert not await log.admin.ensure_topic(topic, 5, 1, {})
    assert (await log.admin.topics())[topic] == 3
    await log.admin.delete_topic(topic)
    await log.admin.delete_topic(topic)
    async with asyncio.timeout(SOON):
        while topic in await log.admin.topics():
            pass


async def test_a_topic_is_described_as_it_is(log: Log) -> None:
    topic = await log.topic()
    assert await log.admin.describe_topic("contract-nowhere") is None
    plain = await log.admin.describe_topic(topic)
    assert plain is not None
    assert (plain.partitions, plain.replication, plain.config) == (1, 1, {})

    await log.admin.delete_topic(topic)
    async with asyncio.timeout(SOON):
        while topic in await log.admin.topics():
            pass
    assert await log.admin.describe_topic(topic) is None
    config = {"retention.ms": "3600000", "cleanup.policy": "compact"}
    assert await log.admin.ensure_topic(topic, 3, 1, config)
    again = await log.admin.describe_topic(topic)
    assert again is not None
    assert (again.partitions, again.replication, again.config) == (3, 1, config)
    assert again.id != plain.id, "another topic of the same name"


async def test_the_cluster_has_an_id(log: Log) -> None:
    assert await log.admin.cluster_id()


async def test_end_offsets_are_those_of_the_next_records(log: Log) -> None:
    topic = await log.topic(partitions=2)
    assert await log.admin.end_offsets(topic) == {0: 0, 1: 0}
    for _ in range(3):
        await log.append(topic, key=b"k")
    assert sorted((await log.admin.end_offsets(topic)).values()) == [0, 3]


async def test_many_topics_tell_together_what_they_have_and_since_when(log: Log) -> None:
    topics = [await log.topic(partitions=2), await log.topic()]
    asked = [*topics, "contract-nowhere"]
    both = {topics[0]: {0: 0, 1: 0}, topics[1]: {0: 0}}
    async with asyncio.timeout(SOON):
        while await log.admin.ranges_of_all(asked) != {
            topic: Range(each, each) for topic, each in both.items()
        }:  # until they have leaders
            pass
    assert await log.admin.first_timestamps(asked) == {}
    began = time.time()
    for _ in range(3):
        await log.append(topics[1])
    found = await log.admin.ranges_of_all(asked)
    assert found[topics[1]] == Range({0: 0}, {0: 3})
    assert (found[topics[0]].records, found[topics[1]].records) == (0, 3)
    first = await log.admin.first_timestamps(asked)
    assert first.keys() == {topics[1]}
    assert began - 1 <= first[topics[1]] <= time.time() + 1


async def test_what_is_set_of_a_topic_changes_nothing_else_of_it(log: Log) -> None:
    topic = await log.topic()
    await log.admin.set_topic_config(topic, {"retention.ms": "3600000", "cleanup.policy": "delete"})
    await log.admin.set_topic_config(topic, {"retention.ms": "7200000"})
    wanted = {"retention.ms": "7200000", "cleanup.policy": "delete"}
    async with asyncio.timeout(SOON):
        while (found := await log.admin.describe_topic(topic)) is None or found.config != wanted:
            pass
    with pytest.raises(LogError):
        await log.admin.set_topic_config("contract-nowhere", {"retention.ms": "1"})


async def test_many_topics_tell_together_which_have_grown(log: Log) -> None:
    topics = [await log.topic(partitions=2), await log.topic()]
    asked = [*topics, "contract-nowhere"]
    before = {topics[0]: {0: 0, 1: 0}, topics[1]: {0: 0}}
    async with asyncio.timeout(SOON):
        while await log.admin.end_offsets_of_all(asked) != before:  # until they have leaders
            pass
    await log.append(topics[1])
    assert await log.admin.end_offsets_of_all(asked) == {**before, topics[1]: {0: 1}}
    await log.admin.delete_topic(topics[0])
    async with asyncio.timeout(SOON):
        while topics[0] in await log.admin.end_offsets_of_all(asked):
            pass
    assert await log.admin.end_offsets_of_all([]) == {}


async def test_the_last_record_of_a_key_is_found_wherever_it_is(log: Log) -> None:
    """Also behind offsets that have no record, as compaction and aborted transactions leave."""
    topic = await log.topic(partitions=2)
    assert await log.admin.last_with_key(topic, b"rare") is None
    for value in (b"first", b"last"):
        await log.append(topic, value, key=b"rare")
    await log.transact(topic, *[b"noise"] * 20)
    await log.transact(topic, *[b"noise"] * 40, commit=False)
    for _ in range(3):
        await log.append(topic, b"often", key=b"often")
    await log.transact(topic, *[b"noise"] * 20, commit=False)
    for key, value in ((b"rare", b"last"), (b"often", b"often")):
        record = await log.admin.last_with_key(topic, key)
        assert record is not None
        assert (record.key(), record.value()) == (key, value)
    assert await log.admin.last_with_key(topic, b"never") is None
    with pytest.raises(LogError) as caught:
        await log.admin.last_with_key("contract-nowhere", b"rare")
    assert caught.value.unknown_topic


async def test_a_lag_on_a_topic_that_is_gone_is_an_error_that_says_so(log: Log, group: str) -> None:
    """A source of several topics leaves that one out."""
    with pytest.raises(LogError) as caught:
        await log.admin.lags([group], "contract-nowhere")
    assert caught.value.unknown_topic


@pytest.mark.conformance("KN-TRG-06")
async def test_partitions_that_come_later_are_read_from_their_start(log: Log, group: str) -> None:
    """KN-TRG-06: the Trigger was Ready when they came, so whatever is in them is its."""
    topic = await log.topic()
    await log.append(topic, b"before")
    await log.admin.ensure_committed(group, topic)
    await log.grow(topic, 3)
    owner = Owner()
    reader = log.reader(group, topic, owner)
    async with asyncio.timeout(SOON):
        while not owner.owned:
            await reader.read(1, 0.1)
    await log.admin.ensure_committed(group, topic)  # somebody reads: nothing can be committed now
    await log.close_reader(reader)
    count = 0
    async with asyncio.timeout(SOON):
        while not all((await log.admin.end_offsets(topic)).values()):  # the writer learns of them
            await log.append(topic, key=b"%d" % count)
            count += 1
    await log.admin.ensure_committed(group, topic)
    lag = (await log.admin.lags([group], topic))[group]
    assert (lag.total, set(lag.by_partition)) == (count, {0, 1, 2})
    assert len(await read(log.reader(group, topic), count)) == count


@pytest.mark.conformance("KN-TRG-06")
async def test_a_group_that_has_offsets_keeps_its_place(log: Log, group: str) -> None:
    """KN-TRG-06: a Trigger that is reconciled again keeps its place."""
    topic = await log.topic(partitions=2)
    await log.append(topic, key=b"k")
    await log.admin.ensure_committed(group, topic)
    for number in range(20):
        await log.append(topic, key=b"%d" % number)
    await log.admin.ensure_committed(group, topic)
    lag = (await log.admin.lags([group], topic))[group]
    assert (lag.total, set(lag.by_partition)) == (20, {0, 1})


async def test_a_new_group_may_begin_at_the_first_record(log: Log, group: str) -> None:
    topic = await log.topic(partitions=2)
    for number in range(20):
        await log.append(topic, key=b"%d" % number)
    await log.admin.ensure_committed(group, topic, "earliest")
    assert (await log.admin.lags([group], topic))[group].total == 20
    await log.admin.ensure_committed(group, topic, "latest")
    assert len(await read(log.reader(group, topic), 20)) == 20, "it has its place"


async def test_a_new_group_may_begin_at_a_time(log: Log, group: str) -> None:
    """At the first record since then; where there is none, at the end."""
    topic = await log.topic(partitions=2)
    for number in range(20):
        await log.append(topic, key=b"%d" % number)
    before = await log.admin.end_offsets(topic)
    since = int(time.time() * 1000) + 1
    await until(lambda: time.time() * 1000 > since)
    for _ in range(3):
        await log.append(topic, key=b"one")
    after = await log.admin.end_offsets(topic)
    grown = [number for number in after if after[number] > before[number]]
    assert len(grown) == 1, "the other partition has nothing since then"
    await log.admin.ensure_committed(group, topic, since)
    assert (await log.admin.lags([group], topic))[group].by_partition == {
        number: 3 if number in grown else 0 for number in after
    }


async def test_lag_counts_uncommitted_partitions_from_the_logs_start(log: Log, group: str) -> None:
    """Committed offsets list only the partitions that have one (kafka-and-spark.md)."""
    topic = await log.topic(partitions=3)
    for number in range(30):
        await log.append(topic, key=b"%d" % number)
    ends = await log.admin.end_offsets(topic)
    reader = log.reader(group, topic)
    await read(reader, 30)
    reader.commit({1: OffsetAndMetadata(2)})
    await log.close_reader(reader)
    lags = await log.admin.lags([group, "contract-unknown"], topic)
    assert dict(lags[group].by_partition) == {**ends, 1: ends[1] - 2}
    assert lags["contract-unknown"].total == 30
    assert await log.admin.lags([], topic) == {}


@pytest.mark.conformance("DSP-16", "DSP-18")
async def test_what_a_group_has_settled_is_known_of_each_partition(log: Log, group: str) -> None:
    """DSP-16 to DSP-18: by partition, zeros included; it rises by what the group commits."""
    topic = await log.topic(partitions=2)
    assert (await log.admin.lags([group], topic))[group].settled == {0: 0, 1: 0}
    for number in range(20):
        await log.append(topic, key=b"%d" % number)
    assert (await log.admin.lags([group], topic))[group].settled == {0: 0, 1: 0}
    await log.admin.ensure_committed(group, topic, "latest")
    ends = await log.admin.end_offsets(topic)
    for _ in range(2):  # the second answer is what is remembered
        assert (await log.admin.lags([group], topic))[group].settled == ends
        await log.admin.end_offsets_of_all({topic})


async def test_lag_is_right_however_often_it_is_asked(log: Log, group: str) -> None:
    """What is remembered of a group that was at the end must never hide an event."""
    topic = await log.topic(partitions=2)
    await log.append(topic, b"before")
    groups = [group, f"{group}-other"]
    for each in groups:
        await log.admin.ensure_committed(each, topic)

    async def lags() -> list[int]:
        found = await log.admin.lags(groups, topic)
        return [found[each].total for each in groups]

    assert await lags() == [0, 0]
    assert await lags() == [0, 0]
    await log.append(topic, b"1", b"k")
    assert await lags() == [1, 1]
    owner = Owner()
    reader = log.reader(group, topic, owner)
    await read(reader, 1, owner)
    await log.close_reader(reader)
    assert await lags() == [0, 1]
    await log.append(topic, b"2", b"other")
    assert await lags() == [1, 2]
    await log.grow(topic, 4)
    assert await lags() == [1, 2]
    for number in range(40):
        await log.append(topic, b"", b"%d" % number)
    assert await lags() == [41, 42]


async def test_a_topic_made_again_has_nothing_to_do_with_the_old_one(log: Log, group: str) -> None:
    topic = await log.topic()
    for _ in range(2):
        await log.append(topic)
    await log.admin.ensure_committed(group, topic)
    assert (await log.admin.lags([group], topic))[group].total == 0
    await log.admin.delete_topic(topic)
    async with asyncio.timeout(SOON):
        while topic in await log.admin.topics():
            pass
    await log.admin.ensure_topic(topic, 1, 1, {})
    for _ in range(2):
        await log.append(topic)
    async with asyncio.timeout(SOON):
        while (await log.admin.lags([group], topic))[group].total != 2:
            pass


async def test_a_commit_beyond_the_end_is_lag_from_the_start_of_what_is_there(
    log: Log, group: str
) -> None:
    """Fault 6: it was lag 0, so that nobody woke and what came until then was lost."""
    topic = await log.topic(partitions=2)
    for number in range(20):
        await log.append(topic, b"%d" % number, b"%d" % number)
    ends = await log.admin.end_offsets(topic)
    reader = log.reader(group, topic)
    await read(reader, 20)
    reader.commit({0: OffsetAndMetadata(1000), 1: OffsetAndMetadata(ends[1])})
    await log.close_reader(reader)
    for _ in range(2):
        lag = (await log.admin.lags([group], topic))[group]
        assert (dict(lag.by_partition), lag.beyond_end) == ({**ends, 1: 0}, frozenset({0}))
    assert ends[0] > 0
    second = log.reader(group, topic, owner := Owner())
    await read(second, ends[0], owner)
    await log.close_reader(second)
    lag = (await log.admin.lags([group], topic))[group]
    assert (lag.total, lag.beyond_end) == (0, frozenset())


async def test_a_group_that_commits_while_it_is_asked_is_not_beyond_the_end(
    log: Log, group: str
) -> None:
    topic = await log.topic()
    await log.append(topic)
    reader = log.reader(group, topic)
    await read(reader, 1)

    async def go_on() -> None:
        for _ in range(100):
            await log.append(topic)
            for record in await read(reader, 1):
                reader.commit({0: OffsetAndMetadata(record.offset() + 1)})

    going_on = asyncio.create_task(go_on())
    while not going_on.done():
        assert (await log.admin.lags([group], topic))[group].beyond_end == frozenset()
        await asyncio.sleep(0)
    await going_on


async def test_a_deleted_group_has_forgotten_its_offsets(log: Log, group: str) -> None:
    topic = await log.topic()
    await log.append(topic)
    await log.admin.ensure_committed(group, topic)
    assert (await log.admin.lags([group], topic))[group].total == 0
    await log.admin.delete_group(group)
    assert (await log.admin.lags([group], topic))[group].total == 1
    await log.admin.delete_group(group)


async def test_whose_a_group_is_shows_in_what_it_has_committed(log: Log, group: str) -> None:
    """Before a name is taken, or what stands under it is deleted (issue 29, C)."""
    mine, other = await log.topic(), await log.topic()
    assert not await log.admin.has_group(group)
    assert not await log.admin.has_committed(group, mine)
    await log.admin.ensure_committed(group, mine)
    assert await log.admin.has_group(group)
    assert await log.admin.has_committed(group, mine)
    assert not await log.admin.has_committed(group, other)
    assert not await log.admin.has_committed(group, f"{mine}-is-not-there")
    await log.admin.delete_group(group)
    assert not await log.admin.has_group(group)


async def test_a_group_that_has_committed_nothing_is_there_by_its_members(
    log: Log, group: str
) -> None:
    topic = await log.topic()
    await log.append(topic)
    await read(log.reader(group, topic), 1)
    assert await log.admin.has_group(group)


async def test_a_group_with_members_is_not_deleted(log: Log, group: str) -> None:
    topic = await log.topic()
    await log.append(topic)
    await read(log.reader(group, topic), 1)
    with pytest.raises(LogError):
        await log.admin.delete_group(group)


async def test_read_last_gives_the_last_records_oldest_first(log: Log) -> None:
    topic = await log.topic(partitions=3)
    for number in range(12):
        await log.append(topic, b"%d" % number, b"%d" % number)
        appended_by = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 == appended_by:
            pass  # each record has a millisecond of its own
    assert values(await log.admin.read_last(topic, 100)) == [b"%d" % each for each in range(12)]
    assert values(await log.admin.read_last(topic, 3)) == [b"9", b"10", b"11"]
    assert list(await log.admin.read_last(await log.topic(), 3)) == []


@pytest.mark.parametrize(
    "ask",
    [
        lambda admin: admin.end_offsets("contract-nowhere"),
        lambda admin: admin.lags(["g"], "contract-nowhere"),
        lambda admin: admin.ensure_committed("g", "contract-nowhere"),
        lambda admin: admin.read_last("contract-nowhere", 10),
    ],
    ids=["end_offsets", "lags", "ensure_committed", "read_last"],
)
async def test_a_missing_topic_is_a_log_error(
    log: Log, ask: Callable[[LogAdmin], asyncio.Future[object]]
) -> None:
    with pytest.raises(LogError):
        await ask(log.admin)
