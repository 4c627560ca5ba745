"""The drain: a dispatcher's membership in its Trigger's group, from joining to leaving.

    fetch --intake--> filter --no--> settled
                        \\--yes--> lane --> workers: attempts --> settled | again later
    every COMMIT_INTERVAL, less often if many drains share one reader (`committing`):
        commit the positions, and the progress of the records above them

The drain delivers at least once: it commits an offset only up to the lowest unsettled record. The
commit's metadata (`core.progress`) says which records above it are settled and how far the others'
deliveries have come, so that a partition's next owner continues there.

Not here: the requests that start and extend a drain (`function`); what becomes of a record
(`intake`), what an outcome means (`sending.sender`), and when to commit (`committing`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from knafka.core.contract import Egress, Order
from knafka.core.drain import DrainProgress, Ended
from knafka.core.errors import LogError
from knafka.core.events.kafka_binding import Envelope
from knafka.core.filters.filter_index import Selection, select
from knafka.core.progress import decode, policy_of
from knafka.dispatcher.engine.clients import Clients
from knafka.dispatcher.engine.committing import CommitLoop
from knafka.dispatcher.engine.congestion import CongestionControl
from knafka.dispatcher.engine.counts import DrainCounts, ReportedCounts
from knafka.dispatcher.engine.intake import READ_LIMIT, HeldPartitions, Intake
from knafka.dispatcher.engine.pending import AssignedPartition
from knafka.dispatcher.engine.reserve import Reserve
from knafka.dispatcher.engine.selecting import SharedReader
from knafka.dispatcher.engine.sending.sender import Sender
from knafka.dispatcher.engine.tracing import EgressTracing
from knafka.dispatcher.engine.turn_limit import TurnLimit
from knafka.dispatcher.engine.workers import Workers
from knafka.ports.log import Commits, LogReader, OffsetAndMetadata, Record

log = logging.getLogger(__name__)

READ_TIMEOUT: Final = 0.25
"""Most seconds that a read waits for a first record, and so until a stop is noticed."""
READ_TIMEOUT_WITHOUT_WORK: Final = 1.0
"""Replaces `READ_TIMEOUT` while no record is held, as a stop has nothing to finish then: shorter
reads took a quarter of an idle dispatcher's CPU time (docs/decisions/0010)."""
READ_TIMEOUT_OF_SHARED: Final = 30.0
"""Replaces `READ_TIMEOUT` for a shared reader, which calls `take` instead of waking the drain, and
which a stop interrupts."""
SHARED_LOOP_LIMIT: Final = 100
"""Records of one partition that a drain holds at most if it shares its event loop and delivers in
order of the partition. While it doesn't read further, the other drains of the loop go on."""
ROOM_TIMEOUT: Final = 1.0
"""Seconds to wait before a full partition is paused, as pausing discards prefetched records."""
DRAIN_REVOKE_TIMEOUT: Final = 2.0
"""Seconds that attempts under way may still take when a partition is revoked; slower ones are
repeated by the next owner."""
DRAIN_CLOSE_TIMEOUT: Final = 5.0
"""Seconds for the last commit and for leaving the group, after the attempts under way."""


class Drain:
    """Reads, filters, delivers and settles the events of one Trigger until idle or stopped; `now`
    returns Unix time."""

    def __init__(
        self,
        egress: Egress,
        clients: Clients,
        now: Callable[[], float],
        tracing: EgressTracing | None = None,
    ) -> None:
        """Compile the filter and create sender and workers; nothing is read before `run`.
        `tracing`: None if no spans are recorded. Raises `InvalidDocument`."""
        self.counts = DrainCounts()
        self.congestion = CongestionControl(egress.max_in_flight, egress.rate_limit)
        self.idle: float | None = None
        """Seconds without work after which the drain ends; None: never."""
        self.shrunk_at: float | None = None
        """Event loop time at which partitions last went to another dispatcher; None: never."""
        self.is_over = False  # True once `run` has ended
        self.selection: Selection | None = select(
            egress.filter, egress.filters, self.counts.count_filter_error
        )  # see `Selective.selection`
        self._reported = ReportedCounts()
        """The counts that earlier requests have reported."""
        self._egress = egress
        self._policy = policy_of(egress)
        self._open_reader = clients.open_reader
        self._tracing = tracing
        self._shared: SharedReader | None = None
        """This drain's reader, if that reader serves many drains."""
        attempts = clients.attempts_per_turn
        turn_limit = None if attempts is None else TurnLimit(attempts)
        self._partitions = HeldPartitions(clients.held_bytes)
        if egress.order is Order.PARTITION:  # records further ahead would only take memory
            self._partitions.max_records = 0
            self._partitions.min_share = READ_LIMIT if attempts is None else SHARED_LOOP_LIMIT
        self.partitions: Mapping[int, AssignedPartition] = self._partitions
        sender = Sender(egress, clients, self.counts, self.congestion, now)
        self._workers = Workers(
            sender, self.congestion, egress.max_in_flight, now, turn_limit,
            Reserve(self.counts.attempts),
        )  # fmt: skip
        self._workers.on_crash = self.stop  # `run` raises the error
        self._intake = Intake(
            egress, clients.parser, tracing, self._partitions, sender, self._workers, self.counts
        )
        self._commit_loop = CommitLoop(
            egress.group, self._policy, self._partitions, self._workers, self.counts
        )
        self._stopping = False  # see `is_stopping`
        self._stop_at = math.inf
        """Event loop time until which attempts may be under way once the drain ends."""
        self._revoke_timeout = DRAIN_REVOKE_TIMEOUT  # seconds; 0 once attempts have had their time
        self._loop = asyncio.get_running_loop()
        self._active_at = self._loop.time()  # when there was last a record, a partition or work

    def stop(self, timeout: float = DRAIN_REVOKE_TIMEOUT) -> None:
        """Make the drain end: finish the attempts under way, commit and leave the group.

        Attempts get `timeout` seconds. Of several calls the earliest deadline counts, so that a
        deleted Trigger stays within its pod's grace period. If attempts are still under way after
        `DRAIN_REVOKE_TIMEOUT` seconds, other events are delivered meanwhile, until
        `2 * DRAIN_REVOKE_TIMEOUT` seconds before the deadline (`_finish_attempts`).
        """
        self._stop_at = min(self._stop_at, self._loop.time() + timeout)
        self._stopping = True
        self._workers.stop()
        if self._shared is not None:
            self._shared.interrupt()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called, or the drain is ending."""
        return self._stopping

    @property
    def owns_partitions(self) -> bool:
        """Whether the group has assigned partitions to this drain."""
        return bool(self._partitions)

    def progress(self, ended: Ended | None = None, error: str | None = None) -> DrainProgress:
        """Count what a shared reader has skipped (`catch_up`), then return the counts since the
        last request ended, and the drain's state. `ended` says how the drain ended (None: it goes
        on), and `error` why it failed (None: it didn't fail)."""
        self.catch_up()
        growth = self.counts.growth_since(self._reported)
        return DrainProgress(**growth, **self.state(), ended=ended, error=error)

    def state(self) -> dict[str, Any]:
        """Return the drain's present state, as fields of a `DrainProgress`. `loop` describes dead
        letters or replies that come back to this drain again and again; None: none do."""
        return {
            "unsettled": self._partitions.unsettled,
            "partitions": tuple(sorted(self._partitions)),
            "congestion": self.congestion.describe() or None,
            "loop": self.counts.loop_description,
        }

    def reset_reported_counts(self) -> None:
        """Start the counts of `progress` anew: the last request has reported them."""
        self.catch_up()
        self._reported = self.counts.reported_counts()

    async def run(self) -> DrainProgress:
        """Drain until idle or stopped; returns the last progress. A `LogError` isn't raised: it
        ends the drain as failed. Raises the error that ended a worker or the commits (a bug)."""
        self._active_at = self._loop.time()
        reader = self._open_reader(self)
        if isinstance(reader, SharedReader):
            self._shared = reader
        if reader.pause_is_free:
            self._workers.on_settled_while_paused = partial(self._resume, reader)
        committing = asyncio.create_task(self._commit_regularly(reader))
        committing.add_done_callback(self._workers.crash_with)
        ended, problem = Ended.FAILED, None
        try:
            ended = await self._fetch(reader)
            await self._finish_attempts(reader)
        except LogError as error:
            problem = str(error)
            log.error("the drain of %s failed: %s", self._egress.group, error)
        finally:
            self._stopping = True
            committing.cancel()
            try:
                # Closing the reader revokes every partition, with a last commit.
                await reader.close(DRAIN_CLOSE_TIMEOUT)
            finally:
                self.on_lost(list(self._partitions))
                await self._workers.close()
                await asyncio.gather(committing, return_exceptions=True)
                self.is_over = True
        if self._workers.crash is not None:
            raise self._workers.crash
        return self.progress(ended, problem)

    async def _fetch(self, reader: LogReader) -> Ended:
        """Read and take records; returns `Ended.IDLE` once the drain has been without work for
        `idle` seconds, `Ended.STOPPED` once it is stopped."""
        while not self._stopping:
            idle = math.inf if self.idle is None else self.idle
            if (seconds_until_idle := self.seconds_until_idle(idle)) <= 0:
                return Ended.IDLE
            max_timeout = READ_TIMEOUT
            if self._shared is not None:
                if not self._partitions.has_paused:  # else look again soon whether there is room
                    max_timeout = READ_TIMEOUT_OF_SHARED
            elif self._partitions and not self._partitions.unsettled:
                max_timeout = READ_TIMEOUT_WITHOUT_WORK
            await self._read(reader, min(max(seconds_until_idle, READ_TIMEOUT), max_timeout))
        return Ended.STOPPED

    async def _read(self, reader: LogReader, timeout: float) -> None:
        """Read once: wait for capacity, pause or resume partitions, then take what `reader` returns
        within `timeout` seconds. Raises `LogError`."""
        # The wait is short, however slow the subscriber is: reading keeps the drain in its group.
        await self._workers.wait_for_capacity(ROOM_TIMEOUT)
        await self._pause_full_partitions(reader)
        if records := await reader.read(READ_LIMIT, timeout):
            self.take(records)
        self._advance_to_ends(reader)

    async def _finish_attempts(self, reader: LogReader) -> None:
        """Wait until no attempt is under way, at most until `_stop_at`. If attempts take longer
        than `DRAIN_REVOKE_TIMEOUT`, begin new ones beside them until the slow ones have ended, as
        long as enough time is left to wait for the new ones. Raises `LogError`."""
        if self._stop_at == math.inf:
            self._stop_at = self._loop.time() + DRAIN_REVOKE_TIMEOUT
        while True:
            self._workers.stop()
            seconds_left = self._stop_at - self._loop.time()
            is_last_time = seconds_left <= 2 * DRAIN_REVOKE_TIMEOUT
            timeout = seconds_left if is_last_time else DRAIN_REVOKE_TIMEOUT
            if await self._wait_until(self._has_no_attempts, timeout) or is_last_time:
                break
            slow_events = self._workers.under_way
            self._workers.resume()
            while (
                slow_events & self._workers.under_way
                and self._stop_at - self._loop.time() > 2 * DRAIN_REVOKE_TIMEOUT
            ):
                await self._read(reader, READ_TIMEOUT)
        self._revoke_timeout = 0.0  # attempts have used up their time

    def _has_no_attempts(self) -> bool:
        """Whether no attempt is under way."""
        return not self._partitions.has_attempts

    async def _wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait until `condition` is True, at most `timeout` seconds; returns its last result.
        `condition` is called whenever an attempt has ended (`Workers.changed`)."""
        workers_changed = self._workers.changed
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not condition():
                    workers_changed.clear()
                    await workers_changed.wait()
        return condition()

    def seconds_until_idle(self, idle: float) -> float:
        """Return the seconds until the drain will have been without work for `idle` seconds, if no
        record comes; 0 or less: it is idle. A closed rate limit counts as work (`AttemptRate`)."""
        self.catch_up()
        now = self._loop.time()
        if self._partitions.unsettled > 0 or not self._workers.is_rate_open:
            self._active_at = now
        idle = max(idle, self._partitions.min_idle)
        return max(self._active_at, self._workers.settled_at) + idle - now

    def _advance_to_ends(self, reader: LogReader) -> None:
        """Advance the positions of partitions that were read to their ends, as the last offsets may
        have no records."""
        for number, end in reader.ends.items():
            if partition := self._partitions.get(number):
                partition.tracker.reach(end)

    # Called by a shared reader

    def catch_up(self) -> None:
        """Count the records that a shared reader has skipped for this drain until now, and advance
        the offsets past them. Does nothing if the reader isn't shared."""
        if self._shared is not None:
            self._shared.catch_up()

    def wants_trace(self, envelope: Envelope) -> bool:
        """Whether this drain records spans of the event, even if its filter drops it."""
        return self._tracing is not None and self._tracing.is_sampled(envelope)

    def may_select(self, number: int) -> bool:
        """Whether the shared reader may skip records of the partition `number` that don't match the
        filter: not while records are to be read that an earlier owner has settled or tried."""
        partition = self._partitions.get(number)
        return (
            partition is not None
            and not partition.tracker.has_inherited_ranges
            and not partition.restored
        )

    def set_selected_from(self, number: int, offset: float) -> None:
        """Learn that from `offset` on the shared reader returns only matching records of the
        partition `number`; infinity: it returns every record again."""
        if (partition := self._partitions.get(number)) is not None:
            partition.matching_from = offset

    def settle_skipped(self, number: int, count: int, end: int) -> None:
        """Count `count` records of partition `number` that the shared reader skipped, and settle
        all of its offsets below `end`."""
        if (partition := self._partitions.get(number)) is not None:
            partition.tracker.reach(end)
            if count:
                self.counts.events.read += count
                self.counts.events.filtered += count
                self._active_at = self._loop.time()

    def take(self, records: Sequence[Record]) -> None:
        """Take records that were read, or that the shared reader hands over while `read` waits."""
        self._active_at = self._loop.time()
        self._commit_loop.shorten_wait()
        self._intake.take(records)

    # Room

    async def _pause_full_partitions(self, reader: LogReader) -> None:
        """Resume paused partitions that have room, then pause full ones. If a pause discards
        prefetched records, first wait up to `ROOM_TIMEOUT` seconds for room."""
        self._resume(reader)
        if not (full_partitions := self._partitions.to_pause):
            return
        if not reader.pause_is_free:
            workers, has_room = self._workers, self._partitions.has_room
            await self._wait_until(
                lambda: workers.is_stopping or all(map(has_room, full_partitions)), ROOM_TIMEOUT
            )
            full_partitions = self._partitions.to_pause
        for partition in full_partitions:
            partition.paused = True
        if full_partitions:
            reader.pause([partition.number for partition in full_partitions])

    def _resume(self, reader: LogReader) -> None:
        """Resume the paused partitions that have room again."""
        resumed = [
            partition
            for partition in self._partitions.values()
            if partition.paused and self._partitions.has_room(partition)
        ]
        for partition in resumed:
            partition.paused = False
        if resumed:
            reader.resume([partition.number for partition in resumed])

    # Offsets and partitions

    async def _commit_regularly(self, reader: LogReader) -> None:
        """Commit the positions until cancelled; `AtMostOnceDrain`, which commits first, overrides
        this."""
        await self._commit_loop.run(reader)

    def on_assigned(self, partitions: Mapping[int, OffsetAndMetadata | None]) -> None:
        """Note newly assigned partitions, with the progress in their commits (None: no commit)."""
        self._active_at = self._loop.time()
        self.counts.rebalances += 1
        for number, committed in partitions.items():
            progress, offset = None, 0
            if committed is not None:
                offset = committed.offset
                progress = decode(offset, committed.metadata, self._policy)
            self._partitions[number] = AssignedPartition(number, progress, offset)

    async def on_revoked(self, partitions: Sequence[int]) -> Commits:
        """Wait for the attempts of these partitions, at most `DRAIN_REVOKE_TIMEOUT` seconds, then
        forget the partitions; returns their last commits."""
        revoked_partitions = self._partitions.with_numbers(partitions)
        if not self._stopping:
            self.shrunk_at = self._loop.time()
        for partition in revoked_partitions:
            partition.close()
        await self._wait_until(
            lambda: not any(partition.in_flight for partition in revoked_partitions),
            self._revoke_timeout,
        )
        self.on_lost(partitions)
        commits = (
            (partition.number, partition.to_commit(self._policy))
            for partition in revoked_partitions
        )
        return {number: commit for number, commit in commits if commit is not None}

    def on_lost(self, partitions: Sequence[int]) -> None:
        """Forget partitions that belong to another dispatcher: nothing more may be committed."""
        for number in partitions:
            self._partitions.forget(number)
