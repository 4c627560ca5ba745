"""Ingest: what a request to a receiver means and what becomes of it.

The two ways in (`protocol`, `function`) hand over a whole request and a callback; the answer comes
at once or when Kafka has acknowledged. Memory is bounded by `Limits`: what doesn't fit is answered
503 with Retry-After, never queued, and so is every event while Kafka is known to be away. Nothing
is answered 202 that Kafka has not (KN-BRK-07).

Not here: sockets and HTTP's parsing (`protocol`). A failed append is not retried: the sender does,
and knows better.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import unquote_to_bytes

from knafka import serving
from knafka.core.contract import Ingress
from knafka.core.errors import InvalidEvent, LogError, LogFull, UnsupportedContentMode
from knafka.core.http_binding import record_of
from knafka.observability import Labels, Metric, RateLimitedFilter, prometheus_text
from knafka.ports.log import LogWriter, Reported, failure_of
from knafka.receiver import answers
from knafka.receiver.answers import Answer
from knafka.receiver.tracing import IngestTracing

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter())

HttpHeaders: TypeAlias = Sequence[tuple[bytes, bytes]]
Respond: TypeAlias = Callable[[Answer], None]

LIVENESS: Final = frozenset(path.encode() for path in serving.LIVENESS)
READINESS: Final = frozenset(path.encode() for path in serving.READINESS)
METRICS: Final = b"/metrics"
HEADER_OVERHEAD: Final = 64
"""Bytes that a waiting record header takes beside its name and value: thousands are possible."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a receiver holds at most; together they bound its memory."""

    in_flight: int = 10_000
    """Events that wait for Kafka; a second's worth at full speed is about this many."""
    in_flight_bytes: int = 64 * 1024 * 1024
    """Bodies being received, and events that wait for Kafka, each."""
    header_bytes: int = 64 * 1024
    """Header names and values of one request; common servers allow 8 to 64 KiB."""
    connections: int = 10_000
    """Each takes a file descriptor and some 10 KB."""


class BrokerRoute:
    """One Broker's path: where its events go, and what was answered there by status code."""

    __slots__ = ("answered", "ingress", "max_event_bytes", "too_large", "topic", "writer")

    def __init__(self, ingress: Ingress, writer: LogWriter) -> None:
        self.ingress = ingress
        self.writer = writer
        self.topic = ingress.topic
        self.max_event_bytes = ingress.max_event_bytes
        self.answered: Counter[int] = Counter()
        self.too_large = answers.too_large(ingress.max_event_bytes)

    def respond(self, answer: Answer, respond: Respond) -> None:
        """Give `answer` to `respond`, and count it."""
        self.answered[answer.status] += 1
        respond(answer)


class IngestHandler:
    """All Brokers that one receiver serves; `writers` has the log of each, in the same order."""

    def __init__(
        self,
        ingresses: Sequence[Ingress],
        writers: Sequence[LogWriter],
        limits: Limits = Limits(),
        tracing: IngestTracing | None = None,
    ) -> None:
        self.limits = limits
        self._tracing = tracing
        self.max_event_bytes = max((each.max_event_bytes for each in ingresses), default=0)
        self.waiting: Answer | None = answers.waiting("")
        """What the readiness probe is told until Kafka has answered; None since."""
        self._writers = tuple(writers)
        self._routes = {
            ingress.path.encode(): BrokerRoute(ingress, writer)
            for ingress, writer in zip(ingresses, writers, strict=True)
        }
        self._waiting_bytes = 0
        self._unrouted: Counter[int] = Counter()

    def handle(
        self, method: bytes, path: bytes, headers: HttpHeaders, body: bytes, respond: Respond
    ) -> None:
        """Answer one request: `respond` is called exactly once, now or later; nothing is raised."""
        route = self.find(path)
        if route is None:
            respond(self._elsewhere(method, path))
        elif method == b"POST":
            self.receive(route, headers, body, respond)
        else:
            route.respond(_handshake(method, headers), respond)

    def find(self, path: bytes) -> BrokerRoute | None:
        """The Broker at this path; it stays the same for as long as the receiver runs."""
        return self._routes.get(path) or self._routes.get(path.removesuffix(b"/"))

    def receive(
        self, route: BrokerRoute, headers: HttpHeaders, body: bytes, respond: Respond
    ) -> None:
        """`handle` for a POST to a Broker."""
        limits = self.limits

        def stored(error: LogError | None) -> None:
            self._waiting_bytes -= held
            route.respond(answers.ACCEPTED if error is None else _refusal(route, error), respond)

        reported: Reported = stored
        try:
            key, kept, value = record_of(headers, body)
            size = 0 if value is None else len(value)
            for name, text in kept:
                size += len(name) + len(text)
            held = size + HEADER_OVERHEAD * len(kept)
            if self._tracing is not None:
                respond, reported = self._tracing.receive(route.ingress, kept, respond, stored)
            if size > route.max_event_bytes:
                route.respond(route.too_large, respond)
            elif route.writer.away is not None:
                route.respond(answers.AWAY, respond)
            elif (
                route.writer.in_flight >= limits.in_flight
                or self._waiting_bytes + held > limits.in_flight_bytes
            ):
                route.respond(answers.BUSY, respond)
            else:
                route.writer.append(route.topic, key, value, kept, reported)
                self._waiting_bytes += held
        except UnsupportedContentMode as error:
            route.respond(answers.unsupported(str(error)), respond)
        except InvalidEvent as error:
            route.respond(answers.invalid(str(error)), respond)
        except LogError as error:
            route.respond(_refusal(route, error), respond)

    def refuse(self, path: bytes, answer: Answer) -> Answer:
        """Count an answer that a way in gives by itself, before the request is whole."""
        route = self.find(path)
        counts = self._unrouted if route is None else route.answered
        counts[answer.status] += 1
        return answer

    def body_limit(self, path: bytes) -> tuple[int, Answer]:
        """How many bytes a request to this path may have, and the answer to more."""
        route = self.find(path)
        if route is None:
            return self.max_event_bytes, answers.NOT_FOUND
        return route.max_event_bytes, route.too_large

    def _elsewhere(self, method: bytes, path: bytes) -> Answer:
        if method in (b"GET", b"HEAD"):
            if path in LIVENESS:
                failure = failure_of(self._writers)
                return answers.HEALTHY if failure is None else answers.failed(str(failure))
            if path in READINESS:
                return self.waiting or answers.HEALTHY
            if path == METRICS:
                return answers.plain(prometheus_text(self.metrics()))
        self._unrouted[answers.NOT_FOUND.status] += 1
        return answers.NOT_FOUND

    def metrics(self) -> Iterator[Metric]:
        """KN-DP-15: what was accepted and what was refused, by Broker and status code."""
        yield Metric(
            "knafka_receiver_events_total",
            "Requests to a Broker's path by the status code they were answered with",
            [
                ({**_labels(route.ingress), "code": str(code)}, count)
                for route in self._routes.values()
                for code, count in sorted(route.answered.items())
            ],
        )
        yield Metric(
            "knafka_receiver_unrouted_total",
            "Requests to no Broker's path by the status code they were answered with",
            [({"code": str(code)}, count) for code, count in sorted(self._unrouted.items())],
        )
        yield Metric(
            "knafka_receiver_kafka_away",
            "Whether a Broker's Kafka is known to be away: its events are answered 503 at once",
            [
                (_labels(route.ingress), 0 if route.writer.away is None else 1)
                for route in self._routes.values()
            ],
            kind="gauge",
        )
        yield Metric(
            "knafka_receiver_waiting_bytes",
            "Bytes of events that wait for Kafka's acknowledgement",
            [({}, self._waiting_bytes)],
            kind="gauge",
        )


def decoded_path(path: bytes) -> bytes:
    """The path that percent-encoding stands for. An encoded slash is none between segments, so a
    path with one is left as it is, and leads nowhere."""
    return path if b"%2f" in path.lower() else unquote_to_bytes(path)


def header_bytes(headers: HttpHeaders) -> int:
    """What headers count as: names, values, and for each the colon, a space and the line's end."""
    return sum([len(name) + len(value) + 4 for name, value in headers])


def _labels(ingress: Ingress) -> Labels:
    return {"namespace": ingress.namespace, "broker": ingress.broker}


def _refusal(route: BrokerRoute, error: LogError) -> Answer:
    if error.too_large:
        return route.too_large
    if isinstance(error, LogFull):
        return answers.BUSY
    log.warning("an event for %s was not stored: %s", route.ingress.path, error)
    return answers.UNAVAILABLE


def _handshake(method: bytes, headers: HttpHeaders) -> Answer:
    """Requests to a Broker's path that bring no event: OPTIONS (KN-DP-07), probes (KN-BRK-21)."""
    if method == b"OPTIONS":
        return answers.OPTIONS
    if method == b"GET":
        lowered = {name.lower(): value for name, value in headers}
        if lowered.get(b"k-network-probe") == b"probe":
            return answers.probed(lowered.get(b"k-network-hash", b""))
    return answers.NOT_ALLOWED
