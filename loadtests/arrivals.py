"""Arrivals: compares the events that reached a subscriber with those that its senders' Broker
accepted.

Events are numbered from 0 within a key. A key's events are sent one after the other, and each is
sent again until it is accepted. So a missing number is a lost event, a repeated one is a duplicate,
and one after a higher one was reordered. Not here: HTTP, and which of these count as faults.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class _ArrivedNumbers:
    """The numbers of a key's events that have arrived."""

    next: int = 0
    """One above the highest number that has arrived."""
    missing: set[int] = field(default_factory=set)
    """Numbers below `next` that haven't arrived yet."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of events."""

    accepted: int
    received: int
    """Arrivals, repeated ones included."""
    lost: int
    """Events that were accepted and haven't arrived yet."""
    duplicates: int
    reordered: int
    unnumbered: int
    """Arrivals without a key or a number, which the load test didn't send."""

    @staticmethod
    def of(document: Mapping[str, Any]) -> Summary:
        """Return the summary in a subscriber's JSON."""
        return Summary(**document)

    def __str__(self) -> str:
        return (
            f"accepted {self.accepted}, received {self.received}: lost {self.lost}, "
            f"duplicates {self.duplicates}, reordered {self.reordered}"
            + (f", {self.unnumbered} that are not ours" if self.unnumbered else "")
        )


class Arrivals:
    """Counts arrivals, by key and number."""

    def __init__(self) -> None:
        self._keys: defaultdict[str, _ArrivedNumbers] = defaultdict(_ArrivedNumbers)
        self._accepted: dict[str, int] = {}
        """Number of events that the Broker accepted, by key."""
        self._received = self._duplicates = self._reordered = self._unnumbered = 0

    def add(self, key: str, number: int) -> None:
        """Count the arrival of an event; it is reordered if it was missing below a higher number,
        and a duplicate if it has arrived before."""
        self._received += 1
        arrived = self._keys[key]
        if number >= arrived.next:
            arrived.missing.update(range(arrived.next, number))
            arrived.next = number + 1
        elif number in arrived.missing:
            arrived.missing.remove(number)
            self._reordered += 1
        else:
            self._duplicates += 1

    def add_unnumbered(self) -> None:
        """Count an arrival without a key or a number."""
        self._received += 1
        self._unnumbered += 1

    def accept(self, counts: Mapping[str, int]) -> None:
        """Set the number of events that the Broker has accepted, for each of these keys: those
        numbered from 0 to count - 1."""
        self._accepted.update(counts)

    def summary(self) -> Summary:
        """Return the counts until now; events that were accepted and haven't arrived count as
        lost."""
        lost = 0
        for key, count in self._accepted.items():
            arrived = self._keys.get(key, _ArrivedNumbers())
            missing_below = sum(1 for number in arrived.missing if number < count)
            lost += missing_below + max(0, count - arrived.next)
        return Summary(
            accepted=sum(self._accepted.values()),
            received=self._received,
            lost=lost,
            duplicates=self._duplicates,
            reordered=self._reordered,
            unnumbered=self._unnumbered,
        )
