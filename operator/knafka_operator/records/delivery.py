"""Delivery: the state of a Broker that its Triggers depend on, and the running delivery of a
Trigger. Pure.

Both are kept in memory (`records.state`); the decisions about Triggers, Sensors and archives use
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from knafka.core.contract import Egress
from knafka_operator.kafka.desired import Defaults
from knafka_operator.kafka.shards import ShardPlacement
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.identity import Identity
from knafka_operator.model.isolation import Isolation
from knafka_operator.model.resources import Broker
from knafka_operator.model.topics import Topic

K = TypeVar("K")
"""The type of a connection to Kafka, which is passed on but never used here."""


@dataclass(frozen=True)
class BrokerState(Generic[K]):
    """What Triggers need to know of a Broker that has its topic."""

    broker: Broker
    topic: Topic
    """The topic as declared, but with the record size limit that it has in Kafka if that one is
    larger (`kafka.desired.with_record_limit_in_kafka`)."""
    partitions: int
    """Number of the topic's partitions in Kafka."""
    defaults: Defaults
    """The Broker's Kafka, and its values for options that a Trigger doesn't declare."""
    secret: tuple[str, str] | None
    """Name and version of the Secret that the Broker's pods mount; None: none is needed."""
    kafka: K
    """The connection to the Broker's Kafka; decisions only pass it on, so its type is open."""
    ready: str
    """Status of the Broker's `Ready` condition: True, False or Unknown."""
    why_not: str = ""
    """Reason and message of the Broker's `Ready` condition; empty if that is True."""
    oidc: bool = False
    """Whether dispatchers send tokens (`authentication-oidc`)."""


@dataclass(frozen=True)
class Watched(Generic[K]):
    """A Trigger whose events are being delivered."""

    kafka: K
    egress: Egress
    """The Trigger's entry of the contract."""
    autoscaling: Autoscaling
    partitions: int
    """Number of partitions of the topics that the Trigger reads."""
    secret: tuple[str, str] | None
    """Name and version of the Secret that the dispatcher's pods mount; None: none is needed."""
    place: ShardPlacement | None = None
    """The shard that delivers the Trigger; None: its own Service does."""

    @property
    def broker(self) -> Identity:
        """Return the Broker or channel whose events are delivered."""
        return Identity(self.egress.namespace, self.egress.broker)

    def offsets_key(self) -> tuple[str, tuple[str, ...], str]:
        """Return Kafka servers, topics and group, which identify the offsets of this delivery."""
        return offsets_key(self.egress)

    @property
    def isolation(self) -> Isolation | None:
        """The kind of dispatcher that delivers the Trigger, `own` or `shared`; None: it is
        paused."""
        if self.autoscaling.paused:
            return None
        return Isolation.OWN if self.place is None else Isolation.SHARED

    @property
    def drains_without_requests(self) -> bool:
        """Whether the Trigger's pods may drain without drain requests, as those pods of its own
        dispatcher do that min-scale keeps running."""
        return self.place is None and bool(self.autoscaling.min_scale)


def offsets_key(egress: Egress) -> tuple[str, tuple[str, ...], str]:
    """Return Kafka servers, topics and group, which identify an Egress's offsets."""
    return egress.kafka.bootstrap_servers, egress.topics, egress.group
