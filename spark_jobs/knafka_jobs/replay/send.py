"""Sending a replay to Triggers' replay topics: each event once, whatever is killed.

    a replay's events --by key--> some lanes, each in the order of the events
                                   └── a producer of its own, a transaction for some hundreds

A lane's transactional id is made of the replay's id and the lane's number. A process that begins a
lane fences off an earlier sender of it, and leaves out what that one has committed. So any process
may send a lane, also again after a failure, with the memory of one transaction. Needs no Spark.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from knafka.core.dead_letter import REPLAY, restored
from knafka.core.kafka_binding import RecordHeaders
from knafka.core.times import moment
from knafka_jobs.errors import JobError
from knafka_jobs.io.kafka import Connection, KafkaClient
from knafka_jobs.io.kafka_records import KafkaRecords
from knafka_jobs.selecting import TriggerName
from knafka_jobs.topics import Position, Span, Topic

LANES: Final = 8
"""Of a replay, at most: a later run knows whom to fence off."""
BATCH_EVENTS: Final = 500
"""Events in one transaction, which costs 10 ms: enough that it doesn't matter."""
BATCH_BYTES: Final = 16 * 1024 * 1024
"""Keys and values in one transaction, unless a single event has more: what is held in memory."""
MAX_RECORD_BYTES: Final = 1_000_000_000
"""librdkafka's own highest limit: what is too large is for the topic to say."""
TIMEOUT: Final = 30.0
"""Seconds for one step of a transaction."""


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """An event to be sent again, as it lies in its dead-letter topic."""

    failure_id: str
    topic: str
    """Its Trigger's replay topic."""
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders

    @property
    def size(self) -> int:
        return len(self.key or b"") + len(self.value or b"")


@dataclass(frozen=True, slots=True)
class Sent:
    """Where an event lies in the replay topic, and since when."""

    failure_id: str
    partition: int
    offset: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends a replay's lanes, in whichever process."""

    connection: Connection
    replay_id: str
    topics: Mapping[TriggerName, str]
    """The replay topic of each Trigger."""
    starts: Mapping[Position, int]
    """Where the replay topics ended before this run sent anything."""
    rate: float | None
    """Events a second at most, in all of the lanes that are used: a rate has one."""

    def send(self, lane: int, rows: Iterable[Any]) -> int:
        """Send rows (`failure_id`, `TRIGGER`, `key`, `value`, `headers`), in their order, as the
        events that they were; returns how many.

        Raises `JobError`; the last transaction is then undone.
        """
        at_once = BATCH_EVENTS
        if self.rate is not None:
            at_once = max(1, min(BATCH_EVENTS, int(self.rate)))
        count = 0
        producer = None
        try:
            for batch in batches(self._events(rows), at_once, BATCH_BYTES):
                if producer is None:  # a lane without events needs none
                    producer = producer_of(self.connection, self.replay_id, lane)
                    earlier = self._sent_earlier()
                begun = time.monotonic()
                unsent = [each for each in batch if hash_of(each.failure_id) not in earlier]
                if unsent:
                    _transaction(producer, self.replay_id, unsent)
                count += len(unsent)
                if self.rate is not None:
                    time.sleep(max(0.0, len(unsent) / self.rate - (time.monotonic() - begun)))
        except KafkaException as error:
            if error.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED):
                raise JobError(
                    f"another run of the replay {self.replay_id} has taken over"
                ) from error
            raise JobError(f"Kafka: {error.args[0].str()}") from error
        return count

    def _events(self, rows: Iterable[Any]) -> Iterator[FailedEvent]:
        for row in rows:
            failure_id, namespace, broker, trigger, key, value, headers = row
            topic = self.topics[namespace, broker, trigger]
            found = [(name, _bytes(raw)) for name, raw in headers or ()]
            yield FailedEvent(failure_id, topic, _bytes(key), _bytes(value), found)

    def _sent_earlier(self) -> set[int]:
        """What was committed since this run began, by hash: this lane's own is among it if its task
        is repeated. Nothing, or little, if all lanes begin at once."""
        kafka = KafkaClient(self.connection)
        found: set[int] = set()
        for topic in kafka.topics_at_rest(sorted(set(self.topics.values()))).values():
            spans = {
                number: Span(max(span.start, self.starts.get((topic.name, number), 0)), span.end)
                for number, span in topic.spans.items()
            }
            later = Topic(topic.name, topic.id, spans, topic.replication)
            for each in sent_by(kafka, later, self.replay_id):
                found.add(hash_of(each.failure_id))
        return found


def hash_of(failure_id: str) -> int:
    """64 bits of it: a million of them take some tens of megabytes."""
    return int.from_bytes(hashlib.blake2b(failure_id.encode(), digest_size=8).digest())


def fence(connection: Connection, replay_id: str) -> None:
    """Keep every sender of a replay from committing more, and undo what is open. Raises
    `JobError`."""
    for lane in range(LANES):
        try:
            producer_of(connection, replay_id, lane)
        except KafkaException as error:
            raise JobError(f"Kafka: {error.args[0].str()}") from error


def sent_by(kafka: KafkaClient, topic: Topic, replay_id: str) -> Iterator[Sent]:
    """What a replay has sent and committed, of a topic's spans. Raises `JobError`."""
    log = KafkaRecords(kafka, {topic.id: topic.name})
    for number, span in topic.spans.items():
        if span.start < span.end:
            for message in log.messages((topic.id, number), span):
                if (failure := _failure_of(message, replay_id)) is not None:
                    yield _sent(failure, message)


def transactional_id(replay_id: str, lane: int) -> str:
    """The first lane has the id that earlier versions sent all under."""
    return f"knafka-replay-{replay_id}" + (f"-{lane}" if lane else "")


def producer_of(connection: Connection, replay_id: str, lane: int) -> Producer:
    """The producer of a lane; from now on no other one of it commits anything."""
    producer = Producer(
        {
            **connection.for_librdkafka(),
            "transactional.id": transactional_id(replay_id, lane),
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "message.max.bytes": MAX_RECORD_BYTES,
            # With several, librdkafka may take a later request's success for that of one that Kafka
            # rejected (docs/decisions/0012).
            "max.in.flight.requests.per.connection": 1,
        }
    )
    producer.init_transactions(TIMEOUT)
    return producer


def _transaction(producer: Producer, replay_id: str, batch: list[FailedEvent]) -> None:
    problems: list[tuple[KafkaError, str]] = []
    delivered = 0

    def report(error: KafkaError | None, message: Message) -> None:
        nonlocal delivered
        if error is None:
            delivered += 1
        else:
            problems.append((error, message.topic() or ""))

    producer.begin_transaction()
    for each in batch:
        headers = restored(each.headers, f"{replay_id}/{each.failure_id}")
        producer.produce(each.topic, each.value, each.key, headers=headers, on_delivery=report)  # type: ignore[arg-type]
    producer.flush(TIMEOUT)
    if problems or delivered < len(batch):
        fenced = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
        if problems and problems[0][0].code() in fenced:
            raise KafkaException(problems[0][0])
        producer.abort_transaction(TIMEOUT)
        why, topic = problems[0] if problems else ("no answer", batch[0].topic)
        raise JobError(f"{topic} did not take all: {why}")
    producer.commit_transaction(TIMEOUT)


def batches(events: Iterable[FailedEvent], count: int, size: int) -> Iterator[list[FailedEvent]]:
    """In their order, at most `count` and `size` bytes at once; one that is larger goes alone."""
    batch: list[FailedEvent] = []
    held = 0
    for each in events:
        if batch and (len(batch) == count or held + each.size > size):
            yield batch
            batch, held = [], 0
        batch.append(each)
        held += each.size
    if batch:
        yield batch


def rate_and_rest(sent: int, total: int, rate: float) -> str:
    """How a replay gets on: `1,000 of 5,000 sent, 500/s, 8 s left`; `rate` is events a second, 0 if
    it isn't known."""
    said = f"{sent:,} of {total:,} sent"
    if rate <= 0:
        return said
    minutes, rest = divmod(round((total - sent) / rate), 60)
    return f"{said}, {rate:,.0f}/s, {f'{minutes} min ' if minutes else ''}{rest} s left"


def _failure_of(message: Any, replay_id: str) -> str | None:
    for name, raw in message.headers() or ():
        if name == REPLAY and raw is not None:
            replay, _, failure = raw.decode(errors="replace").rpartition("/")
            if replay == replay_id:
                return str(failure)
    return None


def _sent(failure_id: str, message: Any) -> Sent:
    at = moment(message.timestamp()[1] / 1000)
    return Sent(failure_id, message.partition(), message.offset(), at)


def _bytes(value: Any) -> Any:
    """Spark's bytearray as bytes, None as None."""
    return None if value is None else bytes(value)
