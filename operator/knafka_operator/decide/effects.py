"""Effects: what reconciling does, as values; `reconcile.effects` runs them, of whichever kind.

An effect is what it is: a manifest is applied, an annotation written, a group deleted. What it is
for is its step, a place in the order of its kind (`steps`). A list is run until one effect fails,
which is a condition then; the status is written whatever happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

from knafka.core.contract import Ingress, SharedEgress
from knafka.ports.log import Start
from knafka_operator.decide.desired import Topic
from knafka_operator.decide.steps import Step
from knafka_operator.model.identity import Identity

Manifest: TypeAlias = Mapping[str, Any]


class ObjectName(NamedTuple):
    """An object in the cluster."""

    api_version: str
    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """What is said where an object can't be applied."""

    owner: str
    """Whose it would be: `this Sensor`."""
    not_ours: str
    """The reason where somebody else made an object of that name; empty: that is nobody's."""
    rejected: str
    """The reason where the API server takes it from nobody like us; empty: that isn't said."""
    kind: str | None = None
    """Objects of this kind alone may be somebody else's; None: all."""


# In the cluster.


@dataclass(frozen=True, slots=True)
class Annotate:
    """Write these annotations into the object's status."""

    step: Step
    annotations: Mapping[str, str]
    at_once: bool = True
    """False: they stand there, or may be written with the rest of the status."""


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Merge this into the object's status; nothing is written if it is empty."""

    step: Step
    patch: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Apply:
    """Have these objects as declared; gives them as they are stored then."""

    step: Step
    manifests: tuple[Manifest, ...]
    refusal: Refusal | None = None
    """None: whosever they are, and an error is nobody's but the operator's."""


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object, unless there is one of its name."""

    step: Step
    manifest: Manifest
    refusal: Refusal | None = None
    label: str = ""
    """One that is there is ours if it has the manifest's value of this label; empty: whatever it
    has."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Have none of these objects."""

    step: Step
    objects: tuple[ObjectName, ...]
    owned: bool = False
    """Only those that belong to the object that is reconciled."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """What its status says from then on."""


@dataclass(frozen=True, slots=True)
class ApplyService:
    """Have a function's Knative Service applied, and Ready; gives its Revision."""

    step: Step
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class AwaitReplacement:
    """Wait until no pod of an older Revision drains unasked."""

    step: ClassVar = Step.AWAIT_REPLACEMENT
    namespace: str
    service: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask an address for an answer, once for each Revision of a Broker's receiver, or once for the
    address of a channel."""

    step: ClassVar = Step.PROBE_RECEIVER
    url: str
    answers_for: str
    """That Revision, or the address."""


class ProbeDirect(Probe):
    """The same of a channel's receiver past Knative's proxy, before its host leads there."""

    step: ClassVar = Step.PROBE_DIRECT


@dataclass(frozen=True, slots=True)
class Wake:
    """Have a pod of the dispatcher at this address run."""

    step: ClassVar = Step.WAKE_DISPATCHER
    url: str


# In Kafka.


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Have a topic, and write its id into the status at once: there may be events from then on, and
    the name alone proves nothing. Gives the topic as Kafka has it."""

    step: ClassVar = Step.CREATE_TOPIC
    topic: Topic
    name_key: str = ""
    id_key: str = ""
    """Keys of `status.annotations` for the topic's name and its id."""
    may_be_used: bool = False
    """Whether one that is there may have records."""


@dataclass(frozen=True, slots=True)
class ClaimGroup:
    """Have no other Trigger get this group's name."""

    step: ClassVar = Step.CLAIM_GROUP
    group: str


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    step: ClassVar = Step.DELETE_GROUP
    group: str


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Commit where a group begins in a topic, unless it has offsets there."""

    step: ClassVar = Step.COMMIT_OFFSETS
    group: str
    topic: str
    start: Start = "latest"


# At receivers, which follow a contract's topic.


@dataclass(frozen=True, slots=True)
class ApplyReceiver:
    """Have a contract's topic, and the Service of the receiver that channels share, once for all of
    them, and Ready; gives its Revision."""

    step: ClassVar = Step.APPLY_RECEIVER
    receiver: Identity
    contract: Topic
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class WriteIngress:
    """Have a contract's topic, and in it the entry of a Broker or channel."""

    step: ClassVar = Step.WRITE_INGRESS
    receiver: Identity
    contract: Topic
    path: str
    ingress: Ingress


@dataclass(frozen=True, slots=True)
class AwaitReceivers:
    """Wait until every replica of a receiver has read what was written at a path."""

    step: ClassVar = Step.AWAIT_RECEIVERS
    receiver: Identity
    contract: str
    """The topic's name."""
    path: str


@dataclass(frozen=True, slots=True)
class LeaveReceivers:
    """Have these receivers accept nothing for a channel; `stays` is the one that serves it."""

    step: ClassVar = Step.LEAVE_RECEIVERS
    names: tuple[str, ...]
    stays: str


# At dispatchers, and at Sensors' functions.


@dataclass(frozen=True, slots=True)
class CreateContract:
    """Have the topic that the Broker's shared dispatchers follow."""

    step: ClassVar = Step.CREATE_CONTRACT
    topic: Topic


@dataclass(frozen=True, slots=True)
class WriteContract:
    """Have a Trigger's record in that topic."""

    step: ClassVar = Step.WRITE_CONTRACT
    group: str
    shared: SharedEgress


@dataclass(frozen=True, slots=True)
class ApplyShard:
    """Have a shared dispatcher's Service applied, once for all its Triggers, and Ready."""

    step: ClassVar = Step.APPLY_SHARD
    number: int
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class AwaitShard:
    """Wait until every process of the shard delivers by the contract as it was written."""

    step: ClassVar = Step.AWAIT_SHARD
    shard: str


@dataclass(frozen=True, slots=True)
class StartDelivery:
    """Hold drains as decided; done when drains of what was before are over."""

    step: ClassVar = Step.START_DELIVERY
    watched: Any
    """What is delivered then: `decide.trigger.Watched`, or `decide.sensor.WatchedSensor`."""
    replaces: bool = False
    """Whether pods of what was before may still drain unasked."""


@dataclass(frozen=True, slots=True)
class StopDelivery:
    """Hold no drains, and have no shard deliver; done when its drains are over."""

    step: Step = Step.STOP_DELIVERY


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
"""What an object needs its Kafka for."""
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
