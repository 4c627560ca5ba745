"""Effects: the actions that a decision asks for, as values; `engine.effects` runs them.

An effect is one action, such as applying a manifest, writing an annotation, or deleting a group.
Its step names its purpose, and determines its place in the order of its kind (`steps`). Effects run
until one fails, which becomes a condition; the status is written in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

from knafka.core.contract import Ingress, SharedEgress
from knafka.ports.log import Start
from knafka_operator.decisions.steps import Step
from knafka_operator.model.identity import Identity
from knafka_operator.model.topics import Topic

Manifest: TypeAlias = Mapping[str, Any]
"""An object to apply or create, as decoded JSON."""


class ObjectName(NamedTuple):
    """apiVersion, kind, namespace and name of an object in the cluster."""

    api_version: str
    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reasons and texts of the condition for an object that can't be applied."""

    owner: str
    """The owner of the applied object, in words: `this Sensor`."""
    not_ours: str
    """Reason if the name belongs to an object that Knafka didn't create; empty: that isn't
    checked."""
    rejected: str
    """Reason if the API server refuses the object."""
    kind: str | None = None
    """The only kind whose objects are checked for another owner; None: all are."""


# In the cluster.


@dataclass(frozen=True, slots=True)
class Annotate:
    """Write these annotations into the object's status."""

    step: Step
    annotations: Mapping[str, str]
    """New values by key."""
    at_once: bool = True
    """Whether the annotations are written before the next effect; False: together with the rest of
    the status."""


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Merge a patch into the object's status; an empty patch writes nothing."""

    step: Step
    patch: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply these manifests; the result is the list of stored objects."""

    step: Step
    manifests: tuple[Manifest, ...]
    refusal: Refusal | None = None
    """How to report an existing object of another owner, or a refusal by the API server. None:
    owners aren't checked, and a refusal fails the reconciliation."""


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object, unless one of its name exists."""

    step: Step
    manifest: Manifest
    refusal: Refusal | None = None
    """How to report an existing object of another owner, or a refusal by the API server. None: any
    existing object is accepted, and a refusal fails the reconciliation."""
    label: str = ""
    """Name of a label by which an existing object is accepted: its value must be the manifest's.
    Required if there is a `refusal`."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete these objects, if they exist."""

    step: Step
    objects: tuple[ObjectName, ...]
    owned: bool = False
    """Whether only objects that the reconciled object owns are deleted."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the status that later decisions count as written once the objects are
    deleted."""


@dataclass(frozen=True, slots=True)
class ApplyService:
    """Apply a function's Knative Service; the result is its Revision once that is Ready."""

    step: Step
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class AwaitReplacement:
    """Wait until no pod of an older Revision drains without requests."""

    step: ClassVar = Step.AWAIT_REPLACEMENT
    namespace: str
    service: str
    """Name of the dispatcher's Knative Service."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Send a request to an address until it answers: once for each Revision of a Broker's receiver,
    or once for a channel's address."""

    step: ClassVar = Step.PROBE_RECEIVER
    url: str
    answers_for: str
    """The Revision or address to record once the probe has been answered."""


class ProbeDirect(Probe):
    """Probe a channel's receiver past Knative's proxy, before the channel's host leads there."""

    step: ClassVar = Step.PROBE_DIRECT


@dataclass(frozen=True, slots=True)
class Wake:
    """Start a pod of the dispatcher at this address."""

    step: ClassVar = Step.WAKE_DISPATCHER
    url: str


# In Kafka.


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create a topic and write its id into the status at once, since events may arrive from then on
    and the name alone proves no ownership. The result is the topic as Kafka describes it."""

    step: ClassVar = Step.CREATE_TOPIC
    topic: Topic
    name_key: str = ""
    """Key of `status.annotations` for the topic's name."""
    id_key: str = ""
    """Key of `status.annotations` for the topic's id."""
    accepts_records: bool = False
    """Whether an existing topic may have records."""


@dataclass(frozen=True, slots=True)
class ClaimGroup:
    """Reserve a consumer group's name for this Trigger."""

    step: ClassVar = Step.CLAIM_GROUP
    group: str


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Delete a consumer group with its offsets."""

    step: ClassVar = Step.DELETE_GROUP
    group: str


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Commit where a group begins in a topic, unless it has offsets there."""

    step: ClassVar = Step.COMMIT_OFFSETS
    group: str
    topic: str
    start: Start = "latest"
    """Where delivery begins: `earliest`, `latest` (the present end), or a time in milliseconds
    since 1970."""


# At receivers, which follow a contract's topic.


@dataclass(frozen=True, slots=True)
class ApplyReceiver:
    """Create a contract's topic, and apply the Service of the receiver that channels share; the
    result is its Revision once that is Ready."""

    step: ClassVar = Step.APPLY_RECEIVER
    receiver: Identity
    """Namespace and name of the receiver's Knative Service."""
    contract: Topic
    """The receiver's contract topic."""
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class WriteIngress:
    """Create a contract's topic and write the entry of a Broker or channel to it."""

    step: ClassVar = Step.WRITE_INGRESS
    receiver: Identity
    """Namespace and name of the receiver's Knative Service."""
    contract: Topic
    """The receiver's contract topic."""
    path: str
    """The path of the Broker or channel at the receiver, which is the key of its entry."""
    ingress: Ingress


@dataclass(frozen=True, slots=True)
class AwaitReceivers:
    """Wait until every replica of a receiver has read the last write of a path."""

    step: ClassVar = Step.AWAIT_RECEIVERS
    receiver: Identity
    """Namespace and name of the receiver's Knative Service."""
    contract: str
    """Name of the receiver's contract topic."""
    path: str
    """The path of the Broker or channel at the receiver, which is the key of its entry."""


@dataclass(frozen=True, slots=True)
class LeaveReceivers:
    """Remove a channel's entry from its former receivers, by name. The receiver `stays`, which
    serves the channel now, keeps the entry."""

    step: ClassVar = Step.LEAVE_RECEIVERS
    names: tuple[str, ...]
    stays: str


# At dispatchers, and at Sensors' functions.


@dataclass(frozen=True, slots=True)
class CreateContract:
    """Create the contract topic that the Broker's shared dispatchers follow."""

    step: ClassVar = Step.CREATE_CONTRACT
    topic: Topic


@dataclass(frozen=True, slots=True)
class WriteContract:
    """Write a Trigger's record to the contract topic of its Broker's shared dispatchers."""

    step: ClassVar = Step.WRITE_CONTRACT
    group: str
    """The Trigger's consumer group, the key of the record."""
    shared: SharedEgress


@dataclass(frozen=True, slots=True)
class ApplyShard:
    """Apply a shared dispatcher's Service, once for all its Triggers, and check that it is
    Ready."""

    step: ClassVar = Step.APPLY_SHARD
    number: int
    """The shard's number, unique among its Broker's."""
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class AwaitShard:
    """Wait until every process of the shard delivers by the written contract."""

    step: ClassVar = Step.AWAIT_SHARD
    shard: str
    """The name by which the scaler knows the shard (`Shard.group`)."""


@dataclass(frozen=True, slots=True)
class StartDelivery:
    """Start the decided drains, after the previous drains have ended."""

    step: ClassVar = Step.START_DELIVERY
    watched: Any
    """The delivery to start: `records.delivery.Watched` or `sensors.decide.WatchedSensor`."""
    replaces: bool = False
    """Whether pods of the previous delivery may still deliver."""


@dataclass(frozen=True, slots=True)
class StopDelivery:
    """End the object's drains and remove the object from its shard; done when the drains have
    ended."""

    step: Step = Step.STOP_DELIVERY
    """Why the delivery ends: `STOP_DELIVERY`, or `HAND_OVER` if another dispatcher takes over."""


EffectInKafka: TypeAlias = (
    CreateTopic
    | ClaimGroup
    | DeleteGroup
    | CommitOffsets
    | ApplyReceiver
    | WriteIngress
    | AwaitReceivers
    | CreateContract
    | WriteContract
    | ApplyShard
    | AwaitShard
)
"""Effects that need the object's Kafka."""
Effect: TypeAlias = (
    Annotate
    | WriteStatus
    | Apply
    | Create
    | Delete
    | ApplyService
    | AwaitReplacement
    | Probe
    | Wake
    | LeaveReceivers
    | StartDelivery
    | StopDelivery
    | EffectInKafka
)
