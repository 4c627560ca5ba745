"""Queues events of the bus until they may be routed, and finds the time up to which everything was
read.

    read --the event's triggers hold events--> queue of its partition --in order of time--> routed

An event is routed once every partition was read up to a later time, so that what this process
appends to the trigger topic is in order. A partition counts as read:

    behind its end       up to the time of its last record
    at its end           up to the time at which its end was asked for, less a grace period
    another process's    up to the time that it committed with its offset; at its end as above

If senders set the times, even one partition isn't in order: then events are routed as they are
read, and the reader of the trigger topic waits (`core.sensor.order`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from knafka.core.sensor import records
from knafka.core.sensor.contract import SensorContract
from knafka.core.sensor.order import Routed
from knafka.core.times import LOG_APPEND_TIME
from knafka.ports.log import OffsetAndMetadata, Record
from knafka.ports.transactions import Partition, TransactionalLog
from knafka.sensor.queues import (
    AFTER_ALL,
    FOR_EVER,
    NO_PARTITION,
    UNKNOWN_TIME,
    Arrival,
    Bounds,
    Queue,
)
from knafka.sensor.stalls import Stalls

KAFKA_GRACE: Final = 20
"""Milliseconds by which the clocks of Kafka's nodes may differ, where Kafka sets the time."""
SENDER_GRACE: Final = 2_000
"""Milliseconds from an event's time until Kafka has it, where its sender sets the time."""
END_REQUEST_INTERVAL: Final = 5
"""Least milliseconds between two requests to Kafka for ends."""
UNANSWERED_INTERVAL: Final = 250
"""Replaces `END_REQUEST_INTERVAL` while the end of some partition isn't known: requests take longer
then, so they are made less often."""
MAX_QUEUED_RECORDS: Final = 50_000
"""Number of records in all queues above which partitions with more than their share are paused;
pausing discards prefetched records. At most twice as many are queued."""
MAX_QUEUED_BYTES: Final = 64 * 1024 * 1024
"""`MAX_QUEUED_RECORDS` in bytes of their values."""
MAX_AHEAD_RECORDS: Final = 10_000
"""Most events that a process routes ahead of the time up to which everything was read; they wait at
the readers of the trigger topic."""


class BusPartitions:
    """Tracks this process's partitions of the bus, and the progress of other processes' partitions.
    Times are ms since the Unix epoch."""

    def __init__(self, sensor: SensorContract, log: TransactionalLog) -> None:
        """Begin without partitions; `log` is asked for the ends of all partitions, and for the
        commits of other processes."""
        self._topic = sensor.topic
        self._log = log
        self._declared = None if sensor.grace is None else round(sensor.grace * 1000)
        """The grace period (ms) that the Sensor declares; None: it declares none."""
        self.is_log_time = True
        """Whether Kafka sets the times, as far as is known."""
        # What this process has read
        self._has_read = False
        """Whether a record of the bus was read here."""
        self._queues: dict[int, Queue] = {}
        """The queue of each of this process's partitions."""
        self.queued = 0
        """Number of events in all queues."""
        self.queued_bytes = 0
        """Bytes of the values of these events' records."""
        self._routed_ahead: deque[int] = deque()
        """Times of the events that were routed ahead of what is known to be read of the bus."""
        self._latest_reads: deque[tuple[int, int]] = deque()
        """Events that were later than all before them: the event's time, and when it was read (our
        clock). Those that were read a grace period before the last request, or earlier, are left
        out."""
        self._earliest_after_grace = 0
        """One millisecond after the latest time of the events that were read a grace period or
        longer before the last request."""
        # What Kafka has answered
        self._asked_at: int | None = None
        """When (our clock) `refresh` last asked for ends, or put it off because own records had to
        be read first; None: not since a partition was assigned."""
        self._ends: Mapping[int, int | None] = {}
        """End offset of each partition of the bus, by the last request; None: Kafka didn't say.
        Empty: not requested yet."""
        self._appended_from = 0
        """Records that are appended after the last request have this time or a later one."""
        self._unreached_ends: tuple[int, Mapping[int, int | None]] | None = None
        """Requested ends that aren't reached yet, with the time (our clock) of the request."""
        self.reached_request_at = 0
        """When (our clock) the latest request was made whose ends have all been reached."""
        self._other_positions: dict[int, int] = {}
        """Offsets that other processes have committed, by partition."""
        self._others_routed_until: dict[int, int] = {}
        """Times before which other processes have routed everything, by partition."""
        self._stalls = Stalls(sensor.topic)
        """Finds the partitions that are no longer waited for."""

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

    @property
    def stalled(self) -> frozenset[int]:
        """Partitions that are no longer waited for."""
        return self._stalls.partitions

    # Partitions

    def on_assigned(self, number: int, position: int, routed: Routed) -> None:
        """Start to read a partition at the offset `position`; `routed` is what the metadata of its
        commit says."""
        self._queues[number] = Queue(
            next_offset=position, read_until=routed.until, committed_until=routed.until
        )
        self._note_sender_times(routed)
        self._asked_at = None

    def on_revoked(self, number: int) -> None:
        """Forget a partition and its queued events."""
        if (own_queue := self._queues.pop(number, None)) is not None:
            self._drop(own_queue)

    def go_back(self, positions: Mapping[Partition, int]) -> None:
        """Empty all queues, as everything from these committed offsets on is read again."""
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
        records of its partition were read, and whether events of its partition are queued."""
        own_queue = self._queues[record.partition()]
        own_queue.next_offset = record.offset() + 1
        is_log_time = record.timestamp()[0] == LOG_APPEND_TIME
        self.is_log_time, self._has_read = is_log_time, True
        if not self._latest_reads or time > self._latest_reads[-1][0]:
            self._latest_reads.append((time, now))
        read_until = time if self.is_in_order else time - self.grace
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
        that was routed: that of its first queued event, else the next one to read."""
        own_queue = self._queues[number]
        return own_queue.arrivals[0].place.offset if own_queue.arrivals else own_queue.next_offset

    def own_routed_until(self, number: int) -> int | None:
        """Return the time before which every event of a partition of this process was routed; None:
        not known."""
        own_queue = self._queues[number]
        if own_queue.arrivals:
            return own_queue.arrivals[0].read_until
        return self._own_read_until(number)

    def note_committed_time(self, number: int, until: int | None) -> None:
        """Note that the routed time `until` was committed with a partition's offset."""
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
    def is_shared(self) -> bool:
        """Whether other processes read some partitions; True also while that isn't known."""
        if not self._ends:
            return True
        return bool(self._ends.keys() - self._queues.keys())

    @property
    def has_next(self) -> bool:
        """Whether a queued event may be routed now."""
        if not self.queued or (self.is_in_order and self._is_ahead_limit_reached):
            return False
        bounds = self._bounds_of_reading()
        return any(
            queue.arrivals and bounds.allows(queue.arrivals[0].place, self.is_in_order)
            for queue in self._queues.values()
        )

    @property
    def first_blocked_time(self) -> int | None:
        """The time of the earliest queued event, if no queued event may be routed before Kafka is
        asked for ends; None otherwise."""
        may_route = self._ends and self.has_next
        return self.first_time if self.queued and not may_route else None

    @property
    def first_ahead_time(self) -> int | None:
        """The time of the first event that was routed ahead, if so many were that no more may be;
        None otherwise."""
        return self._routed_ahead[0] if self._is_ahead_limit_reached else None

    @property
    def next_check_time(self) -> int:
        """The earliest time (our clock) at which a request for ends may show that more was read; 0:
        at any time."""
        return self._latest_reads[0][1] + self.grace if self._latest_reads else 0

    @property
    def _is_ahead_limit_reached(self) -> bool:
        """Whether no more events may be routed ahead."""
        return len(self._routed_ahead) >= MAX_AHEAD_RECORDS

    def take_ready(self, limit: int) -> Iterator[tuple[Arrival, int | None]]:
        """Dequeue and yield the events that may be routed next, at most `limit`. Each comes with a
        time: no event that is earlier than this time, and earlier than the yielded event, can still
        follow it in the trigger topic. The time is None if it isn't known."""
        if not self.queued:
            return
        in_order, bounds = self.is_in_order, self._bounds_of_reading()
        others_until = self._others_until
        # If partitions aren't in order, an event may follow it until the whole bus is routed.
        routed_before = None if in_order else self.routed_until
        # A heap of the partitions with queued events, by the place of the first of these.
        heads = [
            (queue.arrivals[0].place, queue) for queue in self._queues.values() if queue.arrivals
        ]
        heapify(heads)
        while heads:
            place, own_queue = heappop(heads)
            bound = bounds.of(place.partition) if in_order else FOR_EVER
            until = None if others_until is None else min(others_until, bound)
            queue, following = own_queue.arrivals, heads[0][0] if heads else AFTER_ALL
            # Yield this partition's events that come before the first event of all others.
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
            else:
                heappush(heads, (place, own_queue))

    def _bounds_of_reading(self) -> Bounds:
        """Return how far this process's partitions were read, without stalled ones: the lowest time
        with its partition, and the second lowest, which bounds that partition's own events."""
        untils: list[tuple[int, int]] = []
        for number in self._queues:
            if number not in self.stalled:
                until = self._own_read_until(number)
                untils.append((UNKNOWN_TIME if until is None else until, number))
        untils.sort()
        first, number = untils[0] if untils else (FOR_EVER, NO_PARTITION)
        return Bounds(first, number, untils[1][0] if len(untils) > 1 else FOR_EVER)

    @property
    def read_until(self) -> int | None:
        """The time before which everything of the bus was read here or routed by others; None: not
        known."""
        return self._lowest_time(self._own_read_until)

    @property
    def routed_until(self) -> int | None:
        """The time before which everything of the bus is in the trigger topic, once all routed
        events are committed; None: not known."""
        return self._lowest_time(self.own_routed_until)

    @property
    def _others_until(self) -> int | None:
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
        that of a partition of this process, `_others_until` is that of the others. None: one of
        these times isn't known, or there are no partitions."""
        if (lowest := self._others_until) is None:
            return None
        for number in self._queues.keys() - self.stalled:
            if (until := until_of_own(number)) is None:
                return None
            lowest = min(lowest, until)
        return None if lowest == FOR_EVER else lowest

    def _own_read_until(self, number: int) -> int | None:
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

    def forget_ahead(self) -> None:
        """Remove from `_routed_ahead` the events that are no longer ahead: all of the bus is routed
        beyond their time. Call it only while every routed event is committed."""
        if self._routed_ahead and (until := self.routed_until) is not None:
            while self._routed_ahead and self._routed_ahead[0] < until:
                self._routed_ahead.popleft()

    # Asking Kafka

    def refresh(self, now: int, needed_until: int, since: int = 0) -> None:
        """Ask Kafka for ends and others' commits, to know up to which time everything was read.
        Nothing is asked in three cases: everything before `needed_until` was read, as a request of
        `since` or later has shown; the last request was made just before; or only this process
        reads the bus, and must first read on. Raises `LogError`."""
        read_until = self.read_until if self._asked_at is not None else None
        is_read = read_until is not None and read_until > needed_until
        if is_read and self.reached_request_at >= since:
            return
        interval = UNANSWERED_INTERVAL if None in self._ends.values() else END_REQUEST_INTERVAL
        if self._asked_at is not None and now - self._asked_at < interval:
            return
        if not self._has_to_read_on(needed_until):
            self._ask(now)
            self._note_reached_ends(now)
        self._asked_at = now
        self._note_stalls(now, needed_until)

    def _has_to_read_on(self, needed_until: int) -> bool:
        """Whether no other process reads the bus, and this one knows of records that it has to read
        before everything before `needed_until` is read."""
        return not self.is_shared and any(
            self._is_behind(number) and (self._own_read_until(number) or 0) <= needed_until
            for number in self._queues
        )

    def _ask(self, now: int) -> None:
        """Ask Kafka for the ends of all partitions and, if other processes read some of them, for
        their commits. Raises `LogError`."""
        self._ends = self._log.reachable_ends(self._topic)
        self._appended_from = self._find_earliest_append(now)
        if self.is_shared:
            committed = self._log.committed_now(self._topic)
            for commit in committed.values():
                self._note_sender_times(records.parse_routed(commit.metadata))
            for number in self._ends.keys() - self._queues.keys():
                self._note_commit(number, committed.get(number), self._ends[number])

    def _note_reached_ends(self, now: int) -> None:
        """Set `reached_request_at` to the time of the latest request whose ends are all reached.
        Checked first are the ends of the earlier request that weren't reached yet
        (`_unreached_ends`), then those of the request just made, at `now`."""
        requests = [(now, self._ends)]
        if self._unreached_ends is not None:
            requests.insert(0, self._unreached_ends)
        for asked_at, ends in requests:
            if not all(self._is_reached(number, offset) for number, offset in ends.items()):
                self._unreached_ends = asked_at, ends
                return
            self._unreached_ends, self.reached_request_at = None, asked_at

    def _is_reached(self, number: int, end: int | None) -> bool:
        """Whether a partition was read here, or routed by another process, up to the offset `end`
        (None: not known), or is stalled."""
        own_queue = self._queues.get(number)
        if own_queue is None:
            position = self._other_positions.get(number, 0)
        else:
            position = own_queue.next_offset
        return number in self.stalled or (end is not None and position >= end)

    def _find_earliest_append(self, now: int) -> int:
        """Return the earliest time that a record appended from now on may have. It is later than
        the times of all events that were read a grace period ago or earlier, which are removed from
        `_latest_reads`. It is at most a grace period ago, or `SENDER_GRACE` if that is longer."""
        while self._latest_reads and self._latest_reads[0][1] <= now - self.grace:
            self._earliest_after_grace = self._latest_reads.popleft()[0] + 1
        return max(self._earliest_after_grace, now - max(self.grace, SENDER_GRACE))

    def _note_commit(
        self, number: int, committed: OffsetAndMetadata | None, end: int | None
    ) -> None:
        """Note what another process has committed for a partition (None: nothing). The commit was
        requested just after the partition's end, the offset `end` (None: not known)."""
        offset = 0 if committed is None else committed.offset
        self._other_positions[number] = offset
        routed = Routed() if committed is None else records.parse_routed(committed.metadata)
        until = routed.until
        if end is not None and offset >= end:
            at_end = self._appended_from
            until = at_end if until is None else max(at_end, until)
        if until is not None:
            previous_until = self._others_routed_until.get(number, until)
            self._others_routed_until[number] = max(previous_until, until)

    def _note_sender_times(self, routed: Routed) -> None:
        """Note that senders set the times if a commit of the bus (`routed`) says so and no record
        was read here yet, as a record would tell."""
        if routed.by_sender and not self._has_read:
            self.is_log_time = False

    def _note_stalls(self, now: int, needed_until: int) -> None:
        """Let `Stalls` note how far the partitions were read that may hold up the others: those of
        other processes, and own ones that aren't read up to a known end."""
        untils: dict[int, int | None] = {}
        for number in self._ends.keys() | self._queues.keys():
            if number not in self._queues:
                untils[number] = self._others_routed_until.get(number)
            elif self._is_behind(number) or self._ends.get(number) is None:
                untils[number] = self._own_read_until(number)
        self._stalls.note_reads(now, needed_until, untils)

    def balance(self) -> None:
        """Pause partitions that are read far ahead while much is queued, and resume them later. A
        partition that was read least far is never paused, as the others wait for it, unless no more
        events may be routed ahead."""
        partitions, lowest = max(1, len(self._queues)), self._bounds_of_reading().first
        is_much = self.queued > MAX_QUEUED_RECORDS or self.queued_bytes > MAX_QUEUED_BYTES
        is_little = (
            2 * self.queued < MAX_QUEUED_RECORDS and 2 * self.queued_bytes < MAX_QUEUED_BYTES
        )
        pausing, resuming = list[int](), list[int]()
        for number, queue in self._queues.items():
            has_more_than_its_share = (
                len(queue.arrivals) * partitions > MAX_QUEUED_RECORDS
                or queue.bytes * partitions > MAX_QUEUED_BYTES
            )
            is_lowest = (self._own_read_until(number) or 0) <= lowest
            is_waited_for = is_lowest and not self._is_ahead_limit_reached
            if is_much and has_more_than_its_share and not (is_waited_for or queue.is_paused):
                pausing.append(number)
            elif queue.is_paused and (is_little or is_waited_for):
                resuming.append(number)
        for numbers, is_paused in ((pausing, True), (resuming, False)):
            if numbers:
                self._log.set_paused(
                    [Partition(self._topic, number) for number in numbers], paused=is_paused
                )
            for number in numbers:
                self._queues[number].is_paused = is_paused
