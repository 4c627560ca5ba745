"""Slots: numbers of a Sensor's drains, of which no two that go on have the same. Pure.

    give --the drain says which it has--> found --it is over--> free

A drain's slot is in its transactional id, so a drain that begins in a slot ends the transaction
that the last one there has left open, and the last one itself if it goes on. A request keeps its
slot for the drain that follows one which was killed. A request may reach a process whose drain goes
on with another slot: then that counts, and whatever has it by our books gets the one that is left.

Not here: asking who is in the group (`sensor_scaler`), and holding (`holds`).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from itertools import count


class Slots:
    """By request."""

    def __init__(self) -> None:
        self._slots: dict[Hashable, int] = {}

    def give(self, request: Hashable, others: Collection[int] = ()) -> int:
        """The lowest that no request has, nor any of `others`: drains that go on without one."""
        taken = {*self._slots.values(), *others}
        self._slots[request] = next(each for each in count() if each not in taken)
        return self._slots[request]

    def of(self, request: Hashable) -> int | None:
        return self._slots.get(request)

    def found(self, request: Hashable, slot: int) -> None:
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
