"""A pure test that leaves something behind fails: whatever it leaves can fail another test.

A thread that goes on calls what a later test has replaced, and logs into a later test that wants
silence; a changed environment or log level decides what a later test sees. So each test in
tests/unit, tests/property and tests/behaviour ends with the threads (those of C libraries among
them), child processes and settings of the process that it began with. What a fixture of more than
one test starts, such as a server for a module, stays until that fixture ends. And each test begins
with filters of logs that have let nothing through yet. Registered by `pytest_plugins` in
tests/conftest.py.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
import tracemalloc
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from support.markers import PURE_FOLDERS, folder_of, is_long

from knafka.observability import RateLimitedFilter

ALLOWED: Final = ("loop-watch", "pytest_timeout", "parser", "tokio-rt-worker", "jemalloc_bg_thd")
"""What the names of threads begin with that serve all tests of a process, such as delta-rs's, and
call nothing of a test's but what it waits for."""
OF_SPARK: Final = "py4j."
"""What the modules begin with whose functions Spark's threads run. Java calls back in a new thread,
also when its garbage collector finds, many tests later, that a stream's function is not needed."""
LIBRDKAFKA: Final = "rdk:"
"""What the names of the threads of Kafka's clients begin with."""
PATIENCE: Final = 10.0
"""Seconds that a thread or process has to end: one that is joined may be seen for a moment."""
UNCOLLECTED: Final = 0.02
"""Seconds after which what a test has left is collected as garbage, for the first time."""
LOOK_INTERVAL: Final = 0.002
"""Seconds between two looks."""
_TASKS: Final = Path("/proc/self/task")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    _shared.clear()
    let_through_again()
    _before[:] = [(running(), item.session.testsfailed)] if is_guarded(item) else []
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any],
) -> Generator[None, object, object]:
    if fixturedef.scope == "function" or not _before:
        return (yield)
    before = running()
    try:
        return (yield)
    finally:
        _shared.update(running() - before)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    outcome = yield
    if _before and item.session.testsfailed == _before[0][1]:
        started, _ = _before[0]
        _fail_for(left_by(started | _shared))
    return outcome


@pytest.fixture(autouse=True)
def unchanged_settings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a pure test that leaves other settings of the process. A fixture, as a test's own ones
    end between those of its file or session and this: their settings are theirs."""
    before = settings() if is_guarded(request.node) else {}
    failed = request.session.testsfailed
    yield
    if before and request.session.testsfailed == failed:
        _fail_for(changed(before, settings()))


def _fail_for(problems: Sequence[str]) -> None:
    if problems:
        pytest.fail("this test left behind: " + "; ".join(problems), pytrace=False)


_before: Final[list[tuple[frozenset[str], int]]] = []
"""What ran and how many tests had failed before the present test."""
_shared: Final[set[str]] = set()
"""What fixtures of more than one test have started during the present test."""


def let_through_again() -> None:
    """Have the filters of all loggers forget what they let through: an earlier test's line would
    keep the same line of this one back."""
    for logger in list(logging.root.manager.loggerDict.values()):
        for limit in getattr(logger, "filters", ()):
            if isinstance(limit, RateLimitedFilter):
                limit._logged_at.clear()


def is_guarded(item: pytest.Item) -> bool:
    """Whether a test is pure: it has only its own process."""
    return folder_of(item.path) in PURE_FOLDERS and not is_long(item)


def running() -> frozenset[str]:
    """The numbers of the process's threads, as the kernel tells, and of its child processes."""
    if not _TASKS.is_dir():
        return frozenset()
    threads = os.listdir(_TASKS)
    children: list[str] = []
    for thread in threads:  # each of 9,000 tests asks twice: a `Path` would take 1.4 ms, not 0.6
        with suppress(OSError), open(f"{_TASKS}/{thread}/children", "rb", buffering=0) as file:
            children += file.read().decode().split()
    return frozenset([*threads, *children])


def left_by(expected: frozenset[str]) -> list[str]:
    """A sentence for each thread and process that is not expected and doesn't end by itself.

    Where a Kafka client was there before, which a fixture of many tests keeps, a new thread of
    librdkafka may be that client's.
    """
    began = time.perf_counter()
    pause = threading.Event()
    collect_at = UNCOLLECTED
    while left := [name for each in running() - expected if (name := _name(each))]:
        waited = time.perf_counter() - began
        if waited > PATIENCE:
            may_be_clients = any(_name(each).startswith(LIBRDKAFKA) for each in expected)
            theirs = LIBRDKAFKA if may_be_clients else "no thread"
            return [f"{each} still runs" for each in left if not each.startswith(theirs)]
        if waited > collect_at:
            gc.collect()  # a Kafka client ends when it is collected, and logs until then
            collect_at = 2 * waited  # a thread may just have let it go
        pause.wait(LOOK_INTERVAL)
    return []


def _name(number: str) -> str:
    """The name of a thread, Python's if it has one, or of a process; empty if it has ended, is one
    of `ALLOWED` or Spark's."""
    name = ""
    for place in (_TASKS / number, Path("/proc") / number):
        with suppress(OSError):
            name = (place / "comm").read_text().strip()
            break
    for thread in threading.enumerate():
        if str(thread.native_id) == number:
            name = "" if _module_of(thread).startswith(OF_SPARK) else thread.name
    return "" if name.startswith(ALLOWED) else name


def _module_of(thread: threading.Thread) -> str:
    """The module of what a thread runs; empty if it is a subclass's own `run`, or has ended."""
    return getattr(getattr(thread, "_target", None), "__module__", None) or ""


def settings() -> Mapping[str, object]:
    """What a process has once, and a test may change for all that come after it."""
    return {
        "environment": {
            name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"
        },
        "working directory": os.getcwd(),
        "sys.path": tuple(sys.path),
        "recursion limit": sys.getrecursionlimit(),
        "garbage collection": (gc.isenabled(), gc.get_threshold()),
        "tracemalloc": tracemalloc.is_tracing(),
        "handler of SIGTERM": signal.getsignal(signal.SIGTERM),
        "logging": (logging.root.manager.disable, logging.root.level),
        "levels of loggers": {
            name: logger.level
            for name, logger in list(logging.root.manager.loggerDict.items())
            if isinstance(logger, logging.Logger) and logger.level
        },
        "clocks": (time.time, time.monotonic, time.perf_counter, time.sleep),
    }


def changed(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """A sentence for each setting that is not what it was; of a mapping, what differs is named."""
    sentences = []
    for name, value in before.items():
        if (now := after[name]) != value:
            if isinstance(now, Mapping) and isinstance(value, Mapping):
                keys = sorted(key for key in {*now, *value} if now.get(key) != value.get(key))
                now, value = ({key: given.get(key) for key in keys} for given in (now, value))
            sentences.append(f"another {name}, {now} in place of {value}")
    return sentences
