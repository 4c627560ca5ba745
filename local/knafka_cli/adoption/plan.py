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
from typing import Any, Final

from knafka.ports.log import TopicDescription
from knafka_operator.channels.decide import RECEIVERS
from knafka_operator.installation.naming import NameKind
from knafka_operator.model.channels import KAFKA_CHANNEL
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import FINALIZER, TOPIC_STATUS, finalizers_of

Document = Mapping[str, Any]

PEER: Final = "eventing-kafka-broker"
"""The other implementation, in texts for users."""
OWN_ANNOTATION_PREFIX: Final = "knafka.dev/"


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
    add: Sequence[str] = ()

    def __str__(self) -> str:
        """Return the step as text for users: `take FINALIZER off Broker shop/default`."""
        parts = [f"take {name} off" for name in self.drop] + [f"put {name} on" for name in self.add]
        return f"{', and '.join(parts)} {self.kind} {self.identity}"


Step = WriteAnnotations | SetFinalizers


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan to adopt or release an object; it can be carried out once it has no problems and no
    waits. All texts are sentences for users."""

    about: str
    """Which object the plan is about, and its old and new owner."""
    stays: Sequence[str] = ()
    """The topics and groups that stay as they are."""
    differs: Sequence[str] = ()
    """How the new owner serves the object differently."""
    problems: Sequence[str] = ()
    """What the user must change first."""
    waits: Sequence[str] = ()
    """What ends by itself, but must end first, such as a group's members."""
    steps: Sequence[Step] = ()
    """The steps, in order."""
    then: Sequence[str] = ()
    """What the operator and the user do after the steps."""

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
    """Return kind and name of those objects that the operator hasn't released yet; None: all are
    released."""
    not_released = [
        f"{document['kind']} {Identity.of(document)}"
        for document in documents
        if FINALIZER in finalizers_of(document)
        or any(key.startswith(_released_prefix(document)) for key in annotations_of(document))
    ]
    return ", ".join(not_released) or None


def _released_prefix(document: Document) -> str:
    """Return the prefix of the status annotations that the operator removes when it releases an
    object.

    On a channel that the operator never served, annotations of `knafka adopt` stay: only those of
    receivers count.
    """
    return RECEIVERS if document["kind"] == KAFKA_CHANNEL else OWN_ANNOTATION_PREFIX


def running(
    peers: Sequence[tuple[str, str, str]], owned: str, *, dispatchers: bool = True
) -> Iterator[str]:
    """Yield a sentence for each running workload of eventing-kafka-broker that must be stopped
    first, with the command that stops it.

    `peers` are kind, namespace and name of the running workloads; `owned` is the text for the
    object that the plan is about, such as `this Broker`. Without `dispatchers`, dispatchers may
    keep running.
    """
    for kind, namespace, name in peers:
        is_dispatcher = "dispatcher" in name
        if is_dispatcher and not dispatchers:
            continue
        consequence = "would deliver" if is_dispatcher else f"would go on serving {owned}"
        yield (
            f"{kind} {namespace}/{name} runs, and {consequence}: kubectl -n {namespace} scale "
            f"{kind.lower()} {name} --replicas=0"
        )


def servers_of(text: str) -> frozenset[str]:
    """Parse comma-separated bootstrap servers; equal sets mean the same servers."""
    return frozenset(server.strip() for server in text.split(",") if server.strip())


def topic_line(name: str, topic: TopicDescription) -> str:
    """Return a line for users that describes a topic."""
    return f"topic {name}  {topic.partitions} partitions, id {topic.id}"


def recorded_topic_lines(document: Document, topic: TopicDescription | None) -> list[str]:
    """Return one line about the topic that an object's status names, none if it names no topic.
    `topic` is None if Kafka doesn't have it; then the line has only its name."""
    if (name := annotations_of(document).get(TOPIC_STATUS)) is None:
        return []
    return [f"topic {name}" if topic is None else topic_line(name, topic)]


def give_back(kind: str, identity: Identity, finalizers: Sequence[str], theirs: str) -> list[Step]:
    """Return the step that replaces our finalizer on an object by `theirs`, the one of
    eventing-kafka-broker; none if that is done. `finalizers` are those on the object now."""
    drop = [FINALIZER] if FINALIZER in finalizers else []
    add = [] if theirs in finalizers else [theirs]
    return [SetFinalizers(kind, identity, drop, add)] if drop or add else []


def members_left(group: str, in_kafka: SeenGroup) -> str:
    """Return a sentence for users: the group still has members (`in_kafka` lists them), which must
    leave it first."""
    return f"group {group} has {len(in_kafka.members)} members still: they have to leave first"


def unknown_name(beginning: str, kind: NameKind, owner: str) -> str:
    """Return a sentence for users: Knafka can't take a topic or group over, since no template of
    this kind of name that the installation knows gives the name to `owner` (`this Broker`). The
    sentence starts with `beginning`, which has the name."""
    return (
        f"{beginning} no template of {kind.value} gives it to {owner} that this installation "
        "knows: add the template that did to ConfigMap knafka-name-templates, in a line of its own"
    )


def delivery_differences(delivery: Document) -> Iterator[str]:
    """Yield a sentence for each way in which Knafka follows this delivery spec (`spec.delivery`)
    differently; in the sentences, "there" means in eventing-kafka-broker."""
    if not delivery:
        yield "no delivery is declared: 10 retries from 0.2 s on, and none there"
    if delivery.get("backoffPolicy") == "exponential" and delivery.get("backoffDelay"):
        yield f"the first wait is {delivery['backoffDelay']}, and twice that there"
    if not delivery.get("deadLetterSink"):
        yield "an event that fails for good goes to a topic of its own, and is dropped there"


def difference_sentences(differences: Mapping[str, Iterable[str]], all_objects: str) -> list[str]:
    """Return each difference once, after the names of the objects that have it.

    `differences` are by object name. `all_objects`, such as `all Triggers`, replaces the names if
    there are several objects and all have the difference.
    """
    names_by_difference: dict[str, list[str]] = {}
    for name, sentences in differences.items():
        for sentence in sentences:
            names_by_difference.setdefault(sentence, []).append(name)
    all_names = list(differences) if len(differences) > 1 else None
    return [
        f"{all_objects if names == all_names else ', '.join(names)}: {sentence}"
        for sentence, names in names_by_difference.items()
    ]


START_PEER: Final = (
    f"then start {PEER}: kubectl -n knative-eventing scale deployment kafka-controller --replicas=1"
)
"""A sentence for users: what to do after a release."""
STARTS_LATER: Final = (
    f"{PEER} goes on from each group's offsets: what was delivered while an event before it was "
    "still being retried is delivered once more, as its commits know only a position",
    "dead letters stay in Kafka, in the topics knafka-dead-letters-*",
)
"""Sentences for users: what is different once an object was given back."""


def annotations_of(document: Document) -> Mapping[str, str]:
    """Return the annotations in an object's status."""
    return (document.get("status") or {}).get("annotations") or {}
