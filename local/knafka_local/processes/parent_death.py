"""What every child process of the local mode needs, whichever program it runs.

Not here: starting, watching or restarting anything; that is done by the owner of the
child.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> Callable[[], None] | None:
    """A `preexec_fn` that has the kernel kill the child as soon as its parent is gone.

    It works however the parent ends, `kill -9` included, and with SIGKILL, since a child that
    ignored anything milder would hold its port and its files. None where the system offers no
    such thing (macOS).

    Linux takes the *thread* that starts the child for its parent: start children from a thread
    that lives as long as they should (an event loop's, never `asyncio.to_thread`).
    """
    if sys.platform != "linux":
        return None
    # Looked up before the fork: after it, another thread's lock may be held for ever.
    prctl = ctypes.CDLL(None).prctl
    prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
    parent = os.getpid()

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)  # the parent was gone before we asked

    return arm
