"""Starts assigned partitions at their group's commits, unless those are of another topic.

    committed: 20, of the topic "Jx3k9sPq2aB"      present topic: "m0WqZ8r_T4c"
    -> the partition is read from its start, not from 20

Kafka deletes a group's commits with their topic. But a reader that doesn't know yet that the topic
was deleted and created again goes on at its old position, and commits that: the new topic's first
records would never be read. So each commit's metadata has a mark: the first characters of the id of
the topic that its reader knew (`core.commit_metadata`).

Reading begins before the topic's id is known. If the id then shows that the commit was of another
topic, the partition is read again, from its start. Until the id is known, the partition's commits
keep the mark of the commit at which it began.

All of this is used on the thread that polls the consumer.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import Final

from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition

from knafka.clients.kafka.consumers.kafka_cut_logs import assign_checked
from knafka.clients.kafka.consumers.kafka_group_consumer import (
    assign_paused,
    committed_of,
    start_position_of,
)
from knafka.clients.kafka.consumers.kafka_replaced_topics import ReplacedTopics
from knafka.clients.kafka.kafka_client import PartitionKey
from knafka.clients.kafka.kafka_commits import topic_mark_of
from knafka.core import commit_metadata
from knafka.core.errors import LogError

log = logging.getLogger(__name__)

OF_ANOTHER_TOPIC: Final = (
    "the position in partition %d of %s is of an earlier topic of that name: it is read from its "
    "start"
)
"""Log message: partition and topic."""


class CommittedTopics:
    """Remembers, for each partition of one consumer, the mark of the topic whose log it reads."""

    def __init__(self, replaced: ReplacedTopics | None) -> None:
        """Begin without partitions. `replaced` knows the ids of the present topics; None: commits
        count as of the present topic, and get no marks."""
        self._replaced = replaced
        self._marks = commit_metadata.CommitMarks[PartitionKey](
            lambda key, since: self._present_mark(key[0], since)
        )

    def start(
        self, consumer: Consumer, partitions: list[TopicPartition], timeout: float
    ) -> list[TopicPartition]:
        """Start to read newly assigned partitions at the group's commits. Returns each partition's
        commit; its offset is negative if the group has committed nothing, or only in another topic.
        Raises `LogError` if the commits can't be read within `timeout` seconds, or the partitions
        can't be started; then all of them are assigned but paused."""
        # librdkafka would read the commits too, but not return their metadata, without which
        # partitions must not be read: the next commit would replace it.
        try:
            committed = committed_of(consumer, partitions, timeout) if partitions else []
        except LogError:
            assign_paused(consumer, partitions)
            raise
        committed = [self._note_commit(entry) for entry in committed]
        try:
            assign_checked(consumer, [start_position_of(entry) for entry in committed])
        except LogError:
            consumer.pause(partitions)
            raise
        return committed

    def _note_commit(self, committed: TopicPartition) -> TopicPartition:
        """Note the commit of an assigned partition, and return it. If it is of another topic, which
        is logged, return it with the offset `OFFSET_INVALID` instead."""
        key = committed.topic, committed.partition
        present, mark = self._present_mark(committed.topic), topic_mark_of(committed)
        self._marks.begin(key, mark, present)
        if commit_metadata.is_of_another_topic(mark, present):
            if self._replaced is not None and not self._replaced.was_read(key[0], mark):
                self._replaced.hasten()  # the commit may be of a newer topic than the known one
            log.warning(OF_ANOTHER_TOPIC, committed.partition, committed.topic)
            return TopicPartition(*key, OFFSET_INVALID)
        return committed

    def _present_mark(self, topic: str, since: float = -math.inf) -> str:
        """Return the mark of the topic that has this name now. Empty if commits get no marks
        (`replaced` None), or if the topic's id must still be read: only ids from requests sent at
        `since` (`time.monotonic`) or later count."""
        if self._replaced is None:
            return ""
        return commit_metadata.short_id(self._replaced.topic_id(topic, since))

    def pop_partitions_of_another_topic(self) -> Sequence[PartitionKey]:
        """Return the partitions that turned out, since the last call, to have begun at a commit of
        another topic; each is returned only once. The caller must read those that it owns from
        their start, and call `note_restart`."""
        return self._marks.pop_partitions_of_another_topic()

    def is_of_present_topic(self, committed: TopicPartition) -> bool:
        """Whether a commit has the mark of the present topic. False if it has another mark or none,
        or if the present topic's id isn't known."""
        mark = topic_mark_of(committed)
        return bool(mark) and mark == self._present_mark(committed.topic)

    def note_restart(self, key: PartitionKey, is_of_known_topic: bool = False) -> None:
        """Note that a partition is read from its start now. `is_of_known_topic`: True if its log
        surely belongs to the topic whose id was read last; False if the topic may have been created
        anew since, so that its id must be read again."""
        self._marks.restart(key, time.monotonic(), is_of_known_topic=is_of_known_topic)

    def mark(self, key: PartitionKey, metadata: str) -> str:
        """Return the metadata of a commit for a partition, with the mark of the topic whose log was
        read; unchanged if commits get no marks."""
        if self._replaced is None:
            return metadata
        return commit_metadata.mark(metadata, self._marks.get(key))
