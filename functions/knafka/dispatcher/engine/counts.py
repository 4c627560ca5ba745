"""Counts of one drain: its events by outcome, and why attempts and filters failed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from knafka.core.delivery import Outcome, Reason
from knafka.core.drain import COUNTED, Counts
from knafka.observability import Histogram


@dataclass(frozen=True, slots=True)
class ReportedCounts:
    """The counts of events and dead letters that earlier requests have reported."""

    events: Counts = field(default_factory=Counts)
    """Events by their outcome (`DrainCounts.events`)."""
    dead_letters: Counter[str] = field(default_factory=Counter)
    """Events that became dead letters, by reason and status (`DrainCounts.dead_letters`)."""


@dataclass(slots=True)
class DrainCounts:
    """Counts of one drain as plain integers and dicts, which the hot path adds to."""

    events: Counts = field(default_factory=Counts)
    """Events by their outcome."""
    failures: Counter[str] = field(default_factory=Counter)
    """Failed attempts, and records that were given up without an attempt, by reason and status:
    `status 503`, `timeout`, `undecodable-record`."""
    filter_errors: Counter[str] = field(default_factory=Counter)
    """Evaluations of a CESQL filter that ended with an error, by the error's kind."""
    attempts: Histogram = field(default_factory=Histogram)
    """Duration in seconds of each attempt at the subscriber, whatever its outcome."""
    latency: Histogram = field(default_factory=Histogram)
    """Seconds from a record's timestamp in Kafka until its event was delivered."""
    commits: int = 0
    """Requests for a commit, of any number of partitions."""
    rebalances: int = 0
    """How often partitions were assigned."""
    dead_letters: Counter[str] = field(default_factory=Counter)
    """Events that became dead letters, by the last failure's reason and status, as in
    `failures`."""
    replies_in_a_row: int = 0
    """Length of the longest chain of replies to replies that may be a loop; 0: no chain is that
    long."""
    dead_letters_in_a_row: int = 0
    """How often in a row a dead letter has come back from its sink, once that may be a loop; else
    0."""

    def __add__(self, other: DrainCounts) -> DrainCounts:
        """Return the sums of all counts; of the lengths of chains (`…_in_a_row`), return the
        higher one."""
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

    def reported_counts(self) -> ReportedCounts:
        """Return copies of the counts that requests report, `events` and `dead_letters`, as they
        are now; a later request reports the growth since then (`growth_since`)."""
        return ReportedCounts(replace(self.events), self.dead_letters.copy())

    def growth_since(
        self, reported: ReportedCounts, earlier: DrainCounts | None = None
    ) -> dict[str, Any]:
        """Return by how much the counts that drains report (events and dead letters) have grown
        since `reported`, as fields of a `DrainProgress`. `earlier`: the counts of earlier drains,
        which are added to this drain's; None: there are none."""
        # Not by `__add__`: a shard calls this each second for each Egress, of which it may have a
        # thousand.
        events, dead_letters, old_events = self.events, self.dead_letters, reported.events
        earlier_events = Counts() if earlier is None else earlier.events
        growth: dict[str, Any] = {
            name: getattr(events, name) + getattr(earlier_events, name) - getattr(old_events, name)
            for name in COUNTED
        }
        if earlier is not None and earlier.dead_letters:
            dead_letters = dead_letters + earlier.dead_letters
        growth["dead_letters"] = dict(dead_letters - reported.dead_letters) if dead_letters else {}
        return growth

    @property
    def loop_description(self) -> str | None:
        """A sentence about dead letters or replies that seem to go in a loop (`core.events.hops`);
        None: none seem to."""
        if letters := self.dead_letters_in_a_row:
            return f"its dead letters come back from their sink, {letters} in a row"
        if replies := self.replies_in_a_row:
            return f"replies come back to it and are answered again, {replies} in a row"
        return None

    def count_filter_error(self, kind: str) -> None:
        """Count an evaluation of a filter that ended with an error of this kind."""
        self.filter_errors[kind] += 1

    def count_failure(self, outcome: Outcome) -> None:
        """Count a failed attempt by its reason and status."""
        self.failures[_failure_label(outcome)] += 1

    def count_dead_letter(self, outcome: Outcome) -> None:
        """Count an event that became a dead letter by the reason and status of its last failure."""
        self.events.dead_lettered += 1
        self.dead_letters[_failure_label(outcome)] += 1


def _failure_label(outcome: Outcome) -> str:
    """Return reason and status of a failure as metrics count them, such as `status 503`; without a
    status only the reason, such as `timeout`."""
    status = "" if outcome.status is None else f" {outcome.status}"
    return f"{outcome.failure or Reason.STATUS}{status}"
