"""A tracer whose spans a test can look at."""

from __future__ import annotations

import random

from knafka.tracing.context import SpanContext
from knafka.tracing.sampling import Sampler
from knafka.tracing.spans import Span, Tracer


class Recorded:
    """Spans in the order in which they ended; the clock counts its times_read."""

    def __init__(self, rate: float = 1.0, *, follows_parent: bool = True) -> None:
        self.spans: list[Span] = []
        self._readings = 0
        self.tracer = Tracer(
            Sampler(rate, follows_parent),
            self.spans.append,
            self._now,
            random.Random(0).getrandbits,
        )

    def _now(self) -> int:
        self._readings += 1
        return self._readings

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.spans]

    def one(self, name: str) -> Span:
        (span,) = (each for each in self.spans if each.name == name)
        return span

    def parent_of(self, name: str) -> str | SpanContext | None:
        """The name of its parent if that is a recorded span, else its context."""
        parent = self.one(name).parent
        named = (each.name for each in self.spans if each.context == parent)
        return next(named, parent)
