"""The offsets of groups without members: `ports.shared_log.GroupOffsets` on real Kafka.

One admin client commits for all groups: a commit as nobody's (generation -1), which Kafka takes for
a group without members only, with metadata and leader epoch. It is asked as a consumer of the group
(`kafka_groups` says why), once for each assignment.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from typing import Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, TopicPartition

from knafka.clients.kafka_client import Connection, log_error_of
from knafka.clients.kafka_commits import AGAIN, MOVING, epoch_of
from knafka.clients.kafka_groups import KafkaGroups
from knafka.clients.kafka_requests import AdminCalls
from knafka.ports.shared_log import Commit, GroupHasMembers

TIMEOUT: Final = 10.0
"""Seconds for a commit, in which a coordinator may move."""
_TAKEN: Final = frozenset(
    {
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.REBALANCE_IN_PROGRESS,
    }
)
"""What Kafka answers to a commit as nobody's if the group has members."""


class KafkaOffsets:
    """Belongs to one event loop."""

    def __init__(self, connection: Connection) -> None:
        self._calls = AdminCalls(connection, TIMEOUT)
        self._groups = KafkaGroups(connection, self._calls)

    async def committed(
        self, group: str, topic: str, partitions: Collection[int]
    ) -> Mapping[int, Commit]:
        described = await self._calls.single(
            lambda timeout: self._calls.admin.describe_consumer_groups(
                [group], request_timeout=timeout
            )[group]
        )
        if described.members:
            count = len(described.members)
            raise GroupHasMembers(
                f"the group {group} has {count} members: others deliver its events"
            )
        wanted = [TopicPartition(topic, number) for number in sorted(partitions)]
        return {
            each.partition: Commit(each.offset, each.metadata or "", epoch_of(each))
            for each in await self._groups.committed_partitions(group, wanted)
        }

    async def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> None:
        deadline = time.monotonic() + TIMEOUT
        offsets = [
            TopicPartition(topic, number, each.offset, each.metadata, each.epoch)
            for number, each in commits.items()
        ]
        while (error := await self._try(group, offsets)) is not None:
            if error.code() in _TAKEN:
                raise GroupHasMembers(f"the group {group} has members: {error.str()}")
            if error.code() not in MOVING or time.monotonic() > deadline:
                raise log_error_of(error)
            await asyncio.sleep(AGAIN)

    async def _try(self, group: str, offsets: list[TopicPartition]) -> KafkaError | None:
        """Commit once; what Kafka says against it."""
        wanted = ConsumerGroupTopicPartitions(group, offsets)
        answer = await self._calls.single(
            lambda timeout: self._calls.admin.alter_consumer_group_offsets(
                [wanted], request_timeout=timeout
            )[group]
        )
        return next((each.error for each in answer.topic_partitions if each.error), None)

    async def close(self) -> None:
        self._calls.close()
