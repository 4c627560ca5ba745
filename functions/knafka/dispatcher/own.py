"""An Egress with a dispatcher of its own: its lease, and the request that asks for its drain."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from knafka.core.contract import Egress
from knafka.core.documents import digest
from knafka.core.drain import DrainProgress, DrainRequest
from knafka.dispatcher.connecting import Clients
from knafka.dispatcher.lease import Lease
from knafka.dispatcher.renewal import OwnService
from knafka.dispatcher.served import Served
from knafka.dispatcher.streaming import stream
from knafka.serving import Send
from knafka.tracing.spans import Tracer


class OwnEgress:
    """A `function.Side`; `service_url` as in `settings.Drains`. Raises `InvalidDocument` for one
    that can't be used."""

    def __init__(
        self,
        egress: Egress,
        clients: Clients,
        service_url: str | None,
        tracer: Tracer | None = None,
    ) -> None:
        self.writer = clients.writer
        self.problem = ""
        self._digest = digest(egress)
        self._clients = clients
        self._served = Served(egress, tracer)
        renewal = None
        if service_url is not None:
            renewal = OwnService(service_url, {"egress": self._digest}, clients.subscriber)
        self._lease: Lease[DrainProgress] = Lease(
            lambda: self._served.new_drain(egress, clients), renewal
        )

    @property
    def served(self) -> Sequence[Served]:
        return [self._served]

    @property
    def is_attached(self) -> bool:
        return self._lease.is_attached

    async def wait_until_ready(self, timeout: float) -> None: ...

    def start(self, *, drain: bool) -> None:
        if drain:
            self._lease.drain_from_start()

    def refusal(self, request: DrainRequest) -> str:
        if request.shard is not None or request.egress not in (None, self._digest):
            return "this dispatcher has another egress"
        return ""

    async def stream(self, request: DrainRequest, caller: asyncio.Task[bool], send: Send) -> None:
        await stream(self._lease, request, caller, send)

    def detach(self) -> None:
        self._lease.detach()

    def stop(self, timeout: float) -> None:
        self._lease.stop(timeout)

    async def close(self) -> None:
        await self._lease.wait()
        await self._clients.subscriber.close()
