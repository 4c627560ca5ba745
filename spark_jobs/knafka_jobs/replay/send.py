"""Sending a replay to a Trigger's replay topic: each event once, whatever is killed.

A replay sends in transactions under an id of its own, so that a second run of it fences the
first one off; before it sends, it reads what is committed and leaves that out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from knafka.core.dead_letter import REPLAY, restored
from knafka.core.kafka_binding import RecordHeaders
from knafka.core.times import moment
from knafka_jobs.errors import JobError
from knafka_jobs.io.kafka import Connection, KafkaClient
from knafka_jobs.topics import Topic

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


def already_sent(kafka: KafkaClient, topic: Topic, replay_id: str) -> list[Sent]:
    """What earlier runs of this replay have sent, committed."""
    waiting = {number: span for number, span in topic.spans.items() if span.start < span.end}
    consumer = kafka.consumer(**{"isolation.level": "read_committed", "enable.partition.eof": True})
    found = []
    try:
        consumer.assign(
            [TopicPartition(topic.name, number, span.start) for number, span in waiting.items()]
        )
        remaining = set(waiting)
        deadline = time.monotonic() + TIMEOUT
        while remaining:
            messages = consumer.consume(1000, 0.2)
            if messages:
                deadline = time.monotonic() + TIMEOUT
            elif time.monotonic() > deadline:
                raise JobError(f"Kafka sends nothing of {topic.name} for {TIMEOUT:.0f} s")
            for message in messages:
                error = message.error()
                if error is None:
                    if (failure := _failure_of(message, replay_id)) is not None:
                        found.append(_sent(failure, message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    remaining.discard(message.partition())
                elif not error.retriable():
                    raise JobError(f"Kafka: {error.str()}")
    finally:
        consumer.close()
    return found


def send(
    connection: Connection,
    topic: str,
    replay_id: str,
    events: Iterable[FailedEvent],
    rate: float | None,
    progress: Callable[[int], None],
) -> list[Sent]:
    """Send all as the events they were, at most `rate` a second.

    Raises `JobError`; the last transaction is then undone.
    """
    sent: list[Sent] = []
    at_once = BATCH_EVENTS if rate is None else max(1, min(BATCH_EVENTS, int(rate)))
    try:
        producer = _producer(connection, replay_id)
        for batch in batches(events, at_once, BATCH_BYTES):
            begun = time.monotonic()
            sent += _transaction(producer, topic, replay_id, batch)
            progress(len(sent))
            if rate is not None:
                time.sleep(max(0.0, len(batch) / rate - (time.monotonic() - begun)))
    except KafkaException as error:
        if error.args[0].code() == KafkaError._FENCED:
            raise JobError(f"another run of the replay {replay_id} has taken over") from error
        raise JobError(f"Kafka: {error.args[0].str()}") from error
    return sent


def _producer(connection: Connection, replay_id: str) -> Producer:
    producer = Producer(
        {
            **connection.for_librdkafka(),
            "transactional.id": f"knafka-replay-{replay_id}",
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


def _transaction(
    producer: Producer, topic: str, replay_id: str, batch: list[FailedEvent]
) -> list[Sent]:
    sent: list[Sent] = []
    problems: list[KafkaError] = []
    producer.begin_transaction()
    for each in batch:

        def report(error: KafkaError | None, message: Message, name: str = each.failure_id) -> None:
            if error is None:
                sent.append(_sent(name, message))
            else:
                problems.append(error)

        headers = restored(each.headers, f"{replay_id}/{each.failure_id}")
        producer.produce(topic, each.value, each.key, headers=headers, on_delivery=report)  # type: ignore[arg-type]
    producer.flush(TIMEOUT)
    if problems or len(sent) < len(batch):
        producer.abort_transaction(TIMEOUT)
        raise JobError(f"{topic} did not take all: {problems[0] if problems else 'no answer'}")
    producer.commit_transaction(TIMEOUT)
    return sent


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
