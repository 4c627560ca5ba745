"""Ingest: parse the event of a request, hand it to Kafka, and answer.

Both entrances (`protocol`, `function`) pass a whole request and a callback, which gets the answer
at once or when Kafka has acknowledged the event. Memory is bounded by `Limits`: an event that
doesn't fit is answered 503 with Retry-After, never queued, and so is every event while Kafka is
known to be away. No event is answered 202 before Kafka has it (KN-BRK-07).

Not here: sockets and the parsing of HTTP (`protocol`). A failed append is not retried, as the
sender retries and knows better when.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from knafka import serving
from knafka.contract_topic import Contract
from knafka.core.authorization import AdmitsAll
from knafka.core.contract import Ingress
from knafka.core.errors import (
    BatchedContent,
    InvalidBatch,
    InvalidEvent,
    LogError,
    UnsupportedContentMode,
)
from knafka.core.events.http_binding import record_of, records_of_batch
from knafka.core.events.kafka_binding import read
from knafka.core.tokens.caller_tokens import bearer_of
from knafka.observability import Metric, RateLimitedFilter
from knafka.ports.log import LogWriter, Reported, failure_of
from knafka.receiver import answers
from knafka.receiver.address import HttpHeaders, address_of_host, is_host
from knafka.receiver.answers import Answer
from knafka.receiver.authentication import TokenVerifier
from knafka.receiver.batches import EventBatch
from knafka.receiver.direct import LOAD_PATH, HeldRequests
from knafka.receiver.event_types import EVENT_TYPES
from knafka.receiver.limits import HEADER_OVERHEAD, RECEIVER_LIMITS, Limits
from knafka.receiver.observing import (
    UNOBSERVED,
    ReceiverObservers,
    contract_document,
    ingest_metrics,
    respond_with_metrics,
)
from knafka.receiver.routes import BrokerRoute, Respond, answer_to_error

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter())

LIVENESS: Final = frozenset(path.encode() for path in serving.LIVENESS)
READINESS: Final = frozenset(path.encode() for path in serving.READINESS)
METRICS_PATH: Final = b"/metrics"
"""Path of the metrics in Prometheus's format."""
CONTRACT: Final = b"/contract"
"""Path at which the operator reads how far the contract is followed."""


class IngestHandler:
    """Answers the requests of all Brokers, KafkaChannels and KafkaSinks of one receiver."""

    def __init__(
        self,
        ingresses: Sequence[Ingress],
        writers: Sequence[LogWriter],
        limits: Limits = RECEIVER_LIMITS,
        contract: Contract[Ingress] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        verifier: TokenVerifier | None = None,
        observers: ReceiverObservers = UNOBSERVED,
    ) -> None:
        """`writers` has the writer of each Ingress, in the same order. `contract`: an empty one if
        the Ingresses are declared in a topic: call `serve` once it was read; None: the environment
        declares the Ingresses. `clock` returns seconds of any monotonic clock. `verifier` verifies
        senders' tokens; None: no keys are known."""
        self.limits = limits
        self._observers = observers
        self._types, self._tracing = observers.types, observers.tracing
        self._clock = clock
        self._verifier = verifier
        self.waiting: Answer | None = answers.kafka_unanswered("")
        """The answer to the readiness probe until the receiver is ready; then None."""
        self.writers = list(dict.fromkeys(writers))
        """All writers, for the liveness probe and the metrics."""
        self._served: dict[str, BrokerRoute] = {}
        """The routes by path."""
        self._routes: dict[bytes, BrokerRoute] = {}
        """The routes by address: each has an address for its path, and one for each host."""
        self._refused: Collection[bytes] = ()
        """Addresses whose declaration is invalid."""
        only_path = ingresses[0].path if contract is None and len(ingresses) == 1 else None
        self.serve(zip(ingresses, writers, strict=True), contract, only_path)
        # `serve` has set it for a contract that was read; this one wasn't.
        self._contract_is_read = contract is None
        self.held: HeldRequests | None = None
        """Held requests, which only show load (`direct`); None: no load is shown."""
        self._waiting_bytes = 0
        """Bytes of the events that wait for Kafka."""
        self._unrouted: Counter[int] = Counter()
        """Number of answered requests that no route took, without those to paths of the receiver's
        own (such as probes), by status code."""

    def serve(
        self,
        ingresses: Iterable[tuple[Ingress, LogWriter]],
        contract: Contract[Ingress] | None = None,
        only_path: str | None = None,
    ) -> None:
        """Serve these Ingresses from now on, and no others; requests under way are finished, and
        counts continue.

        `contract`: the contract that the Ingresses were read from; None: they are in the
        environment. `only_path`: the one path that this receiver ever serves; None: there may be
        several. Addresses whose declaration in the contract is refused are answered 503, so that
        their senders try again.
        """
        served: dict[str, BrokerRoute] = {}
        routes: dict[bytes, BrokerRoute] = {}
        for ingress, writer in ingresses:
            path = ingress.path
            route = self._served.get(path)
            # An unchanged Ingress is the same object as before (`Contract.entries`).
            if route is None or route.ingress is not ingress:
                route = BrokerRoute(ingress, writer, route, self._verifier)
            served[path] = routes[path.encode()] = route
            for host in ingress.hosts:
                address = address_of_host(host.encode())
                # If two Ingresses declare the same host, the one whose path sorts first gets it.
                first_path, second_path = sorted([routes.get(address, route).ingress.path, path])
                if first_path != second_path:
                    log.warning(
                        "%s and %s have the host %s: the first has it",
                        first_path,
                        second_path,
                        host,
                    )
                routes[address] = served[first_path]
        refused = () if contract is None else contract.refused.keys()
        self._refused = frozenset(path.encode() for path in refused)
        self._served, self._routes = served, routes
        if self._types is not None:
            self._types.keep_paths(served)
        root = None if only_path is None else served.get(only_path)
        # The route at `/` of every host. If hosts are declared, `/` is served only at these
        # (KN-CHN-11).
        self._root = None if root is None or root.ingress.hosts else root
        self._contract, self._contract_is_read = contract, True
        self.max_event_bytes = max((route.max_event_bytes for route in served.values()), default=0)
        """The largest limit of all routes; 0: there is no route."""

    def handle(
        self, method: bytes, address: bytes, headers: HttpHeaders, body: bytes, respond: Respond
    ) -> None:
        """Answer one whole request for this address (`address.address_of`). `respond` is called
        exactly once, now or later. Never raises."""
        route = self.find_route(address)
        if route is None and address == METRICS_PATH and method in (b"GET", b"HEAD"):
            if self._observers.scrapers.accepts(bearer_of(headers)):
                respond_with_metrics(self.metrics(), respond)
            else:
                respond(answers.METRICS_REFUSED)
        elif route is None and address == LOAD_PATH and self.held is not None:
            self.held.add(partial(respond, answers.HEALTHY))
        elif route is None:
            respond(self._answer_unrouted(method, address, headers))
        elif method == b"POST":
            self.receive(route, headers, body, respond)
        else:
            route.respond(self._answer_unless_post(method, headers), respond)

    def find_route(self, address: bytes) -> BrokerRoute | None:
        """Return the route at this address, valid until `serve` is called again; None: nothing is
        served there. A receiver with only one path also serves that path's Ingress at `/` of every
        host (`_root`), as `func invoke` knows only a function's URL (UX-1)."""
        route = self._routes.get(address) or self._routes.get(address.removesuffix(b"/"))
        return self._root if route is None and is_host(address) else route

    def receive(
        self, route: BrokerRoute, headers: HttpHeaders, body: bytes, respond: Respond
    ) -> None:
        """Answer a POST to a route: check the sender, parse the event, check it, and hand it to
        Kafka. `respond` is called exactly once: at once if the event is refused, else when Kafka
        has stored it or failed. Never raises."""
        limits, clock, types, waiting = self.limits, self._clock, self._types, route.waiting
        began = clock()

        # `held` and `record_headers` are set below, before this can be called.
        def on_reported(error: LogError | None) -> None:
            """Answer the request after Kafka's report of its event (`error` None: it is stored):
            release its bytes, note its type if it is stored, and count the duration."""
            self._waiting_bytes -= held
            waiting.events -= 1
            waiting.bytes -= held
            if types is not None and error is None:
                types.note_event(route.ingress.path, record_headers)
            route.duration.observe(clock() - began)
            route.respond(
                answers.ACCEPTED if error is None else answer_to_error(route, error), respond
            )

        reported: Reported = on_reported
        admits_all: AdmitsAll | None = None  # None: the sender may send any event
        if route.check is not None:
            verdict = route.check.admit(headers)
            if isinstance(verdict, Answer):
                route.respond(verdict, respond)
                return
            admits_all = verdict
        try:
            key, record_headers, value = record_of(headers, body)
            if admits_all is not None and not admits_all([read(record_headers, value).attributes]):
                route.respond(answers.FORBIDDEN, respond)
                return
            size = 0 if value is None else len(value)
            for name, text in record_headers:
                size += len(name) + len(text)
            held = size + HEADER_OVERHEAD * len(record_headers)
            if self._tracing is not None:
                respond, reported = self._tracing.start_spans(
                    route.ingress, record_headers, respond, on_reported
                )
            if size > route.max_event_bytes:
                route.respond(route.too_large, respond)
            elif route.writer.away is not None:
                route.respond(answers.AWAY, respond)
            elif (
                # While less than half of each limit is in use, there is room: most events are
                # spared the call.
                2 * route.writer.in_flight >= limits.in_flight
                or 2 * (self._waiting_bytes + held) > limits.in_flight_bytes
            ) and not self._has_room(route, 1, held):
                route.respond(answers.BUSY, respond)
            else:
                route.append(route.topic, key, value, record_headers, reported)
                self._waiting_bytes += held
                waiting.events += 1
                waiting.bytes += held
        except BatchedContent:
            self._receive_batch(route, headers, body, respond, admits_all)
        except UnsupportedContentMode as error:
            route.respond(answers.unsupported_format(str(error)), respond)
        except InvalidEvent as error:
            route.respond(answers.invalid_event(str(error)), respond)
        except LogError as error:
            route.respond(answer_to_error(route, error), respond)

    def _receive_batch(
        self,
        route: BrokerRoute,
        headers: HttpHeaders,
        body: bytes,
        respond: Respond,
        admits_all: AdmitsAll | None,
    ) -> None:
        """Answer a POST with a batch (CE-H11): all of its events are checked before any is stored,
        and the answer is sent when Kafka has reported all of them. `admits_all` must accept the
        events; None: the sender may send any event. The answer is counted once for each event, and
        once for an empty batch."""
        try:
            records = records_of_batch(headers, body)
        except InvalidBatch as error:
            make_answer = answers.too_many_events if error.too_many else answers.invalid_batch
            route.respond(make_answer(str(error)), respond)
            return
        except InvalidEvent as error:
            route.respond(answers.invalid_event(str(error)), respond)
            return
        batch = EventBatch(records)
        held = batch.held + HEADER_OVERHEAD * batch.headers
        admitted: bool | None = True
        if admits_all is not None:
            attributes = (read(record.headers, record.value).attributes for record in records)
            admitted = admits_all(attributes)
        if not admitted:
            answer = answers.TOO_COSTLY if admitted is None else answers.FORBIDDEN
            route.respond(answer, respond, max(1, len(records)))
        elif not records:
            route.respond(answers.ACCEPTED, respond)
        elif batch.largest > route.max_event_bytes:
            route.respond(route.too_large, respond, len(records))
        elif route.writer.away is not None:
            route.respond(answers.AWAY, respond, len(records))
        elif not self._has_room(route, len(records), held):
            route.respond(answers.BUSY, respond, len(records))
        else:
            began, clock, waiting = self._clock(), self._clock, route.waiting
            self._waiting_bytes += held
            waiting.events += len(records)
            waiting.bytes += held

            def on_all_reported(error: LogError | None) -> None:
                """Answer the request after Kafka's reports of all its events (`error` None: all are
                stored): release their bytes, note their types if all are stored, and count the
                duration."""
                self._waiting_bytes -= held
                waiting.events -= len(records)
                waiting.bytes -= held
                if self._types is not None and error is None:
                    for record in records:
                        self._types.note_event(route.ingress.path, record.headers)
                route.duration.observe(clock() - began)
                answer = answers.ACCEPTED if error is None else answer_to_error(route, error)
                batch.end_spans(answer)
                route.respond(answer, respond, len(records))

            batch.append(
                route.ingress, route.append, route.append_all, self._tracing, on_all_reported
            )

    def _has_room(self, route: BrokerRoute, events: int, held: int) -> bool:
        """Whether this many more events of a route, which hold `held` bytes, may wait for Kafka.

        If several routes are served, one with waiting events may hold only as much as is still free
        (as a request's body may, `limits.leaves_room`): its topic may be the only one that takes no
        events, and then the other routes have room.
        """
        limits, waiting = self.limits, route.waiting
        free_events = limits.in_flight - route.writer.in_flight - events
        free_bytes = limits.in_flight_bytes - self._waiting_bytes - held
        if not waiting.events or len(self._served) == 1:
            return free_events >= 0 and free_bytes >= 0
        return waiting.events + events <= free_events and waiting.bytes + held <= free_bytes

    def count_refusal(self, address: bytes, answer: Answer) -> Answer:
        """Count an answer that refuses a request before the request is whole: for the route at
        `address`, or as unrouted if there is no route. Returns the answer, unchanged."""
        route = self.find_route(address)
        counts = self._unrouted if route is None else route.answered
        counts[answer.status] += 1
        return answer

    def body_limit(self, address: bytes) -> tuple[int, Answer]:
        """Return the most bytes that a body sent to this address may have, and the answer to a
        larger one. If nothing is served there, the limit is the largest of all routes."""
        route = self.find_route(address)
        if route is None:
            return self.max_event_bytes, self._answer_not_served(address)
        return route.max_event_bytes, route.too_large

    def _answer_unrouted(self, method: bytes, path: bytes, headers: HttpHeaders) -> Answer:
        """Return the answer to a request that no route takes: a probe, or a request for the
        contract or the event types. Any other request is counted and answered 404 or 503
        (`_answer_not_served`)."""
        if method in (b"GET", b"HEAD"):
            # Requests of the paths below aren't counted as unrouted.
            if path in LIVENESS:
                failure = failure_of(self.writers)
                return answers.HEALTHY if failure is None else answers.not_storing(str(failure))
            if path in READINESS:
                return self.waiting or answers.HEALTHY
            if path == CONTRACT and self._contract is not None:
                if not self._observers.callers.accepts(bearer_of(headers)):
                    return answers.NOT_THE_OPERATOR
                return answers.json_document(contract_document(self._contract, len(self._served)))
            if path == EVENT_TYPES and self._types is not None:
                if not self._observers.callers.accepts(bearer_of(headers)):
                    return answers.NOT_THE_OPERATOR
                return answers.json_document(self._types.next_answer())
        answer = self._answer_not_served(path)
        self._unrouted[answer.status] += 1
        return answer

    def _answer_not_served(self, address: bytes) -> Answer:
        """Return the answer to a request for an address that isn't served: 503 if the contract
        isn't read yet, or if the address may belong to a refused declaration; else 404."""
        refused = self._refused
        # A refused declaration may have named any host.
        may_be_refused = address.removesuffix(b"/") in refused or (refused and is_host(address))
        return answers.UNREAD if may_be_refused or not self._contract_is_read else answers.NOT_FOUND

    def _answer_unless_post(self, method: bytes, headers: HttpHeaders) -> Answer:
        """Return the answer to a route's request with a method other than POST: the answer to
        OPTIONS (KN-DP-07) or to a network probe of Knative (KN-BRK-21), else 405."""
        if method == b"OPTIONS":
            return answers.OPTIONS
        if method == b"GET":
            headers_by_name = {name.lower(): value for name, value in headers}
            if headers_by_name.get(b"k-network-probe") == b"probe":
                position = None if self._contract is None else self._contract.position
                return answers.network_probe(headers_by_name.get(b"k-network-hash", b""), position)
        return answers.NOT_ALLOWED

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics of this receiver's events and of its Kafka clients."""
        yield from ingest_metrics(
            self._served.values(), self._unrouted, self._waiting_bytes, self.writers
        )
        yield from self._observers.client_metrics()
