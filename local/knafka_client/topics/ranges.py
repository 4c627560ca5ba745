"""Ranges of offsets in a topic's partitions, asked of Kafka by a consumer that joins no group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from knafka.clients.kafka_client import log_error_of

KAFKA_ANSWER_TIMEOUT: Final = 15.0
"""Seconds for one question to Kafka."""
HAS_MEMBERS: Final = frozenset(
    {
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.NON_EMPTY_GROUP,
    }
)


def offsets_since(
    consumer: Consumer, topic: str, spans: Mapping[int, tuple[int, int]], since: float
) -> dict[int, int]:
    """Where the time begins in each partition: at its end if nothing came since. Raises
    `LogError`."""
    times = [TopicPartition(topic, number, int(since * 1000)) for number in spans]
    starts = {}
    try:
        for place in consumer.offsets_for_times(times, timeout=KAFKA_ANSWER_TIMEOUT):
            if place.error is not None:
                raise log_error_of(place.error)
            low, end = spans[place.partition]
            starts[place.partition] = max(low, place.offset) if place.offset >= 0 else end
    except KafkaException as error:
        raise log_error_of(error.args[0]) from error
    return starts


def spans_of(consumer: Consumer, topic: str) -> dict[int, tuple[int, int]]:
    """Start and end of each partition. Raises `LogError`."""
    try:
        metadata = consumer.list_topics(topic, timeout=KAFKA_ANSWER_TIMEOUT).topics[topic]
        if metadata.error is not None:
            raise log_error_of(metadata.error)
        return {
            number: consumer.get_watermark_offsets(
                TopicPartition(topic, number), timeout=KAFKA_ANSWER_TIMEOUT
            )
            for number in metadata.partitions
        }
    except KafkaException as error:
        raise log_error_of(error.args[0]) from error
