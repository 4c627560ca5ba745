"""The lease: keeps a dispatcher's drain running while requests ask for it or it has work.

    no drain --attach, or at start--> draining --idle, stop, failed--> no drain
    begun at start and stopped, nobody asks for BEGIN_AGAIN_SECONDS --> draining
    draining, nobody attached for RENEWAL_PATIENCE --> asks its own Service for the next request

A drain goes on between requests. A lack of requests means that the operator is away. As Knative
soon removes a pod without requests, a dispatcher with work then sends requests to its own Service,
which keep the pod that gets them. It does so until another caller sends requests, or until another
dispatcher takes partitions, which shows that somebody is asking for dispatchers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

from knafka.core.drain import DrainProgress, DrainRequest, Ended, ShardProgress
from knafka.core.errors import KnafkaError
from knafka.core.restarts import restart_after
from knafka.observability import RateLimitedFilter

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter(by_wording=True))

DRAIN_STOP_TIMEOUT: Final = 2.0
"""Seconds that attempts under way get when a drain stops, by default."""
RENEWAL_PATIENCE: Final = 3.0
"""Seconds without a request after which a dispatcher sends one to its own Service: more than an
operator leaves between two requests, less than the window of Knative's autoscaler (10 s)."""
RENEWAL_BUDGET: Final = 15.0
"""Budget (seconds) of a request that a dispatcher sends to its own Service; an operator that is
back waits at most so long for its own request."""
RENEWAL_RETRY_INTERVAL: Final = 3.0
"""Seconds between a request to the own Service that failed and the next one."""
BEGIN_AGAIN_SECONDS: Final = 300.0
"""Seconds after which a drain that began at the process's start, and was stopped, begins again. By
then the operator has removed the dispatcher if it no longer needs it, else it has sent another
request."""
HANDOVER_SECONDS: Final = 30.0
"""Seconds for which the lease isn't renewed after partitions went to a new member, as somebody has
started that member."""


class AnotherEgress(KnafkaError):
    """Raised if the Service's newest Revision drains something else, so that this process is
    replaced."""


class Renewal(Protocol):
    """Sends a request for a drain to the dispatcher's own Service; returns when it is over. Raises
    `AnotherEgress`, or `KnafkaError` for any other answer than progress."""

    def __call__(self, request: DrainRequest) -> Awaitable[None]: ...


P = TypeVar("P", bound=DrainProgress | ShardProgress)
P_co = TypeVar("P_co", bound=DrainProgress | ShardProgress, covariant=True)


class Leased(Protocol[P_co]):
    """A drain of one Egress, a shard or a Sensor, as the lease uses it."""

    idle: float | None
    """Seconds without work after which the drain ends; None: never."""

    @property
    def shrunk_at(self) -> float | None:
        """When partitions last went to another dispatcher, on the event loop's clock; None:
        never."""
        ...

    @property
    def is_stopping(self) -> bool:
        """Whether the drain was told to stop."""
        ...

    async def run(self) -> P_co:
        """Drain until idle or stopped; returns the last progress, whose `ended` says why. An
        exception counts as a failed drain."""
        ...

    def stop(self, timeout: float = DRAIN_STOP_TIMEOUT) -> None:
        """End the drain; attempts under way get `timeout` seconds."""
        ...

    def progress(self, ended: Ended | None = None, error: str | None = None) -> P_co:
        """Return the progress, with the counts since the last request ended. `ended`: why the
        request ends; None: it goes on. `error`: a sentence for the caller."""
        ...

    def reset_reported_counts(self) -> None:
        """Start the counts of `progress` anew: the last request has reported them."""
        ...


class DrainLease(Generic[P]):
    """Starts, keeps and ends the drains of one dispatcher, one at a time; `renewal` is None if no
    operator scales the dispatcher."""

    def __init__(self, new_drain: Callable[[], Leased[P]], renewal: Renewal | None) -> None:
        """Begin without a drain; `new_drain` creates each one, to be run once."""
        self._new_drain = new_drain
        self._renewal = renewal
        self._drain: Leased[P] | None = None
        """The drain that runs; None: none does."""
        self._running: asyncio.Task[P] | None = None
        """The task of `_drain`, which returns its last progress."""
        self._request = DrainRequest()
        """The last request for a drain."""
        self.is_attached = False
        """Whether a request is under way."""
        self._at_start = False
        """Whether drains run without requests (`drain_from_start`)."""
        self._ending = False
        """Whether the process ends, so that no other drain may start."""
        self._restarts = 0
        """Number of failed drains in a row."""
        self._timer: asyncio.TimerHandle | None = None
        """The planned restart or renewal."""
        self._renewing: asyncio.Task[None] | None = None
        """The renewal under way."""
        self._loop = asyncio.get_running_loop()

    def drain_from_start(self) -> None:
        """Drain without a request, for as long as the process lives."""
        self._at_start = True
        self._begin_drain()

    async def attach(self, request: DrainRequest) -> tuple[Leased[P], asyncio.Task[P]]:
        """Begin a request: start a drain unless one is running; if that one is being stopped, wait
        for its end first. A renewal under way is cancelled, unless this request is part of it.
        Returns the drain, and the task that returns its last progress."""
        self.is_attached = True
        self._request = request
        if not request.renewal:
            self._end_renewal()
        self._cancel_timer()
        if self._drain is not None and self._drain.is_stopping and self._running is not None:
            await asyncio.wait({self._running})
        if self._running is None:
            self._begin_drain()
        assert self._drain is not None
        assert self._running is not None
        if not self._at_start:
            self._drain.idle = request.idle
        return self._drain, self._running

    def detach(self) -> None:
        """End the request under way, whatever its result; the drain goes on, and is renewed by this
        process if no other request follows."""
        if self._drain is not None:
            self._drain.reset_reported_counts()
        self.is_attached = False
        self._plan_renewal()

    def stop(self, timeout: float) -> None:
        """End the drain and start no other one; attempts under way get `timeout` seconds."""
        self._ending = True
        self._end_renewal()
        self._cancel_timer()
        if self._drain is not None:
            self._drain.stop(timeout)

    async def wait(self) -> None:
        """Wait until the drain that runs, if any, has left its group."""
        if self._running is not None:
            await asyncio.wait({self._running})

    def _begin_drain(self) -> None:
        """Start a drain. It ends after as many idle seconds as the last request says; if the
        process drains from its start, it never ends as idle."""
        drain = self._drain = self._new_drain()
        drain.idle = None if self._at_start else self._request.idle
        self._running = asyncio.create_task(drain.run())
        self._running.add_done_callback(self._on_drain_ended)

    def _on_drain_ended(self, running: asyncio.Task[P]) -> None:
        """Note that the drain has ended, and plan the next one: soon after a failure, and after
        `BEGIN_AGAIN_SECONDS` if the process drains from its start."""
        self._drain = self._running = None
        self._cancel_timer()
        has_failed = running.cancelled() or running.exception() is not None
        if has_failed or running.result().ended is Ended.FAILED:
            if not running.cancelled() and (error := running.exception()) is not None:
                log.error("the drain failed", exc_info=error)
            self._restart_later()
        else:
            self._restarts = 0
            self._begin_again_later()

    def _restart_later(self) -> None:
        """Plan another drain after a failed one, unless a request is under way: its caller learns
        of the failure and asks again."""
        if self._ending or (self.is_attached and not self._at_start):
            return
        seconds = restart_after(self._restarts)
        self._restarts += 1
        self._timer = self._loop.call_later(seconds, self._restart)

    def _begin_again_later(self) -> None:
        """Plan another drain in `BEGIN_AGAIN_SECONDS`, if the process drains from its start."""
        if self._at_start and not self._ending:
            self._timer = self._loop.call_later(BEGIN_AGAIN_SECONDS, self._restart)

    def note_refusal(self) -> None:
        """Note that this process has refused a request, as it drains something else. Such requests
        show that its drain is replaced, so each of them postpones the restart of a drain that was
        stopped."""
        if self._running is None and self._timer is not None and self._at_start:
            self._cancel_timer()
            self._begin_again_later()

    def _restart(self) -> None:
        """Start the planned drain, unless one is running or the process ends; called by the
        timer."""
        self._timer = None
        if self._running is None and not self._ending:
            self._begin_drain()
            self._plan_renewal()

    # Renewal

    def _plan_renewal(self) -> None:
        """Plan to renew the lease in `RENEWAL_PATIENCE` seconds, if a drain runs that needs
        renewals and no request or renewal is under way."""
        if self._renewal is None or self._ending or self._at_start or self._running is None:
            return
        if not self.is_attached and self._renewing is None:
            self._cancel_timer()
            self._timer = self._loop.call_later(RENEWAL_PATIENCE, self._begin_renewal)

    def _begin_renewal(self) -> None:
        """Start to renew the lease, unless the drain has ended or a request is under way; called by
        the timer."""
        self._timer = None
        if self._running is not None and not self.is_attached and self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())
            self._renewing.add_done_callback(self._on_renewal_ended)

    def _end_renewal(self) -> None:
        """Cancel the renewal under way, if there is one."""
        if self._renewing is not None:
            self._renewing.cancel()

    def _on_renewal_ended(self, renewing: asyncio.Task[None]) -> None:
        """Note that the renewal has ended, and plan the next one."""
        self._renewing = None
        if not renewing.cancelled() and (error := renewing.exception()) is not None:
            log.error("renewing the drain failed", exc_info=error)
        self._plan_renewal()

    async def _renew(self) -> None:
        """Send requests for a drain to this dispatcher's Service, one after the other, until the
        drain is over; another caller's request cancels this. None is sent for `HANDOVER_SECONDS`
        after partitions went to another dispatcher. If the Service drains something else by now,
        the drain is stopped."""
        assert self._renewal is not None
        while (drain := self._drain) is not None and not drain.is_stopping:
            if drain.shrunk_at is not None:  # somebody has started another dispatcher
                wait = drain.shrunk_at + HANDOVER_SECONDS - self._loop.time()
                if wait > 0:
                    await asyncio.sleep(wait)
                    continue
            request = self._request.model_copy(update={"budget": RENEWAL_BUDGET, "renewal": True})
            try:
                await self._renewal(request)
            except AnotherEgress:
                drain.stop()
                return
            except KnafkaError as error:
                log.warning("nobody asks for this drain, and asking for it failed: %s", error)
                await asyncio.sleep(RENEWAL_RETRY_INTERVAL)

    def _cancel_timer(self) -> None:
        """Cancel the planned restart or renewal, if there is one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
