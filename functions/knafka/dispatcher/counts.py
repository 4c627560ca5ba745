"""Counts of one drain: what became of its events, and why attempts and filters failed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from knafka.core.drain import Counts


@dataclass(slots=True)
class DrainCounts:
    """Plain integers and dicts, which the hot path adds to."""

    events: Counts = field(default_factory=Counts)
    failures: Counter[str] = field(default_factory=Counter)
    """Failed attempts, and events that are given up for another reason than a failed attempt, by
    reason and status: `status 503`, `timeout`, `undecodable-record`."""
    filter_errors: Counter[str] = field(default_factory=Counter)
    """Evaluations of a CESQL filter that ended with an error, by the error's kind."""

    def __add__(self, other: DrainCounts) -> DrainCounts:
        return DrainCounts(
            self.events + other.events,
            self.failures + other.failures,
            self.filter_errors + other.filter_errors,
        )

    def filter_failed(self, kind: str) -> None:
        """A filter's evaluation ended with an error of this kind."""
        self.filter_errors[kind] += 1
