"""A member of a group that reads nothing: `ports.shared_log.GroupMember` on `KafkaReader`."""

from __future__ import annotations

from functools import partial

from knafka.clients.kafka.consumers.kafka_group_consumer import GroupProtocol
from knafka.clients.kafka.consumers.kafka_reader import KafkaReader
from knafka.clients.kafka.kafka_client import Connection
from knafka.ports.log import Assignment, OffsetAndMetadata, Positions


class KafkaMember(KafkaReader):
    """A `GroupMember` on real Kafka: all its partitions are paused, so its reads return no
    records."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        topic: str,
        assignment: Assignment,
        protocol: GroupProtocol = GroupProtocol.CONSUMER,
    ) -> None:
        """Open the consumer and join the group on one topic; `assignment` is notified of assigned
        and revoked partitions. Raises `LogError`."""
        super().__init__(connection, group, topic, assignment, protocol, reads=False)

    async def serve(self, timeout: float) -> None:
        """Poll for up to `timeout` seconds, which keeps the membership. Raises `LogError`."""
        await self.read(1, timeout)

    async def confirm(self, positions: Positions) -> bool:
        """Commit these offsets, given by partition, for the group that this member has joined.
        Returns whether Kafka accepts the commit, which it does only while this process is a member;
        False also if the member owns none of the partitions."""
        commits = {number: OffsetAndMetadata(offset) for number, offset in positions.items()}
        answer: bool = await self._thread.call(partial(self._membership.confirm, commits))
        return answer
