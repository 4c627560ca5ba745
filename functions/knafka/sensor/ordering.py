"""Puts the records that a process reads from the bus and the trigger topic in order of time.

    bus            take_in --queue--> route      in the order of all partitions that are ours
    trigger topic  take_in --InOrder--> reduce   in the order of all partitions of the bus

The bus is the topic whose events a Sensor reads. An event is routed through the trigger topic, the
Sensor's own, to each trigger that it concerns, and there applied to the trigger ("reduce").

Kafka is asked up to which time everything was read, but only while a record waits for its turn or a
timer is due. Not here: handling events (`handlers`), and transactions (`processor`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from knafka.core.sensor import records
from knafka.core.sensor.contract import SensorContract
from knafka.core.sensor.order import InOrder, Routed, Taken
from knafka.core.sensor.routing import Router
from knafka.core.sensor.rules import Rule
from knafka.observability import RateLimitedFilter
from knafka.ports.log import Record
from knafka.ports.transactions import Partition, TransactionalLog
from knafka.sensor.batch import MAX_BATCH_RECORDS, Batch
from knafka.sensor.bus import BusPartitions
from knafka.sensor.handlers import Collected, Handlers
from knafka.sensor.tracing import SensorTracing
from knafka.sensor.watermark import Watermark

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter(by_wording=True))

SHORTEST_CHECK_WAIT: Final = 0.005
"""Least seconds between two checks of the records that wait for their turn."""
LONGEST_CHECK_WAIT: Final = 0.02
"""Most seconds between two checks of the records that wait for their turn."""
HELD_BACK_RECORDS: Final = 50_000
"""Most records of the trigger topic that may wait in a process for their turn. If more wait, the
first of them are taken, although an earlier event may still come."""
HELD_BACK_BYTES: Final = 64 * 1024 * 1024
"""`HELD_BACK_RECORDS` in bytes of their values."""


class Ordering:
    """The records of one process that wait for their turn. Times are ms since the Unix epoch."""

    def __init__(
        self,
        sensor: SensorContract,
        rules: Mapping[str, Rule],
        router: Router,
        log: TransactionalLog,
        tracing: SensorTracing | None,
    ) -> None:
        """Begin without partitions. `rules` has the rules by the triggers' names, `router` finds
        the triggers of an event, and `log` is asked for ends and commits. `tracing` None: no spans
        are made."""
        self._sensor = sensor
        self._bus = BusPartitions(sensor, log)
        self._watermark = Watermark(sensor, log)
        self._handlers = Handlers(sensor, rules, router, self._bus, tracing)
        self._positions: dict[Partition, int] = {}
        """The committed offset of each partition that is ours."""
        self._read_to: dict[int, int] = {}
        """The next offset to read of each partition of the trigger topic."""
        self._taken: dict[int, Taken | None] = {}
        """For each partition of the trigger topic: the committed note on which records after the
        committed offset were taken already; None: none were."""
        self._ordered: dict[int, InOrder[Collected]] = {}
        """Records of each partition of the trigger topic that wait for their turn."""

    # Partitions

    def on_assigned(self, partition: Partition, position: int, metadata: str, now: int) -> None:
        """Take over a partition of the bus or the trigger topic at `now` (ms); `position` and
        `metadata` are the offset and the text of its last commit."""
        number = partition.number
        self._positions[partition] = position
        if partition.topic == self._sensor.topic:
            self._bus.on_assigned(number, position, records.parse_routed(metadata, now))
        else:
            self._watermark.forget()
            self._read_to[number] = position
            self._taken[number] = records.parse_taken(metadata)
            self._ordered[number] = InOrder(self._taken[number])

    def on_revoked(self, partition: Partition) -> None:
        """Forget a partition, which belongs to another process now, and its waiting records."""
        self._positions.pop(partition, None)
        if partition.topic == self._sensor.topic:
            self._bus.on_revoked(partition.number)
        else:
            for by_partition in (self._read_to, self._taken, self._ordered):
                by_partition.pop(partition.number, None)

    @property
    def partitions(self) -> Sequence[Partition]:
        """The partitions of the bus and of the trigger topic that this process owns."""
        return list(self._positions)

    def position(self, partition: Partition) -> int:
        """Return the committed offset of a partition that this process owns."""
        return self._positions[partition]

    # Waiting events

    @property
    def waiting(self) -> int:
        """Number of events that were read and wait for their turn."""
        return self._bus.queued + sum(map(len, list(self._ordered.values())))

    @property
    def stalled(self) -> Collection[int]:
        """Partitions of the bus for which records no longer wait, as reading them has made no
        progress for too long (`Stalls`)."""
        return self._bus.progress.stalled

    @property
    def first_time(self) -> int | None:
        """The time of the earliest event that waits for its turn; None if none waits."""
        times = (self._bus.first_time, self.first_collected_time)
        return min((time for time in times if time is not None), default=None)

    @property
    def first_collected_time(self) -> int | None:
        """The time of the earliest event of the trigger topic that waits for its turn; None if none
        waits."""
        times = (order.first for order in self._ordered.values())
        return min((time for time in times if time is not None), default=None)

    @property
    def has_next(self) -> bool:
        """Whether a record that was read is next in order, so that the next batch takes it."""
        return self._bus.has_next or any(order.has_next for order in self._ordered.values())

    def seconds_to_next_check(self, now: int) -> float | None:
        """Return the seconds from `now` until the records that wait are to be checked again, from
        `SHORTEST_CHECK_WAIT` to `LONGEST_CHECK_WAIT`; None if none waits."""
        if self.first_time is None:
            return None
        seconds = (self._bus.times.next_check_time - now) / 1000
        if seconds <= 0:  # the check at that time was made already
            return LONGEST_CHECK_WAIT
        return min(max(SHORTEST_CHECK_WAIT, seconds), LONGEST_CHECK_WAIT)

    @property
    def grace(self) -> int:
        """Milliseconds by which an event may be older than one that was read before it."""
        return self._bus.times.grace

    @property
    def ends_requested_at(self) -> int:
        """When, by our clock, the bus's end offsets were requested on which `known_until` is based;
        0: they weren't yet."""
        return self._watermark.ends_requested_at

    @property
    def known_until(self) -> int | None:
        """The time before which every event for this process's partitions of the trigger topic was
        read, as Kafka's last answers show; None: not known."""
        return self._watermark.known_until

    # In a batch

    def take_in(
        self,
        new_records: Sequence[Record],
        reached: Mapping[Partition, int],
        batch: Batch,
        now: int,
        first_at: int,
    ) -> int:
        """Take in the records of one read, and the ends of partitions that the read has `reached`:
        each record is queued, or handled at once if it need not wait. The first record came at
        `first_at`, the last by `now`. Returns the number of events of the trigger topic that were
        handled at once."""
        bus_topic, count, known_until = self._sensor.topic, 0, self._watermark.known_until
        for index, record in enumerate(new_records):
            if record.topic() == bus_topic:
                self._handlers.take_in(record, batch, now, first_at if index == 0 else now)
            else:
                number = record.partition()
                self._read_to[number] = record.offset() + 1
                if self._handlers.collect(record, self._ordered[number], batch, now, known_until):
                    batch.taken.setdefault(number, None)
                    count += 1
        for (topic, number), end in reached.items():
            if topic == bus_topic:
                self._bus.note_end(number, end)
            elif number in self._read_to:
                self._read_to[number] = end
        return count

    def refresh(self, now: int, due: int | None, since: int) -> None:
        """Find out from Kafka up to which time everything was read, if a waiting record or the
        timer at `due` (None: no timer) depends on it, and note it for the waiting records. For the
        timer, only requests made at `since` or later count. Call this only while every routed event
        is committed. Raises `LogError`."""
        bus, progress, ordered = self._bus, self._bus.progress, self._ordered
        waiting_times = [at for order in ordered.values() if (at := order.first) is not None]
        times = [*waiting_times, bus.first_blocked_time, bus.first_ahead_time, due]
        # Ask only for the first of these times up to which not everything is known to be read.
        for at in sorted(time for time in times if time is not None):
            asked_since = since if at == due else 0  # 0: for a record, any request counts
            read_until = progress.read_until
            is_read = read_until is not None and read_until > at
            if not is_read or progress.reached_request_at < asked_since:
                progress.refresh(now, at, asked_since)
                break
        bus.drop_events_no_longer_ahead()
        if waiting_times or due is not None:
            known_until = self._watermark.update(
                progress.routed_until, progress.reached_request_at, self._read_to
            )
            if known_until is not None:
                for order in ordered.values():
                    order.note_read_until(known_until)

    def route(self, batch: Batch) -> int:
        """Route the events of the bus that are next in order, at most `MAX_BATCH_RECORDS`, to their
        triggers; the outputs are added to the batch. Returns the number of events."""
        count = 0
        for arrival, until in self._bus.take_ready(MAX_BATCH_RECORDS):
            self._handlers.route(arrival, batch, until)
            count += 1
        return count

    def reduce(self, batch: Batch) -> int:
        """Apply the events of the trigger topic that are next in order, or too late for their
        order, at most `MAX_BATCH_RECORDS`, to their triggers; the outputs are added to the batch.
        Returns the number of events."""
        count, partitions = 0, max(1, len(self._ordered))
        # Each partition's share of the process's limits.
        limits = HELD_BACK_RECORDS // partitions, HELD_BACK_BYTES // partitions
        for number, ordered in self._ordered.items():
            for collected, late in ordered.take(MAX_BATCH_RECORDS - count, *limits):
                self._handlers.reduce(collected, batch)
                count += 1
                batch.taken.setdefault(number, None)
                if late and collected.decoded is not None:
                    trigger = records.trigger_of(collected.decoded.key)
                    batch.counts.late[trigger] += 1
                    log.warning(
                        "an event for %.200s came %d ms too late for its order, and counts as if"
                        " it had come now",
                        trigger,
                        late,
                    )
        return count

    def note_expired(self, number: int, until: int) -> None:
        """Note that all timers before `until` were handled in the partition `number` of the trigger
        topic: its events before that time are late from now on."""
        self._ordered[number].mark_decided(until)

    def set_positions(self, batch: Batch) -> None:
        """Add to the batch the offsets to commit and the contents of their metadata
        (`Batch.metadata`), for the partitions in which these have changed since the last
        commit."""
        for partition, committed in self._positions.items():
            number = partition.number
            if partition.topic == self._sensor.topic:
                position = self._bus.position(number)
                if position != committed:
                    batch.positions[partition] = position
                    until = self._bus.progress.own_routed_until(number)
                    batch.routed[number] = Routed(until, not self._bus.times.is_log_time)
                continue
            ordered, next_offset = self._ordered[number], self._read_to[number]
            position = ordered.position(next_offset)
            has_changes = number in batch.taken or partition in batch.positions
            if position != committed or has_changes:
                batch.positions[partition] = position
                batch.taken[number] = ordered.taken(next_offset)

    def note_batch_committed(self, batch: Batch) -> None:
        """Note that the batch was committed: its offsets, and the contents of their metadata, are
        the committed ones now."""
        self._positions.update(batch.positions)
        self._taken.update(batch.taken)
        for number, routed in batch.routed.items():
            self._bus.note_committed_time(number, routed.until)

    def go_back(self) -> None:
        """Go back to the committed offsets, as the transaction was aborted: everything after them
        is read again."""
        self._bus.go_back(self._positions)
        self._watermark.forget()  # it was valid for the old positions only
        for number, committed_taken in self._taken.items():
            self._ordered[number] = InOrder(committed_taken)
            self._read_to[number] = self._positions[Partition(self._sensor.trigger_topic, number)]

    def balance(self) -> None:
        """Pause partitions of the bus that are far ahead of the others while much waits, and resume
        them later."""
        self._bus.balance()
