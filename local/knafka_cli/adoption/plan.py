"""Plan: steps by which Knafka adopts an object from eventing-kafka-broker, or releases it. Pure.

    adopt     write topics and groups into statuses -> remove eventing-kafka-broker's finalizers
              -> the operator takes the object
    release   replace our finalizer by eventing-kafka-broker's -> the operator stops serving it

The finalizer on a Broker, KafkaChannel or KafkaSource says which implementation owns it, so one
write changes the owner. Each step can be repeated. After each step at most one implementation
serves the object; if none does, its events wait in Kafka.

Not here: which steps (`broker_plan`, `channel_plan`, `source_plan`), reading objects (`looking`),
writing them (`cluster`), and what the operator does (`knafka_operator`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from knafka.ports.log import TopicDescription
from knafka_operator.channels.observed import RECEIVERS
from knafka_operator.installation.naming import NameKind
from knafka_operator.model.channels import KAFKA_CHANNEL
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import FINALIZER, TOPIC_STATUS, finalizers_of

Document = Mapping[str, Any]

PEER: Final = "eventing-kafka-broker"
"""The other implementation, in texts for users."""
OWN_ANNOTATION_PREFIX: Final = "knafka.dev/"
"""Prefix of the status annotations of Knafka's operator."""
START_PEER: Final = (
    f"then start {PEER}: kubectl -n knative-eventing scale deployment kafka-controller --replicas=1"
)
"""A sentence for users: what to do after a release."""
RELEASE_DIFFERENCES: Final = (
    f"{PEER} delivers some events again: those that Knafka delivered while an earlier event of "
    "their partition was still being retried, as its commits have one offset for each partition",
    "dead letters stay in Kafka, in the topics knafka-dead-letters-*",
)
"""Sentences for users: how eventing-kafka-broker serves a released object differently."""

Workload: TypeAlias = tuple[str, str, str]
"""Kind, namespace and name of a Deployment or StatefulSet."""


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """The state in Kafka of a Trigger's, Subscription's or KafkaSource's consumer group."""

    members: Sequence[str] = ()
    """Client ids of the group's members."""
    waiting: int = 0
    """The group's lag: number of events after its offsets."""
    uncommitted: Sequence[int] = ()
    """Partitions without a committed offset: they would be read from their beginning."""


@dataclass(frozen=True, slots=True)
class WriteAnnotations:
    """A step: write annotations into an object's status."""

    kind: str
    identity: Identity
    annotations: Mapping[str, str]
    """The annotations to write; others stay."""
    clears: Sequence[str] = ()
    """Names of lists in the status that are emptied, since eventing-kafka-broker wrote them."""

    def __str__(self) -> str:
        """Return the step as text for users."""
        written = ", ".join(f"{key}: {value}" for key, value in self.annotations.items())
        text = f"write into the status of {self.kind} {self.identity}: {written}"
        return text if not self.clears else f"{text}; and empty its {', '.join(self.clears)}"


@dataclass(frozen=True, slots=True)
class SetFinalizers:
    """A step: change an object's finalizers, and thereby the implementation that owns it."""

    kind: str
    identity: Identity
    drop: Sequence[str] = ()
    """The finalizers to remove; others stay."""
    add: Sequence[str] = ()
    """The finalizers to add."""

    def __str__(self) -> str:
        """Return the step as text for users: `take FINALIZER off Broker shop/default`."""
        parts = [f"take {name} off" for name in self.drop] + [f"put {name} on" for name in self.add]
        return f"{', and '.join(parts)} {self.kind} {self.identity}"


Step = WriteAnnotations | SetFinalizers


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan to adopt or release an object. All its texts are sentences for users."""

    about: str
    """Which object the plan is about, and its old and new owner."""
    stays: Sequence[str] = ()
    """The topics and groups that stay as they are."""
    differs: Sequence[str] = ()
    """How the new owner serves the object differently."""
    problems: Sequence[str] = ()
    """What the user must change first."""
    waits: Sequence[str] = ()
    """What must end before the steps, and ends by itself, such as a group's members."""
    steps: Sequence[Step] = ()
    """The steps, in order."""
    then: Sequence[str] = ()
    """What the operator and the user do after the steps."""

    @property
    def can_be_carried_out(self) -> bool:
        """Whether nothing is in the way of the steps: there are no problems and no waits."""
        return not self.problems and not self.waits

    @property
    def text(self) -> str:
        """The plan as text for users, in sections."""
        parts = [self.about]
        sections = {
            "what stays": self.stays,
            "what is different": self.differs,
            "what is in the way": [*self.problems, *self.waits],
            "what is done": [f"{number}. {step}" for number, step in enumerate(self.steps, 1)],
            "what follows": self.then,
        }
        for title, lines in sections.items():
            if lines:
                parts += ["", title, *(f"  {line}" for line in lines)]
        return "\n".join(parts)


def find_not_released(documents: Sequence[Document]) -> str | None:
    """Return a text with the kind and name of each of these objects that Knafka's operator still
    serves; None: it serves none of them any more."""
    not_released = []
    for document in documents:
        prefix = _prefix_cleared_by_release(document)
        has_annotation = any(key.startswith(prefix) for key in status_annotations_of(document))
        if has_annotation or FINALIZER in finalizers_of(document):
            not_released.append(f"{document['kind']} {Identity.of(document)}")
    return ", ".join(not_released) or None


def _prefix_cleared_by_release(document: Document) -> str:
    """Return the prefix of the status annotations that the operator removes when it releases an
    object: as long as one is there, the operator still serves the object.

    On a channel only the annotation `RECEIVERS` is such a sign. If the operator never served the
    channel, nobody removes the other annotations, which `knafka adopt` wrote.
    """
    return RECEIVERS if document["kind"] == KAFKA_CHANNEL else OWN_ANNOTATION_PREFIX


def running_peer_problems(
    peers: Sequence[Workload], owned: str, *, dispatchers: bool = True
) -> Iterator[str]:
    """Yield a sentence for each running workload of eventing-kafka-broker that must be stopped
    first, with the command that stops it.

    `peers` are the running workloads. `owned` names the object of the plan in the sentence, such as
    `this Broker`. `dispatchers` False: dispatchers may keep running.
    """
    for kind, namespace, name in peers:
        is_dispatcher = "dispatcher" in name
        if is_dispatcher and not dispatchers:
            continue
        consequence = (
            f"deliver events of {owned}, too" if is_dispatcher else f"go on serving {owned}"
        )
        yield (
            f"{kind} {namespace}/{name} is running, and would {consequence}: stop it by kubectl "
            f"-n {namespace} scale {kind.lower()} {name} --replicas=0"
        )


def servers_of(text: str) -> frozenset[str]:
    """Return the set of bootstrap servers in a comma-separated list. The order of a list doesn't
    matter, so equal sets mean the same Kafka."""
    return frozenset(server.strip() for server in text.split(",") if server.strip())


def topic_line(name: str, topic: TopicDescription) -> str:
    """Return a line for users that describes a topic."""
    return f"topic {name}  {topic.partitions} partitions, id {topic.id}"


def recorded_topic_lines(document: Document, topic: TopicDescription | None) -> list[str]:
    """Return a list with one line for users about the topic that an object's status names; an empty
    list if the status names none. `topic` describes the topic; if Kafka doesn't have it (None), the
    line has only the topic's name."""
    if (name := status_annotations_of(document).get(TOPIC_STATUS)) is None:
        return []
    return [f"topic {name}" if topic is None else topic_line(name, topic)]


def release_steps(
    kind: str, identity: Identity, finalizers: Sequence[str], peers_finalizer: str
) -> list[Step]:
    """Return the steps that release an object: one that replaces our finalizer by
    eventing-kafka-broker's (`peers_finalizer`), or none if that is done already. `finalizers` are
    those that the object has now."""
    drop = [FINALIZER] if FINALIZER in finalizers else []
    add = [] if peers_finalizer in finalizers else [peers_finalizer]
    return [SetFinalizers(kind, identity, drop, add)] if drop or add else []


def members_sentence(group: str, state: SeenGroup) -> str:
    """Return a sentence for users: the group still has members, which must leave it before the
    plan's steps. `group` is its name, and `state` its state in Kafka."""
    return f"group {group} has {len(state.members)} members still: they have to leave first"


def unknown_name_sentence(beginning: str, kind: NameKind, owner: str) -> str:
    """Return a sentence for users: Knafka can't take a topic or group over, since no name template
    of the installation gives its name to `owner`, such as `this Broker`. `beginning` is the start
    of the sentence, and has the name; `kind` is the kind of template."""
    return (
        f"{beginning} this installation knows no template of {kind.value} that gives this name to "
        f"{owner}: add the one that did to ConfigMap knafka-name-templates, in a line of its own"
    )


def delivery_differences(delivery: Document) -> Iterator[str]:
    """Yield a sentence for users for each way in which Knafka follows this delivery spec
    (`spec.delivery`; empty: none is declared) differently from eventing-kafka-broker."""
    if not delivery:
        yield f"no delivery is declared: 10 retries from 0.2 s on; {PEER} doesn't retry"
    if delivery.get("backoffPolicy") == "exponential" and delivery.get("backoffDelay"):
        yield f"the first wait is {delivery['backoffDelay']}; {PEER} waits twice that"
    if not delivery.get("deadLetterSink"):
        yield f"an event that fails for good goes to a dead-letter topic; {PEER} drops it"


def difference_sentences(differences: Mapping[str, Iterable[str]], all_objects: str) -> list[str]:
    """Return a sentence for each difference. The sentence begins with the names of the objects that
    have the difference, or with `all_objects`, such as `all Triggers`, if all of several objects
    have it.

    `differences` are the texts of each object's differences, by the object's name.
    """
    names_by_difference: dict[str, list[str]] = {}
    for name, sentences in differences.items():
        for sentence in sentences:
            names_by_difference.setdefault(sentence, []).append(name)
    # None: a single object is called by its name.
    all_names = list(differences) if len(differences) > 1 else None
    return [
        f"{all_objects if names == all_names else ', '.join(names)}: {sentence}"
        for sentence, names in names_by_difference.items()
    ]


def status_annotations_of(document: Document) -> Mapping[str, str]:
    """Return the annotations in an object's status, not those in its metadata."""
    return (document.get("status") or {}).get("annotations") or {}
