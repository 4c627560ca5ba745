"""Work queue: decides when each object is reconciled, and how long a failing one waits.

    enqueue -> due -> (a place is free) -> reconcile -> float     due again after that many seconds
                                                     -> BACK_OFF  due after 1 s, 2 s, 4 s .. 300 s
                                                     -> GONE      forgotten
                                                     -> an error  logged, then as BACK_OFF

`enqueue` reports that the object, or something that it depends on, has changed: it is due at once,
and its failures are forgotten. An object is never reconciled twice at a time; a burst of changes
causes one reconciliation.

A slow or failing object doesn't delay others: namespaces take turns, and a reconciliation that
lasts longer than a quarter of a second frees its place, as it then only waits (mostly for a Kafka
that is away).

Not here: reconciling an object (`engine.controller`).
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from knafka.core.errors import KnafkaError
from knafka_operator.model.identity import Key

log = logging.getLogger(__name__)


class Verdict(enum.Enum):
    """What follows a reconciliation, unless that is a number of seconds."""

    BACK_OFF = enum.auto()
    """Reconcile again, after a delay that grows with each failure."""
    GONE = enum.auto()
    """Forget the object: there is nothing to reconcile any more."""


BACK_OFF: Final = Verdict.BACK_OFF
GONE: Final = Verdict.GONE

Requeue: TypeAlias = float | Literal[Verdict.BACK_OFF, Verdict.GONE]
"""What follows a reconciliation: seconds until the next, or a verdict."""
Reconcile: TypeAlias = Callable[[Key], Awaitable[Requeue]]
"""Reconciles the object of a key; an error counts as `BACK_OFF`."""

RECONCILE_SPACING: Final = 0.05
"""Seconds between two reconciliations of one object, however often it is enqueued."""
FIRST_BACK_OFF: Final = 1.0
MAX_BACK_OFF: Final = 300.0
"""Seconds before a failed reconciliation is retried: the first delay, doubled each time up to the
maximum."""
JITTER: Final = 0.1
"""Fraction by which a back-off is randomly shorter or longer, so that objects that failed together
aren't retried together."""
PLACES: Final = 16
"""Most concurrent reconciliations, not counting those that have lasted longer than
`LONG_RECONCILE`."""
LONG_RECONCILE: Final = 0.25
"""Seconds after which a reconciliation frees its place."""


@dataclass(eq=False, slots=True)
class _Item:
    """An object in the queue, with its failures and when it may be reconciled."""

    key: Key
    failures: int = 0
    """Failures in a row since the object was last enqueued or reconciled successfully."""
    is_due: bool = False
    """Whether the object is in the queue of its namespace."""
    running: bool = False
    """Whether the object is being reconciled."""
    changed: bool = False
    """Whether the object was enqueued while it was being reconciled."""
    not_before: float = 0.0
    """The earliest time of the object's next reconciliation, by the event loop's clock."""
    timer: asyncio.TimerHandle | None = None
    """Makes the item due later; None: it is due or running."""


def back_off_seconds(failures: int) -> float:
    """Return the seconds to wait after `failures` (at least 1) in a row, without jitter: 1, 2, 4, …
    300."""
    # The exponent is limited as well: a huge power would overflow.
    return min(FIRST_BACK_OFF * 2.0 ** min(failures - 1, 16), MAX_BACK_OFF)


class WorkQueue:
    """A queue of objects to reconcile; belongs to one event loop. Objects may be enqueued before
    `run` starts."""

    def __init__(self, places: int = PLACES) -> None:
        """`places` is the number of reconciliations that run at a time."""
        self._places = asyncio.Semaphore(places)
        self._items: dict[Key, _Item] = {}
        """All objects in the queue: due, waiting for their time, or being reconciled."""
        self._due: dict[str, deque[_Item]] = {}
        """Due objects by namespace; namespaces take turns."""
        self._turns: deque[str] = deque()
        """Namespaces with due objects, the one whose turn is next first."""
        self._any_due = asyncio.Event()
        """Set when an object becomes due."""

    def enqueue(self, key: Key) -> None:
        """Make an object due now, or after its present reconciliation, and forget its failures."""
        item = self._items.get(key)
        if item is None:
            item = self._items[key] = _Item(key)
        item.failures = 0
        if item.running:
            item.changed = True
        else:
            self._schedule_soon(item)

    def retry_failed(self) -> None:
        """Make all objects that back off due now, as the cause of their failure may be gone."""
        for item in list(self._items.values()):
            if item.failures:
                self.enqueue(item.key)

    def __len__(self) -> int:
        """Return the number of objects in the queue, due or not."""
        return len(self._items)

    @property
    def failing(self) -> int:
        """Number of objects that back off after failures."""
        return sum(item.failures > 0 for item in self._items.values())

    @property
    def is_busy(self) -> bool:
        """Whether an object is due, or being reconciled; objects that wait don't count."""
        return bool(self._due) or any(item.running for item in self._items.values())

    async def run(self, reconcile: Reconcile) -> None:
        """Reconcile due objects until cancelled; cancellation also cancels running
        reconciliations."""
        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                await self._places.acquire()
                place = _Place(self._places)
                try:
                    item = await self._next_due()
                except BaseException:  # cancelled before an object took the place
                    place.leave()
                    raise
                task = asyncio.create_task(self._reconcile(item, reconcile, place))
                running.add(task)
                task.add_done_callback(running.discard)
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)

    async def _next_due(self) -> _Item:
        """Wait for the next due item and mark it as running; namespaces take turns."""
        while not self._turns:
            self._any_due.clear()
            await self._any_due.wait()
        namespace = self._turns.popleft()
        due = self._due[namespace]
        item = due.popleft()
        if due:
            self._turns.append(namespace)
        else:
            del self._due[namespace]
        item.is_due, item.running = False, True
        return item

    async def _reconcile(self, item: _Item, reconcile: Reconcile, place: _Place) -> None:
        """Reconcile an item, log any error, and schedule the item again by the result. A
        reconciliation longer than `LONG_RECONCILE` seconds gives up its place before it ends."""
        loop = asyncio.get_running_loop()
        place_timer = loop.call_later(LONG_RECONCILE, place.leave)
        verdict: float | Verdict = BACK_OFF
        try:
            verdict = await reconcile(item.key)
        except KnafkaError as error:
            log.warning("%s: %s", " ".join(item.key), error)
        except Exception:  # a bug: it must not stop other objects
            log.exception("%s", " ".join(item.key))
        finally:
            place_timer.cancel()
            place.leave()
            item.running = False
            item.not_before = loop.time() + RECONCILE_SPACING
            self._schedule_after_reconcile(item, verdict)

    def _schedule_after_reconcile(self, item: _Item, verdict: float | Verdict) -> None:
        """Schedule the item again: soon if it was enqueued meanwhile, else by the verdict, which is
        seconds, `GONE` (then the item is dropped) or `BACK_OFF`."""
        if item.changed:
            item.changed = False
            self._schedule_soon(item)
        elif verdict is GONE:
            del self._items[item.key]
        elif verdict is BACK_OFF:
            item.failures += 1
            pause = back_off_seconds(item.failures) * random.uniform(1 - JITTER, 1 + JITTER)
            self._schedule_later(item, pause)
        elif not isinstance(verdict, Verdict):  # seconds; asked only for the type checker
            item.failures = 0
            self._schedule_later(item, verdict)

    def _schedule_soon(self, item: _Item) -> None:
        """Make an item due now or, if it was just reconciled, `RECONCILE_SPACING` seconds after the
        end of that reconciliation."""
        seconds_left = item.not_before - asyncio.get_running_loop().time()
        if seconds_left > 0:
            self._schedule_later(item, seconds_left)
        else:
            self._make_due(item)

    def _schedule_later(self, item: _Item, seconds: float) -> None:
        """Make the item due after these seconds, in place of the time set before."""
        if item.timer is not None:
            item.timer.cancel()
        loop = asyncio.get_running_loop()
        item.timer = loop.call_later(seconds, self._make_due, item)

    def _make_due(self, item: _Item) -> None:
        """Append the item to its namespace's queue, unless it is queued already, and wake `run`."""
        if item.timer is not None:
            item.timer.cancel()
            item.timer = None
        if item.is_due:
            return
        item.is_due = True
        namespace = item.key[1]
        if namespace not in self._due:
            self._due[namespace] = deque()
            self._turns.append(namespace)
        self._due[namespace].append(item)
        self._any_due.set()


class _Place:
    """One of the queue's places, released at most once."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        """`places` has been acquired for this place."""
        self._places: asyncio.Semaphore | None = places
        """None: the place was released."""

    def leave(self) -> None:
        """Release the place, unless it was released before."""
        if self._places is not None:
            self._places.release()
            self._places = None
