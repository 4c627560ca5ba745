"""A drain among others: partitions that come and go, and how much it holds of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from support.drains import (
    TOPIC,
    Answer,
    NoTopics,
    Request,
    ScriptedSubscriber,
    World,
    accept,
    id_of,
    key_of,
    response,
    until,
)
from support.memory.log import MemoryReader

from knafka.core.contract import Delivery, Order
from knafka.core.drain import Ended
from knafka.dispatcher.engine import clients, intake, workers
from knafka.dispatcher.engine import drain as drains
from knafka.dispatcher.engine.drain import DRAIN_REVOKE_TIMEOUT
from knafka.ports.log import Record
from knafka.ports.subscriber import Response

pytestmark = pytest.mark.looptime

FAR = 10_000.0


class ByTens(MemoryReader):
    """Gives ten records at once at most."""

    async def read(self, limit: int, timeout: float) -> Sequence[Record]:
        return await super().read(min(limit, 10), timeout)


class FreePauses(ByTens):
    """As a shared dispatcher reads."""

    pause_is_free = True


def once_set(event: asyncio.Event) -> Answer:
    """Answers nothing until then."""

    async def answer(request: Request) -> Response:
        await event.wait()
        return response()

    return answer


def slow(seconds: dict[str, float]) -> Answer:
    async def answer(request: Request) -> Response:
        await asyncio.sleep(seconds.get(id_of(request), 0.0))
        return response()

    return answer


async def joined_by_another(
    world: World, ready: str
) -> tuple[asyncio.Task[object], ScriptedSubscriber]:
    """Begin a drain, wait until `ready` was posted once, and let a second one take partition 1.

    Both get a subscriber of their own; returned are the first's task and the second's subscriber.
    """
    first = world.drain()
    running = world.begin(first, idle=30)
    await until(lambda: ready in world.subscriber.ids)
    other = ScriptedSubscriber(accept)
    second = world.begin(world.drain(other), idle=30)

    async def both() -> object:
        return await asyncio.gather(running, second)

    return asyncio.create_task(both()), other


async def test_a_partition_that_goes_waits_for_the_attempt_under_way_and_commits_it() -> None:
    world = World(slow({"1": 2.0}), partitions=2)
    world.store_at(1, "1")
    world.store_at(1, "2")
    running, other = await joined_by_another(world, "1")
    await until(lambda: other.answered)
    assert asyncio.get_running_loop().time() >= 2.0
    assert (world.subscriber.ids, other.ids) == (["1"], ["2"])
    await running
    assert world.committed[1] == 2


async def test_a_partition_that_goes_does_not_wait_longer_than_the_bound() -> None:
    """What is still under way stays uncommitted: its new owner delivers it again."""
    world = World(slow({"1": 20.0}), partitions=2)
    world.store_at(1, "1")
    world.store_at(1, "2")
    running, other = await joined_by_another(world, "1")
    await until(lambda: len(other.answered) == 2)
    assert DRAIN_REVOKE_TIMEOUT <= asyncio.get_running_loop().time() < DRAIN_REVOKE_TIMEOUT + 2
    assert other.ids == ["1", "2"]
    await until(lambda: world.subscriber.answered == ["1"])
    await running
    assert world.subscriber.ids == ["1"], "the late success let nothing follow"
    assert world.committed[1] == 2


async def test_a_backoff_goes_with_its_partition_and_ends_when_it_is_due() -> None:
    """Two owners of one event would break the order of its key; retries are counted on."""

    async def fail(request: Request) -> Response:
        return response(503)

    world = World(fail, partitions=2, delivery=Delivery(retry=2, backoff_delay=10))
    world.store_at(1, "1")
    running, other = await joined_by_another(world, "1")
    await until(lambda: other.answered)
    assert 10 <= asyncio.get_running_loop().time() < 11
    await running
    assert (world.subscriber.ids, other.ids) == (["1"], ["1"])


async def test_a_partition_that_stays_is_not_disturbed() -> None:
    world = World(slow({"1": 8.0}), partitions=2)
    world.store_at(0, "1")
    world.store_at(0, "2")
    running, other = await joined_by_another(world, "1")
    await running
    assert (world.subscriber.ids, other.ids) == (["1", "2"], [])
    assert world.committed[0] == 2


async def test_a_partition_that_comes_back_begins_where_it_was_committed() -> None:
    world = World(slow({"1": 20.0}), partitions=2)
    world.store_at(1, "1")
    world.store_at(1, "2")
    drain = world.drain()
    running = world.begin(drain, idle=30)
    await until(lambda: "1" in world.subscriber.ids)

    other = world.drain(ScriptedSubscriber(slow({"1": FAR})))
    visiting = world.begin(other, idle=30)
    await until(lambda: other.progress().partitions == (1,))
    world.subscriber.answer = accept
    other.stop()
    await visiting
    assert (await running).ended is Ended.IDLE
    assert world.subscriber.ids == ["1", "1", "2"]
    assert world.committed[1] == 2


async def test_a_lost_partition_commits_nothing_and_lets_nothing_follow() -> None:
    """Its next owner may have committed more already."""
    world = World(slow({"1": 5.0}))
    world.send("1", "k")
    world.send("2", "k")
    drain = world.drain()
    running = world.begin(drain)
    await until(lambda: world.subscriber.posts)
    drain.on_lost([0])
    assert (await running).ended is Ended.IDLE
    assert world.subscriber.answered == ["1"], "what is under way is not torn"
    assert world.committed == {}
    assert world.subscriber.ids == ["1"]


async def test_records_that_arrive_after_their_partition_went_are_not_taken() -> None:
    world = World()

    class Late(MemoryReader):
        async def read(self, limit: int, timeout: float) -> Sequence[Record]:
            records = await super().read(limit, timeout)
            if records:
                drain.on_lost([0])
            return records

    world.reads_with(Late)
    world.send("1")
    drain = world.drain()
    progress = await world.begin(drain)
    assert (progress.read, world.subscriber.ids) == (0, [])
    assert world.committed == {}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for 20 records, read by fives."""
    for module in (drains, intake):
        monkeypatch.setattr(module, "READ_LIMIT", 5)
    monkeypatch.setattr(intake, "MAX_UNSETTLED", 20)


@pytest.mark.usefixtures("small")
async def test_a_partition_at_its_share_is_read_again_when_it_has_caught_up() -> None:
    """Memory is bounded, and a partition in which one key hangs does not stop the other."""
    hanging = asyncio.Event()

    async def answer(request: Request) -> Response:
        if key_of(request) == "hangs":
            await hanging.wait()
        return response()

    world = World(answer, partitions=2)
    for number in range(100):
        world.store_at(0, f"hangs-{number}", "hangs")
        world.store_at(1, f"goes-{number}", "goes")
    drain = world.drain()
    running = world.begin(drain)
    most = 0

    def done() -> bool:
        nonlocal most
        most = max(most, drain.progress().unsettled)
        return sum(each.startswith("goes") for each in world.subscriber.answered) == 100

    await until(done)
    assert most <= 20 + 5
    await asyncio.sleep(30)
    assert drain.progress().unsettled <= 10 + 5
    hanging.set()
    progress = await running
    assert progress.delivered == 200
    first = [each for each in world.subscriber.ids if each.startswith("hangs")]
    assert first == [f"hangs-{number}" for number in range(100)]
    assert world.committed == {0: 100, 1: 100}


@pytest.mark.parametrize(("neighbours", "held"), [(False, 40), (True, 10)])
async def test_a_drain_with_neighbours_holds_less_of_a_partition_in_its_order(
    monkeypatch: pytest.MonkeyPatch, *, neighbours: bool, held: int
) -> None:
    """Nothing may pass there; what a backlog holds costs its neighbours time."""
    for module in (drains, intake):
        monkeypatch.setattr(module, "READ_LIMIT", 40)
    monkeypatch.setattr(drains, "SHARED_LOOP_LIMIT", 10)
    hanging = asyncio.Event()

    world = World(once_set(hanging), order=Order.PARTITION)
    for number in range(200):
        world.send(str(number))
    world.reads_with(ByTens)
    drain = world.drain(attempts_per_turn=8 if neighbours else None)
    running = world.begin(drain)
    await asyncio.sleep(30)
    assert drain.progress().unsettled == held
    hanging.set()
    assert (await running).delivered == 200
    assert world.subscriber.ids == [str(number) for number in range(200)]


async def test_a_slow_partition_holds_up_no_other_where_a_pause_is_free() -> None:
    """Each time it is full the others would wait until it has room."""

    async def answer(request: Request) -> Response:
        await asyncio.sleep(0.05 if key_of(request) == "slow" else 0.0005)
        return response()

    world = World(answer, partitions=2, order=Order.PARTITION)
    for number in range(500):
        world.store_at(0, f"slow-{number}", "slow")
    for number in range(2000):
        world.store_at(1, f"fast-{number}", "fast")
    world.reads_with(FreePauses)
    drain = world.drain(attempts_per_turn=8)
    running = world.begin(drain)
    await until(lambda: world.subscriber.answered[-1:] == ["fast-1999"])
    assert asyncio.get_running_loop().time() < 2.0
    await until(lambda: len(world.subscriber.answered) == 2500)
    assert asyncio.get_running_loop().time() < 500 * 0.05 + 1.0
    assert (await running).delivered == 2500


async def test_a_full_partition_goes_on_as_soon_as_it_has_room_where_a_pause_is_free() -> None:
    """Not with the end of a read that waits for other partitions."""

    async def answer(request: Request) -> Response:
        await asyncio.sleep(0.001)
        return response()

    world = World(answer, partitions=2, order=Order.PARTITION)
    for number in range(2000):
        world.store_at(0, str(number))
    world.reads_with(FreePauses)
    running = world.begin(world.drain(attempts_per_turn=8))
    await until(lambda: len(world.subscriber.answered) == 2000)
    assert asyncio.get_running_loop().time() < 2000 * 0.001 + 0.3
    await running
    assert world.subscriber.ids == [str(number) for number in range(2000)]


async def test_no_more_is_read_while_enough_events_could_go_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Held records cost memory, and looking after them time; only those that wait pay for it."""
    for module in (drains, intake):
        monkeypatch.setattr(module, "READ_LIMIT", 5)
    monkeypatch.setattr(workers, "MAX_READY_FOR_READING", 10)

    async def answer(request: Request) -> Response:
        await asyncio.sleep(0.01)
        return response()

    world = World(answer, max_in_flight=2)
    for number in range(300):
        world.send(str(number))
    drain = world.drain()
    running = world.begin(drain)
    most = 0
    while len(world.subscriber.answered) < 300:
        most = max(most, drain.progress().unsettled)
        await asyncio.sleep(0.005)
    assert 10 < most <= 10 + 5 + 2
    assert (await running).delivered == 300


async def test_a_subscriber_that_hangs_does_not_end_the_reading_that_keeps_it_in_its_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (drains, intake):
        monkeypatch.setattr(module, "READ_LIMIT", 5)
    monkeypatch.setattr(workers, "MAX_READY_FOR_READING", 10)

    async def hang(request: Request) -> Response:
        await asyncio.sleep(FAR)
        return response()

    world = World(hang, max_in_flight=2)
    for number in range(100):
        world.send(str(number))
    drain = world.drain()
    running = world.begin(drain, stop_after=30)
    await asyncio.sleep(10 * drains.ROOM_TIMEOUT)
    assert drain.progress().unsettled >= 50
    assert (await running).ended is Ended.STOPPED


async def test_in_partition_order_little_is_read_ahead_since_nothing_may_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (drains, intake):
        monkeypatch.setattr(module, "READ_LIMIT", 5)
    world = World(slow({"0": FAR}), order=Order.PARTITION)
    for number in range(100):
        world.send(str(number))
    drain = world.drain()
    running = world.begin(drain, stop_after=30)
    await asyncio.sleep(10)
    assert 5 <= drain.progress().unsettled <= 5 + 5
    await running


async def test_bytes_are_bounded_as_well_as_records(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (drains, intake):
        monkeypatch.setattr(module, "READ_LIMIT", 1)
    monkeypatch.setattr(clients, "MAX_UNSETTLED_BYTES", 10_000)
    hanging = asyncio.Event()

    world = World(once_set(hanging))
    for number in range(20):
        world.send(str(number), str(number), b"x" * 2000)
    drain = world.drain()
    running = world.begin(drain)
    await asyncio.sleep(30)
    assert 4 <= drain.progress().unsettled <= 6
    hanging.set()
    assert (await running).delivered == 20


@pytest.mark.parametrize("stuck", [1, 3])
async def test_a_partition_whose_large_events_wait_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, stuck: int
) -> None:
    monkeypatch.setattr(clients, "MAX_UNSETTLED_BYTES", 100_000)

    async def answer(request: Request) -> Response:
        if key_of(request) == "stuck":
            await asyncio.sleep(FAR)
        return response()

    world = World(answer, partitions=stuck + 1, order=Order.PARTITION)
    world.reads_with(ByTens)
    for partition in range(stuck):
        for number in range(100):
            world.store_at(partition, f"stuck-{number}", "stuck", b"x" * 2000)
    drain = world.drain()
    running = world.begin(drain)
    await asyncio.sleep(60)
    quick_ids = [str(number) for number in range(100)]
    for id_ in quick_ids:
        world.store_at(stuck, id_, "quick", b"x" * 2000)
    await until(lambda: world.subscriber.answered == quick_ids)
    assert sum(partition.held_bytes for partition in drain.partitions.values()) < 200_000
    drain.stop()
    await running


async def test_bytes_that_can_not_be_dead_lettered_are_bounded_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (drains, intake):
        monkeypatch.setattr(module, "READ_LIMIT", 1)
    monkeypatch.setattr(clients, "MAX_UNSETTLED_BYTES", 10_000)
    world = World()
    for _ in range(20):
        world.log.store(TOPIC, None, b"x" * 2000, [("no", b"event")])
    world.topics = NoTopics()
    drain = world.drain()
    running = world.begin(drain)
    await asyncio.sleep(30)
    assert 4 <= drain.progress().unsettled <= 6
    world.log.create("dead-letters")
    assert (await running).dead_lettered == 20


@pytest.mark.usefixtures("small")
async def test_a_drain_that_waits_for_room_can_be_stopped() -> None:
    world = World(slow({"0": FAR}))
    for number in range(100):
        world.send(str(number), "k")
    drain = world.drain()
    running = world.begin(drain)
    await until(lambda: drain.progress().unsettled >= 20)
    drain.stop()
    before = asyncio.get_running_loop().time()
    assert (await running).ended is Ended.STOPPED
    assert asyncio.get_running_loop().time() - before < DRAIN_REVOKE_TIMEOUT + 0.5


@pytest.mark.usefixtures("small")
async def test_a_paused_partition_that_goes_and_comes_back_is_read_again() -> None:
    world = World(slow({"0": FAR}), partitions=2)
    for number in range(50):
        world.store_at(1, str(number))
    drain = world.drain()
    running = world.begin(drain, idle=30)
    await until(lambda: drain.progress().unsettled >= 10)
    await asyncio.sleep(5)
    other = world.drain(ScriptedSubscriber(slow({"0": FAR})))
    visiting = world.begin(other, idle=30)
    await until(lambda: other.progress().partitions == (1,))
    world.subscriber.answer = accept
    other.stop()
    await visiting
    progress = await running
    assert progress.delivered == 50
    assert world.committed[1] == 50
