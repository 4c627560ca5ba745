"""The writer on real Kafka: `log.LogWriter`, a record's way from `append` to its report.

While few records are in flight, the prompt producer sends each at once. While many are, the
gathering producer gathers records for a millisecond, which saves most of the requests
(docs/decisions/0014).

Each topic has its own limit of batches, but librdkafka has one limit for all topics. So a record
that is refused as too large is sent again alone by the unbatched producer, which shows whether the
record or its batch was too large.

Not here: opening, polling and replacing the producers (`kafka_writer_producers`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, cast

from confluent_kafka import KafkaError, KafkaException, Message

from knafka.clients.kafka.kafka_acls import name_missing_right
from knafka.clients.kafka.kafka_client import Connection, log_error, log_error_of
from knafka.clients.kafka.producers.kafka_in_flight import KeysInFlight, RecordGroup
from knafka.clients.kafka.producers.kafka_producer import ReplaceableProducer
from knafka.clients.kafka.producers.kafka_timed_out_topics import TimedOutTopics
from knafka.clients.kafka.producers.kafka_writer_producers import POLL_BUSY, WriterProducers
from knafka.clients.kafka.reachability import Reachability
from knafka.core.errors import LogError
from knafka.core.events.kafka_binding import Draft, RecordHeaders
from knafka.core.kafka_settings.connection_errors import ConnectionErrors
from knafka.ports.log import Reported

MANY_IN_FLIGHT: Final = 24
"""Number of records in flight from which on records are gathered: a request costs Kafka and us as
much as several records."""
GATHERING_TIME: Final = 0.02
"""Seconds for which records are still gathered after many were in flight: when a batch is
acknowledged, few are in flight for a moment."""
PURGE_TIMEOUT: Final = 0.5
"""Seconds that `close` waits for the reports of purged records, which librdkafka's threads make."""

_Counts: TypeAlias = defaultdict[Any, int]
"""Number of stored records by partition. Not a `Counter`: adding to one takes three times as long,
as its `__delitem__` is in Python."""
_Report: TypeAlias = tuple[
    Reported, KafkaError | None, Message, RecordHeaders, bytes | None, _Counts
]
"""A record's callback, its error (None: it is stored), the reported message, the record's headers
and key, and the counts of its topic."""


class KafkaWriter:
    """A `LogWriter` on up to three producers; the second and third are opened at their first
    use."""

    def __init__(self, connection: Connection) -> None:
        """Open the prompt producer and start its polling thread; must be called on the event loop.
        Raises `LogError`."""
        self._loop = asyncio.get_running_loop()
        self._errors = ConnectionErrors()
        self._gather_until = 0.0  # by the loop's clock: until then, records are gathered
        self._in_flight = 0  # records that were appended and not reported
        self._stored: dict[str, _Counts] = {}
        """Number of stored records, by topic and partition."""
        self._small_batch_topics: set[str] = set()
        """Topics that have refused a batch and stored its records alone."""
        self._keys = KeysInFlight[ReplaceableProducer]()
        """The producer of each key with a record in flight: the key's next record must follow it
        there, so that they stay in order."""
        self._reports: deque[_Report] = deque()
        """Results of records, which a polling thread has queued for the event loop."""
        self._settled: deque[RecordGroup] = deque()
        """Groups whose records all have their results, to be reported."""
        self._has_stored = False
        """Whether Kafka has stored records since `_reachability` last noted an acknowledgement."""
        self._answered = False  # whether Kafka has ever answered `_ask`
        self._closed = False
        self._producers = WriterProducers(connection, self._on_error, self._reports, self._report)
        self._reachability = Reachability(self._ask, self._purge_queues, self._producers.renew)
        self._timed_out = TimedOutTopics(connection, self._producers.replace)
        self._producers.start_polling()

    @property
    def in_flight(self) -> int:
        """Number of records that were appended and are not reported yet."""
        return self._in_flight

    @property
    def stored(self) -> Mapping[tuple[str, int], int]:
        """Number of records that Kafka has stored, by topic and partition."""
        return {
            (topic, partition): count
            for topic, counts in self._stored.items()
            for partition, count in counts.items()
        }

    @property
    def failure(self) -> LogError | None:
        """The error because of which a producer can send no more records; None: all producers
        work."""
        return self._producers.failure

    @property
    def away(self) -> LogError | None:
        """Why Kafka is known to be away; None: it is available, or its state is unknown."""
        return self._reachability.away

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders,
        reported: Reported,
    ) -> None:
        """Append a record. `reported` is called later, on the event loop, with the record's error,
        or with None if Kafka has stored it. If a producer has records of its key in flight, that
        producer gets the record, so that none overtakes another. Raises `LogError`; its subclass
        `LogFull` if the buffer is full."""
        # Looked up here: each time that a report's topic is read, a new string is created.
        if (counts := self._stored.get(topic)) is None:
            counts = self._stored[topic] = defaultdict(int)

        # Default arguments cost less than captured variables.
        def on_delivery(
            error: KafkaError | None,
            message: Message,
            reported: Reported = reported,
            headers: RecordHeaders = headers,
            key: bytes | None = key,
            counts: _Counts = counts,
            add: Callable[[_Report], None] = self._reports.append,
        ) -> None:
            """Queue the result of the record, with its callback, for `_report` on the event
            loop."""
            # Called on the polling thread. The reported message has no headers any more.
            add((reported, error, message, headers, key, counts))

        if self._closed:
            raise LogError("the writer is closed")
        producer = None if key is None else self._keys.producer_of.get(key)
        if producer is None:
            producers = self._producers
            producer = producers.ensure_gathering() if self._must_gather() else producers.prompt
        producer.produce(topic, key, value, headers, on_delivery)
        self._in_flight += 1
        if key is not None:
            self._keys.hold(key, producer)
        if self._in_flight == 1:
            self._reachability.watch(lambda: self._in_flight)

    def append_all(self, topic: str, records: Sequence[Draft], reported: Reported) -> None:
        """Append records in their order. `reported` is called once, when all have a result: with
        the first error, also one that `append` would raise, or None if Kafka has stored all.

        `reported` also gets an error if a later record of a key was stored before an earlier one,
        as the topic's limit of batches was too small for some of the records (CE-H11).
        """
        if (counts := self._stored.get(topic)) is None:
            counts = self._stored[topic] = defaultdict(int)
        group = RecordGroup(len(records), reported)

        def on_report(record: Draft, error: KafkaError | None, message: Message) -> None:
            """Note in the group whether the record was stored or refused as too large, and queue
            its result for `_report`; called on the thread that polls its producer."""
            if error is None:
                group.store(record.key)
            elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                group.refuse(record.key)
            self._reports.append((group.settle, error, message, record.headers, record.key, counts))

        def on_gathered(record: Draft, error: KafkaError | None, message: Message) -> None:
            """Count a record that the gathering producer has stored, and queue its group if that
            was the group's last record; pass an error on to `on_report`."""
            # The gathering producer is polled on the loop, so this report is handled at once.
            if error is not None:
                on_report(record, error, message)
                return
            counts[message.partition()] += 1
            self._has_stored = True
            self._in_flight -= 1
            if (key := record[0]) is not None:
                self._keys.release(key)
                group.store(key)
            group.left -= 1
            if not group.left:
                self._settled.append(group)

        producers, queued_count = self._producers, 0
        try:
            if self._closed:
                raise LogError("the writer is closed")
            if topic in self._small_batch_topics:
                default_producer = producers.ensure_unbatched()
            elif self._must_gather(len(records)):
                default_producer = producers.ensure_gathering()
            else:
                default_producer = producers.prompt
            for record in records:
                key, headers, value = record
                producer = (
                    default_producer
                    if key is None
                    else self._keys.producer_of.get(key, default_producer)
                )
                report = on_gathered if producer is producers.gathering else on_report
                producer.produce(topic, key, value, headers, partial(report, record))
                queued_count += 1
                if key is not None:
                    self._keys.hold(key, producer)
        except LogError as error:
            group.settle(error, len(records) - queued_count)
        self._in_flight += queued_count
        if self._in_flight:
            self._reachability.watch(lambda: self._in_flight)

    def _release(self, key: bytes | None) -> None:
        """Count off a record with this key (None: without one) that is no longer in flight."""
        self._in_flight -= 1
        if key is not None:
            self._keys.release(key)

    def _must_gather(self, new_records: int = 0) -> bool:
        """Return whether records must be gathered: the records in flight and `new_records` together
        are `MANY_IN_FLIGHT` or more now, or were at a call in the last `GATHERING_TIME` seconds. If
        they are now, this notes the time for later calls."""
        now = self._loop.time()
        if self._in_flight + new_records >= MANY_IN_FLIGHT:
            self._gather_until = now + GATHERING_TIME
        return now < self._gather_until

    def _report(self) -> None:
        """Deliver all pending reports to their callbacks. A record that was refused as too large is
        sent again alone, and has no report yet."""
        reports, settled = self._reports, self._settled
        try:
            while settled:
                settled.popleft().report()
            while reports:
                reported, error, message, headers, key, counts = reports.popleft()
                if error is None:
                    self._has_stored = True
                    self._release(key)
                    counts[message.partition()] += 1
                    reported(None)
                elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    self._send_alone(message, headers, key, reported, counts)
                else:
                    if error.code() == KafkaError._MSG_TIMED_OUT and not self._closed:
                        topic, partition = message.topic() or "", message.partition() or 0
                        self._timed_out.note_timeout(topic, partition)
                    self._release(key)
                    reported(_write_error(error, message))
        finally:
            if self._has_stored:
                self._has_stored = False
                self._reachability.note_acknowledgement()
            if reports or settled:  # a callback raised: the remaining reports follow
                self._loop.call_soon(self._report)

    def _send_alone(
        self,
        message: Message,
        headers: RecordHeaders,
        key: bytes | None,
        reported: Reported,
        counts: _Counts,
    ) -> None:
        """Send a record again alone, to find out whether the record or only its batch was too
        large. `message`: the report of the refused record.

        The records of one batch are sent again in their order, and later records of their keys
        follow them. Only records that are in flight already may overtake them; none of those is
        acknowledged yet.
        """

        def on_delivery(error: KafkaError | None, sent_message: Message) -> None:
            """Report the result of the record that was sent alone; if Kafka has stored it, remember
            that its topic refuses large batches."""
            self._release(key)
            if error is None:
                counts[sent_message.partition()] += 1
                self._small_batch_topics.add(topic)
            reported(None if error is None else _write_error(error, sent_message))

        topic = cast(str, message.topic())
        alone = self._producers.ensure_unbatched()
        if key is not None:
            self._keys.producer_of[key] = alone
        try:
            alone.produce(topic, key, message.value(), headers, on_delivery)
        except LogError as error:
            self._release(key)
            reported(error)

    def _on_error(self, error: KafkaError) -> None:
        """Log and remember an error of librdkafka; if it says that all brokers are down, notify
        `Reachability`. Called on the thread that polls the producer."""
        log_error(error)
        self._errors.record(error)
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._report_all_down)

    def _report_all_down(self) -> None:
        """Pass on to `Reachability` that no broker is connected."""
        if not self._closed:
            self._reachability.note_all_down()

    def _purge_queues(self) -> None:
        """Let all unsent records be reported as failed, as Kafka is away: their senders try
        again."""
        self._producers.purge(in_flight=False)

    async def reach(self, timeout: float) -> None:
        """Send a request and wait for Kafka's answer, at most `timeout` seconds. Raises `LogError`
        if there is none; if the cause may pass, `Reachability` goes on sending requests."""
        self._errors.forget()
        try:
            await self._ask(timeout)
        except LogError as error:
            if error.retriable and not self._closed:
                self._reachability.doubt()
            raise

    async def _ask(self, timeout: float) -> None:
        """Send a request and wait for Kafka's answer, at most `timeout` seconds. Raises `LogError`,
        which is not `retriable` if Kafka refuses this client."""
        try:
            await asyncio.to_thread(self._producers.prompt.ask, timeout)
        except KafkaException as error:
            errors = self._errors
            # Before Kafka has ever answered, only an unreachable server counts as a passing cause.
            may_pass = errors.refusal is None if self._answered else errors.is_unreachable
            raise LogError(str(errors) or error.args[0].str(), retriable=may_pass) from error
        self._answered = True
        self._errors.forget_all()

    async def close(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the records in flight, then report the rest as
        failed."""
        self._closed = True
        self._reachability.close()
        self._timed_out.close()
        self._producers.stop_timers()
        await self._flush(timeout)
        if self._in_flight:
            # The senders of unacknowledged records were told of no success, so they try again.
            self._producers.purge(in_flight=True)
            await self._flush(PURGE_TIMEOUT)
        self._producers.end_polling()

    async def _flush(self, timeout: float) -> None:
        """Poll and deliver reports until no record is in flight, at most `timeout` seconds."""
        deadline = self._loop.time() + timeout
        while self._in_flight and self._loop.time() < deadline:
            self._producers.poll_unthreaded()
            self._report()
            await asyncio.sleep(POLL_BUSY)


def _write_error(error: KafkaError, message: Message) -> LogError:
    """Return the `LogError` of a record that Kafka didn't store; it names the missing right if
    there is one."""
    return name_missing_right(log_error_of(error), topic=("Write", message.topic() or ""))
