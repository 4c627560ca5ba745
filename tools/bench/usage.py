"""Usage: what CPU and memory processes take between two moments, their descendants included.

A process that ends meanwhile is lost: who is measured must live until `end`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import psutil

SAMPLE_INTERVAL: Final = 0.5
"""Seconds between two looks at memory, for its peak."""


def family(pid: int) -> Iterator[psutil.Process]:
    """A process and all below it, as far as they are there."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        yield process
        yield from process.children(recursive=True)


def cpu_seconds(pids: Sequence[int]) -> float:
    """Of processes that are there, their descendants included, up to now."""
    return sum(sum(cpu_nanoseconds(each).values()) for each in pids) / 1e9


def cpu_nanoseconds(pid: int) -> Counter[int]:
    """Of each process of a family up to now, in user and system mode, by pid."""
    spent: Counter[int] = Counter()
    for each in family(pid):
        with suppress(OSError):  # it has ended
            spent[each.pid] = time.clock_gettime_ns(_clock_of(each.pid))
    return spent


def _clock_of(pid: int) -> int:
    """Linux's clock of a process's CPU time: /proc has it in hundredths of a second."""
    return ~pid << 3 | 2


def resident_mb(pids: Sequence[int]) -> float:
    """Megabytes that the processes hold."""
    held = 0
    for pid in pids:
        for each in family(pid):
            with suppress(psutil.NoSuchProcess):
                held += each.memory_info().rss
    return held / 2**20


class Usage:
    """Of named groups of processes, from when it is made until `end`."""

    def __init__(self, groups: Mapping[str, Sequence[int]]) -> None:
        self._groups = groups
        self._began = time.monotonic()
        self._machine = _machine_cpu()
        self._cpu = self._cpu_now()
        self._peaks: dict[str, float] = dict.fromkeys(groups, 0.0)
        self._sampling = asyncio.create_task(self._sample())

    def end(self) -> dict[str, Any]:
        """Seconds of CPU (`cpu_s`) and megabytes (`rss_mb`, `rss_peak_mb`) by group, and of CPU
        what the machine took in all and what others did."""
        self._sampling.cancel()
        now = self._cpu_now()
        cpu = {name: sum((now[name] - self._cpu[name]).values()) / 1e9 for name in self._groups}
        machine = _machine_cpu() - self._machine
        held = self._resident()
        return {
            "wall_s": time.monotonic() - self._began,
            "cpu_s": cpu,
            "rss_mb": held,
            "rss_peak_mb": {name: max(self._peaks[name], held[name]) for name in held},
            "machine_cpu_s": machine,
            "other_cpu_s": machine - sum(cpu.values()),
        }

    def _cpu_now(self) -> dict[str, Counter[int]]:
        return {
            name: sum(map(cpu_nanoseconds, pids), Counter()) for name, pids in self._groups.items()
        }

    def _resident(self) -> dict[str, float]:
        return {name: resident_mb(pids) for name, pids in self._groups.items()}

    async def _sample(self) -> None:
        while True:
            for name, held in self._resident().items():
                self._peaks[name] = max(self._peaks[name], held)
            await asyncio.sleep(SAMPLE_INTERVAL)


def _machine_cpu() -> float:
    """Seconds that all processes of the machine have used; guests are in `user` already."""
    spent = psutil.cpu_times()
    return float(sum(spent[:8]) - spent.idle - spent.iowait)
