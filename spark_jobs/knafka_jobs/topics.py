"""Topics and the offsets in them, as values. Asking Kafka for them: `io.kafka`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from knafka.core import names


class BrokerName(NamedTuple):
    """Whose dead letters; written as `NAMESPACE/NAME`."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


Position: TypeAlias = tuple[str, int]
"""Topic and partition."""

Partition: TypeAlias = tuple[str, int]
"""Topic id and partition: a topic that is deleted and made again has another id."""

Offsets: TypeAlias = Mapping[Partition, int]
"""Where reading goes on: the first offset that was not read, of each partition ever read."""


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets that a partition has: from `start`, inclusive, to `end`, exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now; one that is deleted and made again has another id."""

    name: str
    id: str
    spans: Mapping[int, Span]
    replication: int = 1


def spans_of(topics: Mapping[str, Topic]) -> dict[Position, Span]:
    """What all partitions of these topics have."""
    return {
        (name, partition): span
        for name, topic in topics.items()
        for partition, span in topic.spans.items()
    }


def is_dead_letter_topic(topic: str, broker: BrokerName | None) -> bool:
    """Whether a topic holds dead letters (of that Broker).

    The digest in the name decides, as dashes alone leave open where a name ends. A name so long
    that it was cut belongs to no Broker.
    """
    if broker is None:
        return topic.startswith(names.DEAD_LETTERS)
    prefix = f"{names.DEAD_LETTERS}{'-'.join(broker)}-"
    trigger = topic.removeprefix(prefix).rpartition("-")[0]
    return topic.startswith(prefix) and names.dead_letter_topic(*broker, trigger) == topic
