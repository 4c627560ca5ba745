"""Moves: decides which `auto` Triggers move to their own dispatcher now, and which move back. Pure.

    status -> sample -> bounded history -> needed isolation (`activity`) -> desired moves -> moves
    to make now

After an outage of Kafka or the operator, all Triggers of a shared dispatcher have a backlog, most
of which is soon delivered. So Triggers move a few at a time, the busiest first.

Not here: asking the scaler, and moving (`dispatchers.moves`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from knafka_operator.dispatchers.activity import (
    DEFAULT_LIMITS,
    Activity,
    ActivityLimits,
    ActivityState,
    Sample,
    decisive_seconds,
    judge_activity,
    relative_load,
)
from knafka_operator.model.identity import Identity
from knafka_operator.model.isolation import Isolation
from knafka_operator.scale.decide import Cause, ScalingStatus

MAX_MOVES: Final = 5
"""Most moves of one Broker's Triggers in each direction within `MOVES_PERIOD`, since each creates
or deletes a Knative Service and a pod."""
MOVES_PERIOD: Final = 60.0
"""Seconds within which a Broker's Triggers make at most `MAX_MOVES` moves."""

ISOLATION_BY_ACTIVITY: Final = {Activity.BUSY: Isolation.OWN, Activity.QUIET: Isolation.SHARED}
"""The dispatcher that an `auto` Trigger gets, by its activity."""


@dataclass(slots=True)
class History:
    """Recent samples of one Trigger. With one sample every 5 s there are 7 while the Trigger is in
    a shared dispatcher, and 121 while it has its own, of some 150 bytes each."""

    state: ActivityState
    """The Trigger's activity before these samples are judged."""
    samples: deque[Sample] = field(default_factory=deque)
    """The samples, in the order of time."""

    def add(self, sample: Sample, limits: ActivityLimits = DEFAULT_LIMITS) -> None:
        """Add a sample, and drop samples that are too old to be needed."""
        needed_since = sample.time - decisive_seconds(self.state.activity, limits)
        # One sample from that time or before stays, so that the samples cover all of the period.
        while len(self.samples) > 1 and self.samples[1].time <= needed_since:
            self.samples.popleft()
        self.samples.append(sample)


@dataclass(frozen=True, slots=True)
class Move:
    """A Trigger that should move to another dispatcher."""

    trigger: Identity
    broker: Identity
    to: Isolation
    """`own` or `shared`: the kind of dispatcher that the Trigger moves to."""
    load: float
    """How busy the Trigger is (`activity.relative_load`); 1 means at the limit for a busy one."""
    why: str
    """The reason, for users."""


def sample_of(status: ScalingStatus, now: float) -> Sample:
    """Return a sample of a Trigger's deliveries and lag at time `now`, from its scaling status.
    While its filter passes nothing, its lag counts as 0. While its subscriber doesn't answer or its
    dispatcher fails, the lag counts as unknown (None), since another dispatcher wouldn't help.
    """
    if status.scale.cause is Cause.FILTERED_OUT:
        return Sample(now, status.counts.delivered, 0)
    is_held_up = status.error is not None or status.counts.congestion is not None
    return Sample(now, status.counts.delivered, None if is_held_up else status.lag)


def desired_move(
    trigger: Identity,
    broker: Identity,
    history: History,
    lag_threshold: int,
    limits: ActivityLimits = DEFAULT_LIMITS,
) -> Move | None:
    """Return the move that a Trigger's history calls for; None: it should stay. `lag_threshold` is
    the Trigger's, in events."""
    new_state = judge_activity(history.state, history.samples, lag_threshold, limits)
    if new_state.activity is history.state.activity:
        return None
    destination = ISOLATION_BY_ACTIVITY[new_state.activity]
    load = relative_load(history.samples, lag_threshold, limits)
    reason = _move_reason(destination, history, lag_threshold, limits)
    return Move(trigger, broker, destination, load, reason)


def _move_reason(
    destination: Isolation, history: History, lag_threshold: int, limits: ActivityLimits
) -> str:
    """Return why a Trigger moves to `destination`, in words for users. `lag_threshold` is the
    Trigger's, in events."""
    if destination is Isolation.SHARED:
        return f"quiet for {limits.quiet_for:g} s"
    lag, max_lag = history.samples[-1].lag or 0, limits.busy_lag * lag_threshold
    if lag > max_lag:
        return f"{lag} events waiting, more than {max_lag} for {limits.busy_for:g} s"
    return f"more than {limits.busy_rate:g} events a second for {limits.busy_for:g} s"


def choose_moves(moves: Iterable[Move], recent_moves: Collection[Move]) -> list[Move]:
    """Return which of the `moves` to make now, the busiest Triggers first: at most `MAX_MOVES` per
    Broker and direction, counting `recent_moves` of the last `MOVES_PERIOD` seconds too."""
    moves_so_far: dict[tuple[Identity, Isolation], int] = {}
    for move in recent_moves:
        moves_so_far[move.broker, move.to] = moves_so_far.get((move.broker, move.to), 0) + 1
    chosen = []
    for move in sorted(moves, key=lambda move: -move.load):
        count = moves_so_far.get((move.broker, move.to), 0)
        if count < MAX_MOVES:
            moves_so_far[move.broker, move.to] = count + 1
            chosen.append(move)
    return chosen
