"""Activity: decides whether a Trigger is so busy that it needs its own dispatcher. Pure.

    quiet --high lag or delivery rate for 30 s--> busy --low lag and rate for 10 min--> quiet

Between the limits the activity stays. Only samples since the last change count, so that two changes
are at least 30 s or 10 min apart.

Not here: taking the samples, and where a Trigger is delivered then (`dispatchers.move_decisions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

BUSY_LAG: Final = 10
"""A Trigger is busy with a lag above this multiple of its lag-threshold, for which it would have as
many dispatchers."""
BUSY_RATE: Final = 1000.0
"""Average deliveries per second above which a Trigger is busy: they take 3 to 5 % of a process's
core (docs/decisions/0018-shared-dispatchers.md), so that some dozen Triggers below this rate fit
into one."""
BUSY_SECONDS: Final = 30.0
"""Seconds for which a Trigger must be busy: a shorter burst is no reason to move it."""
QUIET_RATE: Final = 10.0
"""Average deliveries per second below which a Trigger doesn't disturb others in its shard."""
QUIET_SECONDS: Final = 600.0
"""Seconds for which a Trigger must be quiet: a move back isn't urgent, and a Trigger that is busy
every few minutes would be moved all the time."""


@dataclass(frozen=True, slots=True)
class ActivityLimits:
    """The limits between busy and quiet; the defaults are the constants above."""

    busy_lag: int = BUSY_LAG
    """In multiples of the Trigger's lag threshold."""
    busy_rate: float = BUSY_RATE
    """Events delivered per second, above which a Trigger is busy."""
    busy_for: float = BUSY_SECONDS
    """Seconds above a limit after which a Trigger counts as busy."""
    quiet_rate: float = QUIET_RATE
    """Events delivered per second, up to which a Trigger is quiet."""
    quiet_for: float = QUIET_SECONDS
    """Seconds below the limits after which a Trigger counts as quiet."""


DEFAULT_LIMITS: Final = ActivityLimits()
"""The limits that every installation has."""


class Activity(StrEnum):
    """A Trigger's activity; a busy Trigger needs its own dispatcher."""

    QUIET = "quiet"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class Sample:
    """Deliveries and lag of a Trigger at one time."""

    time: float
    """Seconds, by a clock that only goes forward."""
    delivered: int
    """Events delivered so far; fewer than in the previous sample means that counting restarted."""
    lag: int | None
    """Number of waiting events; None: not known, so that the activity stays."""


@dataclass(frozen=True, slots=True)
class ActivityState:
    """A Trigger's activity, and since when the Trigger has it."""

    activity: Activity
    since: float
    """Time of the sample with which the activity began."""


def judge_activity(
    previous: ActivityState,
    samples: Sequence[Sample],
    lag_threshold: int,
    limits: ActivityLimits = DEFAULT_LIMITS,
) -> ActivityState:
    """Return a Trigger's activity after `samples`, in the order of time; `previous` itself if the
    activity stays. `lag_threshold` is the Trigger's, in events; `limits.busy_lag` is a multiple of
    it.

    A quiet Trigger becomes busy if its lag was always above the limit, or if its average delivery
    rate is; a busy one becomes quiet if its lag was always known and not above the limit, and its
    rate is low. Only the samples of the last `decisive_seconds` and the one before them count.
    While the samples don't reach back that far, the activity stays.
    """

    def is_above_busy_lag(lag: int) -> bool:
        """Whether a lag is above the limit for a busy Trigger."""
        return lag > limits.busy_lag * lag_threshold

    recent = _samples_of_last(samples, decisive_seconds(previous.activity, limits), previous.since)
    if not recent:
        return previous
    # An unknown lag (None) counts as neither high nor low.
    if previous.activity is Activity.QUIET:
        was_always_high = all(
            sample.lag is not None and is_above_busy_lag(sample.lag) for sample in recent
        )
        if was_always_high or _delivery_rate(recent) > limits.busy_rate:
            return ActivityState(Activity.BUSY, samples[-1].time)
    else:
        was_always_low = all(
            sample.lag is not None and not is_above_busy_lag(sample.lag) for sample in recent
        )
        if was_always_low and _delivery_rate(recent) < limits.quiet_rate:
            return ActivityState(Activity.QUIET, samples[-1].time)
    return previous


def decisive_seconds(activity: Activity, limits: ActivityLimits = DEFAULT_LIMITS) -> float:
    """Return for how many seconds samples must speak against this activity until a Trigger no
    longer has it."""
    return limits.busy_for if activity is Activity.QUIET else limits.quiet_for


def relative_load(
    samples: Sequence[Sample], lag_threshold: int, limits: ActivityLimits = DEFAULT_LIMITS
) -> float:
    """Return how busy a Trigger is over `samples` (two or more): its last lag or its delivery rate,
    whichever is larger, relative to the limit for a busy Trigger. 1 means at the limit; an unknown
    lag counts as 0.
    """
    relative_lag = (samples[-1].lag or 0) / (limits.busy_lag * lag_threshold)
    return max(relative_lag, _delivery_rate(samples) / limits.busy_rate)


def _samples_of_last(samples: Sequence[Sample], seconds: float, since: float) -> Sequence[Sample]:
    """Return the latest samples that together cover `seconds`. Samples from before time `since`
    don't count; empty if the others don't reach back that far."""
    recent: list[Sample] = []
    for sample in reversed(samples):
        if sample.time < since:
            break
        recent.insert(0, sample)
        if samples[-1].time - sample.time >= seconds:
            return recent
    return ()


def _delivery_rate(samples: Sequence[Sample]) -> float:
    """Return the deliveries per second between the first and the last of two or more samples."""
    # If a sample has fewer deliveries than the one before, counting restarted at 0 in between.
    delivered = sum(
        later.delivered - (earlier.delivered if earlier.delivered <= later.delivered else 0)
        for earlier, later in pairwise(samples)
    )
    return delivered / (samples[-1].time - samples[0].time)
