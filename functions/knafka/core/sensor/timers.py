"""Timers for one partition of a Sensor: when held events must be checked although no event
comes."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush


class Timers:
    """Keeps for each key (`records.key_of`) the time (ms since the Unix epoch) at which the events
    that are held there must be checked."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}
        """The time of each key."""
        self._heap: list[tuple[int, str]] = []
        """All times with their keys, also replaced and removed times, which are skipped as they
        differ from `_times`."""

    def set(self, key: str, due_time: int | None) -> None:
        """Set the time of this key (ms since the Unix epoch); None removes the key's time."""
        if due_time is None:
            self._times.pop(key, None)
        elif self._times.get(key) != due_time:
            self._times[key] = due_time
            heappush(self._heap, (due_time, key))
        # Rebuilt once most of its times were replaced or removed; a small heap isn't worth it.
        if len(self._heap) > 2 * len(self._times) + 100:
            self._heap = [(time, key) for key, time in self._times.items()]
            heapify(self._heap)

    def time_of(self, key: str) -> int | None:
        """Return the time of this key (ms since the Unix epoch); None: it has no time."""
        return self._times.get(key)

    @property
    def first(self) -> int | None:
        """The earliest time (ms since the Unix epoch) of all keys; None: no key has a time."""
        while self._heap:
            due_time, key = self._heap[0]
            if self._times.get(key) == due_time:
                return due_time
            heappop(self._heap)  # the key's time was replaced or removed
        return None

    def take_due(self, time: int) -> Iterator[str]:
        """Yield the keys whose times are at or before `time` (ms), the earliest first, and remove
        their times."""
        while (first := self.first) is not None and first <= time:
            _, key = heappop(self._heap)  # `first` has left a valid time at the top
            del self._times[key]
            yield key
