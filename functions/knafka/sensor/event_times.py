"""Event times: who sets the times of a bus's events, and how far these may be out of order. (A bus
is the topic whose events a Sensor reads.)

By how much an event may be older than one that was read before it (`grace`):

    Kafka sets the times                  20 ms: the clocks of its nodes differ
    senders set the times                 2 s: the time that an event takes until Kafka has it
    the Sensor declares a grace period    the declared time

Times are ms since the Unix epoch. Not here: the order itself (`core.sensor.order`).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from knafka.core.sensor.contract import SensorContract
from knafka.core.sensor.order import Routed

KAFKA_GRACE: Final = 20
"""Milliseconds by which the clocks of Kafka's nodes may differ, where Kafka sets the time."""
SENDER_GRACE: Final = 2_000
"""Most milliseconds from an event's time until Kafka has the event, where its sender sets the
time."""


class EventTimes:
    """What the records that were read here show of the times of a bus's events."""

    def __init__(self, sensor: SensorContract) -> None:
        """Begin without events; Kafka is taken to set the times until something shows otherwise."""
        self._declared = None if sensor.grace is None else round(sensor.grace * 1000)
        """The grace period (ms) that the Sensor declares; None: it declares none."""
        self.is_log_time = True
        """Whether Kafka sets the times, as far as is known."""
        self._has_read = False
        """Whether a record of the bus was read here."""
        self._latest_reads: deque[tuple[int, int]] = deque()
        """The events that were later than all events read before them: the time of each, and when
        it was read (our clock). `update_earliest_append` removes those that were read a grace
        period ago or earlier."""
        self._earliest_after_grace = 0
        """One millisecond after the latest event that `update_earliest_append` has removed from
        `_latest_reads`; 0: it has removed none."""

    @property
    def is_in_order(self) -> bool:
        """Whether each partition is in order of time, as far as is known. A Sensor that declares a
        grace period is never in order: declaring it means that Kafka's clock may be set back."""
        return self.is_log_time and self._declared is None

    @property
    def grace(self) -> int:
        """Milliseconds by which an event may be older than one that was read before it."""
        if self._declared is not None:
            return self._declared
        return KAFKA_GRACE if self.is_log_time else SENDER_GRACE

    def note_read(self, is_log_time: bool, time: int, now: int) -> int:
        """Note that a record with this time was read at `now`; `is_log_time`: whether Kafka has set
        the time. Returns the time before which all records of its partition were read, as far as
        this record shows."""
        self.is_log_time, self._has_read = is_log_time, True
        if not self._latest_reads or time > self._latest_reads[-1][0]:
            self._latest_reads.append((time, now))
        # The condition is `is_in_order`, written out as a call for each record would cost more.
        return time if is_log_time and self._declared is None else time - self.grace

    def note_sender_times(self, routed: Routed) -> None:
        """Note that senders set the times if `routed`, which was read from a commit's metadata,
        says so. Does nothing once a record was read here, as a record itself shows who sets the
        times."""
        if routed.by_sender and not self._has_read:
            self.is_log_time = False

    @property
    def next_check_time(self) -> int:
        """The earliest time (our clock) at which it is of use to ask Kafka for the bus's ends, as
        the answer may show that everything up to a later time was read; 0: at any time."""
        return self._latest_reads[0][1] + self.grace if self._latest_reads else 0

    def update_earliest_append(self, now: int) -> int:
        """Return the earliest time that a record appended from `now` on may have. Such a record is
        later than each event that was read a grace period ago or earlier (these are removed from
        `_latest_reads`), and no older than the longer of `grace` and `SENDER_GRACE`."""
        while self._latest_reads and self._latest_reads[0][1] <= now - self.grace:
            event_time, _ = self._latest_reads.popleft()
            self._earliest_after_grace = event_time + 1
        return max(self._earliest_after_grace, now - max(self.grace, SENDER_GRACE))
