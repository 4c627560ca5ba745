"""Dead letters: counts the records of dead-letter topics that an archive has not compacted yet.

Two requests read the end offsets of a Kafka's dead-letter topics for all archives. An archive's lag
on a topic is read again only if the topic has grown since, or the archive's last run has ended.

Not here: when waiting dead letters start a Job (`archives.decide`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from knafka.core import names
from knafka.ports.log import LogAdmin, Positions
from knafka_operator.kafka.clusters import KafkaCluster

ENDS_MAX_AGE: Final = 10.0
"""Seconds for which the ends of topics are reused."""
GROUP_LAGS_AT_ONCE: Final = 16
"""Most concurrent requests for the lags of one group."""


@dataclass(eq=False, slots=True)
class _TopicEnds:
    """The end offsets of one Kafka's dead-letter topics, and when they were read."""

    ends: Mapping[str, Positions] = field(default_factory=dict)
    """End offsets of all dead-letter topics, by topic."""
    read_at: float = float("-inf")
    """When the ends were read, by the event loop's clock."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the ends are read, so that concurrent callers share one reading."""


class _TopicCount(NamedTuple):
    """A group's lag on one dead-letter topic."""

    ends: Positions
    """The topic's end offsets when the lag was read."""
    lag: int
    """Number of records that the group hasn't committed yet."""


@dataclass(eq=False, slots=True)
class UncompactedCounts:
    """Known lags of one archive's consumer group on dead-letter topics."""

    group: str = ""
    """The group whose lags these are; empty: none is known."""
    counts: dict[str, _TopicCount] = field(default_factory=dict)
    """The group's known lag on each topic."""

    def forget(self) -> None:
        """Drop all known lags, as they change when the group commits offsets."""
        self.counts.clear()

    def is_current(self, topic: str, ends: Positions) -> bool:
        """Whether the known lag on `topic` is up to date: read when the topic had the end offsets
        `ends`. False if no lag on it is known."""
        count = self.counts.get(topic)
        return count is not None and count.ends == ends


class UncompactedDeadLetters:
    """Counts dead letters that archives haven't compacted; belongs to one event loop."""

    def __init__(self) -> None:
        self._ends_by_kafka: WeakKeyDictionary[KafkaCluster, _TopicEnds] = WeakKeyDictionary()
        """The ends that were last read from each Kafka; dropped once a Kafka is disconnected."""

    async def count_uncompacted(
        self,
        kafka: KafkaCluster,
        namespace: str,
        broker: str,
        group: str,
        uncompacted: UncompactedCounts,
    ) -> int:
        """Return how many dead letters of the Broker `broker` (in this namespace) are not compacted
        yet: the lag of the archive's consumer group `group`. `uncompacted` keeps the lags between
        calls: it must be the archive's own, and this call updates it. Raises `LogError`."""
        if uncompacted.group != group:
            uncompacted.group = group
            uncompacted.forget()
        ends = {
            topic: positions
            for topic, positions in (await self._read_ends(kafka)).items()
            if names.is_dead_letter_topic(topic, namespace, broker)
        }
        for topic in uncompacted.counts.keys() - ends.keys():
            del uncompacted.counts[topic]
        topics_to_count = [
            topic
            for topic, positions in ends.items()
            # A topic whose partitions all end at 0 never had a record.
            if any(positions.values()) and not uncompacted.is_current(topic, positions)
        ]
        for start in range(0, len(topics_to_count), GROUP_LAGS_AT_ONCE):
            batch = topics_to_count[start : start + GROUP_LAGS_AT_ONCE]
            lags = await asyncio.gather(
                *(_read_group_lag(kafka.topics, group, topic) for topic in batch)
            )
            uncompacted.counts |= {
                topic: _TopicCount(ends[topic], lag) for topic, lag in zip(batch, lags, strict=True)
            }
        return sum(count.lag for count in uncompacted.counts.values())

    async def _read_ends(self, kafka: KafkaCluster) -> Mapping[str, Positions]:
        """Return the end offsets of all dead-letter topics of this Kafka, by topic; they were read
        at most `ENDS_MAX_AGE` seconds ago. Raises `LogError`."""
        topic_ends = self._ends_by_kafka.setdefault(kafka, _TopicEnds())
        async with topic_ends.lock:
            now = asyncio.get_running_loop().time()
            if now - topic_ends.read_at >= ENDS_MAX_AGE:
                dead_letter_topics = [
                    topic
                    for topic in await kafka.topics.topics()
                    if topic.startswith(names.DEAD_LETTERS)
                ]
                topic_ends.ends = (
                    await kafka.topics.end_offsets_of_all(dead_letter_topics)
                    if dead_letter_topics
                    else {}
                )
                topic_ends.read_at = now
        return topic_ends.ends


async def _read_group_lag(topics: LogAdmin, group: str, topic: str) -> int:
    """Return a group's total lag (records) on a topic, read from Kafka. Raises `LogError`."""
    topics.forget_group(group)  # else the client answers with offsets that it remembers
    return (await topics.lags([group], topic))[group].total
