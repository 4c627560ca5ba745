"""The draining half of a function with one lease: what that of a single Egress and that of a Sensor
have in common (`function.Side` is the interface)."""

from __future__ import annotations

import asyncio

from knafka.core.drain import DrainProgress, DrainRequest
from knafka.draining.lease import DrainLease
from knafka.draining.streaming import stream
from knafka.serving import Send


class LeasedSide:
    """Base class of a `function.Side` that is ready from the start and has one drain at a time.
    Subclasses add `failure`, `metrics`, `refusal` and `close`."""

    problem = ""
    """Why draining is not possible yet: always empty."""

    def __init__(self, lease: DrainLease[DrainProgress]) -> None:
        """`lease` starts, keeps and ends the drains."""
        self._lease = lease

    @property
    def is_attached(self) -> bool:
        """Whether a request for a drain is under way."""
        return self._lease.is_attached

    async def wait_until_ready(self, timeout: float) -> None:
        """Return at once, as this side is ready from the start; `timeout` is ignored."""

    def note_refusal(self) -> None:
        """Note that this process has refused a request for something that it doesn't drain: it is
        being replaced, so a planned drain is postponed (`DrainLease.note_refusal`)."""
        self._lease.note_refusal()

    def start(self, *, drain: bool) -> None:
        """Drain from now on without a request, if `drain` is True; else do nothing."""
        if drain:
            self._lease.drain_from_start()

    async def stream(self, request: DrainRequest, caller: asyncio.Task[bool], send: Send) -> None:
        """Answer a request for a drain with lines of progress until the request is over. `caller`
        is a task that ends when the caller acts: it returns True if the caller asks for a stop,
        False if it disconnects. It is cancelled if another request replaces this one."""
        await stream(self._lease, request, caller, send)

    def detach(self) -> None:
        """Note that the request under way has ended; the drain goes on."""
        self._lease.detach()

    def stop(self, timeout: float) -> None:
        """Begin to end the drain, and start no other drain; attempts under way get `timeout`
        seconds. Returns at once."""
        self._lease.stop(timeout)

    async def wait_until_drained(self) -> None:
        """Wait until the running drain, if there is one, has left its group."""
        await self._lease.wait()
