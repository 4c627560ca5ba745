"""Finds the time up to which everything of the bus was read, and up to which it was routed.

The bus is the topic whose events a Sensor reads; to route an event is to append it to the trigger
topic, from which its triggers take it. How far a partition of the bus was read or routed:

    own, behind its end       up to the time of its last record
    own, at its end           up to the time at which its end was asked for, less a grace period
    another process's         up to the time committed with its offset; if that offset is the end,
                              as our own at its end

Partitions that aren't read on for too long hold up nothing (`stalls`). Times are ms since the Unix
epoch. Not here: how far events may be out of order (`event_times`), and the events themselves
(`bus`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from knafka.core.sensor import records
from knafka.core.sensor.contract import SensorContract
from knafka.core.sensor.order import Routed
from knafka.ports.log import OffsetAndMetadata
from knafka.ports.transactions import TransactionalLog
from knafka.sensor.event_times import EventTimes
from knafka.sensor.queues import FOR_EVER, NO_PARTITION, UNKNOWN_TIME, Bounds, Queue
from knafka.sensor.stalls import Stalls

END_REQUEST_INTERVAL: Final = 5
"""Least milliseconds between two requests to Kafka for ends."""
UNANSWERED_INTERVAL: Final = 250
"""Replaces `END_REQUEST_INTERVAL` while the end of some partition isn't known: requests take longer
then, so they are made less often."""


class BusProgress:
    """Finds up to which time the bus was read and routed, by this process and by others."""

    def __init__(
        self,
        sensor: SensorContract,
        log: TransactionalLog,
        queues: Mapping[int, Queue],
        times: EventTimes,
    ) -> None:
        """Begin without answers of Kafka. `log` is asked for the ends of all partitions, and for
        the commits of other processes; `queues` has the queue of each of this process's partitions,
        and changes with them; `times` collects what the records show of who sets their times."""
        self._topic = sensor.topic
        self._log = log
        self._queues = queues
        self._times = times
        self._considered_at: int | None = None
        """When (our clock) `refresh` last asked Kafka, or chose not to because own records must be
        read first; None: not since the last partition was assigned."""
        self._ends: Mapping[int, int | None] = {}
        """End offset of each partition of the bus, by the last request; None: Kafka didn't say.
        Empty: not requested yet."""
        self._appended_from = 0
        """Records that are appended after the last request have this time or a later one."""
        self._unreached_ends: tuple[int, Mapping[int, int | None]] | None = None
        """Requested ends that aren't reached yet, with the time (our clock) of the request; None:
        all are reached."""
        self.reached_request_at = 0
        """When (our clock) the latest request was made whose ends have all been reached."""
        self._other_positions: dict[int, int] = {}
        """Offsets that other processes have committed, by partition."""
        self._others_routed_until: dict[int, int] = {}
        """Times before which other processes have routed everything, by partition."""
        self._stalls = Stalls(sensor.topic)
        """Finds the partitions that are no longer waited for."""

    @property
    def stalled(self) -> frozenset[int]:
        """Partitions that are no longer waited for."""
        return self._stalls.partitions

    def forget_request(self) -> None:
        """Make `refresh` ask Kafka again, as a partition was assigned since its last request."""
        self._considered_at = None

    @property
    def has_ends(self) -> bool:
        """Whether Kafka was asked for ends."""
        return bool(self._ends)

    @property
    def is_shared(self) -> bool:
        """Whether other processes read some partitions; True also while that isn't known."""
        if not self._ends:
            return True
        return bool(self._ends.keys() - self._queues.keys())

    # What was read and routed

    def bounds_of_reading(self) -> Bounds:
        """Return how far this process's partitions were read, without stalled ones: the lowest
        time, its partition, and the second lowest time. The second time bounds the events of that
        partition, as they wait only for the other partitions."""
        untils: list[tuple[int, int]] = []
        for number in self._queues:
            if number not in self.stalled:
                until = self.own_read_until(number)
                untils.append((UNKNOWN_TIME if until is None else until, number))
        untils.sort()
        first, number = untils[0] if untils else (FOR_EVER, NO_PARTITION)
        return Bounds(first, number, untils[1][0] if len(untils) > 1 else FOR_EVER)

    @property
    def read_until(self) -> int | None:
        """The time before which everything of the bus was read here or routed by others; None: not
        known."""
        return self._lowest_time(self.own_read_until)

    @property
    def routed_until(self) -> int | None:
        """The time before which everything of the bus is in the trigger topic, once all routed
        events are committed; None: not known."""
        return self._lowest_time(self.own_routed_until)

    @property
    def others_until(self) -> int | None:
        """The time before which other processes have routed everything of their partitions, without
        stalled ones; `FOR_EVER`: there are no such partitions; None: not known."""
        if not self._ends:
            return None
        lowest = FOR_EVER
        for number in self._ends.keys() - self._queues.keys() - self.stalled:
            if (until := self._others_routed_until.get(number)) is None:
                return None
            lowest = min(lowest, until)
        return lowest

    def _lowest_time(self, until_of_own: Callable[[int], int | None]) -> int | None:
        """Return the lowest time of all partitions, without stalled ones: `until_of_own` returns
        the time of a partition of this process, and `others_until` is the lowest time of the
        others. None: one of these times isn't known, or there are no partitions."""
        if (lowest := self.others_until) is None:
            return None
        for number in self._queues.keys() - self.stalled:
            if (until := until_of_own(number)) is None:
                return None
            lowest = min(lowest, until)
        return None if lowest == FOR_EVER else lowest

    def own_routed_until(self, number: int) -> int | None:
        """Return the time before which every event of a partition of this process was routed; None:
        not known."""
        own_queue = self._queues[number]
        if own_queue.arrivals:  # the records before the first queued event were routed
            return own_queue.arrivals[0].read_until
        return self.own_read_until(number)

    def own_read_until(self, number: int) -> int | None:
        """Return the time before which everything of a partition of this process was read; None:
        not known."""
        own_queue = self._queues[number]
        read_until, end = own_queue.read_until, self._ends.get(number)
        if end is None or own_queue.next_offset < end:
            return read_until
        # It is read to its end: what follows is appended after the request for the end.
        return self._appended_from if read_until is None else max(self._appended_from, read_until)

    def _is_behind(self, number: int) -> bool:
        """Whether a partition of this process wasn't read up to its last known end; False if no end
        is known."""
        end = self._ends.get(number)
        return end is not None and self._queues[number].next_offset < end

    # Asking Kafka

    def refresh(self, now: int, needed_until: int, since: int = 0) -> None:
        """Ask Kafka for ends and others' commits, to know up to which time everything was read;
        `now` is the present. Raises `LogError`. Nothing is asked in three cases:

        - a request made at `since` or later has shown that everything up to the time
          `needed_until` was read;
        - the last request was made just before (`END_REQUEST_INTERVAL`);
        - only this process reads the bus, and it must first read on.
        """
        read_until = self.read_until if self._considered_at is not None else None
        is_read = read_until is not None and read_until > needed_until
        if is_read and self.reached_request_at >= since:
            return
        interval = UNANSWERED_INTERVAL if None in self._ends.values() else END_REQUEST_INTERVAL
        if self._considered_at is not None and now - self._considered_at < interval:
            return
        if not self._has_to_read_on(needed_until):
            self._ask(now)
            self._note_reached_ends(now)
        self._considered_at = now
        self._note_stalls(now, needed_until)

    def _has_to_read_on(self, needed_until: int) -> bool:
        """Whether Kafka's answers would be of no use yet: no other process reads the bus, and this
        process knows of records that it must read first to reach `needed_until`."""
        return not self.is_shared and any(
            self._is_behind(number) and (self.own_read_until(number) or 0) <= needed_until
            for number in self._queues
        )

    def _ask(self, now: int) -> None:
        """Ask Kafka for the ends of all partitions and, if other processes read some of them, for
        their commits. Raises `LogError`."""
        self._ends = self._log.reachable_ends(self._topic)
        self._appended_from = self._times.update_earliest_append(now)
        if self.is_shared:
            committed = self._log.committed_now(self._topic)
            for commit in committed.values():
                self._times.note_sender_times(records.parse_routed(commit.metadata, now))
            for number in self._ends.keys() - self._queues.keys():
                self._note_commit(number, committed.get(number), self._ends[number], now)

    def _note_reached_ends(self, now: int) -> None:
        """Set `reached_request_at` to the time of the latest request whose ends are all reached.
        The earlier request whose ends weren't reached yet (`_unreached_ends`) is checked first,
        then the request just made, at `now`."""
        requests = [(now, self._ends)]
        if self._unreached_ends is not None:
            requests.insert(0, self._unreached_ends)
        for asked_at, ends in requests:
            if not all(self._is_reached(number, offset) for number, offset in ends.items()):
                self._unreached_ends = asked_at, ends
                return
            self._unreached_ends, self.reached_request_at = None, asked_at

    def _is_reached(self, number: int, end: int | None) -> bool:
        """Whether a partition has reached the offset `end` (None: not known): this process has read
        up to it, or another process has committed it. True also for a stalled partition."""
        own_queue = self._queues.get(number)
        if own_queue is None:
            position = self._other_positions.get(number, 0)
        else:
            position = own_queue.next_offset
        return number in self.stalled or (end is not None and position >= end)

    def _note_commit(
        self, number: int, committed: OffsetAndMetadata | None, end: int | None, now: int
    ) -> None:
        """Note what another process has committed for a partition (`committed` None: nothing). The
        commit was requested at `now`, just after the partition's end, which is the offset `end`
        (None: not known)."""
        offset = 0 if committed is None else committed.offset
        self._other_positions[number] = offset
        routed = Routed() if committed is None else records.parse_routed(committed.metadata, now)
        until = routed.until
        if end is not None and offset >= end:
            at_end = self._appended_from
            until = at_end if until is None else max(at_end, until)
        if until is not None:
            previous_until = self._others_routed_until.get(number, until)
            self._others_routed_until[number] = max(previous_until, until)

    def _note_stalls(self, now: int, needed_until: int) -> None:
        """Update `stalled`, the partitions that are no longer waited for. For that, give `Stalls`
        the time up to which each partition was read that may hold up the others: a partition of
        another process, or an own one that wasn't read up to its end or whose end isn't known."""
        untils: dict[int, int | None] = {}
        for number in self._ends.keys() | self._queues.keys():
            if number not in self._queues:
                untils[number] = self._others_routed_until.get(number)
            elif self._is_behind(number) or self._ends.get(number) is None:
                untils[number] = self.own_read_until(number)
        self._stalls.note_reads(now, needed_until, untils)
