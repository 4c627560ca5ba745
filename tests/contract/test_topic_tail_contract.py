"""What every `TopicTail` does: in memory and on Kafka."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.logs import SOON, Log, values
from support.memory.tail import MemoryTail

from knafka.clients.kafka.consumers.kafka_tail import KafkaTail
from knafka.ports.log import Record, TopicTail


@pytest.fixture
async def topic(log: Log) -> str:
    return await log.topic(3)


@pytest.fixture
async def tail(request: pytest.FixtureRequest, log: Log, topic: str) -> AsyncIterator[TopicTail]:
    memory = getattr(log.admin, "_memory", None)
    made: TopicTail
    if memory is None:
        servers = request.getfixturevalue("kafka").bootstrap_servers
        made = KafkaTail({"bootstrap.servers": servers}, topic)
    else:
        made = MemoryTail(memory, topic)
    yield made
    await made.close(SOON)


async def rest(tail: TopicTail, limit: int = 500) -> list[Record]:
    """All until it says that there is nothing more."""
    records: list[Record] = []
    while some := await tail.read_on(limit):
        assert len(some) <= limit
        records += some
    return records


async def test_it_gives_what_has_come_since_it_was_asked_last(
    log: Log, topic: str, tail: TopicTail
) -> None:
    assert await tail.read_on(10) == []
    for number in range(20):
        await log.append(topic, b"%d" % number, key=b"%d" % number)
    found = await rest(tail, limit=7)
    assert sorted(map(int, filter(None, values(found)))) == list(range(20))
    assert {each.partition() for each in found} == {0, 1, 2}
    assert await tail.read_on(10) == []
    await log.append(topic, b"more")
    assert values(await rest(tail)) == [b"more"]


async def test_it_passes_over_what_a_transaction_has_left(
    log: Log, topic: str, tail: TopicTail
) -> None:
    """A marker is an offset without a record: nobody waits for one."""
    await log.transact(topic, b"a")
    await log.transact(topic, b"b", commit=False)
    assert values(await rest(tail)) == [b"a"]
    assert await tail.read_on(10) == []


async def test_it_begins_at_a_time(log: Log, topic: str, tail: TopicTail) -> None:
    await log.append(topic, b"a", key=b"k")
    (first,) = await rest(tail)
    tail.begin(first.timestamp()[1])
    assert values(await rest(tail)) == [b"a"]
    tail.begin(first.timestamp()[1] + 1_000_000)
    assert await rest(tail) == []
    await log.append(topic, b"b", key=b"k")
    assert values(await rest(tail)) == [b"b"]
    tail.begin(0)
    assert values(await rest(tail)) == [b"a", b"b"]


async def test_a_topic_that_isnt_there_has_nothing_and_one_made_anew_is_read_from_its_start(
    log: Log, topic: str, tail: TopicTail
) -> None:
    for _ in range(3):
        await log.append(topic, b"old", key=b"k")
    assert len(await rest(tail)) == 3
    await log.admin.delete_topic(topic)
    assert await tail.read_on(10) == []
    assert await log.admin.ensure_topic(topic, 3, 1, {})
    await log.append(topic, b"new", key=b"k")
    assert values(await rest(tail)) == [b"new"]
