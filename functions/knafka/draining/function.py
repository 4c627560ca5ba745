"""A function that drains: `POST /drain` under ASGI (FN-2, FN-4, design: the drain).

A request starts the drain or continues it, and streams its progress as JSON lines; the drain itself
outlives the request (`lease`). There is one drain and one request at a time. A second request is
answered 409, unless it names what it drains, as an operator's does, and the first one doesn't: then
the second request replaces the first.

The function has two sides: `DrainingFunction` answers HTTP, and a `Side` does the draining.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol, TypeAlias

from knafka import settings
from knafka.clients.kafka.kafka_statistics import ClientStatistics
from knafka.core import drain as drain_protocol
from knafka.core.documents import parse_json
from knafka.core.drain import DrainRequest
from knafka.core.errors import InvalidDocument, LogError
from knafka.core.tokens.caller_tokens import EVERYBODY, NO_SCRAPER, bearer_of
from knafka.draining.streaming import answer, refuse_caller, refuse_while_ending
from knafka.observability import CONTENT_TYPE, Metric, prometheus_text
from knafka.serving import LIVENESS, READINESS, Receive, Scope, Send
from knafka.settings import DrainSettings
from knafka.tracing.spans import Tracer
from knafka.tracing.starting import Tracing, start_tracing

METRICS_PATH: Final = "/metrics"
MAX_REQUEST_BYTES: Final = 64 * 1024
"""Most bytes of a request for a drain. A request to stop may follow in the same body."""
READY_TIMEOUT: Final = 5.0
"""Most seconds that a request waits until the process is ready to drain."""


class Side(Protocol):
    """The draining side of a function: drains an Egress, a shard or a Sensor. The other side,
    `DrainingFunction`, answers the HTTP requests."""

    @property
    def failure(self) -> LogError | None:
        """An error that only a restart of the process ends; None: there is none."""
        ...

    @property
    def problem(self) -> str:
        """Why draining is not possible yet; empty: it is possible."""
        ...

    async def wait_until_ready(self, timeout: float) -> None:
        """Wait until `problem` is empty, for at most `timeout` seconds; then return anyway."""
        ...

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics of this process's events (KN-DP-15), without those of the Kafka
        clients."""
        ...

    @property
    def is_attached(self) -> bool:
        """Whether a request for a drain is under way."""
        ...

    def start(self, *, drain: bool) -> None:
        """Start this side's background work. `drain`: whether to drain from now on without a
        request."""
        ...

    def refusal(self, request: DrainRequest) -> str:
        """Return why this process must refuse the request: it names something else to drain. Empty:
        the request may be served."""
        ...

    def note_refusal(self) -> None:
        """Note that this process has refused a request (`refusal`). A side that drains without
        requests then waits longer before it drains again, as its process is being replaced."""
        ...

    async def stream(self, request: DrainRequest, caller: asyncio.Task[bool], send: Send) -> None:
        """Answer a request for a drain with lines of progress until the request is over. `caller`
        is a task that ends when the caller acts: it returns True if the caller asks for a stop,
        False if it disconnects. It is cancelled if another request replaces this one."""
        ...

    def detach(self) -> None:
        """Note that the request under way has ended; must be called after each `stream`."""
        ...

    def stop(self, timeout: float) -> None:
        """Begin to end the drains, and start no other drain; attempts under way get `timeout`
        seconds. Returns at once, without waiting for the drains."""
        ...

    async def wait_until_drained(self) -> None:
        """Wait until all drains have ended; close nothing."""
        ...

    async def close(self) -> None:
        """Wait until all drains have ended, then close all clients."""
        ...


OpenSide: TypeAlias = Callable[[Mapping[str, str], DrainSettings, Tracer | None], Side]
"""Opens the `Side` that the environment describes, with its parsed `DrainSettings` and the tracer
for spans (None: no spans); raises `InvalidDocument` for bad settings."""


class DrainingFunction:
    """The ASGI application of a draining process; `start` opens everything that it needs."""

    def __init__(self, service: str, open_side: OpenSide) -> None:
        """`service`: the service name in the function's traces; `open_side` opens the draining
        side, at `start`."""
        self._service = service
        self._open_side = open_side
        self._side: Side | None = None
        """The draining side; None before `start` has opened it."""
        self._stop_timeout: float
        """Seconds that attempts under way get when the process ends; set by `start`."""
        self._is_ending = False
        """Whether `interrupt` was called, so that no drain may start."""
        self._callers = EVERYBODY
        """Who may request drains; set by `start`."""
        self._scrapers = EVERYBODY
        """Who may read the metrics; set by `start`."""
        self._replaceable_request: tuple[asyncio.Task[bool], asyncio.Event] | None = None
        """The request under way: its `caller` task (`Side.stream`), and the event that is set when
        it has ended. None: no request is under way that another one may replace."""
        self._tracing: Tracing | None = None
        """The function's tracing, set by `start`; None: tracing is off."""
        self.statistics: ClientStatistics
        """Statistics of the function's Kafka clients; set by `start`."""

    async def start(self, environment: Mapping[str, str]) -> None:
        """Read the settings, and open and start the draining side, which drains at once if the
        settings say so. Raises `InvalidDocument` for settings that can't be used."""
        drain_settings = settings.drain_settings(environment)
        self._stop_timeout = drain_settings.stop_timeout
        self._callers = settings.callers(environment)
        self._scrapers = settings.scrapers(environment)
        self.statistics = ClientStatistics(settings.statistics_interval(environment))
        self._tracing = start_tracing(environment, self._service)
        tracer = None if self._tracing is None else self._tracing.tracer
        self._side = self._open_side(environment, drain_settings, tracer)
        self._side.start(drain=drain_settings.at_start)

    def state(self) -> Mapping[str, Any]:
        """Return the ASGI state that all connections share: nothing here, unlike in the
        receiver."""
        return {}

    def interrupt(self) -> None:
        """Begin to end the drains, as the process will end; returns at once. From then on the
        process isn't ready, and starts no drain. Further calls do nothing."""
        if not self._is_ending and self._side is not None:
            self._side.stop(self._stop_timeout)
        self._is_ending = True

    async def wait_until_interrupted(self) -> None:
        """Wait until the drains that `interrupt` ends have finished their attempts, committed and
        left their groups; requests are still answered, and nothing is closed."""
        if self._side is not None:
            await self._side.wait_until_drained()

    async def stop(self) -> None:
        """End all work: `interrupt`, wait until the drains have ended, and close what `start` has
        opened."""
        self.interrupt()
        if self._side is not None:
            await self._side.close()
        if self._tracing is not None:
            await self._tracing.close()

    def alive(self) -> tuple[bool, str]:
        """Return whether the process is alive, and a text for the probe. The process isn't alive if
        it has an error that only a restart ends; then the text is this error."""
        failure = None if self._side is None else self._side.failure
        return (True, "alive") if failure is None else (False, str(failure))

    def ready(self) -> tuple[bool, str]:
        """Return whether the process takes requests for drains, and a text for the probe: the
        reason if it doesn't."""
        if self._is_ending:
            return False, "ending"
        problem = "" if self._side is None else self._side.problem
        return (False, problem) if problem else (True, "ready")

    @property
    def is_attached(self) -> bool:
        """Whether a request for a drain is under way."""
        return self._side is not None and self._side.is_attached

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request as an ASGI application: `POST /drain`, the probes, or `GET
        /metrics`; any other with 404."""
        method, path = scope["method"], scope["path"]
        if path == drain_protocol.PATH:
            if method != "POST":
                await answer(send, 405, b"drain with POST\n")
            elif self._callers.accepts(bearer := bearer_of(scope["headers"])):
                await self._handle_drain(bearer, receive, send)
            else:
                await refuse_caller(send)
        elif method == "GET" and path in LIVENESS:
            alive, reason = self.alive()
            await answer(send, 200 if alive else 503, f"{reason}\n".encode())
        elif method == "GET" and path in READINESS:
            ready, reason = self.ready()
            await answer(send, 200 if ready else 503, f"{reason}\n".encode())
        elif method == "GET" and path == METRICS_PATH:
            if not self._scrapers.accepts(bearer_of(scope["headers"])):
                await refuse_caller(send, NO_SCRAPER)
                return
            # Metrics are collected here but formatted in a thread: for a shard's many Egresses,
            # formatting takes as long as hundreds of events.
            side_metrics = () if self._side is None else self._side.metrics()
            metrics = [*side_metrics, *self.statistics.metrics()]
            text = await asyncio.to_thread(prometheus_text, metrics)
            await answer(send, 200, text, CONTENT_TYPE.encode())
        else:
            await answer(send, 404, b"want POST /drain\n")

    async def _handle_drain(self, bearer: str, receive: Receive, send: Send) -> None:
        """Answer a request for a drain with a stream of progress. Refuse it, with a reason: 400 if
        the request is invalid, 412 if it names something else to drain, 409 if another request is
        under way, 503 if the process can't drain now. `bearer`: the caller's token, with which the
        process renews its lease."""
        try:
            parsed_request = await _read_request(receive)
        except InvalidDocument as error:
            await answer(send, 400, f"{error}\n".encode())
            return
        if parsed_request is None:
            return  # the caller has disconnected
        request, body_rest = parsed_request
        request = request.model_copy(update={"bearer": bearer})
        side = self._side
        assert side is not None
        if refusal := side.refusal(request):
            side.note_refusal()
            await answer(send, 412, f"{refusal}\n".encode())
            return
        # A process that a request has started may not be ready yet.
        await side.wait_until_ready(READY_TIMEOUT)
        # Only a request that names what it drains can be stopped. Such a request replaces one that
        # doesn't.
        if self._replaceable_request is not None and request.can_be_stopped:
            caller, request_ended = self._replaceable_request
            caller.cancel()
            await request_ended.wait()
        if side.is_attached:
            await answer(send, 409, b"a drain is under way here\n")
        elif self._is_ending:
            await refuse_while_ending(send)
        elif side.problem:
            await answer(send, 503, f"{side.problem}\n".encode())
        else:
            caller = asyncio.create_task(_wait_for_caller(receive, body_rest))
            request_ended = asyncio.Event()
            self._replaceable_request = None if request.can_be_stopped else (caller, request_ended)
            try:
                await side.stream(request, caller, send)
            finally:
                caller.cancel()
                self._replaceable_request = None
                side.detach()
                request_ended.set()


async def _read_request(receive: Receive) -> tuple[DrainRequest, bytes] | None:
    """Read a drain request. Returns the request and the bytes of the body that were read after it;
    None if the caller has disconnected. Raises `InvalidDocument` for an invalid request.

    A caller may keep the body open, to send a stop later. So the request is the body's first line
    if that is a valid request and more of the body follows or may follow; else it is the whole
    body. An empty body is a request without settings.
    """
    body, has_more = b"", True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        has_more = message.get("more_body", False)
        if len(body) > MAX_REQUEST_BYTES:
            raise InvalidDocument("", "the request is too large")
        line, _, rest = body.partition(b"\n")
        if rest or (has_more and b"\n" in body):
            with suppress(InvalidDocument):  # the line may be a part of JSON over several lines
                return parse_json(DrainRequest, line.decode("utf-8", "replace")), rest
    request = DrainRequest()
    if body.strip():
        request = parse_json(DrainRequest, body.decode("utf-8", "replace"))
    return request, b""


async def _wait_for_caller(receive: Receive, body_rest: bytes) -> bool:
    """Wait until the caller asks to stop the drain or disconnects; return True if it asks for the
    stop, False if it disconnects. `body_rest`: the bytes of the body after the request that were
    read already."""
    while drain_protocol.STOP.strip() not in body_rest:
        message = await receive()
        if message["type"] == "http.disconnect":
            return False
        # Only the body's end is kept, as it may grow for as long as the request lasts.
        body_rest = (body_rest + message.get("body", b""))[-MAX_REQUEST_BYTES:]
    return True
