"""What one trigger fires for one correlation key, by events that come in the order of time.

The second statement of a Sensor's meaning: it shares what a condition is with `core.sensor`, and
nothing of its reducer (`rules`, `absence`), so that each is a check of the other. The reducer takes
events in any order and decides again from all that it holds; here they are in order, so that one
look at each is enough, and at most one `!` is waited for at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from knafka.core.sensor.rules import Rule


class Came(NamedTuple):
    """An event of one of the trigger's dependencies, and where it lies."""

    dependency: str
    identity: str
    """Its source and id, see `records.identity_of`."""
    at: int
    """Milliseconds since the Unix epoch."""
    place: str
    """A topic or a file."""
    partition: int
    offset: int


class Expected(NamedTuple):
    """A firing."""

    at: int
    """When it was known: the time of its last event, or the end of a wait."""
    events: tuple[Came, ...]


_Which: TypeAlias = tuple[str, str]
"""Dependency and identity."""


class Model:
    """Asked with `add` for each event, in the order of time; in one millisecond, in theirs."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._counting: dict[_Which, Came] = {}
        """In the order of time."""
        self._until: int | None = None
        """What counts is complete, and an unwanted event up to this time would answer it."""
        self._ignored: dict[_Which, Came] = {}
        """Wanted events that came while one waited."""
        self._unwanted_at: int | None = None
        """When the last unwanted event came: it also answers what is complete at that time."""

    def add(self, event: Came) -> Iterator[Expected]:
        """What has fired since the event before, and with this one."""
        yield from self._waited(event.at)
        which = (event.dependency, event.identity)
        reset = self._last_reset(event.at)
        self._ignored.pop(which, None)
        if which in self._counting or self._begins_before(reset):
            self._take_back(which, reset)
        if reset is not None and event.at <= reset:
            return
        if event.dependency in self._rule.condition.unwanted:
            self._unwanted_at = event.at
            if self._until is not None:
                self._clear()
        elif self._until is not None:
            self._ignored[which] = event
        elif self._completes(event):
            if not self._rule.condition.unwanted:
                yield self._fire(event.at)
            elif self._unwanted_at == event.at:
                self._clear()
            else:
                assert self._rule.within is not None
                self._until = event.at + self._rule.within

    def end(self, at: int) -> Iterator[Expected]:
        """What has fired since the last event, if every event before this time has come."""
        yield from self._waited(at)

    def waits(self, at: int) -> bool:
        """Whether wanted events are held at this time: of a wait for what is unwanted also those
        that were reset, until it is over."""
        within = self._rule.within
        reset = None if self._rule.condition.unwanted else self._last_reset(at)
        return any(
            (within is None or each.at + within >= at) and (reset is None or each.at > reset)
            for each in self._counting.values()
        )

    def _waited(self, at: int) -> Iterator[Expected]:
        if self._until is None or self._until >= at:
            return
        if self._begins_before(self._last_reset(self._until)):
            self._clear()  # while it waited (BUS-S5)
        else:
            yield self._fire(self._until)

    def _fire(self, at: int) -> Expected:
        events = tuple(self._counting.values())
        self._clear()
        return Expected(at, events)

    def _clear(self) -> None:
        self._counting, self._until, self._ignored = {}, None, {}

    def _completes(self, event: Came) -> bool:
        counting, condition, within = self._counting, self._rule.condition, self._rule.within
        if within is not None:
            for which in [key for key, each in counting.items() if each.at + within < event.at]:
                del counting[which]
        same = [which for which in counting if which[0] == event.dependency]
        if len(same) >= condition.wanted[event.dependency]:
            del counting[same[0]]
        counting[event.dependency, event.identity] = event
        return self._is_complete()

    def _is_complete(self) -> bool:
        return self._rule.condition.holds(Counter(which[0] for which in self._counting))

    def _take_back(self, repeated: _Which, reset: int | None) -> None:
        """An event that comes again counts from now on only (BUS-S3), and one from before a reset
        not at all (BUS-S5). The rest goes on waiting only if it is complete by itself, or with what
        came meanwhile."""
        self._counting = {
            which: each
            for which, each in self._counting.items()
            if which != repeated and (reset is None or each.at > reset)
        }
        if self._until is None or self._is_complete():
            return
        assert self._rule.within is not None
        self._until = None
        for which, each in list(self._ignored.items()):
            if self._until is None and (reset is None or each.at > reset):
                del self._ignored[which]
                if self._completes(each):
                    self._until = each.at + self._rule.within

    def _begins_before(self, reset: int | None) -> bool:
        if reset is None or not self._counting:
            return False
        return next(iter(self._counting.values())).at <= reset

    def _last_reset(self, at: int) -> int | None:
        found = (each.last(at) for each in self._rule.resets)
        return max((each for each in found if each is not None), default=None)
