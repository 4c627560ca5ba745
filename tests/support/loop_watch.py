"""The loop watch: a test fails in which our code keeps the event loop from running for long.

What counts is what one call into our packages did by itself within one callback: the CPU time of
the loop's thread without that of Python's garbage collector, or that it slept. Wall time doesn't
count: a busy machine fails no test. Why this and not blockbuster: docs/decisions/0002.

A second thread, one for all tests of a process, has the loop's thread look every 25 ms at where it
is, by a signal: what it runs can't be read from another thread, which ended CPython 3.11 by a
segmentation fault. So what takes `LIMIT` is never told, and what takes 50 ms more always is. A
test may take its own time, and an import happens once.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Final

from support.waiting import PATIENCE

LIMIT: Final = 0.1 * PATIENCE
"""Seconds that a callback may take: 100 ms on a machine of its own, and in the gate twice as much
as elsewhere, for coverage's tracer. The largest batch of which no event is valid takes 70 ms, and
took 252 in a gate."""
LOOK_INTERVAL: Final = 0.025
"""Seconds between two looks."""
_SIGNAL: Final = signal.SIGVTALRM
"""One that nobody else uses: pytest-timeout has SIGALRM."""

_ROOT: Final = f"{Path(__file__).parents[2]}/"
_OURS: Final = tuple(f"{_ROOT}{source}/" for source in ("functions", "operator"))
_STARTS_THREAD: Final = threading.Thread.start.__code__
"""It waits until the thread runs: for a busy machine's scheduler."""
_CALLBACK: Final = asyncio.Handle._run.__code__
"""What every callback of a loop runs in."""


@dataclass(slots=True)
class _Seen:
    """A call into our packages, since the second thread first saw it."""

    call: FrameType
    callback: FrameType
    cpu: float
    """Of the loop's thread at the first look."""
    place: object = None
    """Where it sleeps; None: it doesn't."""
    asleep_since: float = 0.0


class LoopWatch:
    """The callbacks of the event loops that one thread runs; made in that thread."""

    def __init__(self) -> None:
        self.blocked: list[str] = []
        """A sentence and a stack for each call that took too long."""
        self._thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread)
        self._kernel = Path(f"/proc/self/task/{threading.get_native_id()}/stat")
        self._collected = 0.0
        """Seconds of CPU time that the garbage collector has taken."""
        self._collecting_from = 0.0
        self._was_asleep = False
        self._seen: _Seen | None = None
        self._told: FrameType | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch for as long as the context is open; in the process's main thread."""
        _start_looking()
        gc.callbacks.append(self._on_collection)
        with _turn:
            _watching.append(self)
            _turn.notify()
        try:
            yield
        finally:
            with _turn:
                _watching.remove(self)
            gc.callbacks.remove(self._on_collection)
            self._seen = self._told = None

    def ask(self) -> None:
        """Have the loop's thread look where it is; called by the second thread."""
        self._was_asleep = self._is_asleep()
        signal.pthread_kill(self._thread, _SIGNAL)

    def look(self, frame: FrameType | None) -> None:
        call, callback = (None, None) if frame is None else call_of_ours(frame)
        if frame is None or call is None or callback is None or callback is self._told:
            self._seen = None
            return
        cpu = time.clock_gettime(self._clock) - self._collected
        seen = self._seen
        if seen is None or seen.callback is not callback or seen.call is not call:
            seen = self._seen = _Seen(call, callback, cpu)
        if problem := self._problem(seen, frame, cpu):
            self._told = callback
            stack = "".join(traceback.format_stack(frame)[-8:])
            self.blocked.append(f"{problem} in one callback\n{stack}")

    def _problem(self, seen: _Seen, frame: FrameType, cpu: float) -> str:
        # Who waits for Python's lock sleeps as well, but not for long at one place.
        place = (frame, frame.f_lasti) if self._was_asleep else None
        if place is None or place != seen.place:
            seen.place, seen.asleep_since = place, time.monotonic()
        elif time.monotonic() - seen.asleep_since > LIMIT:
            return "it slept"
        used = cpu - seen.cpu
        return f"{used:.3f} s of CPU time" if used > LIMIT else ""

    def _is_asleep(self) -> bool:
        """Whether the loop's thread doesn't want to run, as far as the kernel tells."""
        with suppress(OSError):
            return self._kernel.read_text().rpartition(") ")[2][0] in "SD"
        return False

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if threading.get_ident() == self._thread:
            if phase == "start":
                self._collecting_from = time.thread_time()
            else:
                self._collected += time.thread_time() - self._collecting_from


_watching: Final[list[LoopWatch]] = []
"""The watch that is open, if one is."""
_turn: Final = threading.Condition()
"""Held by whoever changes `_watching`, and while its watch is asked."""


@cache
def _start_looking() -> None:
    """Start the second thread, and give the signal its handler, once for all watches.

    A thread for each test would take as long as many a test, and the signal ends the process of
    whoever takes its handler away too early.
    """
    signal.signal(_SIGNAL, _on_signal)
    threading.Thread(target=_have_them_look, name="loop-watch", daemon=True).start()


def _have_them_look() -> None:
    pause = threading.Event()  # a test may replace `time.sleep`, for every thread
    while True:
        with _turn:
            _turn.wait_for(lambda: _watching)
            for watch in _watching:
                watch.ask()
        pause.wait(LOOK_INTERVAL)


def _on_signal(_: int, frame: FrameType | None) -> None:
    for watch in _watching:
        watch.look(frame)


_close: Final = asyncio.SelectorEventLoop.close


def _close_after_its_signals(loop: asyncio.SelectorEventLoop) -> None:
    """Close a loop, which no signal can reach from before its pipe is closed.

    Asyncio closes the pipe first: a look that comes then is written into it, and fails the test by
    a BrokenPipeError.
    """
    for number in list(loop._signal_handlers):  # type: ignore[attr-defined]
        loop.remove_signal_handler(number)
    _close(loop)


setattr(asyncio.SelectorEventLoop, "close", _close_after_its_signals)  # noqa: B010


def call_of_ours(frame: FrameType) -> tuple[FrameType | None, FrameType | None]:
    """The call into our packages that runs, if it is they who run, and no import or start of a
    thread; and the loop's callback in which it does, if it is one."""
    call: FrameType | None = None
    is_known = False
    each: FrameType | None = frame
    while each is not None and each.f_code is not _CALLBACK:
        name = each.f_code.co_filename
        if "importlib" in name or each.f_code is _STARTS_THREAD:
            return None, None
        if name.startswith(_OURS) and not is_known:
            call = each
        elif name.startswith(_ROOT):
            is_known = True  # a test called them; or they called what is a test's
        each = each.f_back
    return call, each
