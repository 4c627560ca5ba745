"""The backtest's model of a trigger against the reducer: each was written without the other."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from support.sensors import event

from knafka.core.sensor.conditions import parse
from knafka.core.sensor.held import Held
from knafka.core.sensor.resets import Reset
from knafka.core.sensor.rules import Rule, expire, step
from knafka_jobs.backtest.firing_model import ArrivedEvent, ExpectedFiring, FiringModel

CONDITIONS = [
    "a && b",
    "3 of a",
    "2 of a && b",
    "(a || c) && (b || 2 of c)",
    "a && !b",
    "a && c && !b",
    "2 of a && !b",
    "((a && d) || (c && d)) && !b",
]
SECOND = 1000


class Drawn(NamedTuple):
    dependency: str
    number: int
    """Of the event: the same one may come again."""
    second: int


class Fires(NamedTuple):
    at: int
    events: tuple[tuple[str, int], ...]


histories = st.lists(
    st.builds(Drawn, st.sampled_from("abcd"), st.integers(0, 15), st.integers(0, 150)), max_size=25
)
rules = st.builds(
    lambda text, within, resets: Rule(
        "t",
        condition := parse(text),
        7 * SECOND if condition.unwanted and within is None else within,
        (Reset("* * * * *"),) if resets else (),
    ),
    st.sampled_from(CONDITIONS),
    st.none() | st.integers(0, 60).map(lambda seconds: seconds * SECOND),
    st.booleans(),
)


@given(rules, histories, st.integers(0, 300))
def test_the_model_fires_what_the_reducer_fires(
    rule: Rule, history: list[Drawn], after: int
) -> None:
    """With events that come again, several in a millisecond, windows, resets and absence."""
    history = sorted(
        (each for each in history if each.dependency in rule.condition.names),
        key=lambda each: each.second,
    )
    end = (history[-1].second + after) * SECOND if history else 0
    held: Held = ()
    wanted: list[Fires] = []
    model = FiringModel(rule)
    found: list[ExpectedFiring] = []

    def until(time: int) -> None:
        nonlocal held
        held, firings = expire(rule, held, time)
        for each in firings:
            assert rule.within is not None
            last = max(one.at for one in each.events)
            wanted.append(Fires(last + rule.within, _named(each.events)))

    for offset, (dependency, number, second) in enumerate(history):
        identity, at = f"{dependency}{number}", second * SECOND
        until(at)
        held, firings = step(rule, held, event(dependency, identity, at, offset))
        wanted += [Fires(at, _named(each.events)) for each in firings]
        found += model.add(ArrivedEvent(dependency, identity, at, "topic", 0, offset))
    until(end)
    found += model.end(end)
    assert [Fires(each.at, _named(each.events)) for each in found] == wanted
    waits = any(each.dependency in rule.condition.wanted for each in held)
    assert model.has_waiting_events(end) is waits


def _named(events: tuple[ArrivedEvent, ...] | Held) -> tuple[tuple[str, int], ...]:
    return tuple((each.identity, each.at) for each in events)
