"""Intake: parses and filters each record that was read, and queues the events to send.

record --settled before--> skipped
       --filter--no------> settled
                 \\--yes-> event, with its request --lane--> workers
       --no event--------> dead letter
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from knafka.core.contract import Egress
from knafka.core.errors import InvalidEvent
from knafka.core.events.http_binding import located_request_of, request_of
from knafka.core.events.kafka_binding import Envelope, RecordHeaders, headers_of, read
from knafka.core.filters import compile_trigger
from knafka.dispatcher.engine.clients import Format, Parser
from knafka.dispatcher.engine.counts import DrainCounts
from knafka.dispatcher.engine.lanes import lane_function
from knafka.dispatcher.engine.pending import HeldPartitions, PendingEvent
from knafka.dispatcher.engine.selecting import SelectedRecord
from knafka.dispatcher.engine.sending.destinations import delivery_head
from knafka.dispatcher.engine.sending.sender import Sender
from knafka.dispatcher.engine.tracing import EgressTracing
from knafka.dispatcher.engine.workers import Workers
from knafka.ports.log import Record


class Intake:
    """Parses and filters the records of one drain, and queues the matching events."""

    def __init__(
        self, egress: Egress, parser: Parser | None, tracing: EgressTracing | None,
        partitions: HeldPartitions, sender: Sender, workers: Workers, counts: DrainCounts,
    ) -> None:  # fmt: skip
        """Compile the filter. `parser`: None if records are parsed for this drain alone; `tracing`:
        None if spans are not recorded; matching events go to `workers`, records without an event to
        `sender` as dead letters."""
        self._matches_filter = compile_trigger(
            egress.filter, egress.filters, counts.count_filter_error
        )
        self._lane_of = lane_function(egress.order)
        # Copied from the Egress: with many Triggers in a process, reading its attributes for each
        # record would miss the CPU's cache.
        self._head = b"prefer: reply\r\n" + delivery_head(egress)
        self._format: Format = "batch" if egress.batch else egress.delivery.format
        self._has_position = egress.record_position
        self._envelope_of = _parse if parser is None else parser.envelope
        self._request_of = encode_request if parser is None else parser.request
        self._tracing = tracing
        self._partitions = partitions
        self._sender = sender
        self._workers = workers
        self._counts = counts.events

    def take(self, records: Sequence[Record]) -> None:
        """Parse and filter records; track the matching ones, encode the request that all attempts
        of an event share (KN-DP-06, KN-DP-11), and queue them in their lanes."""
        passes, counts, tracing = self._matches_filter, self._counts, self._tracing
        envelope_of, encode = self._envelope_of, self._request_of
        partition_of, touched = self._partitions.get, self._partitions.touched
        for record in records:
            partition = partition_of(record.partition())
            if partition is None:
                continue  # revoked while the batch was on its way: its next owner reads it
            touched.add(partition)
            tracker, offset = partition.tracker, record.offset()
            if tracker.has_settled_ahead and tracker.was_settled(offset):
                tracker.skip(offset)
                continue
            counts.read += 1
            is_preselected = (
                offset >= partition.matching_from and not cast(SelectedRecord, record).is_for_all
            )
            event: PendingEvent | None = None
            headers: RecordHeaders | None = None
            try:
                headers = headers_of(record)
                envelope = envelope_of(record, headers)
                trace = None if tracing is None or is_preselected else tracing.begin(envelope)
                if is_preselected or passes(envelope.attributes):
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
            if event is None:
                counts.filtered += 1
                tracker.skip(offset)
                partition.restored.pop(offset, None)
            else:
                tracker.track(offset, event)
                self._admit(event)

    def _admit(self, event: PendingEvent) -> None:
        """Queue an event in its lane, and give it to the workers if it is the lane's next. If an
        earlier owner of the partition began its delivery, continue there, after the rest of its
        backoff."""
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
    """Parse the record's event; `headers` are the record's. Raises `InvalidEvent`."""
    return read(headers, record.value())


def encode_request(
    record: Record, envelope: Envelope, format_: Format, prefix: bytes, partition: int | None
) -> tuple[bytes, bytes]:
    """Encode the request that delivers a record's event, in the mode `format_` (None: its
    record's); returns its header lines, after those of `prefix`, and its body. `partition`: Kafka's
    number of the record's partition, to include the attributes with it and the record's offset;
    None: leave them out."""
    if partition is None:
        head, body = request_of(envelope, format_)
    else:
        head, body = located_request_of(envelope, partition, record.offset(), format_)
    return prefix + head, body
