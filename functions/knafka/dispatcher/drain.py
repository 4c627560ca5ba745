"""The drain: one invocation of a dispatcher, from joining the group to leaving it.

    fetch --track--> filter --no--> settled
                        \\--yes--> lane --> worker --> courier --> settled | again later
    every COMMIT_INTERVAL: commit what the ledgers allow

At-least-once lives here: an offset is committed only up to the lowest unsettled record, and when
the drain ends or a partition is taken away, what is in flight finishes within a bound or stays
uncommitted. Memory is bounded by the unsettled records it holds: a partition that outgrows its
share is not read until it has caught up.

Refused here: knowing what an outcome means (`courier`) and what scaling is (the operator's).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from knafka.clients.log import Assignment, LogReader, LogWriter, Positions, Record
from knafka.clients.subscriber import Subscriber
from knafka.core.contract import Egress, Order
from knafka.core.delivery import Retry
from knafka.core.drain import DrainProgress, DrainRequest, Ended
from knafka.core.errors import InvalidEvent, LogError
from knafka.core.filters import compile_trigger
from knafka.core.kafka_binding import RecordHeaders, read
from knafka.dispatcher.courier import Counts, Courier
from knafka.dispatcher.lanes import lane_of
from knafka.dispatcher.unsettled import Partition, Unsettled

log = logging.getLogger(__name__)

READ_LIMIT: Final = 500
"""Records taken at once: enough to make the thread switch cheap, little enough to stay fair."""
READY_ENOUGH: Final = 500
"""Events that may go at once and wait for a worker only: while there are more, none are read. What
is held beyond them waits behind its own key, and reading on is what lets other keys go first."""
READ_TIMEOUT: Final = 0.25
"""Seconds a read waits for a first record; also how soon a stop is noticed."""
READ_TIMEOUT_WITHOUT_WORK: Final = 1.0
"""The same while no record is held, so that a stop has nothing to finish: more returns were a
quarter of what a waiting dispatcher cost (docs/decisions/0010)."""
COMMIT_INTERVAL: Final = 1.0
"""Seconds between commits: what a killed dispatcher delivers again is about this much."""
MAX_UNSETTLED: Final = 10_000
"""Records held at once over all partitions; with a slow key, how far others may run ahead."""
MAX_UNSETTLED_BYTES: Final = 32 * 1024 * 1024
ROOM_TIMEOUT: Final = 1.0
"""Seconds to wait for room before a partition is paused, which throws away what was prefetched."""
JOIN_PATIENCE: Final = 15.0
"""Seconds to wait for partitions at least: a group may first have to notice a dead member, which
takes it the 10 s of a session."""
FIRST_READ_PATIENCE: Final = 1.0
"""Seconds of idleness at least: what a reader may take from its assignment to its first record."""
STOP_TIMEOUT: Final = 3.0
"""Seconds that attempts under way may still take at the end, or when a partition goes; of the four
that the server leaves a response after SIGTERM, one is left to say how the drain ended."""

OpenReader: TypeAlias = Callable[[Assignment], LogReader]


class Drain:
    """Reads, filters, delivers and settles for one Trigger until idle, out of budget or stopped."""

    def __init__(
        self,
        egress: Egress,
        open_reader: OpenReader,
        writer: LogWriter,
        subscriber: Subscriber,
        now: Callable[[], float],
    ) -> None:
        self.counts = Counts()
        self._egress = egress
        self._open_reader = open_reader
        self._passes = compile_trigger(egress.filter, egress.filters)
        self._lane_of = lane_of(egress.order)
        self._courier = Courier(egress, subscriber, writer, self.counts, now)
        self._partitions: dict[int, Partition] = {}
        self._ready: deque[Unsettled] = deque()
        self._hungry: asyncio.Future[None] | None = None
        self._idle_workers: list[asyncio.Future[None]] = []
        self._workers: list[asyncio.Task[None]] = []
        self._stopping = False
        self._crash: BaseException | None = None
        self._moved = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._active_at = self._loop.time()

    def stop(self) -> None:
        """End soon: fetch no more, finish or abandon what is in flight, commit, leave."""
        self._stopping = True
        self._moved.set()
        self._feed()

    def progress(self, ended: Ended | None = None, error: str | None = None) -> DrainProgress:
        """The counts so far."""
        counts = self.counts
        return DrainProgress(
            read=counts.read,
            filtered=counts.filtered,
            delivered=counts.delivered,
            retried=counts.retried,
            buried=counts.buried,
            replied=counts.replied,
            unsettled=self._held(),
            partitions=tuple(sorted(self._partitions)),
            ended=ended,
            error=error,
        )

    async def run(self, request: DrainRequest) -> DrainProgress:
        """Drain; returns the last progress. A `LogError` ends it as failed, and is not raised."""
        started = self._loop.time()
        self._active_at = started
        reader = self._open_reader(self)
        committing = asyncio.create_task(self._commit_regularly(reader))
        ended, problem = Ended.FAILED, None
        try:
            ended = await self._fetch(reader, request, started)
        except LogError as error:
            problem = str(error)
            log.error("the drain of %s failed: %s", self._egress.group, error)
        finally:
            self._stopping = True
            committing.cancel()
            try:
                # Leaving revokes every partition, and that waits for attempts under way.
                await reader.close()
            finally:
                self.lost(list(self._partitions))
                for worker in self._workers:
                    worker.cancel()
                await asyncio.gather(committing, *self._workers, return_exceptions=True)
        if self._crash is not None:
            raise self._crash
        return self.progress(ended, problem)

    async def _fetch(self, reader: LogReader, request: DrainRequest, started: float) -> Ended:
        while not self._stopping:
            now = self._loop.time()
            holds_records = self._held() > 0
            if holds_records:
                self._active_at = now
            at_least = FIRST_READ_PATIENCE if self._partitions else JOIN_PATIENCE
            until_spent = started + request.budget - now
            until_idle = self._active_at + max(request.idle, at_least) - now
            if until_spent <= 0:
                return Ended.BUDGET
            if until_idle <= 0:
                return Ended.IDLE
            await self._until_hungry()
            await self._make_room(reader)
            timeout = READ_TIMEOUT
            if self._partitions and not holds_records:
                left = min(until_spent, until_idle)
                timeout = min(max(left, READ_TIMEOUT), READ_TIMEOUT_WITHOUT_WORK)
            if records := await reader.read(READ_LIMIT, timeout):
                self._active_at = self._loop.time()
                self._take(records)
            for number, end in reader.ends.items():
                if partition := self._partitions.get(number):
                    partition.ledger.reach(end)
        return Ended.STOPPED

    async def _until_hungry(self) -> None:
        if len(self._ready) > READY_ENOUGH and not self._stopping:
            self._hungry = self._loop.create_future()
            # Not for long, however slow the subscriber is: reading is what keeps us in the group.
            with suppress(TimeoutError):
                async with asyncio.timeout(ROOM_TIMEOUT):
                    await self._hungry
            self._hungry = None

    def _feed(self) -> None:
        if self._hungry is not None and not self._hungry.done():
            self._hungry.set_result(None)

    # What was read

    def _take(self, records: Sequence[Record]) -> None:
        passes, counts = self._passes, self.counts
        for record in records:
            partition = self._partitions.get(record.partition())
            if partition is None:
                continue  # revoked while the batch was on its way: its next owner reads it
            ledger, offset = partition.ledger, record.offset()
            ledger.track(offset)
            counts.read += 1
            event: Unsettled | None = None
            headers: RecordHeaders | None = None
            try:
                headers = _headers_of(record)
                envelope = read(headers, record.value())
                if passes(envelope.attributes):
                    event = Unsettled(record, headers, partition, self._lane_of(record.key()))
                    self._courier.prepare(event, envelope)
            except Exception as error:  # it concerns this record, and the others go on
                event = Unsettled(record, headers, partition, self._lane_of(record.key()))
                event.size = len(record.value() or b"")
                self._courier.give_up(event, error)
            if event is None:
                counts.filtered += 1
                ledger.settle(offset)
            else:
                self._admit(event)

    def _admit(self, event: Unsettled) -> None:
        partition = event.partition
        partition.held_bytes += event.size
        if partition.lanes.admit(event.lane, event):
            self._send(event)

    def _send(self, event: Unsettled) -> None:
        self._ready.append(event)
        if self._idle_workers:
            self._idle_workers.pop().set_result(None)
        elif len(self._workers) < self._egress.max_in_flight:
            worker = asyncio.create_task(self._work())
            worker.add_done_callback(self._worker_ended)
            self._workers.append(worker)

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        """A worker ends by being cancelled. Anything else is a bug of the drain's own, as what one
        event raises is caught, and ends the drain aloud."""
        if not worker.cancelled():
            self._crash = worker.exception()
            self.stop()

    async def _work(self) -> None:
        """One attempt at a time, for as long as the drain lasts; a wait never holds a worker."""
        ready = self._ready
        while True:
            while not ready:
                waiter = self._loop.create_future()
                self._idle_workers.append(waiter)
                await waiter
            event = ready.popleft()
            if self._hungry is not None and len(ready) <= READY_ENOUGH:
                self._feed()
            partition = event.partition
            if self._stopping or not partition.open:
                continue
            partition.in_flight += 1
            try:
                decision = await self._courier.carry(event)
            except Exception as error:  # it concerns this event, and the others go on
                decision = self._courier.give_up(event, error)
            finally:
                partition.in_flight -= 1
            if isinstance(decision, Retry):
                self._send_later(event, decision.after)
            else:
                self._settle(event)
            self._moved.set()

    def _send_later(self, event: Unsettled, seconds: float) -> None:
        partition = event.partition
        if self._stopping or not partition.open:
            return  # abandoned: it is not settled, so whoever comes next reads it again
        if seconds == 0:
            self._send(event)
            return

        def send() -> None:
            partition.backoffs.discard(timer)
            self._send(event)

        timer = self._loop.call_later(seconds, send)
        partition.backoffs.add(timer)

    def _settle(self, event: Unsettled) -> None:
        partition = event.partition
        partition.ledger.settle(event.offset)
        partition.held_bytes -= event.size
        following = partition.lanes.release(event.lane)
        if following is not None:
            self._send(following)

    # Room

    async def _make_room(self, reader: LogReader) -> None:
        resumed = [
            each for each in self._partitions.values() if each.paused and self._has_room(each)
        ]
        for partition in resumed:
            partition.paused = False
        if resumed:
            reader.resume([each.number for each in resumed])
        full = self._full()
        if not full:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(ROOM_TIMEOUT):
                while not all(map(self._has_room, full)) and not self._stopping:
                    self._moved.clear()
                    await self._moved.wait()
        full = self._full()
        for partition in full:
            partition.paused = True
        if full:
            reader.pause([each.number for each in full])

    def _full(self) -> list[Partition]:
        open_ones = [each for each in self._partitions.values() if not each.paused]
        if self._held_bytes() >= MAX_UNSETTLED_BYTES:
            return open_ones
        return [each for each in open_ones if each.ledger.unsettled >= self._share()]

    def _has_room(self, partition: Partition) -> bool:
        return (
            partition.ledger.unsettled <= self._share() // 2
            and self._held_bytes() <= MAX_UNSETTLED_BYTES // 2
        )

    def _held(self) -> int:
        return sum(each.ledger.unsettled for each in self._partitions.values())

    def _held_bytes(self) -> int:
        return sum(each.held_bytes for each in self._partitions.values())

    def _share(self) -> int:
        if self._egress.order is Order.PARTITION:
            return READ_LIMIT  # nothing may pass, so what is further ahead only takes memory
        return max(READ_LIMIT, MAX_UNSETTLED // max(1, len(self._partitions)))

    # Offsets and partitions

    async def _commit_regularly(self, reader: LogReader) -> None:
        while True:
            await asyncio.sleep(COMMIT_INTERVAL)
            positions = {}
            for partition in self._partitions.values():
                if (position := partition.ledger.uncommitted()) is not None:
                    positions[partition.number] = position
                    partition.ledger.committed(position)
            if positions:
                reader.commit(positions)

    def assigned(self, partitions: Sequence[int]) -> None:
        self._active_at = self._loop.time()
        for number in partitions:
            self._partitions[number] = Partition(number)

    async def revoked(self, partitions: Sequence[int]) -> Positions:
        going = [self._partitions[each] for each in partitions if each in self._partitions]
        for partition in going:
            partition.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT):
                while any(each.in_flight for each in going):
                    self._moved.clear()
                    await self._moved.wait()
        self.lost(partitions)
        positions = ((each.number, each.ledger.position) for each in going)
        return {number: position for number, position in positions if position is not None}

    def lost(self, partitions: Sequence[int]) -> None:
        for number in partitions:
            if partition := self._partitions.pop(number, None):
                partition.close()


def _headers_of(record: Record) -> RecordHeaders | None:
    try:
        return record.headers()
    except Exception as error:  # a SystemError for a name that isn't UTF-8
        why = error.__cause__ or error
        raise InvalidEvent(f"the record's headers can't be read: {why}") from error
