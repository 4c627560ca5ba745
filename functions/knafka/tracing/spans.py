"""Makes spans, which record what happened to an event (`Tracer`). Pure.

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
"""A span's attributes by name."""

KNATIVE: Final = "knative"
"""Value of the attribute `messaging.system` in spans of Brokers, Channels, Triggers and
Subscriptions (KN-DP-16)."""


class SpanKind(Enum):
    """OpenTelemetry's kinds of span."""

    INTERNAL = "INTERNAL"
    SERVER = "SERVER"
    CLIENT = "CLIENT"
    PRODUCER = "PRODUCER"


@dataclass(slots=True)
class Span:
    """One span. Times are nanoseconds since the Unix epoch."""

    name: str
    kind: SpanKind
    context: SpanContext
    parent: SpanContext | None
    """The span that this one is part of; None: it is the trace's first one."""
    start: int
    """When the span began."""
    attributes: Attributes = field(default_factory=dict)
    end: int = 0
    """When the span ended; 0: it isn't finished."""
    error: str | None = None
    """Why the span's operation failed; None: it succeeded, or isn't finished."""
    links: Sequence[SpanContext] = ()
    """Related spans of other traces."""


class Tracer:
    """Makes spans, and exports finished ones."""

    def __init__(
        self,
        sampler: Sampler,
        export: Callable[[Span], None],
        now: Callable[[], int],
        random_bits: Callable[[int], int],
    ) -> None:
        """`sampler` decides which traces are recorded. `export` gets each finished span, and must
        not block. `now` returns nanoseconds since the Unix epoch. `random_bits` returns a random
        number of as many bits as its argument says."""
        self.now = now
        self._sampler = sampler
        self._export = export
        self._random_bits = random_bits

    def is_sampled(self, context: SpanContext) -> bool:
        """Whether to record spans of a trace that another process began. `context`: the context
        that came with the event."""
        return self._sampler.is_sampled(context.trace_id, context.sampled)

    def begin_trace(self) -> SpanContext:
        """Return the context of a new trace's first span, with random ids. The sampler decides
        whether the trace is recorded."""
        trace_id = self._random_bits(128) or 1  # ids must not be 0
        span_id = self._random_bits(64) or 1
        return SpanContext(trace_id, span_id, self._sampler.is_sampled(trace_id, parent=None))

    def child_context(self, parent: SpanContext) -> SpanContext:
        """Return the context of a new span in the trace of its `parent`. Call this only for a
        recorded trace."""
        return SpanContext(parent.trace_id, self._random_bits(64) or 1, True)

    def start(
        self, name: str, kind: SpanKind, parent: SpanContext, attributes: Attributes | None = None
    ) -> Span:
        """Return a span of this name and kind that starts now, and whose parent is `parent`. Call
        this only for a recorded trace."""
        return Span(name, kind, self.child_context(parent), parent, self.now(), attributes or {})

    def end(self, span: Span, error: str | None = None) -> None:
        """End the span now, and export it. `error` says why its operation failed; None: it
        succeeded."""
        span.end = self.now()
        span.error = error
        self._export(span)
