"""Spans of a receiver: `receive`, and `append` below it (KN-DP-10, KN-DP-16).

A sender's trace continues, by its `traceparent` header or, without one, by the CloudEvents
extension of that name; else a trace begins here. The stored record's `traceparent` names the
`receive` span, or the sender's span if its trace isn't sampled; the extension stays unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import TypeAlias

from knafka.core.contract import Ingress
from knafka.core.errors import LogError
from knafka.core.events.kafka_binding import RecordHeaders
from knafka.ports.log import Reported
from knafka.receiver.answers import Answer
from knafka.tracing.context import EXTENSION, TRACEPARENT, TRACESTATE, SpanContext, decode
from knafka.tracing.spans import KNATIVE, Span, SpanKind, Tracer

Respond: TypeAlias = Callable[[Answer], None]
"""Sends the answer to a request; is called once."""


class IngestTracing:
    """Creates the spans of one receiver's events."""

    def __init__(self, tracer: Tracer) -> None:
        """`tracer` decides which traces are sampled, and records their spans."""
        self._tracer = tracer

    def start_spans(
        self, ingress: Ingress, headers: RecordHeaders, respond: Respond, reported: Reported
    ) -> tuple[Respond, Reported]:
        """Start an event's spans, and set `traceparent` in `headers`, the headers of its record.
        `respond` sends the answer, and `reported` gets Kafka's report. Returns the callbacks to use
        in place of these two: each ends a span, then calls the given callback. If the trace isn't
        sampled, no span is started, and the given callbacks are returned."""
        tracer = self._tracer
        sent = dict(headers)
        # Each context is None if its header is missing or invalid.
        header_context = decode(sent.get(TRACEPARENT))
        parent = header_context or decode(sent.get(EXTENSION))
        if parent is None:
            context = tracer.begin_trace()
        elif tracer.is_sampled(parent):
            context = tracer.child_context(parent)
        else:
            # No span of ours is recorded, so the sender's span stays the parent of the next one.
            context = SpanContext(parent.trace_id, parent.span_id, False)
        has_trace_headers = TRACEPARENT in sent or TRACESTATE in sent  # valid or not
        if not has_trace_headers:
            headers.append((TRACEPARENT, context.encode()))
        elif context != header_context:
            _replace_traceparent(headers, context, keep_state=header_context is not None)
        if not context.sampled:
            return respond, reported
        kind = ingress.kind.removeprefix("Kafka").lower()
        span = Span("receive", SpanKind.SERVER, context, parent, tracer.now())
        span.attributes = {
            "messaging.system": KNATIVE,
            "messaging.protocol": "HTTP",
            "messaging.destination": f"{kind}:{ingress.broker}.{ingress.namespace}",
        }
        if "ce_id" in sent:
            span.attributes["messaging.message_id"] = sent["ce_id"].decode("utf-8", "replace")
        append = tracer.start(
            "append",
            SpanKind.PRODUCER,
            context,
            {"messaging.system": "kafka", "messaging.destination": ingress.topic},
        )

        def on_appended(error: LogError | None) -> None:
            """End the span `append`, with the error if there is one, then call `reported`."""
            tracer.end(append, None if error is None else str(error))
            reported(error)

        def on_responded(answer: Answer) -> None:
            """End the span `receive` with the answer's status, then pass the answer on to
            `respond`."""
            span.attributes["http.response.status_code"] = answer.status
            has_failed = answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR
            tracer.end(span, answer.body.decode("utf-8", "replace").strip() if has_failed else None)
            respond(answer)

        return on_responded, on_appended


def _replace_traceparent(headers: RecordHeaders, context: SpanContext, *, keep_state: bool) -> None:
    """Replace `traceparent` in `headers` by that of `context`. `keep_state`: whether to keep
    `tracestate`; it must be dropped if it belongs to another trace."""
    replaced = (TRACEPARENT,) if keep_state else (TRACEPARENT, TRACESTATE)
    headers[:] = [header for header in headers if header[0] not in replaced]
    headers.append((TRACEPARENT, context.encode()))
