"""Which `auto` Triggers move, when, and how many at a time: tables, and an operator in memory."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest
from support.controlled import controller_of
from support.memory.log import MemoryWriter
from support.operator_world import OperatorWorld, running_operator
from support.sharing import (
    DISPATCHER,
    GROUP,
    MIN_SCALE,
    ORDERS,
    SERVICE,
    SHOP,
    contract,
    declare,
    dispatcher,
    is_ready,
)

from knafka.core import names
from knafka.core.drain import DrainProgress
from knafka.ports.log import OffsetAndMetadata
from knafka_operator.dispatchers import move_decisions as moves
from knafka_operator.dispatchers.activity import QUIET_SECONDS, Activity, ActivityState, Sample
from knafka_operator.dispatchers.move_decisions import MAX_MOVES, History, Move
from knafka_operator.kafka import shards
from knafka_operator.model.identity import Identity
from knafka_operator.model.isolation import Isolation
from knafka_operator.model.resources import ISOLATION, PAUSED_ANNOTATION
from knafka_operator.scale.decide import Scale, ScalingStatus
from knafka_operator.wiring import MOVE_INTERVAL

AUTO = {ISOLATION: "auto"}
OWN, SHARED = Isolation.OWN, Isolation.SHARED
BROKER, OTHER = Identity(SHOP, "default"), Identity(SHOP, "other")
THRESHOLD = 100


@pytest.mark.parametrize(
    ("needed", "delivered", "drains_always", "has_record", "has_own", "is_"),
    [
        pytest.param(None, None, False, False, False, SHARED, id="new"),
        pytest.param(None, None, True, False, False, OWN, id="new, wants dispatchers always"),
        pytest.param(None, SHARED, True, True, False, OWN, id="wants dispatchers always"),
        pytest.param(SHARED, SHARED, True, True, False, OWN, id="quiet, wants dispatchers always"),
        pytest.param(None, OWN, False, False, True, OWN, id="was declared own"),
        pytest.param(None, SHARED, False, True, False, SHARED, id="was declared shared"),
        pytest.param(OWN, SHARED, False, True, False, OWN, id="busy"),
        pytest.param(OWN, None, False, False, True, OWN, id="busy, on its way"),
        pytest.param(SHARED, OWN, False, False, True, SHARED, id="quiet"),
        pytest.param(None, None, False, True, False, SHARED, id="at a start, it has a record"),
        pytest.param(None, None, False, False, True, OWN, id="at a start, it has a Service"),
        pytest.param(None, None, False, True, True, SHARED, id="at a start, amid a move"),
    ],
)  # fmt: skip
def test_an_auto_trigger_is_what_it_needs_else_what_it_was_else_shared(
    needed: Isolation | None,
    delivered: Isolation | None,
    drains_always: bool,
    has_record: bool,
    has_own: bool,
    is_: Isolation,
) -> None:
    found = shards.automatic_isolation(
        needed, delivered, drains_always=drains_always, has_record=has_record, has_own=has_own
    )
    assert found is is_


@pytest.mark.parametrize(
    ("lag", "error", "congestion", "counts"),
    [
        (5000, None, None, 5000),
        (None, None, None, None),
        (5000, "no dispatcher answers", None, None),
        (5000, None, "503", None),
    ],
)
def test_a_lag_that_no_dispatcher_would_work_off_does_not_count(
    lag: int | None, error: str | None, congestion: str | None, counts: int | None
) -> None:
    progress = DrainProgress(delivered=7, congestion=congestion)
    status = ScalingStatus(lag, 1, Scale(1, ""), progress, error)
    assert moves.sample_of(status, 3.0) == Sample(3.0, 7, counts)


def history(activity: Activity, lags: Mapping[float, int], rate: float = 0.0) -> History:
    found = History(ActivityState(activity, 0.0))
    for time, lag in lags.items():
        found.add(Sample(time, int(time * rate), lag))
    return found


def every(seconds: float, until: float, lag: int) -> dict[float, int]:
    return {number * seconds: lag for number in range(int(until / seconds) + 1)}


@pytest.mark.parametrize(
    ("activity", "lags", "rate", "to", "why"),
    [
        (Activity.QUIET, every(5, 25, 12_000), 0, None, ""),
        (
            *(Activity.QUIET, every(5, 30, 12_000), 0, OWN),
            "12000 events waiting, more than 1000 for 30 s",
        ),
        (Activity.QUIET, every(5, 30, 0), 2000, OWN, "more than 1000 events a second for 30 s"),
        (Activity.QUIET, every(5, 300, 0), 5, None, ""),
        (Activity.BUSY, every(5, 595, 0), 0, None, ""),
        (Activity.BUSY, every(5, 600, 0), 0, SHARED, "quiet for 600 s"),
        (Activity.BUSY, every(5, 600, 0), 100, None, ""),
    ],
)
def test_a_move_says_where_to_and_why(
    activity: Activity, lags: dict[float, int], rate: float, to: Isolation | None, why: str
) -> None:
    found = moves.desired_move(ORDERS, BROKER, history(activity, lags, rate), THRESHOLD)
    assert (found.to if found else None, found.why if found else "") == (to, why)


def move(name: str, load: float, broker: Identity = BROKER, to: Isolation = OWN) -> Move:
    return Move(Identity(SHOP, name), broker, to, load, "")


def chosen(wanted: list[Move], made: list[Move]) -> list[str]:
    return [each.trigger.name for each in moves.choose_moves(wanted, made)]


MANY = [move(f"t{number}", number) for number in range(8)]


@pytest.mark.parametrize(
    ("wanted", "made", "names_"),
    [
        pytest.param([], [], [], id="none"),
        pytest.param(MANY, [], ["t7", "t6", "t5", "t4", "t3"], id="the busiest first"),
        pytest.param(MANY, MANY[:3], ["t7", "t6"], id="as many as are left"),
        pytest.param(MANY, MANY[:5], [], id="enough for now"),
        pytest.param([*MANY, move("a", 0, OTHER)], MANY[:5], ["a"], id="each Broker has its own"),
        pytest.param(MANY[:1], [move("in", 0, to=SHARED)] * MAX_MOVES, ["t0"], id="each direction"),
    ],
)  # fmt: skip
def test_a_few_move_at_a_time(wanted: list[Move], made: list[Move], names_: list[str]) -> None:
    assert chosen(wanted, made) == names_


@pytest.mark.parametrize(
    ("activity", "samples", "most"), [(Activity.QUIET, 7, 3000), (Activity.BUSY, 121, 25_000)]
)
def test_a_history_is_bounded(activity: Activity, samples: int, most: int) -> None:
    """In samples, and in bytes."""
    tracemalloc.start()
    try:
        found = History(ActivityState(activity, 0.0))
        for number in range(int(2 * QUIET_SECONDS / MOVE_INTERVAL)):
            found.add(Sample(number * MOVE_INTERVAL, 1000 + number, 2000 + number))
        taken = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    # Not what threads and finalizers of tests before this one allocate meanwhile.
    ours = [tracemalloc.Filter(True, each) for each in (__file__, moves.__file__)]
    assert len(found.samples) == samples
    assert sum(each.size for each in taken.filter_traces(ours).traces) < most


@asynccontextmanager
async def running() -> AsyncIterator[OperatorWorld]:
    """With a Broker, and a queue that is worked off."""
    async with running_operator() as world:
        world.declare_broker(SHOP)
        await world.reconcile_broker(SHOP)
        task = asyncio.create_task(world.operator.queue.run(controller_of(world).reconcile))
        try:
            yield world
        finally:
            task.cancel()
            await asyncio.wait({task})


def flood(world: OperatorWorld, events: int = 1001) -> None:
    for _ in range(events):
        topic = names.broker_topic(SHOP, "default")
        MemoryWriter(world.log).append(topic, None, b"{}", [], lambda _: None)


def settle(world: OperatorWorld) -> None:
    topic = names.broker_topic(SHOP, "default")
    ends = enumerate(world.log.topics[topic])
    committed = world.log.group(GROUP).committed
    committed.update({(topic, n): OffsetAndMetadata(len(records)) for n, records in ends})


def is_own(world: OperatorWorld, name: str = "orders") -> bool:
    watched = world.operator.triggers.watched.get(Identity(SHOP, name))
    return watched is not None and watched.isolation is OWN


async def until(holds: Callable[[], bool], within: float = 100.0) -> float:
    """Seconds until it held."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(within):
        while not holds():  # noqa: ASYNC110  # what is waited for tells nobody
            await asyncio.sleep(0.1)
    return loop.time() - began


@pytest.mark.slow
@pytest.mark.looptime
async def test_a_busy_trigger_moves_out_by_itself_and_back_when_it_is_quiet() -> None:
    async with running() as world:
        told: list[str] = []
        world.operator.moves.on_move = lambda document, message: told.append(message)
        status = await declare(world, AUTO)
        assert (is_ready(status), dispatcher(status)) == (True, SERVICE)
        flood(world)
        assert 30 <= await until(lambda: is_own(world)) < 50
        assert told == [
            "It moves to a dispatcher of its own: 1001 events waiting, more than 1000 for 30 s"
        ]
        await until(lambda: DISPATCHER in world.cluster.services())
        assert GROUP not in contract(world)
        status = world.document("Trigger", SHOP, "orders")["status"]
        assert dispatcher(status) == DISPATCHER
        settle(world)
        assert 600 <= await until(lambda: not is_own(world), 700) < 650
        assert told[1:] == ["It moves to a shared dispatcher: quiet for 600 s"]
        await until(lambda: DISPATCHER not in world.cluster.services())
        assert GROUP in contract(world)


@pytest.mark.looptime
@pytest.mark.parametrize("declared", ["own", "shared"])
async def test_one_that_declares_an_isolation_stays_and_costs_no_memory(declared: str) -> None:
    async with running() as world:
        await declare(world, {ISOLATION: declared})
        flood(world)
        await asyncio.sleep(100)
        assert is_own(world) is (declared == "own")
        assert not world.operator.moves._histories


@pytest.mark.looptime
async def test_a_backlog_of_all_moves_a_few_a_minute() -> None:
    """An outage leaves one to each."""
    async with running() as world:
        every = [f"t{number}" for number in range(8)]
        for each in every:
            await declare(world, AUTO, each)
        flood(world)

        def count() -> int:
            return sum(is_own(world, each) for each in every)

        await until(lambda: count() == MAX_MOVES)
        assert await until(lambda: count() > MAX_MOVES) > 45
        await until(lambda: count() == len(every))


@pytest.mark.slow
@pytest.mark.looptime
async def test_one_that_wants_dispatchers_always_has_its_own_from_the_start() -> None:
    async with running() as world:
        status = await declare(world, {**AUTO, MIN_SCALE: "1"})
        assert dispatcher(status) == DISPATCHER
        await asyncio.sleep(2 * QUIET_SECONDS)
        assert is_own(world)
        assert dispatcher(await declare(world, AUTO)) == DISPATCHER


@pytest.mark.looptime
async def test_a_paused_one_stays_where_it_was() -> None:
    async with running() as world:
        await declare(world, AUTO)
        flood(world)
        await until(lambda: is_own(world))
        await declare(world, {**AUTO, PAUSED_ANNOTATION: "true"})
        await asyncio.sleep(2 * QUIET_SECONDS)
        assert not world.operator.moves._histories
        assert dispatcher(await declare(world, AUTO)) == DISPATCHER


@pytest.mark.looptime
async def test_while_a_move_cannot_be_made_its_shard_delivers() -> None:
    async with running() as world:
        await declare(world, AUTO)
        flood(world)
        world.cluster.unready.add(DISPATCHER)
        await until(lambda: DISPATCHER in world.cluster.services())
        await asyncio.sleep(60)
        assert not is_own(world)
        assert GROUP in contract(world)
        world.cluster.become_ready(SHOP, DISPATCHER)
        world.operator.queue.enqueue(("Trigger", *ORDERS))
        await until(lambda: is_own(world), 300)


@pytest.mark.looptime
@pytest.mark.parametrize("busy", [True, False])
async def test_after_a_start_of_the_operator_it_is_what_it_was(busy: bool) -> None:
    async with running() as world:
        await declare(world, AUTO)
        if busy:
            flood(world)
            await until(lambda: is_own(world))
            await until(lambda: GROUP not in contract(world))
        await world.restart()
        await world.operator.resume()
        assert is_own(world) is busy
        await world.reconcile_broker(SHOP)
        await world.reconcile_trigger(SHOP, "orders")
        assert is_own(world) is busy


@pytest.mark.looptime
async def test_a_trigger_that_is_deleted_leaves_no_history() -> None:
    async with running() as world:
        await declare(world, AUTO)
        await asyncio.sleep(20)
        assert world.operator.moves._histories
        await world.delete_trigger(SHOP, "orders")
        await asyncio.sleep(20)
        assert not world.operator.moves._histories
