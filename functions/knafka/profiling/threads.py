"""Shows what every thread and every task of the event loop is doing now, to find threads and tasks
that hang or wait."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections import Counter

from knafka.profiling.format import Frame, Profile, ValueType


def thread_profile() -> Profile:
    """Return a profile with the number of threads at each stack, without the calling thread."""
    stacks = Counter(
        tuple(
            Frame(frame.f_code.co_qualname, frame.f_code.co_filename, line)
            for frame, line in traceback.walk_stack(innermost)
        )
        for ident, innermost in sys._current_frames().items()
        if ident != threading.get_ident()
    )
    kind = ValueType("threads", "count")
    return Profile(
        types=[kind],
        samples={stack: (count,) for stack, count in stacks.items()},
        period_type=kind,
        period=1,
        default="threads",
    )


def describe_threads_and_tasks(loop: asyncio.AbstractEventLoop | None) -> str:
    """Return as text the stacks of all threads but the calling one, and where each task of the
    event loop `loop` waits. `loop` None: no tasks are shown."""
    threads_by_ident = {thread.ident: thread for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        if ident == threading.get_ident():
            continue
        thread = threads_by_ident.get(ident)
        thread_name = "unknown" if thread is None else f"{thread.name} ({thread.native_id})"
        parts.append(f"thread {thread_name}\n{''.join(traceback.format_stack(frame))}")
    for task in asyncio.all_tasks(loop) if loop is not None else ():
        coroutine_name = getattr(task.get_coro(), "__qualname__", "")
        stack = "".join(traceback.format_list(_stack_of(task)))
        parts.append(f"task {task.get_name()}: {coroutine_name}\n{stack}")
    return "\n".join(parts)


def _stack_of(task: asyncio.Task[object]) -> list[traceback.FrameSummary]:
    """Return a task's stack, the outermost coroutine first, through everything that it awaits;
    `Task.get_stack` returns only the outermost one."""
    frames = []
    # A coroutine has `cr_frame` and `cr_await`, a generator that is used as one has `gi_frame` and
    # `gi_yieldfrom`; anything else that is awaited has neither and ends the stack.
    awaited: object = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            code = frame.f_code
            frames.append(
                traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_qualname)
            )
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return frames
