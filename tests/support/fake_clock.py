"""Event loops whose clock jumps to the next timer as soon as nothing is left to run (looptime)."""

from __future__ import annotations

from typing import Final

import looptime

NOOP_CYCLES: Final = 0
"""How often such a loop looks, before its clock goes on, for what other threads or processes did.

Looptime's 42 looks took half of the CPU of all pure tests, and found nothing: what runs in an
executor is waited for anyway, and what was sent over loopback is there at the first look.
"""


def new_event_loop() -> looptime.LoopTimeEventLoop:
    """A loop that begins at 0 s; for tests that need one beside that of `pytest.mark.looptime`."""
    return looptime.new_event_loop(noop_cycles=NOOP_CYCLES)
