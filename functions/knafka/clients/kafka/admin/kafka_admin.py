"""Topics and groups on real Kafka: `LogAdmin` with librdkafka's admin client.

Requests that are repeated for many topics or groups have caches of their own: `KafkaLags`,
`KafkaRanges` and `KafkaGroups`. Not here: reading and writing of events (`kafka_reader`,
`kafka_writer`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._cluster import DescribeClusterResult
from confluent_kafka.admin._config import ConfigResource, ConfigSource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from knafka.clients.kafka.admin.kafka_groups import KafkaGroups
from knafka.clients.kafka.admin.kafka_lags import KafkaLags
from knafka.clients.kafka.admin.kafka_ranges import KafkaRanges
from knafka.clients.kafka.admin.kafka_topic_requests import (
    EARLIEST,
    LATEST,
    NO_TOPIC_ERRORS,
    TopicRequests,
)
from knafka.clients.kafka.consumers.kafka_whole_topic import (
    UNUSED_GROUP,
    read_last_records,
    read_last_with_key,
)
from knafka.clients.kafka.kafka_acls import explain_denials
from knafka.clients.kafka.kafka_client import Connection
from knafka.clients.kafka.kafka_requests import REQUEST_RETRY_INTERVAL, AdminCalls
from knafka.ports.log import Lag, Positions, Range, Record, Start, TopicDescription

ADMIN_REQUEST_TIMEOUT: Final = 15.0
"""Most seconds for one request: more than Kafka needs to elect another leader."""


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
        self._requests = TopicRequests(self._calls)
        self._lags = KafkaLags(self._requests, self._groups)
        self._topic_ranges = KafkaRanges(self._calls, self._requests.partitions)

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
        # The cluster's controller knows the topic. The broker that gets the next request may learn
        # of it a moment later.
        deadline = time.monotonic() + self._calls.timeout
        while was_created:
            if topic in await self._requests.describe([topic]) or time.monotonic() > deadline:
                break
            await asyncio.sleep(REQUEST_RETRY_INTERVAL)
        return was_created

    async def describe_topic(self, topic: str) -> TopicDescription | None:
        """Return a topic's id, its numbers of partitions and replicas, and the settings made on the
        topic itself; None: it doesn't exist. Raises `LogError`."""
        description = (await self._requests.describe([topic])).get(topic)
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
        topic_source = ConfigSource.DYNAMIC_TOPIC_CONFIG.value  # not a default of the cluster
        config = {
            name: str(entry.value)
            for name, entry in entries[resource].items()
            if entry.source == topic_source
        }
        return TopicDescription(
            description.id, len(description.partitions), description.replication, config
        )

    async def delete_topic(self, topic: str) -> None:
        """Delete the topic and all that is cached of it; do nothing if it doesn't exist. Raises
        `LogError`."""
        self._lags.forget_topic(topic)
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
        partitions = (await self._requests.describe_existing(topic)).partitions
        ends = await self._requests.list_positions(partitions, LATEST)
        return {number: end.offset for number, end in ends.items()}

    async def end_offsets_of_all(self, topics: Collection[str]) -> Mapping[str, Positions]:
        """Return the end offsets of many topics, by topic. Sends one request if the topics'
        partitions are cached. Topics and partitions that can't be read are left out. Raises
        `LogError` if none can be read."""
        return await self._lags.end_offsets_of_all(topics)

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
        """Commit the topic's offsets at `start` ("earliest", "latest" or a time in Unix ms) for the
        group, unless the group has commits on the topic. Raises `LogError`."""
        partitions = (await self._requests.describe_existing(topic)).partitions
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
            return await self._requests.list_positions(partitions, EARLIEST)
        # A partition without a record since the time starts at its end. The ends are read first: a
        # record that is written meanwhile is found by its time, or lies behind these ends.
        ends = await self._requests.list_positions(partitions, LATEST)
        if start == "latest":
            return ends
        return ends | await self._requests.list_positions(partitions, start)

    async def lags(self, groups: Sequence[str], topic: str) -> Mapping[str, Lag]:
        """Return the lag of each group on one topic, by group. Sends no request if the topic's ends
        were read lately and all groups are known to have committed them. Raises `LogError`."""
        return await self._lags.lags(groups, topic)

    async def has_group(self, group: str) -> bool:
        """Whether Kafka knows the group. Raises `LogError`."""
        return await self._groups.exists(group)

    async def has_committed(self, group: str, topic: str) -> bool:
        """Whether the group has an offset on any partition of the topic; False if the topic doesn't
        exist. Raises `LogError`."""
        description = (await self._requests.describe([topic])).get(topic)
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
        self, groups: Collection[str], topic: str, positions: Positions, seconds: float
    ) -> None:
        """Note the offsets (`positions`) that a dispatcher reports as committed for these groups.
        It has made all commits of the groups in the last `seconds`. While the topic ends at these
        offsets, `lags` needs no request."""
        self._lags.note_committed(groups, topic, positions, seconds)

    async def read_last(self, topic: str, limit: int) -> Sequence[Record]:
        """Return the last `limit` records of a topic, oldest first. Raises `LogError`, also if they
        take more than `max_read_bytes`."""
        await self._requests.describe_existing(topic)  # its errors are clearer than a consumer's
        read = partial(
            read_last_records, self._connection, topic, limit, max_bytes=self._max_read_bytes
        )
        with explain_denials(topic=("Read", topic), group=("Read", UNUSED_GROUP)):
            return await self._calls.run_in_thread(lambda timeout: read(timeout=timeout))

    async def last_with_key(self, topic: str, key: bytes) -> Record | None:
        """Return a topic's last record with this key; None: there is none. Raises `LogError`."""
        await self._requests.describe_existing(topic)
        read = partial(read_last_with_key, self._connection, topic, key)
        with explain_denials(topic=("Read", topic), group=("Read", UNUSED_GROUP)):
            return await self._calls.run_in_thread(lambda timeout: read(timeout=timeout))

    async def close(self) -> None:
        """Stop the threads. librdkafka closes the client's connections when the client is
        garbage-collected."""
        self._calls.close()

    async def _request_unless_done(
        self, done_code: int, ask: Callable[[float], Future[Any]]
    ) -> bool:
        """Send a request by `ask`, which gets a timeout in seconds. Returns True if the request
        succeeded. Returns False if it failed with Kafka's error code `done_code`: there was nothing
        left to do. Raises `LogError` for any other failure."""
        # The request has one future, under the key None. If the future fails with `done_code`,
        # `request_each` leaves that key out.
        answers = await self._calls.request_each(lambda timeout: {None: ask(timeout)}, {done_code})
        return None in answers
