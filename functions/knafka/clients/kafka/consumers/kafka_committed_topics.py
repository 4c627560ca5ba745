"""Starts assigned partitions at their group's commits, unless those are of another topic.

    committed: 20, of the topic "Jx3k9sPq2aB"      present topic: "m0WqZ8r_T4c"     from the start

Kafka deletes a group's commits with their topic. But a reader that doesn't know yet that the topic
was deleted and created again goes on at its old position, and commits it: the new topic's first
records would never be read. So each commit's metadata has a mark: the start of the id of the topic
that its reader knew (`core.commit_metadata`). A topic's id is often read later than the commit, as
a start doesn't wait for it: a partition that began at a commit of another topic is read from its
start once the id is known. Until then, its commits keep the mark of the commit at which it began.

All of it is used on the thread that polls the consumer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, TypeAlias

from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition

from knafka.clients.kafka.consumers.kafka_cut_logs import assign_checked
from knafka.clients.kafka.consumers.kafka_group_consumer import (
    assign_paused,
    committed_of,
    start_position_of,
)
from knafka.clients.kafka.consumers.kafka_replaced_topics import ReplacedTopics
from knafka.clients.kafka.kafka_commits import topic_mark_of
from knafka.core import commit_metadata
from knafka.core.errors import LogError

log = logging.getLogger(__name__)

OF_ANOTHER_TOPIC: Final = (
    "the position in partition %d of %s is of an earlier topic of that name: it is read from its "
    "start"
)
"""Log message: partition and topic."""

_PartitionKey: TypeAlias = tuple[str, int]
"""Topic and partition."""


class CommittedTopics:
    """The marks of the topics of one consumer's commits, by partition."""

    def __init__(self, replaced: ReplacedTopics | None) -> None:
        """Begin without partitions; `replaced` knows the present topics. None: all commits are
        trusted, and get no marks."""
        self._replaced = replaced
        self._marks: dict[_PartitionKey, str] = {}
        """The mark that the next commit of a partition gets; empty: none. A revoked partition keeps
        its mark, for its last commit."""
        self._unchecked: set[_PartitionKey] = set()
        """Partitions that began before the id of their topic was known."""

    def start(
        self, consumer: Consumer, partitions: list[TopicPartition], timeout: float
    ) -> list[TopicPartition]:
        """Start to read newly assigned partitions; returns their commits, with a negative offset
        where there is none of the present topic. Raises `LogError` if the commits can't be read
        within `timeout` seconds, or the partitions can't be started; then they are paused."""
        # librdkafka would read the commits too, but not return their metadata, without which
        # partitions must not be read: the next commit would replace it.
        try:
            committed = committed_of(consumer, partitions, timeout) if partitions else []
        except LogError:
            assign_paused(consumer, partitions)
            raise
        committed = [self._begin(entry) for entry in committed]
        try:
            assign_checked(consumer, [start_position_of(entry) for entry in committed])
        except LogError:
            consumer.pause(partitions)
            raise
        return committed

    def _begin(self, committed: TopicPartition) -> TopicPartition:
        """Note the commit of an assigned partition; returns it, without its offset if it is of
        another topic."""
        key = committed.topic, committed.partition
        present, mark = self._present(committed.topic), topic_mark_of(committed)
        self._marks[key] = present or mark
        (self._unchecked.discard if present else self._unchecked.add)(key)
        if commit_metadata.is_of_another(mark, present):
            log.warning(OF_ANOTHER_TOPIC, committed.partition, committed.topic)
            return TopicPartition(*key, OFFSET_INVALID)
        return committed

    def _present(self, topic: str) -> str:
        """Return the mark of the present topic of this name; empty if its id isn't known."""
        return "" if self._replaced is None else commit_metadata.short_id(self._replaced.id(topic))

    def find_others(self) -> Sequence[_PartitionKey]:
        """Return the partitions of which it has become known since the last call that they began at
        a commit of another topic. The caller must read those that it owns from their start, and
        call `restart`."""
        others: list[_PartitionKey] = []
        for key in list(self._unchecked):
            if present := self._present(key[0]):
                self._unchecked.discard(key)
                if commit_metadata.is_of_another(self._marks[key], present):
                    others.append(key)
                else:
                    self._marks[key] = present
        return others

    def is_sure(self, committed: TopicPartition) -> bool:
        """Whether a commit is surely of the present topic: it has that topic's mark."""
        mark = topic_mark_of(committed)
        return bool(mark) and mark == self._present(committed.topic)

    def restart(self, key: _PartitionKey) -> None:
        """Note that a partition (topic, number) is read from its start: its next commits get the
        mark of the present topic, or none while that topic's id may be outdated."""
        present = self._present(key[0])
        # A log may be lost as its topic was replaced, before the new id is known.
        self._marks[key] = commit_metadata.mark_after_restart(self._marks.get(key, ""), present)
        if not present:
            self._unchecked.add(key)

    def mark(self, key: _PartitionKey, metadata: str) -> str:
        """Return the metadata of a commit for a partition (topic, number), with the mark of the
        topic whose log was read."""
        if self._replaced is None:
            return metadata
        return commit_metadata.mark(metadata, self._marks.get(key, ""))
