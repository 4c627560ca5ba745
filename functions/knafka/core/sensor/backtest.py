"""Computes the firings that a Sensor would have had for past events, by the same routing and rules
as the Sensor's function, without Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from knafka.core.events.event import Attributes
from knafka.core.filters.predicates import CountError
from knafka.core.sensor import rules
from knafka.core.sensor.contract import Conditions
from knafka.core.sensor.duplicates import SeenEvents
from knafka.core.sensor.held import Firing, Held, HeldEvent
from knafka.core.sensor.records import identity_of, trigger_of
from knafka.core.sensor.routing import Router
from knafka.core.sensor.timers import Timers


class PastEvent(NamedTuple):
    """An event as it was on the bus."""

    at: int
    """Milliseconds since the Unix epoch."""
    attributes: Attributes
    document: bytes
    """The event as JSON (structured mode)."""


class Fired(NamedTuple):
    """A firing, with its trigger and time."""

    key: str
    """The trigger that fired, and its correlation key if it has one (`records.key_of`)."""
    at: int
    """Time (ms) at which the firing was certain: that of its last event, or the end of a wait."""
    firing: Firing


class Backtest:
    """Applies past events to a Sensor's triggers in the order of time, and keeps the events that
    the triggers hold (`held`)."""

    def __init__(self, sensor: Conditions, count_error: CountError) -> None:
        """Compile the Sensor's conditions; `count_error` is called for each correlation or filter
        whose evaluation fails."""
        self._router = Router(sensor, count_error)
        self._rules = {rule.name: rule for rule in sensor.rules()}
        self._held: dict[str, Held] = {}
        """The events that triggers hold, by trigger and correlation key (`records.key_of`); only
        keys that hold any."""
        self._seen = SeenEvents(sensor.dedupe_millis)
        self._timers = Timers()
        """When time alone changes the events that are held at a key."""
        self._offset = 0
        """Offset of the next event, counted here, as no trigger topic gives it one."""

    @property
    def held(self) -> Mapping[str, Held]:
        """The events that triggers hold, by trigger and correlation key (`records.key_of`)."""
        return self._held

    def play(self, events: Iterable[PastEvent]) -> Iterator[Fired]:
        """Apply the events in the given order and yield the firings. An event that is earlier than
        one before it counts as late, as on the bus."""
        for event in events:
            yield from self.advance_to(event.at)
            identity = identity_of(event.attributes)
            for route in self._router.route(event.attributes):
                held_event = HeldEvent(
                    route.dependency, identity, event.at, self._offset, event.document
                )
                self._offset += 1
                if route.fires:  # nothing is held for such a trigger
                    yield Fired(route.key, event.at, Firing((held_event,)))
                    continue
                if not self._seen.mark_if_new(route.key, route.dependency, identity, event.at):
                    continue
                rule = self._rules[trigger_of(route.key)]
                step = rules.step(rule, self._held.get(route.key, ()), held_event)
                self._hold(route.key, step.held)
                for firing in step.firings:
                    yield Fired(route.key, event.at, firing)

    def advance_to(self, time: int) -> Iterator[Fired]:
        """Go on to the time `time` (ms), before which no further event comes. Yield the firings
        whose wait for an unwanted event is over then, and drop held events that can't be part of a
        firing any more. All of this happens while the returned generator is iterated."""
        for key in self._timers.take_due(time):
            rule = self._rules[trigger_of(key)]
            step = rules.expire(rule, self._held[key], time)
            self._hold(key, step.held)
            for firing in step.firings:
                assert rule.within is not None
                end_of_wait = max(event.at for event in firing.events) + rule.within
                yield Fired(key, end_of_wait, firing)

    def _hold(self, key: str, held_now: Held) -> None:
        """Replace the events that are held at a key by `held_now`, and set the key's timer to the
        time at which these events must be checked."""
        self._timers.set(key, rules.expiry_time(self._rules[trigger_of(key)], held_now))
        if held_now:
            self._held[key] = held_now
        else:
            self._held.pop(key, None)
