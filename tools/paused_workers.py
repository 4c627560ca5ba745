"""Stops pytest-xdist's workers again and again, as a busy machine does.

A test that takes real time for its own fails if its process doesn't run for a second, but seldom
enough to pass ten times. Beside a run whose workers are stopped half of the time it fails soon.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psutil

WORKER: Final = "sys.stdin.readline"
"""What the command line of a worker has: execnet sends it its program."""
LOOK_INTERVAL: Final = 0.5
"""Seconds between two looks for new workers."""


@contextmanager
def pausing_workers(run: int, pause: float, chance: random.Random) -> Iterator[None]:
    """While the context is open, stop each worker of the run with process id `run` for about
    `pause` seconds, then let it run for about as long, and so on. All run on at the end."""
    is_over = threading.Event()
    thread = threading.Thread(target=_pause_all, args=(run, pause, chance, is_over))
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _pause_all(run: int, pause: float, chance: random.Random, is_over: threading.Event) -> None:
    threads: dict[int, threading.Thread] = {}
    while not is_over.wait(LOOK_INTERVAL):
        for worker in _workers(run):
            if worker.pid not in threads:
                thread = threading.Thread(target=_pause, args=(worker, pause, chance, is_over))
                threads[worker.pid] = thread
                thread.start()
    for thread in threads.values():
        thread.join()


def _pause(
    worker: psutil.Process, pause: float, chance: random.Random, is_over: threading.Event
) -> None:
    with suppress(psutil.NoSuchProcess):
        while not is_over.wait(pause * chance.uniform(0.2, 1.8)):
            worker.suspend()
            try:
                is_over.wait(pause * chance.uniform(0.5, 1.5))
            finally:
                worker.resume()


def _workers(run: int) -> list[psutil.Process]:
    """The run's workers; not the processes that these start."""
    with suppress(psutil.NoSuchProcess):
        return [each for each in psutil.Process(run).children() if _is_worker(each)]
    return []


def _is_worker(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return any(WORKER in word for word in process.cmdline())
    return False
