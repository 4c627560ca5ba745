"""The loop watch: what fails a test, and what doesn't."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support import loop_watch
from support.loop_watch import LIMIT, LoopWatch

pytestmark = [pytest.mark.slow, pytest.mark.blocks_the_loop]

LONG = 3 * LIMIT

SOURCE = """
import time

def compute(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass

def sleep(seconds):
    time.sleep(seconds)
"""

Busy = Callable[[float], None]


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Busy]:
    """Functions of a file that counts as one of our packages."""
    monkeypatch.setattr(loop_watch, "_OURS", (f"{tmp_path}/",))
    module: dict[str, Busy] = {}
    exec(compile(SOURCE, tmp_path / "ours.py", "exec"), module)
    return module


def blocked_by(main: Callable[[], Awaitable[None]]) -> list[str]:
    async def run() -> None:
        await main()

    watch = LoopWatch()
    with watch.watching():
        asyncio.run(run())
    return watch.blocked


# A look that comes late on a busy machine, or twice at once, sees no sleep: there is time for many.
@pytest.mark.parametrize(
    ("name", "seconds", "why"),
    [("compute", LONG, "0."), ("sleep", 4 * LONG, "it slept")],
    ids=["computes", "sleeps"],
)
def test_a_call_that_takes_long_is_told_with_its_stack(
    ours: dict[str, Busy], name: str, seconds: float, why: str
) -> None:
    async def call() -> None:
        ours[name](seconds)

    (told,) = blocked_by(call)
    assert told.startswith(why)
    assert "ours.py" in told


def test_short_callbacks_that_take_long_together_are_fine(ours: dict[str, Busy]) -> None:
    async def one_after_another() -> None:
        for _ in range(6):
            ours["compute"](LIMIT / 4)
            await asyncio.sleep(0)

    assert blocked_by(one_after_another) == []


def test_a_test_may_call_for_as_long_as_it_likes(ours: dict[str, Busy]) -> None:
    async def prepare() -> None:
        for _ in range(60):
            ours["compute"](LIMIT / 20)
        time.sleep(LONG)  # noqa: ASYNC251  # that is what is tried

    assert blocked_by(prepare) == []


def test_waiting_on_the_loop_is_no_blocking(ours: dict[str, Busy]) -> None:
    async def wait() -> None:
        await asyncio.sleep(LONG)

    assert blocked_by(wait) == []


def test_a_look_while_a_loop_closes_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of `knafka up` failed so, by a BrokenPipeError."""
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    class Closing(asyncio.SelectorEventLoop):
        def _close_self_pipe(self) -> None:
            super()._close_self_pipe()  # type: ignore[misc]
            signal.raise_signal(loop_watch._SIGNAL)
            time.sleep(0)  # Python looks for signals between two instructions

    loop = Closing()
    loop_watch._start_looking()
    loop.add_signal_handler(signal.SIGUSR1, print)
    loop.close()
    assert told == []
