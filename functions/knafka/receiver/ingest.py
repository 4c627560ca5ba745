"""Ingest: what a request to a receiver means and what becomes of it.

The two ways in (`protocol`, `function`) hand over a whole request and a callback; the answer comes
at once or when Kafka has acknowledged. Memory is bounded by `Limits`: what doesn't fit is answered
503 with Retry-After, never queued, and so is every event while Kafka is known to be away. Nothing
is answered 202 that Kafka has not (KN-BRK-07).

Not here: sockets and HTTP's parsing (`protocol`). A failed append is not retried: the sender does,
and knows better.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from knafka import serving
from knafka.contract_topic import Contract
from knafka.core.caller_tokens import EVERYBODY, Callers, bearer_of
from knafka.core.contract import Ingress
from knafka.core.errors import (
    BatchedContent,
    InvalidBatch,
    InvalidEvent,
    LogError,
    LogFull,
    UnsupportedContentMode,
)
from knafka.core.filters import Predicate
from knafka.core.http_binding import record_of, records_of_batch
from knafka.core.kafka_binding import Draft, RecordHeaders, in_structured_mode, read
from knafka.observability import (
    CONTENT_TYPE,
    Histogram,
    Metric,
    RateLimitedFilter,
    ingress_labels,
    produced,
    prometheus_text,
)
from knafka.ports.log import Append, AppendAll, LogWriter, Reported, failure_of
from knafka.receiver import answers
from knafka.receiver.address import HttpHeaders, address_of_host, is_host
from knafka.receiver.answers import Answer
from knafka.receiver.authentication import SenderCheck, TokenVerifier
from knafka.receiver.batches import Batch
from knafka.receiver.direct import LOAD, HeldRequests
from knafka.receiver.encryption import Check, EncryptedOnly
from knafka.receiver.event_types import EVENT_TYPES, SeenTypes
from knafka.receiver.tracing import IngestTracing

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter())

Respond: TypeAlias = Callable[[Answer], None]

LIVENESS: Final = frozenset(path.encode() for path in serving.LIVENESS)
READINESS: Final = frozenset(path.encode() for path in serving.READINESS)
METRICS: Final = b"/metrics"
CONTRACT: Final = b"/contract"
HEADER_OVERHEAD: Final = 128
"""Bytes that a header takes beside its name and value, whether its request is being received or its
record waits: a tuple and the heads of two strings."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a receiver holds at most; together they bound its memory."""

    in_flight: int = 10_000
    """Events that wait for Kafka; a second's worth at full speed is about this many."""
    in_flight_bytes: int = 64 * 1024 * 1024
    """Requests being received, and events that wait for Kafka, each: headers and bodies."""
    header_bytes: int = 64 * 1024
    """Header names and values of one request; common servers allow 8 to 64 KiB."""
    headers: int = 256
    """Headers of one request: the 100 that common servers allow, and an event's attributes beside
    them (`core.event.MAX_ATTRIBUTES`)."""
    connections: int = 10_000
    """Each takes a file descriptor and some 10 KB."""


class BrokerRoute:
    """One Broker, KafkaChannel or KafkaSink: where its events go, and what was answered by status
    code."""

    __slots__ = (
        "answered",
        "append",
        "append_all",
        "check",
        "duration",
        "ingress",
        "max_event_bytes",
        "too_large",
        "topic",
        "writer",
    )

    def __init__(
        self,
        ingress: Ingress,
        writer: LogWriter,
        before: BrokerRoute | None = None,
        verifier: TokenVerifier | None = None,
    ) -> None:
        """`before`: as it was served until now, whose counts go on. `verifier`: of the tokens that
        it wants, if it has an audience."""
        self.ingress = ingress
        self.writer = writer
        self.append: Append = writer.append
        self.append_all: AppendAll = writer.append_all
        if ingress.content_mode == "structured":
            self.append = partial(_append_structured, writer)
            self.append_all = partial(_append_all_structured, writer)
        self.topic = ingress.topic
        self.check: Check | None = None
        """None: everybody may send."""
        if ingress.audience is not None:
            self.check = SenderCheck(ingress, ingress.audience, verifier)
        if ingress.encrypted_only:
            self.check = EncryptedOnly(self.check)
        self.max_event_bytes = ingress.max_event_bytes
        # To add to a Counter takes three times as long.
        self.answered: dict[int, int] = defaultdict(int) if before is None else before.answered
        self.duration: Histogram = Histogram() if before is None else before.duration
        """From a request that is whole to its answer, of events that Kafka was given."""
        self.too_large = answers.too_large(ingress.max_event_bytes)

    def respond(self, answer: Answer, respond: Respond, events: int = 1) -> None:
        """Give `answer` to `respond`, and count it for so many events."""
        self.answered[answer.status] += events
        respond(answer)


class IngestHandler:
    """All Brokers and KafkaChannels that one receiver serves; `writers` has the log of each, in the
    same order. With a `contract` they stand in a topic, and come by `serve` once it is read."""

    def __init__(
        self,
        ingresses: Sequence[Ingress],
        writers: Sequence[LogWriter],
        limits: Limits = Limits(),
        contract: Contract[Ingress] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        tracing: IngestTracing | None = None,
        more_metrics: Callable[[], Iterable[Metric]] = tuple,
        only_path: str | None = None,
        callers: Callers = EVERYBODY,
        scrapers: Callers = EVERYBODY,
        verifier: TokenVerifier | None = None,
        types: SeenTypes | None = None,
    ) -> None:
        """`clock`: seconds since whenever. `more_metrics`: of the writers' clients. `only_path`: of
        the one Broker that a contract's receiver is for; it is known where `contract` is None.
        `callers`: who is told of the contract, `scrapers`: of metrics. `verifier`: of senders'
        tokens. `types`: what new types are noted in; None: nobody wants to know of them."""
        self.limits = limits
        self._types = types
        self._clock = clock
        self._tracing = tracing
        self._more_metrics = more_metrics
        self._callers = callers
        self._scrapers = scrapers
        self._verifier = verifier
        self.waiting: Answer | None = answers.waiting("")
        """What the readiness probe is told until Kafka has answered; None since."""
        self.writers = list(dict.fromkeys(writers))
        """Those that must not fail for good."""
        self._served: dict[str, BrokerRoute] = {}
        """By path."""
        self._routes: dict[bytes, BrokerRoute] = {}
        """By address: path and hosts."""
        self._refused: Collection[bytes] = ()
        """Addresses of what is declared and can't be served."""
        if contract is None and len(ingresses) == 1:
            only_path = ingresses[0].path
        self._only_path = only_path
        """The one path that this receiver will ever serve; None: there may be several."""
        self.serve(zip(ingresses, writers, strict=True), contract)
        self._is_read = contract is None
        self.held: HeldRequests | None = None
        """Those that only show load; None: it shows none."""
        self._waiting_bytes = 0
        self._unrouted: Counter[int] = Counter()

    def serve(
        self,
        ingresses: Iterable[tuple[Ingress, LogWriter]],
        contract: Contract[Ingress] | None = None,
    ) -> None:
        """Serve these from now on, and no others; `contract` is what they are of, if it stands in a
        topic. What is in flight is finished, and those that were there before count on. What of it
        is refused is answered 503: it is declared, and its senders are to try again."""
        served: dict[str, BrokerRoute] = {}
        routes: dict[bytes, BrokerRoute] = {}
        for ingress, writer in ingresses:
            path = ingress.path
            route = self._served.get(path)
            if route is None or route.ingress is not ingress:
                route = BrokerRoute(ingress, writer, route, self._verifier)
            served[path] = routes[path.encode()] = route
            for host in ingress.hosts:
                address = address_of_host(host.encode())
                first, second = sorted([routes.get(address, route).ingress.path, path])
                if first != second:
                    log.warning("%s and %s have the host %s: the first has it", first, second, host)
                routes[address] = served[first]
        refused = () if contract is None else contract.refused.keys()
        self._refused = frozenset(path.encode() for path in refused)
        self._served, self._routes = served, routes
        if self._types is not None:
            self._types.keep(served)
        root = None if self._only_path is None else served.get(self._only_path)
        # A host that is declared decides what `/` is, and another host is nobody's (KN-CHN-11).
        self._root = None if root is None or root.ingress.hosts else root
        self._contract, self._is_read = contract, True
        self.max_event_bytes = max((each.max_event_bytes for each in served.values()), default=0)

    def handle(
        self, method: bytes, address: bytes, headers: HttpHeaders, body: bytes, respond: Respond
    ) -> None:
        """Answer one request: `respond` is called exactly once, now or later; nothing is raised."""
        route = self.find(address)
        if route is None and address == METRICS and method in (b"GET", b"HEAD"):
            if self._scrapers.accept(bearer_of(headers)):
                self._write_metrics(respond)
            else:
                respond(answers.METRICS_REFUSED)
        elif route is None and address == LOAD and self.held is not None:
            self.held.add(partial(respond, answers.HEALTHY))
        elif route is None:
            respond(self._elsewhere(method, address, headers))
        elif method == b"POST":
            self.receive(route, headers, body, respond)
        else:
            route.respond(self._handshake(method, headers), respond)

    def find(self, address: bytes) -> BrokerRoute | None:
        """What is at this address, until `serve` is called again. `/` of any host is the one path
        of a receiver that serves no other: `func invoke` knows a function's URL only (UX-1)."""
        route = self._routes.get(address) or self._routes.get(address.removesuffix(b"/"))
        return self._root if route is None and is_host(address) else route

    def receive(
        self, route: BrokerRoute, headers: HttpHeaders, body: bytes, respond: Respond
    ) -> None:
        """`handle` for a POST to a Broker."""
        limits, clock, types = self.limits, self._clock, self._types
        began = clock()

        def stored(error: LogError | None) -> None:
            self._waiting_bytes -= held
            if types is not None and error is None:
                types.note(route.ingress.path, kept)
            route.duration.observe(clock() - began)
            route.respond(answers.ACCEPTED if error is None else _refusal(route, error), respond)

        reported: Reported = stored
        passes: Predicate | None = None
        if route.check is not None:
            admitted = route.check.admit(headers)
            if isinstance(admitted, Answer):
                route.respond(admitted, respond)
                return
            passes = admitted
        try:
            key, kept, value = record_of(headers, body)
            if passes is not None and not passes(read(kept, value).attributes):
                route.respond(answers.FORBIDDEN, respond)
                return
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
                route.append(route.topic, key, value, kept, reported)
                self._waiting_bytes += held
        except BatchedContent:
            self._receive_batch(route, headers, body, respond, passes)
        except UnsupportedContentMode as error:
            route.respond(answers.unsupported(str(error)), respond)
        except InvalidEvent as error:
            route.respond(answers.invalid(str(error)), respond)
        except LogError as error:
            route.respond(_refusal(route, error), respond)

    def _receive_batch(
        self,
        route: BrokerRoute,
        headers: HttpHeaders,
        body: bytes,
        respond: Respond,
        passes: Predicate | None,
    ) -> None:
        """`receive` for a batch (CE-H11): all of it is checked before any of it is stored, and the
        answer comes when Kafka has answered for each of its events. `passes`: what each must
        fulfil for its sender to be let through."""
        try:
            records = records_of_batch(headers, body)
        except InvalidBatch as error:
            told = answers.too_many if error.too_many else answers.invalid_batch
            route.respond(told(str(error)), respond)
            return
        except InvalidEvent as error:
            route.respond(answers.invalid(str(error)), respond)
            return
        batch = Batch(records)
        if passes is not None and not all(
            passes(read(each.headers, each.value).attributes) for each in records
        ):
            route.respond(answers.FORBIDDEN, respond, max(1, len(records)))
        elif not records:
            route.respond(answers.ACCEPTED, respond)
        elif batch.largest > route.max_event_bytes:
            route.respond(route.too_large, respond, len(records))
        elif route.writer.away is not None:
            route.respond(answers.AWAY, respond, len(records))
        elif (
            route.writer.in_flight + len(records) > self.limits.in_flight
            or self._waiting_bytes + batch.held > self.limits.in_flight_bytes
        ):
            route.respond(answers.BUSY, respond, len(records))
        else:
            began, clock = self._clock(), self._clock
            held = batch.held + HEADER_OVERHEAD * batch.headers
            self._waiting_bytes += held

            def stored(error: LogError | None) -> None:
                self._waiting_bytes -= held
                if self._types is not None and error is None:
                    for each in records:
                        self._types.note(route.ingress.path, each.headers)
                route.duration.observe(clock() - began)
                answer = answers.ACCEPTED if error is None else _refusal(route, error)
                batch.answered(answer)
                route.respond(answer, respond, len(records))

            batch.append(route.ingress, route.append, route.append_all, self._tracing, stored)

    def refuse(self, address: bytes, answer: Answer) -> Answer:
        """Count an answer that a way in gives by itself, before the request is whole."""
        route = self.find(address)
        counts = self._unrouted if route is None else route.answered
        counts[answer.status] += 1
        return answer

    def body_limit(self, address: bytes) -> tuple[int, Answer]:
        """How many bytes a request to this address may have, and the answer to more."""
        route = self.find(address)
        if route is None:
            return self.max_event_bytes, self._nowhere(address)
        return route.max_event_bytes, route.too_large

    def _elsewhere(self, method: bytes, path: bytes, headers: HttpHeaders) -> Answer:
        if method in (b"GET", b"HEAD"):
            if path in LIVENESS:
                failure = failure_of(self.writers)
                return answers.HEALTHY if failure is None else answers.failed(str(failure))
            if path in READINESS:
                return self.waiting or answers.HEALTHY
            if path == CONTRACT and self._contract is not None:
                if not self._callers.accept(bearer_of(headers)):
                    return answers.NOT_THE_OPERATOR
                return answers.document(self._contract_read(self._contract))
            if path == EVENT_TYPES and self._types is not None:
                if not self._callers.accept(bearer_of(headers)):
                    return answers.NOT_THE_OPERATOR
                return answers.document(self._types.document())
        answer = self._nowhere(path)
        self._unrouted[answer.status] += 1
        return answer

    def _nowhere(self, address: bytes) -> Answer:
        """For an address at which nothing is served: 404 only if nothing is declared there."""
        refused = self._refused
        # Hosts are in what can't be read: any may be one's.
        is_refused = address.removesuffix(b"/") in refused or (refused and is_host(address))
        return answers.UNREAD if is_refused or not self._is_read else answers.NOT_FOUND

    def _write_metrics(self, respond: Respond) -> None:
        """What is asked for is put together here, and written on a thread: for hundreds of channels
        that takes as long as thousands of events."""

        def written(text: asyncio.Future[bytes]) -> None:
            if text.cancelled() or (error := text.exception()) is not None:
                why = "cancelled" if text.cancelled() else repr(error)
                respond(answers.failed(why))
            else:
                respond(answers.plain(text.result(), CONTENT_TYPE.encode()))

        found = list(self.metrics())
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, prometheus_text, found).add_done_callback(written)

    def _contract_read(self, contract: Contract[Ingress]) -> str:
        """As JSON: how far the contract's topic is read, and what of it isn't served, and why."""
        return json.dumps(
            {
                "position": contract.position,
                "ingresses": len(self._served),
                "refused": dict(contract.refused),
            }
        )

    def _handshake(self, method: bytes, headers: HttpHeaders) -> Answer:
        """Requests that bring no event: OPTIONS (KN-DP-07), probes (KN-BRK-21)."""
        if method == b"OPTIONS":
            return answers.OPTIONS
        if method == b"GET":
            lowered = {name.lower(): value for name, value in headers}
            if lowered.get(b"k-network-probe") == b"probe":
                position = None if self._contract is None else self._contract.position
                return answers.probed(lowered.get(b"k-network-hash", b""), position)
        return answers.NOT_ALLOWED

    def metrics(self) -> Iterator[Metric]:
        """KN-DP-15: what was accepted and what was refused, by Broker and status code."""
        yield Metric(
            "knafka_receiver_events_total",
            "Requests to a Broker's path by the status code they were answered with, "
            "and each event of a batch",
            [
                ({**ingress_labels(route.ingress), "code": str(code)}, count)
                for route in self._served.values()
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
                (ingress_labels(route.ingress), 0 if route.writer.away is None else 1)
                for route in self._served.values()
            ],
            kind="gauge",
        )
        yield Metric(
            "knafka_receiver_waiting_bytes",
            "Bytes of events that wait for Kafka's acknowledgement",
            [({}, self._waiting_bytes)],
            kind="gauge",
        )
        yield Metric(
            "http_server_request_duration_seconds",
            "From a request that is whole to its answer, of events that Kafka was given",
            [
                (ingress_labels(route.ingress), route.duration)
                for route in self._served.values()
                if route.duration.count
            ],
            kind="histogram",
        )
        yield produced(self._produced())
        yield from self._more_metrics()

    def _produced(self) -> Iterator[tuple[str, str, Mapping[int, int]]]:
        """Client, topic and records by partition, of each writer once: Brokers may share one."""
        for number, writer in enumerate(self.writers, 1):
            topics: dict[str, dict[int, int]] = {}
            for (topic, partition), count in writer.stored.items():
                topics.setdefault(topic, {})[partition] = count
            for topic, counts in sorted(topics.items()):
                yield f"rdkafka#producer-{number}", topic, counts


def leaves_room(held: int, together: int, limit: int) -> bool:
    """Whether a request that is being received may hold `held` bytes of the `together` that all do.

    It may have what it leaves to others: so however many are slow, one that is smaller than each
    of them has room. A request that is larger than all others together has all that there is.
    """
    left = limit - together
    return left >= 0 and (held <= left or 2 * held > together)


def header_bytes(headers: HttpHeaders) -> int:
    """What headers count as: names, values, and for each the colon, a space and the line's end."""
    return sum([len(name) + len(value) + 4 for name, value in headers])


def _append_structured(
    writer: LogWriter,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: RecordHeaders,
    reported: Reported,
) -> None:
    """As `LogWriter.append`, of a record that is written in structured mode: here, where its trace
    is in the headers already. Data that are no JSON take a third more room than in flight they are
    counted for."""
    record = in_structured_mode(Draft(key, headers, value))
    writer.append(topic, record.key, record.value, record.headers, reported)


def _append_all_structured(
    writer: LogWriter, topic: str, records: Sequence[Draft], reported: Reported
) -> None:
    """As `_append_structured`, of `LogWriter.append_all`."""
    writer.append_all(topic, list(map(in_structured_mode, records)), reported)


def _refusal(route: BrokerRoute, error: LogError) -> Answer:
    if error.too_large:
        return route.too_large
    if isinstance(error, LogFull):
        return answers.BUSY
    log.warning("an event for %s was not stored: %s", route.ingress.path, error)
    return answers.UNAVAILABLE
