"""At most once: an event is sent only after Kafka has confirmed its commit (BUS-5, BUS-S7).

    read --> commit, confirmed --> filter --> lane --> workers: attempts --> settled | lost

No other dispatcher reads committed events again. So a drain finishes the events that it holds
before its partitions go; events that it can't finish within the time of a stop or a revoke are
lost, and counted as lost.

`ConfirmedReader` stands between a drain and its reader. Everything else is as in `drain`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from knafka.core.contract import Egress
from knafka.core.drain import COMMIT_INTERVAL, DrainProgress, Ended
from knafka.core.errors import LogError
from knafka.core.offsets import OffsetRange
from knafka.core.progress import Progress, decode, encode, policy_of
from knafka.dispatcher.engine.clients import Clients, OpenReader
from knafka.dispatcher.engine.drain import DRAIN_REVOKE_TIMEOUT, READ_TIMEOUT, Drain
from knafka.dispatcher.engine.intake import READ_LIMIT
from knafka.dispatcher.engine.pending import AssignedPartition
from knafka.dispatcher.engine.tracing import EgressTracing
from knafka.ports.log import (
    Assignment,
    Commits,
    ConfirmingReader,
    LogReader,
    OffsetAndMetadata,
    Positions,
    Record,
)

log = logging.getLogger(__name__)

CONFIRM_TIMEOUT: Final = 10.0
"""Seconds within which a commit, repeated or not, must be confirmed; else the drain fails."""
COMMIT_RETRY_TIMEOUT: Final = 0.1
"""Most seconds that a read waits for records while a failed commit must be repeated."""


class ConfirmedReader:
    """`LogReader` that returns a record only after its commit is confirmed, and never twice.

    A commit that fails during a rebalance is repeated by the next reads, together with the records
    that these add. If a commit fails for good, or isn't confirmed within `CONFIRM_TIMEOUT`, Kafka
    may have it: then `read` raises `LogError`, and the commit's records are never returned.
    """

    pause_is_free: Final = False
    """A pause discards the records that were read ahead (`ports.log.LogReader`)."""

    def __init__(
        self,
        open_reader: OpenReader,
        assignment: Assignment,
        policy: int,
        limit: int,
    ) -> None:
        """Open the inner reader by `open_reader`. `assignment` is the drain, which is notified of
        the partitions that it gets and loses. `policy` is the checksum of the retry policy, for the
        commit metadata (`core.progress`). At most `limit` records are read and not yet committed.
        Raises TypeError if the inner reader isn't a `ConfirmingReader`."""
        self.ends: Positions = {}
        """Partitions whose end the last read has reached, with the offset where each continues."""
        self._assignment = assignment
        self._policy = policy
        self._limit = limit
        self._uncommitted: list[Record] = []
        """Records that were read and whose offsets are not committed yet."""
        self._uncommitted_ends: dict[int, int] = {}
        """Ends that were reached and whose commits aren't confirmed yet, by partition; then they
        move to `ends`. They are kept because the inner reader reports each end only once."""
        self._next_offsets: dict[int, int] = {}
        """The offset to read next, by assigned partition."""
        self._committed: dict[int, int] = {}
        """The offset that Kafka has confirmed last, by assigned partition."""
        self._settled: dict[int, Sequence[OffsetRange]] = {}
        """By partition: ranges of offsets above the commit that are settled already, by an earlier
        owner that delivered at least once."""
        self._give_up_at: float | None = None
        """When a commit that isn't confirmed makes the drain fail, on the event loop's clock; None:
        no commit is unconfirmed."""
        self._loop = asyncio.get_running_loop()
        reader = open_reader(self)
        if not isinstance(reader, ConfirmingReader):
            raise TypeError("the reader of an at-most-once drain must be a ConfirmingReader")
        self._reader = reader

    @property
    def uncommitted(self) -> int:
        """Number of records that wait for their commit."""
        return len(self._uncommitted)

    # LogReader

    async def read(self, limit: int, timeout: float) -> Sequence[Record]:
        """Read at most `limit` records, waiting up to `timeout` seconds; returns them once their
        offsets are committed. Returns none while the commit must be repeated: a later read returns
        them. Raises `LogError`."""
        self.ends = {}
        if self._uncommitted:
            timeout = min(timeout, COMMIT_RETRY_TIMEOUT)
        room = max(1, min(limit, self._limit) - len(self._uncommitted))
        for record in await self._reader.read(room, timeout):
            number, offset = record.partition(), record.offset()
            # False for a record that was read before; also for one of a revoked partition, which
            # has no next offset.
            if offset >= self._next_offsets.get(number, offset + 1):
                self._next_offsets[number] = offset + 1
                self._uncommitted.append(record)
                self._uncommitted_ends.pop(number, None)
        reached_ends = {
            number: end for number, end in self._reader.ends.items() if number in self._next_offsets
        }
        self._next_offsets.update(reached_ends)
        self._uncommitted_ends.update(reached_ends)
        if not await self._commit():
            return ()
        self.ends, self._uncommitted_ends = self._uncommitted_ends, {}
        records, self._uncommitted = self._uncommitted, []
        return records

    async def _commit(self) -> bool:
        """Commit the offsets of all records that were read; returns True once Kafka has confirmed
        the commit or there is nothing to commit, False if it must be repeated. Raises
        `LogError`."""
        commits = {
            number: OffsetAndMetadata(next_offset, self._encode_metadata(number, next_offset))
            for number, next_offset in self._next_offsets.items()
            if next_offset != self._committed.get(number)
        }
        if not commits:
            self._give_up_at = None  # the partitions to commit again were revoked
            return True
        now = self._loop.time()
        self._give_up_at = self._give_up_at or now + CONFIRM_TIMEOUT
        try:
            async with asyncio.timeout_at(self._give_up_at):
                await self._reader.commit_now(commits)
        except TimeoutError:
            raise LogError("Kafka did not confirm a commit in time") from None
        except LogError as error:
            if not error.retriable or self._loop.time() >= self._give_up_at:
                raise
            log.info("a commit was not confirmed, and is made again: %s", error)
            return False
        self._give_up_at = None
        self._committed.update((number, commit.offset) for number, commit in commits.items())
        return True

    def _encode_metadata(self, number: int, next_offset: int) -> str:
        """Return the commit metadata of a partition: the ranges at or above `next_offset` that an
        earlier owner has settled. Also forget the ranges below, which this commit covers."""
        settled_ahead = [
            offsets for offsets in self._settled.get(number, ()) if offsets[0] >= next_offset
        ]
        self._settled[number] = settled_ahead
        return encode(next_offset, Progress(settled_ahead), self._policy)[0]

    def pause(self, partitions: Sequence[int]) -> None:
        """Return no more records of these partitions until `resume`."""
        self._reader.pause(partitions)

    def resume(self, partitions: Sequence[int]) -> None:
        """Return records of these partitions again."""
        self._reader.resume(partitions)

    def commit(self, commits: Commits) -> None:
        """Do nothing: all records that `read` has returned are committed."""

    async def close(self, timeout: float) -> None:
        """Revoke all partitions and leave the group, within `timeout` seconds."""
        await self._reader.close(timeout)

    # Assignment

    def on_assigned(self, partitions: Mapping[int, OffsetAndMetadata | None]) -> None:
        """Note the offset from which each newly assigned partition is read: the offset of the
        group's commit, or 0 without a commit (None). Then assign the partitions to the drain."""
        for number, committed in partitions.items():
            offset, metadata = committed or OffsetAndMetadata(0)
            self._next_offsets[number] = self._committed[number] = offset
            self._settled[number] = decode(offset, metadata, self._policy).settled
        self._assignment.on_assigned(partitions)

    async def on_revoked(self, partitions: Sequence[int]) -> Commits:
        """Forget partitions, then wait until the drain has finished with them. Returns no commits:
        each record that `read` has returned is committed."""
        self._drop(partitions)
        await self._assignment.on_revoked(partitions)
        return {}

    def on_lost(self, partitions: Sequence[int]) -> None:
        """Forget partitions that belong to another dispatcher."""
        self._drop(partitions)
        self._assignment.on_lost(partitions)

    def _drop(self, partitions: Iterable[int]) -> None:
        """Forget these partitions and their uncommitted records, which the next owner reads."""
        for number in partitions:
            for by_partition in (
                self._next_offsets,
                self._committed,
                self._settled,
                self._uncommitted_ends,
            ):
                by_partition.pop(number, None)
        self._uncommitted = [
            record for record in self._uncommitted if record.partition() in self._next_offsets
        ]


class AtMostOnceDrain(Drain):
    """A drain that sends no event before its offset is committed.

    A kill of the process loses the events that it holds: about twice `max_in_flight` at most.
    """

    def __init__(
        self,
        egress: Egress,
        clients: Clients,
        now: Callable[[], float],
        tracing: EgressTracing | None = None,
    ) -> None:
        """Create the drain, with a `ConfirmedReader` around its reader; nothing is read before
        `run`. `now` returns Unix time; `tracing` None: no spans are recorded. Raises
        `InvalidDocument`."""
        super().__init__(egress, replace(clients, open_reader=self._open_confirmed), now, tracing)
        self._partitions.may_read = self._may_read
        # A kill loses the records that are held, so hold only as many as can be sent at once.
        self._partitions.max_records, self._partitions.min_share = egress.max_in_flight, 1
        self._open_inner = clients.open_reader
        """Opens the reader from which the `ConfirmedReader` reads."""
        self._confirmed: ConfirmedReader | None = None
        """The drain's reader; None before `run` has opened it."""
        self._revoked_partitions: list[AssignedPartition] = []
        """Revoked partitions whose unfinished events are not counted as lost yet."""

    def _open_confirmed(self, assignment: Assignment) -> LogReader:
        """Open the reader that confirms commits. It reads at most as many records at once as may be
        in flight; with a rate limit one, so that no committed record waits for the limit."""
        limit = min(READ_LIMIT, self._egress.max_in_flight)
        if self._egress.rate_limit is not None:
            limit = 1
        self._confirmed = ConfirmedReader(
            self._open_inner, assignment, policy_of(self._egress), limit
        )
        return self._confirmed

    def stop(self, timeout: float = DRAIN_REVOKE_TIMEOUT) -> None:
        """Ask the drain to stop reading, finish the events that it holds, for `timeout` seconds at
        most, and leave the group. An earlier deadline stays."""
        self._stop_at = min(self._stop_at, self._loop.time() + timeout)
        self._stopping = True

    def progress(self, ended: Ended | None = None, error: str | None = None) -> DrainProgress:
        """Return the counts since the last request ended, lost events included, and the drain's
        present state. `ended` says how the drain ended (None: it goes on), and `error` why it
        failed (None: it didn't fail)."""
        self._count_lost()
        return super().progress(ended, error)

    def seconds_until_idle(self, idle: float) -> float:
        """Return the seconds until the drain will have been without work for `idle` seconds, if no
        record comes; here uncommitted records count as work, too."""
        if self._confirmed is not None and self._confirmed.uncommitted:
            self._active_at = self._loop.time()
        return super().seconds_until_idle(idle)

    def _may_read(self) -> bool:
        """Whether more records may be read: not while events wait for the rate limit. A read
        commits its records, so a kill would lose the records that wait with them."""
        if self._egress.rate_limit is None:
            return True
        return self._workers.is_rate_open and not self._workers.has_waiting

    async def _finish_attempts(self, reader: LogReader) -> None:
        """Deliver the held events until `_stop_at`, because no other drain reads committed events
        again. (`Drain` only waits for the attempts under way.) Raises `LogError`."""
        if self._stop_at == math.inf:
            self._stop_at = self._loop.time() + DRAIN_REVOKE_TIMEOUT
        while (
            self._partitions.unsettled and (seconds_left := self._stop_at - self._loop.time()) > 0
        ):
            # Reading keeps the drain in its group. A read commits the records that it returns, so
            # the drain has to deliver these, too.
            reader.pause(list(self._partitions))
            self.take(await reader.read(1, 0.0))
            await self._wait_until(
                lambda: not self._partitions.unsettled, min(seconds_left, READ_TIMEOUT)
            )
        self._workers.stop()
        self._revoke_timeout = 0.0  # attempts have used up their time

    async def _commit_regularly(self, reader: LogReader) -> None:
        """Every `COMMIT_INTERVAL`, count lost events, and queue events again that waited for room
        in the commit metadata. Nothing is committed here: `reader` has committed all events."""
        while True:
            await asyncio.sleep(COMMIT_INTERVAL)
            self._count_lost()
            for partition in self._partitions.values():
                self._workers.queue_held_back(partition)

    async def on_revoked(self, partitions: Sequence[int]) -> Commits:
        """Wait until the events of these partitions are settled, at most `DRAIN_REVOKE_TIMEOUT`,
        then forget the partitions. Returns no commits: all their events are committed."""
        revoked_partitions = self._partitions.with_numbers(partitions)
        if not self._stopping:
            self.shrunk_at = self._loop.time()
        await self._wait_until(
            lambda: not any(partition.tracker.unsettled for partition in revoked_partitions),
            self._revoke_timeout,
        )
        self.on_lost(partitions)
        return {}

    def on_lost(self, partitions: Sequence[int]) -> None:
        """Forget partitions. Those of their events that are unfinished when the attempts under way
        have ended count as lost."""
        self._revoked_partitions += self._partitions.with_numbers(partitions)
        super().on_lost(partitions)

    def _count_lost(self) -> None:
        """Count and log the unfinished events of revoked partitions as lost; a partition with an
        attempt under way is left for a later call."""
        with_attempts = []
        for partition in self._revoked_partitions:
            if partition.in_flight:
                with_attempts.append(partition)
            elif count := len(partition.tracker.unsettled):
                self.counts.events.lost += count
                log.warning(
                    "%s: %d events of partition %d are lost: they were committed, but not finished"
                    " before the partition was revoked", self._egress.group, count,
                    partition.number,
                )  # fmt: skip
        self._revoked_partitions = with_attempts
