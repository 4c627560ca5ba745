"""The loop watch: what fails a test, and what doesn't."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import loop_watch
from support.loop_watch import LIMIT, LoopWatch

pytestmark = pytest.mark.blocks_the_loop

LONG = 3 * LIMIT


def compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def blocked_by(function: Callable[[], None]) -> list[str]:
    async def call() -> None:
        function()

    watch = LoopWatch()
    with watch.watching():
        asyncio.run(call())
    return watch.blocked


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """This file counts as one of our packages."""
    monkeypatch.setattr(loop_watch, "_OURS", (f"{Path(__file__).parent}/",))


@pytest.mark.parametrize(
    ("busy", "why"),
    [(compute, "0.3"), (time.sleep, "it slept")],
    ids=["computes", "sleeps"],
)
@pytest.mark.usefixtures("ours")
def test_a_callback_that_takes_long_is_told_with_its_stack(
    busy: Callable[[float], None], why: str
) -> None:
    (told,) = blocked_by(lambda: busy(LONG))
    assert told.startswith(why)
    assert "test_loop_watch.py" in told


@pytest.mark.usefixtures("ours")
def test_short_callbacks_that_take_long_together_are_fine() -> None:
    async def one_after_another() -> None:
        for _ in range(5):
            compute(LIMIT / 4)
            await asyncio.sleep(0)

    watch = LoopWatch()
    with watch.watching():
        asyncio.run(one_after_another())
    assert watch.blocked == []


def test_what_a_test_does_itself_is_its_own_affair() -> None:
    assert blocked_by(lambda: time.sleep(LONG)) == []


@pytest.mark.usefixtures("ours")
def test_waiting_on_the_loop_is_no_blocking() -> None:
    watch = LoopWatch()
    with watch.watching():
        asyncio.run(asyncio.sleep(LONG))
    assert watch.blocked == []
