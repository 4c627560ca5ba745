"""Steps: the attempts, replies and dead letters of one event at one Trigger or Subscription."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

ATTEMPT: Final = "attempt"
"""Kind of a step that is an attempt to deliver."""
SAME_ATTEMPT_SECONDS: Final = 0.05
"""The most seconds between the times of one attempt in Kafka's record and in the attempt's span."""


@dataclass(frozen=True, slots=True, order=True)
class TraceStep:
    """One attempt, reply, dead letter, or replay."""

    at: str
    """When it began, in RFC 3339."""
    what: str
    """The kind of step: attempt, reply, dead letter or sent again."""
    result: str
    """The status code or error, as text; of a replay (sent again), its `TracedState`."""


def merge_steps(
    from_kafka: Iterable[TraceStep], from_spans: Sequence[TraceStep]
) -> Sequence[TraceStep]:
    """Return the steps that Kafka's records show and those that Zipkin's spans show, in the order
    of time.

    An attempt that both show is returned once, as its span shows it, since a span says more.
    """
    attempt_times = [_step_time(step) for step in from_spans if step.what == ATTEMPT]

    def has_span(step: TraceStep) -> bool:
        """Whether the step is an attempt that a span shows, too."""
        return step.what == ATTEMPT and any(
            abs(_step_time(step) - time) < SAME_ATTEMPT_SECONDS for time in attempt_times
        )

    return sorted([*from_spans, *(step for step in from_kafka if not has_span(step))])


def _step_time(step: TraceStep) -> float:
    """Return the step's time in seconds since the Unix epoch; 0 if the time isn't valid."""
    try:
        return datetime.fromisoformat(step.at).timestamp()
    except ValueError:  # anybody can write a dead letter's attributes
        return 0.0
