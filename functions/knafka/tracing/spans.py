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
"""`messaging.system` of a Broker's, Channel's, Trigger's or Subscription's spans (KN-DP-16)."""


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
    attributes: Attributes = field(default_factory=dict)
    end: int = 0
    """0: the span isn't finished."""
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
        self._samples = sampler.samples  # decides by a trace's id and its parent's flag
        self._export = export
        self._random_bits = random_bits

    def samples(self, context: SpanContext) -> bool:
        """Whether to record spans of a trace that another process began; `context` came with the
        event."""
        return self._samples(context.trace_id, context.sampled)

    def begin_trace(self) -> SpanContext:
        """Return the context of a new trace's first span, with random ids; the sampler decides
        whether it is recorded."""
        trace_id = self._random_bits(128) or 1  # ids must not be 0
        return SpanContext(
            trace_id, self._random_bits(64) or 1, self._samples(trace_id, parent=None)
        )

    def child_context(self, parent: SpanContext) -> SpanContext:
        """Return the context of a new span whose parent is `parent`, in the same trace, which is
        recorded."""
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
