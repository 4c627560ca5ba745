"""Exports spans by OpenTelemetry's SDK, which sends them on a thread of its own.

Nothing waits for this thread: its queue is bounded (OTEL_BSP_MAX_QUEUE_SIZE), and a full queue
drops the oldest spans. Importing this module takes 0.2 to 0.4 s and 12 MB, so `start_tracing`
imports it only if tracing is on.
"""

from __future__ import annotations

import threading
from typing import Final

from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from knafka.tracing import context, settings, spans

_KINDS: Final = {kind: SpanKind[kind.value] for kind in spans.SpanKind}
"""OpenTelemetry's kind of span for each of ours."""
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
"""Flags of all spans: only spans of sampled traces are exported."""
_OK: Final = Status(StatusCode.UNSET)
"""Status of a span without an error, by OpenTelemetry's rules."""
# Without a version Zipkin's exporter writes null, and Zipkin refuses the batch.
_SCOPE: Final = InstrumentationScope("knafka", "")
"""The library that all spans name as their origin, with an empty version."""


class OpenTelemetryExporter:
    """Sends spans by the protocol `exporter`; the SDK takes the endpoint from the process's
    environment."""

    def __init__(self, exporter: settings.Exporter, service: str) -> None:
        """Start the SDK's background export. `service`: the service's name unless the environment
        has one. Raises `ImportError` if the protocol's package isn't installed."""
        # A name in OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES replaces `service`.
        self._resource = Resource.create({SERVICE_NAME: service}).merge(
            OTELResourceDetector().detect()
        )
        self._exporter = _open_exporter(exporter)
        self._processor = BatchSpanProcessor(self._exporter)

    def export(self, span: spans.Span) -> None:
        """Queue a finished span; never waits, as a full queue drops its oldest spans."""
        self._processor.on_end(
            ReadableSpan(
                name=span.name,
                context=_sdk_context(span.context, is_remote=False),
                parent=None if span.parent is None else _sdk_context(span.parent, is_remote=True),
                resource=self._resource,
                attributes=span.attributes,
                links=[Link(_sdk_context(link, is_remote=True)) for link in span.links],
                kind=_KINDS[span.kind],
                status=_OK if span.error is None else Status(StatusCode.ERROR, span.error),
                start_time=span.start,
                end_time=span.end,
                instrumentation_scope=_SCOPE,
            )
        )

    def close(self, timeout: float) -> None:
        """Send the queued spans within `timeout` seconds; blocks meanwhile. Spans that aren't sent
        by then are lost."""
        # In a thread, as the processor itself gives up only after 30 s if nobody listens.
        closing = threading.Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        closing.join(timeout)
        if closing.is_alive():
            self._exporter.shutdown()  # so that a failed export isn't retried


def _open_exporter(name: settings.Exporter) -> SpanExporter:
    """Create and return the SDK's exporter for the protocol `name`. Raises `ImportError` if the
    protocol's package isn't installed."""
    if name == "zipkin":
        from opentelemetry.exporter.zipkin.json import ZipkinExporter

        return ZipkinExporter()
    if name == "otlp-grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as ByGrpc

        return ByGrpc()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _sdk_context(span_context: context.SpanContext, *, is_remote: bool) -> SpanContext:
    """Return the SDK's context of a sampled span. `is_remote`: whether another process may have
    begun the span."""
    return SpanContext(span_context.trace_id, span_context.span_id, is_remote, _SAMPLED)
