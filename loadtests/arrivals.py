"""Arrivals: what reached a subscriber, held against what its senders had accepted.

Events are numbered from 0 within a key, and a key's events are sent one after the other, each again
until it is accepted. So the numbers say all: one that stays away was lost, one that comes again is
a duplicate, one that comes after a higher one was reordered. Not here: HTTP, and judging:
at-least-once allows duplicates, and only per-key order promises order.
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
    """Numbers below it that did not come yet."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of events."""

    accepted: int
    received: int
    """Arrivals, repeated ones included."""
    lost: int
    """Accepted, and not arrived so far."""
    duplicates: int
    reordered: int
    unnumbered: int
    """Arrivals without a key or a number: not ours."""

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
    """Counts since it was made."""

    def __init__(self) -> None:
        self._keys: defaultdict[str, _Key] = defaultdict(_Key)
        self._accepted: dict[str, int] = {}
        self._received = self._duplicates = self._reordered = self._unnumbered = 0

    def add(self, key: str, number: int) -> None:
        self._received += 1
        seen = self._keys[key]
        if number >= seen.next:
            seen.missing.update(range(seen.next, number))
            seen.next = number + 1
        elif number in seen.missing:
            seen.missing.remove(number)
            self._reordered += 1
        else:
            self._duplicates += 1

    def add_unnumbered(self) -> None:
        self._received += 1
        self._unnumbered += 1

    def accept(self, counts: Mapping[str, int]) -> None:
        """Of each key so many events, numbers 0 to count - 1, were accepted."""
        self._accepted.update(counts)

    def summary(self) -> Summary:
        lost = 0
        for key, count in self._accepted.items():
            seen = self._keys.get(key, _Key())
            lost += max(0, count - seen.next) + sum(1 for each in seen.missing if each < count)
        return Summary(
            accepted=sum(self._accepted.values()),
            received=self._received,
            lost=lost,
            duplicates=self._duplicates,
            reordered=self._reordered,
            unnumbered=self._unnumbered,
        )
