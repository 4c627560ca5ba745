"""Coverage is measured in the beginning of each test only, as it doubles the CPU that a test takes.

What a long test runs of the pure packages it runs in its first moments; the rest are more rounds or
more events. So measuring stops in a test once its process has taken `MEASURED` seconds of CPU, and
goes on with the next test. No list says which tests are measured: it would be wrong after each
merge.

In a worker of pytest-xdist, pytest-cov 7.1 measures twice: from the start as if there were no
worker, and then as one. Who stops the second, as its marker `no_cover` does, has the first go on
measuring, and so all tests with a real Kafka took twice the CPU. So the first is stopped.
Registered by `pytest_plugins` in tests/conftest.py.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from typing import Any, Final

import pytest
from coverage import Coverage
from support.markers import PROPERTIES, folder_of

MEASURED: Final = 0.3
"""Seconds of CPU from the start of a test's call in which coverage is measured."""
MEASURED_OF_PROPERTIES: Final = 2.0
"""The same of properties: they come to some lines by chance, after many examples."""


@pytest.hookimpl(trylast=True)  # after pytest-cov's own
def pytest_sessionstart(session: pytest.Session) -> None:
    controller = _controller(session.config)
    if controller is None or not hasattr(session.config, "workerinput"):
        return
    controller.cov.stop()
    while (other := Coverage.current()) is not None:
        other.stop()
    controller.cov.start()


@pytest.hookimpl(wrapper=True, trylast=True)  # inside of pytest-cov's own
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    controller = _controller(item.config)
    if controller is None or not controller.started:
        return (yield)
    is_stopped = False

    def stop(*_: object) -> None:
        nonlocal is_stopped
        is_stopped = True
        controller.cov.stop()

    before = signal.signal(signal.SIGPROF, stop)
    is_property = folder_of(item.path) == PROPERTIES
    seconds = MEASURED_OF_PROPERTIES if is_property else MEASURED
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        if is_stopped:
            controller.cov.start()


def _controller(config: pytest.Config) -> Any:
    """What pytest-cov stops and starts; None where nothing is measured."""
    return getattr(config.pluginmanager.getplugin("_cov"), "cov_controller", None)
