"""Parses and writes W3C's trace context, the header `traceparent` (KN-DP-10). Pure.

An event has two trace contexts. The HTTP header, and the record header of the same name, name the
previous span: each hop replaces them. The CloudEvents extension (`ce_traceparent` in a record)
names the trace in which the event began, and is never changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

TRACEPARENT: Final = "traceparent"
"""Name of the header with the previous span's context."""
TRACESTATE: Final = "tracestate"
"""Name of the header that accompanies `TRACEPARENT`, with vendors' data."""
EXTENSION: Final = "ce_traceparent"
"""Name of the record header of the CloudEvents extension."""

# Version, trace id, span id, flags and further fields; returns None for any other text.
_match_traceparent = re.compile(
    rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL
).fullmatch


class SpanContext(NamedTuple):
    """Identifies a span and its trace; passed on from hop to hop."""

    trace_id: int
    """128 bits, not 0."""
    span_id: int
    """64 bits, not 0."""
    sampled: bool
    """Whether the trace is recorded where this span began."""

    def encode(self) -> bytes:
        """Return the context as the value of a `traceparent` header."""
        return b"00-%032x-%016x-%02x" % self

    @property
    def ids(self) -> Mapping[str, str]:
        """Trace id and span id as fields of a log line."""
        return {"trace_id": f"{self.trace_id:032x}", "span_id": f"{self.span_id:016x}"}


def decode(value: bytes | None) -> SpanContext | None:
    """Parse the value of a `traceparent`. Return None if `value` is None, or invalid by W3C's
    rules. Versions after 00 may have further fields, which are ignored."""
    if value is None or (match := _match_traceparent(value)) is None:
        return None
    version, trace, span, flags, further_fields = match.groups()
    if version == b"ff" or (further_fields and version == b"00"):
        return None
    trace_id, span_id = int(trace, 16), int(span, 16)
    if not trace_id or not span_id:
        return None
    return SpanContext(trace_id, span_id, int(flags, 16) & 1 == 1)
