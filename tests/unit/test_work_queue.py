"""Who is reconciled when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from knafka_operator.runtime.wakes import Key, Wakes

KEY: Key = ("Trigger", "shop", "orders")


class Looks:
    """Counts; gives the pauses it was told."""

    def __init__(self, *pauses: float) -> None:
        self._pauses = list(pauses)
        self.times: list[float] = []

    async def __call__(self) -> float:
        self.times.append(asyncio.get_running_loop().time())
        return self._pauses.pop(0) if self._pauses else 1000.0


@asynccontextmanager
async def _kept(wakes: Wakes, looks: Looks) -> AsyncIterator[None]:
    task = asyncio.create_task(wakes.keep(KEY, looks))
    await asyncio.sleep(0)
    yield
    task.cancel()
    await asyncio.wait({task})


@pytest.mark.looptime
async def test_it_is_looked_at_once_and_after_the_pause_it_asks_for() -> None:
    looks = Looks(30.0)
    async with _kept(Wakes(), looks):
        await asyncio.sleep(100)
    assert len(looks.times) == 2
    assert looks.times[1] - looks.times[0] == pytest.approx(30, abs=0.1)


@pytest.mark.looptime
async def test_who_is_woken_is_looked_at_soon() -> None:
    wakes, looks = Wakes(), Looks()
    async with _kept(wakes, looks):
        await asyncio.sleep(10)
        wakes.wake(KEY)
        await asyncio.sleep(1)
    assert len(looks.times) == 2


@pytest.mark.looptime
async def test_a_burst_of_changes_is_one_look() -> None:
    wakes, looks = Wakes(), Looks()
    async with _kept(wakes, looks):
        await asyncio.sleep(10)
        for _ in range(100):
            wakes.wake(KEY)
        await asyncio.sleep(1)
    assert len(looks.times) == 2


@pytest.mark.looptime
async def test_a_change_during_a_look_is_not_missed() -> None:
    wakes = Wakes()
    looks = Looks()

    async def look() -> float:
        if not looks.times:
            wakes.wake(KEY)
        return await looks()

    task = asyncio.create_task(wakes.keep(KEY, look))
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait({task})
    assert len(looks.times) == 2


def test_waking_what_is_not_kept_does_nothing() -> None:
    Wakes().wake(KEY)
