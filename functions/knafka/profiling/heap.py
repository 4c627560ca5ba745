"""Profiles the memory that Python allocates and keeps, by `tracemalloc`.

Tracing costs time and memory, so it runs only while a profile is taken. The profile then shows the
memory that was allocated meanwhile and is still held. A process that was started with
PYTHONTRACEMALLOC=8 traces all its life: its profile is taken at once, and shows all memory that
Python holds. No profile shows memory of C libraries.
"""

from __future__ import annotations

import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Collection, Iterator
from types import CodeType
from typing import Final

from knafka.profiling.format import Frame, Profile, ValueType

MAX_HEAP_STACK_DEPTH: Final = 8
"""Most frames of a stack that are kept: each costs time for every allocation."""

_one_at_a_time = threading.Lock()
"""Held while a profile is taken, as tracing is either on or off for the whole process."""


def profile(seconds: float, sleep: Callable[[float], None] = time.sleep) -> Profile:
    """Return a profile of the memory that is allocated in the next `seconds` and still held at
    their end. If tracing is on already, return at once, with the memory that was allocated since
    the process's start and is still held. Blocks the calling thread by `sleep`."""
    began = time.time()
    with _one_at_a_time:
        was_traced = tracemalloc.is_tracing()
        if not was_traced:
            tracemalloc.start(MAX_HEAP_STACK_DEPTH)
        try:
            if not was_traced:
                sleep(seconds)
            snapshot = tracemalloc.take_snapshot()
        finally:
            if not was_traced:
                tracemalloc.stop()
    stacks = snapshot.statistics("traceback")
    functions = _functions_by_line(
        {frame.filename for statistic in stacks for frame in statistic.traceback}
    )
    samples: dict[tuple[Frame, ...], tuple[int, int]] = {}
    for statistic in stacks:
        stack = tuple(
            Frame(
                functions.get((frame.filename, frame.lineno), frame.filename),
                frame.filename,
                frame.lineno,
            )
            for frame in reversed(statistic.traceback)
        )
        count, size = samples.get(stack, (0, 0))
        samples[stack] = count + statistic.count, size + statistic.size
    return Profile(
        types=[ValueType("inuse_objects", "count"), ValueType("inuse_space", "bytes")],
        samples=samples,
        period_type=ValueType("space", "bytes"),
        period=1,
        default="inuse_space",
        time=began,
        duration=time.time() - began,
        comments=[
            "allocated since the process began"
            if was_traced
            else "allocated while the profile was taken"
        ],
    )


def _functions_by_line(files: Collection[str]) -> dict[tuple[str, int], str]:
    """Return the names of functions by file and line, for the imported modules whose file is in
    `files`: `tracemalloc` knows only files and lines. Modules without readable code are left
    out."""
    names: dict[tuple[str, int], str] = {}
    for module in list(sys.modules.values()):
        spec = getattr(module, "__spec__", None)
        get_code = getattr(getattr(spec, "loader", None), "get_code", None)
        if spec is None or get_code is None or spec.origin not in files:
            continue
        try:
            code = get_code(spec.name)
        except (ImportError, OSError, SyntaxError):
            continue
        if code is not None:
            names.update(_lines_with_functions(code))  # the innermost function of a line comes last
    return names


def _lines_with_functions(code: CodeType) -> Iterator[tuple[tuple[str, int], str]]:
    """Yield each line of compiled code, as file and line number, with its function's name. Lines of
    a nested function come twice: with the enclosing function's name, and later with its own."""
    for *_, line in code.co_lines():
        if line is not None:
            yield (code.co_filename, line), code.co_qualname
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _lines_with_functions(constant)
