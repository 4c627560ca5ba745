"""Tracing: W3C trace context, sampling, and spans, which OpenTelemetry's SDK exports.

    context   a traceparent read and written
    sampling  which traces are recorded, by their id: receivers and dispatchers agree
    spans     spans as values, and the tracer that makes them
    settings  what OTEL_* variables say
    starting  a process's tracing, from its environment
    exporter  OpenTelemetry's SDK: imported only where tracing is on

What spans an event has: `knafka.receiver.tracing` and `knafka.dispatcher.tracing`. Off, there is no
tracer, and the hot paths check for that once (docs/decisions/0022-tracing.md).
"""
