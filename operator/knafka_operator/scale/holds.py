"""Holds: the requests to drain that are kept open for one unit, and how each is held.

    open --drain after drain, with pauses--> stop --> ending --> over

A unit is what has processes of its own: a Trigger, a shard of many, or a Sensor. A drain ends by
itself when it has been idle; one too many is ended when its budget is nearly spent, which several
requests share, one after the other.

Not here: how many there are to be (`looks`), what lines of progress mean (`scaled_groups`,
`scaled_shard`), HTTP (`drains`).
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
from knafka_operator.decide.scaling import Cause
from knafka_operator.scale.http_sessions import shown_error

FIRST_BUDGET: Final = 25.0
"""Seconds of a drain's first request, at most: so far below a Service's timeoutSeconds, which is
also its pods' grace (`services.TIMEOUT_SECONDS`), that a pod may start meanwhile."""
REQUEST_BUDGET: Final = 60.0
"""Seconds of each that continues it, which a pod takes at once."""
REQUEST_BUDGETS: Final = (FIRST_BUDGET, REQUEST_BUDGET)
STOP_DECISION_SECONDS: Final = 5.0
"""Seconds before a budget's end at which it is decided whether the drain is still wanted."""
STOP_TIMEOUT: Final = 15.0
"""Seconds for a drain that was asked to end; then its request is given up."""
UNHELD_END_SECONDS: Final = 8.0
"""Seconds until a drain is over that nobody holds and whose Service has a newer Revision: 3 until
its dispatcher asks for itself and is refused, 2 for attempts under way (`draining.lease`), and 3
more."""
GRACE: Final = 60.0
"""Seconds past its budget after which a silent drain is given up: a cold start, a slow end."""
MIN_BACKOFF: Final = 0.5
MAX_BACKOFF: Final = 10.0
"""Seconds between a drain that failed and the next: doubled each time, and short enough that a
subscriber's recovery shows soon."""

Hold: TypeAlias = asyncio.Task[None]
"""It holds one drain after another, with a pause between them when one fails."""
Line = TypeVar("Line", DrainProgress, ShardProgress)
Told = TypeVar("Told", DrainProgress, ShardProgress, contravariant=True)
Ask: TypeAlias = Callable[[DrainRequest, asyncio.Event], AsyncIterator[Line]]
"""One request: gives what the dispatcher tells; the event has the drain end."""


class Slots:
    """Numbers of a Sensor's drains, by request: no two that go on have the same.

        give --the drain says which it has--> found --it is over--> free

    A drain's slot is in its transactional id, so a drain that begins in a slot ends the transaction
    that the last one there has left open, and the last one itself if it goes on. A request keeps
    its slot for the drain that follows one which was killed. A request may reach a process whose
    drain goes on with another slot: then that counts, and whatever has it by our books gets the one
    that is left.
    """

    def __init__(self) -> None:
        self._slots: dict[Hashable, int] = {}

    def assign(self, request: Hashable, others: Collection[int] = ()) -> int:
        """The lowest that no request has, nor any of `others`: drains that go on without one."""
        taken = {*self._slots.values(), *others}
        self._slots[request] = next(each for each in count() if each not in taken)
        return self._slots[request]

    def slot_of(self, request: Hashable) -> int | None:
        return self._slots.get(request)

    def note_slot(self, request: Hashable, slot: int) -> None:
        """It is held by a drain that has this one."""
        mine = self._slots.get(request)
        if mine is None or mine == slot:
            return
        for other, each in self._slots.items():
            if each == slot:
                self._slots[other] = mine
        self._slots[request] = slot

    def free(self, request: Hashable) -> None:
        """It is over."""
        self._slots.pop(request, None)


class Unit(Protocol[Told]):
    """What requests are held for."""

    @property
    def wanted(self) -> int:
        """Requests that it needs now."""
        ...

    @property
    def floor(self) -> int:
        """Requests that it needs even when they end idle."""
        ...

    @property
    def cooldown(self) -> float:
        """Seconds without anything to do after which a drain ends."""
        ...

    def on_open(self, hold: Hold) -> None:
        """A request begins."""
        ...

    def on_line(self, hold: Hold, line: Told) -> None:
        """It tells its progress."""
        ...

    def on_close(self, hold: Hold) -> None:
        """It is over, also if nobody waits for its end any more."""
        ...

    def on_end(self, ended: Ended, last: Told | None, error: str | None) -> None:
        """How it ended after its `last` line, and what went wrong, for a person; not called if the
        dispatcher's process ended by itself."""
        ...


class Holds(Generic[Line]):
    """The requests of one unit."""

    def __init__(
        self,
        unit: Unit[Line],
        asking: Callable[[], Ask[Line]],
        budget: float,
        on_over: Callable[[], None],
        slots: Slots | None = None,
        request_budgets: tuple[float, float] = REQUEST_BUDGETS,
    ) -> None:
        """`asking` gives how one that is opened now is asked for, until it is over. `on_over` is
        called when one is held no more. `slots`: each drain has one of these."""
        self._first_budget, self._request_budget = request_budgets
        self._unit: Unit[Line] = unit
        self._asking: Callable[[], Ask[Line]] = asking
        self._budget = budget
        self._on_over = on_over
        self._slots = slots
        self._open: dict[Hold, asyncio.Event] = {}
        self._ending: set[Hold] = set()
        self._unheld: set[Hold] = set()
        """Those whose last request was over, or broke off, before its drain was."""
        self.wakes: Counter[Cause] = Counter()
        """Times that one was opened where none was, by what for."""

    def __len__(self) -> int:
        """Those that go on."""
        return len(self._open)

    @property
    def is_ending(self) -> bool:
        """Whether one that was stopped isn't over yet."""
        return bool(self._ending)

    @property
    def all(self) -> set[Hold]:
        """Those that go on and those that end."""
        return self._ending | self._open.keys()

    def open(self, cause: Cause, others: Collection[int] = ()) -> None:
        """One more; `others` are slots of drains that go on without a request."""
        if not self.all:
            self.wakes[cause] += 1
        stop = asyncio.Event()
        hold = asyncio.create_task(self._hold(stop, self._asking()))
        self._open[hold] = stop
        if self._slots is not None:
            self._slots.assign(hold, others)

    def stop(self) -> set[Hold]:
        """Begin to end all; gives those that weren't ending yet."""
        stopped, self._open = self._open, {}
        self._ending |= stopped.keys()
        for hold, stop in stopped.items():
            stop.set()
            asyncio.get_running_loop().call_later(STOP_TIMEOUT, hold.cancel)
        return set(stopped)

    async def _hold(self, stop: asyncio.Event, ask: Ask[Line]) -> None:
        """One drain after another, as long as that many are wanted."""
        hold = _current_task()
        loop = asyncio.get_running_loop()
        failures = 0
        try:
            while True:
                began = loop.time()
                ended = await self._drain(hold, stop, ask)
                if not stop.is_set():
                    lasted = loop.time() - began
                    if ended in (Ended.IDLE, Ended.BUDGET):
                        failures = 0
                        pause = max(0.0, MIN_BACKOFF - lasted)
                    else:
                        failures = failures + 1 if lasted < MAX_BACKOFF else 1
                        pause = min(MIN_BACKOFF * 2.0 ** min(failures - 1, 16), MAX_BACKOFF)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await stop.wait()
                if stop.is_set():
                    if hold in self._unheld:
                        await self._end_unheld(hold, stop, ask)
                    return
                wanted = self._unit.floor if ended is Ended.IDLE else self._unit.wanted
                if len(self._open) > wanted:
                    return
        finally:
            self._open.pop(hold, None)
            self._ending.discard(hold)
            self._unheld.discard(hold)
            if self._slots is not None:
                self._slots.free(hold)
            self._on_over()

    async def _drain(self, hold: Hold, stop: asyncio.Event, ask: Ask[Line]) -> Ended:
        """Hold one drain until it ends or its budget is spent; never raises but if cancelled."""
        loop = asyncio.get_running_loop()
        over_at = loop.time() + self._budget

        def stop_if_needless() -> None:
            going_on = sum(not each.is_set() for each in self._open.values())
            if going_on > self._unit.wanted:
                stop.set()

        deciding = loop.call_at(over_at - STOP_DECISION_SECONDS, stop_if_needless)
        longest = self._first_budget
        try:
            while True:
                began = loop.time()
                budget = min(longest, over_at - began)
                ended = await self._request(hold, stop, ask, budget)
                went_on_for = loop.time() - began
                # One that ends sooner than it was to isn't asked again in a hot loop.
                spent = ended is not Ended.BUDGET or went_on_for < budget / 2
                if spent or stop.is_set() or over_at - loop.time() < STOP_DECISION_SECONDS:
                    return ended
                longest = self._request_budget
        finally:
            deciding.cancel()

    async def _end_unheld(self, hold: Hold, stop: asyncio.Event, ask: Ask[Line]) -> None:
        """End a drain that had no request when it was to stop: it goes on, by what was before, and
        would pass over events that only what comes after it accepts."""
        ended = await self._request(hold, stop, ask, STOP_TIMEOUT, may_fail=True)
        if ended is not Ended.STOPPED:
            # A newer Revision answers by now. The dispatcher asks it, too, and ends then.
            await asyncio.sleep(UNHELD_END_SECONDS)

    async def _request(
        self,
        hold: Hold,
        stop: asyncio.Event,
        ask: Ask[Line],
        budget: float,
        *,
        may_fail: bool = False,
    ) -> Ended:
        """Hold one request until it ends; never raises but if cancelled. One that `may_fail` is no
        error to tell if it does."""
        needless = len(self._open) > self._unit.floor
        request = DrainRequest(
            # One that min-scale wants has no reason to end when idle, only to begin anew.
            idle=self._unit.cooldown if needless else self._budget,
            budget=budget,
            slot=None if self._slots is None else self._slots.slot_of(hold),
        )
        last: Line | None = None
        self._unit.on_open(hold)
        asking = ask(request, stop)
        try:
            async with asyncio.timeout(budget + GRACE):
                async for line in asking:
                    last = line
                    # Until it says that it has ended; then there is no more line.
                    if line.ended in (None, Ended.BUDGET):
                        self._unheld.add(hold)
                    else:
                        self._unheld.discard(hold)
                    self._unit.on_line(hold, line)
        except Exception as error:  # Whatever it is, the status says so and it is tried again.
            if not may_fail:
                self._unit.on_end(Ended.FAILED, last, f"the drain failed: {error_text(error)}")
            return Ended.FAILED
        finally:
            self._unit.on_close(hold)
        ended, said = (None, None) if last is None else (last.ended, last.error)
        match ended:
            case Ended.IDLE | Ended.BUDGET:
                self._unit.on_end(ended, last, None)
            case Ended.STOPPED if stop.is_set():
                self._unit.on_end(ended, last, None)
            case Ended.FAILED:
                why = said or "it did not say why"
                self._unit.on_end(ended, last, f"the drain failed: {why}")
            case None if not may_fail:
                self._unit.on_end(Ended.FAILED, last, "the drain failed: it broke off")
        return ended or Ended.FAILED


class EndingHolds:
    """Requests that were stopped, and must be over before anything is opened in their place; by id
    of the Trigger or Sensor."""

    def __init__(self, on_over: Callable[[str], None]) -> None:
        """`on_over` is called with an id once nothing of it ends any more."""
        self._on_over = on_over
        self._holds: dict[str, set[Hold]] = {}

    def __contains__(self, id_: str) -> bool:
        return id_ in self._holds

    @property
    def all(self) -> set[Hold]:
        return set[Hold]().union(*self._holds.values())

    def end(self, id_: str, holds: Holds[Any]) -> None:
        """Begin to end these."""
        for hold in holds.stop():
            self._add(id_, hold)

    def wait_for(self, id_: str, condition: Callable[[], Awaitable[None]]) -> None:
        """Have what ends now be over only once this has returned, too; it is called after them."""
        self._add(id_, asyncio.create_task(self._after(set(self._holds.get(id_, ())), condition)))

    async def _after(self, ending: set[Hold], condition: Callable[[], Awaitable[None]]) -> None:
        if ending:
            await asyncio.wait(ending)
        await condition()

    def _add(self, id_: str, hold: Hold) -> None:
        self._holds.setdefault(id_, set()).add(hold)
        hold.add_done_callback(partial(self._is_over, id_))

    async def wait(self, id_: str) -> None:
        """Until those that end now are over."""
        if holds := self._holds.get(id_):
            await asyncio.wait(set(holds))

    def _is_over(self, id_: str, hold: Hold) -> None:
        holds = self._holds[id_]
        holds.discard(hold)
        if not holds:
            del self._holds[id_]
            self._on_over(id_)


async def cancel_holds(holds: Collection[Hold]) -> None:
    """Hold these no more; the drains go on without."""
    for hold in holds:
        hold.cancel()
    if holds:
        await asyncio.wait(holds)


def error_text(error: Exception) -> str:
    """What it says, or at least what it is."""
    if isinstance(error, aiohttp.ClientError):
        return shown_error(error)
    return str(error) or type(error).__name__


def _current_task() -> Hold:
    task = asyncio.current_task()
    assert task is not None
    return task
