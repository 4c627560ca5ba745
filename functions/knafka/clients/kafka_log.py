"""The log on real Kafka: confluent-kafka (librdkafka) behind the Protocols of `log`.

librdkafka isn't fork-safe: these classes are made in the process that uses them, never at import.
Delivery reports are polled on the event loop, and only often while something is in flight; the
consumer, whose poll blocks, has one thread of its own (docs/decisions/0004).

Refused here: any decision about an event. Configuration comes in as `Connection`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar, cast

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from knafka.clients.log import Assignment, Lag, Positions, Record, Reported
from knafka.core.errors import LogError, LogFull
from knafka.core.kafka_binding import RecordHeaders

log = logging.getLogger(__name__)
_librdkafka = logging.getLogger("librdkafka")

POLL_BUSY: Final = 0.001
"""Seconds between looks for delivery reports while records are in flight: what it adds to an
answer is half of it; a look costs a microsecond."""
POLL_IDLE: Final = 1.0
"""Seconds between looks otherwise: connection errors are logged, nothing else is due."""
DELIVERY_TIMEOUT: Final = 10.0
"""Seconds after which an unacknowledged record is given up: longer than a broker's restart."""
BUFFER_BYTES: Final = 64 * 1024 * 1024
BUFFER_RECORDS: Final = 50_000
"""What a writer holds at most while Kafka is away: its memory stays bounded."""
SESSION_TIMEOUT: Final = 10.0
"""Seconds until a killed member's partitions go to others; the peer's value."""
PURGE_TIMEOUT: Final = 0.5
"""Seconds for the reports of what is given up at the end; they come from librdkafka's threads."""
REQUEST_TIMEOUT: Final = 15.0
"""Seconds for one request of the admin client."""
ASK_AGAIN: Final = 0.1
"""Seconds before a request is repeated whose coordinator or leader is on its way."""
QUIET: Final = 10.0
"""Seconds between two log lines of librdkafka that differ in their numbers only."""
REVOKE_TIMEOUT: Final = 30.0
"""Seconds a rebalance waits for the loop at most; `Assignment.revoked` has a bound of its own."""

T = TypeVar("T")
C = TypeVar("C", Producer, Consumer, AdminClient)

Connection = Mapping[str, Any]
"""librdkafka's configuration of how to reach the cluster: bootstrap.servers, security."""


class _Seldom(logging.Filter):
    """Lets one line of a kind through every `QUIET` seconds: librdkafka repeats itself many times
    a second while Kafka is away."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[tuple[int, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.levelno, _NUMBERS.sub("", record.getMessage())
        if record.created - self._said.get(kind, 0.0) < QUIET:
            return False
        if len(self._said) > 100:
            self._said.clear()
        self._said[kind] = record.created
        return True


_librdkafka.addFilter(_Seldom())


class KafkaWriter:
    """`LogWriter` on an idempotent producer."""

    def __init__(self, connection: Connection) -> None:
        self._producer = _open(
            Producer,
            {
                **_client(connection),
                "acks": "all",
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 1,
                # The batches that a Java consumer's default fetch serves well (performance.md).
                "batch.size": 65_536,
                "message.timeout.ms": int(DELIVERY_TIMEOUT * 1000),
                "queue.buffering.max.messages": BUFFER_RECORDS,
                "queue.buffering.max.kbytes": BUFFER_BYTES // 1024,
                # What is too large is for the topic to say: its limit may be raised for a Broker.
                "message.max.bytes": BUFFER_BYTES,
                "topic.metadata.propagation.max.ms": 5000,
                "reconnect.backoff.max.ms": 1000,
            },
        )
        self._loop = asyncio.get_running_loop()
        self._in_flight = 0
        self._timer = self._loop.call_later(POLL_IDLE, self._poll)
        self._busy = False
        self._closed = False

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders,
        reported: Reported,
    ) -> None:
        def on_delivery(error: KafkaError | None, _: Message) -> None:
            self._in_flight -= 1
            reported(None if error is None else _log_error_of(error))

        if self._closed:
            raise LogError("the writer is closed")
        try:
            self._producer.produce(
                topic,
                value=value,
                key=key,
                headers=headers,  # type: ignore[arg-type]  # its list type is invariant
                on_delivery=on_delivery,
            )
        except BufferError as error:
            raise LogFull("the buffer for Kafka is full") from error
        except KafkaException as error:
            raise _log_error_of(error.args[0]) from error
        self._in_flight += 1
        if not self._busy:
            self._busy = True
            self._timer.cancel()
            self._timer = self._loop.call_later(POLL_BUSY, self._poll)

    def _poll(self) -> None:
        try:
            self._producer.poll(0)
        finally:  # one callback that breaks must not silence all that follow
            if not self._closed:
                self._busy = self._in_flight > 0
                delay = POLL_BUSY if self._busy else POLL_IDLE
                self._timer = self._loop.call_later(delay, self._poll)

    async def reachable(self, timeout: float) -> bool:
        ask = partial(self._producer.list_topics, timeout=timeout)
        try:
            await asyncio.to_thread(ask)
        except KafkaException:
            return False
        return True

    async def close(self, timeout: float) -> None:
        self._closed = True
        self._timer.cancel()
        deadline = self._loop.time() + timeout
        while self._in_flight and self._loop.time() < deadline:
            self._producer.poll(0)
            await asyncio.sleep(POLL_BUSY)
        if self._in_flight:
            # What was not acknowledged was not answered with success; its senders try again.
            self._producer.purge()
            deadline = self._loop.time() + PURGE_TIMEOUT
            while self._in_flight and self._loop.time() < deadline:
                self._producer.poll(0)
                await asyncio.sleep(POLL_BUSY)


class KafkaReader:
    """`LogReader` on a consumer with cooperative rebalancing."""

    def __init__(
        self, connection: Connection, group: str, topic: str, assignment: Assignment
    ) -> None:
        self._topic = topic
        self._assignment = assignment
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kafka-reader")
        self._failure: LogError | None = None
        self._consumer = _open(
            Consumer,
            {
                **_client(connection),
                "group.id": group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": int(SESSION_TIMEOUT * 1000),
                "heartbeat.interval.ms": int(SESSION_TIMEOUT * 1000 / 4),
                "fetch.wait.max.ms": 100,
                "queued.min.messages": 10_000,
                # Bounds what librdkafka prefetches, so a backlog of large events stays in Kafka.
                "queued.max.messages.kbytes": 16 * 1024,
                "reconnect.backoff.max.ms": 1000,
            },
        )
        self._consumer.subscribe(
            [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    async def read(self, limit: int, timeout: float) -> Sequence[Record]:
        return await self._loop.run_in_executor(self._thread, self._read, limit, timeout)

    def _read(self, limit: int, timeout: float) -> list[Record]:
        records: list[Record] = []
        for message in self._batch(limit, timeout) if self._failure is None else ():
            error = message.error()
            if error is None:
                records.append(cast(Record, message))
            elif not error.retriable() and error.code() not in _PASSING:
                self._failure = _log_error_of(error)
        if self._failure is not None and not records:
            failure, self._failure = self._failure, None
            raise failure
        # What was read before it failed comes first: the position is beyond it already.
        return records

    def _batch(self, limit: int, timeout: float) -> list[Message]:
        # consume() alone would wait for the whole batch; the first record alone is worth a return.
        first = self._consumer.poll(timeout)
        if first is None:
            return []
        return [first, *self._consumer.consume(limit - 1, 0)] if limit > 1 else [first]

    def pause(self, partitions: Sequence[int]) -> None:
        self._consumer.pause([TopicPartition(self._topic, each) for each in partitions])

    def resume(self, partitions: Sequence[int]) -> None:
        self._consumer.resume([TopicPartition(self._topic, each) for each in partitions])

    def commit(self, positions: Positions) -> None:
        with contextlib.suppress(KafkaException):
            self._consumer.commit(offsets=self._offsets(positions), asynchronous=True)

    async def close(self) -> None:
        await self._loop.run_in_executor(self._thread, self._consumer.close)
        self._thread.shutdown(wait=False)

    def _offsets(self, positions: Positions) -> list[TopicPartition]:
        return [TopicPartition(self._topic, each, offset) for each, offset in positions.items()]

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        # librdkafka remembers a pause beyond a revoke; to its next owner a partition is new.
        consumer.resume(partitions)
        numbers = [each.partition for each in partitions]
        self._loop.call_soon_threadsafe(self._assignment.assigned, numbers)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = [each.partition for each in partitions]
        finished = asyncio.run_coroutine_threadsafe(self._assignment.revoked(numbers), self._loop)
        try:
            positions = finished.result(REVOKE_TIMEOUT)
            if positions:
                consumer.commit(offsets=self._offsets(positions), asynchronous=False)
        except (KafkaException, TimeoutError) as error:
            # The group goes back to its last commit: duplicates, no loss.
            log.warning("the last commit of a revoked partition failed: %r", error)
        finally:
            consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = [each.partition for each in partitions]
        self._loop.call_soon_threadsafe(self._assignment.lost, numbers)
        consumer.incremental_unassign(partitions)


class KafkaAdmin:
    """`LogAdmin` on the admin client; its calls run in threads of librdkafka."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # What goes wrong comes back with each request; without this it is on stderr too.
        self._admin = _open(AdminClient, {**connection, "log_level": 0})

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
        consumer = Consumer(
            {
                **_client(self._connection),
                "group.id": "knafka-unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        records: list[Record] = []
        try:
            metadata = consumer.list_topics(topic, timeout=REQUEST_TIMEOUT).topics[topic]
            if metadata.error is not None:
                raise _log_error_of(metadata.error)
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
                    raise _log_error_of(error)
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
            consumer = _open(Consumer, {**_client(self._connection), "group.id": group})
            try:
                return call(consumer)
            finally:
                consumer.close()

        return await _blocking(ask)


_NUMBERS = re.compile(r"\d+")
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]

# Conditions that librdkafka mends by itself; they reach the consumer only to be known.
_PASSING = frozenset(
    {
        KafkaError._PARTITION_EOF,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)


_ON_ITS_WAY = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)


def _client(connection: Connection) -> dict[str, Any]:
    return {**connection, "error_cb": _log_error, "logger": _librdkafka}


def _open(client: Callable[[dict[str, Any]], C], configuration: dict[str, Any]) -> C:
    """A client; raises `LogError` for what librdkafka can't use, such as a broken certificate."""
    try:
        return client(configuration)
    except KafkaException as error:
        raise _log_error_of(error.args[0]) from error


def _log_error(error: KafkaError) -> None:
    log.log(logging.INFO if error.code() in _PASSING else logging.WARNING, "Kafka: %s", error.str())


def _log_error_of(error: KafkaError) -> LogError:
    return LogError(
        error.str(),
        retriable=error.code() != KafkaError.MSG_SIZE_TOO_LARGE,
        too_large=error.code() == KafkaError.MSG_SIZE_TOO_LARGE,
    )


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask, and again while a coordinator or a leader is on its way: that passes by itself."""
    deadline = time.monotonic() + REQUEST_TIMEOUT
    while True:
        try:
            return await ask()
        except KafkaException as error:
            if error.args[0].code() not in _ON_ITS_WAY or time.monotonic() > deadline:
                raise _log_error_of(error.args[0]) from error
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
