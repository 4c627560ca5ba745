"""The offsets of groups without members: `ports.shared_log.GroupOffsets` on real Kafka.

One admin client commits for all groups, with metadata and leader epoch, as no member (generation
-1), which Kafka accepts only for a group without members. Committed offsets are read by a consumer
of the group (see `kafka_groups`), once for each assignment.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection, Mapping
from typing import Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, TopicPartition

from knafka.clients.kafka.admin.kafka_groups import KafkaGroups, needs_detaching
from knafka.clients.kafka.consumers.kafka_elections import NO_ELECTION
from knafka.clients.kafka.consumers.kafka_replaced_topics import TopicIds
from knafka.clients.kafka.kafka_client import Connection, log_error_of
from knafka.clients.kafka.kafka_commits import (
    COMMIT_RETRY_INTERVAL,
    REBALANCING_ERRORS,
    epoch_of,
    metadata_of,
    topic_mark_of,
)
from knafka.clients.kafka.kafka_requests import AdminCalls
from knafka.core.commit_metadata import mark, short_id
from knafka.ports.shared_log import Commit, GroupHasMembers

COMMIT_REQUEST_TIMEOUT: Final = 10.0
"""Seconds for which a commit is repeated, and most seconds for one request: enough for a
coordinator to move meanwhile."""
REOPEN_INTERVAL: Final = 1.0
"""Least seconds between two replacements of the admin client."""
_MEMBER_ERRORS: Final = frozenset(
    {
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.REBALANCE_IN_PROGRESS,
    }
)
"""Kafka's errors for a commit without membership in a group that has members."""


class KafkaOffsets:
    """Reads and commits the offsets of groups without members; used on one event loop."""

    def __init__(self, connection: Connection) -> None:
        """Open the admin client; `connection` reaches Kafka. Raises `LogError`."""
        self._calls = AdminCalls(connection, COMMIT_REQUEST_TIMEOUT)
        self.topic_ids = TopicIds(connection, self._calls)
        """Kafka's ids of topics by name, as they were read last."""
        self._groups = KafkaGroups(connection, self._calls)
        self._opened_at = time.monotonic()
        """When the admin client was opened or last replaced (`time.monotonic`)."""

    def _replace_client(self) -> None:
        """Replace the admin client, unless that was done within the last `REOPEN_INTERVAL`:
        librdkafka caches coordinators, and may ask a wrong one for ever."""
        if time.monotonic() - self._opened_at > REOPEN_INTERVAL:
            self._calls.reopen()
            self._opened_at = time.monotonic()

    async def committed(
        self, group: str, topic: str, partitions: Collection[int]
    ) -> Mapping[int, Commit]:
        """Return the group's commits by partition; partitions without a commit are left out. If
        Kafka would soon delete the group's offsets, make Kafka keep them (`KafkaGroups.detach`).

        A commit's metadata describe records above its offset. The metadata are replaced by "" if an
        election of a leader since the commit may have removed these records. Raises
        `GroupHasMembers` and `LogError`.
        """
        calls = self._calls
        answers = await calls.ask_coordinator(
            lambda timeout: calls.admin.describe_consumer_groups([group], request_timeout=timeout)
        )
        described = answers[group]
        if described.members:
            count = len(described.members)
            raise GroupHasMembers(
                f"the group {group} has {count} members: others deliver its events"
            )
        if needs_detaching(described):
            await self._groups.detach(group, await self._all_partitions(topic))
        topic_partitions = [TopicPartition(topic, number) for number in sorted(partitions)]
        committed, elections = await self._groups.committed_since(group, topic_partitions)
        commits: dict[int, Commit] = {}
        for entry in committed:
            election = elections.get((entry.topic, entry.partition), NO_ELECTION)
            commits[entry.partition] = Commit(
                entry.offset,
                metadata_of(entry) if election.holds else "",
                epoch_of(entry),
                election.end_epoch,
                topic_mark_of(entry),
            )
        return commits

    async def present_topic(self, topic: str) -> str:
        """Return the short id of the topic that has this name now, as read from Kafka by a request.
        Raises `LogError`."""
        return short_id(await self.topic_ids.read(topic))

    def known_topic(self, topic: str, since: float = -math.inf) -> str:
        """Return the short id of the topic as it was last read, without a request. Empty: no
        request that was sent at `since` (`time.monotonic`) or later has read it."""
        return short_id(self.topic_ids.known_id(topic, since))

    async def _all_partitions(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic. Raises `LogError`."""
        calls = self._calls
        metadata = await calls.run_in_thread(
            lambda timeout: calls.admin.list_topics(topic, timeout=timeout)
        )
        return [TopicPartition(topic, number) for number in metadata.topics[topic].partitions]

    async def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> None:
        """Make these commits, given by partition, and wait for Kafka. The request is repeated for
        `COMMIT_REQUEST_TIMEOUT` seconds while a coordinator moves. Raises `GroupHasMembers`, and
        `LogError` for any other failure."""
        deadline = time.monotonic() + COMMIT_REQUEST_TIMEOUT
        offsets = [
            TopicPartition(
                topic, number, commit.offset, mark(commit.metadata, commit.topic), commit.epoch
            )
            for number, commit in commits.items()
        ]
        while (error := await self._commit_once(group, offsets)) is not None:
            if error.code() in _MEMBER_ERRORS:
                raise GroupHasMembers(f"the group {group} has members: {error.str()}")
            if error.code() not in REBALANCING_ERRORS or time.monotonic() > deadline:
                raise log_error_of(error)
            if error.code() == KafkaError.NOT_COORDINATOR:
                self._replace_client()
            await asyncio.sleep(COMMIT_RETRY_INTERVAL)

    async def _commit_once(self, group: str, offsets: list[TopicPartition]) -> KafkaError | None:
        """Send one request for the commit; returns the first partition's error, or None if all
        offsets are committed."""
        group_offsets = ConsumerGroupTopicPartitions(group, offsets)
        calls = self._calls
        answers = await calls.ask_coordinator(
            lambda timeout: calls.admin.alter_consumer_group_offsets(
                [group_offsets], request_timeout=timeout
            )
        )
        partitions = answers[group].topic_partitions
        return next((partition.error for partition in partitions if partition.error), None)

    async def close(self) -> None:
        """Stop the threads of the admin client."""
        self._calls.close()
