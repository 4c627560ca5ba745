"""Lanes: which event may be sent next.

Events of one lane go one at a time, in the order they were admitted; lanes are independent of each
other. The Trigger's order decides what a lane is: a key's events, a partition's, or (lane None) a
single event, which may go at once.

A lane exists only while one of its events is under way, and needs a queue only when another one
waits behind it: a topic of a million keys needs only as many lanes as keys are in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeAlias, TypeVar

from knafka.core.contract import Order

Lane: TypeAlias = bytes | None
"""A record's key, or `WHOLE_PARTITION`; None: the event waits for no other one."""
T = TypeVar("T")
"""The type of the events."""

WHOLE_PARTITION: Final = b""
"""The one lane of a partition whose events keep the order of their offsets."""


def lane_function(order: Order) -> Callable[[bytes | None], Lane]:
    """Return the function from a record's key to its lane, for this order; lanes are kept by
    partition."""
    if order is Order.PARTITION:
        return lambda key: WHOLE_PARTITION
    if order is Order.NONE:
        return lambda key: None
    return lambda key: key or None


class Lanes(Generic[T]):
    """The lanes of one partition."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[bytes, deque[T] | None] = {}
        """The waiting events of each lane that has an event under way; None: no event waits."""

    def admit(self, lane: Lane, event: T) -> bool:
        """Add an event to its lane; returns True if it may be sent now, else a later `release`
        returns it."""
        if lane is None:
            return True
        queues = self._waiting
        if lane not in queues:
            queues[lane] = None
            return True
        queue = queues[lane]
        if queue is None:
            queue = queues[lane] = deque()
        queue.append(event)
        return False

    def release(self, lane: Lane) -> T | None:
        """Note that the lane's event is settled; returns the event that may be sent next, if one
        waits."""
        if lane is None:
            return None
        queue = self._waiting[lane]
        if queue:
            return queue.popleft()
        del self._waiting[lane]
        return None
