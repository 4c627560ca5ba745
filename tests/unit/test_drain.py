"""A drain: settling, order, how it ends and what it commits, on a log in memory and fake time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from support.drains import TOPIC, Request, World, accept, id_of, key_of, response, until

from knafka.clients.memory_log import MemoryReader
from knafka.core.contract import Delivery, Exact, Order
from knafka.core.drain import Ended
from knafka.core.errors import LogError
from knafka.dispatcher.drain import COMMIT_INTERVAL, JOIN_PATIENCE, REVOKE_TIMEOUT
from knafka.ports.log import Commits, OffsetAndMetadata, Record
from knafka.ports.subscriber import Response

pytestmark = pytest.mark.looptime

FAR = 10_000.0
"""Seconds; longer than any drain here."""


def slow(seconds: dict[str, float]) -> World:
    """A world whose subscriber takes some seconds for the events of some keys."""

    async def answer(request: Request) -> Response:
        await asyncio.sleep(seconds.get(key_of(request), 0.0))
        return response()

    return World(answer)


async def test_an_event_is_delivered_and_its_offset_committed() -> None:
    world = World()
    world.send("1", "k")
    progress = await world.run()
    assert world.subscriber.ids == ["1"]
    assert (progress.read, progress.delivered, progress.ended) == (1, 1, Ended.IDLE)
    assert world.committed == {0: 1}


async def test_a_filtered_out_event_is_settled_without_being_sent() -> None:
    world = World(filters=(Exact(exact={"type": "wanted"}),))
    world.send("1", type="unwanted")
    world.send("2", type="wanted")
    world.send("3", type="unwanted")
    progress = await world.run()
    assert world.subscriber.ids == ["2"]
    assert (progress.read, progress.filtered, progress.delivered) == (3, 2, 1)
    assert world.committed == {0: 3}


async def test_offsets_are_committed_while_the_drain_goes_on() -> None:
    world = World()
    drain = world.drain()
    running = world.begin(drain, idle=FAR)
    world.send("1")
    await until(lambda: world.subscriber.answered, within=1)
    await until(lambda: world.committed == {0: 1}, within=COMMIT_INTERVAL + 0.1)
    drain.stop()
    await running


async def test_an_event_that_comes_later_keeps_the_drain_from_being_idle() -> None:
    world = World()
    running = world.begin(world.drain(), idle=5)
    for number in range(3):
        await asyncio.sleep(4)
        world.send(str(number))
    assert (await running).ended is Ended.IDLE
    assert world.subscriber.ids == ["0", "1", "2"]
    assert 16 < asyncio.get_running_loop().time() < 19


async def test_no_offset_above_an_unsettled_one_is_committed() -> None:
    """DSP: commit only up to the lowest unsettled record."""
    world = slow({"slow": FAR})
    world.send("0", "quick")
    world.send("1", "slow")
    for number in range(2, 20):
        world.send(str(number), "quick")
    drain = world.drain()
    running = world.begin(drain)
    await until(lambda: drain.progress().delivered == 19)
    await asyncio.sleep(3 * COMMIT_INTERVAL)
    assert world.committed == {0: 1}
    drain.stop()
    await running
    assert world.committed == {0: 1}


async def test_what_holds_no_records_is_committed_once_all_below_is_settled() -> None:
    world = slow({"slow": 5.0})
    world.send("1", "slow")
    world.log.transact(TOPIC, [], commit=True)
    running = world.begin(world.drain())
    await asyncio.sleep(4)
    assert world.committed.get(0, 0) == 0
    await until(lambda: world.committed == {0: 2})
    assert (await running).ended is Ended.IDLE


async def test_a_drain_that_finds_no_records_but_gaps_ends_idle_and_commits_them() -> None:
    """Its Trigger would have a lag for ever, and never sleep."""
    world = World(partitions=2)

    async def abort() -> None:
        while True:
            await asyncio.sleep(1)
            world.log.transact(TOPIC, [b"x"], commit=False)

    aborting = asyncio.create_task(abort())
    progress = await world.run(idle=5)
    aborting.cancel()
    assert (progress.ended, progress.read) == (Ended.IDLE, 0)
    assert asyncio.get_running_loop().time() < 6.5
    assert world.committed[0] >= 8


async def test_one_slow_key_does_not_hold_back_the_others() -> None:
    """Issue 3, item 3: 2 s an event."""
    world = slow({"slow": 2.0})
    for number in range(10):
        world.send(f"slow-{number}", "slow")
        for key in range(20):
            world.send(f"{key}-{number}", f"key-{key}")
    running = world.begin(world.drain())
    await until(lambda: len(world.subscriber.answered) >= 200)
    assert asyncio.get_running_loop().time() < 2.0
    assert [each for each in world.subscriber.ids if each.startswith("slow")] == ["slow-0"]
    assert (await running).delivered == 210
    assert 20.0 <= asyncio.get_running_loop().time() < 24.0


async def test_a_failing_event_holds_back_its_own_key_and_no_other() -> None:
    failures = iter([503, 503])

    async def answer(request: Request) -> Response:
        return response(next(failures, 200) if id_of(request) == "a1" else 200)

    world = World(answer, delivery=Delivery(retry=5, backoff_delay=10))
    for each in ("a1", "b1", "a2", "b2"):
        world.send(each, each[0])
    await world.run()
    assert world.subscriber.ids == ["a1", "b1", "b2", "a1", "a1", "a2"]


async def test_per_partition_a_failing_event_holds_back_its_partition_and_no_other() -> None:
    failures = iter([503, 503])

    async def answer(request: Request) -> Response:
        return response(next(failures, 200) if id_of(request) == "a" else 200)

    delivery = Delivery(retry=5, backoff_delay=10)
    world = World(answer, partitions=2, delivery=delivery, order=Order.PARTITION)
    for partition, each in [(0, "a"), (0, "b"), (1, "c"), (0, "d"), (1, "e")]:
        world.store_at(partition, each, key=each)
    await world.run()
    assert world.subscriber.ids == ["a", "c", "e", "a", "a", "b", "d"]
    assert world.subscriber.most_under_way == 2


async def test_unordered_nothing_holds_back_anything() -> None:
    async def answer(request: Request) -> Response:
        await asyncio.sleep(5.0 if id_of(request) == "1" else 0.0)
        return response()

    world = World(answer, order=Order.NONE)
    for each in "123":
        world.send(each, "k")
    await world.run()
    assert world.subscriber.answered == ["2", "3", "1"]
    assert world.committed == {0: 3}


async def test_a_key_has_one_attempt_under_way_at_a_time() -> None:
    world = slow({"k": 0.1})
    for number in range(20):
        world.send(str(number), "k")
    await world.run()
    assert world.subscriber.ids == [str(number) for number in range(20)]
    assert world.subscriber.most_under_way == 1


@pytest.mark.conformance("KN-DP-05")
async def test_attempts_under_way_never_outnumber_the_limit() -> None:
    async def answer(request: Request) -> Response:
        await asyncio.sleep(1)
        return response()

    world = World(answer, max_in_flight=7)
    for number in range(100):
        world.send(str(number), f"key-{number}")
    progress = await world.run()
    assert world.subscriber.most_under_way == 7
    assert progress.delivered == 100


async def test_a_wait_for_a_retry_holds_no_place_among_the_attempts() -> None:
    """DSP: a hundred failing keys don't stop the hundred and first."""

    async def answer(request: Request) -> Response:
        return response(503 if id_of(request).startswith("bad") else 200)

    world = World(answer, max_in_flight=2, delivery=Delivery(retry=1, backoff_delay=100))
    for number in range(10):
        world.send(f"bad-{number}", f"bad-{number}")
    world.send("good", "good")
    running = world.begin(world.drain())
    await until(lambda: "good" in world.subscriber.answered, within=5)
    await running


async def test_progress_tells_what_is_under_way() -> None:
    world = slow({"slow": 5.0})
    world.send("1", "slow")
    world.send("2", "quick")
    drain = world.drain()
    running = world.begin(drain)
    await until(lambda: drain.progress().delivered == 1)
    progress = drain.progress()
    assert (progress.read, progress.unsettled, progress.partitions) == (2, 1, (0,))
    assert progress.ended is None
    last = await running
    assert (last.unsettled, last.partitions) == (0, ())


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


async def test_a_drain_waits_longer_for_partitions_than_a_dead_member_keeps_them() -> None:
    """A killed dispatcher's session lasts 10 s."""
    world = World()

    class Dead:
        def assigned(self, partitions: Mapping[int, OffsetAndMetadata | None]) -> None: ...
        async def revoked(self, partitions: Sequence[int]) -> Commits:
            return {}

        def lost(self, partitions: Sequence[int]) -> None: ...

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
    assert 10 <= asyncio.get_running_loop().time() < 10 + REVOKE_TIMEOUT + 0.5
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
    world = slow({"k": REVOKE_TIMEOUT - 0.5})
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
    assert asyncio.get_running_loop().time() - stopped_at < REVOKE_TIMEOUT + 0.5
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
