"""The reserve: a few slow attempts silence nobody. On fake time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import pairwise

import pytest
from support.drains import Request, World, id_of, key_of, response, until

from knafka.core.contract import Order
from knafka.dispatcher.engine.reserve import MEMORY_SECONDS, RESERVE_CHECK_INTERVAL, Reserve
from knafka.observability import Histogram
from knafka.ports.subscriber import Response

SLOW = 5.0


def took(**counts: int) -> Histogram:
    """`quick` attempts of 2 ms, `slow` ones of 5 s."""
    histogram = Histogram()
    for _ in range(counts.get("quick", 0)):
        histogram.observe(0.002)
    for _ in range(counts.get("slow", 0)):
        histogram.observe(SLOW)
    return histogram


def test_while_places_are_free_or_held_by_quick_attempts_nothing_waits() -> None:
    reserve = Reserve(took(quick=1000))
    assert reserve.delay_before_attempt([100.0] * 79, 100, 101.0) == 0.0
    assert reserve.may_begin_unchecked(0.0, 101.0 + RESERVE_CHECK_INTERVAL / 2)
    assert not reserve.may_begin_unchecked(0.0, 101.0 + 2 * RESERVE_CHECK_INTERVAL)
    assert reserve.delay_before_attempt([100.99] * 99, 100, 101.0) == 0.0
    assert reserve.may_begin_unchecked(100.99, 101.0)


def test_the_last_places_are_spent_slower_the_fewer_they_are_and_the_longer_it_takes() -> None:
    def begun(held: int, age: float) -> int:
        """Attempts that begin within a second."""
        reserve = Reserve(took(quick=9_900, slow=100))
        count = 0
        for tick in range(1000):
            now = 100.0 + tick / 1000
            while reserve.delay_before_attempt([100.0 - age] * held, 100, now) == 0.0:
                count += 1
        return count

    assert begun(80, 0.5) > begun(90, 0.5) > begun(95, 0.5) > begun(95, 2.0) >= 10


def test_where_all_are_slow_or_places_are_few_nothing_is_reserved() -> None:
    for histogram, places in ((took(slow=100), 100), (took(), 100), (took(quick=1000), 9)):
        reserve = Reserve(histogram)
        for _ in range(10):
            assert reserve.delay_before_attempt([0.0] * (places - 1), places, 60.0) == 0.0


def test_what_is_usual_is_forgotten() -> None:
    histogram = took(quick=1000)
    reserve = Reserve(histogram)
    now = 1000.0
    for _ in range(4):
        now += MEMORY_SECONDS + 1
        reserve.delay_before_attempt([now - 5] * 90, 100, now)
        for _ in range(100):
            histogram.observe(SLOW)
    assert [reserve.delay_before_attempt([now - 5] * 90, 100, now) for _ in range(3)] == [0.0] * 3


@pytest.mark.slow
@pytest.mark.looptime
async def test_one_slow_attempt_of_a_hundred_silences_nobody_for_half_a_second() -> None:
    """36.6: before, the others heard nothing for more than 2 s."""
    times: list[float] = []
    seen: dict[str, list[int]] = defaultdict(list)
    loop = asyncio.get_running_loop()

    async def answer(request: Request) -> Response:
        number = int(id_of(request))
        is_slow = (number * 7919) % 10_007 < 100
        await asyncio.sleep(SLOW if is_slow else 0.005)
        seen[key_of(request)].append(number)
        times.append(loop.time())
        return response()

    world = World(answer, order=Order.KEY, max_in_flight=100)
    count, backlog = 12_000, 11_000
    for number in range(count):
        world.send(str(number), key=f"k{number % 3_001}")
    drain = world.drain()
    running = world.begin(drain)
    await until(lambda: len(times) >= backlog)
    drain.stop(10.0)
    await running
    gaps = [after - before for before, after in pairwise(times[:backlog])]
    assert max(gaps) <= 0.5
    assert times[backlog - 1] - times[0] < 1.2 * backlog * 0.01 * SLOW / 100, "what 100 places take"
    assert all(numbers == sorted(numbers) for numbers in seen.values())
