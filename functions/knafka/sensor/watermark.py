"""Finds the time before which everything was read of this process's partitions of the trigger
topic.

    the bus was routed up to a time --the trigger topic's ends are asked for--> read to them: known

The bus is the topic whose events a Sensor reads; an event is routed through the trigger topic, the
Sensor's own, to the triggers that it concerns. Most records of the trigger topic carry this time
(`TriggerTopicRecord.until`). The watermark is for events that wait while no further record comes:
the last events where several processes read the bus, and events of triggers that fire because
another event is absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from knafka.core.sensor.contract import SensorContract
from knafka.ports.transactions import TransactionalLog

MIN_ABSENCE_DELAY: Final = 2_000
"""Least milliseconds after which an event counts as absent, as an event may reach Kafka that much
later than its time."""
WATERMARK_CHECK_INTERVAL: Final = 100
"""Milliseconds between two checks whether a due timer can be handled by now."""


class _PendingTime(NamedTuple):
    """A time that becomes `Watermark.known_until` once the trigger topic is read to the `ends`."""

    until: int
    """The time (ms)."""
    ends_requested_at: int
    """When (ms, our clock) the bus's end offsets were requested on which the time is based."""
    ends: Mapping[int, int | None]
    """End offset of each partition of the trigger topic; None: not known."""


class Watermark:
    """Finds the time before which everything was read, while something waits for it."""

    def __init__(self, sensor: SensorContract, log: TransactionalLog) -> None:
        """Begin with an unknown time; `log` is asked for the trigger topic's ends."""
        self._topic = sensor.trigger_topic
        self._log = log
        self._pending: _PendingTime | None = None
        """The time that becomes known next; None: the ends for it aren't requested."""
        self.known_until: int | None = None
        """Time (ms) before which every event for this process's partitions was read; None: not
        known."""
        self.ends_requested_at = 0
        """When (ms, our clock) the bus's end offsets were requested on which `known_until` is
        based."""

    def update(
        self, routed_until: int | None, ends_requested_at: int, positions: Mapping[int, int]
    ) -> int | None:
        """Return `known_until`, after making it later if possible. For this, Kafka may be asked for
        the trigger topic's ends, up to which the own partitions must be read first.

        `routed_until`: time (ms) before which every event of the bus is in the trigger topic, in a
        committed transaction; None: not known. `ends_requested_at`: when (our clock) the bus's end
        offsets were requested on which this time is based. `positions`: the next offset of each own
        partition. Raises `LogError`.
        """
        self._accept_pending_if_reached(positions)
        if self._pending is not None or routed_until is None:
            return self.known_until
        if routed_until >= (self.known_until or 0):
            ends = self._log.reachable_ends(self._topic)
            if all(ends.get(number) is not None for number in positions):
                self._pending = _PendingTime(routed_until, ends_requested_at, ends)
                self._accept_pending_if_reached(positions)
        return self.known_until

    def _accept_pending_if_reached(self, positions: Mapping[int, int]) -> None:
        """Make the pending time, if there is one, known (`known_until`) once the own partitions
        were read to its ends. `positions` has the next offset of each own partition."""
        pending = self._pending
        if pending is None or any(
            position < (pending.ends.get(number) or 0) for number, position in positions.items()
        ):
            return
        self._pending, self.ends_requested_at = None, pending.ends_requested_at
        if self.known_until is None or pending.until > self.known_until:
            self.known_until = pending.until

    def forget(self) -> None:
        """Forget `known_until`, as partitions were assigned or are read again."""
        self._pending = self.known_until = None
