"""Topics and groups on real Kafka: `LogAdmin` with librdkafka's admin client.

Not here: reading and writing of events (`kafka_reader`, `kafka_writer`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, NamedTuple, cast

from confluent_kafka import KafkaError, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._cluster import DescribeClusterResult
from confluent_kafka.admin._config import ConfigResource, ConfigSource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from knafka.clients.kafka.admin.kafka_groups import KafkaGroups
from knafka.clients.kafka.admin.kafka_lag import limit_to_ends, partitions_beyond_end
from knafka.clients.kafka.admin.kafka_ranges import (
    EARLIEST,
    LATEST,
    NO_TOPIC_ERRORS,
    KafkaRanges,
    list_offsets,
    with_offset,
)
from knafka.clients.kafka.consumers.kafka_whole_topic import (
    UNUSED_GROUP,
    read_last_with_key,
    read_whole,
)
from knafka.clients.kafka.kafka_acls import explain_denials
from knafka.clients.kafka.kafka_client import Connection
from knafka.clients.kafka.kafka_commits import NO_EPOCH
from knafka.clients.kafka.kafka_requests import REQUEST_RETRY_INTERVAL, AdminCalls
from knafka.core.errors import LogError
from knafka.ports.log import (
    Commits,
    Lag,
    Positions,
    Range,
    Record,
    Start,
    TopicDescription,
    lag_of,
)

ADMIN_REQUEST_TIMEOUT: Final = 15.0
"""Most seconds for one request: more than Kafka needs to elect another leader."""
PARTITIONS_CACHE_SECONDS: Final = 30.0
"""Seconds for which `end_offsets_of_all` caches a topic's partitions."""
ENDS_CACHE_SECONDS: Final = 5.0
"""Seconds for which `lags` uses the ends that `end_offsets_of_all` has read. Records that come
after these ends appear in a later call; the operator calls both every few seconds."""


class _CachedPartitions(NamedTuple):
    """A topic's id and partitions, as read by `end_offsets_of_all` at `at` (`time.monotonic`)."""

    at: float
    id: str
    partitions: list[TopicPartition]
    """The partitions, each with `LATEST` as its offset, to request its end."""


class _CachedEnds(NamedTuple):
    """A topic's end offsets, as read by `end_offsets_of_all` at `at` (`time.monotonic`)."""

    at: float
    topic_id: str
    by_partition: Mapping[int, int]


class _DescribedTopic(NamedTuple):
    """A topic as Kafka describes it."""

    id: str
    partitions: list[TopicPartition]
    replication: int
    """Replicas of the partition that has the fewest."""


class KafkaAdmin:
    """`LogAdmin` with librdkafka's admin client, whose requests block no event loop."""

    def __init__(
        self,
        connection: Connection,
        *,
        request_timeout: float = ADMIN_REQUEST_TIMEOUT,
        max_read_bytes: int | None = None,
    ) -> None:
        """`connection` reaches Kafka. `request_timeout`: seconds after which a request without an
        answer raises `LogError`, with the reason that librdkafka reports; wrong credentials are
        reported as soon as Kafka refuses them. `max_read_bytes`: most bytes of memory that the
        records of one `read_last` may take; None: no limit. Raises `LogError`."""
        self._connection = connection
        self._max_read_bytes = max_read_bytes
        self._calls = AdminCalls(connection, request_timeout)
        self._groups = KafkaGroups(connection, self._calls)
        self._topic_ranges = KafkaRanges(self._calls, self._partitions)
        self._cached_partitions: dict[str, _CachedPartitions] = {}
        """Partitions of topics, as `end_offsets_of_all` has read them."""
        self._cached_ends: dict[str, _CachedEnds] = {}
        """The last ends of each topic of which `end_offsets_of_all` could read all partitions."""
        self._cached_ranges: dict[str, tuple[str, dict[int, tuple[int, int]]]] = {}
        """Each topic's id, and its partitions' starts and ends, as `lags` read them last."""

    @property
    def _admin(self) -> AdminClient:
        """The open admin client."""
        return self._calls.admin  # not stored, as it may be replaced

    async def cluster_id(self) -> str:
        """Return the Kafka cluster's id. Raises `LogError`."""
        described: DescribeClusterResult = await self._calls.request_one(
            lambda timeout: self._admin.describe_cluster(request_timeout=timeout)
        )
        return str(described.cluster_id)

    async def ensure_topic(
        self, topic: str, partitions: int, replication: int, config: Mapping[str, str]
    ) -> bool:
        """Create the topic unless it exists, and wait up to the request timeout until Kafka can
        describe it. Returns True if it was created, False if it exists already. Raises
        `LogError`."""
        new_topic = NewTopic(topic, partitions, replication, config=dict(config))
        with explain_denials(topic=("Create", topic), cluster="Create"):
            was_created = await self._request_unless_done(
                KafkaError.TOPIC_ALREADY_EXISTS,
                lambda timeout: self._admin.create_topics([new_topic], request_timeout=timeout)[
                    topic
                ],
            )
        # The controller knows the topic; the broker of the next request may learn of it a moment
        # later.
        deadline = time.monotonic() + self._calls.timeout
        while was_created:
            if topic in await self._describe([topic]) or time.monotonic() > deadline:
                break
            await asyncio.sleep(REQUEST_RETRY_INTERVAL)
        return was_created

    async def describe_topic(self, topic: str) -> TopicDescription | None:
        """Return a topic's id, its numbers of partitions and replicas, and the settings made on the
        topic itself; None: it doesn't exist. Raises `LogError`."""
        description = (await self._describe([topic])).get(topic)
        if description is None:
            return None
        resource = ConfigResource(ResourceType.TOPIC, topic)
        with explain_denials(topic=("DescribeConfigs", topic)):
            entries = await self._calls.request_each(
                lambda timeout: self._admin.describe_configs([resource], request_timeout=timeout),
                omitted_codes=NO_TOPIC_ERRORS,
            )
        if not entries:  # the topic was deleted between the two requests
            return None
        topics_own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        config = {
            name: str(entry.value)
            for name, entry in entries[resource].items()
            if entry.source == topics_own
        }
        return TopicDescription(
            description.id, len(description.partitions), description.replication, config
        )

    async def delete_topic(self, topic: str) -> None:
        """Delete the topic and all that is cached of it; do nothing if it doesn't exist. Raises
        `LogError`."""
        for cache in (self._cached_partitions, self._cached_ends, self._cached_ranges):
            cast(dict[str, object], cache).pop(topic, None)
        with explain_denials(topic=("Delete", topic)):
            await self._request_unless_done(
                KafkaError.UNKNOWN_TOPIC_OR_PART,
                lambda timeout: self._admin.delete_topics([topic], request_timeout=timeout)[topic],
            )

    async def topics(self) -> Mapping[str, int]:
        """Return the number of partitions of every topic, by name. Raises `LogError`."""
        metadata = await self._calls.run_in_thread(
            lambda timeout: self._admin.list_topics(timeout=timeout)
        )
        return {name: len(topic.partitions) for name, topic in metadata.topics.items()}

    async def end_offsets(self, topic: str) -> Positions:
        """Return the end offset of each partition. Raises `LogError`."""
        partitions = (await self._describe_existing(topic)).partitions
        ends = await self._list_positions(partitions, LATEST)
        return {number: end.offset for number, end in ends.items()}

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
        ends: dict[str, dict[int, int]] = {}
        for partition, offset in (
            await self._offsets_of_partitions(partitions, allow_failures=True)
        ).items():
            ends.setdefault(partition.topic, {})[partition.partition] = offset
        self._cache_ends(topics, ends, requested_at)
        return ends

    async def _refresh_cached_partitions(self, topics: Collection[str]) -> None:
        """Forget partitions that were cached `PARTITIONS_CACHE_SECONDS` ago, and cache those of the
        other `topics` that can be read. Raises `LogError` if none can, and no topic is cached."""
        now = time.monotonic()
        self._cached_partitions = {
            topic: cached
            for topic, cached in self._cached_partitions.items()
            if now - cached.at < PARTITIONS_CACHE_SECONDS
        }
        try:
            described = await self._describe(
                topics - self._cached_partitions.keys(), allow_failures=True
            )
        except LogError:
            if not self._cached_partitions:
                raise
            described = {}  # the ends of cached topics can still be read
        for topic, description in described.items():
            self._cached_partitions[topic] = _CachedPartitions(
                now, description.id, with_offset(description.partitions, LATEST)
            )

    def _cache_ends(
        self, topics: Collection[str], ends: Mapping[str, Positions], requested_at: float
    ) -> None:
        """Cache the ends of each topic of which all partitions were read, and forget old ends.
        `topics` are those of which ends were requested, at `requested_at` (`time.monotonic`)."""
        self._cached_ends = {
            topic: cached_ends
            for topic, cached_ends in self._cached_ends.items()
            # All of `topics` lose their earlier ends: those that were read completely get new ones
            # below, and the others must have none.
            if requested_at - cached_ends.at < ENDS_CACHE_SECONDS and topic not in topics
        } | {
            topic: _CachedEnds(requested_at, self._cached_partitions[topic].id, topic_ends)
            for topic, topic_ends in ends.items()
            if len(topic_ends) == len(self._cached_partitions[topic].partitions)
        }

    async def ranges_of_all(self, topics: Collection[str]) -> Mapping[str, Range]:
        """Return the start and end offsets of many topics' partitions, by topic. Topics that don't
        exist and partitions without a leader are left out. Raises `LogError` if no partition can be
        read."""
        return await self._topic_ranges.ranges(topics)

    async def first_timestamps(self, topics: Collection[str]) -> Mapping[str, float]:
        """Return the Unix time (seconds) of each topic's first record, by topic; topics without
        records are left out. Raises `LogError`."""
        return await self._topic_ranges.first_timestamps(topics)

    async def set_topic_config(self, topic: str, config: Mapping[str, str]) -> None:
        """Change these settings of a topic and no others. Raises `LogError`."""
        await self._topic_ranges.set_config(topic, config)

    async def ensure_committed(self, group: str, topic: str, start: Start = "latest") -> None:
        """Commit the topic's offsets at `start` for the group, unless it has commits on the topic.
        Raises `LogError`."""
        partitions = (await self._describe_existing(topic)).partitions
        if await self._groups.committed(group, partitions):
            return
        starts = await self._start_positions(partitions, start)
        with explain_denials(topic=("Read", topic)):
            await self._groups.commit(group, list(starts.values()))

    async def _start_positions(
        self, partitions: Sequence[TopicPartition], start: Start
    ) -> dict[int, TopicPartition]:
        """Return the position of `start` ("earliest", "latest" or a time in Unix ms) in each
        partition, at which a new group starts. The positions have leader epochs, so that Kafka can
        say later whether the log has lost its end since. Raises `LogError`."""
        if start == "earliest":
            return await self._list_positions(partitions, EARLIEST)
        # A partition without a record since the time starts at its end. The ends are read first: a
        # record that is written meanwhile is found by its time, or lies behind these ends.
        ends = await self._list_positions(partitions, LATEST)
        return ends if start == "latest" else ends | await self._list_positions(partitions, start)

    async def lags(self, groups: Sequence[str], topic: str) -> Mapping[str, Lag]:
        """Return the lag of each group on one topic, by group; without a request if the topic's
        ends were read lately (`_recent_ends`) and all groups are known to have committed them.
        Raises `LogError`."""
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
                    group: Lag(no_lag, ends=ends, metadata=_metadata_of(committed[group]))
                    for group in groups
                }
        description = await self._describe_existing(topic)
        if recent_ends is None or recent_ends.topic_id != description.id:
            id_, cached_ranges = self._cached_ranges.get(topic, ("", {}))
            ends = (
                {number: end for number, (_, end) in cached_ranges.items()}
                if id_ == description.id
                else {}
            )
            committed = await self._groups.commits_of_groups(
                groups, description.id, description.partitions, ends
            )
        # The ends are read after the groups' offsets, so that no group seems to be beyond an end.
        ranges, fresh = await self._ranges_of(topic, description)
        return {
            group: _lag_on(description, ranges, limit_to_ends(commits, ranges, fresh))
            for group, commits in committed.items()
        }

    def _recent_ends(self, topic: str) -> _CachedEnds | None:
        """Return the ends that were read within the last `ENDS_CACHE_SECONDS`; None: none were."""
        ends = self._cached_ends.get(topic)
        return ends if ends and time.monotonic() - ends.at <= ENDS_CACHE_SECONDS else None

    async def _ranges_of(
        self, topic: str, description: _DescribedTopic
    ) -> tuple[Mapping[int, tuple[int, int]], Collection[int]]:
        """Return start and end of each partition, and the numbers of the partitions whose range was
        read by this call. Raises `LogError` if no range is known.

        A partition that can't be read has no leader, so nothing is appended to it: the range that
        was read last is returned, if there is one.
        """
        starts, ends = [
            await self._offsets_of_partitions(
                with_offset(description.partitions, offset_spec), allow_failures=True
            )
            for offset_spec in (EARLIEST, LATEST)
        ]
        read_ranges = {
            partition.partition: (starts[partition], ends[partition])
            for partition in starts.keys() & ends.keys()
        }
        # A topic that was created anew has another id, and its earlier ranges don't apply.
        id_, cached_ranges = self._cached_ranges.get(topic, (description.id, {}))
        ranges = cached_ranges | read_ranges if id_ == description.id else read_ranges
        if not ranges:
            raise LogError(f"no partition of {topic} has a leader")
        self._cached_ranges[topic] = description.id, ranges
        return ranges, read_ranges.keys()

    async def has_group(self, group: str) -> bool:
        """Whether Kafka knows the group. Raises `LogError`."""
        return await self._groups.exists(group)

    async def has_committed(self, group: str, topic: str) -> bool:
        """Whether the group has an offset on any partition of the topic; False if the topic doesn't
        exist. Raises `LogError`."""
        description = (await self._describe([topic])).get(topic)
        return description is not None and bool(
            await self._groups.committed(group, description.partitions)
        )

    async def delete_group(self, group: str) -> None:
        """Delete the group with its offsets, if it exists. Raises `LogError`."""
        await self._groups.delete(group)

    async def members(self, group: str) -> Collection[str]:
        """Return the client ids of the group's members; empty if there is no such group. Raises
        `LogError`."""
        return await self._groups.members(group)

    def forget_group(self, group: str) -> None:
        """Forget the cached commits of a group, as they may have been changed."""
        self._groups.forget(group)

    def note_committed(
        self, groups: Collection[str], topic: str, positions: Positions, since: float
    ) -> None:
        """Note the offsets that a dispatcher reports as committed for these groups; it has made
        their commits for `since` seconds. While the topic ends at these offsets, `lags` needs no
        request."""
        if (cached := self._cached_partitions.get(topic)) is not None:
            self._groups.note_commits(groups, cached.id, positions, since)

    async def read_last(self, topic: str, limit: int) -> Sequence[Record]:
        """Return the last `limit` records of a topic, oldest first. Raises `LogError`, also if they
        take more than `max_read_bytes`."""
        await self._describe_existing(topic)  # its errors are clearer than a consumer's
        read = partial(read_whole, self._connection, topic, limit, max_bytes=self._max_read_bytes)
        with explain_denials(topic=("Read", topic), group=("Read", UNUSED_GROUP)):
            return await self._calls.run_in_thread(lambda timeout: read(timeout=timeout))

    async def last_with_key(self, topic: str, key: bytes) -> Record | None:
        """Return the last record that has this key; None: there is none. Raises `LogError`."""
        await self._describe_existing(topic)
        read = partial(read_last_with_key, self._connection, topic, key)
        with explain_denials(topic=("Read", topic), group=("Read", UNUSED_GROUP)):
            return await self._calls.run_in_thread(lambda timeout: read(timeout=timeout))

    async def close(self) -> None:
        """Stop the threads; librdkafka closes its connections when the client is
        garbage-collected."""
        self._calls.close()

    async def _describe_existing(self, topic: str) -> _DescribedTopic:
        """Return a topic's description. Raises `LogError` if it doesn't exist."""
        if description := (await self._describe([topic])).get(topic):
            return description
        raise LogError(f"the topic {topic} does not exist", unknown_topic=True)

    async def _describe(
        self, topics: Collection[str], *, allow_failures: bool = False
    ) -> dict[str, _DescribedTopic]:
        """Return the descriptions of the topics that exist. `allow_failures`: leave out topics that
        can't be described, else they raise `LogError`."""
        if not topics:
            return {}
        names = TopicCollection(list(topics))
        with explain_denials(topic=("Describe", _first_by_name(topics))):
            described = await self._calls.request_each(
                lambda timeout: self._admin.describe_topics(names, request_timeout=timeout),
                omitted_codes=NO_TOPIC_ERRORS,
                allow_failures=allow_failures,
            )
        return {
            topic: _DescribedTopic(
                str(description.topic_id),
                [TopicPartition(topic, partition.id) for partition in description.partitions],
                min((len(partition.replicas) for partition in description.partitions), default=0),
            )
            for topic, description in described.items()
        }

    async def _partitions(self, topics: Collection[str]) -> Mapping[str, list[TopicPartition]]:
        """Return the partitions of the topics that can be described, by topic. Raises `LogError` if
        none can be."""
        described = await self._describe(topics, allow_failures=True)
        return {topic: description.partitions for topic, description in described.items()}

    async def _list_positions(
        self, partitions: Sequence[TopicPartition], offset_spec: int
    ) -> dict[int, TopicPartition]:
        """Return each partition's offset and leader epoch at `offset_spec`: `EARLIEST`, `LATEST` or
        a timestamp (ms). For a timestamp, partitions without a record since then are left out.
        Raises `LogError` for a partition without a leader."""
        results = await self._list_offsets(with_offset(partitions, offset_spec))
        # For a timestamp, -1 means: no record since then. Else a negative offset means: no leader.
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

    async def _offsets_of_partitions(
        self, partitions: list[TopicPartition], *, allow_failures: bool = False
    ) -> dict[TopicPartition, int]:
        """Return the offset that each partition's own `offset` asks for: `EARLIEST` or `LATEST`.

        A partition whose leader has just gone is left out. `allow_failures`: leave out other
        partitions that can't be read now, too. Raises `LogError` if none can be read.
        """
        results = await self._list_offsets(partitions, allow_failures=allow_failures)
        # librdkafka (2.16.1) answers -1001 if a leader has just gone.
        return {
            partition: result.offset for partition, result in results.items() if result.offset >= 0
        }

    async def _list_offsets(
        self, partitions: list[TopicPartition], *, allow_failures: bool = False
    ) -> dict[TopicPartition, Any]:
        """Ask Kafka for the offset that each partition's own `offset` selects (`with_offset`).
        Returns confluent-kafka's `ListOffsetsResultInfo` by partition, with `offset` and
        `leader_epoch`.

        `allow_failures`: leave out partitions that can't be read. Raises `LogError` if one can't
        (with `allow_failures`: if none can); if Kafka denies access, it names the missing ACL.
        """
        topics = {partition.topic for partition in partitions}
        with explain_denials(topic=("Describe", _first_by_name(topics))):
            return await list_offsets(self._calls, partitions, allow_failures=allow_failures)

    async def _request_unless_done(
        self, done_before: int, ask: Callable[[float], Future[Any]]
    ) -> bool:
        """Send a request by `ask`, which gets a timeout in seconds. Returns True if it succeeded,
        False if it failed with the code `done_before`, as there was nothing left to do. Raises
        `LogError` for any other failure."""
        # `request_each` leaves out an answer with the code `done_before`: then there is none.
        answers = self._calls.request_each(lambda timeout: {True: ask(timeout)}, {done_before})
        return bool(await answers)


def _first_by_name(topics: Collection[str]) -> str:
    """Return the first of these topics by name, to be named in an error that may concern any of
    them; empty without topics."""
    return min(topics, default="")


def _lag_on(topic: _DescribedTopic, ranges: Mapping[int, tuple[int, int]], commits: Commits) -> Lag:
    """Return the lag of a group with these commits; 0 in partitions without a known range.
    `ranges`: start and end by partition."""
    no_lag = dict.fromkeys((partition.partition for partition in topic.partitions), 0)
    lags = {
        number: lag_of(commits.get(number), start, end) for number, (start, end) in ranges.items()
    }
    ends = {number: end for number, (_, end) in ranges.items()}
    return Lag(no_lag | lags, partitions_beyond_end(commits, ranges), ends, _metadata_of(commits))


def _metadata_of(commits: Commits) -> Mapping[int, str]:
    """Return the metadata of commits, by partition; commits without metadata are left out."""
    return {number: commit.metadata for number, commit in commits.items() if commit.metadata}
