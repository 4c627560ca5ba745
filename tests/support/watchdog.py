"""Ends the process of a test that hangs where pytest-timeout can't, so that a run names it.

pytest-timeout gives up once a test has failed, so that the end of its fixtures may take for ever,
and raises its failure only once, where a callback of asyncio or of a C library may swallow it. A
process that is still at the same test `OVERTIME` seconds after that test's timeout prints where
each of its threads is and exits: pytest-xdist reports the test as failed and goes on in a new
worker. With `--dist loadfile` that begins with the same test, which would hang once more: a test
that a worker began and didn't end fails at once in the next one. Registered by `pytest_plugins` in
tests/conftest.py.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest
from support.once_a_run import folder_of_run

OVERTIME: Final = 120.0
"""Seconds for the end of a test's fixtures, those of a whole run among them."""
_STDERR: Final = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    # A copy: while a test runs, pytest captures what is written to 2.
    config.stash[_STDERR] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_STDERR])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    watch(item)
    note = note_of(item.config)
    note.write_text(item.nodeid)
    try:
        return (yield)
    finally:
        note.unlink(missing_ok=True)
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    own = note_of(item.config)
    for note in own.parent.glob("running-*"):
        if note != own and read_note(note) == item.nodeid:
            pytest.fail("its worker ended while it ran, so it isn't run again", pytrace=False)


def note_of(config: pytest.Config) -> Path:
    """The file that names the test which this process is running."""
    return folder_of_run(config) / f"running-{os.getpid()}"


def read_note(note: Path) -> str:
    """What a note says; empty if its process has just ended that test."""
    try:
        return note.read_text()
    except FileNotFoundError:
        return ""


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    # pytest itself has just cancelled it, for a debugger.
    if isinstance(node, pytest.Item):
        watch(node)


def watch(item: pytest.Item) -> None:
    """Give a test its timeout and `OVERTIME` from now on; one without a timeout, as long as it
    takes."""
    if timeout := timeout_of(item):
        faulthandler.dump_traceback_later(
            timeout + OVERTIME, exit=True, file=item.config.stash[_STDERR]
        )


def timeout_of(item: pytest.Item) -> float:
    """The seconds that pytest-timeout gives a test, by its marker or pyproject.toml; 0 if none."""
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0] if marker else item.config.getini("timeout") or 0)
