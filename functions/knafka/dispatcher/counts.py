"""Counts of one drain: what became of its events, and why attempts and filters failed."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from knafka.core.drain import Counts
from knafka.observability import Histogram


@dataclass(frozen=True, slots=True)
class Reported:
    """Counts that were reported in an earlier request."""

    events: Counts = field(default_factory=Counts)
    dead_letters: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class DrainCounts:
    """Plain integers and dicts, which the hot path adds to."""

    events: Counts = field(default_factory=Counts)
    failures: Counter[str] = field(default_factory=Counter)
    """Failed attempts, and events that are given up for another reason than a failed attempt, by
    reason and status: `status 503`, `timeout`, `undecodable-record`."""
    filter_errors: Counter[str] = field(default_factory=Counter)
    """Evaluations of a CESQL filter that ended with an error, by the error's kind."""
    attempts: Histogram = field(default_factory=Histogram)
    """Seconds of each attempt at the subscriber, whatever became of it."""
    latency: Histogram = field(default_factory=Histogram)
    """Seconds from a record's timestamp in Kafka until its event was delivered."""
    commits: int = 0
    """Requests for a commit, of any number of partitions."""
    rebalances: int = 0
    """Times that partitions came."""
    dead_letters: Counter[str] = field(default_factory=Counter)
    """Events that became dead letters, by the last failure's reason and status, as `failures`."""
    replies_in_a_row: int = 0
    """Of replies that answer replies, as many as must be a loop; 0: there are none."""
    dead_letters_in_a_row: int = 0
    """Of dead letters that have come back from their sink; 0: there are none at their limit."""

    def __add__(self, other: DrainCounts) -> DrainCounts:
        return DrainCounts(
            self.events + other.events,
            self.failures + other.failures,
            self.filter_errors + other.filter_errors,
            self.attempts + other.attempts,
            self.latency + other.latency,
            self.commits + other.commits,
            self.rebalances + other.rebalances,
            self.dead_letters + other.dead_letters,
            max(self.replies_in_a_row, other.replies_in_a_row),
            max(self.dead_letters_in_a_row, other.dead_letters_in_a_row),
        )

    def reported(self) -> Reported:
        """The counts that drains report, as they are now."""
        return Reported(replace(self.events), self.dead_letters.copy())

    def since(self, before: Reported) -> dict[str, Any]:
        """What has grown since, as fields of a `DrainProgress`."""
        letters = self.dead_letters - before.dead_letters
        return {**asdict(self.events - before.events), "dead_letters": dict(letters)}

    @property
    def loop(self) -> str | None:
        """What goes round in a loop, for a person; None: nothing does (`core.hops`)."""
        if letters := self.dead_letters_in_a_row:
            return f"its dead letters come back from their sink, {letters} in a row"
        if replies := self.replies_in_a_row:
            return f"replies come back to it and are answered again, {replies} in a row"
        return None

    def filter_failed(self, kind: str) -> None:
        """A filter's evaluation ended with an error of this kind."""
        self.filter_errors[kind] += 1
