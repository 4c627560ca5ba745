"""Spans, the records of what happened to an event, as values; `Tracer` makes them. Pure.

Only a sampled trace has spans: other traces have only their context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from knafka.tracing.context import SpanContext
from knafka.tracing.sampling import Sampler

Attributes: TypeAlias = dict[str, str | int | bool]

KNATIVE: Final = "knative"
"""`messaging.system` of a Broker's, Channel's, Trigger's or Subscription's spans (KN-DP-16)."""


class SpanKind(Enum):
    """OpenTelemetry's kinds of span."""

    INTERNAL = "INTERNAL"
    SERVER = "SERVER"
    CLIENT = "CLIENT"
    PRODUCER = "PRODUCER"


@dataclass(slots=True)
class Span:
    """One span, finished once it has an `end`; times are nanoseconds since the Unix epoch."""

    name: str
    kind: SpanKind
    context: SpanContext
    parent: SpanContext | None
    """The span that this one is part of; None: it is the trace's first one."""
    start: int
    attributes: Attributes = field(default_factory=dict)
    end: int = 0
    error: str | None = None
    """Why the span's operation failed; None: it didn't."""
    links: Sequence[SpanContext] = ()
    """Related spans of other traces."""


class Tracer:
    """Makes spans, and passes finished ones to `export`, which must not block.

    `now` returns nanoseconds since the Unix epoch, `random_bits` the given number of random bits.
    """

    def __init__(
        self,
        sampler: Sampler,
        export: Callable[[Span], None],
        now: Callable[[], int],
        random_bits: Callable[[int], int],
    ) -> None:
        """`sampler` decides which traces are recorded; the class describes the other arguments."""
        self.now = now
        self._samples = sampler.samples
        self._export = export
        self._random_bits = random_bits

    def samples(self, context: SpanContext) -> bool:
        """Whether spans of this trace, which began elsewhere, are recorded."""
        return self._samples(context.trace_id, context.sampled)

    def begin_trace(self) -> SpanContext:
        """Return the context of a new trace's first span, with random ids; the sampler decides
        whether it is recorded."""
        trace_id = self._random_bits(128) or 1
        return SpanContext(
            trace_id, self._random_bits(64) or 1, self._samples(trace_id, parent=None)
        )

    def below(self, parent: SpanContext) -> SpanContext:
        """Return the context of a new span below `parent`, in its trace, which is recorded."""
        return SpanContext(parent.trace_id, self._random_bits(64) or 1, True)

    def start(
        self, name: str, kind: SpanKind, parent: SpanContext, attributes: Attributes | None = None
    ) -> Span:
        """Start a span of this name and kind now, below the span `parent`; only for a recorded
        trace."""
        return Span(name, kind, self.below(parent), parent, self.now(), attributes or {})

    def end(self, span: Span, error: str | None = None) -> None:
        """End the span now, and export it. `error` says why its operation failed; None: it
        succeeded."""
        span.end = self.now()
        span.error = error
        self._export(span)
