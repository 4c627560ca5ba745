"""The log on real Kafka: confluent-kafka (librdkafka) behind the Protocols of `log`.

Delivery reports are polled on the event loop, and only often while something is in flight. What
blocks has a thread of its own: the consumer's poll, and the producer's flush, which sends a record
at once that nothing else is to be sent with (docs/decisions/0004).

Refused here: any decision about an event. Configuration comes in as `Connection`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, cast

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from knafka.clients.kafka_client import (
    PASSING,
    Connection,
    log_error,
    log_error_of,
    open_client,
)
from knafka.clients.log import Assignment, Positions, Record, Reported
from knafka.core.errors import LogError, LogFull
from knafka.core.kafka_binding import RecordHeaders
from knafka.core.kafka_trouble import Trouble

log = logging.getLogger(__name__)

POLL_BUSY: Final = 0.001
"""Seconds between looks for delivery reports while records are in flight: what it adds to an
answer is half of it; a look costs a microsecond."""
LINGER_MS: Final = 1
"""Milliseconds for which records are gathered that go in one request."""
QUIET: Final = 0.002
"""Seconds without a record in flight after which the next is sent at once. Lingering is worth it
where others come: it saves Kafka and us a request each."""
HASTE: Final = 0.001
"""Seconds, the shortest that librdkafka knows, for which it doesn't linger then."""
POLL_IDLE: Final = 1.0
"""Seconds between looks otherwise: connection errors are logged, nothing else is due."""
MAX_IN_FLIGHT: Final = 5
"""Requests under way at once: while they are, records gather for the next, which saves requests."""
DELIVERY_TIMEOUT: Final = 10.0
"""Seconds after which an unacknowledged record is given up: longer than a broker's restart."""
BUFFER_BYTES: Final = 64 * 1024 * 1024
BUFFER_RECORDS: Final = 50_000
"""What a writer holds at most while Kafka is away: its memory stays bounded."""
SESSION_TIMEOUT: Final = 10.0
"""Seconds until a killed member's partitions go to others; the peer's value."""
PURGE_TIMEOUT: Final = 0.5
"""Seconds for the reports of what is given up at the end; they come from librdkafka's threads."""
JOIN_TIMEOUT: Final = 10.0
"""Seconds to join a group in spite of connections that fail: a broker's restart."""
REVOKE_TIMEOUT: Final = 30.0
"""Seconds a rebalance waits for the loop at most; `Assignment.revoked` has a bound of its own."""
CLOSE_TIMEOUT: Final = 5.0
"""Seconds for leaving a group: 3 of them may be attempts that finish, the rest is Kafka's."""


class KafkaWriter:
    """`LogWriter` on a producer that is not idempotent, as an idempotent one may report a record as
    stored that Kafka rejected (docs/decisions/0012): here a report is about its own request alone.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._trouble = Trouble()
        self._producer = self._open()
        self._replaced: list[Producer] = []
        """Producers that failed for good and still owe reports."""
        self._failure: LogError | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = _Thread(self._loop, "kafka-writer")
        self._in_flight = 0
        self._reports: deque[tuple[Reported, KafkaError | None]] = deque()
        self._timer = self._loop.call_later(POLL_IDLE, self._poll)
        self._busy = False
        self._quiet_since = self._loop.time()
        self._closed = False

    def _open(self) -> Producer:
        return open_client(
            Producer,
            {
                "error_cb": self._hear,
                **self._connection,
                "acks": "all",
                "enable.idempotence": False,
                "max.in.flight.requests.per.connection": MAX_IN_FLIGHT,
                # Who owns a missing topic knows how it should be; Kafka would make one with the
                # cluster's defaults.
                "allow.auto.create.topics": False,
                "partitioner": "murmur2_random",
                "linger.ms": LINGER_MS,
                # batch.size stays librdkafka's 1 MB: its thread spins while a full batch waits for
                # one of the five requests that may be under way (docs/decisions/0010).
                "message.timeout.ms": int(DELIVERY_TIMEOUT * 1000),
                "queue.buffering.max.messages": BUFFER_RECORDS,
                "queue.buffering.max.kbytes": BUFFER_BYTES // 1024,
                # What is too large is for the topic to say: its limit may be raised for a Broker.
                "message.max.bytes": BUFFER_BYTES,
                "topic.metadata.propagation.max.ms": 5000,
                "reconnect.backoff.max.ms": 1000,
            },
        )

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def failure(self) -> LogError | None:
        return self._failure

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders,
        reported: Reported,
    ) -> None:
        def on_delivery(error: KafkaError | None, _: Message) -> None:
            reports.append((reported, error))  # a flush calls this from its own thread

        reports = self._reports
        if self._closed:
            raise LogError("the writer is closed")
        if self._failure is not None:
            raise LogError(str(self._failure))
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
            raise log_error_of(error.args[0]) from error
        self._in_flight += 1
        if not self._busy:
            self._busy = True
            self._timer.cancel()
            self._timer = self._loop.call_later(POLL_BUSY, self._poll)
            if self._loop.time() - self._quiet_since >= QUIET:
                self._hasten()

    def _poll_producers(self) -> None:
        try:
            if self._failure is not None:
                self._replace_producer()
            self._producer.poll(0)
        except KafkaException as error:
            # Only a fatal error is raised here: the producer takes records and sends none.
            self._failure = log_error_of(error.args[0])
            self._replace_producer()
        if self._replaced:
            self._poll_replaced()

    def _poll_replaced(self) -> None:
        for each in self._replaced:
            with contextlib.suppress(KafkaException):
                each.poll(0)
        self._replaced = [each for each in self._replaced if len(each)]

    def _replace_producer(self) -> None:
        """Go on with another producer if there can be one; else `failure` stays."""
        try:
            producer = self._open()
        except LogError as error:
            self._failure = error
            return
        log.warning("the producer is replaced: %s", self._failure)
        self._failure = None
        self._producer.purge(blocking=False)  # what it holds is reported as failed
        self._replaced.append(self._producer)
        self._producer = producer

    def _hasten(self) -> None:
        """Have what was taken sent now: librdkafka doesn't linger while somebody flushes."""
        flushed = self._thread.call(partial(self._producer.flush, HASTE))
        flushed.add_done_callback(lambda _: self._settle())

    def _poll(self) -> None:
        try:
            self._poll_producers()
            self._settle()
        finally:  # one callback that breaks must not silence all that follow
            if not self._closed:
                if self._busy and not self._in_flight:
                    self._quiet_since = self._loop.time()
                self._busy = self._in_flight > 0
                delay = POLL_BUSY if self._busy else POLL_IDLE
                self._timer = self._loop.call_later(delay, self._poll)

    def _settle(self) -> None:
        while self._reports:
            reported, error = self._reports.popleft()
            self._in_flight -= 1
            reported(None if error is None else log_error_of(error))

    def _hear(self, error: KafkaError) -> None:
        log_error(error)
        self._trouble.hear(error)

    async def reach(self, timeout: float) -> None:
        self._trouble.forget()
        ask = partial(self._producer.list_topics, timeout=timeout)
        try:
            await asyncio.to_thread(ask)
        except KafkaException as error:
            self._producer.poll(0)
            raise LogError(str(self._trouble) or error.args[0].str()) from error

    async def close(self, timeout: float) -> None:
        self._closed = True
        self._timer.cancel()
        self._thread.end()
        await self._drained(timeout)
        if self._in_flight:
            # What was not acknowledged was not answered with success; its senders try again.
            self._producer.purge()
            await self._drained(PURGE_TIMEOUT)

    async def _drained(self, timeout: float) -> None:
        deadline = self._loop.time() + timeout
        while self._in_flight and self._loop.time() < deadline:
            self._poll_producers()
            self._settle()
            await asyncio.sleep(POLL_BUSY)


class KafkaReader:
    """`LogReader` on a consumer with cooperative rebalancing.

    Only its thread asks the consumer anything: whoever else does waits until a poll under way ends,
    a rebalance in it included, and that waits for the loop (docs/decisions/0004).
    """

    def __init__(
        self, connection: Connection, group: str, topic: str, assignment: Assignment
    ) -> None:
        self._topic = topic
        self._assignment = assignment
        self._loop = asyncio.get_running_loop()
        self._thread = _Thread(self._loop, "kafka-reader")
        self._failure: LogError | None = None
        self._trouble = Trouble()
        self._joined = False
        self._owned: set[int] = set()  # the thread's, like all that the consumer is asked
        self._reached: dict[int, int] = {}  # the thread's: ends that no read has given yet
        self.ends: Positions = {}
        self._opened = time.monotonic()
        self._consumer = open_client(
            Consumer,
            {
                "error_cb": self._hear,
                **connection,
                "group.id": group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                # Behind the last record may lie a transaction's marker, which no record shows.
                "enable.partition.eof": True,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": int(SESSION_TIMEOUT * 1000),
                "heartbeat.interval.ms": int(SESSION_TIMEOUT * 1000 / 4),
                # How long Kafka may keep a question open: each costs, and a partition that was just
                # assigned or resumed waits for the one under way.
                "fetch.wait.max.ms": 250,
                # What librdkafka prefetches is small: a backlog stays in Kafka, and what is fetched
                # is still in the CPU's caches when it is read.
                "fetch.message.max.bytes": 256 * 1024,
                # Both count what is queued of all partitions together, whatever their documentation
                # says. When there is more, librdkafka looks again after the backoff: they are what
                # the fastest dispatcher takes meanwhile, or it would stand still.
                "queued.min.messages": 1250,
                "queued.max.messages.kbytes": 32 * 1024,
                "fetch.queue.backoff.ms": 50,
                "reconnect.backoff.max.ms": 1000,
            },
        )
        self._consumer.subscribe(
            [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    async def read(self, limit: int, timeout: float) -> Sequence[Record]:
        records: list[Record]
        records, self.ends = await self._thread.call(partial(self._read, limit, timeout))
        return records

    def _hear(self, error: KafkaError) -> None:
        log_error(error)
        self._trouble.hear(error)

    def _read(self, limit: int, timeout: float) -> tuple[list[Record], Positions]:
        records: list[Record] = []
        for message in self._batch(limit, timeout) if self._failure is None else ():
            error = message.error()
            if error is None:
                records.append(cast(Record, message))
            elif (
                not self._is_end(message) and not error.retriable() and error.code() not in PASSING
            ):
                self._failure = log_error_of(error)
        if not self._joined and (why := self._why_not()):
            self._trouble.forget()
            raise LogError(why)  # or to be refused would look like having nothing to do
        if self._failure is not None and not records:
            failure, self._failure = self._failure, None
            raise failure
        # What was read before it failed comes first: the position is beyond it already.
        ends, self._reached = self._reached, {}
        return records, ends

    def _why_not(self) -> str:
        """Why there is no hope of joining, empty while there is some."""
        refusal = self._trouble.refusal
        if refusal or time.monotonic() - self._opened < JOIN_TIMEOUT:
            return refusal or ""
        return str(self._trouble)

    def _batch(self, limit: int, timeout: float) -> list[Message]:
        # consume() alone would wait for the whole batch; the first record alone is worth a return.
        # An end alone isn't: each partition has one after each record that comes alone.
        deadline = time.monotonic() + timeout
        while (first := self._consumer.poll(timeout)) is not None and self._is_end(first):
            timeout = max(0.0, deadline - time.monotonic())
        if first is None:
            return []
        return [first, *self._consumer.consume(limit - 1, 0)] if limit > 1 else [first]

    def _is_end(self, message: Message) -> bool:
        """Whether it is no record but says that a partition's end was reached; notes where."""
        error, number, offset = message.error(), message.partition(), message.offset()
        if error is None or error.code() != KafkaError._PARTITION_EOF:
            return False
        if number is not None and offset is not None:
            self._reached[number] = offset
        return True

    def pause(self, partitions: Sequence[int]) -> None:
        self._thread.call(partial(self._switch, self._consumer.pause, partitions))

    def resume(self, partitions: Sequence[int]) -> None:
        self._thread.call(partial(self._switch, self._consumer.resume, partitions))

    def _switch(
        self, how: Callable[[list[TopicPartition]], None], partitions: Sequence[int]
    ) -> None:
        try:
            how([TopicPartition(self._topic, each) for each in partitions if each in self._owned])
        except KafkaException as error:
            self._failure = log_error_of(error.args[0])  # the next read tells

    def commit(self, positions: Positions) -> None:
        self._thread.call(partial(self._commit, positions))

    def _commit(self, positions: Positions) -> None:
        owned = {each: offset for each, offset in positions.items() if each in self._owned}
        if owned:
            with contextlib.suppress(KafkaException):
                self._consumer.commit(offsets=self._offsets(owned), asynchronous=True)

    async def close(self) -> None:
        leaving = self._thread.call(self._consumer.close)
        self._thread.end()
        await asyncio.wait({leaving}, timeout=CLOSE_TIMEOUT)
        if leaving.done():
            leaving.result()
        else:
            # Its session will run out; what it delivered since the last commit is repeated.
            log.warning("Kafka did not let go of the reader of %s within a bound", self._topic)

    def _offsets(self, positions: Positions) -> list[TopicPartition]:
        return [TopicPartition(self._topic, each, offset) for each, offset in positions.items()]

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._joined = True
        consumer.incremental_assign(partitions)
        # librdkafka remembers a pause beyond a revoke; to its next owner a partition is new.
        consumer.resume(partitions)
        numbers = [each.partition for each in partitions]
        self._owned.update(numbers)
        self._loop.call_soon_threadsafe(self._assignment.assigned, numbers)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = self._disown(partitions)
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
        self._loop.call_soon_threadsafe(self._assignment.lost, self._disown(partitions))
        consumer.incremental_unassign(partitions)

    def _disown(self, partitions: list[TopicPartition]) -> list[int]:
        numbers = [each.partition for each in partitions]
        self._owned.difference_update(numbers)
        for number in numbers:
            self._reached.pop(number, None)
        return numbers


class _Thread:
    """One thread that makes calls in order. It is a daemon: librdkafka's close can hang for as long
    as Kafka is frozen, and must not keep the process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        Thread(target=self._run, name=name, daemon=True).start()

    def call(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """The result of `function`, which runs after all calls before it."""
        answer: asyncio.Future[Any] = self._loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        def call() -> None:
            result, error = None, None
            try:
                result = function()
            except BaseException as raised:
                error = raised
            # A loop that is closed has nobody left who waits.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(settle, result, error)

        self._calls.put(call)
        return answer

    def end(self) -> None:
        """Make no calls after those that were asked for."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
