"""Arrivals: compares the events that reached a subscriber with those that its senders' Broker
accepted.

Events are numbered from 0 within a key, and a key's events are sent one after the other, each again
until it is accepted. So the numbers tell everything: a missing one was lost, one that comes again
is a duplicate, one that comes after a higher one was reordered. Not here: HTTP, and which of these
count as faults.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class _Key:
    next: int = 0
    """One above the highest number that came."""
    missing: set[int] = field(default_factory=set)
    """Numbers below `next` that haven't come yet."""


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
        self._keys: defaultdict[str, _Key] = defaultdict(_Key)
        self._accepted: dict[str, int] = {}
        self._received = self._duplicates = self._reordered = self._unnumbered = 0

    def add(self, key: str, number: int) -> None:
        """Count the arrival of the event with this number of a key, perhaps as reordered or a
        duplicate."""
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
        """Note for each key how many events were accepted in all: the numbers from 0 to count -
        1."""
        self._accepted.update(counts)

    def summary(self) -> Summary:
        """Return the counts until now; events that were accepted and haven't arrived count as
        lost."""
        lost = 0
        for key, count in self._accepted.items():
            arrived = self._keys.get(key, _Key())
            lost += max(0, count - arrived.next) + sum(
                1 for missing_number in arrived.missing if missing_number < count
            )
        return Summary(
            accepted=sum(self._accepted.values()),
            received=self._received,
            lost=lost,
            duplicates=self._duplicates,
            reordered=self._reordered,
            unnumbered=self._unnumbered,
        )
