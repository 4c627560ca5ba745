"""The log in memory: `LogWriter` and `LogReader` with lists, for tests that need no Kafka.

With `admin` it passes the contract suite that real Kafka passes
(tests/contract/test_log_*contract.py). Partitions are assigned round robin over the members of a
group, in the order of joining. `fail` makes appends fail, `hold` makes them wait, which real Kafka
does when it is away.
"""

from __future__ import annotations

import asyncio
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from support.memory.coordinators import GroupCoordinator, TransactionCoordinator
from support.memory.positions import MemoryPositions
from support.memory.records import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    Marker,
    MemoryRecord,
    size_of,
)

from knafka.core.contract import MAX_RECORD_BYTES
from knafka.core.errors import LogError, LogFull
from knafka.core.events.kafka_binding import Draft, RecordHeaders
from knafka.core.progress import MAX_METADATA
from knafka.ports.log import (
    Assignment,
    Commits,
    OffsetAndMetadata,
    Record,
    Reported,
    TopicDescription,
)


@dataclass
class _Group:
    committed: dict[tuple[str, int], OffsetAndMetadata] = field(default_factory=dict)
    members: list[MemoryReader] = field(default_factory=list)
    rebalancing: asyncio.Lock = field(default_factory=asyncio.Lock)
    coordinator: GroupCoordinator = field(default_factory=GroupCoordinator)
    """Of members that make transactions (`transactions`), which no `MemoryReader` joins."""


class _Held(NamedTuple):
    writer: MemoryWriter
    topic: str
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders
    reported: Reported


class MemoryLog:
    """Topics and groups, shared by the writers, readers and admins that are made from it."""

    def __init__(self) -> None:
        self.topics: dict[str, list[list[MemoryRecord]]] = {}
        self.descriptions: dict[str, TopicDescription] = {}
        self.groups: dict[str, _Group] = {}
        self.failing: LogError | None = None
        self.unreachable: set[tuple[str, int]] = set()
        """Partitions without a leader, by topic and number."""
        self.held: list[_Held] = []
        self.holding = False
        self.capacity = 100_000
        self.grown = asyncio.Event()
        self.transactions = TransactionCoordinator(self.topics, self.wake)
        self._turn = 0

    def create(
        self,
        topic: str,
        partitions: int = 1,
        replication: int = 1,
        config: Mapping[str, str] | None = None,
    ) -> None:
        if topic not in self.topics:
            self.topics[topic] = [[] for _ in range(partitions)]
            self.descriptions[topic] = TopicDescription(
                uuid.uuid4().hex, partitions, replication, dict(config or {})
            )

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions, as somebody may in Kafka."""
        self.topics[topic] += [[] for _ in range(partitions - len(self.topics[topic]))]
        self.descriptions[topic] = replace(self.descriptions[topic], partitions=partitions)

    def limit_of(self, topic: str) -> int:
        """The largest record that a topic takes."""
        found = self.descriptions.get(topic)
        return (
            int(found.config.get("max.message.bytes", MAX_RECORD_BYTES))
            if found
            else MAX_RECORD_BYTES
        )

    def _time_kind_of(self, topic: str) -> int:
        """Whose clock a topic's times are of; a test says what the log's own shows."""
        described = self.descriptions.get(topic)
        config = {} if described is None else described.config
        by_log = config.get("message.timestamp.type") == "LogAppendTime"
        return LOG_APPEND_TIME if by_log else CREATE_TIME

    def fail(self, error: LogError | None) -> None:
        """Every append from now on is reported with `error`; None: no more."""
        self.failing = error

    def hold(self) -> None:
        """Appends stay in flight until `release`."""
        self.holding = True

    def release(self) -> None:
        self.holding = False
        held, self.held = self.held, []
        for each in held:
            self.store(each.topic, each.key, each.value, each.headers)
            each.reported(None)

    def store(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders | None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        kind: type[MemoryRecord] = MemoryRecord,
    ) -> MemoryRecord:
        partitions = self.topics[topic]
        if key is None:
            self._turn += 1
        number = (self._turn if key is None else zlib.crc32(key)) % len(partitions)
        if partition is not None:
            number = partition
        records = partitions[number]
        millis = time.time_ns() // 1_000_000 if timestamp is None else timestamp
        record = kind(
            topic,
            number,
            len(records),
            key,
            value,
            headers or None,
            millis,
            self._time_kind_of(topic),
        )
        records.append(record)
        self.wake()
        return record

    def transact(self, topic: str, values: Sequence[bytes | None], commit: bool) -> None:
        """Store records in partition 0 in one transaction."""
        records = self.topics[topic][0]
        for value in values:
            kind = MemoryRecord if commit else Marker
            records.append(kind(topic, 0, len(records), None, value, None))
        records.append(Marker(topic, 0, len(records), None, None, None))
        self.wake()

    def wake(self) -> None:
        """Let the readers that wait look again."""
        self.grown.set()
        self.grown = asyncio.Event()

    def group(self, name: str) -> _Group:
        return self.groups.setdefault(name, _Group())


class MemoryWriter:
    """`LogWriter` on a `MemoryLog`; reports on the loop's next turn, as Kafka does at best."""

    def __init__(self, memory: MemoryLog) -> None:
        self._memory = memory
        self._in_flight = 0
        self._flushed = asyncio.Event()
        self._closed = False
        self.failure: LogError | None = None
        self.away: LogError | None = None
        self.stored: Counter[tuple[str, int]] = Counter()

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders,
        reported: Reported,
    ) -> None:
        memory = self._memory
        if self._closed:
            raise LogError("the writer is closed")
        if size_of(key, value, headers) > memory.limit_of(topic):
            raise LogError("the record is too large", retriable=False, too_large=True)
        if self._in_flight >= memory.capacity:
            raise LogFull("the buffer is full")
        self._in_flight += 1

        def report(error: LogError | None) -> None:
            self._in_flight -= 1
            if not self._in_flight:
                self._flushed.set()
            reported(error)

        error = memory.failing
        if error is None and topic not in memory.topics:
            error = LogError(f"the topic {topic} does not exist", unknown_topic=True)
        if error is None and memory.holding:
            memory.held.append(_Held(self, topic, key, value, headers, report))
            return
        if error is None:
            self.stored[topic, memory.store(topic, key, value, headers).partition()] += 1
        asyncio.get_running_loop().call_soon(report, error)

    def append_all(self, topic: str, records: Sequence[Draft], reported: Reported) -> None:
        left, first = len(records), None

        def report(error: LogError | None, count: int = 1) -> None:
            nonlocal left, first
            left, first = left - count, first or error
            if not left:
                reported(first)

        for number, (key, headers, value) in enumerate(records):
            try:
                self.append(topic, key, value, headers, report)
            except LogError as error:
                report(error, len(records) - number)
                break

    async def reach(self, timeout: float) -> None:
        if self._memory.failing is not None:
            raise self._memory.failing

    async def close(self, timeout: float) -> None:
        self._closed = True
        if self._in_flight:
            self._flushed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._flushed.wait(), timeout)
        given_up = [each for each in self._memory.held if each.writer is self]
        self._memory.held = [each for each in self._memory.held if each.writer is not self]
        for each in given_up:
            each.reported(LogError("the writer was closed"))


class MemoryReader(MemoryPositions):
    """`LogReader` on a `MemoryLog`."""

    pause_is_free = False
    """As with `KafkaReader`, though here it would be."""

    def __init__(self, memory: MemoryLog, group: str, topic: str, assignment: Assignment) -> None:
        super().__init__(memory, topic)
        self._group = memory.group(group)
        self._assignment = assignment
        self._joined = False

    async def read(self, limit: int, timeout: float) -> Sequence[Record]:
        if not self._joined:
            self._joined = True
            self._group.members.append(self)
            await self._rebalance()
        return await super().read(limit, timeout)

    def resume(self, partitions: Collection[int]) -> None:
        super().resume(partitions)
        self._memory.wake()

    def commit(self, commits: Commits) -> None:
        self._commit({number: each for number, each in commits.items() if number in self._next})

    async def commit_now(self, commits: Commits) -> None:
        if gone := commits.keys() - self._next.keys():
            raise LogError(f"partitions aren't owned, or were restarted: {sorted(gone)}")
        self._commit(commits)

    def _commit(self, commits: Commits) -> None:
        for number, each in commits.items():
            if len(each.metadata) <= MAX_METADATA:
                self._group.committed[self._topic, number] = each

    async def close(self, timeout: float) -> None:
        if self._joined:
            self._joined = False
            self._group.members.remove(self)
            leaving = asyncio.ensure_future(self._rebalance())
            if (await asyncio.wait({leaving}, timeout=timeout))[0]:
                leaving.result()

    def _on_start_anew(self, number: int) -> None:
        self._assignment.on_lost([number])
        self._assignment.on_assigned({number: None})

    async def _rebalance(self) -> None:
        async with self._group.rebalancing:
            members = [each for each in self._group.members if each._topic == self._topic]
            wanted: dict[MemoryReader, set[int]] = {member: set() for member in members}
            for number in range(len(self._memory.topics.get(self._topic, []))) if members else ():
                wanted[members[number % len(members)]].add(number)
            if self not in members:
                await self._give_up(set(self._next))
            for member, partitions in wanted.items():
                await member._give_up(set(member._next) - partitions)
            for member, partitions in wanted.items():
                member._take_over(partitions - set(member._next))

    async def _give_up(self, partitions: set[int]) -> None:
        if partitions:
            for number in partitions:
                del self._next[number]  # first of all: nothing is read while it is being revoked
            self._paused -= partitions
            self._commit(await self._assignment.on_revoked(sorted(partitions)))

    def _take_over(self, partitions: set[int]) -> None:
        if partitions:
            committed = {
                number: self._group.committed.get((self._topic, number))
                for number in sorted(partitions)
            }
            for number, found in committed.items():
                self._next[number] = found.offset if found else 0
                self._told.pop(number, None)
            self._assignment.on_assigned(committed)
            self._memory.wake()
