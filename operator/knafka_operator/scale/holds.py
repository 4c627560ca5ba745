"""Holds: keeps open the drain requests of one unit.

    open (one drain after another, with pauses) --stop--> ending --> ended

A unit is what has processes of its own: a Trigger, a shard (of many Triggers), or a Sensor. In a
drain, one of its processes joins the consumer group, delivers, and leaves; a drain ends by itself
when it has been idle. Consecutive requests hold it and share its budget; a drain that is not needed
any more is ended when its budget is nearly spent.

Not here: the number of holds (`lag_checks`), what progress means (`scaled_*`), HTTP (`drains`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import aiohttp

from knafka.core.drain import DrainProgress, DrainRequest, Ended, ShardProgress
from knafka_operator.scale.decide import Cause
from knafka_operator.scale.http_sessions import describe_request_error

FIRST_BUDGET: Final = 25.0
"""Most seconds of a drain's first request: below a Service's timeoutSeconds, which is also its
pods' grace period (`services.TIMEOUT_SECONDS`), by enough time to start a pod."""
REQUEST_BUDGET: Final = 60.0
"""Most seconds of each further request, which a running pod answers."""
REQUEST_BUDGETS: Final = (FIRST_BUDGET, REQUEST_BUDGET)
STOP_DECISION_SECONDS: Final = 5.0
"""Seconds before a budget's end at which the holder decides whether the drain is still needed."""
DRAIN_STOP_TIMEOUT: Final = 15.0
"""Seconds for a drain to end after its stop; then its request is cancelled."""
UNHELD_END_SECONDS: Final = 8.0
"""Seconds within which a drain without a request of ours ends after its Service got a new Revision:
3 until its dispatcher's own request is refused, 2 for attempts under way (`draining.lease`), and 3
to spare."""
HOLD_GRACE_PERIOD: Final = 60.0
"""Seconds past its budget after which a request is cancelled: for a cold start and a slow end."""
MIN_BACKOFF: Final = 0.5
MAX_HOLD_BACKOFF: Final = 10.0
"""Seconds between a failed drain and the next: the minimum, doubled each time up to the maximum
(0.5, 1, 2, 4, 8, 10), so that a subscriber's recovery is noticed soon."""

Hold: TypeAlias = asyncio.Task[None]
"""A task that holds one drain after another, with a pause after each failure."""
Line = TypeVar("Line", DrainProgress, ShardProgress)
Reported = TypeVar("Reported", DrainProgress, ShardProgress, contravariant=True)
SendRequest: TypeAlias = Callable[[DrainRequest, asyncio.Event], AsyncIterator[Line]]
"""Sends one request; yields the dispatcher's progress. Setting the event ends the drain."""


class Slots:
    """Assigns each drain request of a Sensor a slot, a number that no other request has.

        assigned --the request ends--> free

    A drain's transactional id contains its slot, so a drain that begins in a slot aborts the
    transaction that its predecessor left open, and fences a predecessor that still runs. If a drain
    is killed, its request keeps the slot for the next drain. A request may reach a process whose
    drain already has another slot: then the two requests swap their slots.
    """

    def __init__(self) -> None:
        self._slots: dict[Hashable, int] = {}
        """The slot of each open request."""

    def assign(self, request: Hashable, other_taken_slots: Collection[int] = ()) -> int:
        """Assign the lowest free slot to a request, and return it. `other_taken_slots` are those of
        drains without a request."""
        taken_slots = {*self._slots.values(), *other_taken_slots}
        self._slots[request] = next(slot for slot in count() if slot not in taken_slots)
        return self._slots[request]

    def slot_of(self, request: Hashable) -> int | None:
        """Return the slot of a request; None: it has none."""
        return self._slots.get(request)

    def note_slot(self, request: Hashable, slot: int) -> None:
        """Record the slot that the drain of a request reports; if another request has that slot,
        the two swap. Do nothing for a request without a slot."""
        own_slot = self._slots.get(request)
        if own_slot is None or own_slot == slot:
            return
        for other_request, other_slot in self._slots.items():
            if other_slot == slot:
                self._slots[other_request] = own_slot
        self._slots[request] = slot

    def free(self, request: Hashable) -> None:
        """Free the slot of a request that has ended."""
        self._slots.pop(request, None)


class Unit(Protocol[Reported]):
    """A Trigger, a shard or a Sensor, for which requests are held."""

    @property
    def desired_requests(self) -> int:
        """Return the number of requests that the unit needs now."""
        ...

    @property
    def floor(self) -> int:
        """Return the number of requests to hold even if their drains have no work (min-scale)."""
        ...

    @property
    def cooldown(self) -> float:
        """Return the seconds without work after which a drain ends."""
        ...

    def on_open(self, hold: Hold) -> None:
        """Handle the opening of a request."""
        ...

    def on_line(self, hold: Hold, line: Reported) -> None:
        """Handle a line of progress that the drain of this request reports."""
        ...

    def on_close(self, hold: Hold) -> None:
        """Handle the end or cancellation of a request."""
        ...

    def on_end(self, ended: Ended, last: Reported | None, error: str | None) -> None:
        """Handle the result of a request. `last` is its last line (None: there was none), `error` a
        message for users (None: no error). Not called if somebody else stopped the drain."""
        ...


class Holds(Generic[Line]):
    """Holds the requests of one unit."""

    def __init__(
        self,
        unit: Unit[Line],
        new_sender: Callable[[], SendRequest[Line]],
        budget: float,
        on_hold_ended: Callable[[], None],
        slots: Slots | None = None,
        request_budgets: tuple[float, float] = REQUEST_BUDGETS,
    ) -> None:
        """`new_sender` returns the function that sends the requests of a new hold. A drain may last
        `budget` seconds; `request_budgets` are those of its first and of each further request.
        `on_hold_ended` is called after each hold. `slots` None: drains have no slots."""
        self._first_budget, self._request_budget = request_budgets
        self._unit: Unit[Line] = unit
        self._new_sender: Callable[[], SendRequest[Line]] = new_sender
        self._budget = budget
        self._on_hold_ended = on_hold_ended
        self._slots = slots
        self._open: dict[Hold, asyncio.Event] = {}
        """Holds that aren't ending, with the event that stops each."""
        self._ending: set[Hold] = set()
        self._without_request: set[Hold] = set()
        """Holds whose drains may go on without a request: no line has said that they ended."""
        self.wakes: Counter[Cause] = Counter()
        """Times that a hold was opened while there was none, by cause."""

    def __len__(self) -> int:
        """Return the number of holds that aren't ending."""
        return len(self._open)

    @property
    def is_ending(self) -> bool:
        """Whether a stopped hold hasn't ended yet."""
        return bool(self._ending)

    @property
    def all(self) -> set[Hold]:
        """Return all holds, including ending ones."""
        return self._ending | self._open.keys()

    def open(self, cause: Cause, other_taken_slots: Collection[int] = ()) -> None:
        """Open one more hold; if it is the only one, `cause` is counted in `wakes`.
        `other_taken_slots` are the slots of drains without a request."""
        if not self.all:
            self.wakes[cause] += 1
        stop = asyncio.Event()
        hold = asyncio.create_task(self._hold(stop, self._new_sender()))
        self._open[hold] = stop
        if self._slots is not None:
            self._slots.assign(hold, other_taken_slots)

    def stop(self) -> set[Hold]:
        """Stop the drains of all holds that aren't ending yet, and return these holds. Each of them
        ends when its drain has, and is cancelled after `DRAIN_STOP_TIMEOUT` seconds."""
        stopped, self._open = self._open, {}
        self._ending |= stopped.keys()
        for hold, stop in stopped.items():
            stop.set()
            asyncio.get_running_loop().call_later(DRAIN_STOP_TIMEOUT, hold.cancel)
        return set(stopped)

    async def _hold(self, stop: asyncio.Event, send: SendRequest[Line]) -> None:
        """Hold one drain after another, with pauses. Return once `stop` is set, or when a drain has
        ended and the unit has more holds than it needs (after an idle end: than its floor)."""
        hold, loop, failures = _current_task(), asyncio.get_running_loop(), 0
        try:
            while True:
                began = loop.time()
                ended = await self._drain(hold, stop, send)
                if not stop.is_set():
                    failures, pause = _pause_after(ended, loop.time() - began, failures)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await stop.wait()
                if stop.is_set():
                    if hold in self._without_request:
                        await self._end_unheld(hold, stop, send)
                    return
                needed = self._unit.floor if ended is Ended.IDLE else self._unit.desired_requests
                if len(self._open) > needed:
                    return
        finally:
            self._open.pop(hold, None)
            self._ending.discard(hold)
            self._without_request.discard(hold)
            if self._slots is not None:
                self._slots.free(hold)
            self._on_hold_ended()

    async def _drain(self, hold: Hold, stop: asyncio.Event, send: SendRequest[Line]) -> Ended:
        """Hold one drain by consecutive requests until the drain ends, `stop` is set or its budget
        is spent; returns how the last request ended. Raises only if cancelled."""
        loop = asyncio.get_running_loop()
        budget_end = loop.time() + self._budget

        def stop_if_needless() -> None:
            """Stop the drain if more drains run than the unit needs now."""
            running = sum(not stop_event.is_set() for stop_event in self._open.values())
            if running > self._unit.desired_requests:
                stop.set()

        decision_timer = loop.call_at(budget_end - STOP_DECISION_SECONDS, stop_if_needless)
        request_limit = self._first_budget
        try:
            while True:
                began = loop.time()
                budget = min(request_limit, budget_end - began)
                ended = await self._request(hold, stop, send, budget)
                lasted = loop.time() - began
                # A process may end its request early: then the next drain comes after a pause.
                is_over = ended is not Ended.BUDGET or lasted < budget / 2
                if is_over or stop.is_set() or budget_end - loop.time() < STOP_DECISION_SECONDS:
                    return ended
                request_limit = self._request_budget
        finally:
            decision_timer.cancel()

    async def _end_unheld(self, hold: Hold, stop: asyncio.Event, send: SendRequest[Line]) -> None:
        """End a drain that has no open request, by one more request with `stop` set. Otherwise the
        drain would go on with the old contract, and skip events that only the new one accepts."""
        ended = await self._request(hold, stop, send, DRAIN_STOP_TIMEOUT, reports_failure=False)
        if ended is not Ended.STOPPED:
            # A newer Revision has answered. The old dispatcher's own request reaches that one too,
            # is refused, and its drain ends.
            await asyncio.sleep(UNHELD_END_SECONDS)

    async def _request(
        self,
        hold: Hold,
        stop: asyncio.Event,
        send: SendRequest[Line],
        budget: float,
        *,
        reports_failure: bool = True,
    ) -> Ended:
        """Send one request by `send`, and hold it for at most `budget` seconds; returns how its
        drain ended (`BUDGET`: it may go on). Raises only if cancelled. A failure is reported
        to the unit if `reports_failure` is True."""
        may_end_idle = len(self._open) > self._unit.floor
        request = DrainRequest(
            # A drain that min-scale requires doesn't end when idle: another would have to begin.
            idle=self._unit.cooldown if may_end_idle else self._budget,
            budget=budget,
            slot=None if self._slots is None else self._slots.slot_of(hold),
        )
        last: Line | None = None
        self._unit.on_open(hold)
        lines = send(request, stop)
        try:
            async with asyncio.timeout(budget + HOLD_GRACE_PERIOD):
                async for line in lines:
                    last = line
                    # Unless a later line reports an end, the drain outlives this request.
                    if line.ended in (None, Ended.BUDGET):
                        self._without_request.add(hold)
                    else:
                        self._without_request.discard(hold)
                    self._unit.on_line(hold, line)
        except Exception as error:  # any error goes to the status, and the drain is retried
            if reports_failure:
                self._unit.on_end(Ended.FAILED, last, f"the drain failed: {error_text(error)}")
            return Ended.FAILED
        finally:
            self._unit.on_close(hold)
        ended, reported_error = (None, None) if last is None else (last.ended, last.error)
        match ended:
            case Ended.IDLE | Ended.BUDGET:
                self._unit.on_end(ended, last, None)
            case Ended.STOPPED if stop.is_set():
                self._unit.on_end(ended, last, None)
            case Ended.FAILED:
                reason = reported_error or "it did not say why"
                self._unit.on_end(ended, last, f"the drain failed: {reason}")
            case None if reports_failure:
                self._unit.on_end(Ended.FAILED, last, "the drain failed: it broke off")
        return ended or Ended.FAILED


class EndingHolds:
    """Stopped holds that must end before new ones are opened, by id of the Trigger or Sensor."""

    def __init__(self, on_all_ended: Callable[[str], None]) -> None:
        """`on_all_ended` is called with an id once all holds of that id have ended."""
        self._on_all_ended = on_all_ended
        self._holds: dict[str, set[Hold]] = {}

    def __contains__(self, id_: str) -> bool:
        """Whether holds of this id are still ending."""
        return id_ in self._holds

    @property
    def all(self) -> set[Hold]:
        """Return the ending holds of all ids."""
        return set[Hold]().union(*self._holds.values())

    def end(self, id_: str, holds: Holds[Any]) -> None:
        """Stop the holds of an id, and keep them here until they have ended."""
        for hold in holds.stop():
            self._add(id_, hold)

    def delay_end(self, id_: str, wait_more: Callable[[], Awaitable[None]]) -> None:
        """Count the holds of an id as ended only once they have ended and `wait_more`, which is
        called then, has returned."""
        ending_holds = set(self._holds.get(id_, ()))
        self._add(id_, asyncio.create_task(self._end_after(ending_holds, wait_more)))

    async def _end_after(self, ending: set[Hold], wait_more: Callable[[], Awaitable[None]]) -> None:
        """Wait for the end of these holds, and then call `wait_more`."""
        if ending:
            await asyncio.wait(ending)
        await wait_more()

    def _add(self, id_: str, hold: Hold) -> None:
        """Keep a hold under an id until it has ended."""
        self._holds.setdefault(id_, set()).add(hold)
        hold.add_done_callback(partial(self._drop_hold, id_))

    async def wait_until_ended(self, id_: str) -> None:
        """Wait until the ending holds of an id have ended; returns at once if there are none."""
        if holds := self._holds.get(id_):
            await asyncio.wait(set(holds))

    def _drop_hold(self, id_: str, hold: Hold) -> None:
        """Drop a hold that has ended; after the last one of `id_`, call `on_all_ended`."""
        holds = self._holds[id_]
        holds.discard(hold)
        if not holds:
            del self._holds[id_]
            self._on_all_ended(id_)


async def cancel_holds(holds: Collection[Hold]) -> None:
    """Cancel holds, and wait for their end; their drains go on."""
    for hold in holds:
        hold.cancel()
    if holds:
        await asyncio.wait(holds)


def error_text(error: Exception) -> str:
    """Return an error's message, or its class name. The text never quotes an HTTP response."""
    if isinstance(error, aiohttp.ClientError):
        return describe_request_error(error)
    return str(error) or type(error).__name__


def _pause_after(ended: Ended, lasted: float, failures: int) -> tuple[int, float]:
    """Return the new number of failures in a row, and the seconds until the next drain. The last
    drain lasted `lasted` seconds, after `failures` failures; one that failed after a long run
    counts as the first failure."""
    if ended in (Ended.IDLE, Ended.BUDGET):
        return 0, max(0.0, MIN_BACKOFF - lasted)
    failures = failures + 1 if lasted < MAX_HOLD_BACKOFF else 1
    doublings = min(failures - 1, 16)  # more than enough for the maximum
    return failures, min(MIN_BACKOFF * 2.0**doublings, MAX_HOLD_BACKOFF)


def _current_task() -> Hold:
    """Return the running task, which must be a hold."""
    task = asyncio.current_task()
    assert task is not None
    return task
