"""When to look at what triggers hold, though no event comes: for one partition of a Sensor."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush


class Timers:
    """Times (ms since the Unix epoch) by key. A time that was changed stays in the heap, and is
    passed over there."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def set(self, key: str, at: int | None) -> None:
        """The one time of this key; None: it has none any more."""
        if at is None:
            self._times.pop(key, None)
        elif self._times.get(key) != at:
            self._times[key] = at
            heappush(self._heap, (at, key))
        if len(self._heap) > 2 * len(self._times) + 100:
            self._heap = [(time, key) for key, time in self._times.items()]
            heapify(self._heap)

    def of(self, key: str) -> int | None:
        return self._times.get(key)

    @property
    def first(self) -> int | None:
        """The earliest."""
        while self._heap:
            at, key = self._heap[0]
            if self._times.get(key) == at:
                return at
            heappop(self._heap)
        return None

    def until(self, time: int) -> Iterator[str]:
        """The keys whose time has come by then, which have none any more."""
        while (first := self.first) is not None and first <= time:
            _, key = heappop(self._heap)
            del self._times[key]
            yield key
