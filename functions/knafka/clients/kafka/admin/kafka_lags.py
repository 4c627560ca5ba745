"""The lags of groups on real Kafka, and the ends of topics, with as few requests as caches allow.

The operator asks every few seconds for the ends of all topics, and then for the lags of the groups
that read them. Topics' partitions are cached, so one request returns all ends. If a group is known
to have committed these ends, its lag needs no request at all (docs/decisions/0015).

Not here: cached commits (`kafka_groups`), the lag itself (`kafka_committed_lag`), and the ranges of
topics that are read less often (`kafka_ranges`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, cast

from confluent_kafka import TopicPartition

from knafka.clients.kafka.admin.kafka_committed_lag import (
    lag_on,
    limit_to_ends,
    metadata_by_partition,
)
from knafka.clients.kafka.admin.kafka_groups import KafkaGroups
from knafka.clients.kafka.admin.kafka_topic_requests import (
    EARLIEST,
    LATEST,
    DescribedTopic,
    TopicRequests,
    with_offset,
)
from knafka.core.errors import LogError
from knafka.ports.log import Commits, Lag, Positions

PARTITIONS_CACHE_SECONDS: Final = 30.0
"""Seconds for which `end_offsets_of_all` caches a topic's partitions."""
ENDS_CACHE_SECONDS: Final = 5.0
"""Seconds for which `lags` uses the ends that `end_offsets_of_all` has read. Records that come
after these ends appear in a later call; the operator calls both every few seconds."""


class _CachedPartitions(NamedTuple):
    """A topic's id and partitions, as `end_offsets_of_all` has read them."""

    read_at: float
    """When they were read (`time.monotonic`)."""
    id: str
    partitions: list[TopicPartition]
    """The partitions, each with `LATEST` as its offset, to request its end."""


class _CachedEnds(NamedTuple):
    """A topic's end offsets, as `end_offsets_of_all` has read them."""

    requested_at: float
    """When they were requested (`time.monotonic`)."""
    topic_id: str
    by_partition: Mapping[int, int]


class KafkaLags:
    """Reads the lags of groups and the ends of topics; used on one event loop."""

    def __init__(self, requests: TopicRequests, groups: KafkaGroups) -> None:
        """Begin with empty caches. `requests` reads topics and their offsets from Kafka, `groups`
        reads commits."""
        self._requests = requests
        self._groups = groups
        self._cached_partitions: dict[str, _CachedPartitions] = {}
        """Partitions of topics, as `end_offsets_of_all` has read them."""
        self._cached_ends: dict[str, _CachedEnds] = {}
        """The last ends of each topic of which `end_offsets_of_all` could read all partitions."""
        self._cached_ranges: dict[str, tuple[str, dict[int, tuple[int, int]]]] = {}
        """Each topic's id, and its partitions' starts and ends, as `lags` read them last."""

    async def end_offsets_of_all(self, topics: Collection[str]) -> Mapping[str, Positions]:
        """Return the end offsets of many topics, by topic; with one request if their partitions are
        cached. Topics and partitions that can't be read are left out. Raises `LogError` if none can
        be read.

        Caches the partitions for the next call, and for `lags` the ends of the topics that were
        read completely.
        """
        await self._refresh_cached_partitions(topics)
        partitions = [
            partition
            for topic in topics
            if topic in self._cached_partitions
            for partition in self._cached_partitions[topic].partitions
        ]
        requested_at = time.monotonic()
        offsets = await self._requests.offsets_of_partitions(partitions, allow_failures=True)
        ends: dict[str, dict[int, int]] = {}
        for partition, offset in offsets.items():
            ends.setdefault(partition.topic, {})[partition.partition] = offset
        self._cache_ends(topics, ends, requested_at)
        return ends

    async def _refresh_cached_partitions(self, topics: Collection[str]) -> None:
        """Forget partitions that were cached `PARTITIONS_CACHE_SECONDS` ago. Then cache the
        partitions of all `topics` that aren't cached and can be read. Raises `LogError` if none can
        be read and no topic is cached."""
        now = time.monotonic()
        self._cached_partitions = {
            topic: cached
            for topic, cached in self._cached_partitions.items()
            if now - cached.read_at < PARTITIONS_CACHE_SECONDS
        }
        try:
            described = await self._requests.describe(
                topics - self._cached_partitions.keys(), allow_failures=True
            )
        except LogError:
            if not self._cached_partitions:
                raise
            described = {}  # the ends of the cached topics can still be read
        for topic, description in described.items():
            self._cached_partitions[topic] = _CachedPartitions(
                now, description.id, with_offset(description.partitions, LATEST)
            )

    def _cache_ends(
        self, topics: Collection[str], ends: Mapping[str, Positions], requested_at: float
    ) -> None:
        """Cache the `ends` of each topic of which all partitions were read, and forget old ends.
        `topics`: all topics whose ends were requested, at `requested_at` (`time.monotonic`)."""
        # All of `topics` lose their earlier ends: those that were read completely get new ones, and
        # the others must have none.
        ends_of_other_topics = {
            topic: cached_ends
            for topic, cached_ends in self._cached_ends.items()
            if requested_at - cached_ends.requested_at < ENDS_CACHE_SECONDS and topic not in topics
        }
        complete_ends = {
            topic: _CachedEnds(requested_at, self._cached_partitions[topic].id, topic_ends)
            for topic, topic_ends in ends.items()
            if len(topic_ends) == len(self._cached_partitions[topic].partitions)
        }
        self._cached_ends = ends_of_other_topics | complete_ends

    async def lags(self, groups: Sequence[str], topic: str) -> Mapping[str, Lag]:
        """Return the lag of each group on one topic, by group. Sends no request if the topic's ends
        were read lately (`_recent_ends`) and all groups are known to have committed them. Raises
        `LogError`."""
        committed: Mapping[str, Commits] = {}
        if (recent_ends := self._recent_ends(topic)) is not None:
            ends = recent_ends.by_partition
            topic_partitions = [TopicPartition(topic, number) for number in ends]
            committed = await self._groups.commits_of_groups(
                groups, recent_ends.topic_id, topic_partitions, ends
            )
            if self._groups.have_committed(groups, recent_ends.topic_id, ends):
                no_lag = dict.fromkeys(ends, 0)
                return {
                    group: Lag(no_lag, ends=ends, metadata=metadata_by_partition(committed[group]))
                    for group in groups
                }
        description = await self._requests.describe_existing(topic)
        if recent_ends is None or recent_ends.topic_id != description.id:
            # `committed` is empty, or has the commits on an earlier topic of this name. Commits of
            # groups that are at the ends read last may come from the cache.
            cached_id, cached_ranges = self._cached_ranges.get(topic, ("", {}))
            is_current = cached_id == description.id
            ends = {number: end for number, (_, end) in cached_ranges.items()} if is_current else {}
            committed = await self._groups.commits_of_groups(
                groups, description.id, description.partitions, ends
            )
        # The ends are read after the groups' commits, so that no commit seems to be beyond an end.
        ranges, fresh = await self._ranges_of(topic, description)
        numbers = [partition.partition for partition in description.partitions]
        return {
            group: lag_on(numbers, ranges, limit_to_ends(commits, ranges, fresh))
            for group, commits in committed.items()
        }

    def _recent_ends(self, topic: str) -> _CachedEnds | None:
        """Return the topic's ends, if all of them were read within the last `ENDS_CACHE_SECONDS`;
        else None."""
        ends = self._cached_ends.get(topic)
        return ends if ends and time.monotonic() - ends.requested_at <= ENDS_CACHE_SECONDS else None

    async def _ranges_of(
        self, topic: str, description: DescribedTopic
    ) -> tuple[Mapping[int, tuple[int, int]], Collection[int]]:
        """Return start and end of each partition, and the numbers of the partitions whose start and
        end were read by this call. Raises `LogError` if none are known.

        A partition that can't be read has no leader, so nothing is appended to it: its last known
        start and end are returned, if there are any.
        """
        starts, ends = [
            await self._requests.offsets_of_partitions(
                with_offset(description.partitions, offset_spec), allow_failures=True
            )
            for offset_spec in (EARLIEST, LATEST)
        ]
        read_ranges = {
            partition.partition: (starts[partition], ends[partition])
            for partition in starts.keys() & ends.keys()
        }
        # A topic that was created anew has another id, and its earlier ranges don't apply.
        cached_id, cached_ranges = self._cached_ranges.get(topic, (description.id, {}))
        ranges = cached_ranges | read_ranges if cached_id == description.id else read_ranges
        if not ranges:
            raise LogError(f"no partition of {topic} has a leader")
        self._cached_ranges[topic] = description.id, ranges
        return ranges, read_ranges.keys()

    def note_committed(
        self, groups: Collection[str], topic: str, positions: Positions, seconds: float
    ) -> None:
        """Note the offsets (`positions`) that a dispatcher reports as committed for these groups.
        It has made all commits of the groups in the last `seconds`. While the topic ends at these
        offsets, `lags` needs no request."""
        if (cached := self._cached_partitions.get(topic)) is not None:
            self._groups.note_commits(groups, cached.id, positions, seconds)

    def forget_topic(self, topic: str) -> None:
        """Forget all that is cached of a topic that is being deleted."""
        for cache in (self._cached_partitions, self._cached_ends, self._cached_ranges):
            cast(dict[str, object], cache).pop(topic, None)
