"""The drain of a shard: a drain for each Egress of its contract, which it follows.

    a record is new          --> its drain begins
    it is another or removed --> its drain ends; then the new one begins, if there is one
    a drain failed           --> it begins again by itself, later each time
    all of them are idle     --> all end, and so does this

Neighbours go on whatever happens to one. The contract's position is reported when every drain has
ended that was begun by what stood before it.
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
from knafka.dispatcher.connecting import Clients
from knafka.dispatcher.counts import Reported
from knafka.dispatcher.drain import JOIN_PATIENCE, REVOKE_TIMEOUT, Drain, OpenReader
from knafka.dispatcher.served import Served
from knafka.dispatcher.shared.reader import GroupReader
from knafka.ports.log import Assignment, LogReader, Positions

log = logging.getLogger(__name__)

SETTLED: Final = LAST_RESTART
"""Seconds that a drain must have run for its failures before to be forgotten."""

LOOK_INTERVAL: Final = 1.0
"""Seconds between two looks whether all are idle, at most."""

Connect = Callable[[Egress], Clients]


class EgressDrains:
    """Drains of one Egress as one record has it, one after the other; `before` is the end of those
    by the record before."""

    def __init__(
        self, served: Served, egress: Egress, connect: Connect, before: asyncio.Task[None] | None
    ) -> None:
        self.egress = egress
        self.served = served
        self.error: str | None = None
        """Why the last one failed, until there is one that works."""
        self.drain: Drain | None = None
        self.committed: Positions = {}
        """What the group has committed when its drain is over; nothing of one that failed."""
        self._connect = connect
        self._clients: Clients | None = None
        self._reader: LogReader | None = None
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._failing_since: float | None = None
        self._failures = 0
        self.task = asyncio.create_task(self._run(before))

    def stop(self, timeout: float) -> None:
        self._stopping.set()
        if self.drain is not None:
            self.drain.stop(timeout)

    def share(self) -> None:
        """Its share of the connections may be another one now."""
        if self.drain is not None and self._clients is not None:
            most = self._clients.max_in_flight
            allowed = self.egress.max_in_flight
            self.drain.congestion.allow(allowed if most is None else min(allowed, most()))

    def until_idle(self, idle: float) -> float:
        """As `Drain.until_idle`. One that keeps failing holds nobody up for longer than one that
        has no partitions."""
        if self.drain is not None and self.drain.owns_partitions:
            return self.drain.until_idle(idle)
        if self._failing_since is not None:
            return self._failing_since + max(idle, JOIN_PATIENCE) - self._loop.time()
        return idle if self.drain is None else self.drain.until_idle(idle)

    async def _run(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        while not self._stopping.is_set():
            began = self._loop.time()
            problem = await self._drain_once()
            if self._stopping.is_set():
                return
            now = self._loop.time()
            if now - began > SETTLED:
                self._failures, self._failing_since = 0, None
            if self._failing_since is None:
                self._failing_since = now
            self.error = problem
            with suppress(TimeoutError):
                async with asyncio.timeout(restart_after(self._failures)):
                    await self._stopping.wait()
            self._failures += 1

    async def _drain_once(self) -> str:
        """Why it ended, unless it was stopped."""
        settled: asyncio.TimerHandle | None = None
        self.committed = {}
        try:
            clients = self._clients = self._connect(self.egress)
            clients = replace(clients, open_reader=partial(self._open, clients.open_reader))
            drain = self.drain = self.served.new_drain(self.egress, clients)
            self.share()
            settled = self._loop.call_later(SETTLED, self._settled)
            problem = (await drain.run()).error
            if problem is None and isinstance(self._reader, GroupReader):
                self.committed = dict(self._reader.committed)
            return problem or "it ended by itself"
        except Exception as error:  # it concerns this Egress, and the others go on
            log.error("the drain of %s failed", self.egress.group, exc_info=error)
            return f"{type(error).__name__}: {error}"
        finally:
            self.drain = None
            if settled is not None:
                settled.cancel()
            if self._clients is not None:
                await self._clients.subscriber.close()

    def _open(self, open_reader: OpenReader, assignment: Assignment) -> LogReader:
        self._reader = open_reader(assignment)
        return self._reader

    def _settled(self) -> None:
        self.error, self._failing_since, self._failures = None, None, 0


class ShardDrain:
    """A `lease.Leased`; `served_of` gives what outlives it of an Egress."""

    def __init__(
        self,
        follower: ContractFollower[Egress],
        served_of: Callable[[Egress], Served],
        connect: Connect,
        news: asyncio.Event,
    ) -> None:
        self._follower = follower
        self._contract = follower.contract
        self._served_of = served_of
        self._connect = connect
        self._news = news
        """Set when another position is reported."""
        self._idle: float | None = None
        self._drains: dict[str, EgressDrains] = {}
        self._last: dict[str, asyncio.Task[None]] = {}
        """By group, those that run: the last one begun."""
        self._leaving: dict[asyncio.Task[None], int] = {}
        """Those that have to end before a position above this is reported."""
        self._reported: dict[str, Reported] = {}
        """By group, what is in the lines of earlier requests."""
        self._stopping = False
        self._moved = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._active_at = self._loop.time()

    # What a lease needs

    @property
    def idle(self) -> float | None:
        return self._idle

    @idle.setter
    def idle(self, seconds: float | None) -> None:
        self._idle = seconds
        self._moved.set()

    @property
    def shrunk_at(self) -> float | None:
        drains = [each.drain for each in self._drains.values()]
        times = [each.shrunk_at for each in drains if each is not None]
        return max((each for each in times if each is not None), default=None)

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    def stop(self, timeout: float = REVOKE_TIMEOUT) -> None:
        self._stopping = True
        for each in self._drains.values():
            each.stop(timeout)
        self._moved.set()

    def request_ended(self) -> None:
        self._reported = {
            group: each.served.totals().reported() for group, each in self._drains.items()
        }

    def progress(self, ended: Ended | None = None, error: str | None = None) -> ShardProgress:
        egresses = {group: self._progress_of(group) for group in self._contract.entries}
        for group, why in self._contract.refused.items():
            egresses[group] = DrainProgress(error=why)
        return ShardProgress(contract=self.position, egresses=egresses, ended=ended, error=error)

    async def run(self) -> ShardProgress:
        self._follower.listeners.append(self._moved.set)
        ended = Ended.STOPPED
        try:
            self._change()
            while not self._stopping:
                self._moved.clear()
                if self._contract is not self._follower.contract:
                    self._change()
                until_idle = self._until_idle()
                if until_idle <= 0:
                    ended = Ended.IDLE
                    self.stop()
                    break
                # What is known now may be the patience of drains that have no partitions yet.
                timeout = None if until_idle == math.inf else min(until_idle, LOOK_INTERVAL)
                with suppress(TimeoutError):
                    async with asyncio.timeout(timeout):
                        await self._moved.wait()
            while self._last:
                await asyncio.wait(set(self._last.values()))
        finally:
            self._follower.listeners.remove(self._moved.set)
            self._stopping = True
            for task in {*self._last.values(), *self._leaving}:
                task.cancel()
        progress = self.progress(ended)
        if ended is Ended.IDLE:
            return progress.model_copy(update={"settled": self._settled()})
        return progress

    def _settled(self) -> Settled | None:
        """What they have committed, as all drains are over."""
        if not self._drains:
            return None
        topic = next(iter(self._drains.values())).egress.topic
        committed = {
            group: each.committed if each.egress.topic == topic else {}
            for group, each in self._drains.items()
        }
        offsets: dict[int, int] = {}
        for each in committed.values():
            for number, offset in each.items():
                offsets[number] = max(offset, offsets.get(number, 0))
        without = [group for group, each in committed.items() if each != offsets]
        return Settled(topic=topic, offsets=offsets, without=tuple(without))

    # The contract

    @property
    def position(self) -> int:
        """Offset before which every record of the contract counts."""
        return min(self._leaving.values(), default=self._contract.position)

    def _change(self) -> None:
        told, before = self.position, self._contract.position
        self._contract = self._follower.contract
        wanted = self._contract.entries
        for group, drains in list(self._drains.items()):
            if wanted.get(group) != drains.egress:
                self._leaving[drains.task] = before
                drains.stop(REVOKE_TIMEOUT)
                del self._drains[group]
            else:
                drains.share()
            if group not in wanted:
                del self._reported[group]
        for group, egress in wanted.items():
            if group not in self._drains:
                self._begin(group, egress)
        self._active_at = self._loop.time()
        if self.position != told:
            self._news.set()

    def _begin(self, group: str, egress: Egress) -> None:
        served = self._served_of(egress)
        drains = EgressDrains(served, egress, self._connect, self._last.get(group))
        self._drains[group], self._last[group] = drains, drains.task
        self._reported.setdefault(group, served.totals().reported())

        def ended(task: asyncio.Task[None]) -> None:
            if self._last.get(group) is task:
                del self._last[group]
            if self._leaving.pop(task, None) is not None:
                self._news.set()

        drains.task.add_done_callback(ended)

    def _until_idle(self) -> float:
        if self._idle is None:
            return math.inf
        idle = self._idle
        since_change = self._active_at + idle - self._loop.time()
        return max([since_change, *(each.until_idle(idle) for each in self._drains.values())])

    def _progress_of(self, group: str) -> DrainProgress:
        if (drains := self._drains.get(group)) is None:
            return DrainProgress()
        counts = drains.served.totals().since(self._reported.get(group, Reported()))
        drain = drains.served.drain
        progress = DrainProgress() if drain is None else drain.progress()
        error = None if progress.partitions else drains.error
        return progress.model_copy(update={**counts, "error": error})
