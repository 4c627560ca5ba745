"""Workers: make attempts, as many at once as may be, and each again when it is due.

    add --> ready --> a worker: one attempt --> settled, or add_later
                      ^ as the congestion control lets it

A wait for a retry holds no worker. While the subscriber is away (`congestion`) only events that
probe it get attempts; those bound for the dead letter sink or topic go on, as they ask somebody
else. A reply's own retries ask somebody else, too, and take nothing of the subscriber's rate; but
while so many of them fail that events wait, only the probes' replies are tried again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from knafka.core.delivery import Done, Retry
from knafka.core.progress import SUBSCRIBER
from knafka.dispatcher.congestion import PROBES, CongestionControl
from knafka.dispatcher.pace import Pace
from knafka.dispatcher.pending import Partition, PendingEvent
from knafka.dispatcher.rate import AttemptRate
from knafka.dispatcher.reserve import SHARE, Reserve
from knafka.dispatcher.sender import Sender

READY_ENOUGH: Final = 500
"""Events that may go at once and wait for a worker only: while there are more, none are read. What
is held beyond them waits behind its own key, and reading on is what lets other keys go first."""

SHORTEST_TIMER: Final = 0.001
"""Seconds: uvloop takes a shorter one for none at all."""


class Workers:
    """The attempts of one drain; `now` gives Unix time, all other times are the event loop's."""

    def __init__(
        self,
        sender: Sender,
        settle: Callable[[PendingEvent], None],
        congestion: CongestionControl,
        limit: int,
        now: Callable[[], float],
        pace: Pace | None = None,
        reserve: Reserve | None = None,
    ) -> None:
        self.crash: BaseException | None = None
        """What ended a worker: a bug of ours, as what an attempt raises is caught."""
        self.on_crash: Callable[[], None] = lambda: None
        self.moved = asyncio.Event()
        """An attempt has ended."""
        self._sender = sender
        self._settle = settle
        self._congestion = congestion
        self._limit = limit
        self._now = now
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._ready: deque[PendingEvent] = deque()
        self._retries: deque[PendingEvent] = deque()
        """Due while only probes may go."""
        self._probes: set[PendingEvent] = set()
        self._probes_due: deque[PendingEvent] = deque()
        self._elsewhere: deque[PendingEvent] = deque()
        """Due, and not bound for the subscriber: dead letters, and replies that were not taken."""
        self._under_way: dict[PendingEvent, None] = {}
        """Events that have an attempt at the subscriber, in the order in which they began."""
        self._reserve = reserve
        self._stopping = False
        self._capacity: asyncio.Future[None] | None = None
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._rate_timer: asyncio.TimerHandle | None = None

    def add(self, event: PendingEvent) -> None:
        """It may go at once."""
        if event.stage is not SUBSCRIBER:
            self._elsewhere.append(event)
        elif not self._congestion.is_open:
            (self._ready if event.reply is None else self._elsewhere).append(event)
        elif event.is_probe:
            self._probes_due.append(event)
        else:
            has_begun = event.attempts or event in event.partition.retrying
            (self._retries if has_begun else self._ready).append(event)
        self._wake()

    def add_later(self, event: PendingEvent, seconds: float) -> None:
        """It may go in so many seconds, unless its partition goes before."""
        partition = event.partition
        event.due = self._now() + seconds
        if not partition.open:
            return  # not settled, so the next drain reads it again
        if seconds <= 0:
            self.add(event)
            return

        def add() -> None:
            partition.backoffs.discard(timer)
            self.add(event)

        timer = self._loop.call_later(seconds, add)
        partition.backoffs.add(timer)

    def stop(self) -> None:
        """Begin no more attempts, until `go_on`."""
        self._stopping = True
        self.moved.set()
        self._give_capacity()

    def go_on(self) -> None:
        self._stopping = False
        for _ in range(self._limit):
            self._wake()

    @property
    def is_stopping(self) -> bool:
        """Whether no attempt may begin."""
        return self._stopping

    @property
    def under_way(self) -> frozenset[PendingEvent]:
        """Events that have an attempt at the subscriber right now."""
        return frozenset(self._under_way)

    async def close(self) -> None:
        """Abandon the attempts that are under way."""
        self.stop()
        for timer in (self._timer, self._rate_timer):
            if timer is not None:
                timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def may_begin(self) -> bool:
        """Whether the rate limit, if there is one, lets an attempt begin."""
        rate = self._congestion.rate
        return rate is None or rate.is_open

    @property
    def has_waiting(self) -> bool:
        """Whether events wait for a worker, or for what lets them begin."""
        return bool(self._ready or self._retries or self._probes_due)

    @property
    def has_capacity(self) -> bool:
        return len(self._ready) <= READY_ENOUGH

    async def wait_for_capacity(self, timeout: float) -> None:
        """Until fewer events wait for a worker only, or `timeout` seconds have passed."""
        if self.has_capacity or self._stopping:
            return
        self._capacity = self._loop.create_future()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._capacity
        self._capacity = None

    def _give_capacity(self) -> None:
        if self._capacity is not None and not self._capacity.done():
            self._capacity.set_result(None)

    def _wake(self) -> None:
        if self._idle:
            self._idle.pop().set_result(None)
        elif len(self._tasks) < self._limit:
            task = asyncio.create_task(self._work())
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A worker ends by being cancelled; anything else is a bug, and ends the drain aloud."""
        if not task.cancelled():
            self.crash = task.exception()
            self.on_crash()

    async def _work(self) -> None:
        """One attempt after another."""
        congestion, under_way, pace = self._congestion, self._under_way, self._pace
        while True:
            if pace is not None:
                await pace.take()
            while (event := self._next()) is None:
                waiter = self._loop.create_future()
                self._idle.append(waiter)
                await waiter
            partition = event.partition
            if not partition.open:
                continue
            partition.in_flight += 1
            if event.stage is SUBSCRIBER:
                under_way[event] = None
                if congestion.rate is not None and event.reply is None:
                    congestion.rate.begin(self._loop.time())
                    self._wait_for_rate(congestion.rate)
            try:
                decision = await self._sender.attempt(event)
            except Exception as error:  # it concerns this event, and the others go on
                decision = self._sender.give_up(event, error)
            finally:
                partition.in_flight -= 1
                under_way.pop(event, None)
            if isinstance(decision, Done) and not partition.retrying:
                self._settle(event)
            else:
                self._go_on(event, decision)
            self.moved.set()
            if not congestion.is_calm:
                self._adapt()

    def _go_on(self, event: PendingEvent, decision: Done | Retry) -> None:
        partition = event.partition
        if isinstance(decision, Done):
            self._probes.discard(event)
            partition.retrying.discard(event)
            self.release(partition)
            self._settle(event)
            return
        partition.retrying.add(event)
        if event.stage is not SUBSCRIBER:
            self._probes.discard(event)
        elif self._congestion.is_open and not event.is_probe and len(self._probes) < PROBES:
            self._begin_probe(event)
        self.add_later(event, decision.after)

    def release(self, partition: Partition) -> None:
        """Let its events go that were held back, if there is room for them now."""
        if partition.held_back and partition.may_begin:
            held_back, partition.held_back = partition.held_back, []
            self._ready.extendleft(reversed(held_back))
            for _ in held_back:
                self._wake()

    # Which event is next

    def _next(self) -> PendingEvent | None:
        if self._stopping:
            return None
        if self._elsewhere:
            return self._elsewhere.popleft()
        congestion, ready = self._congestion, self._ready
        if congestion.rate is not None and not congestion.rate.is_open:
            return None
        if congestion.is_open:
            return self._next_probe()
        under_way, limit = len(self._under_way), congestion.limit
        if under_way >= limit or (congestion.paused_until and self._is_paused()):
            return None
        if under_way * SHARE >= limit * (SHARE - 1) and ready and self._is_reserved(limit):
            return None
        while ready:
            event = ready.popleft()
            if self._capacity is not None and len(ready) <= READY_ENOUGH:
                self._give_capacity()
            partition = event.partition
            if event.attempts or not partition.retrying or partition.may_begin:
                return event
            if event in partition.retrying:  # there was no token for its first attempt
                return event
            partition.held_back.append(event)
        return None

    def _is_reserved(self, limit: int) -> bool:
        """Whether the places that are left have to last: slow attempts hold most of them."""
        if self._reserve is None:
            return False
        now = self._now()
        if self._reserve.is_free(next(iter(self._under_way)).last_attempt, now):
            return False
        began = (each.last_attempt for each in self._under_way)
        pause = self._reserve.pause(began, limit, now)
        if pause:
            self._wake_later(self._loop.time() + max(pause, SHORTEST_TIMER))
        return pause > 0

    def _wait_for_rate(self, rate: AttemptRate) -> None:
        """Have another attempt begin once it may."""
        if left := rate.wait(self._loop.time()):
            after = max(left, SHORTEST_TIMER)
            self._rate_timer = self._loop.call_later(after, self._wait_for_rate, rate)
            return
        self.moved.set()
        self._wake()

    def _next_probe(self) -> PendingEvent | None:
        if self._is_paused():
            return None
        if self._probes_due:
            return self._probes_due.popleft()
        for waiting in (self._retries, self._ready):
            while waiting and not waiting[0].partition.open:
                waiting.popleft()
        waiting = self._retries or self._ready
        if not waiting:
            return None
        self._probes = {each for each in self._probes if each.partition.open}
        at = self._congestion.next_probe_at(len(self._probes))
        if at > self._loop.time():
            self._wake_later(at)
            return None
        event = waiting.popleft()
        self._begin_probe(event)
        return event

    def _begin_probe(self, event: PendingEvent) -> None:
        event.is_probe = True
        self._probes.add(event)
        self._congestion.probe(self._loop.time())

    def _is_paused(self) -> bool:
        until = self._congestion.paused_until
        if until <= self._loop.time():
            return False
        self._wake_later(until)
        return True

    def _adapt(self) -> None:
        """The congestion control may have changed its mind: begin what it lets begin."""
        if not self._congestion.is_open and (self._probes or self._retries):
            for event in self._probes:
                event.is_probe = False
            self._probes.clear()
            for waiting in (self._retries, self._probes_due):
                self._ready.extendleft(reversed(waiting))
                waiting.clear()
        for _ in range(min(len(self._ready), self._congestion.limit - len(self._under_way))):
            self._wake()

    def _wake_later(self, at: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._wake_now)

    def _wake_now(self) -> None:
        self._timer = None
        self._adapt()
        self._wake()
