"""What was read of the bus and isn't routed yet, and until when everything was read.

    read --the event's triggers hold events--> queue of its partition --in order of time--> routed

An event is routed when every partition was read to a later time, so that what this process appends
to the trigger topic is in order. How far a partition was read:

    behind its end     to the time of its last record
    at its end         to the time of what was read a grace before its end was asked for
    another process's  as that process committed beside its offset; at its end as above

Where senders say the time, a partition is in no order itself: then events are routed as they are
read, and it is the trigger topic's reader who waits (`core.sensor.order`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from knafka.core.sensor import records
from knafka.core.sensor.contract import Sensor
from knafka.core.sensor.order import Routed
from knafka.core.times import LOG_APPEND_TIME
from knafka.ports.log import OffsetAndMetadata, Record
from knafka.ports.transactions import Partition, TransactionalLog
from knafka.sensor.queues import FOR_EVER, LAST, Arrival, Bounds, Queue
from knafka.sensor.stalls import Stalls

KAFKAS_GRACE: Final = 20
"""Milliseconds by which the clocks of Kafka's nodes may differ where the time is theirs."""
SENDERS_GRACE: Final = 2_000
"""Milliseconds between an event's time and the moment in which Kafka has it, where the time is its
sender's."""
ASK_INTERVAL: Final = 5
"""Milliseconds between two questions to Kafka, at least."""
UNANSWERED_INTERVAL: Final = 250
"""The same while a partition doesn't answer: the question takes longer then."""
QUEUED_RECORDS: Final = 50_000
"""Records that wait in all queues together before partitions with more than their share are paused,
which throws away what was fetched of them; at most twice as many wait."""
QUEUED_BYTES: Final = 64 * 1024 * 1024
"""Bytes of their values."""
AHEAD_RECORDS: Final = 10_000
"""Events that a process may have routed of a time until which not all was read: so many wait with
those who read the trigger topic."""


class Bus:
    """A process's part of the bus, and what it knows of the rest. Times are ms since the Unix
    epoch."""

    def __init__(self, sensor: Sensor, log: TransactionalLog) -> None:
        self._topic = sensor.topic
        self._log = log
        self._declared = None if sensor.grace is None else round(sensor.grace * 1000)
        self._own: dict[int, Queue] = {}
        self.is_log_time = True
        """Whether times are Kafka's, as far as is known."""
        self._has_read = False
        self._latest: deque[tuple[int, int]] = deque()
        """The latest time of an event that was read, and when it was, by our clock; both grow."""
        self._before = 0
        """The latest time of what was read a grace ago."""
        self._ends: Mapping[int, int | None] = {}
        self._looked_for: tuple[int, Mapping[int, int | None]] | None = None
        """Ends that aren't reached yet, and when they were asked for."""
        self._others_at: dict[int, int] = {}
        """What others have committed."""
        self.ended_at = 0
        """When ends were asked for that all have reached by now, by our clock."""
        self._asked_until = 0
        """What is appended after that is of no earlier time."""
        self._looked_at: int | None = None
        self._elsewhere: dict[int, int | None] = {}
        """Until when the partitions of others were routed."""
        self._stalls = Stalls(sensor.topic)
        self._routed_ahead: deque[int] = deque()
        self.queued = self.queued_bytes = 0

    @property
    def is_in_order(self) -> bool:
        """Whether each partition is in the order of time, as far as is known: where the log's own
        clock may have been set back, its Sensor says so by a grace."""
        return self.is_log_time and self._declared is None

    @property
    def grace(self) -> int:
        """Milliseconds by which an event's time may be before that of one which was read."""
        if self._declared is not None:
            return self._declared
        return KAFKAS_GRACE if self.is_log_time else SENDERS_GRACE

    @property
    def stalled(self) -> frozenset[int]:
        """Partitions that aren't waited for any more."""
        return self._stalls.partitions

    # Partitions

    def assigned(self, number: int, position: int, routed: Routed) -> None:
        """A partition is ours, read on from `position`; `routed` was committed with it."""
        self._own[number] = Queue(position, routed.until, routed.until)
        self._hear_of_senders(routed)
        self._looked_at = None

    def revoked(self, number: int) -> None:
        if (each := self._own.pop(number, None)) is not None:
            self._drop(each)

    def go_back(self, positions: Mapping[Partition, int]) -> None:
        """What isn't committed is read again."""
        for number, queue in self._own.items():
            self._drop(queue)
            queue.next = positions.get(Partition(self._topic, number), 0)
            queue.seen = queue.committed
        self._routed_ahead.clear()

    def _drop(self, each: Queue) -> None:
        self.queued -= len(each.queue)
        self.queued_bytes -= each.bytes
        each.queue.clear()
        each.bytes = 0

    # What was read

    def read(self, record: Record, at: int, now: int) -> tuple[int, bool]:
        """A record was read, of this time: since when it is known that none before it is missing,
        and whether others of its partition wait."""
        each = self._own[record.partition()]
        each.next = record.offset() + 1
        is_log_time = record.timestamp()[0] == LOG_APPEND_TIME
        self.is_log_time, self._has_read = is_log_time, True
        if not self._latest or at > self._latest[-1][0]:
            self._latest.append((at, now))
        reached = at if self.is_in_order else at - self.grace
        each.seen = reached if each.seen is None else max(each.seen, reached)
        return each.seen, bool(each.queue)

    def reached(self, number: int, end: int) -> None:
        """A partition was read to its end."""
        if number in self._own:
            self._own[number].next = max(end, self._own[number].next)

    def enqueue(self, arrival: Arrival) -> None:
        """An event waits until it is next."""
        each = self._own[arrival.place.partition]
        each.queue.append(arrival)
        each.bytes += arrival.size
        self.queued += 1
        self.queued_bytes += arrival.size

    def position(self, number: int) -> int:
        """Where a partition is read on by who begins with what is routed."""
        each = self._own[number]
        return each.queue[0].place.offset if each.queue else each.next

    def routed(self, number: int) -> int | None:
        """Until when everything of a partition of ours was routed."""
        each = self._own[number]
        return each.queue[0].since if each.queue else self._read_until(number)

    def committed(self, number: int, until: int | None) -> None:
        self._own[number].committed = until

    # Order

    @property
    def first(self) -> int | None:
        """The time of the first event that waits; None: none does."""
        return min(
            (queue.queue[0].place.at for queue in self._own.values() if queue.queue), default=None
        )

    @property
    def is_shared(self) -> bool:
        """Whether others read a part of it, as far as is known."""
        return not self._ends or not self._ends.keys() <= self._own.keys()

    @property
    def has_next(self) -> bool:
        """Whether an event waits that could be routed."""
        if not self.queued or (self.is_in_order and self._is_full):
            return False
        bounds = self._bounds()
        return any(
            queue.queue and bounds.allows(queue.queue[0].place, self.is_in_order)
            for queue in self._own.values()
        )

    @property
    def waits_for(self) -> int | None:
        """The time of the first event that can't be routed before more is known; None: there is
        none."""
        return self.first if self.queued and not (self._ends and self.has_next) else None

    @property
    def first_ahead(self) -> int | None:
        """The time of the first event that was routed ahead of others, where no more may be."""
        return self._routed_ahead[0] if self._routed_ahead and self._is_full else None

    @property
    def next_look(self) -> int:
        """When more will be known of what was read last, by our clock."""
        return self._latest[0][1] + self.grace if self._latest else 0

    @property
    def _is_full(self) -> bool:
        return len(self._routed_ahead) >= AHEAD_RECORDS

    def ready(self, limit: int) -> Iterator[tuple[Arrival, int | None]]:
        """Events that are next, each taken out of its queue, with what is known for certain:
        until when everything of the bus is in the trigger topic in front of it, but for what comes
        later than itself; None: nothing is."""
        if not self.queued:
            return
        in_order, bounds = self.is_in_order, self._bounds()
        elsewhere = self._minimum(None)
        before = None if in_order else self.routed_until
        heads = [(queue.queue[0].place, queue) for queue in self._own.values() if queue.queue]
        heapify(heads)
        while heads:
            place, each = heappop(heads)
            bound = bounds.of(place.partition) if in_order else FOR_EVER
            until = None if elsewhere is None else min(elsewhere, bound)
            queue, following = each.queue, heads[0][0] if heads else LAST
            while place < following:
                if limit <= 0 or place.at >= bound or (in_order and self._is_full):
                    return
                arrival = queue.popleft()
                each.bytes -= arrival.size
                self.queued -= 1
                self.queued_bytes -= arrival.size
                limit -= 1
                if in_order and (until is None or place.at >= until):
                    self._routed_ahead.append(place.at)
                yield arrival, until if in_order else before
                if not queue:
                    break
                place = queue[0].place
            else:
                heappush(heads, (place, each))

    def _bounds(self) -> Bounds:
        untils = [
            (-1 if (until := self._read_until(number)) is None else until, number)
            for number in self._own
            if number not in self.stalled
        ]
        untils.sort()
        first, number = untils[0] if untils else (FOR_EVER, -1)
        return Bounds(first, number, untils[1][0] if len(untils) > 1 else FOR_EVER)

    @property
    def read_until(self) -> int | None:
        """Until when everything of the bus was read, or was routed by others; None: that isn't
        known."""
        return self._minimum(self._read_until)

    @property
    def routed_until(self) -> int | None:
        """Until when everything of the bus is in the trigger topic, if all that was routed is
        committed; None: that isn't known."""
        return self._minimum(self.routed)

    def _minimum(self, own: Callable[[int], int | None] | None) -> int | None:
        """Over all partitions, ours by `own`; None: over those of others, the least of none being
        `FOR_EVER`."""
        if not self._ends:
            return None
        found = FOR_EVER if own is None else None
        for number in (self._ends.keys() | self._own.keys()) - self.stalled:
            if number not in self._own:
                until = self._elsewhere.get(number)
            elif own is not None:
                until = own(number)
            else:
                continue
            if until is None:
                return None
            found = until if found is None else min(found, until)
        return found

    def _read_until(self, number: int) -> int | None:
        each = self._own[number]
        end = self._ends.get(number)
        if end is None or each.next < end:
            return each.seen
        return self._asked_until if each.seen is None else max(self._asked_until, each.seen)

    def _is_behind(self, number: int) -> bool:
        end = self._ends.get(number)
        return end is not None and self._own[number].next < end

    def forget_ahead(self) -> None:
        """What was routed ahead of others is so no more where they have followed. While nothing is
        routed that isn't committed."""
        if self._routed_ahead and (until := self.routed_until) is not None:
            while self._routed_ahead and self._routed_ahead[0] < until:
                self._routed_ahead.popleft()

    # Questions

    def refresh(self, now: int, wanted: int, since: int = 0) -> None:
        """Ask Kafka, if it may help to know more than until `wanted`, or if nothing was asked since
        another time. Raises `LogError`."""
        known = self.read_until if self._looked_at is not None else None
        if known is not None and known > wanted and self.ended_at >= since:
            return
        interval = UNANSWERED_INTERVAL if None in self._ends.values() else ASK_INTERVAL
        if self._looked_at is not None and now - self._looked_at < interval:
            return
        if not self.is_shared and any(
            self._is_behind(number) and (self._read_until(number) or 0) <= wanted
            for number in self._own
        ):
            self._note(now, wanted)
            return  # it is for us to read on
        ends = self._log.reachable_ends(self._topic)
        self._ends, self._asked_until = ends, self._from_now_on(now)
        if self.is_shared:
            committed = self._log.committed_now(self._topic)
            for commit in committed.values():
                self._hear_of_senders(records.routed_in(commit.metadata))
            for number in ends.keys() - self._own.keys():
                self._hear(number, committed.get(number), ends[number])
        self._compare(now)
        self._note(now, wanted)

    def _compare(self, now: int) -> None:
        """Whether all ends of some moment are reached."""
        for asked_at, ends in (*filter(None, [self._looked_for]), (now, self._ends)):
            if not all(map(self._is_reached, ends.items())):
                self._looked_for = asked_at, ends
                return
            self._looked_for, self.ended_at = None, asked_at

    def _is_reached(self, end: tuple[int, int | None]) -> bool:
        number, offset = end
        own = self._own.get(number)
        position = self._others_at.get(number, 0) if own is None else own.next
        return number in self.stalled or (offset is not None and position >= offset)

    def _from_now_on(self, now: int) -> int:
        """What is appended from now on is of no earlier time: than what was read a grace ago, as it
        was there before; and than now by our clock, which may be wrong by as much as senders'."""
        while self._latest and self._latest[0][1] <= now - self.grace:
            self._before = self._latest.popleft()[0] + 1
        return max(self._before, now - max(self.grace, SENDERS_GRACE))

    def _hear(self, number: int, committed: OffsetAndMetadata | None, end: int | None) -> None:
        """What another process has committed of a partition, after its end was asked for."""
        offset = 0 if committed is None else committed.offset
        self._others_at[number] = offset
        routed = Routed() if committed is None else records.routed_in(committed.metadata)
        until = routed.until
        if end is not None and offset >= end:
            at_end = self._asked_until
            until = at_end if until is None else max(at_end, until)
        before = self._elsewhere.get(number)
        if until is not None:
            self._elsewhere[number] = until if before is None else max(before, until)

    def _hear_of_senders(self, routed: Routed) -> None:
        """Who has read no record has it from others whose the times are."""
        if routed.by_sender and not self._has_read:
            self.is_log_time = False

    def _note(self, now: int, wanted: int) -> None:
        """Who holds up, and for how long."""
        self._looked_at = now
        untils: dict[int, int | None] = {}
        for number in self._ends.keys() | self._own.keys():
            if number not in self._own:
                untils[number] = self._elsewhere.get(number)
            elif self._is_behind(number) or self._ends.get(number) is None:
                untils[number] = self._read_until(number)
        self._stalls.note(now, wanted, untils)

    def balance(self) -> None:
        """Have no partition read on that is far ahead of the others, while much waits. The one that
        was read least far is what they wait for, and read on unless all wait for others."""
        share, least = max(1, len(self._own)), self._bounds().first
        is_much = self.queued > QUEUED_RECORDS or self.queued_bytes > QUEUED_BYTES
        is_little = 2 * self.queued < QUEUED_RECORDS and 2 * self.queued_bytes < QUEUED_BYTES
        pausing, resuming = list[int](), list[int]()
        for number, queue in self._own.items():
            is_ahead = (
                len(queue.queue) * share > QUEUED_RECORDS or queue.bytes * share > QUEUED_BYTES
            )
            is_least = not self._is_full and (self._read_until(number) or 0) <= least
            if is_much and is_ahead and not is_least and not queue.is_paused:
                pausing.append(number)
            elif queue.is_paused and (is_little or is_least):
                resuming.append(number)
        for numbers, is_paused in ((pausing, True), (resuming, False)):
            if numbers:
                self._log.pause(
                    [Partition(self._topic, number) for number in numbers], on=is_paused
                )
            for number in numbers:
                self._own[number].is_paused = is_paused
