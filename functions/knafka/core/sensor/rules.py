"""Decides which events a Sensor's trigger holds, and when it fires (BUS-13, BUS-S3 to BUS-S5).

    held, event ----step----> held, firing?        an event of one of its dependencies has come
    held, time  ---expire---> held, firings        every event before this time has come

Pure. Times are those of the events (when the bus took them), never of their processing: a backlog
that is read after an outage causes the same firings as if there had been no outage. A tuple of a
few events is held for each trigger and correlation key; the caller stores it. Conditions with
unwanted events (`a && !b`) are decided in `absence`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from knafka.core.sensor import absence
from knafka.core.sensor.conditions import TriggerCondition
from knafka.core.sensor.held import Firing, Held, HeldEvent, sort_by_time
from knafka.core.sensor.resets import Reset


@dataclass(frozen=True)
class Rule:
    """One trigger's condition with its timing and resets."""

    name: str
    condition: TriggerCondition
    within: int | None = None
    """Most milliseconds between the first and the last event of a firing; None: no limit. With an
    unwanted event, also how long to wait for it."""
    resets: tuple[Reset, ...] = ()
    is_correlated: bool = False
    """Whether the trigger has a correlation, by whose key its events are held."""

    def __post_init__(self) -> None:
        """Raise ValueError for a condition with an unwanted dependency and without `within`."""
        if self.condition.unwanted and self.within is None:
            raise ValueError("a condition with ! wants a time within which it is decided")


class RuleStep(NamedTuple):
    """The result of applying a rule."""

    held: Held
    """The events that are held from now on."""
    firings: tuple[Firing, ...] = ()
    """In the order of time."""


def step(rule: Rule, held: Held, event: HeldEvent) -> RuleStep:
    """Return the events that are held, and the firing if there is one, after `event` has come while
    `held` were held.

    Of each dependency the latest events count, by their time (BUS-S3); events that fire are held no
    more (BUS-S4). A held event of the same dependency, source and id is replaced by `event`.
    """
    events = _counting_events(rule, [*_without_duplicate(rule, held, event), event])
    if rule.condition.unwanted:  # such a trigger fires only by the passing of time (`expire`)
        assert rule.within is not None
        return RuleStep(absence.decide(rule.condition, rule.within, events).held)
    if rule.within is not None:
        since = max((event.at for event in events), default=0) - rule.within
        events = [event for event in events if event.at >= since]
    events = _latest_needed_events(rule.condition, events)
    if rule.condition.holds(Counter(event.dependency for event in events)):
        return RuleStep((), (Firing(sort_by_time(events)),))
    return RuleStep(tuple(events))


def apply_edited(rule: Rule, held: Held) -> RuleStep:
    """Apply an edited rule to events that are held by the rule's earlier version: they fire if they
    fulfil the edited rule. If the edited rule has unwanted events, nothing changes here, as
    `expire` decides about their absence."""
    if rule.condition.unwanted or not held:
        return RuleStep(held)
    return step(rule, held, held[-1])  # the last event replaces itself


def expire(rule: Rule, held: Held, until: int) -> RuleStep:
    """Return the events that are held, and the firings, after every event before `until` (ms) has
    come. Rounds whose wait for an unwanted event is over fire, and events that can no longer be
    part of a firing are dropped."""
    if not held:
        return RuleStep(held)
    if rule.condition.unwanted:
        assert rule.within is not None
        still_held, ended_waits = absence.expire(rule.condition, rule.within, held, until)
        return RuleStep(
            still_held,
            tuple(firing for firing in ended_waits if not _was_reset(rule, firing.events)),
        )
    remaining: Iterable[HeldEvent] = held
    if rule.within is not None:
        since = until - rule.within
        remaining = [event for event in remaining if event.at >= since]
    reset = _last_reset(rule, until)
    if reset is not None:
        remaining = [event for event in remaining if event.at > reset]
    return RuleStep(tuple(remaining))


def due_time(rule: Rule, held: Held) -> int | None:
    """Return when (ms since the Unix epoch) the held events fire if no further event comes. None:
    they don't fire by themselves. (Without an unwanted event in the condition they never do.)"""
    if not rule.condition.unwanted or not held:
        return None
    assert rule.within is not None
    return absence.due_time(rule.condition, rule.within, held)


def expiry_time(rule: Rule, held: Held) -> int | None:
    """Return the first time (ms since the Unix epoch) at which `expire` would change the held
    events: when a wait for an unwanted event ends, when `within` ends, or at a reset. None: it
    never would."""
    if not held:
        return None
    if rule.condition.unwanted:
        assert rule.within is not None
        return absence.expiry_time(rule.condition, rule.within, held)
    oldest = min(event.at for event in held)
    end_of_within = None if rule.within is None else oldest + rule.within + 1
    next_resets = [reset.next(oldest) for reset in rule.resets]
    times = [time for time in (end_of_within, *next_resets) if time is not None]
    return min(times, default=None)


def _without_duplicate(rule: Rule, held: Held, event: HeldEvent) -> list[HeldEvent]:
    """Return the held events without those that are the same event as `event`. Exception: in a
    backlog, the wait of a round may have ended before the time of `event` although the round hasn't
    fired yet; the events of such a round stay, as they belong to its firing."""
    same = [held_event for held_event in held if held_event.is_same_as(event)]
    if same and rule.condition.unwanted:
        about_to_fire = _events_of_ended_rounds(rule, held, event.at)
        same = [held_event for held_event in same if held_event not in about_to_fire]
    return [held_event for held_event in held if held_event not in same]


def _events_of_ended_rounds(rule: Rule, events: Iterable[HeldEvent], time: int) -> list[HeldEvent]:
    """Return the events of the rounds whose wait ended before this time (ms). The rule's condition
    has an unwanted event."""
    assert rule.within is not None
    rounds = absence.decide(rule.condition, rule.within, events).rounds
    return [event for round_ in rounds if round_.until < time for event in round_.events]


def _counting_events(rule: Rule, events: Sequence[HeldEvent]) -> Sequence[HeldEvent]:
    """Return the events that count: those after the last reset, as of the time of the newest event
    (BUS-S5). In a backlog, rounds whose wait ended before that reset may not have fired yet: their
    events count, too. `events` isn't empty."""
    if not rule.resets:
        return events
    since = _last_reset(rule, max(event.at for event in events))
    if since is None:
        return events
    after_reset = [event for event in events if event.at > since]
    if not rule.condition.unwanted:
        return after_reset
    before_reset = [event for event in events if event.at <= since]
    return [*_events_of_ended_rounds(rule, before_reset, since), *after_reset]


def _last_reset(rule: Rule, until: int) -> int | None:
    """Return the time (ms) of the rule's last reset at or before `until` (ms); None: there was no
    reset by then."""
    resets = [last for reset in rule.resets if (last := reset.last(until)) is not None]
    return max(resets, default=None)


def _was_reset(rule: Rule, round_events: Held) -> bool:
    """Whether a reset came while a round waited for an unwanted event, so that the round must not
    fire. `round_events`: the events of the round, in the order of time."""
    assert rule.within is not None
    completed_at = round_events[-1].at
    last = _last_reset(rule, completed_at + rule.within)
    return last is not None and last >= completed_at


def _latest_needed_events(
    condition: TriggerCondition, events: Iterable[HeldEvent]
) -> Sequence[HeldEvent]:
    """Return the latest events of each dependency, at most as many as the condition wants, all in
    the order of time."""
    missing_counts = Counter(condition.wanted)
    latest_events = []
    for event in reversed(sort_by_time(events)):
        if missing_counts[event.dependency] > 0:
            missing_counts[event.dependency] -= 1
            latest_events.append(event)
    return sort_by_time(latest_events)
