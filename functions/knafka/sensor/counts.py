"""Counts of one process of a Sensor: what became of records, in committed transactions only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class SensorCounts:
    """Plain integers."""

    read: int = 0
    """Events of the bus."""
    matched: int = 0
    """Events for triggers, each as often as a trigger has it."""
    fired: Counter[str] = field(default_factory=Counter)
    """Firings by trigger."""
    undecodable: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)
    """Dead letters by reason."""
    let_go: Counter[str] = field(default_factory=Counter)
    """Triggers, or their correlation keys, whose events were let go of as the Sensor held too much;
    by the trigger."""
    errors: Counter[str] = field(default_factory=Counter)
    """Evaluations of a filter or a correlation that ended with an error, by its kind."""
    late: Counter[str] = field(default_factory=Counter)
    """Events that came too late for their order, by the trigger that took them."""
    duplicates: int = 0
    """Events that came again, each as often as a trigger would have had it."""
    transactions: int = 0
    aborted: int = 0

    def __add__(self, other: SensorCounts) -> SensorCounts:
        return SensorCounts(
            self.read + other.read,
            self.matched + other.matched,
            self.fired + other.fired,
            self.undecodable + other.undecodable,
            self.dead_letters + other.dead_letters,
            self.let_go + other.let_go,
            self.errors + other.errors,
            self.late + other.late,
            self.duplicates + other.duplicates,
            self.transactions + other.transactions,
            self.aborted + other.aborted,
        )

    def add(self, other: SensorCounts) -> None:
        """Add the counts of `other` to these in place, as other threads hold a reference to
        these."""
        total = self + other
        for counter in fields(self):
            setattr(self, counter.name, getattr(total, counter.name))

    def copy(self) -> SensorCounts:
        return self + SensorCounts()
