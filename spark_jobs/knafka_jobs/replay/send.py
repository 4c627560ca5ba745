"""Sends a replay's events to replay topics in transactions: each event once, also after kills.

    a replay's events --by key--> some lanes, each in the order of the events
                                   └── a producer per lane, a transaction per some hundred events

A lane's transactional id is made from the replay's id and the lane's number. A process that begins
a lane fences off an earlier sender of the lane (Kafka takes nothing of it any more), and leaves out
the events that the earlier sender committed. So any process may send a lane, also again after a
failure, with the memory of one transaction. Needs no Spark.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from knafka.core.dead_letter import REPLAY, headers_for_replay
from knafka.core.events.kafka_binding import RecordHeaders
from knafka.core.times import utc_datetime
from knafka_jobs.event_edits import NO_EDITS, CannotEdit, EventEdits, edited_record
from knafka_jobs.failure_selection import TriggerName
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.io.kafka_connection import KafkaConnection
from knafka_jobs.io.kafka_records import KafkaRecords
from knafka_jobs.job_errors import JobError
from knafka_jobs.topic_offsets import NamedPartition, OffsetSpan, TopicState

MAX_LANES: Final = 8
"""Largest number of lanes of a replay. `fence_senders` fences off that many, whether they were used
or not."""
BATCH_EVENTS: Final = 500
"""Most events in one transaction: enough that the 10 ms for a transaction don't matter."""
REPLAY_BATCH_BYTES: Final = 16 * 1024 * 1024
"""Most bytes of keys and values in one transaction, held in memory; a single event may have
more."""
LIBRDKAFKA_MAX_BYTES: Final = 1_000_000_000
"""librdkafka's highest limit: the topic decides which records are too large."""
TRANSACTION_TIMEOUT: Final = 30.0
"""Seconds for one step of a transaction."""
FENCED_CODES: Final = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
"""Kafka's errors for a producer that another process has fenced off."""


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """An event to send again, as stored in its dead-letter topic."""

    failure_id: str
    topic: str
    """The replay topic of the event's Trigger."""
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders

    @property
    def size(self) -> int:
        """Return the number of bytes of key and value."""
        return len(self.key or b"") + len(self.value or b"")


@dataclass(slots=True)
class LaneResult:
    """How many of a lane's events were sent, and how many left out."""

    sent: int = 0
    """Events that this run sent, without those that an earlier sender had sent."""
    not_editable: int = 0
    """Events that are left out, as the replay's edits can't be applied to them."""
    problem: str = ""
    """Why the edits can't be applied, for one of these events."""

    def __add__(self, other: LaneResult) -> LaneResult:
        """Return the sum of two lanes' results, with the first problem of the two."""
        return LaneResult(
            self.sent + other.sent,
            self.not_editable + other.not_editable,
            self.problem or other.problem,
        )


@dataclass(frozen=True, slots=True)
class SentEvent:
    """An event that a replay has sent: its position in the replay topic, and when it was sent."""

    failure_id: str
    partition: int
    offset: int
    sent: datetime


@dataclass(frozen=True, slots=True)
class ReplaySender:
    """Sends the lanes of a replay; works in any process, such as a Python worker of Spark."""

    connection: KafkaConnection
    replay_id: str
    topics: Mapping[TriggerName, str]
    """The replay topic of each Trigger."""
    starts: Mapping[NamedPartition, int]
    """The offsets at which this run's events begin: the ends that the replay topics' partitions had
    before this run sent anything."""
    rate: float | None
    """Events a second, at most; None: no limit. A replay with a rate uses only one lane."""
    edits: EventEdits = NO_EDITS
    """The edits that are made to each event."""

    def send(self, lane: int, rows: Iterable[Any]) -> LaneResult:
        """Send the dead letters of a lane as the original events, with the edits applied, in order;
        returns how many were sent and left out. Events that were already sent since this run began,
        such as by an earlier try of the lane, are skipped.

        `rows` have `failure_id`, `TRIGGER`, `key`, `value`, `headers`. Raises `JobError`, such as
        after another run has fenced off this sender; the last transaction isn't committed then.
        """
        batch_size = BATCH_EVENTS
        if self.rate is not None:
            batch_size = max(1, min(BATCH_EVENTS, int(self.rate)))
        result = LaneResult()
        producer = None
        try:
            for batch in batches(self._edited_events(rows, result), batch_size, REPLAY_BATCH_BYTES):
                if producer is None:  # a lane without events needs none
                    producer = open_producer(self.connection, self.replay_id, lane)
                    sent_hashes = self._read_sent_hashes()
                start = time.monotonic()
                unsent = [
                    event for event in batch if failure_hash(event.failure_id) not in sent_hashes
                ]
                if unsent:
                    _send_transaction(producer, self.replay_id, unsent)
                result.sent += len(unsent)
                if self.rate is not None:
                    # Sleep for the rest of the time that the batch takes at this rate.
                    time.sleep(max(0.0, len(unsent) / self.rate - (time.monotonic() - start)))
        except KafkaException as error:
            if error.args[0].code() in FENCED_CODES:
                raise JobError(
                    f"another run of the replay {self.replay_id} has taken over: let that one end"
                ) from error
            raise JobError(f"Kafka: {error.args[0].str()}") from error
        return result

    def _edited_events(self, rows: Iterable[Any], result: LaneResult) -> Iterator[FailedEvent]:
        """Yield the event of each row, with the edits applied and with the replay topic of its
        Trigger. Events that can't be edited are left out and counted in `result`."""
        for row in rows:
            failure_id, namespace, broker, trigger, key, value, headers = row
            topic = self.topics[namespace, broker, trigger]
            record_headers = [(name, _as_bytes(raw)) for name, raw in headers or ()]
            event_data = _as_bytes(value)
            if self.edits:
                try:
                    record_headers, event_data = edited_record(
                        self.edits, record_headers, event_data
                    )
                except CannotEdit as error:
                    result.not_editable += 1
                    result.problem = result.problem or str(error)
                    continue
            yield FailedEvent(failure_id, topic, _as_bytes(key), event_data, record_headers)

    def _read_sent_hashes(self) -> set[int]:
        """Read from the replay topics which events any lane has sent since this run began, such as
        by the first try of a lane whose task is repeated. Returns each event's `failure_hash`.
        Raises `JobError`."""
        kafka = KafkaClient(self.connection)
        hashes: set[int] = set()
        for topic in kafka.topics_at_rest(sorted(set(self.topics.values()))).values():
            spans = {
                number: OffsetSpan(
                    max(span.start, self.starts.get((topic.name, number), 0)), span.end
                )
                for number, span in topic.spans.items()
            }
            since_start = TopicState(topic.name, topic.id, spans, topic.replication)
            for sent in events_sent_by(kafka, since_start, self.replay_id):
                hashes.add(failure_hash(sent.failure_id))
        return hashes


def failure_hash(failure_id: str) -> int:
    """Return a hash of 64 bits of a failure's id. It takes less memory than the id: some tens of
    megabytes for a million failures."""
    return int.from_bytes(hashlib.blake2b(failure_id.encode(), digest_size=8).digest())


def fence_senders(connection: KafkaConnection, replay_id: str) -> None:
    """Fence off every sender of a replay, so that Kafka takes nothing of them any more, and abort
    their open transactions. Raises `JobError`."""
    for lane in range(MAX_LANES):
        try:
            # Opening a producer fences off the earlier producers of its lane.
            open_producer(connection, replay_id, lane)
        except KafkaException as error:
            raise JobError(f"Kafka: {error.args[0].str()}") from error


def events_sent_by(kafka: KafkaClient, topic: TopicState, replay_id: str) -> Iterator[SentEvent]:
    """Yield the events of a replay that are committed in a topic's spans. Raises `JobError`."""
    log = KafkaRecords(kafka, {topic.id: topic.name})
    for number, span in topic.spans.items():
        if span.start < span.end:
            for message in log.messages((topic.id, number), span):
                if (failure_id := _failure_id_of(message, replay_id)) is not None:
                    yield _sent_event(failure_id, message)


def transactional_id(replay_id: str, lane: int) -> str:
    """Return the transactional id of a replay's lane. That of lane 0 has no number: earlier
    versions, which had no lanes, used it for all events."""
    return f"knafka-replay-{replay_id}" + (f"-{lane}" if lane else "")


def open_producer(connection: KafkaConnection, replay_id: str, lane: int) -> Producer:
    """Create the producer of a replay's lane; earlier producers of the lane can commit nothing any
    more. Waits up to `TRANSACTION_TIMEOUT` seconds. Raises `KafkaException`."""
    producer = Producer(
        {
            **connection.for_librdkafka(),
            "transactional.id": transactional_id(replay_id, lane),
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "message.max.bytes": LIBRDKAFKA_MAX_BYTES,
            # With several, librdkafka may take a later request's success for that of one that Kafka
            # rejected (docs/decisions/0012).
            "max.in.flight.requests.per.connection": 1,
        }
    )
    producer.init_transactions(TRANSACTION_TIMEOUT)
    return producer


def _send_transaction(producer: Producer, replay_id: str, batch: list[FailedEvent]) -> None:
    """Send events in one transaction, and wait until it is committed.

    If a topic refuses an event, or doesn't answer within `TRANSACTION_TIMEOUT`, abort the
    transaction and raise `JobError`. Raises `KafkaException` for other errors, such as of a
    producer that another process has fenced off.
    """
    refused: list[tuple[KafkaError, str]] = []  # errors, each with the topic
    delivered = 0

    def note_delivery(error: KafkaError | None, message: Message) -> None:
        """Count a record that Kafka has acknowledged, or note the error of a refused one."""
        nonlocal delivered
        if error is None:
            delivered += 1
        else:
            refused.append((error, message.topic() or ""))

    producer.begin_transaction()
    for event in batch:
        headers = headers_for_replay(event.headers, f"{replay_id}/{event.failure_id}")
        producer.produce(
            event.topic,
            event.value,
            event.key,
            headers=headers,  # type: ignore[arg-type]  # its list type is invariant
            on_delivery=note_delivery,
        )
    producer.flush(TRANSACTION_TIMEOUT)
    if refused or delivered < len(batch):
        reason, topic = refused[0] if refused else ("no answer", batch[0].topic)
        if isinstance(reason, KafkaError) and reason.code() in FENCED_CODES:
            # It can't abort: its transaction was aborted when the producer was fenced off.
            raise KafkaException(reason)
        producer.abort_transaction(TRANSACTION_TIMEOUT)
        raise JobError(f"the topic {topic} did not take every event: {reason}")
    producer.commit_transaction(TRANSACTION_TIMEOUT)


def batches(
    events: Iterable[FailedEvent], max_events: int, max_bytes: int
) -> Iterator[list[FailedEvent]]:
    """Split events, in their order, into batches of at most `max_events` events and `max_bytes`
    bytes of keys and values. An event with more bytes is a batch of its own."""
    batch: list[FailedEvent] = []
    batch_bytes = 0
    for event in events:
        is_full = len(batch) == max_events or batch_bytes + event.size > max_bytes
        if batch and is_full:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(event)
        batch_bytes += event.size
    if batch:
        yield batch


def progress_text(sent: int, total: int, rate: float) -> str:
    """Return a replay's progress as text: `1,000 of 5,000 sent, 500/s, 8 s left`.

    `rate` is in events a second; 0 if unknown.
    """
    text = f"{sent:,} of {total:,} sent"
    if rate <= 0:
        return text
    minutes, seconds = divmod(round((total - sent) / rate), 60)
    return f"{text}, {rate:,.0f}/s, {f'{minutes} min ' if minutes else ''}{seconds} s left"


def _failure_id_of(message: Any, replay_id: str) -> str | None:
    """Return the id of the failure whose event is in a record of this replay; None: the record is
    of no replay or another one. The header `REPLAY` has both ids: `REPLAY-ID/FAILURE-ID`."""
    for name, raw in message.headers() or ():
        if name == REPLAY and raw is not None:
            id_of_replay, _, failure_id = raw.decode(errors="replace").rpartition("/")
            if id_of_replay == replay_id:
                return str(failure_id)
    return None


def _sent_event(failure_id: str, message: Any) -> SentEvent:
    """Return the `SentEvent` of a record of a replay topic."""
    sent_at = utc_datetime(message.timestamp()[1] / 1000)
    return SentEvent(failure_id, message.partition(), message.offset(), sent_at)


def _as_bytes(value: Any) -> Any:
    """Convert a binary value, which Spark returns as bytearray, to bytes; None stays None."""
    return None if value is None else bytes(value)
