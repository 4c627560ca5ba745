"""Finds the triggers of a Sensor that an event concerns (BUS-21: the event handler's part)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from knafka.core import cesql
from knafka.core.events.event import Attributes
from knafka.core.filters.predicates import CountError, Predicate, compile_trigger
from knafka.core.sensor.contract import Conditions, SensorTrigger
from knafka.core.sensor.records import key_of

MAX_CORRELATION: Final = 1024
"""Most characters of a correlation key, which is part of record keys and held in memory."""

Correlate: TypeAlias = Callable[[Attributes], str | None]
"""Returns the correlation key of an event; None: the event doesn't count."""


class Route(NamedTuple):
    """A trigger that an event concerns, and the dependency for which it counts."""

    dependency: str
    key: str
    """The trigger, and the correlation key if it has any (`records.key_of`)."""
    fires: bool
    """Whether the event fires the trigger at once, as its condition is simple and nothing is held
    for it (BUS-12)."""


@dataclass(frozen=True, slots=True)
class _DependentTrigger:
    """A trigger that a dependency concerns."""

    trigger: str
    """The trigger's name."""
    correlate: Correlate | None
    """The trigger's compiled correlation; None: it has no correlation."""
    is_simple: bool
    """`TriggerCondition.is_simple` of its condition."""


class Router:
    """Finds the routes of each event of the bus; its filters are compiled once."""

    def __init__(self, sensor: Conditions, count_error: CountError) -> None:
        """`sensor` is what a Sensor declares: its dependencies, its triggers, and whether it drops
        duplicates. `count_error` is called for each evaluation of a filter or correlation that ends
        with an error."""
        rules = sensor.rules()  # one for each trigger, in the order of `sensor.triggers`
        self._has_dedupe = sensor.dedupe is not None
        """Whether the Sensor drops duplicates. If so, no event fires a trigger at once: the event's
        identity must be stored first, so that a repeated event is recognised."""
        self._dependencies: list[tuple[str, Predicate, tuple[_DependentTrigger, ...]]] = []
        """For each dependency its name, its compiled filter, and the triggers that it concerns."""
        for dependency in sensor.dependencies:
            dependents = tuple(
                _DependentTrigger(
                    trigger.name,
                    _compile_correlation(trigger, count_error),
                    rule.condition.is_simple,
                )
                for trigger, rule in zip(sensor.triggers, rules, strict=True)
                if dependency.name in rule.condition.names
            )
            passes = compile_trigger(dependency.filter, dependency.filters, count_error)
            self._dependencies.append((dependency.name, passes, dependents))

    def route(self, attributes: Attributes) -> list[Route]:
        """Return the routes of the event with these attributes; empty if it concerns no trigger.
        There is at most one route for each pair of trigger and dependency, and at most one in all
        for a trigger with a simple condition."""
        routes: list[Route] = []
        routed_triggers: set[str] = set()
        for dependency, passes, dependents in self._dependencies:
            if not dependents or not passes(attributes):
                continue
            for dependent in dependents:
                if dependent.trigger in routed_triggers:
                    continue  # one event fires a simple condition once
                correlation = None
                if dependent.correlate is not None:
                    correlation = dependent.correlate(attributes)
                    if correlation is None:
                        continue  # the event doesn't count for this trigger
                if dependent.is_simple:
                    routed_triggers.add(dependent.trigger)
                fires = dependent.is_simple and not self._has_dedupe
                routes.append(Route(dependency, key_of(dependent.trigger, correlation), fires))
        return routes


def _compile_correlation(trigger: SensorTrigger, count_error: CountError) -> Correlate | None:
    """Compile the correlation of a trigger; None: the trigger has no correlation. `count_error` is
    called for each evaluation that ends with an error."""
    if trigger.correlation is None:
        return None
    expression = cesql.compile_expression(trigger.correlation)

    def correlate(attributes: Attributes) -> str | None:
        """Return the event's correlation key. None: the key is empty or too long, or the evaluation
        fails; a failure is counted by `count_error`."""
        value, errors = expression.evaluate(attributes)
        if errors:
            count_error(errors[0].kind)
            return None
        correlation = str(value).lower() if isinstance(value, bool) else str(value)
        return correlation if 0 < len(correlation) <= MAX_CORRELATION else None

    return correlate
