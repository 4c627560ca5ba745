"""Moves: moves busy `auto` Triggers to own dispatchers and quiet ones to shared dispatchers,
checked every few seconds.

    scaler's status -> history -> `move_decisions` -> the record's `needed`, and the work queue

The Trigger's reconciliation carries out the move and retries. After the operator's start a Trigger
stays where it is until its history is long enough.

Not here: which Triggers are busy (`dispatchers.activity`), and the steps of a move
(`triggers.decide`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from knafka_operator.dispatchers import move_decisions
from knafka_operator.dispatchers.activity import DEFAULT_LIMITS, ActivityLimits, ActivityState
from knafka_operator.dispatchers.move_decisions import MOVES_PERIOD, History, Move
from knafka_operator.model.cluster import Document
from knafka_operator.model.identity import Identity, Key
from knafka_operator.model.isolation import Isolation
from knafka_operator.records.state import States, TriggerRecord, Watched

log = logging.getLogger(__name__)

TRIGGERS_AT_ONCE: Final = 20
"""Triggers sampled before the event loop gets control."""

ACTIVITY_BY_ISOLATION: Final = {
    isolation: activity for activity, isolation in move_decisions.ISOLATION_BY_ACTIVITY.items()
}
"""The activity for which an `auto` Trigger has each kind of dispatcher."""


@dataclass(eq=False)
class Moves:
    """Moves `auto` Triggers between shared and own dispatchers; belongs to one event loop."""

    states: States
    enqueue: Callable[[Key], None]
    """Makes an object due for reconciliation."""
    limits: ActivityLimits = DEFAULT_LIMITS
    """Which Triggers count as busy and quiet."""
    on_move: Callable[[Document, str], None] = lambda document, message: None
    """Called with a Trigger that moves, and a sentence with destination and reason."""
    _histories: dict[Identity, History] = field(default_factory=dict)
    """Histories of delivered `auto` Triggers only."""
    _recent_moves: deque[tuple[float, Move]] = field(default_factory=deque)
    """The moves of the last `MOVES_PERIOD` seconds, each after its time by the event loop's
    clock."""

    async def move_triggers(self) -> None:
        """Sample the activity of each `auto` Trigger, and start the moves that may begin now."""
        now = asyncio.get_running_loop().time()
        desired_moves: list[Move] = []
        for number, (identity, record) in enumerate(list(self.states.triggers.items()), 1):
            if number % TRIGGERS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if (move := self._sample_and_find_move(identity, record, now)) is not None:
                desired_moves.append(move)
        for identity in self._histories.keys() - self.states.triggers.keys():
            del self._histories[identity]
        while self._recent_moves and now - self._recent_moves[0][0] >= MOVES_PERIOD:
            self._recent_moves.popleft()
        recent_moves = [recent_move for _, recent_move in self._recent_moves]
        for move in move_decisions.choose_moves(desired_moves, recent_moves):
            self._recent_moves.append((now, move))
            self._move(move)

    def _sample_and_find_move(
        self, identity: Identity, record: TriggerRecord, now: float
    ) -> Move | None:
        """Add a sample to a Trigger's history, and return the move that the history calls for.
        None: the Trigger stays. If it isn't `auto`, can't move now or has no status of the scaler,
        its history is dropped, too."""
        isolation = record.chosen_isolation  # None: it isn't `auto`, or none was chosen yet
        watched = _movable_delivery(record)
        scaling_status = None
        if watched is not None:
            scaling_status = watched.kafka.scaler.status(self.states.family.trigger_id(identity))
        if isolation is None or record.broker is None or watched is None or scaling_status is None:
            self._histories.pop(identity, None)
            return None
        history = self._histories.get(identity)
        activity = ACTIVITY_BY_ISOLATION[isolation]
        # A new history also after a move: samples from before it don't count for a move back.
        if history is None or history.state.activity is not activity:
            history = self._histories[identity] = History(ActivityState(activity, now))
        history.add(move_decisions.sample_of(scaling_status, now), self.limits)
        lag_threshold = watched.autoscaling.lag_threshold
        return move_decisions.desired_move(
            identity, record.broker, history, lag_threshold, self.limits
        )

    def _move(self, move: Move) -> None:
        """Record the Trigger's new isolation, report the move, and enqueue the Trigger, whose
        reconciliation carries the move out."""
        record = self.states.triggers.get(move.trigger)
        if record is None:
            return  # the Trigger was deleted meanwhile
        record.chosen_isolation = move.to
        where = "a dispatcher of its own" if move.to is Isolation.OWN else "a shared dispatcher"
        message = f"It moves to {where}: {move.why}"
        log.info("%s %s: %s", self.states.family.trigger, move.trigger, message)
        if record.document is not None:
            self.on_move(record.document, message)
        self.enqueue((self.states.family.trigger, *move.trigger))


def _movable_delivery(record: TriggerRecord) -> Watched | None:
    """Return the delivery of an `auto` Trigger, if it may move to another dispatcher. None: the
    Trigger isn't delivered, is paused, is already moving, or has a min-scale, for which it needs
    its own dispatcher."""
    watched = record.watched
    # `isolation` is None for a paused Trigger, and the previous one during a move.
    if watched is None or watched.isolation is not record.chosen_isolation:
        return None
    return None if watched.autoscaling.min_scale else watched
