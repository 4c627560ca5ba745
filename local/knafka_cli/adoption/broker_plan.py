"""Plans by which Knafka adopts a Broker with its Triggers from eventing-kafka-broker, or releases
them to it. Pure.

Not here: KafkaChannels (`channel_plan`) and KafkaSources (`source_plan`); reading the objects
(`looking`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from knafka.ports.log import TopicDescription
from knafka_cli.adoption.plan import (
    PEER,
    RELEASE_DIFFERENCES,
    START_PEER,
    Document,
    Plan,
    SeenGroup,
    SetFinalizers,
    Step,
    Workload,
    WriteAnnotations,
    delivery_differences,
    difference_sentences,
    members_sentence,
    recorded_topic_lines,
    release_steps,
    running_peer_problems,
    servers_of,
    status_annotations_of,
    topic_line,
    unknown_name_sentence,
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
"""eventing-kafka-broker's finalizers of Brokers and of Triggers."""


@dataclass(frozen=True, slots=True)
class SeenBroker:
    """What was read about a Broker: its Triggers, its topic and groups in Kafka, and the
    installation of Knafka."""

    broker: Document
    """The Broker's object."""
    triggers: Sequence[Document] = ()
    """The Broker's Triggers, by name."""
    topic: TopicDescription | None = None
    """The Broker's topic; None if Kafka doesn't have it."""
    groups: Mapping[str, SeenGroup] = field(default_factory=dict)
    """The Triggers' consumer groups, by name."""
    classes: frozenset[str] = frozenset({"Kafka", "kafka"})
    """The Broker classes that the installation serves."""
    naming: Naming = field(default_factory=Naming)
    """The installation's templates for names of topics and groups."""
    servers: str = ""
    """Bootstrap servers of the Kafka in which Knafka would look for the topic."""
    peers: Sequence[Workload] = ()
    """eventing-kafka-broker's running workloads that may have to be stopped first."""
    claimed_by: Identity | None = None
    """Another Broker whose status names the same topic."""
    refused: str | None = None
    """Why the Broker may not use the external topic that it names; None if it may."""
    unseen: Sequence[str] = ()
    """A sentence for each object that could not be read."""

    @property
    def identity(self) -> Identity:
        """The Broker's namespace and name."""
        return Identity.of(self.broker)

    @property
    def has_external_topic(self) -> bool:
        """Whether the Broker names an existing topic, which Knafka doesn't own."""
        return EXTERNAL_TOPIC in (self.broker["metadata"].get("annotations") or {})


def plan_broker_adoption(seen: SeenBroker) -> Plan:
    """Return the plan by which Knafka takes a Broker and its Triggers over. Raises
    `InvalidDocument` if a template gives a name that Kafka doesn't accept."""
    identity, metadata = seen.identity, seen.broker["metadata"]
    broker_class = (metadata.get("annotations") or {}).get(BROKER_CLASS, "")
    is_adopted = _is_adopted(seen)
    if is_adopted:
        about = f"Broker {identity}: it is Knafka's already"
    else:
        about = f"Broker {identity}, class {broker_class or 'none'}: from {PEER} to Knafka"
    topic_name, problems = _topic_with_problems(seen)
    if broker_class not in seen.classes:
        problems.append(
            f"this installation serves the classes {', '.join(sorted(seen.classes))}: add "
            f"{broker_class} to KNAFKA_BROKER_CLASSES of its Deployment knafka-operator"
        )
    problems += list(running_peer_problems(seen.peers, "this Broker"))
    stays = [] if seen.topic is None else [topic_line(topic_name, seen.topic)]
    waits: list[str] = []
    trigger_steps: list[Step] = []
    for trigger in seen.triggers:
        trigger_plan = _plan_trigger(seen, trigger, is_adopted)
        stays += trigger_plan.stays
        problems += trigger_plan.problems
        waits += trigger_plan.waits
        trigger_steps += trigger_plan.steps
    steps = [*trigger_steps, *_broker_steps(seen, topic_name)]
    then = [
        "Knafka's operator takes it: receiver, dispatchers, address; then all are Ready",
        "senders go on at the new address, in .status.address.url; what they still send to "
        f"{PEER}'s receiver arrives in the same topic, for as long as that runs",
        f"{PEER}'s controller stays away while a Broker of class Kafka is Knafka's",
    ]
    return Plan(
        about,
        stays=stays,
        differs=_broker_differences(seen),
        problems=problems,
        waits=waits,
        steps=steps,
        then=then,
    )


def _broker_steps(seen: SeenBroker, topic_name: str) -> Iterator[Step]:
    """Yield the steps that adopt a Broker, after those that record its Triggers' groups: write the
    topic's name and id into the Broker's status, unless the topic is external, then remove
    eventing-kafka-broker's finalizers from the Triggers, and at last from the Broker."""
    if seen.topic is not None and not seen.has_external_topic:
        recorded = {TOPIC_STATUS: topic_name, TOPIC_ID: seen.topic.id}
        existing = status_annotations_of(seen.broker)
        if any(existing.get(key) != value for key, value in recorded.items()):
            yield WriteAnnotations("Broker", seen.identity, recorded)
    for kind, document in (
        *(("Trigger", trigger) for trigger in seen.triggers),
        ("Broker", seen.broker),  # last of all: with this step the operator takes the Broker
    ):
        peers_finalizers = [name for name in finalizers_of(document) if name in PEERS_FINALIZERS]
        if peers_finalizers:
            yield SetFinalizers(kind, Identity.of(document), drop=peers_finalizers)


def _plan_trigger(seen: SeenBroker, trigger: Document, is_adopted: bool) -> Plan:
    """Return a plan for one Trigger, whose parts are added to the plan to adopt its Broker. The
    step that removes the Trigger's finalizer is in `_broker_steps`.

    `is_adopted` says whether the Broker is Knafka's already.
    """
    identity = Identity.of(trigger)
    about = f"Trigger {identity.name}"
    group, problem = group_of(trigger, seen.naming)
    if problem is not None:
        return Plan(about, problems=[problem])
    group_state = seen.groups.get(group, SeenGroup())
    waits = [members_sentence(group, group_state)] if group_state.members and not is_adopted else []
    recorded_group = status_annotations_of(trigger).get(GROUP_STATUS)
    if group_state.uncommitted and recorded_group is None:
        # No consumer has read for this Trigger yet. So it misses nothing, and there is no group to
        # record.
        line = f"{about}  was never Ready: it begins at the topic's end"
        return Plan(about, stays=[line], waits=waits)
    problems = []
    if group_state.uncommitted:
        partitions = ", ".join(map(str, group_state.uncommitted))
        problems.append(
            f"group {group} has no offset on partitions {partitions}: Trigger {identity} would get "
            f"them from their beginning: have {PEER} make it Ready first, or delete the Trigger"
        )
    steps: list[Step] = []
    if recorded_group != group:
        steps.append(WriteAnnotations("Trigger", identity, {GROUP_STATUS: group}))
    line = f"{about}  group {group}  {count_text(group_state.waiting, 'event')} waiting"
    return Plan(about, stays=[line], problems=problems, waits=waits, steps=steps)


def _is_adopted(seen: SeenBroker) -> bool:
    """Whether the Broker is Knafka's already: eventing-kafka-broker's finalizer is gone, and the
    status has the id of the Broker's present topic, unless that is external. Removing the finalizer
    is the last step, so the Triggers' steps aren't checked."""
    if is_claimed_by_peer(seen.broker):
        return False
    recorded_id = status_annotations_of(seen.broker).get(TOPIC_ID)
    return seen.has_external_topic or (seen.topic is not None and recorded_id == seen.topic.id)


def plan_broker_release(seen: SeenBroker) -> Plan:
    """Return the plan by which Knafka gives a Broker back to eventing-kafka-broker."""
    identity = seen.identity
    about = f"Broker {identity}: from Knafka to {PEER}"
    problems = list(running_peer_problems(seen.peers, "this Broker", dispatchers=False))
    broker_class = (seen.broker["metadata"].get("annotations") or {}).get(BROKER_CLASS, "")
    if broker_class != "Kafka":
        problems.append(
            f"its class is {broker_class}, which {PEER} doesn't serve, and a class never changes"
        )
    finalizers = finalizers_of(seen.broker)
    steps = release_steps("Broker", identity, finalizers, PEERS_FINALIZER)
    stays = recorded_topic_lines(seen.broker, seen.topic)
    for trigger in seen.triggers:
        group = status_annotations_of(trigger).get(GROUP_STATUS)
        if group is None:
            continue
        waiting = count_text(seen.groups.get(group, SeenGroup()).waiting, "event")
        stays.append(f"Trigger {trigger['metadata']['name']}  group {group}  {waiting} waiting")
    then = [
        "Knafka's operator ends its deliveries and deletes its functions",
        START_PEER,
    ]
    return Plan(
        about,
        stays=stays,
        differs=RELEASE_DIFFERENCES,
        problems=problems,
        steps=steps,
        then=then,
    )


def topic_of(broker: Document, naming: Naming) -> str:
    """Return the name of a Broker's topic: the external one, else the one in the Broker's status,
    else the one that a template of `naming` makes. Raises `InvalidDocument`."""
    annotations = broker["metadata"].get("annotations") or {}
    if (external := annotations.get(EXTERNAL_TOPIC)) is not None:
        return str(external)
    recorded = status_annotations_of(broker).get(TOPIC_STATUS)
    return recorded or naming.name(NameKind.BROKER_TOPIC, NamedObject.of(broker))


def group_of(trigger: Document, naming: Naming) -> tuple[str, str | None]:
    """Return the name of a Trigger's consumer group, and why Knafka can't take the group over
    (None: it can).

    The name is the one in the Trigger's status, or else the one that a template of `naming` gives
    it. Raises `InvalidDocument`.
    """
    owner, kind = NamedObject.of(trigger), NameKind.TRIGGER_GROUP
    group = status_annotations_of(trigger).get(GROUP_STATUS) or naming.name(kind, owner)
    if naming.is_own(kind, group, owner):
        return group, None
    beginning = f"Trigger {owner.namespace}/{owner.name} has the group {group}:"
    return group, unknown_name_sentence(beginning, kind, "it")


def _broker_differences(seen: SeenBroker) -> list[str]:
    """Return a sentence for each way in which Knafka delivers to the Triggers differently from
    eventing-kafka-broker."""
    broker_delivery = (seen.broker.get("spec") or {}).get("delivery") or {}
    by_trigger = {}
    for trigger in seen.triggers:
        spec = trigger.get("spec") or {}
        delivery = spec.get("delivery") or broker_delivery
        annotations = trigger["metadata"].get("annotations") or {}
        name = str(trigger["metadata"]["name"])
        by_trigger[name] = _trigger_differences(spec, delivery, annotations)
    return difference_sentences(by_trigger, "all Triggers")


def _trigger_differences(
    spec: Document, delivery: Document, annotations: Document
) -> Iterator[str]:
    """Yield a sentence for each way in which Knafka delivers to a Trigger differently from
    eventing-kafka-broker.

    `spec` and `annotations` are the Trigger's. `delivery` is the Trigger's delivery spec, or the
    Broker's if the Trigger has none.
    """
    yield from delivery_differences(delivery)
    if DELIVERY_ORDER not in annotations:
        yield f"order is kept for each key (delivery.order); {PEER} keeps none"
    filter_attributes = (spec.get("filter") or {}).get("attributes") or {}
    if "" in filter_attributes.values():
        yield f"an empty attribute of the filter must be in the event; {PEER} ignores it"
    filters = spec.get("filters") or ()
    if any(_mixes_operators(str(filter_["cesql"])) for filter_ in filters if "cesql" in filter_):
        yield f"its CESQL mixes AND and OR: read from the left; {PEER} reads from the right"


def _mixes_operators(expression: str) -> bool:
    """Whether a CESQL expression has at least two of AND, OR and XOR, and no parentheses, so that
    its value may depend on the order in which they are evaluated."""
    words = set(expression.upper().split())
    return "(" not in expression and len(words & {"AND", "OR", "XOR"}) > 1


def _topic_with_problems(seen: SeenBroker) -> tuple[str, list[str]]:
    """Return the name of the Broker's topic, and a sentence for each reason why Knafka can't take
    the topic over. Raises `InvalidDocument`."""
    problems = []
    name, owner = topic_of(seen.broker, seen.naming), NamedObject.of(seen.broker)
    kind = NameKind.BROKER_TOPIC
    if seen.topic is None:
        problems.append(f"topic {name} isn't in the Kafka at {seen.servers}")
    if not seen.has_external_topic and not seen.naming.is_own(kind, name, owner):
        problems.append(unknown_name_sentence(f"topic {name}:", kind, "this Broker"))
    peers_servers = status_annotations_of(seen.broker).get("bootstrap.servers", "")
    if peers_servers and seen.servers and servers_of(peers_servers) != servers_of(seen.servers):
        problems.append(
            f"{PEER} has its topic in the Kafka at {peers_servers}, and Knafka would look for it "
            f"at {seen.servers}: set bootstrap.servers in its ConfigMap"
        )
    if seen.refused is not None:
        problems.append(seen.refused)
    if seen.claimed_by is not None:
        problems.append(f"topic {name} is in the status of Broker {seen.claimed_by}, too")
    return name, problems
