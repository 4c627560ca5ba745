"""Steps: what has happened to one event at one Trigger or Subscription, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

ATTEMPT: Final = "attempt"
SAME_ATTEMPT_SECONDS: Final = 0.05
"""Seconds that two notes of one attempt are apart, at most."""


@dataclass(frozen=True, slots=True, order=True)
class TraceStep:
    """One attempt, reply, dead letter, or replay."""

    at: str
    """When it began, RFC 3339."""
    what: str
    result: str
    """For a person: the status, or why there is none."""


def merged(kept: Iterable[TraceStep], spans: Sequence[TraceStep]) -> Sequence[TraceStep]:
    """Both in the order of time; of an attempt that both have, the span, which says more."""
    attempts = [_seconds(step) for step in spans if step.what == ATTEMPT]

    def has_span(step: TraceStep) -> bool:
        return step.what == ATTEMPT and any(
            abs(_seconds(step) - attempt) < SAME_ATTEMPT_SECONDS for attempt in attempts
        )

    return sorted([*spans, *(step for step in kept if not has_span(step))])


def _seconds(step: TraceStep) -> float:
    try:
        return datetime.fromisoformat(step.at).timestamp()
    except ValueError:  # a dead letter says what it says
        return 0.0
