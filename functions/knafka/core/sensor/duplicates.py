"""Recognises duplicates: events of the same source and id within a declared time count once.

A Sensor's function keeps a mark for each event that a trigger has taken, until the declared time is
over. It keeps marks in the same way as held events: in its changelog, each under its own key
(`key_of`). Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from knafka.core.sensor.conditions import TriggerCondition, Wanted
from knafka.core.sensor.held import HeldEvent
from knafka.core.sensor.rules import Rule

MARK_PREFIX: Final = "@"
"""Begins the key of each mark; no name of a trigger or dependency contains it."""
MARK_DEPENDENCY: Final = MARK_PREFIX
"""Stands for a dependency in marks, which are held like events of this dependency."""


def rule_of(trigger: str, dedupe: int) -> Rule:
    """Return the rule by which the marks of a trigger are held for `dedupe` milliseconds. The rule
    never fires, as it wants two events, and a mark's key holds only one."""
    return Rule(
        MARK_PREFIX + trigger,
        TriggerCondition(Wanted(MARK_DEPENDENCY, 2), {MARK_DEPENDENCY: 2}, frozenset()),
        dedupe,
    )


def key_of(trigger: str, event: HeldEvent) -> str:
    """Return the key under which a trigger's mark of an event is held."""
    return f"{MARK_PREFIX}{trigger}/{event.dependency}/{event.identity}"


def is_mark(key: str) -> bool:
    """Whether this is the key of a mark, and not of events that are held for a firing."""
    return key.startswith(MARK_PREFIX)


def mark_of(event: HeldEvent) -> HeldEvent:
    """Return the mark by which duplicates of an event are recognised: a copy of the event for the
    dependency `MARK_DEPENDENCY`, without document and trace."""
    return event._replace(dependency=MARK_DEPENDENCY, document=b"", trace=b"")


class SeenEvents:
    """Keeps the marks of triggers' events in memory, for events that come in the order of time, as
    in a backtest."""

    def __init__(self, dedupe: int | None) -> None:
        """Begin without marks. `dedupe`: milliseconds in which the same event counts only once;
        None: every event counts."""
        self._dedupe = dedupe
        self._taken: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        """Time (ms) of each marked event by key, dependency and identity, the oldest first."""

    def mark_if_new(self, key: str, dependency: str, identity: str, time: int) -> bool:
        """Mark an event if it is new. Return True if the event is new and so counts, False if it is
        a duplicate.

        `key`: the trigger and its correlation key (`records.key_of`). `dependency`: the one for
        which the event counts. `identity`: the event's source and id. `time` (ms): when the event
        came; times must be passed in ascending order.
        """
        if self._dedupe is None:
            return True
        marks = self._taken
        while marks and time - next(iter(marks.values())) > self._dedupe:  # the oldest has expired
            marks.popitem(last=False)
        event_key = key, dependency, identity
        if event_key in marks:
            return False
        marks[event_key] = time
        return True
