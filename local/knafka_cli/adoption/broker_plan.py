"""Broker plan: what was seen of a Broker and its Triggers -> the plan to take them over, or give
them back. Pure.

Not here: KafkaChannels (`channel_plan`) and KafkaSources (`source_plan`), asking (`looking`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from knafka.ports.log import TopicDescription
from knafka_cli.adoption.plan import (
    PEER,
    START_PEER,
    STARTS_LATER,
    Document,
    Plan,
    SeenGroup,
    SetFinalizers,
    Step,
    WriteAnnotations,
    annotations_of,
    delivery_differences,
    difference_sentences,
    give_back,
    members_left,
    recorded_topic_lines,
    running,
    servers_of,
    topic_line,
    unknown_name,
)
from knafka_cli.shared.counts import count_text
from knafka_operator.installation.naming import NamedObject, NameKind, Naming
from knafka_operator.kafka.topics import TOPIC_ID
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import (
    BROKER_CLASS,
    DELIVERY_ORDER,
    EXTERNAL_TOPIC,
    GROUP_STATUS,
    PEERS_FINALIZER,
    TOPIC_STATUS,
    finalizers_of,
    is_claimed_by_peer,
)

PEERS_FINALIZERS: Final = (PEERS_FINALIZER, "kafka.triggers.eventing.knative.dev")
"""Of Brokers, and of Triggers."""


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


def plan_broker_adoption(seen: SeenBroker) -> Plan:
    """Return how Knafka takes a Broker over."""
    identity, metadata = seen.identity, seen.broker["metadata"]
    class_ = (metadata.get("annotations") or {}).get(BROKER_CLASS, "")
    about = f"Broker {identity}, class {class_ or 'none'}: from {PEER} to Knafka"
    topic, problems = _topic_with_problems(seen)
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
    stays = [] if seen.topic is None else [topic_line(topic, seen.topic)]
    waits: list[str] = []
    for trigger in seen.triggers:
        group, wrong = group_of(trigger, seen.naming)
        name = Identity.of(trigger)
        if wrong is not None:
            problems.append(wrong)
            continue
        found = seen.groups.get(group, SeenGroup())
        stays.append(
            f"Trigger {name.name}  group {group}  {count_text(found.waiting, 'event')} waiting"
        )
        if found.members and not taken:
            waits.append(members_left(group, found))
        if found.uncommitted and GROUP_STATUS not in annotations_of(trigger):
            stays[-1] = f"Trigger {name.name}  was never Ready: it begins at the topic's end"
            continue
        if found.uncommitted:
            shown = ", ".join(map(str, found.uncommitted))
            problems.append(
                f"group {group} has no offset on partitions {shown}: Trigger {name} would get them "
                f"from their beginning: have {PEER} make it Ready first, or delete the Trigger"
            )
        if annotations_of(trigger).get(GROUP_STATUS) != group:
            steps.append(WriteAnnotations("Trigger", name, {GROUP_STATUS: group}))
    external = EXTERNAL_TOPIC in (metadata.get("annotations") or {})
    if seen.topic is not None and not external:
        recorded = {TOPIC_STATUS: topic, TOPIC_ID: seen.topic.id}
        now = annotations_of(seen.broker)
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
    now = annotations_of(seen.broker)
    external = EXTERNAL_TOPIC in (seen.broker["metadata"].get("annotations") or {})
    if is_claimed_by_peer(seen.broker):
        return False
    return external or (seen.topic is not None and now.get(TOPIC_ID) == seen.topic.id)


def plan_broker_release(seen: SeenBroker) -> Plan:
    """Return how Knafka gives a Broker back."""
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
    stays = recorded_topic_lines(seen.broker, seen.topic)
    for trigger in seen.triggers:
        group = annotations_of(trigger).get(GROUP_STATUS)
        if group is None:
            continue
        waiting = count_text(seen.groups.get(group, SeenGroup()).waiting, "event")
        stays.append(f"Trigger {trigger['metadata']['name']}  group {group}  {waiting} waiting")
    then = [
        "Knafka's operator ends its deliveries and deletes its functions",
        START_PEER,
    ]
    return Plan(about, stays, STARTS_LATER, problems, (), steps, then)


def topic_of(broker: Document, naming: Naming) -> str:
    """Return the topic that a Broker has, or would have; raises `InvalidDocument`."""
    annotations = broker["metadata"].get("annotations") or {}
    if (external := annotations.get(EXTERNAL_TOPIC)) is not None:
        return str(external)
    kept = annotations_of(broker).get(TOPIC_STATUS)
    return kept or naming.name(NameKind.BROKER_TOPIC, NamedObject.of(broker))


def group_of(trigger: Document, naming: Naming) -> tuple[str, str | None]:
    """Return the group that a Trigger has, or would have, and why Knafka can't take it; raises
    `InvalidDocument`."""
    of, kind = NamedObject.of(trigger), NameKind.TRIGGER_GROUP
    group = annotations_of(trigger).get(GROUP_STATUS) or naming.name(kind, of)
    if naming.is_own(kind, group, of):
        return group, None
    what = f"Trigger {of.namespace}/{of.name} has the group {group}:"
    return group, unknown_name(what, kind, "it")


def differences(seen: SeenBroker) -> list[str]:
    """Return a sentence for each way in which Knafka delivers these objects differently."""
    of_broker = (seen.broker.get("spec") or {}).get("delivery") or {}
    by_trigger = {}
    for trigger in seen.triggers:
        spec = trigger.get("spec") or {}
        delivery = spec.get("delivery") or of_broker
        annotations = trigger["metadata"].get("annotations") or {}
        name = str(trigger["metadata"]["name"])
        by_trigger[name] = _trigger_differences(spec, delivery, annotations)
    return difference_sentences(by_trigger, "all Triggers")


def _trigger_differences(
    spec: Document, delivery: Document, annotations: Document
) -> Iterator[str]:
    """Yield a sentence for each way in which Knafka delivers this Trigger differently."""
    yield from delivery_differences(delivery)
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


def _topic_with_problems(seen: SeenBroker) -> tuple[str, list[str]]:
    """Return the topic's name, and a sentence for each problem with it."""
    problems = []
    name, of = topic_of(seen.broker, seen.naming), NamedObject.of(seen.broker)
    external = EXTERNAL_TOPIC in (seen.broker["metadata"].get("annotations") or {})
    if seen.topic is None:
        problems.append(f"topic {name} isn't in the Kafka at {seen.servers}")
    if not external and not seen.naming.is_own(NameKind.BROKER_TOPIC, name, of):
        kind = NameKind.BROKER_TOPIC
        problems.append(unknown_name(f"topic {name}:", kind, "this Broker"))
    theirs = annotations_of(seen.broker).get("bootstrap.servers", "")
    if theirs and seen.servers and servers_of(theirs) != servers_of(seen.servers):
        problems.append(
            f"{PEER} has its topic in the Kafka at {theirs}, and Knafka would look for it at "
            f"{seen.servers}: set bootstrap.servers in its ConfigMap"
        )
    if seen.refused is not None:
        problems.append(seen.refused)
    if seen.claimed_by is not None:
        problems.append(f"topic {name} is in the status of Broker {seen.claimed_by}, too")
    return name, problems
