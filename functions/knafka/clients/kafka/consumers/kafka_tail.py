"""A reader of a topic's newest records: `log.TopicTail` on a consumer.

Each read first requests the topic's ends, and fetches only the records before them. Between reads,
no partition is assigned, so nothing is prefetched. The consumer never joins a group.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from knafka.clients.kafka.call_thread import CallThread
from knafka.clients.kafka.kafka_acls import explain_denials
from knafka.clients.kafka.kafka_client import (
    CONSUMER_DEFAULTS,
    TRANSIENT_ERRORS,
    Connection,
    log_error_of,
    open_client,
)
from knafka.clients.kafka.kafka_requests import read_watermarks
from knafka.core.errors import LogError
from knafka.ports.log import Record

TAIL_GROUP_PREFIX: Final = "knafka-topic-tail"
"""Prefix of the group id that librdkafka requires; Kafka never sees it, as nothing subscribes or
commits."""
TAIL_REQUEST_TIMEOUT: Final = 10.0
"""Most seconds for each request, and for fetching the records of one read."""
TAIL_POLL_TIMEOUT: Final = 0.1
"""Most seconds of one poll, after which `TAIL_REQUEST_TIMEOUT` is checked."""

_TAIL_SETTINGS: Final[Mapping[str, Any]] = {
    **CONSUMER_DEFAULTS,
    # If the record at a position was deleted, reading continues with the next one that exists.
    "auto.offset.reset": "earliest",
    # If the last offsets have no records, only a response without records shows that the end was
    # reached.
    "fetch.wait.max.ms": 10,
    "queued.max.messages.kbytes": 4 * 1024,
}


class KafkaTail:
    """A `TopicTail` on real Kafka: one consumer, opened at the first read and used only by its own
    thread."""

    def __init__(self, connection: Connection, topic: str) -> None:
        """Store the connection; the thread starts at the first call, the consumer opens at the
        first read."""
        self._connection = connection
        self._topic = topic
        self._thread: CallThread | None = None
        """The consumer's thread; None: it isn't started."""
        # Used only on the thread:
        self._opened: Consumer | None = None
        """The consumer; None: it isn't opened yet."""
        self._since = 0
        """Milliseconds since the Unix epoch: partitions without a position begin at this time."""
        self._positions: dict[int, int] = {}
        """The next offset to read, by partition."""

    def begin(self, since: int) -> None:
        """Let the next read begin at the topic's first records whose time is `since` (milliseconds
        since the Unix epoch) or later."""
        self._call(partial(self._begin, since))

    async def read_on(self, limit: int) -> Sequence[Record]:
        """Return the next records, at most `limit`; empty if all records that the topic has at this
        call were returned before. Raises `LogError`."""
        records: Sequence[Record] = await self._call(partial(self._read_on, limit))
        return records

    async def close(self, timeout: float) -> None:
        """Close the consumer; wait for that at most `timeout` seconds."""
        if self._thread is None:
            return
        closing = self._call(self._close)
        self._thread.end()
        await asyncio.wait({closing}, timeout=timeout)
        closing.cancel()

    def _call(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Call a function on the consumer's thread, which is started at its first use; the future
        gets its result or error."""
        if self._thread is None:
            self._thread = CallThread(asyncio.get_running_loop(), "kafka-tail")
        return self._thread.call(function)

    # On the thread

    def _begin(self, since: int) -> None:
        """Forget all positions, so that the next read begins at the first records whose time is
        `since` or later; called on the consumer's thread."""
        self._since = since
        self._positions.clear()

    def _read_on(self, limit: int) -> list[Record]:
        """Return up to `limit` next records, on the consumer's thread; empty if the topic's present
        records were all returned before. Raises `LogError`."""
        try:
            with explain_denials(topic=("Read", self._topic)):
                ends = self._read_ends()
                unread = {number for number, end in ends.items() if self._positions[number] < end}
                return self._fetch(ends, unread, limit) if unread else []
        except KafkaException as error:
            raise log_error_of(error.args[0]) from error

    @property
    def _consumer(self) -> Consumer:
        """The consumer, which is opened at its first use. Raises `LogError`."""
        if self._opened is None:
            group = f"{TAIL_GROUP_PREFIX}-{uuid.uuid4().hex[:8]}"
            self._opened = open_client(
                Consumer, {**_TAIL_SETTINGS, **self._connection, "group.id": group}
            )
        return self._opened

    def _read_ends(self) -> dict[int, int]:
        """Read the present end of each partition, and return the ends by number; empty if the topic
        doesn't exist. Also set `_positions` of partitions that have no position yet, or one that no
        longer exists. Raises `LogError` and `KafkaException`."""
        consumer = self._consumer
        described = consumer.list_topics(self._topic, timeout=TAIL_REQUEST_TIMEOUT).topics[
            self._topic
        ]
        if described.error is not None:
            error = log_error_of(described.error)
            if error.unknown_topic:
                self._positions.clear()  # a topic that is created later is read anew
                return {}
            with explain_denials(topic=("Describe", self._topic)):
                raise error
        bounds = read_watermarks(consumer, self._topic, described.partitions, TAIL_REQUEST_TIMEOUT)
        # Partitions without a position, which counts as beyond the end here, or with a position
        # beyond the end, as their topic was created anew under this name.
        new_partitions = {
            number
            for number, (_, end) in bounds.items()
            if self._positions.get(number, end + 1) > end
        }
        if new_partitions:
            # `offsets_for_times` expects a time in place of each offset.
            start_times = [
                TopicPartition(self._topic, number, self._since) for number in new_partitions
            ]
            for start in consumer.offsets_for_times(start_times, timeout=TAIL_REQUEST_TIMEOUT):
                if start.error is not None:
                    raise log_error_of(start.error)
                # A negative offset: there is no record since that time, so begin at the end.
                end = bounds[start.partition][1]
                self._positions[start.partition] = start.offset if start.offset >= 0 else end
        for number, (first_offset, _) in bounds.items():  # earlier records may have been deleted
            self._positions[number] = max(self._positions[number], first_offset)
        return {number: end for number, (_, end) in bounds.items()}

    def _fetch(self, ends: Mapping[int, int], unread: set[int], limit: int) -> list[Record]:
        """Return up to `limit` next records of the partitions `unread`, which are not yet read to
        their `ends`; empty if these ends are reached without a record. Raises `LogError` if neither
        happens within `TAIL_REQUEST_TIMEOUT` seconds."""
        consumer = self._consumer
        records: list[Record] = []
        consumer.assign(
            [
                TopicPartition(self._topic, number, self._positions[number])
                for number in sorted(unread)
            ]
        )
        try:
            give_up_at = time.monotonic() + TAIL_REQUEST_TIMEOUT
            while unread and not records:
                if time.monotonic() > give_up_at:
                    raise LogError(f"{self._topic} can't be read to its end: no answer from Kafka")
                # `consume` alone would wait for `limit` records.
                first_message = consumer.poll(TAIL_POLL_TIMEOUT)
                if first_message is None:
                    continue
                messages = [first_message]
                if limit > 1:
                    messages += consumer.consume(limit - 1, 0)
                for message in messages:
                    error, number = message.error(), cast(int, message.partition())
                    if error is None:
                        records.append(cast(Record, message))
                        self._positions[number] = cast(int, message.offset()) + 1
                    elif error.code() == KafkaError._PARTITION_EOF:
                        self._positions[number] = max(
                            self._positions[number], cast(int, message.offset())
                        )
                    elif not error.retriable() and error.code() not in TRANSIENT_ERRORS:
                        raise log_error_of(error)
                unread = {number for number in unread if self._positions[number] < ends[number]}
        finally:
            consumer.unassign()
        return records

    def _close(self) -> None:
        """Close the consumer, on its thread."""
        if self._opened is not None:
            self._opened.close()
