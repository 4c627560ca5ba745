"""Measures the CPU and memory of processes and their descendants between two moments.

A process that ends meanwhile isn't counted: a measured process must live until `end`.
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
"""Seconds between two measurements of memory, for its peak."""


def family(pid: int) -> Iterator[psutil.Process]:
    """Yield a process and all its descendants, as far as they still run."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        yield process
        yield from process.children(recursive=True)


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the CPU that running processes and their descendants have used until now."""
    return sum(sum(cpu_nanoseconds(pid).values()) for pid in pids) / 1e9


def cpu_nanoseconds(pid: int) -> Counter[int]:
    """Return the CPU, in user and system mode, that a process and each descendant have used until
    now, by pid."""
    spent: Counter[int] = Counter()
    for process in family(pid):
        with suppress(OSError):  # it has ended
            spent[process.pid] = time.clock_gettime_ns(_clock_of(process.pid))
    return spent


def _clock_of(pid: int) -> int:
    """Return Linux's clock of a process's CPU time, in nanoseconds; /proc counts only hundredths of
    a second."""
    return ~pid << 3 | 2


def resident_mb(pids: Sequence[int]) -> float:
    """Return the resident memory of processes and their descendants, in megabytes (2**20 bytes)."""
    held = 0
    for pid in pids:
        for process in family(pid):
            with suppress(psutil.NoSuchProcess):
                held += process.memory_info().rss
    return held / 2**20


class Usage:
    """The usage of named groups of processes, from its creation until `end`."""

    def __init__(self, groups: Mapping[str, Sequence[int]]) -> None:
        """Begin to measure; `groups` has the pids of each group, whose descendants count too."""
        self._groups = groups
        self._began = time.monotonic()
        self._machine = _machine_cpu()
        self._cpu = self._cpu_now()
        self._peaks: dict[str, float] = dict.fromkeys(groups, 0.0)
        self._sampling = asyncio.create_task(self._sample())

    def end(self) -> dict[str, Any]:
        """Return by group the seconds of CPU (`cpu_s`) and megabytes (`rss_mb`, `rss_peak_mb`);
        also the CPU of the whole machine and of all other processes."""
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
        """Return the nanoseconds of CPU that each process has used until now, by group and pid."""
        return {
            name: sum(map(cpu_nanoseconds, pids), Counter()) for name, pids in self._groups.items()
        }

    def _resident(self) -> dict[str, float]:
        """Return the resident memory of each group in megabytes."""
        return {name: resident_mb(pids) for name, pids in self._groups.items()}

    async def _sample(self) -> None:
        """Keep the peaks of memory up to date until cancelled."""
        while True:
            for name, held in self._resident().items():
                self._peaks[name] = max(self._peaks[name], held)
            await asyncio.sleep(SAMPLE_INTERVAL)


def _machine_cpu() -> float:
    """Return the seconds of CPU that all processes of the machine have used; `user` includes
    guests."""
    spent = psutil.cpu_times()
    return float(sum(spent[:8]) - spent.idle - spent.iowait)
