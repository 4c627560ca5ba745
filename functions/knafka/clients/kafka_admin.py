"""Topics and groups on real Kafka: `LogAdmin` on librdkafka's admin client.

Not here: reading and writing of events (`kafka_reader`), except for looking at a whole topic.
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

from knafka.clients.kafka_acls import needing
from knafka.clients.kafka_client import Connection
from knafka.clients.kafka_groups import KafkaGroups
from knafka.clients.kafka_lag import at_most, beyond
from knafka.clients.kafka_ranges import EARLIEST, GONE, LATEST, KafkaRanges, asking, listed
from knafka.clients.kafka_requests import ASK_AGAIN, AdminCalls
from knafka.clients.kafka_whole_topic import UNUSED_GROUP, read_whole
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

REQUEST_TIMEOUT: Final = 15.0
"""Seconds for one request: Kafka elects another leader in less."""
PARTITIONS_REMEMBERED: Final = 30.0
"""Seconds for which `end_offsets_of_all` counts on a topic's number of partitions."""
ENDS_REMEMBERED: Final = 5.0
"""Seconds for which `lags` believes the ends that `end_offsets_of_all` has read: a client
that asks for those again and again, as the operator does every other second at least, finds what
comes later."""


class _Seen(NamedTuple):
    at: float
    id: str
    partitions: list[TopicPartition]
    """With the end as the offset that is asked for."""


class _Ends(NamedTuple):
    at: float
    topic_id: str
    by_partition: Mapping[int, int]


class _Found(NamedTuple):
    id: str
    partitions: list[TopicPartition]
    replication: int


class KafkaAdmin:
    """`LogAdmin` on the admin client; its calls run in threads of librdkafka.

    `request_timeout`: seconds after which a Kafka that doesn't answer is a `LogError`, which says
    what librdkafka knows of the reason. Wrong credentials are told as soon as Kafka refuses them.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        request_timeout: float = REQUEST_TIMEOUT,
        max_read_bytes: int | None = None,
    ) -> None:
        """`max_read_bytes`: that of `read_whole`."""
        self._connection = connection
        self._max_read_bytes = max_read_bytes
        self._calls = AdminCalls(connection, request_timeout)
        self._groups = KafkaGroups(connection, self._calls)
        self._topic_ranges = KafkaRanges(self._calls, self._partitions)
        self._seen: dict[str, _Seen] = {}
        """Topics as `end_offsets_of_all` found them."""
        self._ends: dict[str, _Ends] = {}
        """What it read last, of topics all of whose partitions could be read."""
        self._ranges: dict[str, tuple[str, dict[int, tuple[int, int]]]] = {}
        """A topic's id, and its partitions' starts and ends when `lags` read them last."""

    @property
    def _admin(self) -> AdminClient:
        return self._calls.admin

    async def cluster_id(self) -> str:
        described: DescribeClusterResult = await self._calls.single(
            lambda timeout: self._admin.describe_cluster(request_timeout=timeout)
        )
        return str(described.cluster_id)

    async def ensure_topic(
        self, topic: str, partitions: int, replication: int, config: Mapping[str, str]
    ) -> bool:
        new = NewTopic(topic, partitions, replication, config=dict(config))
        with needing(topic=("Create", topic), cluster="Create"):
            made = await self._unless(
                KafkaError.TOPIC_ALREADY_EXISTS,
                lambda timeout: self._admin.create_topics([new], request_timeout=timeout)[topic],
            )
        # The controller has it; the broker that we ask next may hear of it a moment later.
        deadline = time.monotonic() + self._calls.timeout
        while made:
            if topic in await self._describe([topic]) or time.monotonic() > deadline:
                break
            await asyncio.sleep(ASK_AGAIN)
        return made

    async def describe_topic(self, topic: str) -> TopicDescription | None:
        found = (await self._describe([topic])).get(topic)
        if found is None:
            return None
        resource = ConfigResource(ResourceType.TOPIC, topic)
        with needing(topic=("DescribeConfigs", topic)):
            entries = await self._calls.many(
                lambda timeout: self._admin.describe_configs([resource], request_timeout=timeout),
                leaving_out=GONE,
            )
        if not entries:
            return None
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        config = {
            name: str(entry.value)
            for name, entry in entries[resource].items()
            if entry.source == own
        }
        return TopicDescription(found.id, len(found.partitions), found.replication, config)

    async def delete_topic(self, topic: str) -> None:
        for known in (self._seen, self._ends, self._ranges):
            cast(dict[str, object], known).pop(topic, None)
        with needing(topic=("Delete", topic)):
            await self._unless(
                KafkaError.UNKNOWN_TOPIC_OR_PART,
                lambda timeout: self._admin.delete_topics([topic], request_timeout=timeout)[topic],
            )

    async def topics(self) -> Mapping[str, int]:
        metadata = await self._calls.in_thread(
            lambda timeout: self._admin.list_topics(timeout=timeout)
        )
        return {name: len(topic.partitions) for name, topic in metadata.topics.items()}

    async def end_offsets(self, topic: str) -> Positions:
        return await self._list_offsets((await self._existing(topic)).partitions, LATEST)

    async def end_offsets_of_all(self, topics: Collection[str]) -> Mapping[str, Positions]:
        now = time.monotonic()
        self._seen = {
            topic: seen
            for topic, seen in self._seen.items()
            if now - seen.at < PARTITIONS_REMEMBERED
        }
        try:
            described = await self._describe(topics - self._seen.keys(), some=True)
        except LogError:
            if not self._seen:
                raise
            described = {}  # of the others the ends can still be had
        for topic, description in described.items():
            self._seen[topic] = _Seen(now, description.id, asking(description.partitions, LATEST))
        wanted = [
            partition
            for topic in topics
            if topic in self._seen
            for partition in self._seen[topic].partitions
        ]
        asked = time.monotonic()
        ends: dict[str, dict[int, int]] = {}
        for partition, offset in (await self._list(wanted, some=True)).items():
            ends.setdefault(partition.topic, {})[partition.partition] = offset
        self._ends = {
            topic: before
            for topic, before in self._ends.items()
            # One of these that can't be read now must not be taken for what it was.
            if asked - before.at < ENDS_REMEMBERED and topic not in topics
        } | {
            topic: _Ends(asked, self._seen[topic].id, found)
            for topic, found in ends.items()
            if len(found) == len(self._seen[topic].partitions)
        }
        return ends

    async def ranges_of_all(self, topics: Collection[str]) -> Mapping[str, Range]:
        return await self._topic_ranges.ranges(topics)

    async def first_timestamps(self, topics: Collection[str]) -> Mapping[str, float]:
        return await self._topic_ranges.first_timestamps(topics)

    async def set_topic_config(self, topic: str, config: Mapping[str, str]) -> None:
        await self._topic_ranges.set_config(topic, config)

    async def ensure_committed(self, group: str, topic: str, start: Start = "latest") -> None:
        partitions = (await self._existing(topic)).partitions
        if await self._groups.committed(group, partitions):
            return
        starts = await self._starts(partitions, start)
        with needing(topic=("Read", topic)):
            await self._groups.commit(
                group, [TopicPartition(topic, number, offset) for number, offset in starts.items()]
            )

    async def _starts(self, partitions: Sequence[TopicPartition], start: Start) -> dict[int, int]:
        if start == "earliest":
            return await self._list_offsets(partitions, EARLIEST)
        # The ends come first: what is written from here on is either found by its time or behind.
        ends = await self._list_offsets(partitions, LATEST)
        return ends if start == "latest" else ends | await self._list_offsets(partitions, start)

    async def lags(self, groups: Sequence[str], topic: str) -> Mapping[str, Lag]:
        committed: Mapping[str, Commits] = {}
        if (read := self._lately_read(topic)) is not None:
            ends = read.by_partition
            places = [TopicPartition(topic, number) for number in ends]
            committed = await self._groups.behind(groups, read.topic_id, places, ends)
            if self._groups.are_at(groups, read.topic_id, ends):
                none = dict.fromkeys(ends, 0)
                return {
                    group: Lag(none, ends=ends, metadata=_said(committed[group]))
                    for group in groups
                }
        found = await self._existing(topic)
        if read is None or read.topic_id != found.id:
            id_, before = self._ranges.get(topic, ("", {}))
            ends = {number: end for number, (_, end) in before.items()} if id_ == found.id else {}
            committed = await self._groups.behind(groups, found.id, found.partitions, ends)
        # After the groups: none of them is beyond an end that has only moved since.
        ranges, fresh = await self._ranges_of(topic, found)
        return {
            group: Lag(
                dict.fromkeys((partition.partition for partition in found.partitions), 0)
                | {
                    number: lag_of(commits.get(number), start, end)
                    for number, (start, end) in ranges.items()
                },
                beyond(commits, ranges),
                {number: end for number, (_, end) in ranges.items()},
                _said(commits),
            )
            for group, commits in (
                (group, at_most(commits, ranges, fresh)) for group, commits in committed.items()
            )
        }

    def _lately_read(self, topic: str) -> _Ends | None:
        """The ends that `end_offsets_of_all` found, if that can be believed."""
        ends = self._ends.get(topic)
        return ends if ends and time.monotonic() - ends.at <= ENDS_REMEMBERED else None

    async def _ranges_of(
        self, topic: str, found: _Found
    ) -> tuple[Mapping[int, tuple[int, int]], Collection[int]]:
        """Start and end of each partition, and those that were read just now; raises `LogError` if
        none can be.

        One that can't be read now has no leader, so that nothing is added to it: it keeps what was
        read last, and is missing if that is nothing.
        """
        starts, ends = [
            {
                partition.partition: offset
                for partition, offset in (
                    await self._list(asking(found.partitions, which), some=True)
                ).items()
            }
            for which in (EARLIEST, LATEST)
        ]
        read = {number: (starts[number], ends[number]) for number in starts.keys() & ends.keys()}
        # A topic that was made anew has another id, and nothing of what it was before.
        id_, before = self._ranges.get(topic, (found.id, {}))
        known = before | read if id_ == found.id else read
        if not known:
            raise LogError(f"no partition of {topic} has a leader")
        self._ranges[topic] = found.id, known
        return known, read.keys()

    async def has_group(self, group: str) -> bool:
        return await self._groups.exists(group)

    async def has_committed(self, group: str, topic: str) -> bool:
        found = (await self._describe([topic])).get(topic)
        return found is not None and bool(await self._groups.committed(group, found.partitions))

    async def delete_group(self, group: str) -> None:
        await self._groups.delete(group)

    async def members(self, group: str) -> Collection[str]:
        return await self._groups.members(group)

    def forget_group(self, group: str) -> None:
        self._groups.forget(group)

    def note_committed(
        self, groups: Collection[str], topic: str, positions: Positions, since: float
    ) -> None:
        if (seen := self._seen.get(topic)) is not None:
            self._groups.note(groups, seen.id, positions, since)

    async def read_all(self, topic: str, limit: int) -> Sequence[Record]:
        await self._existing(topic)  # which says, better than a consumer, what is wrong
        read = partial(read_whole, self._connection, topic, limit, max_bytes=self._max_read_bytes)
        with needing(topic=("Read", topic), group=("Read", UNUSED_GROUP)):
            return await self._calls.in_thread(lambda timeout: read(timeout=timeout))

    async def close(self) -> None:
        """Wait for nothing: librdkafka lets go when the client is collected."""
        self._calls.close()

    async def _existing(self, topic: str) -> _Found:
        if found := (await self._describe([topic])).get(topic):
            return found
        raise LogError(f"the topic {topic} does not exist", unknown_topic=True)

    async def _describe(self, topics: Collection[str], *, some: bool = False) -> dict[str, _Found]:
        """Those that there are; `some`: those that can be described."""
        if not topics:
            return {}
        names = TopicCollection(list(topics))
        with needing(topic=("Describe", _some_of(topics))):
            described = await self._calls.many(
                lambda timeout: self._admin.describe_topics(names, request_timeout=timeout),
                leaving_out=GONE,
                some=some,
            )
        return {
            topic: _Found(
                str(description.topic_id),
                [TopicPartition(topic, partition.id) for partition in description.partitions],
                min((len(partition.replicas) for partition in description.partitions), default=0),
            )
            for topic, description in described.items()
        }

    async def _partitions(self, topics: Collection[str]) -> Mapping[str, list[TopicPartition]]:
        described = await self._describe(topics, some=True)
        return {topic: description.partitions for topic, description in described.items()}

    async def _list_offsets(
        self, partitions: Sequence[TopicPartition], which: int
    ) -> dict[int, int]:
        """Of all these partitions, or a `LogError`; by a time, of those with a record since."""
        listed = await self._list(asking(partitions, which), least=-1 if which >= 0 else 0)
        for partition in partitions:
            if partition not in listed:
                raise LogError(
                    f"partition {partition.partition} of {partition.topic} has no leader"
                )
        return {partition.partition: offset for partition, offset in listed.items() if offset >= 0}

    async def _list(
        self, wanted: list[TopicPartition], *, some: bool = False, least: int = 0
    ) -> dict[TopicPartition, int]:
        """The offset of each that its own `offset` asks for: `EARLIEST`, `LATEST` or a time.

        `some`: of those that can be read now; raises `LogError` if none can. `least` is -1 where
        Kafka may answer that it has no record since that time.
        """
        with needing(topic=("Describe", _some_of({partition.topic for partition in wanted}))):
            found = await listed(self._calls, wanted, some=some)
        # librdkafka (2.16.1) answers -1001 for a leader that was there a moment ago.
        return {
            partition: result.offset
            for partition, result in found.items()
            if result.offset >= least
        }

    async def _unless(self, harmless: int, ask: Callable[[float], Future[Any]]) -> bool:
        """Whether it was done; False if it failed with the code that means it was done before."""
        return bool(await self._calls.many(lambda timeout: {True: ask(timeout)}, {harmless}))


def _some_of(topics: Collection[str]) -> str:
    """One of them, for a refusal that may be any's."""
    return min(topics, default="")


def _said(commits: Commits) -> Mapping[int, str]:
    """What stands beside the offsets."""
    return {number: commit.metadata for number, commit in commits.items() if commit.metadata}
