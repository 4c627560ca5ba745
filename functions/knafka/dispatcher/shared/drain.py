"""The drain of a shard: one drain for each Egress of its contract, started and stopped as that
changes.

    A new record starts its Egress's drain. A changed or removed record stops it; then a changed one
    starts a new drain. A drain that failed starts again by itself, after a longer wait each time.
    Once all drains are idle, all end, and so does the shard's drain.

A change or failure of one Egress doesn't disturb the others. A position of the contract is reported
once all drains by earlier records have ended.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from knafka.contract_topic import ContractFollower
from knafka.core.contract import Egress
from knafka.core.drain import DrainProgress, Ended, Settled, ShardProgress
from knafka.core.restarts import LAST_RESTART, restart_after
from knafka.dispatcher.engine.clients import Clients, OpenReader
from knafka.dispatcher.engine.counts import ReportedCounts
from knafka.dispatcher.engine.drain import DRAIN_REVOKE_TIMEOUT, Drain
from knafka.dispatcher.engine.intake import JOIN_PATIENCE
from knafka.dispatcher.served import ServedEgress
from knafka.dispatcher.shared.reader import GroupReader
from knafka.ports.log import Assignment, LogReader, Positions

log = logging.getLogger(__name__)

FORGET_FAILURES_AFTER: Final = LAST_RESTART
"""Seconds that a drain must run until its Egress's earlier failures are forgotten."""

NOTHING_REPORTED: Final = ReportedCounts()
"""Stands for the counts of a group that no request has reported yet."""

IDLE_CHECK_INTERVAL: Final = 1.0
"""Most seconds between two checks whether all drains are idle."""

Connect = Callable[[Egress], Clients]
"""Opens the clients of one drain of an Egress."""


class EgressDrains:
    """Runs the drains of one Egress, one after the other, as one record of the contract declares
    the Egress. If the record changes, another object runs the drains by the new record."""

    def __init__(
        self,
        served: ServedEgress,
        egress: Egress,
        connect: Connect,
        previous_drains: asyncio.Task[None] | None,
    ) -> None:
        """Start the task that drains. It first waits for `previous_drains`, the task of the drains
        by the Egress's previous record; None: there is none. `connect` opens the clients of one
        drain."""
        self.egress = egress
        self.served = served
        """The Egress's state that outlives its drains, with their counts."""
        self.error: str | None = None
        """Why the previous drain ended; None: none has ended, or the running one has lasted for
        `FORGET_FAILURES_AFTER`."""
        self.drain: Drain | None = None
        """The running drain; None: it hasn't begun."""
        self.committed: Positions = {}
        """Offsets that the group has committed when its drain ended; empty after a failure."""
        self._connect = connect
        self._clients: Clients | None = None  # those of the last drain
        self._reader: LogReader | None = None  # that of the last drain
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        """Set once `stop` was called."""
        self._failing_since: float | None = None
        """When the first of the failures in `_failures` happened, on the event loop's clock; None:
        there was none."""
        self._failures = 0
        """Number of drains that have ended by themselves and aren't forgotten; the wait before the
        next drain grows with this number."""
        self.task = asyncio.create_task(self._run(previous_drains))
        """Runs the drains; done once `stop` was called and the last drain is over."""

    def stop(self, timeout: float) -> None:
        """Stop the running drain, if there is one, within `timeout` seconds; start no other."""
        self._stopping.set()
        if self.drain is not None:
            self.drain.stop(timeout)

    def limit_attempts_to_share(self) -> None:
        """Limit the attempts of the running drain, if there is one, to its present share of the
        shard's connections."""
        if self.drain is not None and self._clients is not None:
            share = self._clients.max_in_flight
            declared = self.egress.max_in_flight
            self.drain.congestion.set_max_in_flight(
                declared if share is None else min(declared, share())
            )

    def seconds_until_idle(self, idle: float) -> float:
        """Return the seconds until the drain will have been without work for `idle` seconds; 0 or
        less: it is idle. Drains that keep failing count as idle like a drain without partitions:
        `JOIN_PATIENCE` after the first failure at the earliest."""
        if self.drain is not None and self.drain.owns_partitions:
            return self.drain.seconds_until_idle(idle)
        if self._failing_since is not None:
            return self._failing_since + max(idle, JOIN_PATIENCE) - self._loop.time()
        return idle if self.drain is None else self.drain.seconds_until_idle(idle)

    async def _run(self, previous_drains: asyncio.Task[None] | None) -> None:
        """Wait for `previous_drains` (None: there are none), then drain again and again until
        stopped."""
        if previous_drains is not None:
            await asyncio.wait({previous_drains})
        while not self._stopping.is_set():
            began_at = self._loop.time()
            problem = await self._drain_once()
            if self._stopping.is_set():
                return
            now = self._loop.time()
            if now - began_at > FORGET_FAILURES_AFTER:
                self._failures, self._failing_since = 0, None
            if self._failing_since is None:
                self._failing_since = now
            self.error = problem
            with suppress(TimeoutError):
                async with asyncio.timeout(restart_after(self._failures)):
                    await self._stopping.wait()
            self._failures += 1

    async def _drain_once(self) -> str:
        """Run one drain to its end; returns a sentence that says why it ended. Raises nothing: a
        failure of one Egress must not end the others."""
        forget_timer: asyncio.TimerHandle | None = None
        self.committed = {}
        try:
            clients = self._clients = self._connect(self.egress)
            clients = replace(clients, open_reader=partial(self._open, clients.open_reader))
            drain = self.drain = self.served.new_drain(self.egress, clients)
            self.limit_attempts_to_share()
            forget_timer = self._loop.call_later(FORGET_FAILURES_AFTER, self._forget_failures)
            problem = (await drain.run()).error
            if problem is None and isinstance(self._reader, GroupReader):
                self.committed = dict(self._reader.committed)
            return problem or "it ended by itself"
        except Exception as error:  # only this Egress fails; the others go on
            log.error("the drain of %s failed", self.egress.group, exc_info=error)
            return f"{type(error).__name__}: {error}"
        finally:
            self.drain = None
            if forget_timer is not None:
                forget_timer.cancel()
            if self._clients is not None:
                await self._clients.subscriber.close()

    def _open(self, open_reader: OpenReader, assignment: Assignment) -> LogReader:
        """Open the drain's reader by `open_reader`, and keep the reader: it knows the committed
        offsets once the drain has ended."""
        self._reader = open_reader(assignment)
        return self._reader

    def _forget_failures(self) -> None:
        """Forget earlier failures, as the drain has run for long enough."""
        self.error, self._failing_since, self._failures = None, None, 0


class ShardDrain:
    """A `lease.Leased` that drains all Egresses of a shard."""

    def __init__(
        self,
        follower: ContractFollower[Egress],
        ensure_served: Callable[[Egress], ServedEgress],
        connect: Connect,
        news: asyncio.Event,
    ) -> None:
        """Create the drain, which starts nothing before `run`. `follower` holds the shard's
        contract; `ensure_served` returns an Egress's state that outlives its drains; `connect`
        opens the clients of one drain. The drain sets `news` when the request under way must report
        a new position of the contract."""
        self._follower = follower
        self._contract = follower.contract  # as it was last applied
        self._ensure_served = ensure_served
        self._connect = connect
        self._news = news
        self._idle: float | None = None  # see `idle`
        self._drains: dict[str, EgressDrains] = {}
        """The drains of each Egress of the contract, by group."""
        self._latest_tasks: dict[str, asyncio.Task[None]] = {}
        """The task of the drains that were started last, by group, while it runs."""
        self._position_by_stopped_task: dict[asyncio.Task[None], int] = {}
        """The tasks of stopped drains that still run, each with the contract's position before the
        stop. Until a task has ended, no later position is reported."""
        self._reported: dict[str, ReportedCounts] = {}
        """The counts that earlier requests have reported, by group."""
        self._stopping = False
        self._wake_event = asyncio.Event()
        """Set when `run` must look at the contract, `idle` or `_stopping` again."""
        self._loop = asyncio.get_running_loop()
        self._active_at = self._loop.time()  # when the contract was last applied

    # Used by the lease

    @property
    def idle(self) -> float | None:
        """Seconds without work after which the drain ends; None: never."""
        return self._idle

    @idle.setter
    def idle(self, seconds: float | None) -> None:
        """Change the time without work after which the drain ends, and check at once whether it
        ends; None: it never does."""
        self._idle = seconds
        self._wake_event.set()

    @property
    def shrunk_at(self) -> float | None:
        """When a drain last lost partitions to another dispatcher, on the event loop's clock; None:
        never."""
        running = [drains.drain for drains in self._drains.values()]
        times = [drain.shrunk_at for drain in running if drain is not None]
        return max((shrunk_at for shrunk_at in times if shrunk_at is not None), default=None)

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called, or `run` has ended."""
        return self._stopping

    def stop(self, timeout: float = DRAIN_REVOKE_TIMEOUT) -> None:
        """Stop all drains within `timeout` seconds."""
        self._stopping = True
        for drains in self._drains.values():
            drains.stop(timeout)
        self._wake_event.set()

    def reset_reported_counts(self) -> None:
        """Start the counts of `progress` anew, as the last request has reported them."""
        self._reported = {
            group: drains.served.totals().reported_counts()
            for group, drains in self._drains.items()
        }

    def progress(self, ended: Ended | None = None, error: str | None = None) -> ShardProgress:
        """Return the progress of all Egresses; if an Egress's record is refused, only the reason.
        `ended` says how the shard's drain ended (None: it goes on), and `error` why it failed
        (None: it didn't fail)."""
        egresses = {group: self._progress_of(group) for group in self._contract.entries}
        for group, reason in self._contract.refused.items():
            egresses[group] = DrainProgress(error=reason)
        return ShardProgress(contract=self.position, egresses=egresses, ended=ended, error=error)

    async def run(self) -> ShardProgress:
        """Run a drain for each Egress of the contract, as the contract changes. Once all are idle
        or `stop` was called, wait until all have ended, and return the last progress. If all were
        idle, it has the offsets that their groups have settled."""
        self._follower.listeners.append(self._wake_event.set)
        ended = Ended.STOPPED
        try:
            self._apply_contract()
            while not self._stopping:
                self._wake_event.clear()
                if self._contract is not self._follower.contract:
                    self._apply_contract()
                seconds_until_idle = self._seconds_until_idle()
                if seconds_until_idle <= 0:
                    ended = Ended.IDLE
                    self.stop()
                    break
                # A drain without partitions waits for some (`JOIN_PATIENCE`), so it becomes idle
                # later than one with partitions. When it gets its first ones, its remaining time
                # becomes shorter, so check again soon.
                timeout = (
                    None
                    if seconds_until_idle == math.inf
                    else min(seconds_until_idle, IDLE_CHECK_INTERVAL)
                )
                with suppress(TimeoutError):
                    async with asyncio.timeout(timeout):
                        await self._wake_event.wait()
            while self._latest_tasks:  # a task that ends removes itself (`on_ended`)
                await asyncio.wait(set(self._latest_tasks.values()))
        finally:
            self._follower.listeners.remove(self._wake_event.set)
            self._stopping = True
            for task in {*self._latest_tasks.values(), *self._position_by_stopped_task}:
                task.cancel()
        progress = self.progress(ended)
        if ended is Ended.IDLE:
            return progress.model_copy(update={"settled": self._settled_offsets()})
        return progress

    def _settled_offsets(self) -> Settled | None:
        """Return the highest offset that any group has committed in each partition of the shard's
        topic, and the groups that have committed other offsets; None: there are no drains. All
        drains must be over."""
        if not self._drains:
            return None
        topic = next(iter(self._drains.values())).egress.topic
        committed = {
            group: drains.committed if drains.egress.topic == topic else {}
            for group, drains in self._drains.items()
        }
        offsets: dict[int, int] = {}
        for group_offsets in committed.values():
            for number, offset in group_offsets.items():
                offsets[number] = max(offset, offsets.get(number, 0))
        without = [group for group, group_offsets in committed.items() if group_offsets != offsets]
        return Settled(topic=topic, offsets=offsets, without=tuple(without))

    # The contract

    @property
    def position(self) -> int:
        """Offset of the contract topic up to which all records are applied, and the drains that
        they stopped have ended."""
        return min(self._position_by_stopped_task.values(), default=self._contract.position)

    def _apply_contract(self) -> None:
        """Stop the drains of removed and changed Egresses, and start those of new and changed
        ones. Until the stopped drains have ended, `position` stays that of the earlier contract."""
        reported_position, earlier_position = self.position, self._contract.position
        self._contract = self._follower.contract
        desired = self._contract.entries
        for group, drains in list(self._drains.items()):
            if desired.get(group) != drains.egress:
                self._position_by_stopped_task[drains.task] = earlier_position
                drains.stop(DRAIN_REVOKE_TIMEOUT)
                del self._drains[group]
            else:
                drains.limit_attempts_to_share()
            if group not in desired:
                del self._reported[group]
        for group, egress in desired.items():
            if group not in self._drains:
                self._begin_drains(group, egress)
        self._active_at = self._loop.time()
        if self.position != reported_position:
            self._news.set()

    def _begin_drains(self, group: str, egress: Egress) -> None:
        """Start the drains of an Egress; they wait for the drains of its previous record."""
        served = self._ensure_served(egress)
        drains = EgressDrains(served, egress, self._connect, self._latest_tasks.get(group))
        self._drains[group], self._latest_tasks[group] = drains, drains.task
        self._reported.setdefault(group, served.totals().reported_counts())

        def on_ended(task: asyncio.Task[None]) -> None:
            """Forget the task of an Egress's drains; if the drains were stopped, also ask for a
            report of the contract's position, which may be later now."""
            if self._latest_tasks.get(group) is task:
                del self._latest_tasks[group]
            if self._position_by_stopped_task.pop(task, None) is not None:
                self._news.set()

        drains.task.add_done_callback(on_ended)

    def _seconds_until_idle(self) -> float:
        """Return the seconds until all drains are idle; infinity: they never end by themselves. A
        result of `IDLE_CHECK_INTERVAL` or more may be too low: the search stops at the first drain
        that needs so long, as the caller checks again by then anyway."""
        if self._idle is None:
            return math.inf
        longest = self._active_at + self._idle - self._loop.time()
        for drains in self._drains.values():
            if longest >= IDLE_CHECK_INTERVAL:
                break
            longest = max(longest, drains.seconds_until_idle(self._idle))
        return longest

    def _progress_of(self, group: str) -> DrainProgress:
        """Return the progress of one group's drains since the last request; all zeros if the group
        has no drains."""
        if (drains := self._drains.get(group)) is None:
            return DrainProgress()
        growth = drains.served.growth_since(self._reported.get(group, NOTHING_REPORTED))
        drain = drains.served.drain
        state = {} if drain is None else drain.state()
        # A drain that has partitions works again, whatever ended the previous one.
        error = None if state.get("partitions") else drains.error
        return DrainProgress(**growth, **state, error=error)
