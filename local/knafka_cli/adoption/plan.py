"""Plan: what was seen of a Broker -> what taking it over, or giving it back, comes to. Pure.

    adopt     the topic's id and the groups are written into statuses -> eventing-kafka-broker's
              finalizers go -> the operator takes it
    release   eventing-kafka-broker's finalizer stands in the place of ours -> the operator lets go

Whose a Broker is is one field, its list of finalizers, and that changes by one write. Each step can
be done twice, and after each one the Broker is served by one of both or by nobody: then its events
wait in Kafka.

Not here: asking and writing (`carrying_out`), and what the operator does (`knafka_operator`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from knafka.ports.log import TopicDescription
from knafka_operator.decide.topics import TOPIC_ID
from knafka_operator.model.identity import Identity
from knafka_operator.model.naming import NamedObject, NameKind, Naming
from knafka_operator.model.resources import (
    BROKER_CLASS,
    DELIVERY_ORDER,
    EXTERNAL_TOPIC,
    FINALIZER,
    GROUP_STATUS,
    PEERS_FINALIZER,
    TOPIC_STATUS,
    finalizers_of,
    is_claimed_by_peer,
)

Document = Mapping[str, Any]

PEERS_FINALIZERS: Final = (PEERS_FINALIZER, "kafka.triggers.eventing.knative.dev")
"""Of Brokers, and of Triggers."""
PEER: Final = "eventing-kafka-broker"
OURS: Final = "knafka.dev/"


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A Trigger's consumer group, as Kafka has it."""

    members: Sequence[str] = ()
    """By what their clients call themselves."""
    waiting: int = 0
    """Events that it has still to settle."""
    uncommitted: Sequence[int] = ()
    """Partitions without an offset: they would be read from their beginning."""


@dataclass(frozen=True, slots=True)
class SeenBroker:
    """What was read of a Broker, its Triggers, the cluster and Kafka."""

    broker: Document
    triggers: Sequence[Document] = ()
    topic: TopicDescription | None = None
    """None: Kafka has none of the name."""
    groups: Mapping[str, SeenGroup] = field(default_factory=dict)
    """By name."""
    classes: frozenset[str] = frozenset({"Kafka", "kafka"})
    """Those that the installation serves."""
    naming: Naming = field(default_factory=Naming)
    servers: str = ""
    """Where Knafka would look for the topic."""
    peers: Sequence[tuple[str, str, str]] = ()
    """Kind, namespace and name of what runs of eventing-kafka-broker and would get in the way."""
    claimed_by: Identity | None = None
    """Another Broker whose status names the same topic."""
    refused: str | None = None
    """Why it may not use the external topic that it names."""
    unseen: Sequence[str] = ()
    """What could not be read, and why."""

    @property
    def identity(self) -> Identity:
        return Identity.of(self.broker)


@dataclass(frozen=True, slots=True)
class WriteAnnotations:
    """Write annotations into a status."""

    kind: str
    of: Identity
    annotations: Mapping[str, str]

    def __str__(self) -> str:
        written = ", ".join(f"{key}: {value}" for key, value in self.annotations.items())
        return f"write into the status of {self.kind} {self.of}: {written}"


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


def adoption(seen: SeenBroker) -> Plan:
    """How Knafka takes a Broker over."""
    identity, metadata = seen.identity, seen.broker["metadata"]
    class_ = (metadata.get("annotations") or {}).get(BROKER_CLASS, "")
    about = f"Broker {identity}, class {class_ or 'none'}: from {PEER} to Knafka"
    topic, problems = _topic(seen)
    if class_ not in seen.classes:
        problems.append(
            f"this installation serves the classes {', '.join(sorted(seen.classes))}: add {class_} "
            "to KNAFKA_BROKER_CLASSES of its Deployment knafka-operator"
        )
    problems += list(running(seen.peers, "this Broker"))
    taken = _is_taken(seen)
    if taken:
        about = f"Broker {identity}: it is Knafka's already"
    steps: list[Step] = []
    stays = [] if seen.topic is None else [_topic_line(topic, seen.topic)]
    waits: list[str] = []
    for trigger in seen.triggers:
        group, wrong = group_of(trigger, seen.naming)
        name = Identity.of(trigger)
        if wrong is not None:
            problems.append(wrong)
            continue
        found = seen.groups.get(group, SeenGroup())
        stays.append(f"Trigger {name.name}  group {group}  {events(found.waiting)} waiting")
        if found.members and not taken:
            waits.append(members_left(group, found))
        if found.uncommitted and GROUP_STATUS not in _annotations(trigger):
            stays[-1] = f"Trigger {name.name}  was never Ready: it begins at the topic's end"
            continue
        if found.uncommitted:
            shown = ", ".join(map(str, found.uncommitted))
            problems.append(
                f"group {group} has no offset on partitions {shown}: Trigger {name} would get them "
                f"from their beginning: have {PEER} make it Ready first, or delete the Trigger"
            )
        if _annotations(trigger).get(GROUP_STATUS) != group:
            steps.append(WriteAnnotations("Trigger", name, {GROUP_STATUS: group}))
    external = EXTERNAL_TOPIC in (metadata.get("annotations") or {})
    if seen.topic is not None and not external:
        recorded = {TOPIC_STATUS: topic, TOPIC_ID: seen.topic.id}
        now = _annotations(seen.broker)
        if any(now.get(key) != value for key, value in recorded.items()):
            steps.append(WriteAnnotations("Broker", identity, recorded))
    for kind, document in (
        *(("Trigger", each) for each in seen.triggers),
        ("Broker", seen.broker),  # last of all: from then on the operator takes it
    ):
        theirs = [each for each in finalizers_of(document) if each in PEERS_FINALIZERS]
        if theirs:
            steps.append(SetFinalizers(kind, Identity.of(document), drop=theirs))
    then = [
        "Knafka's operator takes it: receiver, dispatchers, address; then all are Ready",
        "senders go on at the new address, in .status.address.url; what they still send to "
        f"{PEER}'s receiver arrives in the same topic, for as long as that runs",
        f"{PEER}'s controller stays away while a Broker of class Kafka is Knafka's",
    ]
    return Plan(about, stays, differences(seen), problems, waits, steps, then)


def _is_taken(seen: SeenBroker) -> bool:
    """Whether the operator may take it already, or has."""
    now = _annotations(seen.broker)
    external = EXTERNAL_TOPIC in (seen.broker["metadata"].get("annotations") or {})
    if is_claimed_by_peer(seen.broker):
        return False
    return external or (seen.topic is not None and now.get(TOPIC_ID) == seen.topic.id)


def release(seen: SeenBroker) -> Plan:
    """How Knafka gives a Broker back."""
    identity = seen.identity
    about = f"Broker {identity}: from Knafka to {PEER}"
    problems = list(running(seen.peers, "this Broker", dispatchers=False))
    class_ = (seen.broker["metadata"].get("annotations") or {}).get(BROKER_CLASS, "")
    if class_ != "Kafka":
        problems.append(
            f"its class is {class_}, which {PEER} doesn't serve, and a class never changes"
        )
    finalizers = finalizers_of(seen.broker)
    steps = give_back("Broker", identity, finalizers, PEERS_FINALIZER)
    stays = []
    if (topic := _annotations(seen.broker).get(TOPIC_STATUS)) is not None:
        stays.append(f"topic {topic}" if seen.topic is None else _topic_line(topic, seen.topic))
    for trigger in seen.triggers:
        group = _annotations(trigger).get(GROUP_STATUS)
        if group is None:
            continue
        waiting = seen.groups.get(group, SeenGroup()).waiting
        stays.append(
            f"Trigger {trigger['metadata']['name']}  group {group}  {events(waiting)} waiting"
        )
    differs = [
        f"{PEER} goes on from each group's offsets: what was delivered while an event before it "
        "was still being retried is delivered once more, as its commits know only a position",
        "dead letters stay in Kafka, in the topics knafka-dead-letters-*",
    ]
    then = [
        "Knafka's operator ends its deliveries and deletes its functions",
        f"then start {PEER}: kubectl -n knative-eventing scale deployment kafka-controller "
        "--replicas=1",
    ]
    return Plan(about, stays, differs, problems, (), steps, then)


def not_released(documents: Sequence[Document]) -> str | None:
    """What the operator hasn't let go of yet, of a Broker and its Triggers, or of a KafkaSource;
    None: of all."""
    held = [
        f"{each['kind']} {Identity.of(each)}"
        for each in documents
        if FINALIZER in finalizers_of(each)
        or any(key.startswith(OURS) for key in _annotations(each))
    ]
    return ", ".join(held) or None


def topic_of(broker: Document, naming: Naming) -> str:
    """The topic that a Broker has, or would have; raises `InvalidDocument`."""
    annotations = broker["metadata"].get("annotations") or {}
    if (external := annotations.get(EXTERNAL_TOPIC)) is not None:
        return str(external)
    kept = _annotations(broker).get(TOPIC_STATUS)
    return kept or naming.name(NameKind.BROKER_TOPIC, NamedObject.of(broker))


def group_of(trigger: Document, naming: Naming) -> tuple[str, str | None]:
    """The group that a Trigger has, or would have, and why Knafka can't take it; raises
    `InvalidDocument`."""
    of, kind = NamedObject.of(trigger), NameKind.TRIGGER_GROUP
    group = _annotations(trigger).get(GROUP_STATUS) or naming.name(kind, of)
    if naming.is_own(kind, group, of):
        return group, None
    return group, (
        f"Trigger {of.namespace}/{of.name} has the group {group}, which no template of "
        f"{kind.value} gives it that this installation knows: add the template that did to "
        "ConfigMap knafka-name-templates, in a line of its own"
    )


def differences(seen: SeenBroker) -> list[str]:
    """What Knafka does otherwise with just these objects, a sentence each."""
    of_broker = (seen.broker.get("spec") or {}).get("delivery") or {}
    found: dict[str, list[str]] = {}
    for trigger in seen.triggers:
        spec = trigger.get("spec") or {}
        delivery = spec.get("delivery") or of_broker
        annotations = trigger["metadata"].get("annotations") or {}
        for each in _differences(spec, delivery, annotations):
            found.setdefault(each, []).append(trigger["metadata"]["name"])
    everybody = [each["metadata"]["name"] for each in seen.triggers]
    return [
        f"{'all Triggers' if names == everybody and len(names) > 1 else ', '.join(names)}: {what}"
        for what, names in found.items()
    ]


def _differences(spec: Document, delivery: Document, annotations: Document) -> Iterator[str]:
    if not delivery:
        yield "no delivery is declared: 10 retries from 0.2 s on, and none there"
    if delivery.get("backoffPolicy") == "exponential" and delivery.get("backoffDelay"):
        yield f"the first wait is {delivery['backoffDelay']}, and twice that there"
    if not delivery.get("deadLetterSink"):
        yield "an event that fails for good goes to a topic of its own, and is dropped there"
    if DELIVERY_ORDER not in annotations:
        yield "order is kept for each key, and not at all there (delivery.order)"
    if any(value == "" for value in ((spec.get("filter") or {}).get("attributes") or {}).values()):
        yield "an empty attribute of the filter has to be there, and counts for nothing there"
    expressions = [str(each["cesql"]) for each in spec.get("filters") or () if "cesql" in each]
    if any(_mixes(each) for each in expressions):
        yield "its CESQL mixes AND and OR: read from the left, and from the right there"


def _mixes(expression: str) -> bool:
    words = set(expression.upper().split())
    return "(" not in expression and len(words & {"AND", "OR", "XOR"}) > 1


def _topic(seen: SeenBroker) -> tuple[str, list[str]]:
    """Its name, and what is wrong with it."""
    problems = []
    name, of = topic_of(seen.broker, seen.naming), NamedObject.of(seen.broker)
    external = EXTERNAL_TOPIC in (seen.broker["metadata"].get("annotations") or {})
    if seen.topic is None:
        problems.append(f"topic {name} isn't in the Kafka at {seen.servers}")
    if not external and not seen.naming.is_own(NameKind.BROKER_TOPIC, name, of):
        problems.append(
            f"topic {name}: no template of {NameKind.BROKER_TOPIC.value} gives it to this Broker "
            "that this installation knows: add the template that did to ConfigMap "
            "knafka-name-templates, in a line of its own"
        )
    theirs = _annotations(seen.broker).get("bootstrap.servers", "")
    if theirs and seen.servers and _servers(theirs) != _servers(seen.servers):
        problems.append(
            f"{PEER} has its topic in the Kafka at {theirs}, and Knafka would look for it at "
            f"{seen.servers}: set bootstrap.servers in its ConfigMap"
        )
    if seen.refused is not None:
        problems.append(seen.refused)
    if seen.claimed_by is not None:
        problems.append(f"topic {name} is in the status of Broker {seen.claimed_by}, too")
    return name, problems


def running(
    peers: Sequence[tuple[str, str, str]], what: str, *, dispatchers: bool = True
) -> Iterator[str]:
    """What runs of eventing-kafka-broker that may not, and how it is stopped."""
    for kind, namespace, name in peers:
        if not dispatchers and "dispatcher" in name:
            continue
        why = "would deliver" if "dispatcher" in name else f"would go on serving {what}"
        yield (
            f"{kind} {namespace}/{name} runs, and {why}: kubectl -n {namespace} scale "
            f"{kind.lower()} {name} --replicas=0"
        )


def _servers(text: str) -> frozenset[str]:
    return frozenset(each.strip() for each in text.split(",") if each.strip())


def _topic_line(name: str, topic: TopicDescription) -> str:
    return f"topic {name}  {topic.partitions} partitions, id {topic.id}"


def give_back(kind: str, of: Identity, finalizers: Sequence[str], theirs: str) -> list[Step]:
    """The steps to an object with the peer's finalizer in the place of ours."""
    if FINALIZER not in finalizers and theirs in finalizers:
        return []
    drop = [each for each in (FINALIZER,) if each in finalizers]
    add = [each for each in (theirs,) if each not in finalizers]
    return [SetFinalizers(kind, of, drop, add)]


def members_left(group: str, found: SeenGroup) -> str:
    """What is waited for while a group has members."""
    return f"group {group} has {len(found.members)} members still: they have to leave first"


def events(count: int) -> str:
    """So many events, for people."""
    return "1 event" if count == 1 else f"{count} events"


def _annotations(document: Document) -> Mapping[str, str]:
    return (document.get("status") or {}).get("annotations") or {}
