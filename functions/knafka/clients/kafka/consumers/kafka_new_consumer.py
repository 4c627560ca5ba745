"""Opens a new consumer for a moment, to learn which messages it gets of some partitions.

The consumer that reads the partitions can't be asked: if it has stalled, it returns nothing; and to
make Kafka answer, it would have to seek, which ends its reading. The new consumer belongs to no
group.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Final, TypeVar, cast

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
    """Open a new consumer, call `assign` to start it at these positions, and return, by partition,
    the first answer that one of its messages gives. `answer_of` gets the partition and a message,
    maybe an error; it returns the answer, or None if the message gives none. Partitions without an
    answer within `timeout` seconds are left out. Blocks. Raises `LogError` and `KafkaException`."""
    group = f"{PROBE_GROUP_PREFIX}-{uuid.uuid4().hex[:8]}"
    own_settings = {"group.id": group, "log_level": 0}
    configuration = {**CONSUMER_DEFAULTS, **without_statistics(connection), **own_settings}
    answers: dict[PartitionKey, T] = {}
    deadline = time.monotonic() + timeout
    with closing(open_client(Consumer, configuration)) as consumer:
        assign(consumer, list(positions.values()))
        while len(answers) < len(positions) and (seconds_left := deadline - time.monotonic()) > 0:
            if (message := consumer.poll(seconds_left)) is None:
                break
            # An error that concerns no partition has neither topic nor number.
            key = cast(PartitionKey, (message.topic(), message.partition()))
            if key not in positions or key in answers:
                continue
            if (answer := answer_of(key, message)) is not None:
                answers[key] = answer
                # Its further records would keep the other partitions waiting.
                consumer.pause([TopicPartition(*key)])
    return answers
