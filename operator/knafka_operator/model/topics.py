"""Topics: the desired state of a topic in Kafka, and the error of an object that can't have its
topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from knafka.core.errors import KnafkaError

REPLICATION_KEY: Final = "default.topic.replication.factor"
"""Key of a ConfigMap that declares the number of replicas."""


@dataclass(frozen=True, slots=True)
class Topic:
    """The desired state of a topic in Kafka."""

    name: str
    partitions: int
    replication: int
    """Number of replicas."""
    config: Mapping[str, str] = field(default_factory=dict)
    """Its settings in Kafka, such as `retention.ms`."""
    external: bool = False
    """Whether somebody else made the topic. It is used, but never created, changed or deleted, and
    its partitions and replicas aren't known here."""
    replication_key: str = REPLICATION_KEY
    """Name of the field that declares the replication, for error messages."""
    with_fewer_replicas: Topic | None = None
    """The same topic with fewer replicas, created instead if Kafka has too few brokers; None: in
    that case no topic is created."""


class TopicRefused(KnafkaError):
    """An object can't have its topic. `reason` is one CamelCase word, for the object's
    condition."""

    def __init__(self, reason: str, message: str) -> None:
        """`message` says why, for users."""
        super().__init__(message)
        self.reason = reason
