"""How much one Egress of a shard does in one turn of the event loop."""

from __future__ import annotations

import asyncio

import pytest

from knafka.dispatcher.engine.turn_limit import TurnLimit

pytestmark = pytest.mark.looptime


async def turns_of(pace: TurnLimit, attempts: int) -> list[int]:
    """The turn of the event loop in which each attempt began."""
    loop, turn, found = asyncio.get_running_loop(), 0, list[int]()

    def count() -> None:
        nonlocal turn
        turn += 1
        if len(found) < attempts:
            loop.call_soon(count)

    async def attempt() -> None:
        await pace.wait_for_turn()
        found.append(turn)

    loop.call_soon(count)
    await asyncio.gather(*(attempt() for _ in range(attempts)))
    return found


async def test_no_more_attempts_begin_in_one_turn_than_may() -> None:
    turns = await turns_of(TurnLimit(8), 100)
    assert len(turns) == 100
    assert max(map(turns.count, turns)) <= 8
    assert max(turns) <= 100 // 8 + 4, "every turn is used"


async def test_a_few_attempts_wait_for_nobody() -> None:
    pace = TurnLimit(8)
    for _ in range(8):
        assert (await turns_of(pace, 1)) == [1]


async def test_an_attempt_that_is_given_up_takes_no_other_ones_turn() -> None:
    pace = TurnLimit(1)
    attempts = [asyncio.create_task(pace.wait_for_turn()) for _ in range(4)]
    await asyncio.sleep(0)
    attempts[1].cancel()
    async with asyncio.timeout(1):
        await asyncio.gather(*attempts, return_exceptions=True)
    assert [each.cancelled() for each in attempts] == [False, True, False, False]


async def test_nothing_goes_on_by_itself_once_all_have_begun() -> None:
    """An event loop that turns for nothing is a busy core."""
    pace = TurnLimit(2)
    await turns_of(pace, 5)
    await asyncio.sleep(1)
    assert not asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
