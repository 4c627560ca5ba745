"""The drain: a dispatcher's membership in its Trigger's group, from joining to leaving.

    fetch --track--> filter --no--> settled
                        \\--yes--> lane --> workers: attempts --> settled | again later
    every COMMIT_INTERVAL: commit the positions, and what is known of what is above them

At-least-once lives here: an offset is committed only up to the lowest unsettled record. What is
settled above it, and how far the delivery of the others has come, is in the commit's metadata
(`core.progress`), so that a partition's next owner goes on where this one stopped. Memory is
bounded by the unsettled records it holds: a partition that outgrows its share is not read until it
has caught up.

Not here: who asks for it, and how long it may live (`function`); what an outcome means (`sender`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias, cast
from zlib import crc32

from knafka.core.contract import Egress, Order
from knafka.core.drain import DrainProgress, Ended
from knafka.core.errors import InvalidEvent, LogError
from knafka.core.filter_index import Selection, select
from knafka.core.filters import compile_trigger
from knafka.core.kafka_binding import Envelope, RecordHeaders
from knafka.core.progress import decode, policy_of
from knafka.dispatcher.broker_letters import BrokerDeadLetters
from knafka.dispatcher.congestion import CongestionControl
from knafka.dispatcher.counts import DrainCounts, Reported
from knafka.dispatcher.lanes import lane_of
from knafka.dispatcher.pace import Pace
from knafka.dispatcher.parsing import OwnParser, Parser
from knafka.dispatcher.pending import Partition, PendingEvent
from knafka.dispatcher.reserve import Reserve
from knafka.dispatcher.selecting import SelectedRecord, SharedReader
from knafka.dispatcher.sender import Sender
from knafka.dispatcher.tracing import EgressTracing
from knafka.dispatcher.workers import Workers
from knafka.ports.log import (
    Assignment,
    Commits,
    LogReader,
    LogWriter,
    OffsetAndMetadata,
    Record,
    TopicMaker,
    headers_of,
)
from knafka.ports.subscriber import Subscriber

log = logging.getLogger(__name__)

READ_LIMIT: Final = 500
"""Records taken at once: enough to make the thread switch cheap, little enough to stay fair."""
READ_TIMEOUT: Final = 0.25
"""Seconds a read waits for a first record; also how soon a stop is noticed."""
READ_TIMEOUT_WITHOUT_WORK: Final = 1.0
"""The same while no record is held, so that a stop has nothing to finish: more returns were a
quarter of what a waiting dispatcher cost (docs/decisions/0010)."""
READ_TIMEOUT_OF_SHARED: Final = 30.0
"""The same of a reader that gives what comes without waking us, and that a stop interrupts."""
COMMIT_INTERVAL: Final = 1.0
"""Seconds between commits: what a killed dispatcher delivers again is about this much."""
MAX_UNSETTLED: Final = 10_000
"""Records held at once over all partitions; with a slow key, how far others may run ahead."""
NEIGHBOURS_LIMIT: Final = 100
"""Records of a partition held in the order `partition`, where none may pass another, by one that
has neighbours in its process: a backlog then leaves them time while it waits to read on."""
MAX_UNSETTLED_BYTES: Final = 32 * 1024 * 1024
ROOM_TIMEOUT: Final = 1.0
"""Seconds to wait for room before a partition is paused, which throws away what was prefetched."""
JOIN_PATIENCE: Final = 50.0
"""Seconds to wait for partitions at least: a group may first have to notice a dead member, which
takes it the 45 s of a session (docs/decisions/0013)."""
FIRST_READ_PATIENCE: Final = 1.0
"""Seconds of idleness at least: what a reader may take from its assignment to its first record."""
REVOKE_TIMEOUT: Final = 2.0
"""Seconds that attempts under way may still take when a partition goes to another dispatcher; what
takes longer is repeated there."""
CLOSE_TIMEOUT: Final = 5.0
"""Seconds for the last commit and for leaving the group, beside what the attempts may take."""

OpenReader: TypeAlias = Callable[[Assignment], LogReader]


class Drain:
    """Reads, filters, delivers, settles for one Trigger until idle or stopped; `now`: Unix time."""

    def __init__(
        self,
        egress: Egress,
        open_reader: OpenReader,
        writer: LogWriter,
        subscriber: Subscriber,
        now: Callable[[], float],
        topics: TopicMaker,
        parser: Parser | None = None,
        held_bytes: Callable[[], int] = lambda: MAX_UNSETTLED_BYTES,
        pace: Pace | None = None,
        tracing: EgressTracing | None = None,
        broker_dead_letters: BrokerDeadLetters | None = None,
    ) -> None:
        self.counts = DrainCounts()
        self.congestion = CongestionControl(egress.max_in_flight, egress.rate_limit)
        self.idle: float | None = None
        """Seconds without anything to do after which it ends; None: never."""
        self.shrunk_at: float | None = None
        """When partitions last went to another dispatcher, on the event loop's clock."""
        self.is_over = False
        self._reported = Reported()
        """What is in the lines of earlier requests."""
        self._egress = egress
        self._policy = policy_of(egress)
        self._open_reader = open_reader
        self._max_held_bytes = held_bytes
        self._held_in_order = READ_LIMIT if pace is None else NEIGHBOURS_LIMIT
        filter_failed = self.counts.filter_failed
        self._passes = compile_trigger(egress.filter, egress.filters, filter_failed)
        self.selection: Selection | None = select(egress.filter, egress.filters, filter_failed)
        self._shared: SharedReader | None = None
        """Its reader, if that is one of many that read together."""
        self._stirred = asyncio.Event()
        """Something was read that is for it."""
        self._lane_of = lane_of(egress.order)
        self._parser, self._tracing = parser or OwnParser(), tracing
        self._sender = Sender(
            egress, subscriber, writer, self.counts, self.congestion, now, topics, self._parser,
            broker_dead_letters,
        )  # fmt: skip
        self._workers = Workers(
            self._sender, self._settle, self.congestion, egress.max_in_flight, now, pace,
            Reserve(self.counts.attempts),
        )  # fmt: skip
        self._workers.on_crash = self.stop
        self._settled_while_paused: Callable[[], None] = lambda: None
        """Called after something of a paused partition is settled."""
        self._partitions: dict[int, Partition] = {}
        self.partitions: Mapping[int, Partition] = self._partitions
        self._stopping = False
        self._stop_at = math.inf
        """Until when attempts may be under way, once it ends."""
        self._revoke_timeout = REVOKE_TIMEOUT
        self._loop = asyncio.get_running_loop()
        self._active_at = self._loop.time()

    def stop(self, timeout: float = REVOKE_TIMEOUT) -> None:
        """End: finish the attempts under way, commit, leave.

        They get `timeout` seconds, or what another call gives them if that is less: who deletes a
        Trigger has no use for what its pod's grace leaves. While some take longer than
        `REVOKE_TIMEOUT`, others go on: one that hangs is not to hold up what is beside it for as
        long as the process may take to end.
        """
        self._stop_at = min(self._stop_at, self._loop.time() + timeout)
        self._stopping = True
        self._workers.stop()
        if self._shared is not None:
            self._shared.interrupt()

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    @property
    def owns_partitions(self) -> bool:
        return bool(self._partitions)

    def progress(self, ended: Ended | None = None, error: str | None = None) -> DrainProgress:
        """The counts since the last request has ended."""
        self.catch_up()
        return DrainProgress(
            **self.counts.since(self._reported),
            unsettled=self._held(),
            partitions=tuple(sorted(self._partitions)),
            congestion=self.congestion.describe() or None,
            loop=self.counts.loop,
            ended=ended,
            error=error,
        )

    def request_ended(self) -> None:
        """Later progress counts from here."""
        self.catch_up()
        self._reported = self.counts.reported()

    async def run(self) -> DrainProgress:
        """Drain; returns the last progress. A `LogError` ends it as failed, and is not raised."""
        self._active_at = self._loop.time()
        reader = self._open_reader(self)
        if isinstance(reader, SharedReader):
            self._shared = reader
        if reader.pause_is_free:
            self._settled_while_paused = partial(self._resume, reader)
        committing = asyncio.create_task(self._commit_regularly(reader))
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
                # Leaving revokes every partition, with a last commit.
                await reader.close(CLOSE_TIMEOUT)
            finally:
                self.lost(list(self._partitions))
                await self._workers.close()
                await asyncio.gather(committing, return_exceptions=True)
                self.is_over = True
        if self._workers.crash is not None:
            raise self._workers.crash
        return self.progress(ended, problem)

    async def _fetch(self, reader: LogReader) -> Ended:
        while not self._stopping:
            idle = math.inf if self.idle is None else self.idle
            if (until_idle := self.until_idle(idle)) <= 0:
                return Ended.IDLE
            timeout = READ_TIMEOUT
            if self._shared is not None:
                if not any(each.paused for each in self._partitions.values()):
                    timeout = min(max(until_idle, READ_TIMEOUT), READ_TIMEOUT_OF_SHARED)
            elif self._partitions and not self._held():
                timeout = min(max(until_idle, READ_TIMEOUT), READ_TIMEOUT_WITHOUT_WORK)
            await self._read(reader, timeout)
        return Ended.STOPPED

    async def _read(self, reader: LogReader, timeout: float) -> None:
        # Not for long, however slow the subscriber is: reading is what keeps us in the group.
        await self._workers.wait_for_capacity(ROOM_TIMEOUT)
        await self._make_room(reader)
        if records := await reader.read(READ_LIMIT, timeout):
            self._active_at = self._loop.time()
            self._take(records)
        self._reach(reader)

    async def _finish_attempts(self, reader: LogReader) -> None:
        if self._stop_at == math.inf:
            self._stop_at = self._loop.time() + REVOKE_TIMEOUT
        while True:
            self._workers.stop()
            left = self._stop_at - self._loop.time()
            is_last_time = left <= 2 * REVOKE_TIMEOUT
            timeout = left if is_last_time else REVOKE_TIMEOUT
            if await self._moves_until(self._has_no_attempts, timeout) or is_last_time:
                break
            slow = self._workers.under_way
            self._workers.go_on()
            while (
                slow & self._workers.under_way
                and self._stop_at - self._loop.time() > 2 * REVOKE_TIMEOUT
            ):
                await self._read(reader, READ_TIMEOUT)
        self._revoke_timeout = 0.0  # they had their time

    async def _moves_until(self, holds: Callable[[], bool], timeout: float) -> bool:
        """Wait, at most so long, until what workers do has made something hold; whether it has."""
        moved = self._workers.moved
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not holds():
                    moved.clear()
                    await moved.wait()
        return holds()

    def until_idle(self, idle: float) -> float:
        """Seconds until it has had nothing to do for so many, if nothing comes."""
        self.catch_up()
        now = self._loop.time()
        if self._held() > 0 or not self._workers.may_begin:
            self._active_at = now
        at_least = FIRST_READ_PATIENCE if self._partitions else JOIN_PATIENCE
        return self._active_at + max(idle, at_least) - now

    def _reach(self, reader: LogReader) -> None:
        for number, end in reader.ends.items():
            if partition := self._partitions.get(number):
                partition.tracker.reach(end)

    # What a shared reader gives

    def catch_up(self) -> None:
        """Count what its reader has passed over until now, and move the offsets."""
        if self._shared is not None:
            self._shared.catch_up()

    def wants_trace(self, envelope: Envelope) -> bool:
        return self._tracing is not None and self._tracing.wants(envelope)

    def may_select(self, number: int) -> bool:
        partition = self._partitions.get(number)
        return (
            partition is not None
            and not partition.tracker.has_settled_ahead
            and not partition.restored
        )

    def selected_from(self, number: int, offset: float) -> None:
        if (partition := self._partitions.get(number)) is not None:
            partition.matching_from = offset

    def passed_over(self, number: int, count: int, behind: int) -> None:
        if (partition := self._partitions.get(number)) is not None:
            partition.tracker.reach(behind)
            if count:
                self.counts.events.read += count
                self.counts.events.filtered += count
                self._active_at = self._loop.time()

    def take(self, records: Sequence[Record]) -> None:
        self._active_at = self._loop.time()
        self._take(records)

    # What was read

    def _take(self, records: Sequence[Record]) -> None:
        passes, counts, tracing = self._passes, self.counts.events, self._tracing
        envelope_of = self._parser.envelope
        self._stirred.set()
        for record in records:
            partition = self._partitions.get(record.partition())
            if partition is None:
                continue  # revoked while the batch was on its way: its next owner reads it
            tracker, offset = partition.tracker, record.offset()
            if tracker.has_settled_ahead and tracker.was_settled(offset):
                tracker.skip(offset)
                continue
            counts.read += 1
            matches = (
                offset >= partition.matching_from and not cast(SelectedRecord, record).is_for_all
            )
            event: PendingEvent | None = None
            headers: RecordHeaders | None = None
            try:
                headers = headers_of(record)
                envelope = envelope_of(record, headers)
                trace = None if tracing is None or matches else tracing.begin(envelope)
                if matches or passes(envelope.attributes):
                    event = PendingEvent(record, headers, partition, self._lane_of(record.key()))
                    self._sender.encode(event, envelope)
                if trace is not None:
                    trace.filtered(passes=event is not None)
                    if event is not None:
                        event.trace = trace
            except Exception as error:  # it concerns this record, and the others go on
                # What holds no event has no order: nothing waits behind it.
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

    def _settle(self, event: PendingEvent) -> None:
        partition = event.partition
        partition.tracker.settle(event.offset)
        partition.held_bytes -= event.size
        following = partition.lanes.release(event.lane)
        if following is not None:
            self._workers.add(following)
        if partition.paused:
            self._settled_while_paused()

    # Room

    async def _make_room(self, reader: LogReader) -> None:
        self._resume(reader)
        if not (full := self._full()):
            return
        if not reader.pause_is_free:
            workers = self._workers
            await self._moves_until(
                lambda: workers.is_stopping or all(map(self._has_room, full)), ROOM_TIMEOUT
            )
            full = self._full()
        for partition in full:
            partition.paused = True
        if full:
            reader.pause([each.number for each in full])

    def _resume(self, reader: LogReader) -> None:
        resumed = [
            each for each in self._partitions.values() if each.paused and self._has_room(each)
        ]
        for partition in resumed:
            partition.paused = False
        if resumed:
            reader.resume([each.number for each in resumed])

    def _full(self) -> list[Partition]:
        open_ones = [each for each in self._partitions.values() if not each.paused]
        if self._held_bytes() >= self._max_held_bytes():
            return open_ones
        share = self._share()
        return [
            each for each in open_ones if len(each.tracker.unsettled) >= share or not each.may_read
        ]

    def _has_room(self, partition: Partition) -> bool:
        return (
            len(partition.tracker.unsettled) <= self._share() // 2
            and partition.may_read
            and self._held_bytes() <= self._max_held_bytes() // 2
        )

    def _held(self) -> int:
        return sum(len(each.tracker.unsettled) for each in self._partitions.values())

    def _held_bytes(self) -> int:
        return sum(each.held_bytes for each in self._partitions.values())

    def _has_no_attempts(self) -> bool:
        return not any(each.in_flight for each in self._partitions.values())

    def _share(self) -> int:
        if self._egress.order is Order.PARTITION:
            return self._held_in_order  # what is further ahead only takes memory
        return max(READ_LIMIT, MAX_UNSETTLED // max(1, len(self._partitions)))

    # Offsets and partitions

    async def _commit_regularly(self, reader: LogReader) -> None:
        # Neighbours that begin together don't commit at once: each has a moment by its group.
        moment = COMMIT_INTERVAL * crc32(self._egress.group.encode()) / 2**32
        await asyncio.sleep(moment)
        moment = self._loop.time()
        while True:
            self.catch_up()
            commits = {}
            for partition in self._partitions.values():
                commit = partition.to_commit(self._policy)
                if commit is not None and commit != partition.committed:
                    commits[partition.number] = partition.committed = commit
                self._workers.release(partition)
            if commits:
                self.counts.commits += 1
                reader.commit(commits)
            if self._shared is None or self._held():
                await asyncio.sleep(COMMIT_INTERVAL)
            else:
                await self._wait_to_commit(self._shared.commit_interval, moment)

    async def _wait_to_commit(self, interval: float, moment: float) -> None:
        """`COMMIT_INTERVAL`, or up to `interval` while nothing comes that is for us; of its
        neighbours' each commits at its own `moment` of the second."""
        self._stirred.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(interval):
                await self._stirred.wait()
                left = (moment - self._loop.time()) % COMMIT_INTERVAL
                await asyncio.sleep(left or COMMIT_INTERVAL)

    def assigned(self, partitions: Mapping[int, OffsetAndMetadata | None]) -> None:
        self._active_at = self._loop.time()
        self.counts.rebalances += 1
        for number, committed in partitions.items():
            progress, began = None, 0
            if committed is not None:
                began = committed.offset
                progress = decode(began, committed.metadata, self._policy)
            self._partitions[number] = Partition(number, progress, began)

    async def revoked(self, partitions: Sequence[int]) -> Commits:
        going = [self._partitions[each] for each in partitions if each in self._partitions]
        if not self._stopping:
            self.shrunk_at = self._loop.time()
        for partition in going:
            partition.close()
        await self._moves_until(
            lambda: not any(each.in_flight for each in going), self._revoke_timeout
        )
        self.lost(partitions)
        commits = ((each.number, each.to_commit(self._policy)) for each in going)
        return {number: commit for number, commit in commits if commit is not None}

    def lost(self, partitions: Sequence[int]) -> None:
        for number in partitions:
            if partition := self._partitions.pop(number, None):
                partition.close()
