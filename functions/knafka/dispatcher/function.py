"""The dispatcher as a function: `POST /drain` under ASGI (FN-2, FN-4, design: the drain).

A drain is one request: it streams its progress as JSON lines and ends when it has been idle, when
its budget is spent, when the caller hangs up or when the process is told to end. One process runs
one drain at a time; a second one is answered 409.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from knafka import settings
from knafka.clients.http_subscriber import HttpSubscriber
from knafka.clients.kafka_connection import connection
from knafka.clients.kafka_log import KafkaReader, KafkaWriter
from knafka.clients.log import Assignment, LogReader, LogWriter, failure_of
from knafka.clients.subscriber import Subscriber
from knafka.core import drain as contract
from knafka.core.contract import Egress, digest, parse_json
from knafka.core.drain import DrainProgress, DrainRequest, Ended
from knafka.core.errors import InvalidDocument
from knafka.dispatcher.drain import Drain, OpenReader
from knafka.observability import Metric, prometheus_text
from knafka.serving import LIVENESS, READINESS, Receive, Scope, Send

log = logging.getLogger(__name__)

METRICS: Final = "/metrics"
MAX_REQUEST_BYTES: Final = 64 * 1024
STOP_TIMEOUT: Final = 4.0
"""Seconds for dead letters and replies that are still being written at the end."""
COUNTED: Final = ("read", "filtered", "delivered", "retried", "buried", "replied")


@dataclass(frozen=True, slots=True)
class Clients:
    """What a dispatcher works with, for as long as it runs."""

    open_reader: OpenReader
    writer: LogWriter
    subscriber: Subscriber


def connect(egress: Egress) -> Clients:
    """Kafka and HTTP; raises `InvalidDocument` for a Secret that can't work."""
    kafka = connection(egress.kafka)

    def open_reader(assignment: Assignment) -> LogReader:
        return KafkaReader(kafka, egress.group, egress.topic, assignment)

    return Clients(open_reader, KafkaWriter(kafka), HttpSubscriber(limit=egress.max_in_flight))


class Dispatcher:
    """One dispatcher: `new()` makes it, nothing is opened before `start`, which calls `connect`."""

    def __init__(self, connect: Callable[[Egress], Clients] = connect) -> None:
        self._connect = connect
        self._egress: Egress
        self._digest: str
        self._clients: Clients
        self._writers: list[LogWriter] = []
        """None before `start`, then one."""
        self._ending = False
        self._drain: Drain | None = None
        self._running: asyncio.Task[DrainProgress] | None = None
        self._totals: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()

    async def start(self, environment: Mapping[str, str]) -> None:
        """Get ready to drain; raises `InvalidDocument` for a contract that can't be used."""
        self._egress = settings.egress(environment)
        self._digest = digest(self._egress)
        self._clients = self._connect(self._egress)
        self._writers.append(self._clients.writer)

    def state(self) -> Mapping[str, Any]:
        return {}

    def interrupt(self) -> None:
        """The process is to end: so is the drain, before the server waits for its response."""
        self._ending = True
        if self._drain is not None:
            self._drain.stop()

    async def stop(self) -> None:
        """End the drain, and close what was opened."""
        self.interrupt()
        if self._running is not None:
            await asyncio.wait({self._running})
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
            request = await _request(receive)
        except InvalidDocument as error:
            await _answer(send, 400, f"{error}\n".encode())
            return
        if request is None:
            return
        if request.egress not in (None, self._digest):
            await _answer(send, 412, b"this dispatcher has another egress\n")
            return
        if self._running is not None:
            await _answer(send, 409, b"a drain is under way here\n")
            return
        if self._ending:
            await _answer(send, 503, b"this dispatcher is ending\n")
            return
        clients = self._clients
        drain = Drain(
            self._egress, clients.open_reader, clients.writer, clients.subscriber, time.time
        )
        running = asyncio.create_task(drain.run(request))
        hung_up = asyncio.create_task(_disconnected(receive))
        self._drain, self._running = drain, running
        try:
            await _start(send, 200, b"application/x-ndjson")
            while not running.done() and not hung_up.done():
                await _line(send, drain.progress())
                await asyncio.wait(
                    {running, hung_up},
                    timeout=contract.PROGRESS_INTERVAL,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            drain.stop()
            await _line(send, await self._last(drain, running))
            await send({"type": "http.response.body", "body": b""})
        finally:
            hung_up.cancel()
            drain.stop()
            # Cancelled by the server's deadline: the drain still gets to leave its group.
            await asyncio.wait({running})
            self._count(drain)
            self._drain = self._running = None

    async def _last(self, drain: Drain, running: asyncio.Task[DrainProgress]) -> DrainProgress:
        try:
            return await asyncio.shield(running)
        except Exception as error:
            log.exception("the drain of %s failed", self._egress.group)
            return drain.progress(Ended.FAILED, f"{type(error).__name__}: {error}")

    def _count(self, drain: Drain) -> None:
        self._totals.update({name: getattr(drain.counts, name) for name in COUNTED})
        self._failures.update(drain.counts.failures)

    def metrics(self) -> Iterator[Metric]:
        """KN-DP-15: what became of this Trigger's events, in this process."""
        egress, live = self._egress, self._drain.counts if self._drain else None
        labels = {
            "namespace": egress.namespace,
            "broker": egress.broker,
            "trigger": egress.trigger,
        }
        totals, failures = Counter(self._totals), Counter(self._failures)
        if live is not None:
            totals.update({name: getattr(live, name) for name in COUNTED})
            failures.update(live.failures)
        yield Metric(
            "knafka_dispatcher_events_total",
            "Events by what became of them",
            [({**labels, "outcome": name}, totals[name]) for name in COUNTED],
        )
        yield Metric(
            "knafka_delivery_failures_total",
            "Failed attempts, and records that can't be sent, by reason and status code",
            [
                ({**labels, "reason": reason, "code": code}, count)
                for (reason, _, code), count in (
                    (what.partition(" "), count) for what, count in sorted(failures.items())
                )
            ],
        )


async def _request(receive: Receive) -> DrainRequest | None:
    """None: the caller hung up before it had asked."""
    body, more = b"", True
    while more:
        part = await receive()
        if part["type"] == "http.disconnect":
            return None
        body += part.get("body", b"")
        more = part.get("more_body", False)
        if len(body) > MAX_REQUEST_BYTES:
            raise InvalidDocument("", "the request is too large")
    return parse_json(DrainRequest, body.decode("utf-8", "replace")) if body else DrainRequest()


async def _disconnected(receive: Receive) -> None:
    with suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass


async def _start(send: Send, status: int, content_type: bytes) -> None:
    headers = [(b"content-type", content_type)]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _answer(send: Send, status: int, body: bytes) -> None:
    await _start(send, status, b"text/plain; charset=utf-8")
    await send({"type": "http.response.body", "body": body})


async def _line(send: Send, progress: DrainProgress) -> None:
    line = progress.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n"
    await send({"type": "http.response.body", "body": line, "more_body": True})


def new() -> Dispatcher:
    """What func calls to get an instance (FN-2)."""
    return Dispatcher()
