"""Commits: when a drain commits the positions of its partitions.

    every COMMIT_INTERVAL: the positions, and the progress of the records above them

Where a shared reader has many drains, a drain for which nothing comes commits less often, and waits
with one timer and no task.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final
from zlib import crc32

from knafka.dispatcher.engine.counts import DrainCounts
from knafka.dispatcher.engine.pending import AssignedPartition, HeldPartitions
from knafka.dispatcher.engine.selecting import SharedReader
from knafka.dispatcher.engine.workers import Workers
from knafka.ports.log import LogReader, OffsetAndMetadata

COMMIT_INTERVAL: Final = 1.0
"""Seconds between commits: a killed dispatcher delivers about as many seconds of events again."""


class CommitLoop:
    """Commits the positions of one drain's partitions until it is cancelled."""

    def __init__(
        self, group: str, policy: int, partitions: HeldPartitions, workers: Workers,
        counts: DrainCounts,
    ) -> None:  # fmt: skip
        """`policy` is the checksum of `policy_of`. Drains that begin together would commit
        together, so each first waits for a part of the interval that is derived from its group's
        name."""
        self._policy = policy
        self._partitions = partitions
        self._workers = workers
        self._counts = counts
        self._first_wait = COMMIT_INTERVAL * crc32(group.encode()) / 2**32
        self._wait: CommitWait | None = None
        """The wait for the next commit, while no record is unsettled."""
        self._all_committed_at = -math.inf
        """When the positions of all partitions were last committed, on the event loop's clock."""
        self._loop = asyncio.get_running_loop()

    def note_records(self) -> None:
        """Note that records have come: positions are committed soon again."""
        if self._wait is not None and not self._partitions.touched:
            self._wait.note_record()

    async def run(self, reader: LogReader) -> None:
        """Commit the positions every `COMMIT_INTERVAL`; of partitions for which a shared reader
        brings nothing, less often."""
        shared = reader if isinstance(reader, SharedReader) else None
        await asyncio.sleep(self._first_wait)
        phase = self._loop.time()
        partitions = self._partitions
        while True:
            commits: dict[int, OffsetAndMetadata] = {}
            for partition in self._partitions_to_commit(shared):
                commit = partition.to_commit(self._policy)
                if commit is not None and commit != partition.committed:
                    commits[partition.number] = partition.committed = commit
                self._workers.release(partition)
            partitions.touched = {each for each in partitions.touched if each.tracker.unsettled}
            if commits:
                self._counts.commits += 1
                reader.commit(commits)
            if shared is None or partitions.touched:
                await asyncio.sleep(COMMIT_INTERVAL)
            else:
                await self._wait_for_records(shared.commit_interval, phase)

    def _partitions_to_commit(self, shared: SharedReader | None) -> list[AssignedPartition]:
        """Return the partitions whose positions are to be committed now. Where a shared reader has
        many drains, those for which nothing came are among them only from time to time."""
        now = self._loop.time()
        interval = COMMIT_INTERVAL if shared is None else shared.commit_interval
        if interval > COMMIT_INTERVAL and now < self._all_committed_at + interval:
            return [partition for partition in self._partitions.touched if partition.open]
        self._all_committed_at = now
        if shared is not None:
            shared.catch_up()
        return list(self._partitions.values())

    async def _wait_for_records(self, interval: float, phase: float) -> None:
        """Wait `COMMIT_INTERVAL`, or up to `interval` seconds while no records come for this drain.
        Each of many drains commits at its own `phase`, a moment within `COMMIT_INTERVAL`."""
        self._wait = CommitWait(self._loop, interval, phase)
        try:
            await self._wait.wait()
        finally:
            self._wait = None


class CommitWait:
    """Waits up to `interval` seconds; once a record has come, only until the next `phase`, a moment
    within `COMMIT_INTERVAL` at which this drain commits."""

    __slots__ = ("_due", "_is_due", "_loop", "_phase", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, interval: float, phase: float) -> None:
        self._loop = loop
        self._phase = phase
        self._is_due: asyncio.Future[None] = loop.create_future()
        self._due = loop.time() + interval
        self._timer = loop.call_at(self._due, self._end)

    async def wait(self) -> None:
        """Wait until the next commit is due."""
        try:
            await self._is_due
        finally:
            self._timer.cancel()

    def note_record(self) -> None:
        """Note that a record has come since the last commit."""
        now = self._loop.time()
        due = now + ((self._phase - now) % COMMIT_INTERVAL or COMMIT_INTERVAL)
        if due < self._due:
            self._timer.cancel()
            self._due = due
            self._timer = self._loop.call_at(due, self._end)

    def _end(self) -> None:
        """End the wait."""
        if not self._is_due.done():
            self._is_due.set_result(None)
