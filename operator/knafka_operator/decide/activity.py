"""Activity: whether a Trigger has so much to do that it needs a dispatcher of its own. Pure.

    quiet --much waits, or much is delivered, for 30 s--> busy --little of both, for 10 min--> quiet

In between it stays what it was. Only samples since the last change count, so that two changes are
never nearer to each other than the time that the second one takes to be seen.

Not here: taking the samples, and where a Trigger is delivered then (`decide.moves`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

BUSY_LAG: Final = 10
"""Times its lag-threshold, which would be as many dispatchers: more than that waits."""
BUSY_RATE: Final = 1000.0
"""Deliveries a second, on average: 3 to 5 % of the one core that a process uses
(docs/decisions/0018-shared-dispatchers.md), so that some dozen Triggers below it have room."""
BUSY_FOR: Final = 30.0
"""Seconds: a burst that a shared dispatcher has worked off sooner is no reason to move."""
QUIET_RATE: Final = 10.0
"""Deliveries a second, on average, below which its neighbours don't notice it."""
QUIET_FOR: Final = 600.0
"""Seconds: a move back can wait, and what is busy every few minutes would be moved all the time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What is busy and what is quiet, as the constants above have it."""

    busy_lag: int = BUSY_LAG
    busy_rate: float = BUSY_RATE
    busy_for: float = BUSY_FOR
    quiet_rate: float = QUIET_RATE
    quiet_for: float = QUIET_FOR


USUAL: Final = Limits()


class Activity(StrEnum):
    """What it needs."""

    QUIET = "quiet"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class Sample:
    """What was known of a Trigger at one time."""

    time: float
    """Seconds, by a clock that only goes forward."""
    delivered: int
    """Events delivered so far; less than in the last sample: counted anew."""
    lag: int | None
    """Events waiting; None: not known, which is no reason for any change."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What it was found to be, and since when (a sample's time)."""

    activity: Activity
    since: float


def judge(
    before: Judged, samples: Sequence[Sample], lag_threshold: int, limits: Limits = USUAL
) -> Judged:
    """What it is now, by samples in the order of their times; `before` where they don't say.

    Those of the last `span` seconds are enough, and the one before these.
    """

    def is_much(lag: int) -> bool:
        return lag > limits.busy_lag * lag_threshold

    recent = _since(samples, span(before.activity, limits), before.since)
    if before.activity is Activity.QUIET:
        much = [each.lag is not None and is_much(each.lag) for each in recent]
        if recent and (all(much) or _rate(recent) > limits.busy_rate):
            return Judged(Activity.BUSY, samples[-1].time)
    else:
        little = [each.lag is not None and not is_much(each.lag) for each in recent]
        if recent and all(little) and _rate(recent) < limits.quiet_rate:
            return Judged(Activity.QUIET, samples[-1].time)
    return before


def span(activity: Activity, limits: Limits = USUAL) -> float:
    """Seconds whose samples say whether it isn't that any more."""
    return limits.busy_for if activity is Activity.QUIET else limits.quiet_for


def load(samples: Sequence[Sample], lag_threshold: int, limits: Limits = USUAL) -> float:
    """How busy it is, to compare it with others: 1 is at the limit, by what waits or is delivered.

    Of the whole time of the samples, two at least.
    """
    waiting = (samples[-1].lag or 0) / (limits.busy_lag * lag_threshold)
    return max(waiting, _rate(samples) / limits.busy_rate)


def _since(samples: Sequence[Sample], seconds: float, since: float) -> Sequence[Sample]:
    """The samples of so many seconds until the last one; none if they don't go back so far."""
    recent: list[Sample] = []
    for each in reversed(samples):
        if each.time < since:
            break
        recent.insert(0, each)
        if samples[-1].time - each.time >= seconds:
            return recent
    return ()


def _rate(samples: Sequence[Sample]) -> float:
    """Deliveries a second between the first and the last one."""
    grown = sum(
        later.delivered - (earlier.delivered if earlier.delivered <= later.delivered else 0)
        for earlier, later in pairwise(samples)
    )
    return grown / (samples[-1].time - samples[0].time)
