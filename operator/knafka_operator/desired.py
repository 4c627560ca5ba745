"""Desired: from declared documents to the contract and the topics; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from knafka.core.contract import BackoffPolicy, Delivery, Egress, Ingress, Kafka, Sink
from knafka_operator.resources import Broker, ConfigMap, Destination, Trigger

MAX_REPLICATION = 32_767


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds where nothing is declared."""

    kafka: Kafka
    partitions: int = 10
    replication: int = 3
    max_replication: int = MAX_REPLICATION
    """No topic gets more copies, whatever is declared: there are no more Kafka nodes."""
    topic_config: Mapping[str, str] = field(default_factory=dict)
    delivery: Delivery = Delivery(
        retry=10, backoff_policy=BackoffPolicy.EXPONENTIAL, backoff_delay=0.2
    )


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it should be."""

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str] = field(default_factory=dict)
    external: bool = False
    """Somebody else's: used, never created, changed or deleted."""


def config_reference(broker: Broker) -> tuple[str, str] | None:
    """Namespace and name of the Broker's ConfigMap; None if it declares none."""
    raise NotImplementedError


def configured(config: ConfigMap | None, defaults: Defaults) -> Defaults:
    """The defaults with a Broker's ConfigMap over them, `bootstrap.servers` included."""
    raise NotImplementedError


def broker_topic(broker: Broker, config: ConfigMap | None, defaults: Defaults) -> Topic:
    raise NotImplementedError


def ingress(broker: Broker, topic: Topic, defaults: Defaults) -> Ingress:
    raise NotImplementedError


def egress(
    trigger: Trigger,
    broker: Broker,
    topic: Topic,
    subscriber: Sink,
    dead_letter_sink: Sink | None,
    defaults: Defaults,
) -> Egress:
    raise NotImplementedError


def dead_letter_destination(trigger: Trigger, broker: Broker) -> Destination | None:
    raise NotImplementedError


def dead_letter_topic(egress: Egress, topic: Topic) -> Topic:
    raise NotImplementedError
