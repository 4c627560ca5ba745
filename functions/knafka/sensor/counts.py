"""The counts of one process of a Sensor: events, firings and dead letters of its committed
transactions, and its aborted transactions and errors."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class SensorCounts:
    """Counts of events, firings, dead letters and transactions."""

    read: int = 0
    """Events of the bus."""
    matched: int = 0
    """Events that were sent to triggers through the trigger topic, counted once for each
    trigger."""
    fired: Counter[str] = field(default_factory=Counter)
    """Firings by trigger."""
    undecodable: int = 0
    """Records without a valid event."""
    dead_letters: Counter[str] = field(default_factory=Counter)
    """Dead letters by reason."""
    let_go: Counter[str] = field(default_factory=Counter)
    """By trigger, the number of keys whose events were dropped because the Sensor held too much."""
    errors: Counter[str] = field(default_factory=Counter)
    """Evaluations of a filter or a correlation that ended with an error, by its kind."""
    late: Counter[str] = field(default_factory=Counter)
    """Events that came too late for their order, by the trigger that took them."""
    duplicates: int = 0
    """Duplicate events, counted once for each trigger that would have taken them."""
    transactions: int = 0
    """Committed transactions."""
    aborted: int = 0
    """Aborted transactions."""

    def __add__(self, other: SensorCounts) -> SensorCounts:
        """Return the sums of all counts."""
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

    def add(self, added_counts: SensorCounts) -> None:
        """Add `added_counts` to these counts, in this same object: other threads hold it."""
        total = self + added_counts
        for counter in fields(self):
            setattr(self, counter.name, getattr(total, counter.name))

    def copy(self) -> SensorCounts:
        """Return a copy, which a later `add` to these counts doesn't change."""
        return self + SensorCounts()  # each sum is a new Counter
