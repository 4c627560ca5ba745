"""Intake: which partitions may be read, and what becomes of each record that was read.

record --settled before--> skipped
       --filter--no------> settled
                 \\--yes-> event, with its request --lane--> workers
       --no event--------> dead letter

To bound memory, a partition that holds more than its share of unsettled records is not read until
it has caught up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, cast

from knafka.core.contract import Egress
from knafka.core.errors import InvalidEvent
from knafka.core.events.http_binding import located_request_of, request_of
from knafka.core.events.kafka_binding import Envelope, RecordHeaders, headers_of, read
from knafka.core.filters.predicates import compile_trigger
from knafka.dispatcher.engine.clients import Format, Parser
from knafka.dispatcher.engine.counts import DrainCounts
from knafka.dispatcher.engine.pending import AssignedPartition, PendingEvent, lane_function
from knafka.dispatcher.engine.selecting import SelectedRecord
from knafka.dispatcher.engine.sending.destinations import delivery_head
from knafka.dispatcher.engine.sending.sender import Sender
from knafka.dispatcher.engine.tracing import EgressTracing
from knafka.dispatcher.engine.workers import Workers
from knafka.ports.log import Record

READ_LIMIT: Final = 500
"""Records that one read returns at most: enough to make the thread switch cheap, few enough to be
fair."""
JOIN_PATIENCE: Final = 50.0
"""Least seconds that a drain without partitions waits before it counts as idle: the group may have
to notice a dead member first, which takes a session's 45 s (docs/decisions/0013)."""
FIRST_READ_PATIENCE: Final = 10.0
"""Least seconds without work before a drain counts as idle while it has a partition of which it has
got neither a record nor the end."""
MIN_IDLE: Final = 1.0
"""Least seconds without work before any other drain counts as idle."""
MAX_UNSETTLED: Final = 10_000
"""Most unsettled records at once in all partitions. The more there are, the further other keys may
run ahead of a slow one."""


class HeldPartitions(dict[int, AssignedPartition]):
    """The partitions that the group has assigned to one drain, by number: what they hold, and which
    of them may be read."""

    def __init__(self, max_held_bytes: Callable[[], int]) -> None:
        """`max_held_bytes` returns the most bytes of requests that may be held."""
        super().__init__()
        self.max_records = MAX_UNSETTLED
        """Unsettled records that all partitions may hold together, in equal shares."""
        self.min_share = READ_LIMIT
        """Unsettled records that each partition may hold at least."""
        self.may_read: Callable[[], bool] = lambda: True
        """Returns whether any partition may be read now; `AtMostOnceDrain` sets it."""
        self.touched: set[AssignedPartition] = set()
        """Partitions with records for this drain since their last commit, or with unsettled
        ones."""
        self._max_held_bytes = max_held_bytes

    def with_numbers(self, numbers: Iterable[int]) -> list[AssignedPartition]:
        """Return the assigned ones of the partitions with these numbers."""
        return [self[number] for number in numbers if number in self]

    @property
    def unsettled(self) -> int:
        """The number of unsettled records."""
        return sum([len(partition.tracker.unsettled) for partition in self.values()])

    @property
    def held_bytes(self) -> int:
        """The bytes of the requests for unsettled records."""
        return sum(partition.held_bytes for partition in self.values())

    @property
    def min_idle(self) -> float:
        """Least seconds without work before the drain counts as idle: `JOIN_PATIENCE` without
        partitions, `FIRST_READ_PATIENCE` while some partition has brought neither a record nor its
        end, else `MIN_IDLE`."""
        if not self:
            return JOIN_PATIENCE
        positions = [partition.tracker.position for partition in self.values()]
        return FIRST_READ_PATIENCE if None in positions else MIN_IDLE

    @property
    def has_attempts(self) -> bool:
        """Whether any attempt is under way."""
        return any(partition.in_flight for partition in self.values())

    @property
    def has_paused(self) -> bool:
        """Whether reading any partition is paused."""
        return any(partition.paused for partition in self.values())

    @property
    def unpaused(self) -> list[AssignedPartition]:
        """The partitions whose reading isn't paused."""
        return [partition for partition in self.values() if not partition.paused]

    @property
    def to_pause(self) -> list[AssignedPartition]:
        """The partitions whose reading isn't paused and must be. These are all unpaused ones if
        nothing may be read. Else they are those that hold their share of records or bytes, or whose
        commit metadata is full."""
        if not self.may_read():
            return self.unpaused
        share, held, max_bytes = self._share, self.held_bytes, self._max_held_bytes()
        return [
            partition
            for partition in self.unpaused
            if len(partition.tracker.unsettled) >= share
            or not partition.may_read
            or not self._may_hold_more(partition, held, max_bytes)
        ]

    def has_room(self, partition: AssignedPartition) -> bool:
        """Whether a paused partition may be read again: it holds at most half of its share of
        records and of bytes. So reading isn't paused and resumed for each record."""
        return (
            self.may_read()
            and len(partition.tracker.unsettled) <= self._share // 2
            and partition.may_read
            and self._may_hold_more(partition, self.held_bytes, self._max_held_bytes() // 2)
        )

    def _may_hold_more(self, partition: AssignedPartition, held: int, limit: int) -> bool:
        """Whether a partition may hold more bytes if all partitions, which hold `held`, may hold
        `limit`.

        One of several may hold as many as are still free, and thus half of them at most, as its
        events may wait for long. It has a small share also while the others hold too many bytes,
        until all partitions hold twice what they may.
        """
        if len(self) == 1:
            return held < limit
        smallest_share = limit // (2 * len(self))
        is_below_double = held < 2 * self._max_held_bytes()
        return is_below_double and partition.held_bytes < max(limit - held, smallest_share)

    @property
    def _share(self) -> int:
        """The number of unsettled records that one partition may hold."""
        return max(self.min_share, self.max_records // max(1, len(self)))

    def forget(self, number: int) -> None:
        """Close and forget a partition that belongs to another dispatcher now; does nothing if it
        is forgotten already."""
        if partition := self.pop(number, None):
            partition.close()
            self.touched.discard(partition)


class Intake:
    """Parses and filters the records of one drain, and queues the matching events."""

    def __init__(
        self, egress: Egress, parser: Parser | None, tracing: EgressTracing | None,
        partitions: HeldPartitions, sender: Sender, workers: Workers, counts: DrainCounts,
    ) -> None:  # fmt: skip
        """Compile the filter. Matching events go to `workers`; `sender` makes dead letters of
        records without an event. `parser` None: records are parsed for this drain alone; `tracing`
        None: no spans are recorded."""
        self._matches_filter = compile_trigger(
            egress.filter, egress.filters, counts.count_filter_error
        )
        self._lane_of = lane_function(egress.order)
        # Copied from the Egress: with many Triggers in a process, reading its attributes for each
        # record would miss the CPU's cache.
        self._head = b"prefer: reply\r\n" + delivery_head(egress)
        self._format: Format = "batch" if egress.batch else egress.delivery.format
        self._has_position = egress.record_position  # whether requests say where the record was
        self._envelope_of = _parse if parser is None else parser.envelope
        self._request_of = encode_request if parser is None else parser.request
        self._tracing = tracing
        self._partitions = partitions
        self._sender = sender
        self._workers = workers
        self._counts = counts.events

    def take(self, records: Sequence[Record]) -> None:
        """Parse and filter records. Matching ones are tracked and queued in their lanes, each with
        the encoded request that all attempts at its event share (KN-DP-06, KN-DP-11). A record that
        fails, such as one without an event, is queued as a dead letter."""
        matches_filter, counts, tracing = self._matches_filter, self._counts, self._tracing
        envelope_of, encode = self._envelope_of, self._request_of
        partition_of, touched = self._partitions.get, self._partitions.touched
        for record in records:
            partition = partition_of(record.partition())
            if partition is None:
                continue  # revoked while the batch was on its way: its next owner reads it
            touched.add(partition)
            tracker, offset = partition.tracker, record.offset()
            if tracker.has_inherited_ranges and tracker.was_settled(offset):
                tracker.skip(offset)
                continue
            counts.read += 1
            # A shared reader has applied the filter, unless the record is for all drains.
            is_preselected = (
                offset >= partition.matching_from and not cast(SelectedRecord, record).is_for_all
            )
            event: PendingEvent | None = None
            headers: RecordHeaders | None = None
            try:
                headers = headers_of(record)
                envelope = envelope_of(record, headers)
                trace = (
                    None
                    if tracing is None or is_preselected
                    else tracing.start_filter_span(envelope)
                )
                if is_preselected or matches_filter(envelope.attributes):
                    event = PendingEvent(record, headers, partition, self._lane_of(record.key()))
                    event.head, event.body = encode(
                        record, envelope, self._format, self._head,
                        partition.kafka_number if self._has_position else None,
                    )  # fmt: skip
                    event.size = len(event.head) + len(event.body)
                if trace is not None:
                    trace.end_filter_span(passes=event is not None)
                    if event is not None:
                        event.trace = trace
            except Exception as error:  # only this record fails; the others go on
                # A record without an event belongs to no lane: no event waits behind it.
                lane = None if isinstance(error, InvalidEvent) else self._lane_of(record.key())
                event = PendingEvent(record, headers, partition, lane)
                event.size = len(record.value() or b"")
                self._sender.give_up(event, error)
            if event is None:  # the filter refuses it
                counts.filtered += 1
                tracker.skip(offset)
                partition.restored.pop(offset, None)
            else:
                tracker.track(offset, event)
                self._admit(event)

    def _admit(self, event: PendingEvent) -> None:
        """Queue an event in its lane, and give it to the workers if it is the lane's next. If an
        earlier owner of the partition began the delivery, continue where that owner stopped, after
        the rest of the backoff."""
        partition = event.partition
        partition.held_bytes += event.size
        wait = 0.0
        if partition.restored and (state := partition.restored.pop(event.offset, None)):
            wait = self._sender.resume(event, state, same_policy=partition.same_policy)
            partition.retrying.add(event)
        if partition.lanes.admit(event.lane, event):
            if wait:
                self._workers.add_later(event, wait)
            else:
                self._workers.add(event)


def _parse(record: Record, headers: RecordHeaders | None) -> Envelope:
    """Parse the event of a record with these headers (None: it has none). Raises
    `InvalidEvent`."""
    return read(headers, record.value())


def encode_request(
    record: Record, envelope: Envelope, format_: Format, prefix: bytes, partition: int | None
) -> tuple[bytes, bytes]:
    """Encode the request that delivers a record's event, in the mode `format_` (None: in the
    record's mode). Returns the header lines, which begin with the lines `prefix`, and the body.
    `partition`: Kafka's number of the record's partition. The request then has this number and the
    record's offset as attributes of the event; None: it has neither."""
    if partition is None:
        head, body = request_of(envelope, format_)
    else:
        head, body = located_request_of(envelope, partition, record.offset(), format_)
    return prefix + head, body
