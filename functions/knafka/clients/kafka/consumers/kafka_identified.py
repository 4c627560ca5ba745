"""A reader that fails when its topic was deleted and created again: everything that was read from
the old topic, such as a contract, is void then.

`kafka_replaced_topics` notices the new topic by its id.
"""

from __future__ import annotations

from knafka.clients.kafka.consumers.kafka_positioned import KafkaPositionedReader
from knafka.core.errors import LogError
from knafka.ports.shared_log import Position


class KafkaIdentifiedReader(KafkaPositionedReader):
    """A `PositionedReader` on real Kafka whose `read` raises `LogError` once its topic was replaced
    by another topic of the same name; the reader must be closed then."""

    def _react_to_replacement(self) -> dict[int, Position]:
        """Raise `LogError`; the base class would read the new topic from its start."""
        raise LogError(f"the topic {self._topic} was deleted and created again")
