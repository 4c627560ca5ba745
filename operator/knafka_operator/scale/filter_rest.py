"""Filter rest: pauses the drains of a Trigger whose filter passes no event of a busy topic.

    drains --nothing passes for cooldown-period, and caught up--> rests --rest is over--> drains
             --something passes--> drains until nothing does for cooldown-period

A busy topic keeps a Trigger's own dispatchers running even if all events are filtered out. So their
drains (memberships in the consumer group) are ended, and the waiting events are filtered after 10,
20, 40, then every 60 s. An event that passes waits that long at most; none is missed, since the
group's offsets stay where the last drain left them.

Triggers of a Sensor's actions never rest: their topic is the Sensor's own, and few events are
filtered out there.

Not here: ending and opening drains (`scaler`); Triggers in a shared dispatcher don't rest, as they
share its reads.
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
"""A request within this many seconds after another one continues its drain."""
CAUGHT_UP_SECONDS: Final = 5.0
"""A Trigger has caught up if its waiting events take at most this many seconds to filter."""


class FilterRest:
    """Decides when the own drains of one Trigger rest; all times are by the event loop's clock."""

    def __init__(self) -> None:
        self._passed_at = -math.inf
        """When an event last passed the filter, or the drains began."""
        self._rest_until = -math.inf
        """When the rest is over."""
        self._request_ended_at = -math.inf
        """When the last drain request ended."""
        self._rests = 0
        """Number of rests in a row without an event that passed."""
        self._initial_lag = 0
        """Lag when the drains began."""
        self._checked_at = -math.inf
        """When `_filtered` was last read, or the drains began."""
        self._filtered = 0
        """Number of events that the drains had filtered out at `_checked_at`, the last check."""

    def is_resting(self, now: float) -> bool:
        """Whether the Trigger rests now, so that waiting events open no drain."""
        return now < self._rest_until

    def seconds_left(self, now: float) -> float:
        """Return the seconds until the rest is over; 0: it is over."""
        return max(0.0, self._rest_until - now)

    def on_begin(self, lag: int, now: float) -> None:
        """Record that a drain request was opened while there was none, at this lag (records): a
        drain begins, or an earlier one continues."""
        # A continued drain keeps the time without a passed event.
        if now - self._request_ended_at > SAME_DRAIN_SECONDS:
            self._passed_at = now
        self._checked_at = now
        self._initial_lag, self._filtered = lag, 0

    def on_request_end(self, now: float) -> None:
        """Record that a drain request has ended."""
        self._request_ended_at = now

    def on_progress(self, previous: DrainProgress | None, line: DrainProgress, now: float) -> None:
        """Record `line`, a drain's new progress; `previous` is the last one recorded, None: there
        is none. An event that may have passed the filter ends the rest."""
        newly_passed = _passed_count(line) - (0 if previous is None else _passed_count(previous))
        # Records that aren't settled, or wait without an attempt, may have passed the filter.
        if newly_passed > 0 or line.unsettled or line.congestion:
            self.reset()
            self._passed_at = now

    def reset(self) -> None:
        """End the rest, as an event has passed or the filter has changed."""
        self._rest_until, self._rests = -math.inf, 0

    def begin_if_filtered(
        self, lag: int, drains: Collection[DrainProgress], autoscaling: Autoscaling, now: float
    ) -> bool:
        """Begin a rest if the open drains have caught up, and no event has passed the filter for
        `cooldown-period`; returns whether a rest has begun. `lag` is the number of waiting events,
        `drains` has the last progress of each open drain."""
        filtered = sum(drain_progress.filtered for drain_progress in drains)
        newly_filtered = filtered - self._filtered
        filtered_per_second = newly_filtered / max(now - self._checked_at, 1.0)
        self._checked_at, self._filtered = now, filtered
        may_rest = autoscaling.may_rest and not autoscaling.min_scale
        # At least the events that waited when the drains began must have been filtered out.
        has_filtered = newly_filtered > 0 and filtered >= self._initial_lag
        # After a rest, the drains rest again as soon as they have caught up.
        seconds_awake = 0.0 if self._rests else autoscaling.cooldown_period
        has_passed_nothing = now - self._passed_at >= seconds_awake
        small_lag = CAUGHT_UP_SECONDS * filtered_per_second
        has_caught_up = lag <= max(autoscaling.lag_threshold, small_lag)
        if not (may_rest and has_filtered and has_passed_nothing and has_caught_up):
            return False
        self._rest_until = now + min(autoscaling.polling_interval * 2.0**self._rests, LONGEST_REST)
        self._rests = min(self._rests + 1, 16)  # enough for `LONGEST_REST`
        return True


def _passed_count(line: DrainProgress) -> int:
    """Return how many events of a drain have passed the filter, by their outcomes."""
    return line.delivered + line.retried + line.dead_lettered + line.lost
