"""A sampling profiler: another thread samples every thread's stack a hundred times a second.

Each sample adds the time since the previous sample to a thread's stack: the time by the clock
(`wall`), and the part of it in which the thread ran on a CPU, as the kernel reports (`cpu`). So a
thread that waits shows in `wall` and not in `cpu`. librdkafka's threads have no Python stack to
sample: their CPU time is shown as one frame with the thread's name.

For `cpu` the event loop's thread is sampled by a timer of CPU time instead. That thread works in
bursts of microseconds. Another thread could sample it only when it releases the interpreter, which
it does when it waits again: it would seem to spend all of its time waiting.

The process goes on meanwhile: one sample of all threads holds the interpreter for some tens of
microseconds. Sampling takes at most `MAX_SAMPLING_SHARE` of one core; with many threads or deep
stacks there are fewer samples.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

from knafka.profiling.format import Frame, Profile, ValueType

SAMPLE_INTERVAL: Final = 0.01
"""Seconds between two samples, on average."""
MAX_SAMPLING_SHARE: Final = 0.02
"""Largest share of one core that sampling may take."""
TIMER_TIMEOUT: Final = 1.0
"""Most seconds to wait until the event loop has started or stopped the timer."""
MAX_CPU_STACK_DEPTH: Final = 200
"""Most frames of a stack that are kept, the innermost ones."""

_TASKS: Final = Path("/proc/self/task")
"""Linux's folder with a folder for each thread of this process."""
_TYPES: Final = (
    ValueType("samples", "count"),
    ValueType("wall", "nanoseconds"),
    ValueType("cpu", "nanoseconds"),
)
"""The values of each stack, in the order of `_COUNT`, `_WALL` and `_CPU`."""
_COUNT, _WALL, _CPU = range(3)

_Stack = tuple[tuple[CodeType, int], ...]
"""A thread's stack: code and line number of each call, the innermost first."""


def profile(
    seconds: float,
    loop: asyncio.AbstractEventLoop | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Profile:
    """Profile this process for `seconds`. Blocks the calling thread, which isn't in the profile.

    `loop` is the main thread's event loop, on which a timer of the main thread's CPU time is
    started; None: the main thread is sampled like the others. `sleep` is called to wait between
    samples.
    """
    began, started = time.time(), time.monotonic()  # for the profile; to measure its duration
    earlier_cpu_times = _cpu_time_by_thread()
    sums = _SampleSums()
    with _main_thread_timer(loop, sums) as is_timed:
        sampler = _ThreadSampler(sums, threading.main_thread().ident if is_timed else None)
        while (remaining := started + seconds - time.monotonic()) > 0:
            # The wait is random, so that samples aren't in step with periodic work.
            sleep(min(remaining, sampler.interval * random.uniform(0.5, 1.5)))
            sampler.sample_threads()
    samples = sums.samples()
    for stack, cpu_time in _cpu_time_of_native_threads(earlier_cpu_times).items():
        samples[stack] = (0, 0, cpu_time)
    return Profile(
        types=_TYPES,
        samples=samples,
        period_type=ValueType("cpu", "nanoseconds"),
        period=int(SAMPLE_INTERVAL * 1e9),
        default="cpu",
        time=began,
        duration=time.monotonic() - started,
        comments=[
            f"Python {sys.version.split()[0]}, process {os.getpid()}: {sampler.count} samples, "
            f"which took {sampler.cost * 1000:.1f} ms"
        ],
    )


class _SampleSums(dict[_Stack, list[int]]):
    """By stack: number of samples, wall-clock nanoseconds and CPU nanoseconds (`_TYPES`)."""

    def __missing__(self, stack: _Stack) -> list[int]:
        """Add a stack that wasn't sampled yet, with zeros, and return these zeros; `dict` calls
        this for a missing key."""
        values = self[stack] = [0, 0, 0]
        return values

    def samples(self) -> dict[tuple[Frame, ...], tuple[int, ...]]:
        """Return the sums by stack of frames. Stacks whose frames look the same are added up, such
        as those of a module that was loaded twice."""
        sums: dict[tuple[Frame, ...], tuple[int, ...]] = {}
        for stack, values in self.items():
            frames = tuple(Frame(code.co_qualname, code.co_filename, line) for code, line in stack)
            sum_so_far = sums.get(frames, (0,) * len(_TYPES))
            sums[frames] = tuple(map(sum, zip(sum_so_far, values, strict=True)))
        return sums


class _ThreadSampler:
    """Samples all threads except the one that it runs in."""

    def __init__(self, sums: _SampleSums, timed_thread: int | None) -> None:
        """Note the CPU time that each thread has used so far; `sums` gets the samples.

        `timed_thread`: Python's id of the thread whose CPU time is sampled by `_MainThreadTimer`,
        and so not here; None: there is none.
        """
        self.count = 0
        """Number of samples of all threads."""
        self.cost = 0.0
        """CPU time that sampling has taken so far, in seconds."""
        self.interval = SAMPLE_INTERVAL
        """Seconds to wait for the next sample, on average, so that `MAX_SAMPLING_SHARE` holds."""
        self._sums = sums
        self._timed_thread = timed_thread
        self._sampled_at = time.monotonic_ns()
        """Time of the previous sample, in nanoseconds of the monotonic clock."""
        self._cpu_times: dict[int, int] = {}
        """CPU time (ns) of each thread at its previous sample, by the kernel's thread id."""
        for thread in _native_ids_by_ident().values():
            self._cpu_time_since_last(thread)

    def sample_threads(self) -> None:
        """Add one sample of all other threads to `sums`: for each thread's stack a count, the time
        since the previous sample, and the thread's CPU time since then."""
        cost_before = time.thread_time()
        now = time.monotonic_ns()
        elapsed, self._sampled_at = now - self._sampled_at, now
        own_ident = threading.get_ident()
        native_ids = _native_ids_by_ident()
        # Take the stacks first: asking the kernel takes longer, and they would be outdated then.
        stacks = {
            ident: _stack_of(frame)
            for ident, frame in sys._current_frames().items()
            if ident != own_ident
        }
        for ident, stack in stacks.items():
            values = self._sums[stack]
            values[_COUNT] += 1
            values[_WALL] += elapsed
            if ident != self._timed_thread:
                values[_CPU] += self._cpu_time_since_last(native_ids.get(ident))
        self.count += 1
        cost = time.thread_time() - cost_before
        self.cost += cost
        self.interval = max(SAMPLE_INTERVAL, self.cost / self.count / MAX_SAMPLING_SHARE)

    def _cpu_time_since_last(self, thread: int | None) -> int:
        """Return the nanoseconds that a thread ran on a CPU since the last call for this thread; 0
        at the first call, or if that isn't known. `thread`: the kernel's id; None: not known."""
        if thread is None or (cpu_time := _cpu_time(thread)) is None:
            return 0
        time_since_last = cpu_time - self._cpu_times.get(thread, cpu_time)
        self._cpu_times[thread] = cpu_time
        return time_since_last


class _MainThreadTimer:
    """Samples the main thread, which handles signals, by a timer of the process's CPU time."""

    def __init__(self, sums: _SampleSums) -> None:
        """`sums` gets the samples."""
        self._sums = sums
        self._sampled_at = 0
        """The thread's CPU time at the previous sample, in nanoseconds."""

    def start(self) -> None:
        """Start the timer of CPU time; must be called in the main thread."""
        self._sampled_at = time.thread_time_ns()
        signal.signal(signal.SIGPROF, self._on_signal)
        # The signal may come during a system call of C code, which would fail without this.
        signal.siginterrupt(signal.SIGPROF, False)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_INTERVAL, SAMPLE_INTERVAL)

    def stop(self) -> None:
        """Stop the timer; must be called in the main thread."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        # Ignore the signal: the default handler would kill the process if one is still pending.
        signal.signal(signal.SIGPROF, signal.SIG_IGN)

    def _on_signal(self, _: int, frame: FrameType | None) -> None:
        """Handle SIGPROF: add the thread's CPU time since the last signal to the stack that was
        interrupted (`frame` and its callers)."""
        now = time.thread_time_ns()
        if frame is not None:
            self._sums[_stack_of(frame)][_CPU] += now - self._sampled_at
        self._sampled_at = now


@contextmanager
def _main_thread_timer(loop: asyncio.AbstractEventLoop | None, sums: _SampleSums) -> Iterator[bool]:
    """Sample the main thread by a timer of CPU time within the context; `sums` gets the samples.
    Yields True if the timer runs. Yields False if `loop` is None, isn't the main thread's, or is
    stuck for `TIMER_TIMEOUT` seconds."""
    timer = _MainThreadTimer(sums)
    is_cancelled, started, ended = False, threading.Event(), threading.Event()

    def start() -> None:
        """Start the timer; the event loop calls this. Do nothing if its thread isn't the main
        thread, or if the profile goes on without the timer by now."""
        # A loop that was stuck until now must not start a timer that nobody stops.
        if not is_cancelled and threading.current_thread() is threading.main_thread():
            timer.start()
            started.set()

    def stop() -> None:
        """Stop the timer, and report that it has ended; the event loop calls this."""
        timer.stop()
        ended.set()

    if loop is not None:
        loop.call_soon_threadsafe(start)
        started.wait(TIMER_TIMEOUT)
    is_running = started.is_set()
    is_cancelled = not is_running  # seen by `start`, if the loop calls it only now
    try:
        yield is_running
    finally:
        if is_running and loop is not None:
            loop.call_soon_threadsafe(stop)
            ended.wait(TIMER_TIMEOUT)


def _stack_of(innermost: FrameType) -> _Stack:
    """Return the calls of a stack, the innermost first, at most `MAX_CPU_STACK_DEPTH` of them."""
    stack: list[tuple[CodeType, int]] = []
    frame: FrameType | None = innermost
    while frame is not None and len(stack) < MAX_CPU_STACK_DEPTH:
        stack.append((frame.f_code, frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(stack)


def _native_ids_by_ident() -> dict[int | None, int | None]:
    """Return the kernel's thread ids of the threads that Python knows, by Python's thread ids."""
    native_ids = {thread.ident: thread.native_id for thread in threading.enumerate()}
    # After a fork (functions-framework's workers) Python 3.11 has the parent's id.
    native_ids[threading.main_thread().ident] = os.getpid()
    return native_ids


def _cpu_time(thread: int) -> int | None:
    """Return the nanoseconds that a thread has run on a CPU. None: the thread has ended, or the
    kernel doesn't report this. `thread`: the kernel's id."""
    try:
        with open(f"{_TASKS}/{thread}/schedstat", "rb", buffering=0) as file:
            return int(file.read(100).split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _cpu_time_by_thread() -> dict[int, int]:
    """Return the nanoseconds that each thread of this process has run, by the kernel's thread id;
    empty where the kernel doesn't report this."""
    try:
        threads = [int(name) for name in os.listdir(_TASKS)]
    except OSError:
        return {}
    cpu_times = {thread: _cpu_time(thread) for thread in threads}
    return {thread: ran for thread, ran in cpu_times.items() if ran is not None}


def _cpu_time_of_native_threads(earlier_cpu_times: dict[int, int]) -> dict[tuple[Frame, ...], int]:
    """Return the nanoseconds that threads without Python, such as librdkafka's, ran since
    `earlier_cpu_times` was taken (`_cpu_time_by_thread`), by stack: one frame with the thread's
    name. Threads of one name are added up."""
    python_threads = set(_native_ids_by_ident().values())
    cpu_times: dict[tuple[Frame, ...], int] = {}
    for thread, cpu_time in _cpu_time_by_thread().items():
        time_since_then = cpu_time - earlier_cpu_times.get(thread, 0)
        if thread in python_threads or not time_since_then:
            continue
        try:
            name = (_TASKS / str(thread) / "comm").read_text().strip()
        except OSError:
            continue  # the thread has ended meanwhile
        stack = (Frame(f"{name} (a thread without Python)", "", 0),)
        cpu_times[stack] = cpu_times.get(stack, 0) + time_since_then
    return cpu_times
