"""The loop watch: a test fails in which our code keeps the event loop from running for 100 ms.

What counts is what one callback took by itself: the CPU time of the loop's thread, and the time for
which that thread slept inside the callback. What other processes took from it doesn't count (the
kernel tells how long a thread was ready to run and didn't), nor does Python's garbage collector: a
busy machine fails no test. Why this and not blockbuster: docs/decisions/0002.

A second thread looks at the stack of a callback that goes on for long. Only what our own packages
do counts: a test may take its time, and an import happens once.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from resource import RUSAGE_THREAD, getrusage
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
        self._schedstat = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self._began_at: float | None = None
        """When the callback began that runs now."""
        self._stack = ""
        """Where our code was in it when it had gone on for `LIMIT`."""
        self._waited_before = 0.0
        """`_waited` as it was at some time before the callback began."""
        self._collected = 0.0
        """Seconds of CPU time that the garbage collector has taken."""
        self._collecting_from = 0.0
        self._ended = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch for as long as the context is open."""
        run = asyncio.Handle._run  # type: ignore[attr-defined]  # its stub has only what is public
        looking = threading.Thread(target=self._look, name="loop-watch", daemon=True)
        looking.start()
        gc.callbacks.append(self._on_collection)
        asyncio.Handle._run = lambda handle: self._run(run, handle)  # type: ignore[attr-defined]
        try:
            yield
        finally:
            asyncio.Handle._run = run  # type: ignore[attr-defined]
            gc.callbacks.remove(self._on_collection)
            self._ended.set()
            looking.join()

    def _run(self, run: Any, handle: asyncio.Handle) -> None:
        if threading.get_ident() != self._thread:
            run(handle)
            return
        before, collected = getrusage(RUSAGE_THREAD), self._collected
        self._stack = ""
        began_at = self._began_at = time.perf_counter()
        try:
            run(handle)
        finally:
            self._began_at = None
            took = time.perf_counter() - began_at
            if took > LIMIT and self._stack:
                after = getrusage(RUSAGE_THREAD)
                cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                slept = 0.0
                # Without a voluntary switch it was the machine that stood still.
                if after.ru_nvcsw > before.ru_nvcsw and (waited := self._waited()):
                    slept = max(0.0, took - cpu - (waited - self._waited_before))
                own = cpu + slept - (self._collected - collected)
                if own > LIMIT:
                    self.blocked.append(f"{own:.3f} s in one callback\n{self._stack}")

    def _waited(self) -> float:
        """Seconds for which the loop's thread was ready to run and didn't; 0: nobody knows."""
        with suppress(OSError):
            return int(self._schedstat.read_text().split()[1]) / 1e9
        return 0.0

    def _look(self) -> None:
        while not self._ended.wait(LOOK_INTERVAL):
            began_at = self._began_at
            if began_at is None or time.perf_counter() - began_at < LOOK_INTERVAL:
                self._waited_before = self._waited()
            elif time.perf_counter() - began_at > LIMIT and not self._stack:
                frame = sys._current_frames().get(self._thread)
                if frame is not None and began_at == self._began_at:
                    self._stack = stack_of_ours(frame)

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
