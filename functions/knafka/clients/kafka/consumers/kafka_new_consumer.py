"""Opens a new consumer for a moment, to learn what it gets of partitions.

This is for questions that the consumer that reads the partitions can't answer: if it has stalled,
it returns nothing, and a seek, to which Kafka answers with a message, would end its reading. The
new consumer belongs to no group.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Final, TypeVar

from confluent_kafka import Consumer, Message, TopicPartition

from knafka.clients.kafka.kafka_client import (
    CONSUMER_DEFAULTS,
    Connection,
    PartitionKey,
    open_client,
)
from knafka.clients.kafka.kafka_statistics import without_statistics

PROBE_GROUP_PREFIX: Final = "knafka-probe"
"""Prefix of the group id that librdkafka requires; Kafka never sees it."""

T = TypeVar("T")


def ask_new_consumer(
    connection: Connection,
    positions: Mapping[PartitionKey, TopicPartition],
    timeout: float,
    assign: Callable[[Consumer, list[TopicPartition]], None],
    answer_of: Callable[[PartitionKey, Message], T | None],
) -> dict[PartitionKey, T]:
    """Have a new consumer begin at these positions, which `assign` assigns, and return an answer by
    partition. `answer_of` returns the answer that a message gives, or None if it gives none; the
    first answer of a partition counts. Partitions without one within `timeout` seconds are left
    out. Blocks. Raises `LogError` and `KafkaException`."""
    group = f"{PROBE_GROUP_PREFIX}-{uuid.uuid4().hex[:8]}"
    own = {"group.id": group, "log_level": 0}
    configuration = {**CONSUMER_DEFAULTS, **without_statistics(connection), **own}
    answers: dict[PartitionKey, T] = {}
    deadline = time.monotonic() + timeout
    with closing(open_client(Consumer, configuration)) as consumer:
        assign(consumer, list(positions.values()))
        while len(answers) < len(positions) and (seconds_left := deadline - time.monotonic()) > 0:
            if (message := consumer.poll(seconds_left)) is None:
                break
            # The message's partition, unless it is answered or the message has none.
            for key in positions.keys() - answers.keys() & {(message.topic(), message.partition())}:
                if (answer := answer_of(key, message)) is not None:
                    answers[key] = answer
                    # Its further records would keep the other partitions waiting.
                    consumer.pause([TopicPartition(*key)])
    return answers
