"""What a failed test left open fails no other test.

Its frames keep a client or a socket alive until the next test begins, which would then fail by a
ResourceWarning that isn't its own. So a failed test's frames are dropped at its end, and what is
collected then is not told: the failure is. Registered by `pytest_plugins` in tests/conftest.py.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Generator

import pytest

FAILURE = ("last_type", "last_value", "last_traceback", "last_exc")
"""Where pytest keeps a failure for debuggers, in `sys`."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    failed = item.session.testsfailed
    outcome = yield
    if item.session.testsfailed > failed:
        collect()
    return outcome


def collect() -> None:
    for name in FAILURE:
        vars(sys).pop(name, None)
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
    finally:
        sys.unraisablehook = hook
