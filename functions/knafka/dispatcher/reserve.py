"""The reserve: the last places of a dispatcher, spent so slowly that some stay free.

    most attempts are quick, most places are held by slow ones --> one attempt after a pause
    a place comes free, or no attempt is quicker than others   --> as many as there are places

Where one attempt of a hundred takes 5 s and the others 1 ms, slow ones take all places within half
a second, and nobody is sent anything until the first of them is over. So once they hold four places
of five, the others begin at a pace by which what is left lasts for as long again as the oldest slow
attempt has taken already. Over time as many events are delivered as without it.

Which event is next is not decided here: order is as ever. Times are Unix time, in seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from knafka.observability import BUCKETS, Histogram

SHARE: Final = 5
"""One place of so many belongs to the reserve."""
FEWEST_PLACES: Final = 10
"""With fewer there is no reserve: it would be a place or none."""
QUICK: Final = 0.75
"""The share of attempts that say how long one takes usually."""
TIMES_SLOWER: Final = 4
"""From so many times that on, as the buckets of a histogram have it, an attempt is slow."""
LEAST_SLOW: Final = 0.025
"""Seconds for which no attempt is slow."""
MEMORY: Final = 30.0
"""Seconds, and as much again at most, whose attempts say what is usual."""
LONGEST_PAUSE: Final = 0.1
"""Seconds between two attempts at most, as long as a place is left."""
LOOK_INTERVAL: Final = 0.005
"""Seconds until the attempts under way are looked at again, while too few of them are slow."""


class Reserve:
    """Of one drain; `took` counts the attempts that are over."""

    def __init__(self, took: Histogram) -> None:
        self._took = took
        self._counted_at = 0.0
        self._older = self._newer = [0] * len(took.counts)
        """The counts when what is usual began to be counted, and for the next time."""
        self._free_until = 0.0
        self._next_at = 0.0

    def is_free(self, oldest: float, now: float) -> bool:
        """Whether an attempt may begin for certain; `oldest` is when the first of those began that
        are under way."""
        left = self._free_until - now
        return now - oldest <= LEAST_SLOW or 0 < left <= LOOK_INTERVAL

    def pause(self, began: Iterable[float], places: int, now: float) -> float:
        """Seconds that an attempt has to wait that could begin now; 0: it begins, and is counted.

        `began` has when each attempt under way began, the oldest first.
        """
        if places < FEWEST_PLACES or (usual := self._usual(now)) is None:
            return self._free(now)
        slow_from, ended, ended_slow = usual
        slow, oldest = 0, 0.0
        for at in began:
            if now - at <= slow_from:
                break
            slow, oldest = slow + 1, max(oldest, now - at)
        if slow * SHARE < places * (SHARE - 1):
            return self._free(now)
        if now < self._next_at <= now + LONGEST_PAUSE:
            return self._next_at - now
        # So many attempts take half of the places that are left, while the oldest doubles its time.
        share = (ended_slow + slow) / (ended + slow)
        pause = min(2 * share * oldest / max(1, places - slow), LONGEST_PAUSE)
        self._next_at = max(self._next_at, now - LOOK_INTERVAL) + pause
        return 0.0

    def _free(self, now: float) -> float:
        self._free_until = now + LOOK_INTERVAL
        return 0.0

    def _usual(self, now: float) -> tuple[float, int, int] | None:
        """From how many seconds on an attempt is slow; how many have ended lately, and how many
        slow ones. None: none has ended, or they all take their time."""
        counts = self._took.counts
        if not 0 <= now - self._counted_at <= MEMORY:
            self._counted_at, self._older, self._newer = now, self._newer, list(counts)
        lately = [count - before for count, before in zip(counts, self._older, strict=True)]
        total = sum(lately)
        if not total:
            return None
        below, quick = 0, 0
        while (below := below + lately[quick]) < QUICK * total:
            quick += 1
        if quick >= len(BUCKETS):
            return None
        slow = bisect_left(BUCKETS, max(LEAST_SLOW, TIMES_SLOWER * BUCKETS[quick]))
        if slow >= len(BUCKETS):
            return None
        return BUCKETS[slow], total, sum(lately[slow + 1 :])
