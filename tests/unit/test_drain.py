"""A drain: settling, order and what it commits, on a log in memory and fake time."""

from __future__ import annotations

import asyncio

import pytest
from support.drains import FAR, TOPIC, Request, World, id_of, response, slow, until

from knafka.core.contract import Delivery, Order
from knafka.core.drain import COMMIT_INTERVAL, Ended
from knafka.core.filters.declared_filters import Exact, Not
from knafka.ports.subscriber import Response

pytestmark = pytest.mark.looptime


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


@pytest.mark.parametrize("located", [True, False])
async def test_what_is_delivered_says_where_its_record_lies(located: bool) -> None:
    """As upstream's Kafka Broker and channel, unless it is turned off. No filter sees it."""
    world = World(
        record_position=located,
        filters=(Not.model_validate({"not": {"exact": {"knativekafkaoffset": "0"}}}),),
    )
    world.send("1")
    world.send("2")
    await world.run()
    requests = [post.request for post in world.subscriber.posts]
    offsets = [request.header(b"ce-knativekafkaoffset") for request in requests]
    partitions = {request.header(b"ce-knativekafkapartition") for request in requests}
    assert offsets == ([b"0", b"1"] if located else [None, None])
    assert partitions == {b"0" if located else None}
