"""Activity: whether a Trigger has so much to do that it needs a dispatcher of its own. Pure.

    quiet --much waits, or much is delivered, for 30 s--> busy --little of both, for 10 min--> quiet

In between it stays what it was. Only samples since the last change count, so that two changes are
never nearer to each other than the time that the second one takes to be seen.

Not here: taking the samples, and where a Trigger is delivered then.
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


def judge(before: Judged, samples: Sequence[Sample], lag_threshold: int) -> Judged:
    """What it is now, by samples in the order of their times; `before` where they don't say.

    Those of the last `QUIET_FOR` seconds are enough, and the one before these.
    """
    if before.activity is Activity.QUIET:
        recent = _since(samples, BUSY_FOR, before.since)
        much = [each.lag is not None and _is_much(each.lag, lag_threshold) for each in recent]
        if recent and (all(much) or _rate(recent) > BUSY_RATE):
            return Judged(Activity.BUSY, samples[-1].time)
    else:
        recent = _since(samples, QUIET_FOR, before.since)
        little = [each.lag is not None and not _is_much(each.lag, lag_threshold) for each in recent]
        if recent and all(little) and _rate(recent) < QUIET_RATE:
            return Judged(Activity.QUIET, samples[-1].time)
    return before


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


def _is_much(lag: int, lag_threshold: int) -> bool:
    return lag > BUSY_LAG * lag_threshold


def _rate(samples: Sequence[Sample]) -> float:
    """Deliveries a second between the first and the last one."""
    grown = sum(
        later.delivered - (earlier.delivered if earlier.delivered <= later.delivered else 0)
        for earlier, later in pairwise(samples)
    )
    return grown / (samples[-1].time - samples[0].time)
