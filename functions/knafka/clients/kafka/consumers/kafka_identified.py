"""A reader of a topic that must be read anew once it was deleted and created again, as are contract
topics: what the old topic held counts no more.

How it notices: `kafka_replaced_topics`.
"""

from __future__ import annotations

from knafka.clients.kafka.consumers.kafka_positioned import KafkaPositionedReader
from knafka.core.errors import LogError
from knafka.ports.shared_log import Position


class KafkaIdentifiedReader(KafkaPositionedReader):
    """A `PositionedReader` on real Kafka whose `read` raises `LogError` once its topic was replaced
    by another one of the name; it must be closed then."""

    def _react_to_replacement(self) -> dict[int, Position]:
        raise LogError(f"the topic {self._topic} was deleted and created again")
