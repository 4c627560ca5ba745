"""The rest of a Trigger whose filter passes nothing of a busy topic.

    drains --nothing passes for cooldown-period, and it has caught up--> rests --its time--> drains
             --something passes--> drains until nothing does for cooldown-period

What is read and filtered out is no work: its own dispatchers would never be idle for it. So they
are ended, and what waits is looked through again after 10, 20, 40, then every 60 s. An event that
does pass waits that long at most, as a first one after a quiet time waits for a start; none is
missed, since the group's offsets are where the last drain has left them.

A Sensor's actions never wait so: their topic is the Sensor's own, and little is filtered out there.

Not here: ending and opening the drains (`scaler`), Triggers in a shared dispatcher, which read what
their neighbours read.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final

from knafka.core.drain import DrainProgress
from knafka_operator.model.autoscaling import Autoscaling

LONGEST_REST: Final = 60.0
"""Longest rest in seconds."""
SAME_DRAIN_SECONDS: Final = 5.0
"""Seconds within which a new request continues the previous request's drain."""
CAUGHT_UP_SECONDS: Final = 5.0
"""A Trigger counts as caught up if its waiting events take at most so many seconds to filter."""


class FilterRest:
    """Decides when the own drains of one Trigger rest; all times are the event loop's."""

    def __init__(self) -> None:
        self._passed_at = -math.inf
        """When an event last passed the filter, or the drains began."""
        self._until = -math.inf
        self._over_at = -math.inf
        self._rests = 0
        """Number of rests in a row without an event that passed."""
        self._waited = 0
        """Lag when the drains began."""
        self._looked = -math.inf
        self._filtered = 0
        """Number of filtered events at the last check, whose time is `_looked`."""

    def is_resting(self, now: float) -> bool:
        """Whether waiting events open no drain now."""
        return now < self._until

    def seconds_left(self, now: float) -> float:
        """Seconds until the rest is over."""
        return max(0.0, self._until - now)

    def on_begin(self, lag: int, now: float) -> None:
        """Note that the first drain has begun, or continues by another request, with this lag."""
        if now - self._over_at > SAME_DRAIN_SECONDS:
            self._passed_at = now
        self._looked = now
        self._waited, self._filtered = lag, 0

    def on_request_end(self, now: float) -> None:
        """Note that a drain request has ended."""
        self._over_at = now

    def on_progress(self, before: DrainProgress | None, line: DrainProgress, now: float) -> None:
        """Note a drain's progress; `before` is its previous progress. An event that passed ends the
        rest."""
        passed = _passed_count(line) - (0 if before is None else _passed_count(before))
        if passed > 0 or line.unsettled or line.congestion:
            self.reset()
            self._passed_at = now

    def reset(self) -> None:
        """End the rest, as an event has passed or the filter has changed."""
        self._until, self._rests = -math.inf, 0

    def begin_if_filtered(
        self, lag: int, drains: Collection[DrainProgress], autoscaling: Autoscaling, now: float
    ) -> bool:
        """Begin a rest if the open drains have caught up and passed nothing; returns whether it has
        begun. `lag` is the number of waiting events."""
        filtered = sum(each.filtered for each in drains)
        grown = filtered - self._filtered
        rate = grown / max(now - self._looked, 1.0)
        self._looked, self._filtered = now, filtered
        awake_for = 0.0 if self._rests else autoscaling.cooldown_period
        if (
            autoscaling.min_scale
            or not autoscaling.may_rest
            or grown <= 0
            or filtered < self._waited
            or now - self._passed_at < awake_for
            or lag > max(autoscaling.lag_threshold, CAUGHT_UP_SECONDS * rate)
        ):
            return False
        self._until = now + min(autoscaling.polling_interval * 2.0**self._rests, LONGEST_REST)
        self._rests = min(self._rests + 1, 16)
        return True


def _passed_count(line: DrainProgress) -> int:
    return line.delivered + line.retried + line.dead_lettered + line.lost
