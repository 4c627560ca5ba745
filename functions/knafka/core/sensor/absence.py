"""What doesn't come: conditions with something unwanted, as `a && !b` within ten minutes.

    a       a b            a                 a: wanted, b: unwanted, each - is a minute
    |----------> fires     |---------->
            |-b                              answered: doesn't fire

Once the wanted events are complete, their round waits for as long as the trigger says. An unwanted
event of that time answers it, whichever of the two was read first; if none has come it fires, which
is known only when every event of that time was read. While a round waits, further wanted events of
its time are ignored: it is about those that completed it. The last of them are held nevertheless:
an unwanted event that is read later may have come before them, and then they begin a round.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from knafka.core.sensor.conditions import TriggerCondition
from knafka.core.sensor.held import Firing, Held, HeldEvent, in_time

IGNORED: Final = 16
"""Ignored events of each dependency that are held, the latest ones. Of more than that a round may
be about a later event than the first that the unwanted one didn't answer, and none is missed."""


class Round(NamedTuple):
    """Wanted events that are complete, and wait for what is unwanted."""

    events: Held
    until: int
    """The last time (ms) of an event that would answer it."""

    def covers(self, at: int) -> bool:
        """Whether an event of that time (ms) is of the time in which it waits."""
        return self.events[-1].at <= at <= self.until


@dataclass(frozen=True, slots=True)
class AbsenceDecision:
    """The result of the events known so far for a trigger that waits for absence."""

    rounds: Sequence[Round]
    partial: Held
    """Wanted events of a round that isn't complete."""
    unwanted: Held
    """Events that may answer a round whose own events are still to come."""
    ignored: Held = ()
    """Wanted events that came while a round waited."""

    @property
    def held(self) -> Held:
        """Return the events that must still be held."""
        waiting = (event for round_ in self.rounds for event in round_.events)
        ignored = (
            event for event in self.ignored if any(one.covers(event.at) for one in self.rounds)
        )
        return in_time((*waiting, *self.partial, *self.unwanted, *ignored))


def decide(
    condition: TriggerCondition, within: int, events: Iterable[HeldEvent]
) -> AbsenceDecision:
    """Decide rounds from these events, in the order of time, whatever order they came in."""
    rounds: list[Round] = []
    partial: list[HeldEvent] = []
    unwanted: list[HeldEvent] = []
    ignored: dict[str, deque[HeldEvent]] = defaultdict(lambda: deque(maxlen=IGNORED))
    for event in sorted(events, key=lambda candidate: _in_order(condition, candidate)):
        if event.dependency in condition.unwanted:
            rounds = [round_ for round_ in rounds if not round_.covers(event.at)]
            _add_unwanted(unwanted, event, within)
        elif event.dependency not in condition.wanted:
            continue
        elif rounds and event.at <= rounds[-1].until:
            ignored[event.dependency].append(event)
        else:
            partial = [earlier for earlier in partial if earlier.at >= event.at - within]
            _add_wanted(partial, event, condition)
            if condition.holds(Counter(partial_event.dependency for partial_event in partial)):
                rounds.append(Round(tuple(partial), event.at + within))
                partial = []
    return AbsenceDecision(
        rounds, tuple(partial), tuple(unwanted), tuple(chain.from_iterable(ignored.values()))
    )


def expire(
    condition: TriggerCondition, within: int, held: Held, until: int
) -> tuple[Held, tuple[Firing, ...]]:
    """Return the events still held, and the firings, once every event before `until` was read."""
    now = decide(condition, within, held)
    firings = tuple(Firing(round_.events) for round_ in now.rounds if round_.until < until)
    left = AbsenceDecision(
        [round_ for round_ in now.rounds if round_.until >= until],
        tuple(event for event in now.partial if event.at + within >= until),
        tuple(event for event in now.unwanted if event.at >= until),
        now.ignored,
    )
    return left.held, firings


def due(condition: TriggerCondition, within: int, held: Held) -> int | None:
    """Return when the first round fires unless it is answered."""
    return min(
        (round_.until + 1 for round_ in decide(condition, within, held).rounds),
        default=None,
    )


def expires(condition: TriggerCondition, within: int, held: Held) -> int | None:
    """The first time at which `expire` would change something."""
    now = decide(condition, within, held)
    times = [round_.until for round_ in now.rounds]
    times += [event.at + within for event in now.partial]
    times += [event.at for event in now.unwanted]
    return min(times) + 1 if times else None


def _in_order(
    condition: TriggerCondition, event: HeldEvent
) -> tuple[int, bool, tuple[int, int], int]:
    """At one time, what is unwanted comes last: it answers what came in the same millisecond."""
    return event.at, event.dependency in condition.unwanted, event.origin, event.offset


def _add_wanted(partial: list[HeldEvent], event: HeldEvent, condition: TriggerCondition) -> None:
    """Only the latest of each dependency count (BUS-S3)."""
    same = [other for other in partial if other.dependency == event.dependency]
    if len(same) >= condition.wanted[event.dependency]:
        partial.remove(same[0])
    partial.append(event)


def _add_unwanted(unwanted: list[HeldEvent], event: HeldEvent, within: int) -> None:
    """Add an event that answers rounds; one between two others within the wait adds nothing and is
    dropped."""
    if len(unwanted) >= 2 and event.at - unwanted[-2].at <= within:
        unwanted[-1] = event
    else:
        unwanted.append(event)
