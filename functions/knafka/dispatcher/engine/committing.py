"""Commits: when a drain commits the positions of its partitions.

    every COMMIT_INTERVAL (less often where many drains share a reader):
        the positions, and the progress of the records above them

Where a shared reader has many drains, a drain for which nothing comes commits less often still, and
waits with one timer and no task.
"""

from __future__ import annotations

import asyncio
import math
from zlib import crc32

from knafka.core.drain import COMMIT_INTERVAL
from knafka.dispatcher.engine.counts import DrainCounts
from knafka.dispatcher.engine.intake import HeldPartitions
from knafka.dispatcher.engine.pending import AssignedPartition
from knafka.dispatcher.engine.selecting import SharedReader
from knafka.dispatcher.engine.workers import Workers
from knafka.ports.log import LogReader, OffsetAndMetadata


class CommitLoop:
    """Commits the positions of one drain's partitions until it is cancelled."""

    def __init__(
        self, group: str, policy: int, partitions: HeldPartitions, workers: Workers,
        counts: DrainCounts,
    ) -> None:  # fmt: skip
        """`policy` is the checksum of the Egress's retry policy (`core.progress.policy_of`). Drains
        that begin together would commit together, so each commits at a moment of the interval that
        is derived from its group's name."""
        self._policy = policy
        self._partitions = partitions
        self._workers = workers
        self._counts = counts
        self._share = crc32(group.encode()) / 2**32
        """The part of each interval, from 0 to 1, after which this drain commits."""
        self._wait: CommitWait | None = None
        """The wait for the next commit, while no record is unsettled."""
        self._all_committed_at = -math.inf
        """When the positions of all partitions were last committed, on the event loop's clock."""
        self._loop = asyncio.get_running_loop()

    def shorten_wait(self) -> None:
        """Commit earlier than without records, as some are about to be taken (`CommitWait`). Does
        nothing if they aren't the first ones since the last commit."""
        if self._wait is not None and not self._partitions.touched:
            self._wait.shorten()

    async def run(self, reader: LogReader) -> None:
        """Every `COMMIT_INTERVAL`, commit the positions that have changed, until cancelled. If many
        drains share `reader`, commit less often, and least often in partitions that bring no
        records."""
        shared = reader if isinstance(reader, SharedReader) else None
        await asyncio.sleep(self._interval(shared) * self._share)
        partitions = self._partitions
        while True:
            commits: dict[int, OffsetAndMetadata] = {}
            for partition in self._choose_partitions(shared):
                commit = partition.to_commit(self._policy)
                if commit is not None and commit != partition.committed:
                    commits[partition.number] = partition.committed = commit
                # Not only settled events make room for held-back ones: so do events that an earlier
                # owner began and the filter refuses now.
                self._workers.queue_held_back(partition)
            partitions.touched = {
                partition for partition in partitions.touched if partition.tracker.unsettled
            }
            if commits:
                self._counts.commits += 1
                reader.commit(commits)
            if shared is None or partitions.touched:
                await asyncio.sleep(self._interval(shared))
            else:
                await self._wait_for_records(shared)

    def _interval(self, shared: SharedReader | None) -> float:
        """Return the seconds until the next commit while there is something to commit. It is
        `COMMIT_INTERVAL` for a reader that isn't shared (`shared` None), and while a partition
        isn't read because its commit metadata is full."""
        may_read_all = all(partition.may_read for partition in self._partitions.touched)
        if shared is None or not may_read_all:
            return COMMIT_INTERVAL
        return shared.commit_interval

    def _choose_partitions(self, shared: SharedReader | None) -> list[AssignedPartition]:
        """Return the partitions whose positions are committed now. With a shared reader (`shared`
        None: it isn't shared) these are all partitions once in `quiet_commit_interval`, and in
        between only the open ones that brought records. Before all partitions are committed, the
        shared reader reports the records that it has skipped (`catch_up`)."""
        now = self._loop.time()
        interval = COMMIT_INTERVAL if shared is None else shared.quiet_commit_interval
        if interval > COMMIT_INTERVAL and now < self._all_committed_at + interval:
            return [partition for partition in self._partitions.touched if partition.open]
        self._all_committed_at = now
        if shared is not None:
            shared.catch_up()
        return list(self._partitions.values())

    async def _wait_for_records(self, shared: SharedReader) -> None:
        """Wait until the next commit is due: for `quiet_commit_interval` seconds, or until soon
        after the first record for this drain (`CommitWait`)."""
        self._wait = CommitWait(
            self._loop, shared.commit_interval, shared.quiet_commit_interval, self._share
        )
        try:
            await self._wait.wait()
        finally:
            self._wait = None


class CommitWait:
    """Waits up to `quiet_interval` seconds; once a record has come, only until this drain's next
    moment to commit. Each period of `interval` seconds has one such moment, after the part `share`
    (0 to 1) of the period, so that drains with different shares commit at different moments."""

    __slots__ = ("_due", "_end_of_wait", "_interval", "_loop", "_share", "_timer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, interval: float, quiet_interval: float, share: float
    ) -> None:
        """Start the timer of `quiet_interval` on `loop`."""
        self._loop = loop
        self._interval = interval
        self._share = share
        self._end_of_wait: asyncio.Future[None] = loop.create_future()
        """Done once the wait is over."""
        self._due = loop.time() + quiet_interval
        """When the wait ends, on the event loop's clock."""
        self._timer = loop.call_at(self._due, self._end)

    async def wait(self) -> None:
        """Wait until the next commit is due."""
        try:
            await self._end_of_wait
        finally:
            self._timer.cancel()

    def shorten(self) -> None:
        """Wait only until the drain's next moment to commit, as a record has come since the last
        commit."""
        now, interval = self._loop.time(), self._interval
        # `or`: if that moment is just now, wait for the next one.
        seconds_left = (self._share * interval - now) % interval or interval
        due = now + seconds_left
        if due < self._due:
            self._timer.cancel()
            self._due = due
            self._timer = self._loop.call_at(due, self._end)

    def _end(self) -> None:
        """End the wait."""
        if not self._end_of_wait.done():
            self._end_of_wait.set_result(None)
