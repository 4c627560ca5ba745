"""Conditions and the reducer of Sensors against brute force (BUS-S1 to BUS-S5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.sensors import event

from knafka.core.sensor.conditions import TriggerCondition, parse
from knafka.core.sensor.held import Held, HeldEvent
from knafka.core.sensor.resets import Reset
from knafka.core.sensor.rules import Rule, due_time, expire, expiry_time, step

NAMES = "abcd"

Predicate: TypeAlias = Callable[[Mapping[str, int]], bool]


class Drawn(NamedTuple):
    """A condition's text, and what it means."""

    text: str
    means: Predicate


def _wanted(name: str, count: int) -> Drawn:
    text = name if count == 1 else f"{count} of {name}"
    return Drawn(text, lambda counts: counts.get(name, 0) >= count)


def _all(parts: Sequence[Drawn]) -> Drawn:
    text = " && ".join(f"({part.text})" for part in parts)
    return Drawn(text, lambda counts: all(part.means(counts) for part in parts))


def _any(parts: Sequence[Drawn]) -> Drawn:
    # Without parentheses around &&, which binds closer.
    text = "||".join(part.text if "||" not in part.text else f"({part.text})" for part in parts)
    return Drawn(text, lambda counts: any(part.means(counts) for part in parts))


conditions = st.recursive(
    st.builds(_wanted, st.sampled_from(NAMES), st.integers(1, 3)),
    lambda inner: st.lists(inner, min_size=2, max_size=3).flatmap(
        lambda parts: st.sampled_from([_all(parts), _any(parts)])
    ),
    max_leaves=8,
)


@pytest.mark.conformance("BUS-S1")
@given(conditions, st.dictionaries(st.sampled_from(NAMES), st.integers(0, 4)))
def test_a_condition_means_what_its_text_says(drawn: Drawn, counts: dict[str, int]) -> None:
    """BUS-S1."""
    assert parse(drawn.text).holds(counts) is drawn.means(counts)


class Came(NamedTuple):
    dependency: str
    at: int


came = st.lists(st.builds(Came, st.sampled_from(NAMES), st.integers(0, 200)), max_size=30)
windows = st.none() | st.integers(0, 100)
EVERY_MINUTE = Reset("* * * * *")
SECOND = 1000


def _event(number: int, each: Came, scale: int = 1) -> HeldEvent:
    return event(each.dependency, f"e{number}", each.at * scale, number)


def _brute_force(
    condition: TriggerCondition,
    means: Predicate,
    within: int | None,
    resets: bool,
    events: list[Came],
) -> list[list[int]]:
    """The numbers of the events of each firing, from the whole history at each event."""
    firings: list[list[int]] = []
    history: list[int] = []
    for number in range(len(events)):
        history.append(number)
        newest = max(events[each].at for each in history)
        last_reset = newest // 60 * 60 if resets else -1
        counting = [
            each
            for each in history
            if (within is None or newest - events[each].at <= within)
            and events[each].at > last_reset
        ]
        if not counting:
            # The newest is of the very moment of a reset: it is held nowhere, so nothing says to
            # what comes late that the reset has been.
            history = []
        latest = sorted(counting, key=lambda each: (events[each].at, each))
        used = []
        for name in NAMES:
            of_name = [each for each in latest if events[each].dependency == name]
            used += of_name[max(0, len(of_name) - condition.wanted.get(name, 0)) :]
        if means(Counter(events[each].dependency for each in used)):
            firings.append(sorted(used))
            history = []
    return firings


@given(conditions, windows, st.booleans(), came)
@example(_wanted("a", 1), None, True, [Came("a", 180), Came("a", 1)])
def test_the_reducer_fires_what_the_whole_history_says(
    drawn: Drawn, within: int | None, resets: bool, events: list[Came]
) -> None:
    """BUS-13, BUS-S3, BUS-S4, BUS-S5: with events that come out of order, too."""
    condition = parse(drawn.text)
    events = [each for each in events if each.dependency in condition.wanted]
    rule = Rule(
        "t",
        condition,
        None if within is None else within * SECOND,
        (EVERY_MINUTE,) if resets else (),
    )
    held: Held = ()
    firings = []
    for number, each in enumerate(events):
        held, fired = step(rule, held, _event(number, each, SECOND))
        firings += [sorted(held_event.offset for held_event in one.events) for one in fired]
        assert all(number in each for each in firings[len(firings) - len(fired) :])
        assert len(held) <= sum(condition.wanted.values())
    assert firings == _brute_force(condition, drawn.means, within, resets, events)


@given(conditions, windows, st.booleans(), came, st.sets(st.integers(0, 29)))
def test_what_is_dropped_in_time_makes_no_difference(
    drawn: Drawn, within: int | None, resets: bool, events: list[Came], asked: set[int]
) -> None:
    """And it is known when there is something to drop."""
    span = None if within is None else within * SECOND
    rule = Rule("t", parse(drawn.text), span, (EVERY_MINUTE,) if resets else ())
    events.sort(key=lambda each: each.at)
    held: Held = ()
    patient: Held = ()
    for number, each in enumerate(events):
        if number in asked:
            changes = expiry_time(rule, held)
            left = expire(rule, held, each.at * SECOND)
            assert left.firings == ()
            assert (left.held != held) is (changes is not None and changes <= each.at * SECOND)
            held = left.held
        came_now = _event(number, each, SECOND)
        after, patiently = step(rule, held, came_now), step(rule, patient, came_now)
        assert after.firings == patiently.firings
        held, patient = after.held, patiently.held


ABSENCES = ["a && !b", "a && c && !b", "(a || c) && !b && !d", "2 of a && !b"]


def _fired(rule: Rule, held: Held, until: int) -> tuple[Held, list[Held]]:
    after = expire(rule, held, until)
    return after.held, [each.events for each in after.firings]


@given(
    st.sampled_from(ABSENCES),
    st.integers(0, 40),
    came,
    st.sets(st.integers(0, 29)),
    st.booleans(),
    st.integers(1, 30),
)
def test_when_it_is_known_that_nothing_came_makes_no_difference(
    text: str, within: int, events: list[Came], asked: set[int], resets: bool, different: int
) -> None:
    """A timer that is late, or was lost with its process, fires the same; also where a reset came
    meanwhile, or an event once more."""
    rule = Rule("t", parse(text), within * SECOND, (EVERY_MINUTE,) if resets else ())
    events.sort(key=lambda each: each.at)
    held: Held = ()
    patient: Held = ()
    firings: list[Held] = []
    for number, each in enumerate(events):
        if number in asked:
            held, fired = _fired(rule, held, each.at * SECOND)
            firings += fired
        came_now = event(each.dependency, f"e{number % different}", each.at * SECOND, number)
        held = step(rule, held, came_now).held
        patient = step(rule, patient, came_now).held
    held, fired = _fired(rule, held, 1000 * SECOND)
    _, at_once = _fired(rule, patient, 1000 * SECOND)
    assert firings + fired == at_once
    assert held == ()


@given(st.sampled_from(ABSENCES), st.integers(0, 40), came)
def test_nothing_unwanted_follows_what_fires(text: str, within: int, events: list[Came]) -> None:
    condition = parse(text)
    rule = Rule("t", condition, within)
    held: Held = ()
    for number, each in enumerate(events):
        held = step(rule, held, _event(number, each)).held
    _, firings = _fired(rule, held, 1000)
    for firing in firings:
        assert condition.holds(Counter(each.dependency for each in firing))
        since = firing[-1].at
        assert not any(
            each.dependency in condition.unwanted and since <= each.at <= since + within
            for each in events
        )


@given(st.sampled_from(ABSENCES), st.integers(0, 40), came, st.integers(0, 250))
def test_what_is_due_is_what_happens_next(
    text: str, within: int, events: list[Came], until: int
) -> None:
    """So that a process may sleep until then."""
    rule = Rule("t", parse(text), within)
    held: Held = ()
    for number, each in enumerate(events):
        held = step(rule, held, _event(number, each)).held
    fires, changes = due_time(rule, held), expiry_time(rule, held)
    after, firings = _fired(rule, held, until)
    assert bool(firings) is (fires is not None and until >= fires)
    assert (after != held) is (changes is not None and until >= changes)
    assert fires is None or (changes is not None and changes <= fires)
