"""Until when every event has been read: what decides that something didn't come.

    asked --the group has committed the bus's ends--> routed --this process has read the trigger
    topic's ends--> known

Whatever the bus had when it was asked was read by then, whichever process reads it, and however far
behind it was. An event may reach the bus a moment after its time, which is its sender's: so what is
known is `LATENESS` earlier.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from knafka.core.sensor.contract import Sensor
from knafka.ports.log import Positions
from knafka.ports.transactions import TransactionalLog

LATENESS: Final = 2_000
"""Milliseconds between an event's time and the moment in which Kafka has it, at most: one that
takes longer, as in an outage, may come after what was decided without it."""
INTERVAL: Final = 100
"""Milliseconds between two questions."""


class Watermark:
    """Asked again and again while there is something to decide."""

    def __init__(self, sensor: Sensor, log: TransactionalLog) -> None:
        self._sensor = sensor
        self._log = log
        self._asked_at = 0
        self._looked_at = 0
        self._bus_ends: Positions | None = None
        self._trigger_ends: Positions | None = None

    def look(self, now: int, positions: Mapping[int, int], owned: Collection[int]) -> int | None:
        """The time (ms) before which every event was read that concerns the owned partitions of
        the trigger topic, as far as it is known now; None: ask again. `positions`: where each of
        them is read on. Raises `LogError`."""
        if self._bus_ends is None:
            self._asked_at = self._looked_at = now
            self._bus_ends = self._log.ends(self._sensor.topic)
        elif now - self._looked_at < INTERVAL:
            return None
        self._looked_at = now
        if self._trigger_ends is None:
            routed = self._log.committed(self._sensor.topic)
            if any(routed.get(number, 0) < end for number, end in self._bus_ends.items()):
                return None
            self._trigger_ends = self._log.ends(self._sensor.trigger_topic)
        ends = self._trigger_ends
        if any(positions.get(number, 0) < ends.get(number, 0) for number in owned):
            return None
        self.forget()
        return self._asked_at - LATENESS

    def forget(self) -> None:
        """What was asked for doesn't hold: other partitions came, or nothing is to be decided."""
        self._bus_ends = self._trigger_ends = None
