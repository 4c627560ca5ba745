"""Gives each partition of several topics one number.

A drain knows partitions by number. For the first topic (mostly the only one) this is Kafka's own
number; for further topics, `STRIDE` times the topic's index is added to Kafka's number. Kafka never
sees these sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

STRIDE: Final = 1 << 20
"""More partitions than a whole Kafka cluster has."""

V = TypeVar("V")


class Numbering:
    """Numbers the partitions of several topics."""

    def __init__(self, topics: Sequence[str]) -> None:
        """Number the partitions of these topics, whose order determines the numbers."""
        self.topics = tuple(topics)
        self._first_numbers = {topic: index * STRIDE for index, topic in enumerate(self.topics)}
        """The number of each topic's partition 0."""

    def number(self, topic: str, partition: int) -> int:
        """Return the number of the topic's partition that Kafka calls `partition`."""
        return self._first_numbers[topic] + partition

    def topic(self, number: int) -> str:
        """Return the topic of the partition that has this number."""
        return self.topics[number // STRIDE]

    def by_topic(self, values: Mapping[int, V]) -> dict[str, dict[int, V]]:
        """Regroup values by number into values by topic and Kafka's partition number; a topic
        without values gets an empty dict."""
        grouped: dict[str, dict[int, V]] = {topic: {} for topic in self.topics}
        for number, value in values.items():
            grouped[self.topic(number)][partition_of(number)] = value
        return grouped

    def by_number(self, values: Mapping[str, Mapping[int, V]]) -> dict[int, V]:
        """Regroup values by topic and Kafka's partition number into values by number."""
        return {
            self.number(topic, partition): value
            for topic, topic_values in values.items()
            for partition, value in topic_values.items()
        }


def partition_of(number: int) -> int:
    """Return Kafka's own number of the partition that a `Numbering` gave this number."""
    return number % STRIDE
