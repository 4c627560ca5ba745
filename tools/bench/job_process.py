"""Runs a job in a process of its own and measures its time, CPU and memory, its descendants
included."""

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
"""Seconds between two measurements of the processes."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a job returned, printed and used."""

    exit_code: int
    answer: str
    """What it wrote to stdout."""
    said: str
    """What it wrote to stderr."""
    seconds: float
    cpu_seconds: float
    """CPU of all its processes; it varies less than `seconds` on a busy machine."""
    peak_bytes: int
    """The highest resident memory of all its processes; pages that forked processes share count for
    each."""


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    at_each: Callable[[psutil.Process], None] = lambda process: None,
) -> Ended:
    """Run `command` to its end; `environment` is added to this process's own. `at_each` is called
    with each of its processes at every measurement."""
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

    def measure() -> None:
        """Measure the job's processes every `LOOK_INTERVAL` seconds until it ends."""
        nonlocal peak
        while job.poll() is None:
            resident = 0
            for process in family(job.pid):
                with suppress(psutil.NoSuchProcess):  # it has just ended
                    at_each(process)
                    resident += process.memory_info().rss
                    spent[process.pid] = sum(process.cpu_times()[:2])
            peak = max(peak, resident)
            time.sleep(LOOK_INTERVAL)

    measuring = threading.Thread(target=measure)
    measuring.start()
    answer, said = job.communicate()
    measuring.join()
    seconds = time.monotonic() - begun
    return Ended(job.returncode, answer, said, seconds, sum(spent.values()), peak)
