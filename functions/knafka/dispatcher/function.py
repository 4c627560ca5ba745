"""The dispatcher as a function: `POST /drain` under ASGI (FN-2, FN-4, design: the drain).

A request begins the drain or has it go on, and streams its progress as JSON lines; the drain itself
outlives it (`lease`). Each Egress has one drain and one request at a time; a second one is answered
409. A process has one Egress, or the many of a shard (docs/decisions/0018-shared-dispatchers.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from knafka import settings
from knafka.core import drain as contract
from knafka.core.contract import Egress, Shard
from knafka.core.documents import parse_json
from knafka.core.drain import DrainRequest
from knafka.core.errors import InvalidDocument
from knafka.dispatcher.connecting import Clients, ShardClients, connect, connect_shard
from knafka.dispatcher.served import Served, answer, metrics_of
from knafka.observability import Metric, prometheus_text
from knafka.ports.log import LogWriter, failure_of
from knafka.serving import LIVENESS, READINESS, Receive, Scope, Send

METRICS: Final = "/metrics"
MAX_REQUEST_BYTES: Final = 64 * 1024
STOP_TIMEOUT: Final = 4.0
"""Seconds for dead letters and replies that are still being written at the end."""


class Dispatcher:
    """One dispatcher: nothing is opened before `start`, which calls one of the two: for an Egress,
    or for a shard of them."""

    def __init__(
        self,
        connect: Callable[[Egress], Clients] = connect,
        connect_shard: Callable[[Shard], ShardClients] = connect_shard,
    ) -> None:
        self._connect = connect
        self._connect_shard = connect_shard
        self._served: dict[str, Served] = {}
        """By the digest of the Egress; none before `start`."""
        self._closing: list[Callable[[], Awaitable[None]]] = []
        """What to do last, in this order."""
        self._stop_timeout: float
        self._writers: list[LogWriter] = []
        """None before `start`, then one."""
        self._ending = False

    async def start(self, environment: Mapping[str, str]) -> None:
        """Get ready to drain, or begin; raises `InvalidDocument` for settings that can't be
        used."""
        drains = settings.drains(environment)
        shard = settings.shard(environment)
        self._stop_timeout = drains.stop_timeout
        if shard is None:
            egress = settings.egress(environment)
            clients = self._connect(egress)
            self._serve(egress, clients, drains)
        else:
            together = self._connect_shard(shard)
            for egress in shard.egresses:
                clients = together.of(egress)
                self._serve(egress, clients, drains)
            self._closing.append(together.close)
        self._writers.append(clients.writer)
        self._closing.append(lambda: clients.writer.close(STOP_TIMEOUT))
        for served in self._served.values():
            self._closing.append(served.clients.subscriber.close)
            if drains.at_start:
                served.lease.drain_from_start()

    def _serve(self, egress: Egress, clients: Clients, drains: settings.Drains) -> None:
        served = Served(egress, clients, drains.service_url)
        self._served[served.digest] = served

    def state(self) -> Mapping[str, Any]:
        return {}

    def interrupt(self) -> None:
        """The process is to end: so is the drain, before the server waits for its response."""
        if not self._ending:
            for served in self._served.values():
                served.lease.stop(self._stop_timeout)
        self._ending = True

    async def stop(self) -> None:
        """End the drains, and close what was opened."""
        self.interrupt()
        for served in self._served.values():
            await served.lease.wait()
        for close in self._closing:
            await close()

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
                await answer(send, 405, b"drain with POST\n")
            else:
                await self._handle_drain(receive, send)
        elif method == "GET" and path in LIVENESS:
            alive, why = self.alive()
            await answer(send, 200 if alive else 503, f"{why}\n".encode())
        elif method == "GET" and path in READINESS:
            ready, why = self.ready()
            await answer(send, 200 if ready else 503, f"{why}\n".encode())
        elif method == "GET" and path == METRICS:
            await answer(send, 200, prometheus_text(self.metrics()))
        else:
            await answer(send, 404, b"want POST /drain\n")

    async def _handle_drain(self, receive: Receive, send: Send) -> None:
        try:
            asked = await _request(receive)
        except InvalidDocument as error:
            await answer(send, 400, f"{error}\n".encode())
            return
        if asked is None:
            return
        request, rest = asked
        served = self._served.get(request.egress or "")
        if request.egress is None and len(self._served) == 1:
            (served,) = self._served.values()
        if request.egress is None and served is None:
            await answer(send, 400, b"this dispatcher has several egresses: name one\n")
        elif served is None:
            await answer(send, 412, b"this dispatcher has another egress\n")
        elif served.lease.is_attached:
            await answer(send, 409, b"a drain is under way here\n")
        elif self._ending:
            await answer(send, 503, b"this dispatcher is ending\n")
        else:
            caller = asyncio.create_task(_caller(receive, rest))
            try:
                await served.stream(request, caller, send)
            finally:
                caller.cancel()
                served.lease.detach()

    def metrics(self) -> Iterator[Metric]:
        """KN-DP-15: what became of each Trigger's events, in this process."""
        return metrics_of(list(self._served.values()))


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
