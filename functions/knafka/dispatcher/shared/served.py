"""A shard that this process serves: the contract that it follows, its lease, and the request for
its drain."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from knafka.contract_topic import ContractFollower
from knafka.core.contract import Egress, Shard
from knafka.core.drain import DrainProgress, DrainRequest, ShardProgress
from knafka.core.errors import LogError
from knafka.dispatcher.connecting import ShardClients
from knafka.dispatcher.engine.clients import Clients
from knafka.dispatcher.served import EGRESS_STOP_TIMEOUT, ServedEgress, egress_metrics
from knafka.dispatcher.shared.drain import ShardDrain
from knafka.dispatcher.shared.entries import ShardEntryParser
from knafka.draining.lease import DrainLease
from knafka.draining.renewal import OwnService
from knafka.draining.streaming import stream
from knafka.observability import Metric
from knafka.serving import Send
from knafka.tracing.spans import Tracer


class ServedShard:
    """A `draining.function.Side` that drains a shard, by its lease."""

    def __init__(
        self,
        shard: Shard,
        clients: ShardClients,
        service_url: str | None,
        tracer: Tracer | None = None,
    ) -> None:
        """Create the follower of the contract and the lease of the drains; nothing starts before
        `start`. While there is work left, the lease renews itself by a request to `service_url`,
        the shard's own Service; None: it never does. `tracer` None: no spans are recorded. Raises
        `InvalidDocument` if `service_url` is no URL."""
        self._tracer = tracer
        self._writer = clients.writer
        self._shard = shard
        self._clients = clients
        self._served: dict[str, ServedEgress] = {}
        """The Egresses of the contract, by group."""
        parser = ShardEntryParser(shard.group)
        self._follower = ContractFollower(parser, clients.open_contract)
        self._follower.listeners.append(self._apply_contract)
        self._following: asyncio.Task[None] | None = None
        """The task that follows the contract; None before `start`."""
        self._news = asyncio.Event()
        """Set when the request under way must report that the contract was read further."""
        renewal = None
        if service_url is not None:
            renewal = OwnService(service_url, {"shard": shard.group}, clients.subscriber)
        self._lease: DrainLease[ShardProgress] = DrainLease(self._new_drain, renewal)
        self._at_start: asyncio.Task[None] | None = None
        """The task that starts a drain once the contract is read; None: `start` wasn't told to
        drain."""

    @property
    def failure(self) -> LogError | None:
        """Why the writer can't write to Kafka any more; None: it can."""
        return self._writer.failure

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics of all Egresses of the shard."""
        return egress_metrics(list(self._served.values()), time.time())

    @property
    def is_attached(self) -> bool:
        """Whether a request for a drain is under way."""
        return self._lease.is_attached

    @property
    def problem(self) -> str:
        """Why the shard isn't ready (the contract isn't read yet); empty: it is ready."""
        if self._follower.is_ready:
            return ""
        return f"the contract isn't read yet: {self._follower.problem or 'no answer so far'}"

    async def wait_until_ready(self, timeout: float) -> None:
        """Wait until the contract is read, at most `timeout` seconds; `problem` says whether it
        is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._follower.wait_until_ready()

    def start(self, *, drain: bool) -> None:
        """Start to follow the contract. `drain` True: also start a drain without a request, once
        the contract is read."""
        self._following = asyncio.create_task(self._follower.follow())
        if drain:
            self._at_start = asyncio.create_task(self._drain_from_start())

    async def _drain_from_start(self) -> None:
        """Start a drain once the contract is read."""
        await self._follower.wait_until_ready()
        self._lease.drain_from_start()

    def _new_drain(self) -> ShardDrain:
        """Create the shard's next drain, for the lease."""
        return ShardDrain(self._follower, self._ensure_served, self._connect, self._news)

    def _connect(self, egress: Egress) -> Clients:
        """Return the clients of one drain of this Egress. They share memory and connections with
        the clients of the shard's other Egresses, whose number may change during the drain."""
        return self._clients.clients_for(egress, lambda: len(self._follower.contract.entries))

    def _ensure_served(self, egress: Egress) -> ServedEgress:
        """Return the state of this Egress that outlives its drains; create it at its first use."""
        return self._served.setdefault(egress.group, ServedEgress(egress, self._tracer))

    def _apply_contract(self) -> None:
        """Serve the Egresses of the present contract: forget removed ones, change the others, and
        add new ones. Their drains are left to `ShardDrain`, which listens to the contract, too."""
        egresses = self._follower.contract.entries
        self._served = {
            group: served for group, served in self._served.items() if group in egresses
        }
        for egress in egresses.values():
            self._ensure_served(egress).egress = egress

    def refusal(self, request: DrainRequest) -> str:
        """Return why a request for a drain is refused: it names an Egress or another shard. Empty:
        it is accepted."""
        if request.egress is not None or request.shard != self._shard.group:
            return f"this dispatcher has the shard {self._shard.group}"
        return ""

    async def stream(self, request: DrainRequest, caller: asyncio.Task[bool], send: Send) -> None:
        """Answer a request for a drain with lines of progress until the drain ends, the request's
        budget is spent or the caller disconnects. `caller` is a task that ends when the caller
        acts: it returns True if the caller asks for a stop, False if it disconnects. It is
        cancelled if another request replaces this one."""
        await stream(self._lease, request, caller, send, make_line_reducer(), self._news)

    def note_refusal(self) -> None:
        """Learn that this process has refused a request (`refusal`), which shows that it is being
        replaced. If it drains without requests, it then waits longer before the next drain."""
        self._lease.note_refusal()

    def detach(self) -> None:
        """Note that the request under way has ended; the drain goes on."""
        self._lease.detach()

    def stop(self, timeout: float) -> None:
        """Stop following the contract, begin to end the drain, and start no other; attempts under
        way get `timeout` seconds. Returns at once."""
        if self._at_start is not None:
            self._at_start.cancel()
        if self._following is not None:
            self._following.cancel()
        self._lease.stop(timeout)

    async def wait_until_drained(self) -> None:
        """Wait until the running drain, if there is one, has ended."""
        await self._lease.wait()

    async def close(self) -> None:
        """After `stop`: wait until the drain and the follower of the contract have ended, then
        close the clients."""
        await self.wait_until_drained()
        if self._following is not None:
            with suppress(asyncio.CancelledError):
                await self._following
        await self._clients.close()
        await self._writer.close(EGRESS_STOP_TIMEOUT)


def make_line_reducer() -> Callable[[ShardProgress], ShardProgress]:
    """Return a function that reduces the shard's progress to what the next line of one answer
    says. The first and the last line have all Egresses, the others only those whose progress has
    changed since the line before."""
    last_egresses: dict[str, DrainProgress] = {}

    def reduce(progress: ShardProgress) -> ShardProgress:
        """Return the progress with only those Egresses that differ from the previous progress; a
        drain's last progress stays whole."""
        nonlocal last_egresses
        previous_egresses, last_egresses = last_egresses, progress.egresses
        if progress.ended is not None:
            return progress
        changed = {
            group: drain_progress
            for group, drain_progress in progress.egresses.items()
            if previous_egresses.get(group) != drain_progress
        }
        return progress.model_copy(update={"egresses": changed})

    return reduce
