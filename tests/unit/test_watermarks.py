"""The first and end offsets of a topic's partitions, while their leaders are moving."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from knafka.clients.kafka.kafka_requests import read_watermarks


class JustMade:
    """A consumer of a topic that was just made: at first nobody leads its second partition."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.refused = 0

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        if partition.partition == 1 and self.refused < 2:
            self.refused += 1
            raise KafkaException(KafkaError(self.code))
        return 0, 10 + partition.partition


@pytest.mark.parametrize(
    "code", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._UNKNOWN_PARTITION]
)
def test_a_partition_without_a_known_leader_is_asked_again(code: int) -> None:
    consumer: Any = JustMade(code)
    assert read_watermarks(consumer, "events", [0, 1, 2], 30) == {
        0: (0, 10),
        1: (0, 11),
        2: (0, 12),
    }
    assert consumer.refused == 2


@pytest.mark.parametrize(
    ("code", "timeout"),
    [(KafkaError.TOPIC_AUTHORIZATION_FAILED, 30), (KafkaError.NOT_LEADER_FOR_PARTITION, 0)],
)
def test_what_will_not_mend_and_what_takes_too_long_is_raised(code: int, timeout: float) -> None:
    consumer: Any = JustMade(code)
    with pytest.raises(KafkaException):
        read_watermarks(consumer, "events", [0, 1], timeout)
    assert consumer.refused == 1
