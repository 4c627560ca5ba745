"""Ends a child process when its parent dies, whichever program the child runs.

Not here: starting, watching or restarting children (`children`).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> Callable[[], None] | None:
    """Return a `preexec_fn` (for `subprocess`) that makes the kernel kill the child as soon as its
    parent is gone. None on systems that have no such call (macOS).

    The child gets SIGKILL however the parent ends, `kill -9` included: a child that ignored a
    milder signal would keep its port and its files.

    Linux takes the *thread* that starts the child for its parent: start children from a thread that
    lives as long as they should (an event loop's, never `asyncio.to_thread`).
    """
    if sys.platform != "linux":
        return None
    # Looked up before the fork: after it, another thread's lock may be held for ever.
    prctl = ctypes.CDLL(None).prctl
    prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
    parent = os.getpid()

    def arm() -> None:
        """Ask the kernel for SIGKILL at the parent's death; runs in the child."""
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)  # the parent was gone before we asked

    return arm
