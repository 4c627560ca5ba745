"""Spans of a dispatcher: what becomes of a sampled event at one Trigger (KN-DP-10, KN-DP-16).

    receive (the receiver's) > filter > attempt > reply
                                      > dead-letter

A dispatcher begins no trace: a record says by its `traceparent` whether it belongs to a sampled
one, and has no spans else. Each POST says that its attempt is the span before, and so does a reply
that is stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, TypeAlias, TypeVar

from knafka.core.contract import Egress
from knafka.core.delivery import Outcome, is_delivered
from knafka.core.errors import LogError
from knafka.core.kafka_binding import Draft, Envelope, RecordHeaders
from knafka.ports.subscriber import Target
from knafka.tracing.context import TRACEPARENT, SpanContext, decode
from knafka.tracing.spans import KNATIVE, Attributes, Kind, Span, Tracer

Send: TypeAlias = Callable[[Draft], Awaitable[tuple[Outcome, bytes] | None]]
Append: TypeAlias = Callable[[Draft], Awaitable[LogError | None]]


class Attempted(Protocol):
    """What is read and written of the event that an attempt is made at."""

    head: bytes
    """The first lines of its request."""

    @property
    def tries(self) -> int:
        """Attempts that were made before."""
        ...


E = TypeVar("E", bound=Attempted)
Post: TypeAlias = Callable[[Target, E, bool], Awaitable[tuple[Outcome, bytes]]]

_HEADER: Final = b"\r\ntraceparent: %s\r\n"
"""The line with the end of the one before: a `ce-traceparent` may have the same value."""


class EgressTracing:
    """Makes the spans of one Egress's events."""

    def __init__(self, tracer: Tracer, egress: Egress) -> None:
        self.tracer = tracer
        self.destination = f"{egress.kind.lower()}:{egress.trigger}.{egress.namespace}"

    def wants(self, envelope: Envelope) -> bool:
        """Whether it is sampled."""
        return self._sampled(envelope) is not None

    def begin(self, envelope: Envelope) -> DeliveryTrace | None:
        """Its trace, and the span of its filter; None: it isn't sampled."""
        if (sampled := self._sampled(envelope)) is None:
            return None
        return DeliveryTrace(self, *sampled, envelope.attributes.get("id", ""))

    def _sampled(self, envelope: Envelope) -> tuple[SpanContext, bytes] | None:
        """The context that it was given, decoded and as it is."""
        for name, value in envelope.passed:
            if name == TRACEPARENT:
                parent = decode(value)
                if parent is None or not self.tracer.samples(parent):
                    return None
                return parent, value
        return None


class DeliveryTrace:
    """The spans of one event at one Egress."""

    __slots__ = ("_attempt", "_egress", "_filter", "_given", "_id", "current")

    def __init__(self, egress: EgressTracing, parent: SpanContext, given: bytes, id_: str) -> None:
        self._egress = egress
        self._given = _HEADER % given
        self._id = id_
        self._filter = egress.tracer.start("filter", Kind.INTERNAL, parent, self._attributes())
        self.current = self._filter.context
        """The last span that has begun."""
        self._attempt = self.current
        """That of the last attempt at the subscriber."""

    def _attributes(self) -> Attributes:
        return {
            "messaging.system": KNATIVE,
            "messaging.destination": self._egress.destination,
            "messaging.message_id": self._id,
        }

    def filtered(self, *, passes: bool) -> None:
        """The filter has come to its end."""
        self._filter.attributes["knafka.filter.passes"] = passes
        self._egress.tracer.end(self._filter)

    async def post(
        self, name: str, post: Post[E], target: Target, event: E, wants_reply: bool = True
    ) -> tuple[Outcome, bytes]:
        """One attempt by `post`, whose request says so."""
        span = self._start(name, Kind.CLIENT)
        span.attributes |= {
            "messaging.protocol": "HTTP",
            "http.request.method": "POST",
            "url.full": target.url,
            "http.request.resend_count": event.tries,
        }
        plain = event.head
        event.head = plain.replace(self._given, _HEADER % span.context.encode(), 1)
        try:
            outcome, body = await post(target, event, wants_reply)
        except BaseException as error:  # a bug of ours, or it takes longer than this process
            self._egress.tracer.end(span, type(error).__name__)
            raise
        finally:
            event.head = plain
        if outcome.status is not None:
            span.attributes["http.response.status_code"] = outcome.status
        self._egress.tracer.end(span, _problem(outcome))
        return outcome, body

    async def send(self, target: Target, send: Send, reply: Draft) -> tuple[Outcome, bytes] | None:
        """`reply` sent by `send`, which says that this is the span before it."""
        span = self._start("reply", Kind.CLIENT)
        span.attributes |= {
            "messaging.protocol": "HTTP",
            "http.request.method": "POST",
            "url.full": target.url,
        }
        try:
            failed = await send(_after(span, reply))
        except BaseException as error:
            self._egress.tracer.end(span, type(error).__name__)
            raise
        self._egress.tracer.end(span, None if failed is None else _problem(failed[0]))
        return failed

    async def append(self, name: str, topic: str, append: Append, draft: Draft) -> LogError | None:
        """`draft` appended by `append`; a reply says that this is the span before it."""
        span = self._start(name, Kind.PRODUCER)
        span.attributes["messaging.kafka.topic"] = topic
        if name == "reply":
            draft = _after(span, draft)
        error = await append(draft)
        self._egress.tracer.end(span, None if error is None else str(error))
        return error

    def _start(self, name: str, kind: Kind) -> Span:
        parent = self._attempt if name == "reply" else self._filter.context
        span = self._egress.tracer.start(name, kind, parent, self._attributes())
        self.current = span.context
        if name == "attempt":
            self._attempt = span.context
        return span


def log_ids(trace: DeliveryTrace | None, headers: RecordHeaders | None) -> Mapping[str, str]:
    """For `extra` of a log line about an event: by its record's headers where it isn't sampled."""
    context = None if trace is None else trace.current
    if context is None:
        given = [value for name, value in headers or () if name == TRACEPARENT]
        context = decode(given[-1] if given else None)
    return {} if context is None else context.ids


def _after(span: Span, draft: Draft) -> Draft:
    headers = [each for each in draft.headers if each[0] != TRACEPARENT]
    return draft._replace(headers=[*headers, (TRACEPARENT, span.context.encode())])


def _problem(outcome: Outcome) -> str | None:
    if outcome.failure is not None:
        return outcome.failure.value
    if outcome.status is not None and not is_delivered(outcome.status):
        return f"status {outcome.status}"
    return None
