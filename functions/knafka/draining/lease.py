"""The lease: keeps a dispatcher's drain running while requests ask for it or it has work.

    no drain --attach, or at start--> draining --idle, stop, failed--> no drain
    drains from its start, was stopped, no request for BEGIN_AGAIN_SECONDS --> draining
    draining, no request for RENEWAL_PATIENCE --> sends a request to its own Service

A drain goes on between requests. If no requests come, the operator is away. As Knative soon removes
a pod without requests, a dispatcher with work then sends requests to its own Service: Knative keeps
the pod that gets them. The dispatcher does so until another caller sends requests, or until another
dispatcher takes partitions, which shows that somebody starts dispatchers.
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
"""Budget (seconds) of a request that a dispatcher sends to its own Service. It is short, as an
operator that has come back may have to wait until that request ends."""
RENEWAL_RETRY_INTERVAL: Final = 3.0
"""Seconds between a request to the own Service that failed and the next one."""
BEGIN_AGAIN_SECONDS: Final = 300.0
"""Seconds after which a process that drains from its start begins again after a stop. By then the
operator has removed a dispatcher that it no longer needs, or has sent another request to it."""
HANDOVER_SECONDS: Final = 30.0
"""Seconds for which the lease isn't renewed after partitions went to a new member, as somebody has
started that member."""


class AnotherEgress(KnafkaError):
    """Raised if the own Service drains something else by now: its newest Revision has replaced this
    process."""


class Renewal(Protocol):
    """Sends a request for a drain to the dispatcher's own Service."""

    def __call__(self, request: DrainRequest) -> Awaitable[None]:
        """Send the request, and wait until it is over. Raises `AnotherEgress` if the Service drains
        something else, and another `KnafkaError` for any other answer than progress."""
        ...


P = TypeVar("P", bound=DrainProgress | ShardProgress)
P_co = TypeVar("P_co", bound=DrainProgress | ShardProgress, covariant=True)


class Leased(Protocol[P_co]):
    """A drain of an Egress, a shard or a Sensor, as a `DrainLease` uses it."""

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
        """Drain until idle or stopped; returns the last progress, whose `ended` says why the drain
        has ended. A drain that raises an exception has failed."""
        ...

    def stop(self, timeout: float = DRAIN_STOP_TIMEOUT) -> None:
        """Begin to end the drain; attempts under way get `timeout` seconds. Returns at once."""
        ...

    def progress(self, ended: Ended | None = None, error: str | None = None) -> P_co:
        """Return the progress, with the counts since the last request ended. `ended`: why the
        request has ended; the drain has ended, too, unless it is `Ended.BUDGET`. None: both go on.
        `error`: a sentence for the caller about what failed; None: nothing did."""
        ...

    def reset_reported_counts(self) -> None:
        """Set the counts of `progress` to 0, as the request that has ended has reported them."""
        ...


class DrainLease(Generic[P]):
    """Starts, keeps and ends the drains of one dispatcher or Sensor, one at a time."""

    def __init__(self, new_drain: Callable[[], Leased[P]], renewal: Renewal | None) -> None:
        """Begin without a drain. `new_drain` creates each drain, which is then run once. `renewal`
        sends requests to the own Service; None: this process never renews its lease, as no operator
        scales it."""
        self._new_drain = new_drain
        self._renewal = renewal
        self._drain: Leased[P] | None = None
        """The drain that is running; None: there is none."""
        self._running: asyncio.Task[P] | None = None
        """The task that runs `_drain` and returns its last progress; None: there is none."""
        self._request = DrainRequest()
        """The last request for a drain; before the first one, a request without settings."""
        self.is_attached = False
        """Whether a request for a drain is under way, a renewal's included."""
        self._drains_from_start = False
        """Whether the process drains without requests, too (`drain_from_start`)."""
        self._is_ending = False
        """Whether the process ends, so that no other drain may start."""
        self._failures = 0
        """Number of failed drains in a row."""
        self._timer: asyncio.TimerHandle | None = None
        """Timer of the planned drain or renewal; None: none is planned."""
        self._renewing: asyncio.Task[None] | None = None
        """The renewal under way; None: there is none."""
        self._loop = asyncio.get_running_loop()

    def drain_from_start(self) -> None:
        """Start to drain now, without a request, and do so for as long as the process lives."""
        self._drains_from_start = True
        self._begin_drain()

    async def attach(self, request: DrainRequest) -> tuple[Leased[P], asyncio.Task[P]] | None:
        """Begin to serve a request: start a drain, unless one is running; if the running one is
        being stopped, wait for its end and start another. A renewal under way is cancelled, unless
        it has sent this request. Returns the drain, and the task that runs it and returns its last
        progress; None if the process has begun to end meanwhile, so that no drain may start."""
        self.is_attached = True
        self._request = request
        if not request.renewal:
            self._end_renewal()
        self._cancel_timer()
        if self._drain is not None and self._drain.is_stopping and self._running is not None:
            await asyncio.wait({self._running})
        if self._running is None:
            if self._is_ending:
                return None
            self._begin_drain()
        assert self._drain is not None
        assert self._running is not None
        if not self._drains_from_start:
            self._drain.idle = request.idle
        return self._drain, self._running

    def detach(self) -> None:
        """Note that the request under way has ended, with whatever result. The drain goes on; if no
        other request follows, this process renews its lease."""
        if self._drain is not None:
            self._drain.reset_reported_counts()
        self.is_attached = False
        self._plan_renewal()

    def stop(self, timeout: float) -> None:
        """Begin to end the drain, and start no other drain; attempts under way get `timeout`
        seconds. Returns at once."""
        self._is_ending = True
        self._end_renewal()
        self._cancel_timer()
        if self._drain is not None:
            self._drain.stop(timeout)

    async def wait(self) -> None:
        """Wait until the running drain has left its group; return at once if none is running."""
        if self._running is not None:
            await asyncio.wait({self._running})

    def _begin_drain(self) -> None:
        """Start a drain. It ends after as many idle seconds as the last request says; but if the
        process drains from its start, it doesn't end when it is idle."""
        drain = self._drain = self._new_drain()
        drain.idle = None if self._drains_from_start else self._request.idle
        self._running = asyncio.create_task(drain.run())
        self._running.add_done_callback(self._on_drain_ended)

    def _on_drain_ended(self, running: asyncio.Task[P]) -> None:
        """Note that the drain, whose task is `running`, has ended, and plan the next one: soon
        after a failure; else after `BEGIN_AGAIN_SECONDS`, if the process drains from its start."""
        self._drain = self._running = None
        self._cancel_timer()
        has_no_result = running.cancelled() or running.exception() is not None
        if has_no_result or running.result().ended is Ended.FAILED:
            if not running.cancelled() and (error := running.exception()) is not None:
                log.error("the drain failed", exc_info=error)
            self._plan_drain_after_failure()
        else:
            self._failures = 0
            self._plan_drain_after_stop()

    def _plan_drain_after_failure(self) -> None:
        """Plan another drain after a failed one; the more failures in a row, the later. Plan none
        if a request is under way in a process that doesn't drain from its start: the caller learns
        of the failure and sends another request."""
        if self._is_ending or (self.is_attached and not self._drains_from_start):
            return
        seconds = restart_after(self._failures)
        self._failures += 1
        self._timer = self._loop.call_later(seconds, self._begin_planned_drain)

    def _plan_drain_after_stop(self) -> None:
        """Plan another drain in `BEGIN_AGAIN_SECONDS`, if the process drains from its start."""
        if self._drains_from_start and not self._is_ending:
            self._timer = self._loop.call_later(BEGIN_AGAIN_SECONDS, self._begin_planned_drain)

    def note_refusal(self) -> None:
        """Note that this process has refused a request for something that it doesn't drain. The
        refusal shows that the process is being replaced, so its planned drain, if there is one, is
        postponed to `BEGIN_AGAIN_SECONDS` from now."""
        if self._running is None and self._timer is not None and self._drains_from_start:
            self._cancel_timer()
            self._plan_drain_after_stop()

    def _begin_planned_drain(self) -> None:
        """Start the planned drain, unless a drain is running or the process ends; called by the
        timer."""
        self._timer = None
        if self._running is None and not self._is_ending:
            self._begin_drain()
            self._plan_renewal()

    # Renewal

    def _plan_renewal(self) -> None:
        """Plan to renew the lease in `RENEWAL_PATIENCE` seconds. Do nothing if no drain is running,
        if it needs no renewals, or if a request or a renewal is under way."""
        if self._renewal is None or self._is_ending:
            return
        if self._drains_from_start or self._running is None:
            return
        if not self.is_attached and self._renewing is None:
            self._cancel_timer()
            self._timer = self._loop.call_later(RENEWAL_PATIENCE, self._begin_renewal)

    def _begin_renewal(self) -> None:
        """Start to renew the lease, unless the drain has ended or a request is under way; called by
        the timer."""
        self._timer = None
        if self._running is not None and not self.is_attached and self._renewing is None:
            self._renewing = asyncio.create_task(self._renew_until_drain_ends())
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

    async def _renew_until_drain_ends(self) -> None:
        """Send requests for a drain to this dispatcher's Service, one after the other, until the
        drain is over or is being stopped. `attach` cancels this task when another caller's request
        comes. For `HANDOVER_SECONDS` after partitions went to another dispatcher, no request is
        sent. If the Service drains something else by now, the drain is stopped."""
        assert self._renewal is not None
        while (drain := self._drain) is not None and not drain.is_stopping:
            if drain.shrunk_at is not None:  # somebody has started another dispatcher
                seconds_left = drain.shrunk_at + HANDOVER_SECONDS - self._loop.time()
                if seconds_left > 0:
                    await asyncio.sleep(seconds_left)
                    continue
            request = self._request.model_copy(update={"budget": RENEWAL_BUDGET, "renewal": True})
            try:
                await self._renewal(request)
            except AnotherEgress:
                drain.stop()
                return
            except KnafkaError as error:
                log.warning(
                    "nobody requests this drain, and the request to our own Service failed: %s",
                    error,
                )
                await asyncio.sleep(RENEWAL_RETRY_INTERVAL)

    def _cancel_timer(self) -> None:
        """Cancel the planned drain or renewal, if there is one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
