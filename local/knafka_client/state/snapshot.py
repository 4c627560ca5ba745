"""A snapshot: the state of Kafka, Brokers and Triggers at one moment, to be shown.

`observing` takes it. Why an object isn't Ready is the text of its condition: `Reason: message`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ConditionRow:
    """A condition of an object, without its time."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    severity: str = ""


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """The state of one Broker or KafkaChannel; `refused` says why it isn't Ready, or is empty."""

    name: str
    url: str = ""
    accepted: int = 0
    rejected: int = 0
    refused: str = ""
    conditions: tuple[ConditionRow, ...] = ()
    observed_generation: int = 0
    """The generation that the conditions describe: 1 at first, and 1 more for each change of the
    spec."""
    kind: Literal["Broker", "KafkaChannel"] = "Broker"


@dataclass(frozen=True, slots=True)
class TriggerRow:
    """The state of one Trigger, Subscription or Sensor; `refused` says why it isn't Ready, or is
    empty.

    Counts are since the start; `delivered` of a Sensor counts its firings.
    """

    name: str
    broker: str = ""
    """The name of its Broker or KafkaChannel."""
    lag: int | None = None
    """Number of events that wait; None if not known."""
    replicas: int = 0
    most_replicas: int = 0
    read: int = 0
    filtered: int = 0
    delivered: int = 0
    retried: int = 0
    dead_lettered: int = 0
    decision: str = ""
    """The scaler's last decision, with its reason."""
    error: str = ""
    """A warning about deliveries; empty if there is none."""
    paused: bool = False
    refused: str = ""
    conditions: tuple[ConditionRow, ...] = ()
    observed_generation: int = 0
    """The generation that the conditions describe: 1 at first, and 1 more for each change of the
    spec."""
    kind: Literal["Trigger", "Subscription", "Sensor"] = "Trigger"
    waiting: tuple[str, ...] = ()
    """What a Sensor's triggers hold and wait for, one line each."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of Kafka, Brokers, Triggers and Sensors at one moment."""

    kafka: str
    brokers: tuple[BrokerRow, ...] = ()
    """Brokers, then KafkaChannels."""
    triggers: tuple[TriggerRow, ...] = ()
    """Triggers, then Subscriptions."""
    problems: tuple[str, ...] = ()
    """Problems with the manifest files, and with programs that can't run."""
    sensors: tuple[TriggerRow, ...] = ()
