"""Topics: what a topic should be like in Kafka, and why an object can't have its topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from knafka.core.errors import KnafkaError

REPLICATION_KEY: Final = "default.topic.replication.factor"
"""Key of a ConfigMap that declares the number of replicas."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A declared topic: what it should be like in Kafka."""

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str] = field(default_factory=dict)
    external: bool = False
    """Whether somebody else made the topic. It is used, but never created, changed or deleted, and
    its partitions and replicas aren't known here."""
    replication_key: str = REPLICATION_KEY
    """Name of the field that declares the replication, for error messages."""
    fewer: Topic | None = None
    """The same topic with fewer replicas, if Kafka may have too few brokers; None: it must be
    so."""


class TopicRefused(KnafkaError):
    """The error if an object can't have its topic, with a reason in one CamelCase word."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
