"""Moves: which `auto` Triggers go to a dispatcher of their own now, and which come back. Pure.

    status -> sample -> history, bounded -> what it needs (`activity`) -> wanted moves -> some now

A shared dispatcher that was without Kafka, or an operator that was away, finds a backlog for all
of its Triggers: what is worked off meanwhile needn't move, so they move a few at a time, the
busiest first.

Not here: asking the scaler, and moving (`reconcile.moves`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from knafka_operator.decide.activity import (
    USUAL,
    Activity,
    Judged,
    Limits,
    Sample,
    judge,
    load,
    span,
)
from knafka_operator.decide.scaling import Cause, TriggerStatus
from knafka_operator.model.identity import Identity
from knafka_operator.model.isolation import Isolation

MOVES: Final = 5
"""Of one Broker, in each direction, within `MOVES_WITHIN`: each makes a Knative Service and a pod,
or ends them."""
MOVES_WITHIN: Final = 60.0
"""Seconds."""

NEEDS: Final = {Activity.BUSY: Isolation.OWN, Activity.QUIET: Isolation.SHARED}


@dataclass(slots=True)
class History:
    """What one Trigger has done lately: 7 samples while it is shared, 121 while it isn't, where
    one is taken every 5 s; some 150 bytes each."""

    judged: Judged
    samples: deque[Sample] = field(default_factory=deque)

    def add(self, sample: Sample, limits: Limits = USUAL) -> None:
        """Keep what can be judged by, and no more."""
        since = sample.time - span(self.judged.activity, limits)
        while len(self.samples) > 1 and self.samples[1].time <= since:
            self.samples.popleft()
        self.samples.append(sample)


@dataclass(frozen=True, slots=True)
class Move:
    """What would be better off elsewhere."""

    trigger: Identity
    broker: Identity
    to: Isolation
    load: float
    why: str
    """For people."""


def sample(status: TriggerStatus, now: float) -> Sample:
    """What counts of a status.

    A lag that stands because its subscriber doesn't answer, or its dispatcher fails, is none that
    another dispatcher would work off; one that stands because its filter passes nothing is no work.
    """
    is_held_up = status.error is not None or status.counts.congestion is not None
    if status.scale.cause is Cause.FILTERED_OUT:
        return Sample(now, status.counts.delivered, 0)
    return Sample(now, status.counts.delivered, None if is_held_up else status.lag)


def wanted(
    trigger: Identity, broker: Identity, history: History, threshold: int, limits: Limits = USUAL
) -> Move | None:
    """Where it is better off by its history; None: where it is."""
    judged = judge(history.judged, history.samples, threshold, limits)
    if judged.activity is history.judged.activity:
        return None
    to = NEEDS[judged.activity]
    how = load(history.samples, threshold, limits)
    return Move(trigger, broker, to, how, _why(to, history, threshold, limits))


def _why(to: Isolation, history: History, threshold: int, limits: Limits) -> str:
    if to is Isolation.SHARED:
        return f"quiet for {limits.quiet_for:g} s"
    waiting, much = history.samples[-1].lag or 0, limits.busy_lag * threshold
    if waiting > much:
        return f"{waiting} events waiting, more than {much} for {limits.busy_for:g} s"
    return f"more than {limits.busy_rate:g} events a second for {limits.busy_for:g} s"


def choose(moves: Iterable[Move], made: Collection[Move]) -> list[Move]:
    """Those that go now, busiest first; `made` were in the last `MOVES_WITHIN` seconds."""
    before: dict[tuple[Identity, Isolation], int] = {}
    for each in made:
        before[each.broker, each.to] = before.get((each.broker, each.to), 0) + 1
    chosen = []
    for each in sorted(moves, key=lambda move: -move.load):
        count = before.get((each.broker, each.to), 0)
        if count < MOVES:
            before[each.broker, each.to] = count + 1
            chosen.append(each)
    return chosen
