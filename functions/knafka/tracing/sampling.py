"""Decides which traces are recorded, by OpenTelemetry's rules. Pure.

The decision depends only on the trace's id and the rate. So a receiver, a dispatcher and a
subscriber with an OpenTelemetry SDK decide the same for one trace, if they have the same rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_DECIDING_BITS: Final = (1 << 64) - 1
"""Mask of the bits of a trace id that decide about sampling, as in OpenTelemetry's SDKs."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """Decides which traces are recorded."""

    rate: float = 1.0
    """Share of the traces that are recorded, 0 to 1."""
    follows_parent: bool = True
    """Whether a trace that began elsewhere is recorded if and only if it is recorded there. The
    rate then decides only about traces that begin here."""

    def is_sampled(self, trace_id: int, parent: bool | None) -> bool:
        """Whether this trace is recorded. `parent`: whether the parent span was recorded; None: the
        trace begins here. With `follows_parent`, the parent's decision holds; without it or without
        a parent, a trace is recorded if the lower 64 bits of its id are below `rate` * 2**64."""
        if parent is not None and self.follows_parent:
            return parent
        return trace_id & _DECIDING_BITS < round(self.rate * (_DECIDING_BITS + 1))


SAMPLERS: Final = {
    "always_on": (False, 1.0),
    "always_off": (False, 0.0),
    "traceidratio": (False, None),
    "parentbased_always_on": (True, 1.0),
    "parentbased_always_off": (True, 0.0),
    "parentbased_traceidratio": (True, None),
}
"""`Sampler.follows_parent` and `Sampler.rate` by value of OTEL_TRACES_SAMPLER. A rate of None: the
rate is in OTEL_TRACES_SAMPLER_ARG."""
