"""The reducer: what a trigger of a Sensor holds, and when it fires (BUS-13, BUS-S3 to BUS-S5).

    held, event ----step----> held, firing?        an event of one of its dependencies has come
    held, time  ---expire---> held, firings        every event before this time has come

All of it is pure. Time is that of the events (when the bus took them), never that of their
processing: a backlog that is read after an outage fires what it would have fired without one.
What is held is a tuple of a few events for each trigger and correlation key; who keeps it, and
where, is not said here. A condition with something unwanted (`a && !b`) is decided in `absence`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from knafka.core.sensor import absence
from knafka.core.sensor.conditions import TriggerCondition
from knafka.core.sensor.held import Firing, Held, HeldEvent, in_time
from knafka.core.sensor.resets import Reset


@dataclass(frozen=True)
class Rule:
    """One trigger's condition with its timing and resets."""

    name: str
    condition: TriggerCondition
    within: int | None = None
    """Milliseconds between the first and the last event of a firing at most; None: any. With
    something unwanted, it is also how long that is waited for."""
    resets: tuple[Reset, ...] = ()

    def __post_init__(self) -> None:
        if self.condition.unwanted and self.within is None:
            raise ValueError("a condition with ! wants a time within which it is decided")


class RuleStep(NamedTuple):
    """The events that are held now, and the firings in the order of time."""

    held: Held
    firings: tuple[Firing, ...] = ()


def step(rule: Rule, held: Held, event: HeldEvent) -> RuleStep:
    """An event has come: the latest ones of each dependency count, by their time (BUS-S3); what
    fires is held no more (BUS-S4). One that came before, by its source and id, is replaced."""
    events = _counting_events(rule, [*_without_same(rule, held, event), event])
    if rule.condition.unwanted:
        assert rule.within is not None
        return RuleStep(absence.decide(rule.condition, rule.within, events).held)
    if rule.within is not None:
        since = max((event.at for event in events), default=0) - rule.within
        events = [event for event in events if event.at >= since]
    events = _latest_needed(rule.condition, events)
    if rule.condition.holds(Counter(event.dependency for event in events)):
        return RuleStep((), (Firing(in_time(events)),))
    return RuleStep(tuple(events))


def expire(rule: Rule, held: Held, until: int) -> RuleStep:
    """Every event of a time before `until` (ms) has come: what waits for none fires, and what can
    become part of no firing is held no more."""
    if not held:
        return RuleStep(held)
    if rule.condition.unwanted:
        assert rule.within is not None
        left, over = absence.expire(rule.condition, rule.within, held, until)
        return RuleStep(
            left, tuple(firing for firing in over if not _was_reset(rule, firing.events))
        )
    reset = _last_reset(rule, until)
    since = None if rule.within is None else until - rule.within
    return RuleStep(
        tuple(
            event
            for event in held
            if (since is None or event.at >= since) and (reset is None or event.at > reset)
        )
    )


def due(rule: Rule, held: Held) -> int | None:
    """Return when the next firing is due that waits for no event, in ms; None: there is none."""
    if not rule.condition.unwanted or not held:
        return None
    assert rule.within is not None
    return absence.due(rule.condition, rule.within, held)


def expires(rule: Rule, held: Held) -> int | None:
    """The first time (ms) at which `expire` would change what is held; None: never."""
    if not held:
        return None
    if rule.condition.unwanted:
        assert rule.within is not None
        return absence.expires(rule.condition, rule.within, held)
    oldest = min(event.at for event in held)
    over = [] if rule.within is None else [oldest + rule.within + 1]
    resets = (reset.next(oldest) for reset in rule.resets)
    return min((*over, *(at for at in resets if at is not None)), default=None)


def _without_same(rule: Rule, held: Held, event: HeldEvent) -> list[HeldEvent]:
    """Without the same event. In a backlog, one whose wait is over hasn't fired yet, and is another
    firing's."""
    same = [other for other in held if other.is_same_as(event)]
    if same and rule.condition.unwanted:
        assert rule.within is not None
        rounds = absence.decide(rule.condition, rule.within, held).rounds
        over = [
            waited_event
            for waited in rounds
            if waited.until < event.at
            for waited_event in waited.events
        ]
        same = [other for other in same if other not in over]
    return [other for other in held if other not in same]


def _counting_events(rule: Rule, events: Sequence[HeldEvent]) -> Sequence[HeldEvent]:
    """Return the events after the last reset before the newest of them (BUS-S5); in a backlog, also
    those whose wait ended before that reset without having fired."""
    if not rule.resets:
        return events
    since = _last_reset(rule, max(event.at for event in events))
    if since is None:
        return events
    after = [event for event in events if event.at > since]
    if not rule.condition.unwanted:
        return after
    assert rule.within is not None
    before = [event for event in events if event.at <= since]
    rounds = absence.decide(rule.condition, rule.within, before).rounds
    over = [event for waited in rounds if waited.until < since for event in waited.events]
    return [*over, *after]


def _last_reset(rule: Rule, until: int) -> int | None:
    """Return the last reset at or before this time (ms); None: there is none."""
    resets = [last for reset in rule.resets if (last := reset.last(until)) is not None]
    return max(resets, default=None)


def _was_reset(rule: Rule, waited: Held) -> bool:
    """Whether a reset came while these waited for what is unwanted."""
    assert rule.within is not None
    last = _last_reset(rule, waited[-1].at + rule.within)
    return last is not None and last >= waited[-1].at


def _latest_needed(condition: TriggerCondition, events: Iterable[HeldEvent]) -> Sequence[HeldEvent]:
    """Return the latest events, of each dependency as many as the condition may need."""
    room = Counter(condition.wanted)
    kept = []
    for event in reversed(in_time(events)):
        if room[event.dependency] > 0:
            room[event.dependency] -= 1
            kept.append(event)
    return in_time(kept)
