"""The loop watch: a test fails in which our code keeps the event loop from running for 100 ms.

What counts is what one callback did by itself: the CPU time of the loop's thread without that of
Python's garbage collector, or that it slept. Wall time doesn't count: a busy machine fails no test.
Why this and not blockbuster: docs/decisions/0002.

A second thread looks at a callback that goes on for long: where it is, and whether it sleeps there.
Only what our own packages do counts: a test may take its time, and an import happens once.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

LIMIT: Final = 0.1
"""Seconds that a callback may take."""
LOOK_INTERVAL: Final = 0.05
"""Seconds between two looks of the second thread."""

_ROOT: Final = f"{Path(__file__).parents[2]}/"
_OURS: Final = tuple(f"{_ROOT}{source}/" for source in ("functions", "operator"))


class LoopWatch:
    """The callbacks of the event loops that one thread runs; made in that thread."""

    def __init__(self) -> None:
        self.blocked: list[str] = []
        """A sentence and a stack for each callback that took too long."""
        self._thread = threading.get_ident()
        self._kernel = Path(f"/proc/self/task/{threading.get_native_id()}")
        self._began_at: float | None = None
        """When the callback began that runs now."""
        self._stack = ""
        """Where our code was in it when it had gone on for `LIMIT`."""
        self._sleeps_at: object = None
        """Where it slept at the last look."""
        self._slept = False
        """Whether it slept at the same place from one look to the next."""
        self._collected = 0.0
        """Seconds of CPU time that the garbage collector has taken."""
        self._collecting_from = 0.0
        self._ended = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch for as long as the context is open."""
        run: Callable[[asyncio.Handle], None] = asyncio.Handle._run
        looking = threading.Thread(target=self._look, name="loop-watch", daemon=True)
        looking.start()
        gc.callbacks.append(self._on_collection)
        setattr(asyncio.Handle, "_run", lambda handle: self._run(run, handle))  # noqa: B010
        try:
            yield
        finally:
            setattr(asyncio.Handle, "_run", run)  # noqa: B010  # mypy lets nobody assign a method
            gc.callbacks.remove(self._on_collection)
            self._ended.set()
            looking.join()

    def _run(self, run: Callable[[asyncio.Handle], None], handle: asyncio.Handle) -> None:
        if threading.get_ident() != self._thread:
            run(handle)
            return
        self._stack, self._slept, self._sleeps_at = "", False, None
        cpu, collected = time.thread_time(), self._collected
        self._began_at = time.perf_counter()
        try:
            run(handle)
        finally:
            self._began_at = None
            used = time.thread_time() - cpu - (self._collected - collected)
            if self._stack and (used > LIMIT or self._slept):
                took = "it slept" if self._slept else f"{used:.3f} s of CPU time"
                self.blocked.append(f"{took} in one callback\n{self._stack}")

    # The second thread

    def _look(self) -> None:
        while not self._ended.wait(LOOK_INTERVAL):
            began_at = self._began_at
            if began_at is None or time.perf_counter() - began_at < LIMIT or self._slept:
                continue
            frame = sys._current_frames().get(self._thread)
            if frame is None:
                continue
            place = (began_at, id(frame), frame.f_lasti) if self._is_asleep() else None
            stack = self._stack or stack_of_ours(frame)
            if began_at == self._began_at:
                # One look isn't enough: who waits for this thread's lock on Python sleeps, too.
                self._slept = place is not None and place == self._sleeps_at
                self._sleeps_at, self._stack = place, stack

    def _is_asleep(self) -> bool:
        """Whether the loop's thread doesn't want to run, as far as the kernel tells."""
        with suppress(OSError):
            return self._kernel.joinpath("stat").read_text().rpartition(") ")[2][0] in "SD"
        return False

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if threading.get_ident() == self._thread:
            if phase == "start":
                self._collecting_from = time.thread_time()
            else:
                self._collected += time.thread_time() - self._collecting_from


def stack_of_ours(frame: FrameType) -> str:
    """The stack, if what runs is our packages' doing and no import; else nothing."""
    each: FrameType | None = frame
    while each is not None and not each.f_code.co_filename.startswith(_ROOT):
        if "importlib" in each.f_code.co_filename:
            return ""
        each = each.f_back
    if each is None or not each.f_code.co_filename.startswith(_OURS):
        return ""
    return "".join(traceback.format_stack(frame)[-8:])
