"""Reads the starts, ends and first timestamps of many topics, in a few requests.

It is meant for topics that are read regularly, such as dead-letter topics: their partitions are
cached for minutes. Not here: lags, and the ends that wake Triggers (`kafka_lags`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from confluent_kafka import TopicPartition
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from knafka.clients.kafka.admin.kafka_topic_requests import (
    EARLIEST,
    LATEST,
    list_offsets,
    with_offset,
)
from knafka.clients.kafka.kafka_acls import explain_denials
from knafka.clients.kafka.kafka_requests import AdminCalls
from knafka.ports.log import Range

FIRST_RECORD_TIME: Final = 0
"""The earliest timestamp (ms). Asked for the first record since that time, Kafka returns offset and
timestamp of a partition's first record."""

RANGE_PARTITIONS_CACHE_SECONDS: Final = 300.0
"""Seconds for which a topic's partitions are cached."""


class KafkaRanges:
    """Reads starts, ends and first timestamps of many topics, and changes settings of such topics;
    used on one event loop."""

    def __init__(
        self,
        calls: AdminCalls,
        read_partitions: Callable[
            [Collection[str]], Awaitable[Mapping[str, Sequence[TopicPartition]]]
        ],
    ) -> None:
        """`calls` sends the requests. `read_partitions` reads the partitions of some topics from
        Kafka, and returns them by topic, without topics that don't exist."""
        self._calls = calls
        self._read_partitions = read_partitions
        self._cached_partitions: dict[str, tuple[float, Sequence[TopicPartition]]] = {}
        """Cached partitions by topic, each with the monotonic time when they were read."""

    async def ranges(self, topics: Collection[str]) -> Mapping[str, Range]:
        """Return the start and end offsets of the topics' partitions, by topic. Sends two requests,
        and more only if the topics' partitions aren't cached. Topics that don't exist and
        partitions without a leader are left out. Raises `LogError` if no partition can be read."""
        partitions = await self._existing_partitions(topics)
        # The starts are read first, so that records deleted or written meanwhile make no range
        # negative.
        earliest = with_offset(partitions, EARLIEST)
        starts = await list_offsets(self._calls, earliest, allow_failures=True)
        latest = with_offset(partitions, LATEST)
        ends = await list_offsets(self._calls, latest, allow_failures=True)
        starts_and_ends: dict[str, tuple[dict[int, int], dict[int, int]]] = {}
        for partition in starts.keys() & ends.keys():
            start, end = starts[partition].offset, ends[partition].offset
            if min(start, end) >= 0:  # else its leader has just gone
                topic_starts, topic_ends = starts_and_ends.setdefault(partition.topic, ({}, {}))
                topic_starts[partition.partition] = start
                topic_ends[partition.partition] = end
        for topic in topics:
            if topic not in starts_and_ends:  # it may be deleted, or created anew since
                self._cached_partitions.pop(topic, None)
        return {topic: Range(*topic_offsets) for topic, topic_offsets in starts_and_ends.items()}

    async def first_timestamps(self, topics: Collection[str]) -> Mapping[str, float]:
        """Return the Unix time (seconds) of each topic's first record, by topic. Sends one request,
        and more only if the topics' partitions aren't cached. Topics without records are left out.
        Raises `LogError` if no partition can be read."""
        partitions = with_offset(await self._existing_partitions(topics), FIRST_RECORD_TIME)
        first_records = await list_offsets(self._calls, partitions, allow_failures=True)
        timestamps: dict[str, float] = {}
        for partition, record in first_records.items():
            if record.offset >= 0 and record.timestamp >= 0:  # else it has no record or no leader
                seconds = record.timestamp / 1000
                timestamps[partition.topic] = min(timestamps.get(partition.topic, seconds), seconds)
        return timestamps

    async def set_config(self, topic: str, config: Mapping[str, str]) -> None:
        """Change these settings of a topic and no others. Raises `LogError`."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        with explain_denials(topic=("AlterConfigs", topic)):
            await self._calls.request_one(
                lambda timeout: self._calls.admin.incremental_alter_configs(
                    [resource], request_timeout=timeout
                )[resource]
            )

    async def _existing_partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        """Return the partitions of the topics, without topics that don't exist. A topic's
        partitions are cached for `RANGE_PARTITIONS_CACHE_SECONDS` seconds. Raises `LogError`."""
        now = time.monotonic()
        self._cached_partitions = {
            topic: cached
            for topic, cached in self._cached_partitions.items()
            if now - cached[0] < RANGE_PARTITIONS_CACHE_SECONDS
        }
        if missing := set(topics) - self._cached_partitions.keys():
            for topic, partitions in (await self._read_partitions(missing)).items():
                self._cached_partitions[topic] = now, partitions
        return [
            partition
            for topic in topics
            if topic in self._cached_partitions
            for partition in self._cached_partitions[topic][1]
        ]
