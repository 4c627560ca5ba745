"""The dispatcher of a single Egress: its lease, and which requests for a drain it accepts."""

from __future__ import annotations

import time
from collections.abc import Iterator

from knafka.core.contract import Egress
from knafka.core.documents import digest
from knafka.core.drain import DrainRequest
from knafka.core.errors import LogError
from knafka.dispatcher.connecting import TAIL_CLOSE_TIMEOUT
from knafka.dispatcher.engine.clients import Clients
from knafka.dispatcher.served import EGRESS_STOP_TIMEOUT, ServedEgress, egress_metrics
from knafka.draining.lease import DrainLease
from knafka.draining.renewal import OwnService
from knafka.draining.side import LeasedSide
from knafka.observability import Metric
from knafka.tracing.spans import Tracer


class OwnEgress(LeasedSide):
    """A `draining.function.Side` that drains one Egress, by its lease."""

    def __init__(
        self,
        egress: Egress,
        clients: Clients,
        service_url: str | None,
        tracer: Tracer | None = None,
    ) -> None:
        """Create the lease of the Egress's drains. While there is work left, the lease renews
        itself by a request to `service_url`, its own Service; None: it never does. `tracer` None:
        no spans are recorded. Raises `InvalidDocument` if `service_url` is no URL."""
        self._writer = clients.writer
        self._digest = digest(egress)
        """Digest of the Egress, by which requests name it."""
        self._clients = clients
        self._served = ServedEgress(egress, tracer)
        renewal = None
        if service_url is not None:
            renewal = OwnService(service_url, {"egress": self._digest}, clients.subscriber)
        super().__init__(DrainLease(lambda: self._served.new_drain(egress, clients), renewal))

    @property
    def failure(self) -> LogError | None:
        """Why the writer can't write to Kafka any more; None: it can."""
        return self._writer.failure

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics of the Egress."""
        return egress_metrics([self._served], time.time())

    def refusal(self, request: DrainRequest) -> str:
        """Return why a request for a drain is refused: it names a shard or another Egress. Empty:
        it is accepted, also if it names nothing."""
        if request.shard is not None or request.egress not in (None, self._digest):
            return "this dispatcher has another egress"
        return ""

    async def close(self) -> None:
        """Wait for the drain to end, then close the clients."""
        await self.wait_until_drained()
        await self._clients.subscriber.close()
        if self._clients.broker_dead_letters is not None:
            await self._clients.broker_dead_letters.close(TAIL_CLOSE_TIMEOUT)
        await self._writer.close(EGRESS_STOP_TIMEOUT)
