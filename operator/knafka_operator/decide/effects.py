"""Effects: what reconciling does, as values; `reconcile` runs them in the order of the list.

The order is the promise that no event is missed, so it is data: `BROKER_ORDER`, `CHANNEL_ORDER`,
`TRIGGER_ORDER` and `SENSOR_ORDER` are the orders that every list of `decide` keeps, and tests read
them. A list is run until one effect fails, which is a condition then; the status is written
whatever happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from knafka.core.contract import Ingress, SharedEgress
from knafka.core.sensor.contract import Sensor
from knafka.ports.log import Start
from knafka_operator.decide.desired import Topic
from knafka_operator.model.autoscaling import Autoscaling

Manifest: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StopReceiver:
    """Accept nothing any more: the external topic isn't allowed. What is in Kafka stays."""

    why: str


@dataclass(frozen=True, slots=True)
class ProjectSecret:
    """Copy the installation's Secret beside the Broker."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class RecordTopic:
    """Write the topic's name into the status, with an empty id: it is about to be made."""

    topic: str


@dataclass(frozen=True, slots=True)
class CreateTopic:
    topic: Topic


@dataclass(frozen=True, slots=True)
class ApplyReceiver:
    """Have the receiver's Service applied, and Ready."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class RecordContract:
    """Say in a Broker's status which topic may have its entry."""

    topic: str


@dataclass(frozen=True, slots=True)
class WriteIngress:
    """Have the Broker or channel in the contract that its receiver follows."""

    path: str
    ingress: Ingress


@dataclass(frozen=True, slots=True)
class AwaitReceivers:
    """Wait until every replica of that receiver has read what was written."""

    receiver: str


@dataclass(frozen=True, slots=True)
class ApplyRoute:
    """Have the channel's own host lead to the receiver."""

    manifests: tuple[Manifest, ...]


@dataclass(frozen=True, slots=True)
class ProbeReceiver:
    """Ask the address for an answer, once for each Revision of a Broker's receiver, or once for the
    address of a channel."""

    url: str
    revision: str


@dataclass(frozen=True, slots=True)
class PublishStatus:
    """Write what has changed of the status, the Broker's address among it."""

    patch: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StopDelivery:
    """Deliver nothing for now; done when its drains are over."""


@dataclass(frozen=True, slots=True)
class DeleteFunctions:
    """Leave no function that somebody else could have deliver; its group stays."""


@dataclass(frozen=True, slots=True)
class ClaimGroup:
    """Have no other Trigger get this group's name."""

    group: str


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Nobody was promised anything yet: what a namesake left behind isn't this Trigger's."""

    group: str


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Commit where the group begins: from here on no event may be missed."""

    group: str
    topic: str
    start: Start = "latest"


@dataclass(frozen=True, slots=True)
class PromiseGroup:
    """Write the group into the status, with the dead-letter topic: from here on its offsets count.

    An operator that dies after that finds the promise, and neither deletes nor writes them again.
    """

    group: str
    dead_letter_topic: str
    dispatcher: str | None = None
    """The Service that will deliver, which is written down before it is made; None: another one
    is still to be deleted, and stays written down until then."""


@dataclass(frozen=True, slots=True)
class CreateContract:
    """Have the topic that the Broker's shared dispatchers follow; its status says so before."""

    topic: Topic


@dataclass(frozen=True, slots=True)
class ApplyDispatcher:
    """Have the dispatcher's Service applied, and Ready: what was delivered goes on until then."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class ApplyShard:
    """Have a shared dispatcher's Service applied, once for all its Triggers, and Ready."""

    number: int
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class WakeDispatcher:
    """Have a pod of its own run, so that what takes over need not start first."""

    url: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """Have what delivered until now let go, since what takes over is Ready."""


@dataclass(frozen=True, slots=True)
class WriteContract:
    """From here on its shard delivers it, and by this."""

    group: str
    shared: SharedEgress


@dataclass(frozen=True, slots=True)
class StartDelivery:
    """Hold drains as decided; done when drains of what was before are over."""

    watched: Any
    """What is delivered then: a `decide.trigger.Watched`."""
    replaces: bool
    """Whether pods of what was before may still drain unasked."""


@dataclass(frozen=True, slots=True)
class DeleteDispatcher:
    """Delete the Service of its own: `instead` delivers."""

    service: str
    instead: str


@dataclass(frozen=True, slots=True)
class AwaitShard:
    """Wait until every process of the shard delivers by the contract as it was written."""

    shard: str


@dataclass(frozen=True, slots=True)
class RecordReceivers:
    """Say in a channel's status which receivers may have an entry of it."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeaveReceivers:
    """Have these receivers accept nothing for a channel that another one serves now."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AwaitReplacement:
    """Wait until no pod of an older Revision drains unasked."""

    service: str


@dataclass(frozen=True, slots=True)
class RecordTopics:
    """Write a Sensor's topics and its group into the status, without ids: they are about to be
    made."""

    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PromiseSensor:
    """Write a Sensor's bus into the status, and the ids of its topics: from here on the offsets of
    its group count, and are never written again."""

    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ApplyFunction:
    """Have a Sensor's Service applied, and Ready."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class ScaleSensor:
    """Have a Sensor woken by drains."""

    sensor: Sensor
    autoscaling: Autoscaling


@dataclass(frozen=True, slots=True)
class ApplyTriggers:
    """Have the Triggers that deliver what a Sensor has fired."""

    manifests: tuple[Manifest, ...]


@dataclass(frozen=True, slots=True)
class DeleteTriggers:
    """Delete a Sensor's Triggers that nothing declares any more."""

    names: tuple[str, ...]


Effect: TypeAlias = (
    StopReceiver
    | ProjectSecret
    | RecordTopic
    | CreateTopic
    | RecordContract
    | ApplyReceiver
    | RecordReceivers
    | WriteIngress
    | LeaveReceivers
    | AwaitReceivers
    | ApplyRoute
    | ProbeReceiver
    | PublishStatus
    | StopDelivery
    | DeleteFunctions
    | ClaimGroup
    | DeleteGroup
    | CommitOffsets
    | PromiseGroup
    | CreateContract
    | ApplyDispatcher
    | ApplyShard
    | WakeDispatcher
    | HandOver
    | WriteContract
    | StartDelivery
    | DeleteDispatcher
    | AwaitShard
    | AwaitReplacement
    | RecordTopics
    | PromiseSensor
    | ApplyFunction
    | ScaleSensor
    | ApplyTriggers
    | DeleteTriggers
)

BROKER_ORDER: Final = (
    StopReceiver,  # before anything that can fail: what it may not use it doesn't keep by that
    ProjectSecret,
    RecordTopic,  # before the topic, so that an operator that dies between them knows it again
    CreateTopic,  # before the entry: a receiver accepts what it can store only
    RecordContract,  # before the entry: a deletion finds it
    WriteIngress,  # before the receiver, which is Ready once it has read everything
    ApplyReceiver,
    AwaitReceivers,
    ProbeReceiver,  # before the status: Ready isn't written before the address answers
    PublishStatus,
)
CHANNEL_ORDER: Final = (
    RecordTopic,
    CreateTopic,
    ApplyReceiver,
    RecordReceivers,  # before the entry: a deletion finds every entry
    WriteIngress,  # before its address leads anywhere: Ready is never answered 404
    AwaitReceivers,
    ApplyRoute,
    ProbeReceiver,
    LeaveReceivers,  # after its address leads to the new one, and before the status forgets them
    PublishStatus,
)
TRIGGER_ORDER: Final = (
    StopDelivery,  # before other offsets are committed: a group with members doesn't take them
    DeleteFunctions,
    ClaimGroup,
    DeleteGroup,
    CommitOffsets,  # before the function, and before Ready: later events are the group's
    PromiseGroup,  # after the offsets, and before a function that could join the group unasked
    CreateContract,
    ApplyDispatcher,
    ApplyShard,
    WakeDispatcher,
    HandOver,  # after what takes over is Ready: whatever can't start stops nobody
    WriteContract,  # after its own drains are over, and the tombstone before its own begin
    StartDelivery,
    DeleteDispatcher,  # last of a move: one that goes back finds it
    AwaitShard,
    AwaitReplacement,
    PublishStatus,
)
SENSOR_ORDER: Final = (
    DeleteFunctions,  # before other offsets are committed, and while it may not read its bus
    RecordTopics,  # before the topics, so that an operator that dies between them knows them again
    CreateTopic,
    CommitOffsets,  # before the function, and before Ready: later events are the group's
    PromiseSensor,  # after the offsets, and before a function that could join the group
    ApplyFunction,
    ScaleSensor,  # once it is Ready: until then the Revision before goes on with its drains
    ApplyTriggers,
    DeleteTriggers,
    PublishStatus,
)
