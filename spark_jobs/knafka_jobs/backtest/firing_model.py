"""Computes the firings of one trigger for one correlation key from events in the order of time.

This is a second implementation of a Sensor's meaning. It shares the conditions with `core.sensor`,
but nothing of its reducer (`rules`, `absence`), so that tests can compare the two. The reducer
takes events in any order and decides anew from all events that it holds. Here events come in order:
each is looked at once, and there is at most one wait for an unwanted event (`!`) at a time.

A condition such as `a && !b` wants the dependency `a`, and `b` is unwanted: events of `a` form a
complete set, which waits for `Rule.within` and then fires, unless an event of `b` comes. A reset is
a time of a trigger's schedule (cron): events at or before it don't count after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from knafka.core.sensor.rules import Rule


class ArrivedEvent(NamedTuple):
    """An event of one of the trigger's dependencies, and where it lies."""

    dependency: str
    identity: str
    """The event's source and id, see `records.identity_of`."""
    at: int
    """Time of the event, in milliseconds since the Unix epoch."""
    place: str
    """The topic or file that has the event."""
    partition: int
    offset: int


class ExpectedFiring(NamedTuple):
    """A firing that the model expects."""

    at: int
    """Time of the firing, in milliseconds: that of its last event, or the end of a wait."""
    events: tuple[ArrivedEvent, ...]


_EventKey: TypeAlias = tuple[str, str]
"""Dependency and identity."""


class FiringModel:
    """The state of one trigger and correlation key: `add` each event in order, then `end`.

    The order is by time, and within one millisecond by position.
    """

    def __init__(self, rule: Rule) -> None:
        """Begin without events; `rule` has the trigger's condition, timing and resets."""
        self._rule = rule
        self._counting: dict[_EventKey, ArrivedEvent] = {}
        """Events that count towards the next firing, in the order of time."""
        self._wait_end: int | None = None
        """End (ms) of the wait of a complete set: an unwanted event until then cancels the set.
        None: no set waits."""
        self._came_during_wait: dict[_EventKey, ArrivedEvent] = {}
        """Wanted events that came during the wait: they count only if the waiting set breaks."""
        self._unwanted_at: int | None = None
        """Time (ms) of the last unwanted event, None: there was none. The event also cancels a set
        that is completed at that very time."""

    def add(self, event: ArrivedEvent) -> Iterator[ExpectedFiring]:
        """Take the next event; yields the firing of a wait that ended before it, and the firing
        that the event itself causes if it completes the condition."""
        yield from self._end_wait(event.at)
        event_key = (event.dependency, event.identity)
        reset = self._last_reset(event.at)
        self._came_during_wait.pop(event_key, None)
        if event_key in self._counting or self._reset_drops_events(reset):
            self._remove_from_counting(event_key, reset)
        if reset is not None and event.at <= reset:
            return  # the reset drops this event, too
        if event.dependency in self._rule.condition.unwanted:
            self._unwanted_at = event.at
            if self._wait_end is not None:
                self._clear()
        elif self._wait_end is not None:
            self._came_during_wait[event_key] = event
        elif self._count_event(event):  # the condition is complete now
            if not self._rule.condition.unwanted:
                yield self._take_firing(event.at)
            elif self._unwanted_at == event.at:
                self._clear()  # an unwanted event of the same millisecond cancels the set
            else:  # wait, as an unwanted event may still come
                assert self._rule.within is not None
                self._wait_end = event.at + self._rule.within

    def end(self, time: int) -> Iterator[ExpectedFiring]:
        """End at `time` (ms), after every earlier event was added; yields the firing of a wait that
        ended before `time`, if there is one. A set that still waits at `time` doesn't fire."""
        yield from self._end_wait(time)

    def has_waiting_events(self, time: int) -> bool:
        """Whether wanted events are held at this time (ms): neither too old, nor before a reset.

        If the condition has unwanted events, resets are applied only when a wait ends or the next
        event comes, so events before a reset are still held.
        """
        within = self._rule.within
        reset = None if self._rule.condition.unwanted else self._last_reset(time)
        return any(
            (within is None or event.at + within >= time) and (reset is None or event.at > reset)
            for event in self._counting.values()
        )

    def _end_wait(self, time: int) -> Iterator[ExpectedFiring]:
        """End the wait if it ended before `time` (ms); yields its firing unless a reset came during
        the wait. Does nothing without a wait."""
        if self._wait_end is None or self._wait_end >= time:
            return
        if self._reset_drops_events(self._last_reset(self._wait_end)):
            self._clear()  # the reset came during the wait (BUS-S5)
        else:
            yield self._take_firing(self._wait_end)

    def _take_firing(self, time: int) -> ExpectedFiring:
        """Return the firing, at `time` (ms), of all events that count, and forget them."""
        events = tuple(self._counting.values())
        self._clear()
        return ExpectedFiring(time, events)

    def _clear(self) -> None:
        """Forget the events that count, and end the wait."""
        self._counting, self._wait_end, self._came_during_wait = {}, None, {}

    def _count_event(self, event: ArrivedEvent) -> bool:
        """Add an event to those that count; return whether the condition is now complete. Events
        that are too old to fire with it are removed first and, if its dependency has as many events
        as the condition needs, the oldest of these."""
        counting, condition, within = self._counting, self._rule.condition, self._rule.within
        if within is not None:
            for event_key, counted_event in list(counting.items()):
                if counted_event.at + within < event.at:
                    del counting[event_key]
        same_dependency = [event_key for event_key in counting if event_key[0] == event.dependency]
        if len(same_dependency) >= condition.wanted[event.dependency]:
            del counting[same_dependency[0]]
        counting[event.dependency, event.identity] = event
        return self._is_complete()

    def _is_complete(self) -> bool:
        """Whether the events that count complete the condition."""
        return self._rule.condition.holds(Counter(event_key[0] for event_key in self._counting))

    def _remove_from_counting(self, repeated: _EventKey, reset: int | None) -> None:
        """Remove the event `repeated`, and all events up to `reset` (ms; None: there was no reset),
        from the events that count. A repeated event counts only from its last arrival on (BUS-S3),
        an event at or before a reset not at all (BUS-S5).

        A wait goes on if the remaining events are complete. If not, the events that came during the
        wait are counted, too, until they complete the condition; then a new wait begins.
        """
        self._counting = {
            event_key: event
            for event_key, event in self._counting.items()
            if event_key != repeated and (reset is None or event.at > reset)
        }
        if self._wait_end is None or self._is_complete():
            return
        assert self._rule.within is not None
        self._wait_end = None
        for event_key, event in list(self._came_during_wait.items()):
            # Once a new wait has begun, the other events came during that wait.
            if self._wait_end is None and (reset is None or event.at > reset):
                del self._came_during_wait[event_key]
                if self._count_event(event):
                    self._wait_end = event.at + self._rule.within

    def _reset_drops_events(self, reset: int | None) -> bool:
        """Whether the reset at `reset` (ms) drops an event that counts now, as the event came at or
        before it. False if `reset` is None (there was no reset), or if no event counts."""
        if reset is None or not self._counting:
            return False
        first_event = next(iter(self._counting.values()))  # they are in the order of time
        return first_event.at <= reset

    def _last_reset(self, time: int) -> int | None:
        """Return the time (ms) of the last reset up to `time` (ms); None: there was none
        (BUS-S5)."""
        reset_times = (reset.last(time) for reset in self._rule.resets)
        return max(
            (reset_time for reset_time in reset_times if reset_time is not None), default=None
        )
