"""Asks a new consumer what it gets of partitions, where the one that reads them can't tell.

A consumer that has stalled returns nothing, and Kafka's answer to a seek comes as a message only to
the consumer that seeks. So another one, which belongs to no group, is opened for a moment.
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

GROUP_PREFIX: Final = "knafka-probe"
"""Prefix of the group id that librdkafka requires; Kafka never sees it."""

T = TypeVar("T")


def ask_new_consumer(
    connection: Connection,
    positions: Mapping[PartitionKey, TopicPartition],
    timeout: float,
    assign: Callable[[Consumer, list[TopicPartition]], None],
    answer_of: Callable[[PartitionKey, Message], T | None],
) -> dict[PartitionKey, T]:
    """Have a new consumer begin at these positions, and return by partition what `answer_of` makes
    of its first message that is an answer (None: it is none), within `timeout` seconds. `assign`
    assigns the positions. Raises `LogError` and `KafkaException`."""
    group = f"{GROUP_PREFIX}-{uuid.uuid4().hex[:8]}"
    own = {"group.id": group, "log_level": 0}
    configuration = {**CONSUMER_DEFAULTS, **without_statistics(connection), **own}
    answers: dict[PartitionKey, T] = {}
    deadline = time.monotonic() + timeout
    with closing(open_client(Consumer, configuration)) as consumer:
        assign(consumer, list(positions.values()))
        while len(answers) < len(positions) and (left := deadline - time.monotonic()) > 0:
            if (message := consumer.poll(left)) is None:
                break
            for key in positions.keys() - answers.keys() & {(message.topic(), message.partition())}:
                if (answer := answer_of(key, message)) is not None:
                    answers[key] = answer
                    consumer.pause([TopicPartition(*key)])  # its other records hide the others
    return answers
