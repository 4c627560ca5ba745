"""How a drain ends: idle, stopped, failed; what it finishes and what it leaves. On fake time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from support.drains import FAR, TOPIC, Request, World, accept, id_of, response, slow, until
from support.memory.log import MemoryReader

from knafka.core.contract import Delivery
from knafka.core.drain import Ended
from knafka.core.errors import LogError
from knafka.dispatcher.engine.drain import DRAIN_REVOKE_TIMEOUT
from knafka.dispatcher.engine.intake import FIRST_READ_PATIENCE, JOIN_PATIENCE
from knafka.ports.log import Commits, OffsetAndMetadata, Record
from knafka.ports.subscriber import Response

pytestmark = pytest.mark.looptime


async def test_a_drain_with_nothing_to_do_ends_idle() -> None:
    world = World()
    progress = await world.run(idle=30)
    assert progress.ended is Ended.IDLE
    assert 30 <= asyncio.get_running_loop().time() < 31
    assert world.log.groups["group"].members == []


async def test_a_drain_without_work_asks_once_a_second_and_stops_within_one() -> None:
    """A waiting dispatcher is to cost next to nothing; one that holds events looks more often."""
    world = World()
    reads: list[float] = []

    class Counting(MemoryReader):
        async def read(self, limit: int, timeout: float) -> Sequence[Record]:
            reads.append(asyncio.get_running_loop().time())
            return await super().read(limit, timeout)

    world.reads_with(Counting)
    drain = world.drain()
    running = world.begin(drain, idle=FAR)
    await asyncio.sleep(20)
    assert len([at for at in reads if at >= 10]) <= 11
    drain.stop()
    assert (await running).ended is Ended.STOPPED
    assert asyncio.get_running_loop().time() <= 21


async def test_a_drain_that_may_not_idle_still_delivers_the_backlog() -> None:
    """What takes a reader a moment to fetch is no idleness."""
    world = World()

    class Late(MemoryReader):
        async def read(self, limit: int, timeout: float) -> Sequence[Record]:
            await asyncio.sleep(0.2)
            return await super().read(limit, timeout)

    world.reads_with(Late)
    world.send("1")
    assert (await world.run(idle=0)).delivered == 1


@pytest.mark.parametrize("has_record", [True, False])
async def test_a_drain_is_not_idle_before_it_has_read_a_record_or_the_end_of_each_partition(
    has_record: bool,
) -> None:
    """A busy Kafka takes longer for the first fetch than a drain has to be without work."""
    world = World()
    late_ends: dict[int, int] = {}

    class Late(MemoryReader):
        async def read(self, limit: int, timeout: float) -> Sequence[Record]:
            is_late = asyncio.get_running_loop().time() >= 5
            records = await super().read(limit if is_late else 0, timeout)
            late_ends.update(self.ends)
            self.ends = late_ends if is_late else {}
            return records

    world.reads_with(Late)
    if has_record:
        world.send("1")
    progress = await world.run(idle=0)
    assert (progress.ended, progress.delivered) == (Ended.IDLE, has_record)
    assert 5 <= asyncio.get_running_loop().time() <= 8


async def test_a_drain_whose_partition_says_nothing_ends() -> None:
    """It may have no leader."""
    world = World()

    class Silent(MemoryReader):
        async def read(self, limit: int, timeout: float) -> Sequence[Record]:
            await super().read(0, timeout)
            self.ends = {}
            return []

    world.reads_with(Silent)
    assert (await world.run(idle=0)).ended is Ended.IDLE
    assert asyncio.get_running_loop().time() < FIRST_READ_PATIENCE + 2


async def test_a_drain_waits_longer_for_partitions_than_a_dead_member_keeps_them() -> None:
    """A killed dispatcher's session lasts 10 s."""
    world = World()

    class Dead:
        def on_assigned(self, partitions: Mapping[int, OffsetAndMetadata | None]) -> None: ...
        async def on_revoked(self, partitions: Sequence[int]) -> Commits:
            return {}

        def on_lost(self, partitions: Sequence[int]) -> None: ...

    dead = MemoryReader(world.log, "group", TOPIC, Dead())
    await dead.read(1, 0)
    world.send("1")
    running = world.begin(world.drain(), idle=0)
    await asyncio.sleep(12)
    await dead.close(10)
    assert (await running).delivered == 1


async def test_a_drain_that_gets_no_partition_ends() -> None:
    world = World()
    other = world.drain()
    holding = world.begin(other, idle=FAR)
    await until(lambda: other.progress().partitions)
    assert (await world.run(idle=0)).ended is Ended.IDLE
    assert asyncio.get_running_loop().time() < JOIN_PATIENCE + 1
    other.stop()
    await holding


async def test_a_drain_ends_when_its_budget_is_spent() -> None:
    world = slow({"slow": 1.0})
    for number in range(100):
        world.send(str(number), "slow")
    progress = await world.run(stop_after=10)
    assert progress.ended is Ended.STOPPED
    assert 10 <= asyncio.get_running_loop().time() < 10 + DRAIN_REVOKE_TIMEOUT + 0.5
    assert world.committed == {0: progress.delivered}
    assert 9 <= progress.delivered <= 11


async def test_a_drain_that_ends_leaves_retries_to_the_next_one_which_waits_as_long() -> None:
    failing = True

    async def answer(request: Request) -> Response:
        return response(503 if failing and id_of(request) == "1" else 200)

    world = World(answer, delivery=Delivery(retry=10, backoff_delay=60))
    world.send("1", "a")
    world.send("2", "a")
    world.send("3", "b")
    first = await world.run(stop_after=10)
    assert (first.ended, first.delivered, first.dead_lettered) == (Ended.STOPPED, 1, 0)
    assert asyncio.get_running_loop().time() < 11, "there was no attempt to wait for"
    assert world.committed.get(0, 0) == 0

    failing = False
    second = await world.run()
    assert second.delivered == 2
    assert world.subscriber.ids == ["1", "3", "1", "2"]
    assert 60 <= world.subscriber.times[2] < 61
    assert world.committed == {0: 3}


async def test_a_stopped_drain_lets_an_attempt_finish_and_commits_it() -> None:
    world = slow({"k": DRAIN_REVOKE_TIMEOUT - 0.5})
    world.send("1", "k")
    world.send("2", "k")
    drain = world.drain()
    running = world.begin(drain)
    await until(lambda: world.subscriber.posts)
    drain.stop()
    progress = await running
    assert (progress.ended, progress.delivered) == (Ended.STOPPED, 1)
    assert world.subscriber.ids == ["1"]
    assert world.committed == {0: 1}


async def test_a_stopped_drain_abandons_an_attempt_that_takes_too_long() -> None:
    world = slow({"k": FAR})
    world.send("1", "k")
    drain = world.drain()
    running = world.begin(drain)
    await until(lambda: world.subscriber.posts)
    stopped_at = asyncio.get_running_loop().time()
    drain.stop()
    assert (await running).ended is Ended.STOPPED
    assert asyncio.get_running_loop().time() - stopped_at < DRAIN_REVOKE_TIMEOUT + 0.5
    assert world.subscriber.under_way == 0, "it was cancelled"
    assert world.committed.get(0, 0) == 0


async def test_a_drain_stopped_during_a_backoff_ends_at_once() -> None:
    async def answer(request: Request) -> Response:
        return response(503)

    world = World(answer, delivery=Delivery(retry=1, backoff_delay=600))
    world.send("1")
    drain = world.drain()
    running = world.begin(drain)
    await until(lambda: drain.counts.events.retried)
    stopped_at = asyncio.get_running_loop().time()
    drain.stop()
    assert (await running).ended is Ended.STOPPED
    assert asyncio.get_running_loop().time() - stopped_at < 0.5
    await asyncio.sleep(1200)
    assert world.subscriber.ids == ["1"], "the abandoned retry never comes"


async def test_a_drain_stopped_before_it_began_reads_nothing() -> None:
    world = World()
    world.send("1")
    drain = world.drain()
    drain.stop()
    assert (await world.begin(drain)).ended is Ended.STOPPED
    assert world.subscriber.ids == []


async def test_a_second_drain_delivers_again_what_the_first_left() -> None:
    world = slow({"slow": FAR})
    world.send("1", "slow")
    world.send("2", "quick")
    await world.run(stop_after=3)
    world.subscriber.answer = accept
    progress = await world.run()
    assert progress.delivered == 1
    assert world.subscriber.ids == ["1", "2", "1"], "what was settled ahead isn't repeated"
    assert world.committed == {0: 2}


async def test_a_log_that_fails_ends_the_drain_with_a_reason_and_what_is_settled_is_kept() -> None:
    world = World()

    class Failing(MemoryReader):
        async def read(self, limit: int, timeout: float) -> Sequence[Record]:
            if world.subscriber.answered:
                raise LogError("Kafka says no")
            return await super().read(limit, timeout)

    world.reads_with(Failing)
    world.send("1")
    progress = await world.run()
    assert (progress.ended, progress.error) == (Ended.FAILED, "Kafka says no")
    assert world.committed == {0: 1}


async def test_a_reader_that_cannot_leave_takes_the_workers_down_with_it() -> None:
    world = slow({"k": FAR})

    class Stuck(MemoryReader):
        async def close(self, timeout: float) -> None:
            raise LogError("no way out")

    world.reads_with(Stuck)
    world.send("1", "k")
    with pytest.raises(LogError):
        await world.run(stop_after=2)
    assert world.subscriber.under_way == 0


async def test_a_stopped_drain_ends_with_its_attempts_and_not_with_the_time_they_have() -> None:
    async def answer(request: Request) -> Response:
        await asyncio.sleep(1.0)
        return response()

    world = World(answer)
    world.send("1")
    began = asyncio.get_running_loop().time()
    await world.run(stop_after=0.5)
    assert asyncio.get_running_loop().time() - began < 2.0
    assert world.committed == {0: 1}
