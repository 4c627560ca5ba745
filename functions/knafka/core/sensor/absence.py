"""Decides conditions with unwanted events, such as `a && !b` within ten minutes.

    a       a b            a                 a: wanted, b: unwanted, each - is a minute
    |----------> fires     |---------->
            |-b                              answered: doesn't fire

Once the wanted events are complete, they form a round, which waits for the trigger's `within`. An
unwanted event of that time cancels the round, whichever was read first. If there is none, the round
fires once every event of that time was read. While a round waits, further wanted events of its time
are ignored. The latest of them are held nevertheless: if it turns out that an unwanted event came
before them and cancelled the round, they begin a new one.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from knafka.core.sensor.conditions import TriggerCondition
from knafka.core.sensor.held import Firing, Held, HeldEvent, sort_by_time

MAX_IGNORED: Final = 16
"""Most ignored events that are held of each dependency; the latest are kept. If some were dropped,
a round may begin with a later event than the first possible one, but no round is missed."""


class Round(NamedTuple):
    """A complete set of wanted events, which fires unless an unwanted event comes in time."""

    events: Held
    """The wanted events, in the order of time."""
    until: int
    """Latest time (ms) of an unwanted event that would cancel the round."""

    def covers(self, time: int) -> bool:
        """Whether a time (ms) is within the round's wait, from the round's last event to
        `until`."""
        return self.events[-1].at <= time <= self.until


@dataclass(frozen=True, slots=True)
class AbsenceDecision:
    """The state of a trigger with an unwanted event, according to the events that are known so
    far."""

    rounds: Sequence[Round]
    """The rounds that wait, in the order of time."""
    partial: Held
    """Wanted events of a round that isn't complete yet."""
    unwanted: Held
    """Unwanted events that may cancel a round whose own events are still to come."""
    ignored: Held = ()
    """Wanted events that came while a round waited."""

    @property
    def held(self) -> Held:
        """The events that must still be held, in the order of time; ignored ones only while their
        round waits."""
        events_of_rounds = (event for round_ in self.rounds for event in round_.events)
        still_ignored = (
            event
            for event in self.ignored
            if any(waiting_round.covers(event.at) for waiting_round in self.rounds)
        )
        return sort_by_time((*events_of_rounds, *self.partial, *self.unwanted, *still_ignored))


def decide(
    condition: TriggerCondition, within: int, events: Iterable[HeldEvent]
) -> AbsenceDecision:
    """Return the state of a trigger with this condition after `events` have come: the rounds that
    wait, and the other events that must be held. Only the events' times count, not the order in
    which they came. `within` (ms): how long a round waits, and the longest time between its
    events."""
    rounds: list[Round] = []
    partial: list[HeldEvent] = []
    unwanted: list[HeldEvent] = []
    ignored: dict[str, deque[HeldEvent]] = defaultdict(lambda: deque(maxlen=MAX_IGNORED))
    for event in sorted(events, key=lambda candidate: _order_key(condition, candidate)):
        if event.dependency in condition.unwanted:  # the event cancels the rounds that wait
            rounds = [round_ for round_ in rounds if not round_.covers(event.at)]
            _add_unwanted(unwanted, event, within)
        elif event.dependency not in condition.wanted:
            continue
        elif rounds and event.at <= rounds[-1].until:  # a round waits
            ignored[event.dependency].append(event)
        else:  # the event begins a round, or may complete one
            partial = [
                earlier_event for earlier_event in partial if earlier_event.at >= event.at - within
            ]
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
    """Return the events that are still held once every event before `until` (ms) was read, and the
    firings of the rounds whose wait is over then. `within` (ms): how long a round waits."""
    decision = decide(condition, within, held)
    firings = tuple(Firing(round_.events) for round_ in decision.rounds if round_.until < until)
    # What later events can still complete or cancel.
    remaining = AbsenceDecision(
        [round_ for round_ in decision.rounds if round_.until >= until],
        tuple(event for event in decision.partial if event.at + within >= until),
        tuple(event for event in decision.unwanted if event.at >= until),
        decision.ignored,
    )
    return remaining.held, firings


def due_time(condition: TriggerCondition, within: int, held: Held) -> int | None:
    """Return when (ms since the Unix epoch) the first of the waiting rounds fires if no unwanted
    event cancels it; None: no round waits. `within` (ms): how long a round waits."""
    return min(
        (round_.until + 1 for round_ in decide(condition, within, held).rounds),
        default=None,
    )


def expiry_time(condition: TriggerCondition, within: int, held: Held) -> int | None:
    """Return the first time (ms since the Unix epoch) at which `expire` would fire a round or drop
    an event; None: it never would. `within` (ms): how long a round waits."""
    decision = decide(condition, within, held)
    # The last times (ms) at which a round waits, or an event still counts.
    last_times = [round_.until for round_ in decision.rounds]
    last_times += [event.at + within for event in decision.partial]
    last_times += [event.at for event in decision.unwanted]
    return min(last_times) + 1 if last_times else None


def _order_key(
    condition: TriggerCondition, event: HeldEvent
) -> tuple[int, bool, tuple[int, int], int]:
    """Return the sort key of an event: by time; at the same time unwanted events come last, as they
    cancel rounds of the same millisecond; then by origin and offset, so that the order is always
    the same."""
    return event.at, event.dependency in condition.unwanted, event.origin, event.offset


def _add_wanted(partial: list[HeldEvent], event: HeldEvent, condition: TriggerCondition) -> None:
    """Add a wanted event to `partial`, which is in the order of time. If `partial` already has as
    many events of that dependency as the condition wants, drop the oldest of them (BUS-S3)."""
    same_dependency = [
        partial_event for partial_event in partial if partial_event.dependency == event.dependency
    ]
    if len(same_dependency) >= condition.wanted[event.dependency]:
        partial.remove(same_dependency[0])
    partial.append(event)


def _add_unwanted(unwanted: list[HeldEvent], event: HeldEvent, within: int) -> None:
    """Add an unwanted event to `unwanted`, which is in the order of time. If the last but one in
    `unwanted` is at most `within` ms older than `event`, the last one, which lies between these
    two, is dropped: each round that it would cancel is also cancelled by one of the two."""
    if len(unwanted) >= 2 and event.at - unwanted[-2].at <= within:
        unwanted[-1] = event
    else:
        unwanted.append(event)
