"""Queues events of the bus, the topic that a Sensor reads, until they may be routed.

    read --the event's triggers hold events--> queue of its partition --in order of time--> routed

To route an event is to append it to the trigger topic, from which its triggers take it. An event is
routed once every partition was read up to a later time, so that the events that this process
appends are in order of time. If senders set the times, even one partition isn't in order: then
events are routed as they are read, and the reader of the trigger topic waits (`core.sensor.order`).

Not here: up to which time a partition was read (`bus_progress`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from knafka.core.sensor.contract import SensorContract
from knafka.core.sensor.order import Routed
from knafka.core.times import LOG_APPEND_TIME
from knafka.ports.log import Record
from knafka.ports.transactions import Partition, TransactionalLog
from knafka.sensor.bus_progress import BusProgress
from knafka.sensor.event_times import EventTimes
from knafka.sensor.queues import AFTER_ALL, FOR_EVER, Arrival, Queue

MAX_QUEUED_RECORDS: Final = 50_000
"""Number of records in all queues above which partitions with more than their share are paused;
pausing discards prefetched records. At most twice as many are queued."""
MAX_QUEUED_BYTES: Final = 64 * 1024 * 1024
"""`MAX_QUEUED_RECORDS` in bytes of their values."""
MAX_AHEAD_RECORDS: Final = 10_000
"""Most events that a process routes ahead of the time up to which the whole bus was read; they wait
at the readers of the trigger topic."""


class BusPartitions:
    """The queued events of this process's partitions of the bus. Times are ms since the Unix
    epoch."""

    def __init__(self, sensor: SensorContract, log: TransactionalLog) -> None:
        """Begin without partitions; `log` is asked for the ends of all partitions, and for the
        commits of other processes, and pauses partitions."""
        self._topic = sensor.topic
        self._log = log
        self._queues: dict[int, Queue] = {}
        """The queue of each of this process's partitions."""
        self.queued = 0
        """Number of events in all queues."""
        self.queued_bytes = 0
        """Bytes of the values of these events' records."""
        self._routed_ahead: deque[int] = deque()
        """Times of the events that were routed ahead of what is known to be read of the bus."""
        self.times = EventTimes(sensor)
        """Who sets the events' times, and how far these may be out of order."""
        self.progress = BusProgress(sensor, log, self._queues, self.times)
        """Up to which time all partitions were read and routed."""

    # Partitions

    def on_assigned(self, number: int, position: int, routed: Routed) -> None:
        """Start to read a partition at the offset `position`; `routed` says up to which time its
        events were routed, by the metadata of its commit."""
        self._queues[number] = Queue(
            next_offset=position, read_until=routed.until, committed_until=routed.until
        )
        self.times.note_sender_times(routed)
        self.progress.forget_request()

    def on_revoked(self, number: int) -> None:
        """Forget a partition and its queued events."""
        if (own_queue := self._queues.pop(number, None)) is not None:
            self._drop(own_queue)

    def go_back(self, positions: Mapping[Partition, int]) -> None:
        """Empty all queues, as everything from the committed offsets `positions` on is read again,
        after a transaction was aborted."""
        for number, queue in self._queues.items():
            self._drop(queue)
            queue.next_offset = positions.get(Partition(self._topic, number), 0)
            queue.read_until = queue.committed_until
        self._routed_ahead.clear()

    def _drop(self, own_queue: Queue) -> None:
        """Empty a partition's queue, and subtract it from the counts of all queues."""
        self.queued -= len(own_queue.arrivals)
        self.queued_bytes -= own_queue.bytes
        own_queue.arrivals.clear()
        own_queue.bytes = 0

    # Records that were read

    def note_read(self, record: Record, time: int, now: int) -> tuple[int, bool]:
        """Note that a record with this time was read at `now`. Returns the time before which all
        records of its partition were read, and whether earlier events of its partition are
        queued."""
        own_queue = self._queues[record.partition()]
        own_queue.next_offset = record.offset() + 1
        is_log_time = record.timestamp()[0] == LOG_APPEND_TIME
        read_until = self.times.note_read(is_log_time, time, now)
        if own_queue.read_until is not None:
            read_until = max(own_queue.read_until, read_until)
        own_queue.read_until = read_until
        return read_until, bool(own_queue.arrivals)

    def note_end(self, number: int, end: int) -> None:
        """Note that a partition was read to its end, the offset `end`; does nothing if it belongs
        to another process by now."""
        if number in self._queues:
            self._queues[number].next_offset = max(end, self._queues[number].next_offset)

    def enqueue(self, arrival: Arrival) -> None:
        """Queue an event until `take_ready` yields it."""
        own_queue = self._queues[arrival.place.partition]
        own_queue.arrivals.append(arrival)
        own_queue.bytes += arrival.size
        self.queued += 1
        self.queued_bytes += arrival.size

    def position(self, number: int) -> int:
        """Return the offset to commit for a partition of this process, together with everything
        that was routed: the offset of its first queued event, or the next offset to read if none is
        queued."""
        own_queue = self._queues[number]
        return own_queue.arrivals[0].place.offset if own_queue.arrivals else own_queue.next_offset

    def note_committed_time(self, number: int, until: int | None) -> None:
        """Note that a partition's offset was committed with the time `until`, before which the
        partition is routed; None: the time isn't known."""
        self._queues[number].committed_until = until

    # Order

    @property
    def first_time(self) -> int | None:
        """The time of the earliest queued event; None: none is queued."""
        return min(
            (queue.arrivals[0].place.at for queue in self._queues.values() if queue.arrivals),
            default=None,
        )

    @property
    def has_next(self) -> bool:
        """Whether a queued event may be routed now."""
        in_order = self.times.is_in_order
        if not self.queued or (in_order and self._is_ahead_limit_reached):
            return False
        bounds = self.progress.bounds_of_reading()
        return any(
            queue.arrivals and bounds.allows(queue.arrivals[0].place, in_order)
            for queue in self._queues.values()
        )

    @property
    def first_blocked_time(self) -> int | None:
        """The time of the earliest queued event, if no queued event may be routed before Kafka is
        asked for ends; None otherwise."""
        may_route = self.progress.has_ends and self.has_next
        return self.first_time if self.queued and not may_route else None

    @property
    def first_ahead_time(self) -> int | None:
        """The time of the first event that was routed ahead, if no more may be routed ahead
        (`MAX_AHEAD_RECORDS`); None otherwise."""
        return self._routed_ahead[0] if self._is_ahead_limit_reached else None

    @property
    def _is_ahead_limit_reached(self) -> bool:
        """Whether no more events may be routed ahead (`MAX_AHEAD_RECORDS`)."""
        return len(self._routed_ahead) >= MAX_AHEAD_RECORDS

    def take_ready(self, limit: int) -> Iterator[tuple[Arrival, int | None]]:
        """Dequeue and yield the events that may be routed next, at most `limit`. Each comes with a
        time for its record (`TriggerTopicRecord.until`): every event that the trigger topic gets
        later has this time or a later one, or is later than the yielded event. None: no such time
        is known."""
        if not self.queued:
            return
        in_order, bounds = self.times.is_in_order, self.progress.bounds_of_reading()
        others_until = self.progress.others_until
        # If partitions aren't in order, an earlier event may follow until the whole bus is routed.
        routed_before = None if in_order else self.progress.routed_until
        # A heap of the partitions with queued events, by the place of the first of these.
        heads = [
            (queue.arrivals[0].place, queue) for queue in self._queues.values() if queue.arrivals
        ]
        heapify(heads)
        while heads:
            place, own_queue = heappop(heads)
            bound = bounds.of_others(place.partition) if in_order else FOR_EVER
            until = None if others_until is None else min(others_until, bound)
            queue, following = own_queue.arrivals, heads[0][0] if heads else AFTER_ALL
            # Yield this partition's events that come before the first event of each other one.
            while place < following:
                if limit <= 0 or place.at >= bound or (in_order and self._is_ahead_limit_reached):
                    return
                arrival = queue.popleft()
                own_queue.bytes -= arrival.size
                self.queued -= 1
                self.queued_bytes -= arrival.size
                limit -= 1
                if in_order and (until is None or place.at >= until):
                    self._routed_ahead.append(place.at)
                yield arrival, until if in_order else routed_before
                if not queue:
                    break
                place = queue[0].place
            else:  # the queue isn't empty: another partition's event comes first
                heappush(heads, (place, own_queue))

    def drop_events_no_longer_ahead(self) -> None:
        """Remove from `_routed_ahead` the events that are no longer ahead: the whole bus is routed
        beyond their time. Call it only while every routed event is committed, as only then
        `routed_until` holds."""
        if self._routed_ahead and (until := self.progress.routed_until) is not None:
            while self._routed_ahead and self._routed_ahead[0] < until:
                self._routed_ahead.popleft()

    def balance(self) -> None:
        """While too much is queued, pause partitions with more than their share of it. Resume them
        once less than half as much is queued, or once the others wait for them: the partition that
        was read least far isn't paused, unless no more events may be routed ahead."""
        partitions = max(1, len(self._queues))
        lowest = self.progress.bounds_of_reading().first
        is_above_limit = self.queued > MAX_QUEUED_RECORDS or self.queued_bytes > MAX_QUEUED_BYTES
        is_below_half = (
            2 * self.queued < MAX_QUEUED_RECORDS and 2 * self.queued_bytes < MAX_QUEUED_BYTES
        )
        pausing, resuming = list[int](), list[int]()
        for number, queue in self._queues.items():
            has_more_than_its_share = (
                len(queue.arrivals) * partitions > MAX_QUEUED_RECORDS
                or queue.bytes * partitions > MAX_QUEUED_BYTES
            )
            is_lowest = (self.progress.own_read_until(number) or 0) <= lowest
            is_waited_for = is_lowest and not self._is_ahead_limit_reached
            may_pause = not (is_waited_for or queue.is_paused)
            if is_above_limit and has_more_than_its_share and may_pause:
                pausing.append(number)
            elif queue.is_paused and (is_below_half or is_waited_for):
                resuming.append(number)
        self._set_paused(pausing, is_paused=True)
        self._set_paused(resuming, is_paused=False)

    def _set_paused(self, numbers: Sequence[int], *, is_paused: bool) -> None:
        """Pause (`is_paused` True) or resume the reading of these partitions."""
        if not numbers:
            return
        partitions = [Partition(self._topic, number) for number in numbers]
        self._log.set_paused(partitions, paused=is_paused)
        for number in numbers:
            self._queues[number].is_paused = is_paused
