"""`LogAdmin` on a log in memory: topics, groups and their lag (see `log`)."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from support.memory.log import MemoryLog
from support.memory.records import Marker, MemoryRecord

from knafka.core.errors import LogError
from knafka.ports.log import (
    Lag,
    OffsetAndMetadata,
    Positions,
    Range,
    Record,
    Start,
    TopicDescription,
    lag_of,
)

MAX: Final = sys.maxsize


class MemoryAdmin:
    """`LogAdmin` on a `MemoryLog`."""

    def __init__(self, memory: MemoryLog) -> None:
        self._memory = memory

    async def cluster_id(self) -> str:
        return "memory"

    async def ensure_topic(
        self, topic: str, partitions: int, replication: int, config: Mapping[str, str]
    ) -> bool:
        new = topic not in self._memory.topics
        self._memory.create(topic, partitions, replication, config)
        return new

    async def describe_topic(self, topic: str) -> TopicDescription | None:
        return self._memory.descriptions.get(topic)

    async def delete_topic(self, topic: str) -> None:
        self._memory.topics.pop(topic, None)
        self._memory.descriptions.pop(topic, None)
        for group in self._memory.groups.values():
            for place in [place for place in group.committed if place[0] == topic]:
                del group.committed[place]

    async def topics(self) -> Mapping[str, int]:
        return {name: len(partitions) for name, partitions in self._memory.topics.items()}

    async def end_offsets(self, topic: str) -> Positions:
        return {number: len(records) for number, records in enumerate(self._partitions(topic))}

    async def end_offsets_of_all(self, topics: Collection[str]) -> Mapping[str, Positions]:
        return {
            each: await self.end_offsets(each) for each in topics if each in self._memory.topics
        }

    async def ranges_of_all(self, topics: Collection[str]) -> Mapping[str, Range]:
        ends = await self.end_offsets_of_all(topics)
        return {topic: Range(dict.fromkeys(found, 0), found) for topic, found in ends.items()}

    async def first_timestamps(self, topics: Collection[str]) -> Mapping[str, float]:
        found = {
            each: await self.read_last(each, MAX) for each in self._memory.topics.keys() & topics
        }
        return {
            topic: min(each.timestamp()[1] for each in records) / 1000
            for topic, records in found.items()
            if records
        }

    async def set_topic_config(self, topic: str, config: Mapping[str, str]) -> None:
        self._partitions(topic)
        found = self._memory.descriptions[topic]
        self._memory.descriptions[topic] = replace(found, config={**found.config, **config})

    async def ensure_committed(self, group: str, topic: str, start: Start = "latest") -> None:
        committed = self._memory.group(group).committed
        partitions = self._partitions(topic)
        if not any(place[0] == topic for place in committed):
            committed.update(
                {
                    (topic, number): OffsetAndMetadata(_start(records, start))
                    for number, records in enumerate(partitions)
                }
            )

    async def lags(self, groups: Sequence[str], topic: str) -> Mapping[str, Lag]:
        ends = await self.end_offsets(topic)
        lags = {}
        for name in groups:
            committed = self._memory.group(name).committed
            commits = {number: committed.get((topic, number)) for number in ends}
            lags[name] = Lag(
                {number: lag_of(each, 0, ends[number]) for number, each in commits.items()},
                frozenset(
                    number
                    for number, each in commits.items()
                    if each is not None and each.offset > ends[number]
                ),
                ends,
                {number: each.metadata for number, each in commits.items() if each is not None},
            )
        return lags

    async def has_group(self, group: str) -> bool:
        known = self._memory.groups.get(group)
        return known is not None and bool(known.committed or known.members)

    async def has_committed(self, group: str, topic: str) -> bool:
        known = self._memory.groups.get(group)
        return known is not None and any(place[0] == topic for place in known.committed)

    async def delete_group(self, group: str) -> None:
        if group in self._memory.groups and self._memory.groups[group].members:
            raise LogError(f"the group {group} has members")
        self._memory.groups.pop(group, None)

    async def members(self, group: str) -> Collection[str]:
        return self._memory.group(group).coordinator.names

    def forget_group(self, group: str) -> None: ...

    def note_committed(
        self, groups: Collection[str], topic: str, positions: Positions, seconds: float
    ) -> None: ...

    async def read_last(self, topic: str, limit: int) -> Sequence[Record]:
        records = [
            record
            for records in self._partitions(topic)
            for record in records
            if not isinstance(record, Marker)
        ]
        records.sort(key=lambda record: (record.timestamp()[1], record.offset()))
        return records[-limit:]

    async def last_with_key(self, topic: str, key: bytes) -> Record | None:
        with_key = [each for each in await self.read_last(topic, MAX) if each.key() == key]
        return with_key[-1] if with_key else None

    async def close(self) -> None: ...

    def _partitions(self, topic: str) -> list[list[MemoryRecord]]:
        try:
            return self._memory.topics[topic]
        except KeyError:
            raise LogError(f"the topic {topic} does not exist", unknown_topic=True) from None


def _start(records: Sequence[MemoryRecord], start: Start) -> int:
    match start:
        case "earliest":
            return 0
        case "latest":
            return len(records)
    since = (
        offset
        for offset, each in enumerate(records)
        if not isinstance(each, Marker) and each.timestamp()[1] >= start
    )
    return next(since, len(records))
