"""Topics and groups on real Kafka: `LogAdmin` on librdkafka's admin client.

Refused here: reading and writing of events (`kafka_log`), except for looking at a whole topic.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar, cast

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from knafka.clients.kafka_client import Connection, log_error_of, open_admin, open_client
from knafka.clients.log import Lag, Positions, Record
from knafka.core.errors import LogError

REQUEST_TIMEOUT: Final = 15.0
"""Seconds for one request."""
ASK_AGAIN: Final = 0.1
"""Seconds before a request is repeated whose coordinator or leader is on its way."""

T = TypeVar("T")

_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]

_ON_ITS_WAY = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)


class KafkaAdmin:
    """`LogAdmin` on the admin client; its calls run in threads of librdkafka."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._admin = open_admin(connection)

    async def cluster_id(self) -> str:
        described = await _asked(
            lambda: self._admin.describe_cluster(request_timeout=REQUEST_TIMEOUT)
        )
        return str(described.cluster_id)

    async def ensure_topic(
        self, topic: str, partitions: int, replication: int, config: Mapping[str, str]
    ) -> bool:
        new = NewTopic(topic, partitions, replication, config=dict(config))
        return await _unless(
            KafkaError.TOPIC_ALREADY_EXISTS,
            lambda: self._admin.create_topics([new], request_timeout=REQUEST_TIMEOUT)[topic],
        )

    async def delete_topic(self, topic: str) -> None:
        await _unless(
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            lambda: self._admin.delete_topics([topic], request_timeout=REQUEST_TIMEOUT)[topic],
        )

    async def topics(self) -> Mapping[str, int]:
        metadata = await _blocking(partial(self._admin.list_topics, timeout=REQUEST_TIMEOUT))
        return {name: len(topic.partitions) for name, topic in metadata.topics.items()}

    async def end_offsets(self, topic: str) -> Positions:
        return await self._list_offsets(await self._partitions(topic), _LATEST)

    async def ensure_committed(self, group: str, topic: str) -> None:
        partitions = await self._partitions(topic)
        committed = await self._committed(group, partitions)
        missing = [each for each in partitions if each.partition not in committed]
        if not missing:
            return
        ends = await self._list_offsets(missing, _LATEST)
        wanted = [TopicPartition(topic, number, offset) for number, offset in ends.items()]
        await self._as_group(group, lambda it: it.commit(offsets=wanted, asynchronous=False))

    async def lags(self, groups: Sequence[str], topic: str) -> Mapping[str, Lag]:
        partitions = await self._partitions(topic)
        starts = await self._list_offsets(partitions, _EARLIEST)
        ends = await self._list_offsets(partitions, _LATEST)
        lags = {}
        for group in groups:
            committed = await self._committed(group, partitions)
            lags[group] = Lag(
                {
                    number: max(0, end - max(committed.get(number, 0), starts[number]))
                    for number, end in ends.items()
                }
            )
        return lags

    async def delete_group(self, group: str) -> None:
        await _unless(
            KafkaError.GROUP_ID_NOT_FOUND,
            lambda: self._admin.delete_consumer_groups([group], request_timeout=REQUEST_TIMEOUT)[
                group
            ],
        )

    async def read_all(self, topic: str, limit: int) -> Sequence[Record]:
        records: list[Record] = await _blocking(partial(self._read_all, topic, limit))
        return records

    def _read_all(self, topic: str, limit: int) -> list[Record]:
        consumer = open_client(
            Consumer,
            {
                **self._connection,
                "group.id": "knafka-unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            },
        )
        records: list[Record] = []
        try:
            metadata = consumer.list_topics(topic, timeout=REQUEST_TIMEOUT).topics[topic]
            if metadata.error is not None:
                raise log_error_of(metadata.error)
            waiting = set()
            assigned = []
            for number in metadata.partitions:
                low, high = consumer.get_watermark_offsets(
                    TopicPartition(topic, number), timeout=REQUEST_TIMEOUT
                )
                if low < high:
                    waiting.add(number)
                    assigned.append(TopicPartition(topic, number, max(low, high - limit)))
            consumer.assign(assigned)
            while waiting:
                message = consumer.poll(REQUEST_TIMEOUT)
                if message is None:
                    raise LogError(f"Kafka did not answer within {REQUEST_TIMEOUT:.0f} s")
                error = message.error()
                if error is None:
                    records.append(cast(Record, message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    waiting.discard(message.partition())
                elif not error.retriable():
                    raise log_error_of(error)
        finally:
            consumer.close()
        records.sort(key=lambda record: (record.timestamp()[1], record.offset()))
        return records[-limit:]

    async def close(self) -> None:
        """Nothing to release: librdkafka lets go when the client is collected."""

    async def _partitions(self, topic: str) -> list[TopicPartition]:
        names = TopicCollection([topic])
        found = await _asked(
            lambda: self._admin.describe_topics(names, request_timeout=REQUEST_TIMEOUT)[topic]
        )
        return [TopicPartition(topic, each.id) for each in found.partitions]

    async def _list_offsets(
        self, partitions: Sequence[TopicPartition], which: OffsetSpec
    ) -> dict[int, int]:
        wanted = {each: which for each in partitions}
        listed = await _all_asked(
            lambda: self._admin.list_offsets(wanted, request_timeout=REQUEST_TIMEOUT)
        )
        return {each.partition: result.offset for each, result in listed.items()}

    async def _committed(self, group: str, partitions: list[TopicPartition]) -> dict[int, int]:
        found = await self._as_group(
            group, lambda it: it.committed(partitions, timeout=REQUEST_TIMEOUT)
        )
        return {each.partition: each.offset for each in found if each.offset >= 0}

    async def _as_group(self, group: str, call: Callable[[Consumer], Any]) -> Any:
        """Ask for a group's offsets as a consumer of that group that never joins it.

        librdkafka's admin client crashes the process when a group's coordinator is loading or has
        moved (2.16.1: `rd_kafka_handle_OffsetFetch` without a group), and that is normal life.
        """

        def ask() -> Any:
            consumer = open_client(Consumer, {**self._connection, "group.id": group})
            try:
                return call(consumer)
            finally:
                consumer.close()

        return await _blocking(ask)


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask, and again while a coordinator or a leader is on its way: that passes by itself."""
    deadline = time.monotonic() + REQUEST_TIMEOUT
    while True:
        try:
            return await ask()
        except KafkaException as error:
            if error.args[0].code() not in _ON_ITS_WAY or time.monotonic() > deadline:
                raise log_error_of(error.args[0]) from error
        await asyncio.sleep(ASK_AGAIN)


async def _all_asked(ask: Callable[[], Mapping[Any, Any]]) -> dict[Any, Any]:
    """The results of several of the admin client's own futures, by key."""

    async def answers() -> dict[Any, Any]:
        return {key: await asyncio.wrap_future(each) for key, each in ask().items()}

    return await _patiently(answers)


async def _asked(ask: Callable[[], Any]) -> Any:
    """The result of one of the admin client's own futures."""
    return (await _all_asked(lambda: {None: ask()}))[None]


async def _unless(harmless: int, ask: Callable[[], Any]) -> bool:
    """Whether it was done; False if it failed with the code that means it was done before."""
    try:
        await _asked(ask)
    except LogError as error:
        cause = error.__cause__
        if isinstance(cause, KafkaException) and cause.args[0].code() == harmless:
            return False
        raise
    return True


async def _blocking(call: Callable[[], Any]) -> Any:
    return await _patiently(lambda: asyncio.to_thread(call))
