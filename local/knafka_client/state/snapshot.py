"""A snapshot: the state of Kafka, Brokers and Triggers at one moment, to be shown.

For `knafka up`, `knafka_local.cluster.observing` takes it. Why an object isn't Ready is the text of
its condition: `Reason: message`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ConditionRow:
    """A condition in an object's status, with Kubernetes' fields but without the time."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    severity: str = ""


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """The state of one Broker or KafkaChannel."""

    name: str
    """`namespace/name`."""
    url: str = ""
    """Where it takes events; empty while it isn't Ready."""
    accepted: int = 0
    """Events accepted since the start."""
    rejected: int = 0
    """Requests answered with an error since the start."""
    refused: str = ""
    """Why it isn't Ready; empty if it is."""
    conditions: tuple[ConditionRow, ...] = ()
    observed_generation: int = 0
    """The generation that the conditions describe: 1 at first, and 1 more for each change of the
    spec."""
    kind: Literal["Broker", "KafkaChannel"] = "Broker"


@dataclass(frozen=True, slots=True)
class TriggerRow:
    """The state of one Trigger, Subscription or Sensor.

    `read` to `dead_lettered` count events since the start; `delivered` of a Sensor counts how often
    it fired.
    """

    name: str
    """`namespace/name`."""
    broker: str = ""
    """The name of its Broker or KafkaChannel."""
    lag: int | None = None
    """Number of events that wait; None if not known."""
    replicas: int = 0
    """Number of dispatchers that run."""
    most_replicas: int = 0
    """Largest number of dispatchers that may run at once; 0 if not known."""
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
    """Why it isn't Ready; empty if it is."""
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
    """Kafka's address; for `knafka up`, `(up)`, `(down)` or `(not ours)` follows it."""
    brokers: tuple[BrokerRow, ...] = ()
    """Brokers, then KafkaChannels."""
    triggers: tuple[TriggerRow, ...] = ()
    """Triggers, then Subscriptions."""
    problems: tuple[str, ...] = ()
    """Problems with the manifest files, and with programs that can't run."""
    sensors: tuple[TriggerRow, ...] = ()
    """Sensors, in rows of the same form as Triggers."""
