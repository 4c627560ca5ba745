"""A job in a process of its own, watched until it ends: time, CPU and memory, with all below it."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psutil

from bench.usage import family

LOOK_INTERVAL: Final = 0.2
"""Seconds between two looks."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job went."""

    exit_code: int
    answer: str
    """What it printed."""
    said: str
    """What it logged."""
    seconds: float
    cpu_seconds: float
    """Steadier than `seconds` on a machine that does other things, too."""
    peak_bytes: int
    """What a Python worker shares with the one that it was forked from counts for both."""


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    at_each: Callable[[psutil.Process], None] = lambda process: None,
) -> Ended:
    """Run `command` to its end; `environment` goes over this process's own. `at_each` is called
    with each of its processes at every look."""
    begun = time.monotonic()
    job = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    peak = 0
    spent: dict[int, float] = {}

    def look() -> None:
        nonlocal peak
        while job.poll() is None:
            resident = 0
            for each in family(job.pid):
                with suppress(psutil.NoSuchProcess):  # it has just ended
                    at_each(each)
                    resident += each.memory_info().rss
                    spent[each.pid] = sum(each.cpu_times()[:2])
            peak = max(peak, resident)
            time.sleep(LOOK_INTERVAL)

    looking = threading.Thread(target=look)
    looking.start()
    answer, said = job.communicate()
    looking.join()
    seconds = time.monotonic() - begun
    return Ended(job.returncode, answer, said, seconds, sum(spent.values()), peak)
