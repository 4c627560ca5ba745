"""Runs a Sensor's two handlers, route and reduce, within transactions (BUS-21, BUS-23).

    bus ------route------> trigger topic --reduce--> changelog: what is held
     |                                      |
     +---simple condition---> action topic <--fires

The bus is the topic whose events the Sensor reads; the other three topics are the Sensor's own. A
trigger holds events until its condition is true; then it fires: an action is written.

The results of a batch of records are appended in one transaction with the offsets behind them, so
that each record counts once even if a process is killed. Held events are in memory and in the
changelog; a process that is assigned a partition reads them from there, and forgets them when the
partition is revoked (BUS-S10). Held events don't hold back an offset: they are no lag.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from knafka.core.cesql import ErrorKind
from knafka.core.delivery import Reason
from knafka.core.drain import Holding
from knafka.core.errors import LogError
from knafka.core.sensor import duplicates, records
from knafka.core.sensor.contract import SensorContract
from knafka.core.sensor.held import Held
from knafka.core.sensor.routing import Router
from knafka.core.sensor.rules import Rule
from knafka.observability import RateLimitedFilter
from knafka.ports.log import OffsetAndMetadata, Record
from knafka.ports.transactions import (
    Output,
    Partition,
    RecordTooLarge,
    TransactionAborted,
    TransactionalLog,
)
from knafka.sensor.batch import MAX_BATCH_RECORDS, Batch, Refused
from knafka.sensor.counts import SensorCounts
from knafka.sensor.expiry import Expiry
from knafka.sensor.ordering import Ordering
from knafka.sensor.state import State
from knafka.sensor.topics import check_topics, find_unreadable_changelogs
from knafka.sensor.tracing import SensorTracing
from knafka.sensor.watermark import MIN_ABSENCE_DELAY, WATERMARK_CHECK_INTERVAL
from knafka.tracing.spans import Tracer

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter(by_wording=True))

GATHERING_SECONDS: Final = 0.02
"""Seconds in which a transaction gathers up to `MAX_BATCH_RECORDS` (BUS-23, BUS-S9)."""

MAX_STEP_BACK: Final = 1_000
"""Most milliseconds by which our clock may be set back while a process runs."""


class Processor:
    """One process's part of a Sensor. It is the `Claims` of its log, which notifies it of the
    partitions that it is assigned and loses. One thread calls `step` again and again."""

    def __init__(
        self,
        sensor: SensorContract,
        open_log: Callable[[Processor], TransactionalLog],
        tracer: Tracer | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the log by `open_log`, which gets this object as the log's `Claims`. `tracer` None:
        no spans are made. `monotonic` (seconds) measures how long a step takes. Raises
        `LogError`."""
        self._tracing = None if tracer is None else SensorTracing(tracer, sensor)
        self.counts = SensorCounts()
        """Counts of the committed transactions. Aborted ones and errors are counted at once."""
        self._sensor = sensor
        self._monotonic = monotonic
        self._rules: dict[str, Rule] = {rule.name: rule for rule in sensor.rules()}
        if (dedupe := sensor.dedupe_millis) is not None:
            mark_rules = (duplicates.rule_of(rule, dedupe) for rule in list(self._rules))
            self._rules.update({rule.name: rule for rule in mark_rules})
        self._state = State(self._rules, sensor.max_held_keys, sensor.max_held_bytes)
        self._refused: Refused = {}
        """Outputs that their topics have refused as too large: for each cause, by topic and record
        key, from which size on an output is left out. Empty again once a transaction without them
        is committed."""
        self._is_compressed = sensor.kafka.producer.get("compression.type", "none") != "none"
        """Whether records are compressed: then a larger record may take fewer bytes in its topic
        than a smaller one."""
        self._has_dead_letter_topic = False
        """Whether the dead-letter topic is known to exist."""
        self._now = 0
        """The time (ms, our clock) of the last read."""
        self._moved_partitions: set[Partition] = set()
        """Partitions that were assigned or revoked since the last read."""
        self._log = open_log(self)
        router = Router(sensor, self._count_error)
        self._ordering = Ordering(sensor, self._rules, router, self._log, self._tracing)
        self._first_read_at = 0
        """The time (ms, our clock) at which the first record of the last read arrived."""
        self._expiry = Expiry(sensor, self._rules, self._state, self._ordering)

    def check_topics(self) -> None:
        """Check that the Sensor's topics exist. Raises `MissingTopics` or another `LogError`."""
        check_topics(self._sensor, self._log)

    def step(self, now: int, patience: float = GATHERING_SECONDS) -> int:
        """Handle the records that come within `patience` seconds, and the timers due at `now` (ms
        since the Unix epoch), in one transaction. Raises `LogError` if the log can't be used any
        more.

        Returns the number of records and keys that were handled. Keys whose timers ran out count
        only if more of them may be left. 0: the drain may count as idle.
        """
        if now < self._now - MAX_STEP_BACK:
            # The noted times up to which everything was read may lie in the future now.
            raise LogError(f"the clock was set back by {(self._now - now) / 1000:g} s: begin anew")
        self._now = self._first_read_at = now
        began = self._monotonic()
        new_records, reached = self._read(self._first_record_timeout(now, patience))
        self._now = now + round((self._monotonic() - began) * 1000)
        batch = Batch(self._sensor, self._state, self._tracing, self._refused, self._now)
        self._make_room(batch)
        self._expiry.fire_fulfilled_by_edit(batch)
        # Events: those that were read, then those that are next in order by now.
        ordering = self._ordering
        handled = ordering.take_in(new_records, reached, batch, self._now, self._first_read_at)
        expiry = self._expiry
        expiry.note_read(batch.late_keys, self._now, has_records=bool(new_records))
        ordering.refresh(self._now, expiry.first_due(now), expiry.needed_since)
        handled += ordering.route(batch) + ordering.reduce(batch)
        # Timers.
        expired = expiry.handle_timers(now, batch)
        self._drop_old_marks(batch)
        ordering.set_positions(batch)
        outputs = batch.outputs
        if batch.positions or outputs:
            self._commit(batch, outputs)
            self._now = now + round((self._monotonic() - began) * 1000)
            ordering.refresh(self._now, expiry.first_due(now), expiry.needed_since)
        ordering.balance()
        return (
            max(len(new_records), handled)
            + (expired if expired == MAX_BATCH_RECORDS else 0)
            + batch.removed_stale
            + batch.dropped_keys
            + batch.keys_fired_by_edit
        )

    def _first_record_timeout(self, now: int, patience: float) -> float:
        """Return the seconds to wait for a first record: `patience`, or less if something else (a
        timer, a waiting record, a clean-up) has to be done earlier; 0 if it has to be done now."""
        due_timer = self._expiry.first_due(now)
        if self._expiry.can_handle(due_timer) or self._ordering.has_next:
            return 0
        # Stale records and fulfilled keys, which an edit of the Sensor leaves to the next batches.
        has_stale = next(self._state.stale_records, None) is not None
        has_fulfilled = next(self._state.fulfilled_keys, None) is not None
        if has_stale or has_fulfilled or self._state.exceeds_limits:
            patience = min(patience, GATHERING_SECONDS)
        elif (next_timer := self._state.first_timer) is not None:
            until_timer = max(WATERMARK_CHECK_INTERVAL, next_timer + MIN_ABSENCE_DELAY - now)
            patience = min(patience, until_timer / 1000)
        if due_timer is not None:  # it waits until more of the bus is known to be read
            patience = min(patience, WATERMARK_CHECK_INTERVAL / 1000)
        seconds_to_check = self._ordering.seconds_to_next_check(now)
        return patience if seconds_to_check is None else min(patience, seconds_to_check)

    def _read(self, patience: float) -> tuple[Sequence[Record], Mapping[Partition, int]]:
        """Return new records, and the end offsets of the partitions that were read to their ends.
        Waits up to `patience` seconds for the first record, then `GATHERING_SECONDS` for more."""
        began = self._monotonic()
        first = self._log.read(1, patience)
        reached = dict(self._log.reached)
        if not first:
            return first, reached
        self._first_read_at += round((self._monotonic() - began) * 1000)
        self._moved_partitions.clear()
        following_records = self._log.read(MAX_BATCH_RECORDS - 1, GATHERING_SECONDS)
        # Drop records and ends of partitions that were revoked meanwhile. If such a partition was
        # assigned again, its records are read again.
        still_owned = [
            record for record in first if _partition_of(record) not in self._moved_partitions
        ]
        moved_or_read = {*self._moved_partitions, *map(_partition_of, following_records)}
        reached = {
            partition: end for partition, end in reached.items() if partition not in moved_or_read
        }
        return [*still_owned, *following_records], {**reached, **self._log.reached}

    @property
    def partitions(self) -> tuple[int, ...]:
        """Numbers of the partitions of the bus and of the trigger topic that this process owns;
        each number comes once, also if it owns both topics' partitions of that number."""
        return tuple(sorted({partition.number for partition in self._ordering.partitions}))

    @property
    def held_keys(self) -> int:
        """Number of triggers, or of their correlation keys, for which events are held here."""
        return self._state.key_count

    @property
    def held_bytes(self) -> int:
        """Size of the events that are held here: the bytes of their JSON."""
        return self._state.held_bytes

    @property
    def due(self) -> int | None:
        """Time (ms since the Unix epoch) of the next firing that needs no further event; None if
        there is none."""
        return self._state.due

    @property
    def is_waiting(self) -> bool:
        """Whether events were read that wait until all earlier ones were."""
        return self._ordering.first_time is not None

    @property
    def waiting(self) -> int:
        """Number of events that were read and wait until all earlier ones were."""
        return self._ordering.waiting

    @property
    def stalled(self) -> Collection[int]:
        """Partitions of the bus that weren't read on for so long that events of the others are
        handled without waiting for them."""
        return self._ordering.stalled

    def holding(self) -> Holding:
        """Return a report of the events that each trigger holds in this process; visits all held
        events."""
        return self._state.holding()

    def held(self) -> Mapping[str, Held]:
        """Return the events held in this process, by trigger and correlation key
        (`records.key_of`)."""
        return self._state.all_held()

    def close(self, timeout: float) -> None:
        """Leave the group within `timeout` seconds; other processes read uncommitted records
        again."""
        self._log.close(timeout)

    # Partitions

    def find_unready(self, partitions: Collection[Partition]) -> Collection[Partition]:
        """Return which of these partitions this process can't take over now: partitions of the
        trigger topic whose held events can't be read from the changelog."""
        trigger_topic = self._sensor.trigger_topic
        numbers = [partition.number for partition in partitions if partition.topic == trigger_topic]
        unreadable = find_unreadable_changelogs(self._sensor, self._log, numbers)
        return [Partition(trigger_topic, number) for number in unreadable]

    def on_assigned(self, partitions: Mapping[Partition, OffsetAndMetadata | None]) -> None:
        """Take over partitions from the group's commits on (None: from the beginning); for those of
        the trigger topic, restore the held events from the changelog."""
        self._expiry.forget(self._now)
        self._moved_partitions.update(partitions)
        changelog = self._sensor.changelog_topic
        for partition, committed in partitions.items():
            position = 0 if committed is None else committed.offset
            metadata = "" if committed is None else committed.metadata
            self._ordering.on_assigned(partition, position, metadata, self._now)
            if partition.topic == self._sensor.trigger_topic:
                number = partition.number
                self._state.restore(number, self._log.read_all(changelog, number), self._now)

    def on_revoked(self, partitions: Collection[Partition]) -> None:
        """Forget partitions that belong to another process from now on, with the events held for
        them."""
        self._moved_partitions.update(partitions)
        for partition in partitions:
            self._ordering.on_revoked(partition)
            if partition.topic == self._sensor.trigger_topic:
                self._state.forget(partition.number)

    # What is dropped

    def _make_room(self, batch: Batch) -> None:
        """If more events are held than allowed, drop the oldest ones, of up to `MAX_BATCH_RECORDS`
        keys, and name them in dead letters."""
        if not self._state.exceeds_limits:
            return
        topic, sensor = self._sensor.trigger_topic, self._sensor
        limits = f"{sensor.max_held_keys} keys or {sensor.max_held_bytes} bytes"
        explanation = f"the Sensor held more than {limits}, and these events were the oldest"
        for number, key in self._state.pop_excess(MAX_BATCH_RECORDS):
            partition = Partition(topic, number)
            batch.begin_cause((partition, key))
            batch.drop_held(number, key, (Reason.STATE_FULL, explanation))
            batch.positions.setdefault(partition, self._ordering.position(partition))
            batch.counts.let_go[records.trigger_of(key)] += 1
            batch.dropped_keys += 1
        log.warning("%s: they are dead-lettered", explanation)

    def _drop_old_marks(self, batch: Batch) -> None:
        """Drop the marks of events (`core.sensor.duplicates`) that are older than the time within
        which duplicates are recognised."""
        if (dedupe := self._sensor.dedupe_millis) is None or not batch.taken:
            return  # without a new event, no mark has grown older
        for number, key in list(self._state.old_marks(dedupe, MAX_BATCH_RECORDS)):
            if batch.held(number, key) != self._state.held(number, key):
                continue  # this batch has changed the mark: its event has come again
            partition = Partition(self._sensor.trigger_topic, number)
            batch.begin_cause((partition, key))
            batch.set_held(number, key, ())
            batch.positions.setdefault(partition, self._ordering.position(partition))

    def _count_error(self, kind: ErrorKind) -> None:
        """Count an evaluation of a filter or a correlation that ended with an error of this
        kind."""
        self.counts.errors[kind] += 1

    # Transactions

    def _commit(self, batch: Batch, outputs: Sequence[Output]) -> None:
        """Commit the batch, whose records to append are `outputs`, in one transaction, and apply
        the batch's changes. If the transaction is aborted, discard the changes, and read its
        records again. Raises `LogError` if the log can't be used any more."""
        offsets = {
            partition: OffsetAndMetadata(offset, batch.metadata(partition))
            for partition, offset in batch.positions.items()
        }
        try:
            if batch.dead_letter_count and not self._has_dead_letter_topic:
                self._ensure_dead_letter_topic()
            self._log.commit(outputs, offsets)
        except TransactionAborted as error:
            self._undo(batch, outputs, error)
            return
        self._ordering.note_batch_committed(batch)
        self._refused.clear()
        self._state.forget_stale(batch.removed_stale)
        self._state.forget_fulfilled(batch.keys_fired_by_edit)
        for number, key, held in batch.changed:
            self._state.set_held(number, key, held)
        if self._tracing is not None:
            for span in batch.spans:
                self._tracing.tracer.end(span)
        batch.counts.transactions = 1
        self.counts.add(batch.counts)

    def _undo(self, batch: Batch, outputs: Sequence[Output], error: TransactionAborted) -> None:
        """Discard the batch, whose transaction was aborted with `error`, and go back to the
        committed offsets. Raises `LogError` if another transaction would be aborted, too."""
        if isinstance(error, RecordTooLarge):
            self._note_refused(error, batch)
        if error.unknown_topic:
            self._has_dead_letter_topic = False
        self.counts.aborted += 1
        self._expiry.forget(self._now)
        self._ordering.go_back()
        log.warning("a transaction was aborted, and its records are read again: %s", error)
        for number, key, _ in batch.changed:
            self._state.set_timers(number, key)
        changelog = self._sensor.changelog_topic
        # The partitions of the outputs, as `batch.changed` leaves out stale records' tombstones.
        numbers = {
            output.partition
            for output in outputs
            if output.topic == changelog and output.partition is not None
        }
        if unreadable := find_unreadable_changelogs(self._sensor, self._log, numbers):
            # Each transaction with these partitions would be aborted, with others' records.
            raise LogError(
                f"partitions {sorted(unreadable)} of {changelog} can't be reached: begin anew"
                " without them"
            ) from error

    def _ensure_dead_letter_topic(self) -> None:
        """Create the dead-letter topic unless it exists. Raises `TransactionAborted` or another
        `LogError` if that fails."""
        sensor, settings = self._sensor, self._sensor.dead_letter_settings
        self._log.ensure_topic(
            sensor.dead_letter_topic, settings.partitions, settings.replication, settings.config
        )
        self._has_dead_letter_topic = True

    def _note_refused(self, error: RecordTooLarge, batch: Batch) -> None:
        """Note which outputs the next batch must leave out, as `error` says that one was too large
        for its topic. Raises `error` if this batch had to leave out all of them already: the
        transaction would be aborted again and again."""
        refused = batch.refused_outputs(
            error.topic, error.key, all_as_large=not self._is_compressed
        )
        if all(
            limits.items() <= self._refused.get(cause_id, {}).items()
            for cause_id, limits in refused.items()
        ):
            raise error
        for cause_id, limits in refused.items():
            self._refused[cause_id] = {**self._refused.get(cause_id, {}), **limits}


def _partition_of(record: Record) -> Partition:
    """Return the partition that the record was read from."""
    return Partition(record.topic(), record.partition())
