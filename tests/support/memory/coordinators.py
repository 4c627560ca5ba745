"""Kafka's coordinators in memory: who has which partitions, and what becomes of transactions.

Both are deterministic, and wait for nothing: a member learns what comes and goes by its own next
`sync`. Not here: records that are read, and who reads them (`transactions`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

from support.memory.records import Marker, MemoryRecord

from knafka.ports.transactions import Partition

Topics: TypeAlias = dict[str, list[list[MemoryRecord]]]


@dataclass
class GroupCoordinator:
    """Partitions go round robin over the members, in the order of joining, each topic's on from
    where the last one's ended: equal numbers of two topics are often not one member's. One that
    moves is nobody's until the member that has it has synced."""

    generation: int = 0
    """It grows with each change; a commit from an earlier one is refused."""
    _members: dict[int, Sequence[str]] = field(default_factory=dict)
    """The topics of each, by number."""
    _names: dict[int, str] = field(default_factory=dict)
    _owners: dict[Partition, int] = field(default_factory=dict)
    _layout: Mapping[str, int] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=count)

    @property
    def names(self) -> Sequence[str]:
        """What the members call themselves."""
        return [self._names[each] for each in self._members]

    def join(self, topics: Sequence[str], name: str = "") -> int:
        """The number of the new member."""
        member = next(self._numbers)
        self._names[member] = name
        self._members[member] = topics
        self.generation += 1
        return member

    def leave(self, member: int) -> None:
        """What it has is free. It may know nothing of that: its session has run out."""
        if self._members.pop(member, None) is not None:
            self._owners = {each: who for each, who in self._owners.items() if who != member}
            self.generation += 1

    def rotate(self) -> None:
        """Assign all anew: the first member becomes the last."""
        if self._members:
            first = next(iter(self._members))
            self._members[first] = self._members.pop(first)
            self.generation += 1

    def __contains__(self, member: int) -> bool:
        return member in self._members

    def sync(self, member: int, layout: Mapping[str, int]) -> tuple[set[Partition], set[Partition]]:
        """What the member has no more, and what is new to it; `layout`: the partitions of each
        topic there is."""
        if layout != self._layout:
            self._layout = dict(layout)
            self.generation += 1
        target = self._target()
        held = {each for each, who in self._owners.items() if who == member}
        wanted = {each for each, who in target.items() if who == member}
        for each in held - wanted:
            del self._owners[each]
        new = {each for each in wanted - held if each not in self._owners}
        self._owners.update(dict.fromkeys(new, member))
        return held - wanted, new

    def _target(self) -> Mapping[Partition, int]:
        found: dict[Partition, int] = {}
        turn = 0
        for topic, partitions in sorted(self._layout.items()):
            members = [number for number, topics in self._members.items() if topic in topics]
            for number in range(partitions) if members else ():
                found[Partition(topic, number)] = members[turn % len(members)]
                turn += 1
        return found


@dataclass
class _Open:
    """A transaction under way."""

    group: str | None
    records: list[MemoryRecord] = field(default_factory=list)


class TransactionCoordinator:
    """Who has which transactional id, and what is stored of transactions under way."""

    def __init__(self, topics: Topics, wake: Callable[[], None]) -> None:
        self._topics = topics
        self._wake = wake
        self._epochs: dict[str, int] = {}
        self._open: dict[str, _Open] = {}
        self.waiting: Callable[[], None] = self.expire
        """Called by whom a transaction under way keeps waiting; it has to decide all of them."""

    def fence(self, transactional_id: str) -> int:
        """Give the id to a new producer, by the epoch that is returned, and abort what the last one
        has left open."""
        if transactional_id in self._open:
            self.end(transactional_id, commit=False)
        self._epochs[transactional_id] = self._epochs.get(transactional_id, 0) + 1
        return self._epochs[transactional_id]

    def is_fenced(self, transactional_id: str, epoch: int) -> bool:
        return self._epochs.get(transactional_id) != epoch

    def begin(self, transactional_id: str, group: str | None) -> list[MemoryRecord]:
        """Where its records, stored as `Undecided`, are to be noted; it is about to commit offsets
        of this group."""
        return self._open.setdefault(transactional_id, _Open(group)).records

    def end(self, transactional_id: str, *, commit: bool) -> None:
        """Make its records readable, or not, and put a marker behind them."""
        touched: set[tuple[str, int]] = set()
        for each in self._open.pop(transactional_id).records:
            kind = MemoryRecord if commit else Marker
            records = self._topics[each.topic()][each.partition()]
            records[each.offset()] = kind(
                each.topic(),
                each.partition(),
                each.offset(),
                each.key(),
                each.value(),
                each.headers(),
                each.timestamp()[1],
                each.timestamp()[0],
            )
            touched.add((each.topic(), each.partition()))
        for topic, number in sorted(touched):
            records = self._topics[topic][number]
            records.append(Marker(topic, number, len(records), None, None, None))
        self._wake()

    def expire(self) -> None:
        """Abort all that are under way, as Kafka does when their producers are gone for long."""
        for each in sorted(self._open):
            self.end(each, commit=False)

    def await_offsets(self, group: str) -> None:
        """Wait for transactions under way that commit offsets of this group."""
        if any(each.group == group for each in self._open.values()):
            self.waiting()

    def await_records(self, topic: str) -> None:
        """Wait for transactions under way that have records in this topic."""
        if any(at.topic() == topic for each in self._open.values() for at in each.records):
            self.waiting()
