"""Rate limit: spaces the attempts at one subscriber so that no unit of time has more than declared.

Attempts begin evenly, without bursts: 60 in a minute are one in a second (BUS-S13). Each attempt
counts, also a retry; the first one after a quiet time begins at once. A timer may fire up to
`MAX_TIMER_DELAY` seconds late. The next attempt is then due one interval after the time at which
this one was due, not at which it began: else a limit of a thousand in a second would allow far
fewer. So attempts that fall due before a late timer fires begin together.
"""

from __future__ import annotations

from typing import Final

from knafka.core.contract import RateLimit

MAX_TIMER_DELAY: Final = 0.002
"""Seconds by which a timer may be late: uvloop's timers and clock have whole milliseconds."""


class AttemptRate:
    """Applies the declared rate limit to one drain. A drain must not end while `is_open` is False,
    as the next drain's first attempt may begin at once."""

    def __init__(self, limit: RateLimit) -> None:
        """Begin with an open limit: the first attempt may begin at once. `limit` is the declared
        one."""
        self.is_open = True
        """Whether an attempt may begin."""
        # Attempts that begin within a unit were due within it, or up to `MAX_TIMER_DELAY` before
        # it. So a unit and that delay together may have only as many due times as declared.
        self._interval = limit.interval + MAX_TIMER_DELAY / limit.requests_per_unit
        self._next = 0.0
        """When the next attempt is due, on the clock of `count_attempt`."""

    def count_attempt(self, now: float) -> None:
        """Count an attempt that begins at `now` (seconds of a monotonic clock); the caller then
        calls `refresh` to update `is_open`. The next attempt is due one interval after this one was
        due if this one began on time, a late timer allowed for; else one interval after `now`."""
        is_on_time = self._next <= now <= self._next + MAX_TIMER_DELAY
        self._next = (self._next if is_on_time else now) + self._interval

    def refresh(self, now: float) -> float:
        """Update `is_open` at the time `now`; returns the seconds until the next attempt may begin,
        0 if it may begin now."""
        seconds_left = max(0.0, self._next - now)
        self.is_open = seconds_left == 0
        return seconds_left
