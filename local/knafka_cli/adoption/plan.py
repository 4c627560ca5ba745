"""Plan: what taking something over from eventing-kafka-broker, or giving it back, comes to. Pure.

    adopt     what Knafka goes by is written into statuses -> eventing-kafka-broker's finalizers go
              -> the operator takes it
    release   eventing-kafka-broker's finalizer stands in the place of ours -> the operator lets go

Whose a Broker, KafkaChannel or KafkaSource is is one field, its list of finalizers, and that
changes by one write. Each step can be done twice, and after each one it is served by one of both or
by nobody: then its events wait in Kafka.

Not here: which steps (`broker_plan`, `channel_plan`, `source_plan`), asking (`looking`) and writing
(`cluster`), and what the operator does (`knafka_operator`).
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
OWN_ANNOTATION_PREFIX: Final = "knafka.dev/"


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A Trigger's, Subscription's or KafkaSource's consumer group, as Kafka has it."""

    members: Sequence[str] = ()
    """By what their clients call themselves."""
    waiting: int = 0
    """Events that it has still to settle."""
    uncommitted: Sequence[int] = ()
    """Partitions without an offset: they would be read from their beginning."""


@dataclass(frozen=True, slots=True)
class WriteAnnotations:
    """Write annotations into a status."""

    kind: str
    of: Identity
    annotations: Mapping[str, str]
    clears: Sequence[str] = ()
    """Lists of the status that are emptied, since they say what the peer does."""

    def __str__(self) -> str:
        written = ", ".join(f"{key}: {value}" for key, value in self.annotations.items())
        text = f"write into the status of {self.kind} {self.of}: {written}"
        return text if not self.clears else f"{text}; and empty its {', '.join(self.clears)}"


@dataclass(frozen=True, slots=True)
class SetFinalizers:
    """Say whose an object is."""

    kind: str
    of: Identity
    drop: Sequence[str] = ()
    add: Sequence[str] = ()

    def __str__(self) -> str:
        parts = [f"take {each} off" for each in self.drop] + [f"put {each} on" for each in self.add]
        return f"{', and '.join(parts)} {self.kind} {self.of}"


Step = WriteAnnotations | SetFinalizers


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done; nothing is, while there are problems."""

    about: str
    stays: Sequence[str] = ()
    differs: Sequence[str] = ()
    problems: Sequence[str] = ()
    waits: Sequence[str] = ()
    """Groups that members have still to leave, which they do by themselves."""
    steps: Sequence[Step] = ()
    then: Sequence[str] = ()
    """What follows, by others."""

    @property
    def text(self) -> str:
        """For people."""
        parts = [self.about]
        sections = {
            "what stays": self.stays,
            "what is different": self.differs,
            "what is in the way": [*self.problems, *self.waits],
            "what is done": [f"{place}. {step}" for place, step in enumerate(self.steps, 1)],
            "what follows": self.then,
        }
        for title, lines in sections.items():
            if lines:
                parts += ["", title, *(f"  {line}" for line in lines)]
        return "\n".join(parts)


def find_not_released(documents: Sequence[Document]) -> str | None:
    """Return which of these objects the operator hasn't released yet; None: all are released."""
    held = [
        f"{each['kind']} {Identity.of(each)}"
        for each in documents
        if FINALIZER in finalizers_of(each)
        or any(key.startswith(_mark(each)) for key in annotations_of(each))
    ]
    return ", ".join(held) or None


def _mark(document: Document) -> str:
    """Return the prefix of the status annotations that the operator removes when it releases an
    object. Of a channel that it never served it keeps those that `knafka adopt` has written."""
    return RECEIVERS if document["kind"] == KAFKA_CHANNEL else OWN_ANNOTATION_PREFIX


def running(
    peers: Sequence[tuple[str, str, str]], what: str, *, dispatchers: bool = True
) -> Iterator[str]:
    """Yield a sentence for each running workload of eventing-kafka-broker that must be stopped,
    with the command that stops it."""
    for kind, namespace, name in peers:
        if not dispatchers and "dispatcher" in name:
            continue
        why = "would deliver" if "dispatcher" in name else f"would go on serving {what}"
        yield (
            f"{kind} {namespace}/{name} runs, and {why}: kubectl -n {namespace} scale "
            f"{kind.lower()} {name} --replicas=0"
        )


def servers_of(text: str) -> frozenset[str]:
    """Parse comma-separated bootstrap servers; equal sets mean the same servers."""
    return frozenset(each.strip() for each in text.split(",") if each.strip())


def topic_line(name: str, topic: TopicDescription) -> str:
    """Return a line for users that describes a topic."""
    return f"topic {name}  {topic.partitions} partitions, id {topic.id}"


def recorded_topic_lines(document: Document, topic: TopicDescription | None) -> list[str]:
    """Return a line about the topic that a status names, if it names one; None: Kafka has none of
    the name."""
    if (name := annotations_of(document).get(TOPIC_STATUS)) is None:
        return []
    return [f"topic {name}" if topic is None else topic_line(name, topic)]


def give_back(kind: str, of: Identity, finalizers: Sequence[str], theirs: str) -> list[Step]:
    """Return the steps that replace our finalizers on an object by the peer's, `theirs`."""
    if FINALIZER not in finalizers and theirs in finalizers:
        return []
    drop = [each for each in (FINALIZER,) if each in finalizers]
    add = [each for each in (theirs,) if each not in finalizers]
    return [SetFinalizers(kind, of, drop, add)]


def members_left(group: str, found: SeenGroup) -> str:
    """Return a sentence for users that a group still has members, whose end is awaited."""
    return f"group {group} has {len(found.members)} members still: they have to leave first"


def unknown_name(what: str, kind: NameKind, owner: str) -> str:
    """Return why Knafka can't take over something with this name; `what` begins with it."""
    return (
        f"{what} no template of {kind.value} gives it to {owner} that this installation knows: add "
        "the template that did to ConfigMap knafka-name-templates, in a line of its own"
    )


def delivery_differences(delivery: Document) -> Iterator[str]:
    """Yield a sentence for each way in which Knafka treats this delivery differently."""
    if not delivery:
        yield "no delivery is declared: 10 retries from 0.2 s on, and none there"
    if delivery.get("backoffPolicy") == "exponential" and delivery.get("backoffDelay"):
        yield f"the first wait is {delivery['backoffDelay']}, and twice that there"
    if not delivery.get("deadLetterSink"):
        yield "an event that fails for good goes to a topic of its own, and is dropped there"


def difference_sentences(differences: Mapping[str, Iterable[str]], everybody: str) -> list[str]:
    """Return a sentence for each difference that names the objects that have it; `everybody`
    stands for all of them, if there are several."""
    names: dict[str, list[str]] = {}
    for name, sentences in differences.items():
        for sentence in sentences:
            names.setdefault(sentence, []).append(name)
    several = list(differences) if len(differences) > 1 else None
    return [
        f"{everybody if those == several else ', '.join(those)}: {sentence}"
        for sentence, those in names.items()
    ]


START_PEER: Final = (
    f"then start {PEER}: kubectl -n knative-eventing scale deployment kafka-controller --replicas=1"
)
"""What a user does after a release."""
STARTS_LATER: Final = (
    f"{PEER} goes on from each group's offsets: what was delivered while an event before it was "
    "still being retried is delivered once more, as its commits know only a position",
    "dead letters stay in Kafka, in the topics knafka-dead-letters-*",
)
"""What is different once something is given back."""


def annotations_of(document: Document) -> Mapping[str, str]:
    """Return the annotations in an object's status."""
    return (document.get("status") or {}).get("annotations") or {}
