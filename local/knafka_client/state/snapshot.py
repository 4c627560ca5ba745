"""A snapshot: how everything stands at one moment, to be shown (`observing` takes it).

What isn't Ready says so in the words of its conditions, as `kubectl` shows them: `Reason: message`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ConditionRow:
    """One condition, as `kubectl` shows it, but for its time."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    severity: str = ""


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """One Broker or KafkaChannel; `refused` says why it isn't Ready."""

    name: str
    url: str = ""
    accepted: int = 0
    rejected: int = 0
    refused: str = ""
    conditions: tuple[ConditionRow, ...] = ()
    observed_generation: int = 0
    """What its conditions are about: 1 as it was declared first, and 1 more for each change."""
    kind: Literal["Broker", "KafkaChannel"] = "Broker"


@dataclass(frozen=True, slots=True)
class TriggerRow:
    """One Trigger, Subscription or Sensor; `refused` says why it isn't Ready. Counts are since the
    start; what a Sensor has delivered is what it has fired."""

    name: str
    broker: str = ""
    """The name of its Broker or KafkaChannel."""
    lag: int | None = None
    replicas: int = 0
    most_replicas: int = 0
    read: int = 0
    filtered: int = 0
    delivered: int = 0
    retried: int = 0
    dead_lettered: int = 0
    decision: str = ""
    """The scaler's last, with its reason."""
    error: str = ""
    paused: bool = False
    refused: str = ""
    conditions: tuple[ConditionRow, ...] = ()
    observed_generation: int = 0
    """What its conditions are about: 1 as it was declared first, and 1 more for each change."""
    kind: Literal["Trigger", "Subscription", "Sensor"] = "Trigger"
    waiting: tuple[str, ...] = ()
    """Of a Sensor: what its triggers hold and wait for, a line each."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of Kafka, Brokers, Triggers and Sensors at one moment."""

    kafka: str
    brokers: tuple[BrokerRow, ...] = ()
    """Then KafkaChannels."""
    triggers: tuple[TriggerRow, ...] = ()
    """Then Subscriptions."""
    problems: tuple[str, ...] = ()
    """What in the files can't be used, and what else can't run."""
    sensors: tuple[TriggerRow, ...] = ()
