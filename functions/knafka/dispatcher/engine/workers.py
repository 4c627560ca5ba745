"""Workers: make attempts, as many at once as allowed, and repeat them when they are due.

    An added event is ready. A worker makes one attempt for it when the congestion control allows;
    then the event is settled, or added again later.

An event that waits for its retry holds no worker. While the subscriber is away (`congestion`) only
probes get attempts. Events bound for the dead letter sink or topic go on, as they go to another
server. So do replies whose delivery is tried again; they don't count against the subscriber's rate
either. One exception: if it is replies that failed, so that only probes are sent, only the replies
of probes are tried again.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from knafka.core.delivery import Done, Retry
from knafka.core.progress import SUBSCRIBER
from knafka.dispatcher.engine.congestion import PROBES, CongestionControl
from knafka.dispatcher.engine.pending import AssignedPartition, PendingEvent
from knafka.dispatcher.engine.rate import AttemptRate
from knafka.dispatcher.engine.reserve import RESERVE_SHARE, Reserve
from knafka.dispatcher.engine.sending.sender import Sender
from knafka.dispatcher.engine.turn_limit import TurnLimit

MAX_READY_FOR_READING: Final = 500
"""No records are read while more events than this are ready for a worker. Events that wait for an
earlier one of their key don't count: reading on lets other keys overtake them."""

SHORTEST_TIMER: Final = 0.001
"""Seconds of the shortest timer: uvloop treats a shorter one as zero, and asyncio's fire early by
the clock's resolution. Such a timer would be started again and again until its time has come."""


class Workers:
    """Makes the attempts of one drain; `now` returns Unix time, all other times are the event
    loop's."""

    def __init__(
        self,
        sender: Sender,
        congestion: CongestionControl,
        limit: int,
        now: Callable[[], float],
        turn_limit: TurnLimit | None = None,
        reserve: Reserve | None = None,
    ) -> None:
        """Create the queues; workers start as events are added, at most `limit` at once.
        `turn_limit` and `reserve` delay attempts; None: without such a delay."""
        self.crash: BaseException | None = None
        """The error that ended one of the drain's tasks, a bug of ours; None: there was none."""
        self.on_crash: Callable[[], None] = lambda: None
        """Called when `crash` is set."""
        self.on_settled_while_paused: Callable[[], None] = lambda: None
        """Called after an event of a paused partition is settled."""
        self.changed = asyncio.Event()
        """Set when an attempt has ended, when a rate limit opens, and by `stop`."""
        self.settled_at = -math.inf
        """When an event was last settled, on the event loop's clock."""
        self._sender = sender
        self._congestion = congestion
        self._limit = limit
        self._now = now
        self._turn_limit = turn_limit
        self._loop = asyncio.get_running_loop()
        self._ready: deque[PendingEvent] = deque()  # events for the subscriber that may be sent
        self._retries: deque[PendingEvent] = deque()
        """Events due for a retry while only probes may be sent."""
        self._probes: set[PendingEvent] = set()
        """Unsettled events that probe a subscriber that is away."""
        self._probes_due: deque[PendingEvent] = deque()
        """Probes whose next attempt is due."""
        self._not_for_subscriber: deque[PendingEvent] = deque()
        """Events that are due for another address: dead letters, and replies tried again."""
        self._under_way: dict[PendingEvent, None] = {}
        """Events with an attempt at the subscriber under way, in the order in which the attempts
        began."""
        self._reserve = reserve
        self._stopping = False
        self._capacity: asyncio.Future[None] | None = None  # the wait of `wait_for_capacity`
        self._idle_workers: list[asyncio.Future[None]] = []  # each wakes one idle worker
        self._tasks: list[asyncio.Task[None]] = []  # one for each worker
        self._timer: asyncio.TimerHandle | None = None  # the timer of `_wake_later`
        self._rate_timer: asyncio.TimerHandle | None = None  # the timer of `_wait_for_rate`

    def add(self, event: PendingEvent) -> None:
        """Queue an event, the first of its lane, whose attempt is due, and wake a worker. While
        only probes are sent, probes and retries have queues of their own."""
        if event.stage is not SUBSCRIBER:
            queue = self._not_for_subscriber
        elif not self._congestion.is_open:
            queue = self._ready if event.reply is None else self._not_for_subscriber
        elif event.is_probe:
            queue = self._probes_due
        else:
            has_begun = event.attempts or event in event.partition.retrying
            queue = self._retries if has_begun else self._ready
        queue.append(event)
        self._wake_worker()

    def add_later(self, event: PendingEvent, seconds: float) -> None:
        """Queue an event (`add`) after `seconds`, unless its partition is closed now or by then."""
        partition = event.partition
        event.due = self._now() + seconds
        if not partition.open:
            return  # not settled, so the next drain reads it again
        if seconds <= 0:
            self.add(event)
            return

        def add_now() -> None:
            """Forget the timer, which has fired, and queue the event."""
            partition.backoffs.discard(timer)
            self.add(event)

        timer = self._loop.call_later(seconds, add_now)
        partition.backoffs.add(timer)

    def stop(self) -> None:
        """Begin no attempts from now on, until `resume`."""
        self._stopping = True
        self.changed.set()
        self._signal_capacity()

    def resume(self) -> None:
        """Begin attempts again after `stop`: wake or start all workers."""
        self._stopping = False
        for _ in range(self._limit):
            self._wake_worker()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called, so that no attempt may begin."""
        return self._stopping

    @property
    def under_way(self) -> frozenset[PendingEvent]:
        """The events that have an attempt at the subscriber right now."""
        return frozenset(self._under_way)

    async def close(self) -> None:
        """Stop, and cancel the attempts that are under way."""
        self.stop()
        for timer in (self._timer, self._rate_timer):
            if timer is not None:
                timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def is_rate_open(self) -> bool:
        """Whether the rate limit lets an attempt begin now; True without a rate limit."""
        rate = self._congestion.rate
        return rate is None or rate.is_open

    @property
    def has_waiting(self) -> bool:
        """Whether any event waits to be sent to the subscriber."""
        return bool(self._ready or self._retries or self._probes_due)

    @property
    def _has_queued(self) -> bool:
        """Whether any event is queued, whether or not its attempt may begin now."""
        return bool(self._ready or self._not_for_subscriber or self._retries or self._probes_due)

    @property
    def has_capacity(self) -> bool:
        """Whether more records may be read: few enough ready events wait for a worker."""
        return len(self._ready) <= MAX_READY_FOR_READING

    async def wait_for_capacity(self, timeout: float) -> None:
        """Wait until `has_capacity` is True or `stop` is called, at most `timeout` seconds."""
        if self.has_capacity or self._stopping:
            return
        self._capacity = self._loop.create_future()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._capacity
        self._capacity = None

    def _signal_capacity(self) -> None:
        """Wake the call that waits in `wait_for_capacity`, if there is one."""
        if self._capacity is not None and not self._capacity.done():
            self._capacity.set_result(None)

    def _wake_worker(self) -> None:
        """Wake an idle worker, or start another one if there are fewer than `limit`."""
        if self._idle_workers:
            self._idle_workers.pop().set_result(None)
        elif len(self._tasks) < self._limit:
            task = asyncio.create_task(self._work())
            task.add_done_callback(self.crash_with)
            self._tasks.append(task)

    def crash_with(self, task: asyncio.Task[None]) -> None:
        """End the drain if one of its tasks ended otherwise than by cancellation: a bug."""
        if not task.cancelled():
            self.crash = task.exception()
            self.on_crash()

    async def _work(self) -> None:
        """Run one worker until it is cancelled: take the next event that may be sent, make one
        attempt, and settle the event or queue it again."""
        congestion, under_way, turn_limit = self._congestion, self._under_way, self._turn_limit
        while True:
            # Take a turn only if something is queued: with many Egresses that get single events,
            # each idle worker's turn would cost one callback of the event loop.
            if turn_limit is not None and self._has_queued:
                await turn_limit.wait_for_turn()
            while (event := self._take_next_event()) is None:
                waiter = self._loop.create_future()
                self._idle_workers.append(waiter)
                await waiter
            partition = event.partition
            if not partition.open:
                continue
            partition.in_flight += 1
            if event.stage is SUBSCRIBER:
                under_way[event] = None
                if congestion.rate is not None and event.reply is None:
                    congestion.rate.count_attempt(self._loop.time())
                    self._wait_for_rate(congestion.rate)
            try:
                decision = await self._sender.attempt(event)
            except Exception as error:  # only this event fails; the others go on
                decision = self._sender.give_up(event, error)
            finally:
                partition.in_flight -= 1
                under_way.pop(event, None)
            if isinstance(decision, Done) and not partition.retrying:  # usual: no retry to forget
                self._settle(event)
            else:
                self._settle_or_retry(event, decision)
            self.changed.set()
            # If it is calm but retries or probes are left, the congestion has ended just now.
            if not congestion.is_calm or self._retries or self._probes:
                self._wake_allowed_workers()

    def _settle(self, event: PendingEvent) -> None:
        """Settle an event: advance the offsets, and let the next event of its lane go."""
        self.settled_at = self._loop.time()
        partition = event.partition
        partition.tracker.settle(event.offset)
        partition.held_bytes -= event.size
        next_event = partition.lanes.release(event.lane)
        if next_event is not None:
            self.add(next_event)
        if partition.paused:
            self.on_settled_while_paused()

    def _settle_or_retry(self, event: PendingEvent, decision: Done | Retry) -> None:
        """Settle the event if `decision` is `Done`, else queue its next attempt. Updates the
        partition's `retrying` events and the set of probes."""
        partition = event.partition
        if isinstance(decision, Done):
            self._probes.discard(event)
            partition.retrying.discard(event)
            self.queue_held_back(partition)
            self._settle(event)
            return
        partition.retrying.add(event)
        if event.stage is not SUBSCRIBER:
            self._probes.discard(event)
        elif self._congestion.is_open and not event.is_probe and len(self._probes) < PROBES:
            self._begin_probe(event)
        self.add_later(event, decision.after)

    def queue_held_back(self, partition: AssignedPartition) -> None:
        """Queue the partition's held-back events again if the commit metadata has room for one."""
        if partition.held_back and partition.may_begin:
            held_back, partition.held_back = partition.held_back, []
            self._ready.extendleft(reversed(held_back))
            for _ in held_back:
                self._wake_worker()

    # Choosing the next event

    def _take_next_event(self) -> PendingEvent | None:
        """Remove and return the event that gets the next attempt; None: none may begin now."""
        if self._stopping:
            return None
        if self._not_for_subscriber:
            return self._not_for_subscriber.popleft()
        congestion, ready = self._congestion, self._ready
        if congestion.rate is not None and not congestion.rate.is_open:
            return None
        if congestion.is_open:
            return self._take_next_probe()
        under_way, limit = len(self._under_way), congestion.limit
        if under_way >= limit or (congestion.paused_until and self._wait_for_retry_after()):
            return None
        is_in_reserve = under_way * RESERVE_SHARE >= limit * (RESERVE_SHARE - 1)
        if is_in_reserve and ready and self._wait_for_reserve(limit):
            return None
        while ready:
            event = ready.popleft()
            if self._capacity is not None and len(ready) <= MAX_READY_FOR_READING:
                self._signal_capacity()
            partition = event.partition
            if event.attempts or not partition.retrying or partition.may_begin:
                return event
            # The commit metadata has its state already: there was no token for its first attempt.
            if event in partition.retrying:
                return event
            partition.held_back.append(event)  # the commit metadata has no room for its state
        return None

    def _wait_for_reserve(self, limit: int) -> bool:
        """If the next attempt must wait because slow attempts hold most of the `limit` places
        (`reserve`), plan to wake a worker later, and return True; else return False."""
        if self._reserve is None:
            return False
        now = self._now()
        oldest_event = next(iter(self._under_way))
        if self._reserve.may_begin_unchecked(oldest_event.last_attempt, now):
            return False
        began_times = (event.last_attempt for event in self._under_way)
        delay = self._reserve.delay_before_attempt(began_times, limit, now)
        if delay:
            self._wake_later(self._loop.time() + delay)
        return delay > 0

    def _wait_for_rate(self, rate: AttemptRate) -> None:
        """Wake a worker as soon as the rate limit lets the next attempt begin."""
        if seconds_left := rate.refresh(self._loop.time()):
            delay = max(seconds_left, SHORTEST_TIMER)
            self._rate_timer = self._loop.call_later(delay, self._wait_for_rate, rate)
            return
        self.changed.set()
        self._wake_worker()

    def _take_next_probe(self) -> PendingEvent | None:
        """Remove and return the event that probes next while the subscriber is away; None: none is
        due."""
        if self._wait_for_retry_after():
            return None
        if self._probes_due:
            return self._probes_due.popleft()
        for queue in (self._retries, self._ready):  # drop events of closed partitions
            while queue and not queue[0].partition.open:
                queue.popleft()
        queue = self._retries or self._ready  # an event that was sent already probes first
        if not queue:
            return None
        self._probes = {probe for probe in self._probes if probe.partition.open}
        probe_at = self._congestion.next_probe_at(len(self._probes))
        if probe_at > self._loop.time():
            self._wake_later(probe_at)
            return None
        event = queue.popleft()
        self._begin_probe(event)
        return event

    def _begin_probe(self, event: PendingEvent) -> None:
        """Mark an event as a probe, and record that a probe begins now."""
        event.is_probe = True
        self._probes.add(event)
        self._congestion.record_probe(self._loop.time())

    def _wait_for_retry_after(self) -> bool:
        """If a Retry-After of the subscriber forbids attempts now, plan to wake a worker when it is
        over, and return True; else return False."""
        if (paused_until := self._congestion.paused_until) <= self._loop.time():
            return False
        self._wake_later(paused_until)
        return True

    def _wake_allowed_workers(self) -> None:
        """Wake as many workers as the congestion control allows attempts now. Once the subscriber
        answers again, no event is a probe any more, and the retries that waited are ready."""
        if not self._congestion.is_open and (self._probes or self._retries):
            for event in self._probes:
                event.is_probe = False
            self._probes.clear()
            for queue in (self._retries, self._probes_due):
                self._ready.extendleft(reversed(queue))
                queue.clear()
        for _ in range(min(len(self._ready), self._congestion.limit - len(self._under_way))):
            self._wake_worker()

    def _wake_later(self, wake_at: float) -> None:
        """Wake a worker at `wake_at` (event loop's clock), unless one will be woken earlier."""
        wake_at = max(wake_at, self._loop.time() + SHORTEST_TIMER)
        if self._timer is not None:
            if self._timer.when() <= wake_at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(wake_at, self._wake_now)

    def _wake_now(self) -> None:
        """Wake workers for the attempts that are allowed now, as `_wake_later` has planned."""
        self._timer = None
        self._wake_allowed_workers()
        self._wake_worker()
