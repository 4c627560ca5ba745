"""The reserve: the last places for attempts, which fill so slowly that some stay free. A drain has
as many places as attempts may be under way at once.

    While most attempts are quick but slow ones hold most places, attempts begin one at a time,
    after a delay. Once a place becomes free, or if no attempt is quicker than others, attempts may
    fill all places.

Where one attempt in a hundred takes 5 s and the others 1 ms, slow attempts take all places within
half a second, and nothing is sent until the first of them ends. So once slow attempts hold four
fifths of the places, other attempts begin so slowly that the remaining places last as long again as
the oldest slow attempt has taken so far. In the long run, as many events are delivered as without a
reserve.

Not here: which event is next (`pending`, `workers`). Times are Unix time, in seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from knafka.observability import BUCKETS, Histogram

RESERVE_SHARE: Final = 5
"""One in this many places belongs to the reserve."""
MIN_PLACES: Final = 10
"""Fewest places with a reserve; with fewer, the reserve would be one place or none."""
USUAL_QUANTILE: Final = 0.75
"""The quantile of recent durations that counts as the usual duration."""
SLOW_FACTOR: Final = 4
"""An attempt is slow after this multiple of the usual duration, rounded up to a histogram
bucket."""
MIN_SLOW_SECONDS: Final = 0.025
"""Seconds within which no attempt counts as slow."""
MEMORY_SECONDS: Final = 30.0
"""Seconds of history that the usual duration is computed from, at least; twice as many at most."""
MAX_DELAY: Final = 0.1
"""Seconds between two attempts at most, as long as a place is left."""
RESERVE_CHECK_INTERVAL: Final = 0.005
"""Seconds between two checks of the attempts under way, while too few of them are slow."""


class Reserve:
    """Delays the attempts of one drain while slow ones hold most places."""

    def __init__(self, durations: Histogram) -> None:
        """`durations` is the histogram of the drain's ended attempts, in seconds."""
        self._durations = durations
        self._counted_at = 0.0
        """When the counts below were last taken."""
        self._older = self._newer = [0] * len(durations.counts)
        """The histogram's counts at the start of the period that is evaluated, and at the start of
        the next one."""
        self._unchecked_until = 0.0
        """Until when attempts may begin without a check (`may_begin_unchecked`)."""
        self._next_at = 0.0
        """When the next attempt may begin in the reserve."""

    def may_begin_unchecked(self, oldest_began_at: float, now: float) -> bool:
        """Whether an attempt may begin at `now` without a call of `delay_before_attempt`, which
        checks all attempts under way; `oldest_began_at` is when the first of these began."""
        none_is_slow = now - oldest_began_at <= MIN_SLOW_SECONDS
        seconds_left = self._unchecked_until - now  # more than the interval: the clock was set back
        return none_is_slow or 0 < seconds_left <= RESERVE_CHECK_INTERVAL

    def delay_before_attempt(self, began_times: Iterable[float], places: int, now: float) -> float:
        """Return the seconds that the next attempt must wait. 0: the caller may begin it, and it
        counts as begun at `now`.

        `began_times` yields when each attempt under way began, the oldest first; `places` is how
        many may be under way.
        """
        if places < MIN_PLACES or (recent := self._recent_durations(now)) is None:
            return self._skip_checks(now)
        slow_from, ended, ended_slow = recent
        slow_count, longest_duration = 0, 0.0
        for began_at in began_times:
            duration = now - began_at
            if duration <= slow_from:
                break  # the later ones are even shorter
            slow_count, longest_duration = slow_count + 1, max(longest_duration, duration)
        if slow_count * RESERVE_SHARE < places * (RESERVE_SHARE - 1):
            return self._skip_checks(now)  # slow attempts hold less than four fifths of the places
        # A later time than `MAX_DELAY` from now means that the clock was set back.
        if now < self._next_at <= now + MAX_DELAY:
            return self._next_at - now
        # At this pace, the slow ones among the next attempts take half of the free places while the
        # oldest attempt doubles its time.
        slow_share = (ended_slow + slow_count) / (ended + slow_count)
        free_places = max(1, places - slow_count)
        delay_to_next = min(2 * slow_share * longest_duration / free_places, MAX_DELAY)
        # An attempt that begins up to `RESERVE_CHECK_INTERVAL` late doesn't delay the next ones.
        self._next_at = max(self._next_at, now - RESERVE_CHECK_INTERVAL) + delay_to_next
        return 0.0

    def _skip_checks(self, now: float) -> float:
        """Let attempts begin without a check for `RESERVE_CHECK_INTERVAL`; returns no delay."""
        self._unchecked_until = now + RESERVE_CHECK_INTERVAL
        return 0.0

    def _recent_durations(self, now: float) -> tuple[float, int, int] | None:
        """Return the seconds after which an attempt is slow, the number of attempts that have ended
        lately, and how many of these were slow. None: none has ended, or the usual duration is too
        long for the histogram to tell slow attempts. Also begins a new period if the present one is
        over."""
        counts = self._durations.counts
        if not 0 <= now - self._counted_at <= MEMORY_SECONDS:  # below 0: the clock was set back
            self._counted_at, self._older, self._newer = now, self._newer, list(counts)
        recent = [count - earlier for count, earlier in zip(counts, self._older, strict=True)]
        total = sum(recent)
        if not total:
            return None
        # Find the bucket of the usual duration: up to it, enough attempts are counted.
        usual_bucket, count_up_to_bucket = 0, recent[0]
        while count_up_to_bucket < USUAL_QUANTILE * total:
            usual_bucket += 1
            count_up_to_bucket += recent[usual_bucket]
        if usual_bucket >= len(BUCKETS):
            return None
        slow_bucket = bisect_left(
            BUCKETS, max(MIN_SLOW_SECONDS, SLOW_FACTOR * BUCKETS[usual_bucket])
        )
        if slow_bucket >= len(BUCKETS):
            return None
        return BUCKETS[slow_bucket], total, sum(recent[slow_bucket + 1 :])
