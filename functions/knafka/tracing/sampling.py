"""Decides which traces are recorded, by OpenTelemetry's rules. Pure.

The decision is made from the trace's id. So a receiver, a dispatcher and a subscriber with an
OpenTelemetry SDK decide the same for one trace, if they have the same rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_BITS: Final = (1 << 64) - 1
"""Bits of a trace id that decide about sampling, the same as in OpenTelemetry's SDKs."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """Decides which traces are recorded. `rate`: share of traces, 0 to 1. `follows_parent`: a trace
    that began elsewhere is recorded if it is recorded there, whatever the rate."""

    rate: float = 1.0
    follows_parent: bool = True

    def samples(self, trace_id: int, parent: bool | None) -> bool:
        """Whether this trace is recorded: as its parent span was if the sampler follows it, else if
        the lower 64 bits of its id are below `rate` * 2**64. `parent`: whether the parent span was
        recorded; None: the trace begins here."""
        if parent is not None and self.follows_parent:
            return parent
        return trace_id & _BITS < round(self.rate * (_BITS + 1))


NAMES: Final = {
    "always_on": (False, 1.0),
    "always_off": (False, 0.0),
    "traceidratio": (False, None),
    "parentbased_always_on": (True, 1.0),
    "parentbased_always_off": (True, 0.0),
    "parentbased_traceidratio": (True, None),
}
"""OTEL_TRACES_SAMPLER's values: whether a parent is followed, and the rate if the name says it."""
