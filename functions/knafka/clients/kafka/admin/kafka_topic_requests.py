"""Requests that describe topics, or list offsets of their partitions.

Not here: requests that change a topic (`kafka_admin`), and caches (`kafka_lags`, `kafka_ranges`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, TopicCollection, TopicPartition
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import _AdminClientImpl

from knafka.clients.kafka.kafka_acls import explain_denials
from knafka.clients.kafka.kafka_commits import NO_EPOCH
from knafka.clients.kafka.kafka_requests import AdminCalls
from knafka.core.errors import LogError

EARLIEST: Final[int] = OffsetSpec.earliest()._value  # type: ignore[no-untyped-call]
"""Negative number that, in place of a timestamp, asks Kafka for a partition's start offset."""
LATEST: Final[int] = OffsetSpec.latest()._value  # type: ignore[no-untyped-call]
"""Negative number that, in place of a timestamp, asks Kafka for a partition's end offset."""

NO_TOPIC_ERRORS: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
"""Errors that say that a topic doesn't exist."""
NO_PARTITION_ERRORS: Final = NO_TOPIC_ERRORS | {KafkaError._UNKNOWN_PARTITION}
"""Errors that say that a partition doesn't exist any more: its topic was deleted, or created anew
with fewer partitions."""


class DescribedTopic(NamedTuple):
    """A topic as Kafka describes it."""

    id: str
    partitions: list[TopicPartition]
    replication: int
    """Number of replicas, of the partition that has the fewest."""


def with_offset(partitions: Sequence[TopicPartition], offset_spec: int) -> list[TopicPartition]:
    """Return the partitions with `offset_spec` (`EARLIEST`, `LATEST` or a timestamp in ms) as their
    offset, which tells `list_offsets` what to ask for."""
    return [
        TopicPartition(partition.topic, partition.partition, offset_spec)
        for partition in partitions
    ]


async def list_offsets(
    calls: AdminCalls, partitions: list[TopicPartition], *, allow_failures: bool = False
) -> dict[TopicPartition, Any]:
    """Return Kafka's answer for each partition, with one request: offset, timestamp and leader
    epoch of the record that the partition's `offset` asks for (`with_offset`). Raises `LogError` if
    a partition can't be read. `allow_failures`: leave such partitions out, and raise only if none
    can be read; partitions that don't exist are left out even then."""
    if not partitions:
        return {}
    # AdminClient's own method creates a future for each partition, which takes 29 us of CPU each,
    # for a single request.
    return await calls.request_together(
        lambda answer, timeout: _AdminClientImpl.list_offsets(
            calls.admin, partitions, answer, request_timeout=timeout
        ),
        omitted_codes=NO_PARTITION_ERRORS if allow_failures else (),
        allow_failures=allow_failures,
    )


class TopicRequests:
    """Asks Kafka about topics and their partitions; used on one event loop."""

    def __init__(self, calls: AdminCalls) -> None:
        """`calls` sends the requests."""
        self._calls = calls

    async def describe_existing(self, topic: str) -> DescribedTopic:
        """Return a topic's description. Raises `LogError` if it doesn't exist."""
        if description := (await self.describe([topic])).get(topic):
            return description
        raise LogError(f"the topic {topic} does not exist", unknown_topic=True)

    async def describe(
        self, topics: Collection[str], *, allow_failures: bool = False
    ) -> dict[str, DescribedTopic]:
        """Return the descriptions of the topics that exist. `allow_failures`: leave out topics that
        can't be described, else they raise `LogError`."""
        if not topics:
            return {}
        names = TopicCollection(list(topics))
        with explain_denials(topic=("Describe", _first_by_name(topics))):
            described = await self._calls.request_each(
                lambda timeout: self._calls.admin.describe_topics(names, request_timeout=timeout),
                omitted_codes=NO_TOPIC_ERRORS,
                allow_failures=allow_failures,
            )
        return {
            topic: DescribedTopic(
                str(description.topic_id),
                [TopicPartition(topic, partition.id) for partition in description.partitions],
                min((len(partition.replicas) for partition in description.partitions), default=0),
            )
            for topic, description in described.items()
        }

    async def partitions(self, topics: Collection[str]) -> Mapping[str, list[TopicPartition]]:
        """Return the partitions of the topics that can be described, by topic. Raises `LogError` if
        none can be."""
        described = await self.describe(topics, allow_failures=True)
        return {topic: description.partitions for topic, description in described.items()}

    async def list_positions(
        self, partitions: Sequence[TopicPartition], offset_spec: int
    ) -> dict[int, TopicPartition]:
        """Return each partition's offset and leader epoch at `offset_spec`: `EARLIEST`, `LATEST` or
        a timestamp (ms). For a timestamp, partitions without a record since then are left out.
        Raises `LogError` for a partition without a leader."""
        results = await self._request_offsets(with_offset(partitions, offset_spec))
        # For a timestamp, the offset -1 means that there is no record since then; any other
        # negative offset means that the partition has no leader.
        lowest_offset = -1 if offset_spec >= 0 else 0
        for partition in partitions:
            if partition not in results or results[partition].offset < lowest_offset:
                name = f"partition {partition.partition} of {partition.topic}"
                raise LogError(f"{name} has no leader")
        return {
            partition.partition: TopicPartition(
                partition.topic,
                partition.partition,
                result.offset,
                "",
                NO_EPOCH if result.leader_epoch is None else result.leader_epoch,
            )
            for partition, result in results.items()
            if result.offset >= 0
        }

    async def offsets_of_partitions(
        self, partitions: list[TopicPartition], *, allow_failures: bool = False
    ) -> dict[TopicPartition, int]:
        """Return the offset that each partition's own `offset` asks for: `EARLIEST` or `LATEST`.

        A partition whose leader has just gone is left out. `allow_failures`: leave out other
        partitions that can't be read now, too. Raises `LogError` if none can be read.
        """
        results = await self._request_offsets(partitions, allow_failures=allow_failures)
        # librdkafka (2.16.1) answers -1001 if a leader has just gone.
        return {
            partition: result.offset for partition, result in results.items() if result.offset >= 0
        }

    async def _request_offsets(
        self, partitions: list[TopicPartition], *, allow_failures: bool = False
    ) -> dict[TopicPartition, Any]:
        """Call `list_offsets`, and name the missing ACL in the error if Kafka denies access.
        Returns confluent-kafka's `ListOffsetsResultInfo` by partition, with `offset` and
        `leader_epoch`.

        `allow_failures`: leave out partitions that can't be read. Raises `LogError` if one can't be
        read; with `allow_failures`, if none can be.
        """
        topics = {partition.topic for partition in partitions}
        with explain_denials(topic=("Describe", _first_by_name(topics))):
            return await list_offsets(self._calls, partitions, allow_failures=allow_failures)


def _first_by_name(topics: Collection[str]) -> str:
    """Return the first of these topics by name, to be named in an error that may concern any of
    them; empty without topics."""
    return min(topics, default="")
