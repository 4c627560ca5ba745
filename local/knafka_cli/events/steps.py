"""Steps: what has happened to one event at one Trigger or Subscription, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

ATTEMPT: Final = "attempt"
SAME: Final = 0.05
"""Seconds that two notes of one attempt are apart, at most."""


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """One attempt, reply, dead letter, or replay."""

    at: str
    """When it began, RFC 3339."""
    what: str
    result: str
    """For a person: the status, or why there is none."""


def merged(kept: Iterable[Step], spans: Sequence[Step]) -> Sequence[Step]:
    """Both in the order of time; of an attempt that both have, the span, which says more."""
    attempts = [_seconds(each) for each in spans if each.what == ATTEMPT]

    def has_span(step: Step) -> bool:
        return step.what == ATTEMPT and any(abs(_seconds(step) - at) < SAME for at in attempts)

    return sorted([*spans, *(each for each in kept if not has_span(each))])


def _seconds(step: Step) -> float:
    try:
        return datetime.fromisoformat(step.at).timestamp()
    except ValueError:  # a dead letter says what it says
        return 0.0
