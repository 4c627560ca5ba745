"""Appending a replay to a Trigger's replay topic: each event once, whatever is killed.

A replay appends in transactions under an id of its own, so that a second run of it fences the
first one off; before it sends, it reads what is committed and leaves that out. Refused here:
choosing what is sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from knafka.core.dead_letter import REPLAY, restored
from knafka.core.kafka_binding import RecordHeaders
from knafka_jobs.errors import JobError
from knafka_jobs.topics import Topic, Topics

BATCH: Final = 500
"""Events in one transaction, which costs 10 ms: enough that it doesn't matter."""
TIMEOUT: Final = 30.0
"""Seconds for one step of a transaction."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One event to be sent again."""

    failure_id: str
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders


@dataclass(frozen=True, slots=True)
class Appended:
    """Where an event lies in the replay topic; `at` is Unix time."""

    failure_id: str
    partition: int
    offset: int
    at: float


def already_appended(topics: Topics, topic: Topic, replay_id: str) -> list[Appended]:
    """What earlier runs of this replay have appended, committed."""
    waiting = {number: span for number, span in topic.spans.items() if span.start < span.end}
    consumer = topics.consumer(
        **{"isolation.level": "read_committed", "enable.partition.eof": True}
    )
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
                        found.append(_appended(failure, message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    remaining.discard(message.partition())
                elif not error.retriable():
                    raise JobError(f"Kafka: {error.str()}")
    finally:
        consumer.close()
    return found


def append(
    topics: Topics,
    topic: str,
    replay_id: str,
    letters: Iterable[Letter],
    rate: float | None,
    progress: Callable[[int], None],
) -> list[Appended]:
    """Append all letters, at most `rate` a second. Raises `JobError`; the last batch is undone."""
    appended: list[Appended] = []
    try:
        producer = _producer(topics, replay_id)
        for batch in _batches(letters, BATCH if rate is None else max(1, min(BATCH, int(rate)))):
            begun = time.monotonic()
            appended += _transaction(producer, topic, replay_id, batch)
            progress(len(appended))
            if rate is not None:
                time.sleep(max(0.0, len(batch) / rate - (time.monotonic() - begun)))
    except KafkaException as error:
        if error.args[0].code() == KafkaError._FENCED:
            raise JobError(f"another run of the replay {replay_id} has taken over") from error
        raise JobError(f"Kafka: {error.args[0].str()}") from error
    return appended


def _producer(topics: Topics, replay_id: str) -> Producer:
    producer = Producer(
        {
            **topics.connection.for_librdkafka(),
            "log_level": 0,
            "transactional.id": f"knafka-replay-{replay_id}",
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            # With several, librdkafka may take a later request's success for that of one that Kafka
            # rejected (docs/decisions/0012).
            "max.in.flight.requests.per.connection": 1,
        }
    )
    producer.init_transactions(TIMEOUT)
    return producer


def _transaction(
    producer: Producer, topic: str, replay_id: str, batch: list[Letter]
) -> list[Appended]:
    appended: list[Appended] = []
    problems: list[KafkaError] = []
    producer.begin_transaction()
    for letter in batch:

        def report(
            error: KafkaError | None, message: Message, name: str = letter.failure_id
        ) -> None:
            if error is None:
                appended.append(_appended(name, message))
            else:
                problems.append(error)

        producer.produce(
            topic,
            letter.value,
            letter.key,
            headers=restored(letter.headers, f"{replay_id}/{letter.failure_id}"),  # type: ignore[arg-type]
            on_delivery=report,
        )
    producer.flush(TIMEOUT)
    if problems or len(appended) < len(batch):
        producer.abort_transaction(TIMEOUT)
        raise JobError(f"{topic} did not take all: {problems[0] if problems else 'no answer'}")
    producer.commit_transaction(TIMEOUT)
    return appended


def _batches(letters: Iterable[Letter], size: int) -> Iterable[list[Letter]]:
    batch: list[Letter] = []
    for letter in letters:
        batch.append(letter)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _failure_of(message: Any, replay_id: str) -> str | None:
    for name, raw in message.headers() or ():
        if name == REPLAY and raw is not None:
            replay, _, failure = raw.decode(errors="replace").rpartition("/")
            if replay == replay_id:
                return str(failure)
    return None


def _appended(failure_id: str, message: Any) -> Appended:
    at = message.timestamp()[1] / 1000
    return Appended(failure_id, message.partition(), message.offset(), at)
