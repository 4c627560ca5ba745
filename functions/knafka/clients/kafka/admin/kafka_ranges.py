"""What many topics have, in a few requests: where they start and end, and since when.

Topics that are looked at again and again, as dead-letter topics are: what is found of their
partitions counts for minutes. Not here: lags and the ends that wake Triggers (`kafka_admin`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import _AdminClientImpl

from knafka.clients.kafka.kafka_acls import needing
from knafka.clients.kafka.kafka_requests import AdminCalls
from knafka.ports.log import Range

EARLIEST: Final[int] = OffsetSpec.earliest()._value  # type: ignore[no-untyped-call]
LATEST: Final[int] = OffsetSpec.latest()._value  # type: ignore[no-untyped-call]
SINCE_EVER: Final = 0
"""A time: Kafka answers with the first record, and tells its own time."""

GONE: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
ANOTHER: Final = GONE | {KafkaError._UNKNOWN_PARTITION}
"""The topic was deleted meanwhile, or made anew with fewer partitions."""
REMEMBERED: Final = 300.0
"""Seconds for which a topic's number of partitions counts."""


def at_offset(partitions: Sequence[TopicPartition], which: int) -> list[TopicPartition]:
    return [TopicPartition(partition.topic, partition.partition, which) for partition in partitions]


async def listed(
    calls: AdminCalls, wanted: list[TopicPartition], *, some: bool = False
) -> dict[TopicPartition, Any]:
    """Offset and timestamp of what each `offset` asks for, in one request; `some`: of those that
    can be read now. Raises `LogError` if none can."""
    if not wanted:
        return {}
    # Not by AdminClient's own method, which makes a future for each partition: 29 us of CPU
    # each, where the request for all topics is one.
    return await calls.batch(
        lambda answer, timeout: _AdminClientImpl.list_offsets(
            calls.admin, wanted, answer, request_timeout=timeout
        ),
        leaving_out=ANOTHER if some else (),
        some=some,
    )


class KafkaRanges:
    """Looks at many topics; belongs to one event loop."""

    def __init__(
        self,
        calls: AdminCalls,
        partitions: Callable[[Collection[str]], Awaitable[Mapping[str, Sequence[TopicPartition]]]],
    ) -> None:
        """`partitions` gives those of the topics that there are."""
        self._calls = calls
        self._partitions = partitions
        self._known: dict[str, tuple[float, Sequence[TopicPartition]]] = {}

    async def ranges(self, topics: Collection[str]) -> Mapping[str, Range]:
        """`LogAdmin.ranges_of_all`."""
        partitions = await self._existing_partitions(topics)
        # The starts come first: what is deleted or written meanwhile makes no range negative.
        starts, ends = [
            await listed(self._calls, at_offset(partitions, which), some=True)
            for which in (EARLIEST, LATEST)
        ]
        found: dict[str, tuple[dict[int, int], dict[int, int]]] = {}
        for place in starts.keys() & ends.keys():
            start, end = starts[place].offset, ends[place].offset
            if min(start, end) >= 0:  # else its leader was there a moment ago
                both = found.setdefault(place.topic, ({}, {}))
                both[0][place.partition], both[1][place.partition] = start, end
        for topic in topics:
            if topic not in found:
                self._known.pop(topic, None)
        return {topic: Range(*both) for topic, both in found.items()}

    async def first_timestamps(self, topics: Collection[str]) -> Mapping[str, float]:
        """`LogAdmin.first_timestamps`."""
        wanted = at_offset(await self._existing_partitions(topics), SINCE_EVER)
        found: dict[str, float] = {}
        for place, first in (await listed(self._calls, wanted, some=True)).items():
            if first.offset >= 0 and first.timestamp >= 0:
                at = first.timestamp / 1000
                found[place.topic] = min(found.get(place.topic, at), at)
        return found

    async def set_config(self, topic: str, config: Mapping[str, str]) -> None:
        """`LogAdmin.set_topic_config`."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        with needing(topic=("AlterConfigs", topic)):
            await self._calls.result(
                lambda timeout: self._calls.admin.incremental_alter_configs(
                    [resource], request_timeout=timeout
                )[resource]
            )

    async def _existing_partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        """Return the partitions of the topics that exist, asking Kafka only now and then."""
        now = time.monotonic()
        self._known = {
            topic: entry for topic, entry in self._known.items() if now - entry[0] < REMEMBERED
        }
        if missing := set(topics) - self._known.keys():
            for topic, partitions in (await self._partitions(missing)).items():
                self._known[topic] = now, partitions
        return [
            partition
            for topic in topics
            if topic in self._known
            for partition in self._known[topic][1]
        ]
