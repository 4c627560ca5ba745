"""The dispatcher as a function: `POST /drain` under ASGI (FN-2, FN-4, design: the drain).

A request begins the drain or has it go on, and streams its progress as JSON lines; the drain itself
outlives it (`lease`). One process has one drain and one request at a time; a second one is answered
409.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from knafka import settings
from knafka.clients.http_subscriber import HttpSubscriber
from knafka.clients.kafka_connection import connection
from knafka.clients.kafka_reader import KafkaReader
from knafka.clients.kafka_topics import KafkaTopics
from knafka.clients.kafka_writer import KafkaWriter
from knafka.core import drain as contract
from knafka.core.contract import Egress
from knafka.core.documents import digest, parse_json
from knafka.core.drain import DrainProgress, DrainRequest, Ended, outcomes
from knafka.core.errors import InvalidDocument
from knafka.dispatcher.drain import Drain, OpenReader
from knafka.dispatcher.lease import Lease
from knafka.dispatcher.renewal import OwnService
from knafka.observability import Metric, prometheus_text
from knafka.ports.log import Assignment, LogReader, LogWriter, TopicMaker, failure_of
from knafka.ports.subscriber import Subscriber
from knafka.serving import LIVENESS, READINESS, Receive, Scope, Send

METRICS: Final = "/metrics"
MAX_REQUEST_BYTES: Final = 64 * 1024
STOP_TIMEOUT: Final = 4.0
"""Seconds for dead letters and replies that are still being written at the end."""


@dataclass(frozen=True, slots=True)
class Clients:
    """What a dispatcher works with, for as long as it runs."""

    open_reader: OpenReader
    writer: LogWriter
    subscriber: Subscriber
    topics: TopicMaker


def connect(egress: Egress) -> Clients:
    """Kafka and HTTP; raises `InvalidDocument` for a Secret that can't work."""
    kafka = connection(egress.kafka)

    def open_reader(assignment: Assignment) -> LogReader:
        return KafkaReader(kafka, egress.group, egress.topic, assignment)

    return Clients(
        open_reader,
        KafkaWriter(kafka),
        HttpSubscriber(limit=egress.max_in_flight),
        KafkaTopics(kafka),
    )


class Dispatcher:
    """One dispatcher: nothing is opened before `start`, which calls `connect`."""

    def __init__(self, connect: Callable[[Egress], Clients] = connect) -> None:
        self._connect = connect
        self._egress: Egress
        self._digest: str
        self._clients: Clients
        self._lease: Lease
        self._stop_timeout: float
        self._writers: list[LogWriter] = []
        """None before `start`, then one."""
        self._ending = False

    async def start(self, environment: Mapping[str, str]) -> None:
        """Get ready to drain, or begin; raises `InvalidDocument` for settings that can't be
        used."""
        self._egress = settings.egress(environment)
        drains = settings.drains(environment)
        self._digest = digest(self._egress)
        self._clients = self._connect(self._egress)
        self._writers.append(self._clients.writer)
        self._stop_timeout = drains.stop_timeout
        renewal = None
        if drains.service_url is not None:
            renewal = OwnService(drains.service_url, self._digest, self._clients.subscriber)
        self._lease = Lease(self._new_drain, renewal)
        if drains.at_start:
            self._lease.drain_from_start()

    def _new_drain(self) -> Drain:
        clients = self._clients
        return Drain(
            self._egress,
            clients.open_reader,
            clients.writer,
            clients.subscriber,
            time.time,
            clients.topics,
        )

    def state(self) -> Mapping[str, Any]:
        return {}

    def interrupt(self) -> None:
        """The process is to end: so is the drain, before the server waits for its response."""
        if not self._ending and self._writers:
            self._lease.stop(self._stop_timeout)
        self._ending = True

    async def stop(self) -> None:
        """End the drain, and close what was opened."""
        self.interrupt()
        await self._lease.wait()
        await self._clients.writer.close(STOP_TIMEOUT)
        await self._clients.subscriber.close()

    def alive(self) -> tuple[bool, str]:
        """Whether a restart would not help, and why it would."""
        failure = failure_of(self._writers)
        return (True, "alive") if failure is None else (False, str(failure))

    def ready(self) -> tuple[bool, str]:
        """Whether a drain may be asked for."""
        return (False, "ending") if self._ending else (True, "ready")

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request, as ASGI has it."""
        method, path = scope["method"], scope["path"]
        if path == contract.PATH:
            if method != "POST":
                await _answer(send, 405, b"drain with POST\n")
            else:
                await self._handle_drain(receive, send)
        elif method == "GET" and path in LIVENESS:
            alive, why = self.alive()
            await _answer(send, 200 if alive else 503, f"{why}\n".encode())
        elif method == "GET" and path in READINESS:
            ready, why = self.ready()
            await _answer(send, 200 if ready else 503, f"{why}\n".encode())
        elif method == "GET" and path == METRICS:
            await _answer(send, 200, prometheus_text(self.metrics()))
        else:
            await _answer(send, 404, b"want POST /drain\n")

    async def _handle_drain(self, receive: Receive, send: Send) -> None:
        try:
            asked = await _request(receive)
        except InvalidDocument as error:
            await _answer(send, 400, f"{error}\n".encode())
            return
        if asked is None:
            return
        request, rest = asked
        if request.egress not in (None, self._digest):
            await _answer(send, 412, b"this dispatcher has another egress\n")
        elif self._lease.is_attached:
            await _answer(send, 409, b"a drain is under way here\n")
        elif self._ending:
            await _answer(send, 503, b"this dispatcher is ending\n")
        else:
            caller = asyncio.create_task(_caller(receive, rest))
            try:
                await self._stream(request, caller, send)
            finally:
                caller.cancel()
                self._lease.detach()

    async def _stream(self, request: DrainRequest, caller: asyncio.Task[bool], send: Send) -> None:
        """Tell the drain's progress until it ends, the budget is spent, or the caller goes."""
        lease, loop = self._lease, asyncio.get_running_loop()
        running = await lease.attach(request)
        drain = lease.drain
        assert drain is not None
        over_at = loop.time() + request.budget
        await _start(send, 200, b"application/x-ndjson")
        while not running.done() and (left := over_at - loop.time()) > 0:
            await _line(send, lease.progress(drain.progress()))
            waiting = {running} if caller.done() else {running, caller}
            timeout = min(left, contract.PROGRESS_INTERVAL)
            await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if caller.done() and not caller.result():
                return
            if caller.done():
                drain.stop()
                over_at = math.inf
        last = await _end_of(running, drain) if running.done() else drain.progress(Ended.BUDGET)
        await _line(send, lease.progress(last))
        await send({"type": "http.response.body", "body": b""})

    def metrics(self) -> Iterator[Metric]:
        """KN-DP-15: what became of this Trigger's events, in this process."""
        egress = self._egress
        labels = {
            "namespace": egress.namespace,
            "broker": egress.broker,
            "trigger": egress.trigger,
        }
        totals = self._lease.totals()
        yield Metric(
            "knafka_dispatcher_events_total",
            "Events by what became of them",
            [({**labels, "outcome": name}, count) for name, count in outcomes(totals.events)],
        )
        drain = self._lease.drain
        yield Metric(
            "knafka_dispatcher_congestion",
            "1 while the subscriber is away and only a few events probe it",
            [(labels, int(drain is not None and drain.congestion.is_open))],
            kind="gauge",
        )
        yield Metric(
            "knafka_dispatcher_concurrency_limit",
            "Attempts that the subscriber may get at once",
            [(labels, drain.congestion.limit if drain is not None else egress.max_in_flight)],
            kind="gauge",
        )
        yield Metric(
            "knafka_delivery_failures_total",
            "Failed attempts, and records that can't be sent, by reason and status code",
            [
                ({**labels, "reason": reason, "code": code}, count)
                for (reason, _, code), count in (
                    (what.partition(" "), count) for what, count in sorted(totals.failures.items())
                )
            ],
        )
        yield Metric(
            "knafka_filter_errors_total",
            "Evaluations of a CESQL filter that ended with an error, by its kind: no match",
            [
                ({**labels, "kind": kind}, count)
                for kind, count in sorted(totals.filter_errors.items())
            ],
        )


async def _request(receive: Receive) -> tuple[DrainRequest, bytes] | None:
    """What is asked, and what the body already holds behind it; None: the caller hung up.

    The request is the first line of the body if that is JSON, and else all of it.
    """
    body, more = b"", True
    while more:
        part = await receive()
        if part["type"] == "http.disconnect":
            return None
        body += part.get("body", b"")
        more = part.get("more_body", False)
        if len(body) > MAX_REQUEST_BYTES:
            raise InvalidDocument("", "the request is too large")
        line, _, rest = body.partition(b"\n")
        if rest or (more and b"\n" in body):
            with suppress(InvalidDocument):
                return parse_json(DrainRequest, line.decode("utf-8", "replace")), rest
    request = DrainRequest()
    if body.strip():
        request = parse_json(DrainRequest, body.decode("utf-8", "replace"))
    return request, b""


async def _caller(receive: Receive, rest: bytes) -> bool:
    """Whether the caller says that the drain is to end; False: it has hung up."""
    while contract.STOP.strip() not in rest:
        part = await receive()
        if part["type"] == "http.disconnect":
            return False
        rest = (rest + part.get("body", b""))[-MAX_REQUEST_BYTES:]
    return True


async def _end_of(running: asyncio.Task[DrainProgress], drain: Drain) -> DrainProgress:
    try:
        return running.result()
    except Exception as error:
        return drain.progress(Ended.FAILED, f"{type(error).__name__}: {error}")


async def _start(send: Send, status: int, content_type: bytes) -> None:
    headers = [(b"content-type", content_type)]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _answer(send: Send, status: int, body: bytes) -> None:
    await _start(send, status, b"text/plain; charset=utf-8")
    await send({"type": "http.response.body", "body": body})


async def _line(send: Send, progress: DrainProgress) -> None:
    line = progress.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n"
    await send({"type": "http.response.body", "body": line, "more_body": True})
