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
"""Seconds."""

ISOLATION_BY_ACTIVITY: Final = {Activity.BUSY: Isolation.OWN, Activity.QUIET: Isolation.SHARED}


@dataclass(slots=True)
class History:
    """Recent samples of one Trigger: with one every 5 s, 7 while it is shared, 121 while it isn't,
    some 150 bytes each."""

    state: ActivityState
    samples: deque[Sample] = field(default_factory=deque)
    """In the order of time."""

    def add(self, sample: Sample, limits: ActivityLimits = DEFAULT_LIMITS) -> None:
        """Add a sample, and drop those too old to be needed."""
        since = sample.time - decisive_seconds(self.state.activity, limits)
        while len(self.samples) > 1 and self.samples[1].time <= since:
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
    """How busy the Trigger is (`activity.relative_load`); 1 is at a limit."""
    why: str
    """The reason, for users."""


def sample_of(status: ScalingStatus, now: float) -> Sample:
    """Return a sample of a Trigger's status. The lag counts as unknown (None) while the subscriber
    doesn't answer or the dispatcher fails, since another dispatcher wouldn't help; as 0 while the
    filter passes nothing.
    """
    is_held_up = status.error is not None or status.counts.congestion is not None
    if status.scale.cause is Cause.FILTERED_OUT:
        return Sample(now, status.counts.delivered, 0)
    return Sample(now, status.counts.delivered, None if is_held_up else status.lag)


def desired_move(
    trigger: Identity,
    broker: Identity,
    history: History,
    threshold: int,
    limits: ActivityLimits = DEFAULT_LIMITS,
) -> Move | None:
    """Return the move that a Trigger's history calls for; None: it should stay. `threshold` is the
    Trigger's lag threshold, in events."""
    new_state = judge_activity(history.state, history.samples, threshold, limits)
    if new_state.activity is history.state.activity:
        return None
    destination = ISOLATION_BY_ACTIVITY[new_state.activity]
    load = relative_load(history.samples, threshold, limits)
    return Move(
        trigger, broker, destination, load, _move_reason(destination, history, threshold, limits)
    )


def _move_reason(
    destination: Isolation, history: History, threshold: int, limits: ActivityLimits
) -> str:
    """Return why a Trigger with this lag threshold moves to `destination`, in words for users."""
    if destination is Isolation.SHARED:
        return f"quiet for {limits.quiet_for:g} s"
    waiting, limit = history.samples[-1].lag or 0, limits.busy_lag * threshold
    if waiting > limit:
        return f"{waiting} events waiting, more than {limit} for {limits.busy_for:g} s"
    return f"more than {limits.busy_rate:g} events a second for {limits.busy_for:g} s"


def choose_moves(moves: Iterable[Move], recent_moves: Collection[Move]) -> list[Move]:
    """Return the moves to make now, busiest first: at most `MAX_MOVES` per Broker and direction,
    together with `recent_moves`, which were made in the last `MOVES_PERIOD` seconds."""
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
