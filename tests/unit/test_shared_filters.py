"""What an event is not for costs nothing, and is settled all the same. On fake time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest
from support.drains import TOPIC, Request, World, accept, response, until
from support.logs import Owner
from support.memory.shared import MemoryOffsets, MemoryPositionedReader
from support.shards import Shard

from knafka.core.contract import Order
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import to_record
from knafka.core.filters.declared_filters import Exact
from knafka.dispatcher.engine.selecting import Selective
from knafka.dispatcher.shared.fetcher import RECORDS_PER_TURN
from knafka.dispatcher.shared.reader import RECORDS_PER_READ, GroupReader
from knafka.dispatcher.shared.topic import SharedTopic
from knafka.ports.log import Record
from knafka.ports.subscriber import Response

pytestmark = pytest.mark.looptime

TRIGGERS = 20


@pytest.fixture
async def shard() -> AsyncIterator[Shard]:
    """A Trigger for each type."""
    shard = Shard(World())
    for number in range(TRIGGERS):
        shard.add(number, accept, filters=(Exact(exact={"type": f"t{number}"}),))
    await shard.start()
    yield shard
    await shard.dispatcher.stop()


async def drain(shard: Shard) -> None:
    """One that goes on, and has read an event that is for nobody."""
    shard.world.send("first", type="none")
    shard.drain(idle="PT1H", budget="PT10M")
    await until(lambda: all(shard.committed(number) == 1 for number in range(TRIGGERS)))


async def test_an_event_touches_only_those_that_it_is_for(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    await drain(shard)
    touched: Counter[str] = Counter()
    give = GroupReader._give

    def counted(self: GroupReader, drain: Selective, records: Sequence[Record]) -> int:
        touched[self.group] += len(records)
        return give(self, drain, records)

    monkeypatch.setattr(GroupReader, "_give", counted)
    for number in range(100):
        shard.world.send(str(number), type="t3" if number % 2 else "none")
    await until(lambda: len(shard.subscribers[3].answered) == 50)
    assert set(touched) == {"group-3"}
    await asyncio.sleep(2)
    assert [shard.committed(number) for number in range(TRIGGERS)] == [101] * TRIGGERS
    metrics = (await shard.ask("GET", "/metrics")).body.decode()
    for trigger, outcome, count in (
        ("3", "filtered", 51),
        ("4", "filtered", 101),
        ("4", "read", 101),
    ):
        lines = [
            line
            for line in metrics.splitlines()
            if line.startswith("knafka_dispatcher_events_total")
            and f'trigger="trigger-{trigger}"' in line
            and f'outcome="{outcome}"' in line
        ]
        assert [float(line.rpartition(" ")[2]) for line in lines] == [count]


async def test_a_paused_partition_is_handed_no_records() -> None:
    """In the order of the partition a drain holds 500 records, and looks again after each 50."""
    shard = Shard(World())
    may_answer = asyncio.Event()

    async def answer(request: Request) -> Response:
        await may_answer.wait()
        return response()

    shard.add(0, answer, filters=(Exact(exact={"type": "t0"}),), order=Order.PARTITION)
    await shard.start()
    shard.world.send("first", type="none")
    shard.drain(idle="PT1H", budget="PT10M")
    await until(lambda: shard.committed(0) == 1)
    for number in range(900):
        shard.world.send(str(number), type="t0")
        await asyncio.sleep(0.01)
    metrics = (await shard.ask("GET", "/metrics")).body.decode()
    (read,) = [
        float(line.rpartition(" ")[2])
        for line in metrics.splitlines()
        if line.startswith("knafka_dispatcher_events_total") and 'outcome="read"' in line
    ]
    assert 500 <= read <= 600
    may_answer.set()
    await until(lambda: len(shard.subscribers[0].answered) == 900)
    assert shard.subscribers[0].answered == [str(number) for number in range(900)]
    await shard.dispatcher.stop()


async def test_what_is_read_at_once_for_many_is_not_given_to_all_in_one_turn(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty times fifty events held the event loop for as long as all of them take to be begun."""
    await drain(shard)
    await asyncio.sleep(1)
    turn, given = 0, Counter[int]()
    give, read = GroupReader._give, MemoryPositionedReader.read

    async def read_in_thread(
        self: MemoryPositionedReader, limit: int, timeout: float
    ) -> Sequence[Record]:
        await asyncio.sleep(0)
        return await read(self, limit, timeout)

    def next_turn() -> None:
        nonlocal turn
        turn += 1

    def counted(self: GroupReader, drain: Selective, records: Sequence[Record]) -> int:
        if not given[turn]:
            asyncio.get_running_loop().call_soon(next_turn)
        given[turn] += (count := give(self, drain, records))
        return count

    monkeypatch.setattr(MemoryPositionedReader, "read", read_in_thread)
    monkeypatch.setattr(GroupReader, "_give", counted)
    for number in range(20 * TRIGGERS):
        shard.world.send(str(number), type=f"t{number % TRIGGERS}")
    await until(lambda: all(len(each.answered) == 20 for each in shard.subscribers))
    assert max(given.values()) == RECORDS_PER_TURN


async def test_no_drain_that_waits_is_woken_for_what_is_read_at_once_for_many(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To wake one costs several times what one event costs, and each gets few of many."""
    await drain(shard)
    await asyncio.sleep(1)
    woken: list[str] = []
    monkeypatch.setattr(GroupReader, "_wake", lambda reader: woken.append(reader.group))
    for number in range(4 * TRIGGERS):
        shard.world.send(str(number), type=f"t{number % TRIGGERS}")
    await until(lambda: all(len(each.answered) == 4 for each in shard.subscribers))
    assert 4 * TRIGGERS > RECORDS_PER_TURN
    assert not woken


async def test_a_drain_that_gets_an_event_in_each_turn_does_not_read_again_for_each(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read again looks at all partitions, which costs as much as to take several events."""
    await drain(shard)
    await asyncio.sleep(1)
    reads, read = Counter[str](), GroupReader.read

    async def counted(self: GroupReader, limit: int, timeout: float) -> Sequence[Record]:
        reads[self.group] += 1
        return await read(self, limit, timeout)

    async def read_one(
        self: MemoryPositionedReader, limit: int, timeout: float
    ) -> Sequence[Record]:
        await asyncio.sleep(0)
        return await read_memory(self, 1, timeout)

    read_memory = MemoryPositionedReader.read
    monkeypatch.setattr(GroupReader, "read", counted)
    monkeypatch.setattr(MemoryPositionedReader, "read", read_one)
    count = 10 * RECORDS_PER_READ
    for number in range(count):
        shard.world.send(str(number), type="t3")
    await until(lambda: len(shard.subscribers[3].answered) == count)
    assert reads["group-3"] <= 2 * count / RECORDS_PER_READ


async def test_a_stop_does_not_wait_for_a_read(shard: Shard) -> None:
    loop = asyncio.get_running_loop()
    await drain(shard)
    await asyncio.sleep(20)
    began = loop.time()
    await asyncio.wait_for(shard.dispatcher.stop(), 5)
    assert loop.time() - began < 1.0


async def test_of_many_those_without_events_commit_less_often(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    await drain(shard)
    readers = {each.group: each for each in shard.shared._readers}
    monkeypatch.setattr(
        "knafka.dispatcher.shared.reader.MAX_COMMITS_PER_SECOND", TRIGGERS / 10
    )  # as where 2,000 share: every ten seconds
    assert readers["group-0"].quiet_commit_interval == 10
    assert readers["group-0"].commit_interval == 5
    await asyncio.sleep(11)
    shard.world.send("a", type="none")
    shard.world.send("b", type="t5")
    await until(lambda: shard.committed(5) == 3, within=5.5)
    assert shard.committed(6) == 1
    await until(lambda: shard.committed(6) == 3, within=11)


async def test_of_200_triggers_each_commits_within_a_second(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill repeats no more than with one Trigger (docs/reference/delivery.md)."""
    monkeypatch.setattr(SharedTopic, "reader_count", 200)
    reader = GroupReader(shard.shared, "group", Owner(), MemoryOffsets(shard.world.log))
    assert (reader.commit_interval, reader.quiet_commit_interval) == (1.0, 1.0)


async def test_of_more_triggers_each_commits_less_often_so_that_all_commit_200_times_a_second(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "knafka.dispatcher.shared.reader.MAX_COMMITS_PER_SECOND", TRIGGERS / 3
    )  # as where 600 share: every three seconds
    await drain(shard)
    began: list[float] = []
    loop, begin = asyncio.get_running_loop(), GroupReader.start_commit

    def note(self: GroupReader) -> None:
        began.append(loop.time())
        begin(self)

    monkeypatch.setattr(GroupReader, "start_commit", note)
    start = loop.time()
    for number in range(300):
        for trigger in range(TRIGGERS):
            shard.world.send(f"{trigger}-{number}", type=f"t{trigger}")
        await asyncio.sleep(0.1)
    rounds = (loop.time() - start) / 3
    assert (rounds - 2) * TRIGGERS <= len(began) <= (rounds + 1) * TRIGGERS
    in_a_second = Counter(int(at) for at in began)
    assert max(in_a_second.values()) < TRIGGERS, "they are spread"
    sent = 300 * TRIGGERS + 1
    await until(lambda: all(shard.committed(each) == sent for each in range(TRIGGERS)), within=3.5)


async def test_a_stop_commits_what_was_delivered_however_seldom_its_group_commits(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("knafka.dispatcher.shared.reader.MAX_COMMITS_PER_SECOND", TRIGGERS / 5)
    await drain(shard)
    await asyncio.sleep(6)
    for number in range(TRIGGERS):
        shard.world.send(str(number), type=f"t{number}")
    await until(lambda: all(each.answered for each in shard.subscribers), within=1)
    assert min(map(shard.committed, range(TRIGGERS))) == 1
    await shard.dispatcher.stop()
    assert set(map(shard.committed, range(TRIGGERS))) == {TRIGGERS + 1}


async def test_of_many_one_with_events_commits_only_the_partitions_that_had_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shard = Shard(World(partitions=2))
    shard.add(0, accept, filters=(Exact(exact={"type": "t0"}),))
    await shard.start()
    monkeypatch.setattr(
        "knafka.dispatcher.shared.reader.MAX_COMMITS_PER_SECOND", 0.1
    )  # as where 2,000 share: every ten seconds
    shard.drain(idle="PT1H", budget="PT10M")
    shard.world.store_at(0, "first")
    shard.world.store_at(1, "first")
    await until(lambda: shard.committed(0) == 2, within=12)
    before = shard.world.log.group("group-0").committed.copy()
    shard.world.store_at(0, "not for it")
    for_it = to_record(Event({"specversion": "1.0", "id": "a", "source": "/s", "type": "t0"}, b""))
    shard.world.log.store(TOPIC, b"", for_it.value, for_it.headers, partition=1)
    await until(lambda: shard.world.log.group("group-0").committed != before, within=5.5)
    committed = shard.world.log.group("group-0").committed
    assert [committed[TOPIC, number].offset for number in (0, 1)] == [1, 2]
    await until(lambda: shard.committed(0) == 4, within=11)
    await shard.dispatcher.stop()
