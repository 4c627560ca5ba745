"""Event loops whose clock jumps to the next timer as soon as nothing is left to run (looptime)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from functools import cache
from types import ModuleType
from typing import Any, Final

import looptime
import pytest
from looptime._internal import plugin

NOOP_CYCLES: Final = 0
"""How often such a loop looks, before its clock goes on, for what other threads or processes did.

Looptime's 42 looks took half of the CPU of all pure tests, and found nothing: what runs in an
executor is waited for anyway, and what was sent over loopback is there at the first look.
"""

LEAST_WAIT: Final = 2e-6
"""Seconds that a timer waits at least, unless it is due: twice what such a clock can tell apart.

What waits until 5.3 s are over may have 1e-15 s left, by rounding: the clock would not move.
"""


def _call_at(
    loop: looptime.LoopTimeEventLoop,
    when: float,
    callback: Callable[..., object],
    *args: Any,
    context: Context | None = None,
) -> asyncio.TimerHandle:
    if loop.looptime_on and when > (now := loop.time()):
        when = max(when, now + LEAST_WAIT)
    timer: asyncio.TimerHandle = super(looptime.LoopTimeEventLoop, loop).call_at(
        when, callback, *args, context=context
    )
    return timer


setattr(looptime.LoopTimeEventLoop, "call_at", _call_at)  # noqa: B010


@cache
def _asyncio_fixtures(asyncio_plugin: ModuleType) -> frozenset[str]:
    """Names of the fixtures that pytest-asyncio has."""
    return frozenset(
        name for name, value in vars(asyncio_plugin).items() if plugin._is_fixture(value)
    )


def _should_patch(fixture: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> bool:
    """What looptime's own says, which looks through pytest-asyncio once for each fixture of each
    test: a tenth of the time of a short one."""
    asyncio_plugin = request.config.pluginmanager.getplugin("asyncio")
    assert isinstance(asyncio_plugin, ModuleType)
    return (
        fixture.func.__module__ == asyncio_plugin.__name__
        or fixture.argname in _asyncio_fixtures(asyncio_plugin)
    )


setattr(plugin, "_should_patch", _should_patch)  # noqa: B010


def new_event_loop() -> looptime.LoopTimeEventLoop:
    """A loop that begins at 0 s; for tests that need one beside that of `pytest.mark.looptime`."""
    return looptime.new_event_loop(noop_cycles=NOOP_CYCLES)
