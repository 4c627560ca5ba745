"""Spans of a dispatcher: the filter, attempts and reply of a sampled event at one Trigger
(KN-DP-10, KN-DP-16).

    Spans nest: receive (the receiver's) > filter > attempt > reply; a dead-letter span is in the
    filter's span, too.

A dispatcher starts no trace: an event has spans only if its record's `traceparent` belongs to a
sampled trace. Each POST, and each stored reply, carries a `traceparent` whose parent is the span of
its attempt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, TypeAlias, TypeVar

from knafka.core.contract import Egress
from knafka.core.delivery import Outcome, is_delivered
from knafka.core.errors import LogError
from knafka.core.events.kafka_binding import Draft, Envelope, RecordHeaders
from knafka.ports.subscriber import Target
from knafka.tracing.context import TRACEPARENT, SpanContext, decode
from knafka.tracing.spans import KNATIVE, Attributes, Span, SpanKind, Tracer

Send: TypeAlias = Callable[[Draft], Awaitable[tuple[Outcome, bytes] | None]]
"""Sends a reply; returns None if it was delivered, else the outcome and the response's body."""
Append: TypeAlias = Callable[[Draft], Awaitable[LogError | None]]
"""Stores a record in Kafka; returns None once it is durable, else why it was not stored."""


class AttemptedEvent(Protocol):
    """The fields of an event that an attempt's span reads and changes."""

    head: bytes
    """The header lines of its request."""

    @property
    def tries(self) -> int:
        """Failed attempts before this one, in its stage."""
        ...


E = TypeVar("E", bound=AttemptedEvent)
Post: TypeAlias = Callable[[Target, E, bool], Awaitable[tuple[Outcome, bytes]]]
"""Sends an event to a target; returns the outcome, and the body that explains a failure. The bool:
whether a reply in the response is handled."""

_TRACEPARENT_LINE: Final = b"\r\ntraceparent: %s\r\n"
"""The header line, with the line end before it, so that a `ce-traceparent` of the same value
doesn't match."""


class EgressTracing:
    """Creates the spans of one Egress's events."""

    def __init__(self, tracer: Tracer, egress: Egress) -> None:
        """`tracer` starts spans, and exports them when they end."""
        self.tracer = tracer
        self.destination = f"{egress.kind.lower()}:{egress.trigger}.{egress.namespace}"
        """The destination of the spans, as Knative names it: `trigger:NAME.NAMESPACE`."""

    def is_sampled(self, envelope: Envelope) -> bool:
        """Whether the event belongs to a sampled trace."""
        return self._sampled_parent(envelope) is not None

    def start_filter_span(self, envelope: Envelope) -> DeliveryTrace | None:
        """Start the event's filter span, and return the event's spans; None: its trace isn't
        sampled."""
        if (sampled := self._sampled_parent(envelope)) is None:
            return None
        return DeliveryTrace(self, *sampled, envelope.attributes.get("id", ""))

    def _sampled_parent(self, envelope: Envelope) -> tuple[SpanContext, bytes] | None:
        """Return the event's parent span, decoded and as the header's bytes; None: the event has no
        valid `traceparent`, or its trace isn't sampled."""
        for name, value in envelope.passed:
            if name == TRACEPARENT:
                parent = decode(value)
                if parent is None or not self.tracer.is_sampled(parent):
                    return None
                return parent, value
        return None


class DeliveryTrace:
    """The spans of one event at one Egress."""

    __slots__ = ("_attempt", "_egress", "_filter", "_id", "_original_header", "current")

    def __init__(
        self, egress: EgressTracing, parent: SpanContext, header_value: bytes, id_: str
    ) -> None:
        """Start the event's filter span under `parent`. `header_value` is the `traceparent` of that
        span, as the request's head has it; `id_` is the event's id."""
        self._egress = egress
        self._original_header = _TRACEPARENT_LINE % header_value
        """The event's own header line, which each attempt replaces by one that names its span."""
        self._id = id_
        self._filter = egress.tracer.start(
            "filter", SpanKind.INTERNAL, parent, self._span_attributes()
        )
        self.current = self._filter.context
        """Context of the span that was started last."""
        self._attempt = self.current
        """Context of the span of the last attempt at the subscriber; before the first attempt, that
        of the filter's span."""

    def _span_attributes(self) -> Attributes:
        """Return the attributes of all spans of the event."""
        return {
            "messaging.system": KNATIVE,
            "messaging.destination": self._egress.destination,
            "messaging.message_id": self._id,
        }

    def end_filter_span(self, *, passes: bool) -> None:
        """End the filter's span; `passes`: whether the event passed the filter."""
        self._filter.attributes["knafka.filter.passes"] = passes
        self._egress.tracer.end(self._filter)

    async def post(
        self, name: str, post: Post[E], target: Target, event: E, wants_reply: bool = True
    ) -> tuple[Outcome, bytes]:
        """Make one attempt by calling `post`, in a span of this name; the request's `traceparent`
        names that span. `wants_reply`: whether a reply in the response is handled. Returns the
        outcome, and the body that explains a failure."""
        span = self._start(name, SpanKind.CLIENT)
        span.attributes |= {
            "messaging.protocol": "HTTP",
            "http.request.method": "POST",
            "url.full": target.url,
            "http.request.resend_count": event.tries,
        }
        original_head = event.head
        event.head = original_head.replace(
            self._original_header, _TRACEPARENT_LINE % span.context.encode(), 1
        )
        try:
            outcome, body = await post(target, event, wants_reply)
        except BaseException as error:  # a bug of ours, or the attempt was cancelled
            self._egress.tracer.end(span, type(error).__name__)
            raise
        finally:
            event.head = original_head
        if outcome.status is not None:
            span.attributes["http.response.status_code"] = outcome.status
        self._egress.tracer.end(span, _failure_text(outcome))
        return outcome, body

    async def send(self, target: Target, send: Send, reply: Draft) -> tuple[Outcome, bytes] | None:
        """Send a reply by calling `send`, in a span; the reply's `traceparent` names that span.
        Returns None if it was delivered, else the outcome and the response's body."""
        span = self._start("reply", SpanKind.CLIENT)
        span.attributes |= {
            "messaging.protocol": "HTTP",
            "http.request.method": "POST",
            "url.full": target.url,
        }
        try:
            failure = await send(_with_traceparent(span, reply))
        except BaseException as error:
            self._egress.tracer.end(span, type(error).__name__)
            raise
        self._egress.tracer.end(span, None if failure is None else _failure_text(failure[0]))
        return failure

    async def append(self, name: str, topic: str, append: Append, draft: Draft) -> LogError | None:
        """Store a record by calling `append`, in a span of this name; a reply's `traceparent` names
        that span. Returns None once the record is durable, else why it was not stored."""
        span = self._start(name, SpanKind.PRODUCER)
        span.attributes["messaging.kafka.topic"] = topic
        if name == "reply":
            draft = _with_traceparent(span, draft)
        error = await append(draft)
        self._egress.tracer.end(span, None if error is None else str(error))
        return error

    def _start(self, name: str, kind: SpanKind) -> Span:
        """Start a span of this name: for a reply under the span of the last attempt, else under the
        filter's span."""
        parent = self._attempt if name == "reply" else self._filter.context
        span = self._egress.tracer.start(name, kind, parent, self._span_attributes())
        self.current = span.context
        if name == "attempt":
            self._attempt = span.context
        return span


def log_ids(trace: DeliveryTrace | None, headers: RecordHeaders | None) -> Mapping[str, str]:
    """Return the trace and span ids for `extra` of a log line about an event. They are the ids of
    the span that was started last or, if the event isn't sampled (`trace` None), the ids in its
    record's `headers`. Empty if the headers have none."""
    context = None if trace is None else trace.current
    if context is None:
        traceparents = [value for name, value in headers or () if name == TRACEPARENT]
        context = decode(traceparents[-1] if traceparents else None)
    return {} if context is None else context.ids


def _with_traceparent(span: Span, draft: Draft) -> Draft:
    """Return the draft with this span in its `traceparent` header."""
    headers = [header for header in draft.headers if header[0] != TRACEPARENT]
    return draft._replace(headers=[*headers, (TRACEPARENT, span.context.encode())])


def _failure_text(outcome: Outcome) -> str | None:
    """Return why an attempt failed, for its span's status; None: it didn't."""
    if outcome.failure is not None:
        return outcome.failure.value
    if outcome.status is not None and not is_delivered(outcome.status):
        return f"status {outcome.status}"
    return None
