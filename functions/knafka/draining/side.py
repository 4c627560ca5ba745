"""A side with one lease: the common part of a single Egress's side and a Sensor's side."""

from __future__ import annotations

import asyncio

from knafka.core.drain import DrainProgress, DrainRequest
from knafka.draining.lease import DrainLease
from knafka.draining.streaming import stream
from knafka.serving import Send


class LeasedSide:
    """Base of a `function.Side` that is ready from the start and has one drain at a time."""

    problem = ""

    def __init__(self, lease: DrainLease[DrainProgress]) -> None:
        self._lease = lease

    @property
    def is_attached(self) -> bool:
        return self._lease.is_attached

    async def wait_until_ready(self, timeout: float) -> None: ...

    def note_refusal(self) -> None:
        self._lease.note_refusal()

    def start(self, *, drain: bool) -> None:
        """Start a drain at once if `drain` is set."""
        if drain:
            self._lease.drain_from_start()

    async def stream(self, request: DrainRequest, caller: asyncio.Task[bool], send: Send) -> None:
        await stream(self._lease, request, caller, send)

    def detach(self) -> None:
        self._lease.detach()

    def stop(self, timeout: float) -> None:
        self._lease.stop(timeout)

    async def wait_until_drained(self) -> None:
        await self._lease.wait()
