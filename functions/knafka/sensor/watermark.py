"""Finds the time before which everything was read of this process's partitions of the trigger
topic.

    the bus was routed up to a time --the trigger topic's ends are asked for--> read to them: known

Most records of the trigger topic carry it (`TriggerTopicRecord.until`). This is for events that
wait while no further record comes: the last events where several processes read the bus, and
triggers that fire because an event is absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from knafka.core.sensor.contract import SensorContract
from knafka.ports.transactions import TransactionalLog

MIN_ABSENCE_DELAY: Final = 2_000
"""Milliseconds after which an event counts as absent, at least: an event may reach Kafka that long
after its time."""
WATERMARK_CHECK_INTERVAL: Final = 100
"""Milliseconds between two checks for triggers that are due."""


class Watermark:
    """Finds the time before which everything was read, while something waits for it."""

    def __init__(self, sensor: SensorContract, log: TransactionalLog) -> None:
        """Begin with an unknown time; `log` is asked for the trigger topic's ends."""
        self._topic = sensor.trigger_topic
        self._log = log
        self._pending: tuple[int, int, Mapping[int, int | None]] | None = None
        """What becomes `known` and `asked_at` once the trigger topic is read to these ends; None:
        nothing is waited for."""
        self.known: int | None = None
        """Time (ms) before which every event for these partitions was read; None: not known."""
        self.asked_at = 0
        """When (ms, our clock) the bus was asked for `known`."""

    def update(
        self, routed_until: int | None, asked_at: int, positions: Mapping[int, int]
    ) -> int | None:
        """Ask Kafka for the trigger topic's ends if `known` may become later, and return `known`.

        `routed_until`: time (ms) before which every event of the bus is in the trigger topic, in a
        committed transaction; None: not known. `asked_at`: when (our clock) that was asked for.
        `positions`: the next offset of each own partition. Raises `LogError`.
        """
        if self._pending is not None:
            self._check_reached(*self._pending, positions)
        if self._pending is None and routed_until is not None and routed_until >= (self.known or 0):
            ends = self._log.reachable_ends(self._topic)
            if all(ends.get(number) is not None for number in positions):
                self._pending = routed_until, asked_at, ends
                self._check_reached(*self._pending, positions)
        return self.known

    def _check_reached(
        self,
        until: int,
        asked_at: int,
        ends: Mapping[int, int | None],
        positions: Mapping[int, int],
    ) -> None:
        """If the own partitions were read to these `ends`, raise `known` to `until`, set
        `asked_at`, and forget what is pending. `positions` has the next offset of each own
        partition."""
        if all(position >= (ends.get(number) or 0) for number, position in positions.items()):
            self._pending, self.asked_at = None, asked_at
            self.known = until if self.known is None else max(self.known, until)

    def forget(self) -> None:
        """Forget `known`: partitions were assigned, or are read again."""
        self._pending = self.known = None
