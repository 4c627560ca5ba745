"""Transactions in memory: `ports.transactions.TransactionalLog` on a `MemoryLog`.

It waits for nothing, so that a test with a fixed order of calls has one outcome: `read` returns at
once, and where Kafka would keep a caller waiting for a transaction under way, that is decided
(`TransactionCoordinator.waiting`). For tests it may be made to fail (`interrupt`), to end at any
point without a word (`crash`), and to lose its partitions (`expel`, `GroupCoordinator.rotate`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum

from support.memory.log import MemoryLog
from support.memory.records import Marker, MemoryRecord, Undecided, readable, size_of

from knafka.core.errors import LogError
from knafka.core.progress import MAX_METADATA
from knafka.ports.log import OffsetAndMetadata, Positions, Record
from knafka.ports.transactions import (
    Claims,
    Offsets,
    Output,
    Partition,
    RecordTooLarge,
    TransactionAborted,
)


class Crashed(BaseException):
    """The process has ended, as `kill -9` ends it: nothing may catch this but the test."""


class Interruption(Enum):
    """What becomes of a commit."""

    ABORT = "nothing that can be read is stored, and the member goes on"
    LOSE_BEFORE = "nothing is stored, which nobody knows"
    LOSE_AFTER = "it is stored, which nobody knows"
    CRASH_BEFORE = "the process ends before it"
    CRASH_IN = "the process ends with the transaction under way, its records stored"
    CRASH_AFTER = "the process ends when it is stored"


class MemoryTransactions:
    """`TransactionalLog`."""

    reached: Mapping[Partition, int]

    def __init__(
        self,
        memory: MemoryLog,
        group: str,
        topics: Sequence[str],
        claims: Claims,
        transactional_id: str,
    ) -> None:
        self._memory = memory
        self._group_name = group
        self._group = memory.group(group)
        self._coordinator = self._group.coordinator
        self._topics = list(topics)
        self._claims = claims
        self._id = transactional_id
        self._epoch = memory.transactions.fence(transactional_id)
        self._member: int | None = None
        self._generation = -1
        """The one in which it has read."""
        self._next: dict[Partition, int] = {}
        self._paused: set[Partition] = set()
        self._held_back: set[Partition] = set()
        """Those for which `Claims` isn't ready."""
        self._told: dict[Partition, int] = {}
        self._turn = 0
        self._broken: LogError | None = None
        self._interruptions: list[Interruption] = []
        self.reached = {}
        self.crashed = False

    # For tests

    def interrupt(self, *interruptions: Interruption) -> None:
        """What becomes of the next commits, one after another."""
        self._interruptions += interruptions

    def crash(self) -> None:
        """End without a word: its session runs out, and others may have its partitions."""
        self.crashed = True
        self.expel()

    def expel(self) -> None:
        """Its session runs out, which it learns by its next read or commit."""
        if self._member is not None:
            self._coordinator.leave(self._member)

    # TransactionalLog

    def read(self, limit: int, timeout: float) -> Sequence[Record]:
        self._check()
        self._sync()
        records: list[Record] = []
        for place in self._in_turn():
            if place in self._paused or place in self._memory.unreachable:
                continue
            found = self._records(place)
            some, self._next[place] = readable(found, self._next[place], limit - len(records))
            records += some
        self.reached = {
            place: position
            for place, position in self._next.items()
            if place not in self._memory.unreachable
            and position == len(self._records(place))
            and position != self._told.get(place)
        }
        self._told.update(self.reached)
        return records

    def commit(self, outputs: Sequence[Output], offsets: Offsets) -> None:
        self._check()
        if not outputs and not offsets:
            return
        interruption = self._interruptions.pop(0) if self._interruptions else None
        self._crash_if(interruption is Interruption.CRASH_BEFORE)
        if self._memory.transactions.is_fenced(self._id, self._epoch):
            raise self._break("another producer has this transactional id")
        if interruption is Interruption.LOSE_BEFORE:
            raise self._break("it isn't known whether a transaction was committed")
        try:
            self._check_transaction(outputs, offsets)
            if interruption is Interruption.ABORT:
                self._store(outputs)
                self._memory.transactions.end(self._id, commit=False)
                raise TransactionAborted("the transaction was aborted")
        except TransactionAborted:
            self._go_back()
            raise
        self._store(outputs)
        self._crash_if(interruption is Interruption.CRASH_IN)
        for place, each in offsets.items():
            self._group.committed[place] = each
        self._memory.transactions.end(self._id, commit=True)
        self._crash_if(interruption is Interruption.CRASH_AFTER)
        if interruption is Interruption.LOSE_AFTER:
            raise self._break("it isn't known whether a transaction was committed")

    def _check_transaction(self, outputs: Sequence[Output], offsets: Offsets) -> None:
        """Raises `TransactionAborted` for what Kafka would not take."""
        memory = self._memory
        if memory.failing is not None:
            raise TransactionAborted(str(memory.failing))
        if (
            self._member is None
            or self._member not in self._coordinator
            or self._generation != self._coordinator.generation
            or not offsets.keys() <= self._next.keys()
        ):
            raise TransactionAborted("the partitions have gone to other members")
        if any(len(each.metadata) > MAX_METADATA for each in offsets.values()):
            raise TransactionAborted("the metadata of an offset is too long", retriable=False)
        if any((each.topic, each.partition) in memory.unreachable for each in outputs):
            raise TransactionAborted("a partition has no leader")
        for each in outputs:
            if each.topic not in memory.topics:
                raise TransactionAborted(
                    f"the topic {each.topic} does not exist", unknown_topic=True
                )
            if size_of(each.key, each.value, each.headers) > memory.limit_of(each.topic):
                raise RecordTooLarge(each.topic, each.key)

    def _store(self, outputs: Sequence[Output]) -> None:
        stored = self._memory.transactions.begin(self._id, self._group_name)
        stored.extend(
            self._memory.store(
                each.topic,
                each.key,
                each.value,
                each.headers,
                partition=each.partition,
                timestamp=each.timestamp,
                kind=Undecided,
            )
            for each in outputs
        )

    def read_all(self, topic: str, partition: int) -> Iterator[Sequence[Record]]:
        self._check()
        self._existing(topic)
        if Partition(topic, partition) in self._memory.unreachable:
            raise LogError(f"partition {partition} of {topic} has no leader")
        self._memory.transactions.await_records(topic)
        found = self._records(Partition(topic, partition))
        records = [each for each in found if not isinstance(each, Marker)]
        if records:
            yield records

    def ensure_topic(
        self, topic: str, partitions: int, replication: int, config: Mapping[str, str]
    ) -> None:
        self._check()
        if self._memory.failing is not None:
            raise self._memory.failing
        self._memory.create(topic, partitions, max(1, replication), config)

    def ends(self, topic: str) -> Positions:
        self._check()
        return {number: len(each) for number, each in enumerate(self._existing(topic))}

    def reachable_ends(self, topic: str) -> Mapping[int, int | None]:
        unreachable = self._memory.unreachable
        return {
            number: None if Partition(topic, number) in unreachable else end
            for number, end in self.ends(topic).items()
        }

    def committed_now(self, topic: str) -> Mapping[int, OffsetAndMetadata]:
        self._check()
        self._existing(topic)
        committed = self._group.committed
        return {number: each for (name, number), each in committed.items() if name == topic}

    def set_paused(self, partitions: Collection[Partition], *, paused: bool) -> None:
        self._check()
        if paused:
            self._paused.update(partitions)
        else:
            self._paused.difference_update(partitions)

    def committed(self, topic: str) -> Positions:
        self._check()
        self._existing(topic)
        self._memory.transactions.await_offsets(self._group_name)
        return {
            number: each.offset
            for (name, number), each in self._group.committed.items()
            if name == topic
        }

    def close(self, timeout: float) -> None:
        if self.crashed:
            return
        self._broken = self._broken or LogError("it is closed")
        held, self._next = sorted(self._next), {}
        if held:
            self._claims.on_revoked(held)
        self.expel()

    # Within

    def _check(self) -> None:
        if self.crashed:
            raise Crashed
        if self._broken is not None:
            raise LogError(str(self._broken))

    def _crash_if(self, now: bool) -> None:
        if now:
            self.crash()
            raise Crashed

    def _break(self, problem: str) -> LogError:
        self._broken = LogError(problem)
        return LogError(problem)

    def _existing(self, topic: str) -> list[list[MemoryRecord]]:
        if topic not in self._memory.topics:
            raise LogError(f"the topic {topic} does not exist", unknown_topic=True)
        return self._memory.topics[topic]

    def _records(self, place: Partition) -> list[MemoryRecord]:
        """Of a partition; none while its topic is deleted."""
        partitions = self._memory.topics.get(place.topic, [])
        return partitions[place.number] if place.number < len(partitions) else []

    def _in_turn(self) -> list[Partition]:
        """All that is held, each time another one first: a limit starves none."""
        self._turn += 1
        held = sorted(self._next)
        first = self._turn % max(1, len(held))
        return held[first:] + held[:first]

    def _sync(self) -> None:
        if self._member is None or self._member not in self._coordinator:
            self._revoke(set(self._next))
            self._held_back.clear()
            self._member = self._coordinator.join(self._topics, self._id)
        layout = {each: len(found) for each, found in self._memory.topics.items()}
        lost, new = self._coordinator.sync(self._member, layout)
        self._revoke(lost - self._held_back)
        self._generation = self._coordinator.generation
        assigned = new | self._held_back - lost
        self._held_back = set(self._claims.find_unready(assigned)) if assigned else set()
        self._assign(sorted(assigned - self._held_back))
        self._start_anew()

    def _revoke(self, places: set[Partition]) -> None:
        if places:
            for each in places:
                self._next.pop(each, None)
                self._told.pop(each, None)
                self._paused.discard(each)
            self._claims.on_revoked(sorted(places))

    def _assign(self, places: Sequence[Partition]) -> None:
        if places:
            self._memory.transactions.await_offsets(self._group_name)
            committed = {each: self._group.committed.get(each) for each in places}
            self._next.update({each: _start_of(found) for each, found in committed.items()})
            self._claims.on_assigned(committed)

    def _start_anew(self) -> None:
        """What has no such offset any more is read from its start, as another partition."""
        for place, position in list(self._next.items()):
            if place.topic in self._memory.topics and position > len(self._records(place)):
                self._revoke({place})
                self._next[place] = 0
                self._claims.on_assigned({place: None})

    def _go_back(self) -> None:
        for place in self._next:
            self._next[place] = _start_of(self._group.committed.get(place))
            self._told.pop(place, None)


def _start_of(committed: OffsetAndMetadata | None) -> int:
    return 0 if committed is None else committed.offset
