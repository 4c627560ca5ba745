"""Channel plan: what was seen of a KafkaChannel -> the plan to take it over, or give it back. Pure.

    adopt     the topic's id, and a promise to each entry of `spec.subscribers`, are written into
              the status -> eventing-kafka-broker's finalizer goes -> the operator takes it
    release   eventing-kafka-broker's finalizer stands in the place of ours -> the operator lets go

A Subscription's group is named by its UID on both sides. A promise is an annotation in the
channel's status, which says that the group of an entry exists. The operator begins to deliver an
entry without a promise at the topic's end. Subscriptions themselves aren't written: Knative
Eventing adds them to the channel, also while Knafka serves it.

Not here: Brokers (`broker_plan`) and KafkaSources (`source_plan`), asking (`looking`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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
from knafka_operator.channels import entries
from knafka_operator.channels.decide import receivers_of
from knafka_operator.installation.naming import NamedObject, NameKind, Naming
from knafka_operator.kafka.credentials import KAFKA_SECRET, SECRET_NAMESPACE
from knafka_operator.kafka.desired import BOOTSTRAP_SERVERS, SECRET_NAME_KEY
from knafka_operator.kafka.topics import TOPIC_ID
from knafka_operator.model.channels import KAFKA_CHANNEL, PEERS_CHANNEL_FINALIZER, PROMISE
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import TOPIC_STATUS, finalizers_of, is_claimed_by_peer


@dataclass(frozen=True, slots=True)
class SeenChannel:
    """What was read of a KafkaChannel, the cluster and Kafka."""

    stored: Document
    topic: TopicDescription | None = None
    """None: Kafka has none of the name."""
    groups: Mapping[str, SeenGroup] = field(default_factory=dict)
    """By name."""
    naming: Naming = field(default_factory=Naming)
    servers: str = ""
    """Where Knafka would look for the topic."""
    secret: str = ""
    """Name of the Secret, in Knafka's own namespace, with which Knafka would connect to Kafka;
    empty: none."""
    peers_config: Mapping[str, str] = field(default_factory=dict)
    """The ConfigMap of all channels of eventing-kafka-broker; empty: it can't be seen."""
    served: bool = True
    """Whether the installation serves KafkaChannels."""
    peers: Sequence[tuple[str, str, str]] = ()
    """Kind, namespace and name of what runs of eventing-kafka-broker and would get in the way."""
    claimed_by: Identity | None = None
    """Another KafkaChannel whose status names the same topic."""
    unseen: Sequence[str] = ()
    """What could not be read, and why."""

    @property
    def identity(self) -> Identity:
        return Identity.of(self.stored)

    @property
    def entries(self) -> Mapping[str, Document]:
        """`spec.subscribers` by UID."""
        return entries.read_entries(self.stored).valid


def plan_channel_adoption(seen: SeenChannel) -> Plan:
    """Return how Knafka takes a KafkaChannel over; raises `InvalidDocument`."""
    identity, about = seen.identity, f"KafkaChannel {seen.identity}: from {PEER} to Knafka"
    topic, claimed = topic_of_channel(seen.stored, seen.naming), _is_claimed(seen)
    problems = [*running(seen.peers, "this KafkaChannel"), *_adoption_problems(seen, topic)]
    taken = (
        not claimed and seen.topic is not None and _has_annotation(seen, TOPIC_ID, seen.topic.id)
    )
    if taken:
        about = f"KafkaChannel {identity}: it is Knafka's already"
    stays, waits = [] if seen.topic is None else [topic_line(topic, seen.topic)], list[str]()
    if claimed and receivers_of(annotations_of(seen.stored)):
        # The operator, which hasn't finished yet, would remove from the status what is written
        # there now.
        waits.append("Knafka's operator has still to let go of it: it was given back")
    promised = {}
    for uid, entry in seen.entries.items():
        group, name = entries.entry_group(identity, uid), _name(uid, entry)
        in_kafka = seen.groups.get(group, SeenGroup())
        if in_kafka.members and not taken:
            waits.append(members_left(group, in_kafka))
        if in_kafka.uncommitted and not taken and not _was_ready(seen, uid):
            stays.append(f"Subscription {name}  was never Ready: it begins at the topic's end")
            continue
        stays.append(
            f"Subscription {name}  group {group}  {count_text(in_kafka.waiting, 'event')} waiting"
        )
        if in_kafka.uncommitted and not taken:
            problems.append(
                f"group {group} has no offset: Subscription {name} would get all events from their "
                f"beginning: have {PEER} make it Ready first, or delete the Subscription"
            )
        if not entries.is_promised(seen.stored, uid):
            promised[PROMISE + uid] = "{}"
    steps: list[Step] = []
    if seen.topic is not None and not taken:
        recorded = {TOPIC_STATUS: topic, TOPIC_ID: seen.topic.id, **promised}
        missing = any(not _has_annotation(seen, key, value) for key, value in recorded.items())
        if missing or (claimed and _reported(seen)):
            steps.append(WriteAnnotations(KAFKA_CHANNEL, identity, recorded, ["subscribers"]))
    if PEERS_CHANNEL_FINALIZER in finalizers_of(seen.stored):
        steps.append(SetFinalizers(KAFKA_CHANNEL, identity, drop=[PEERS_CHANNEL_FINALIZER]))
    then = [
        "Knafka's operator takes it: receiver, dispatchers, the channel's host; then it is Ready "
        "with all Subscriptions",
        "senders go on at the same host, which leads to Knafka's receiver then; what "
        f"{PEER}'s gets until then arrives in the same topic",
        f"{PEER}'s controller stays away while a KafkaChannel is Knafka's",
    ]
    return Plan(about, stays, _channel_differences(seen), problems, waits, steps, then)


def plan_channel_release(seen: SeenChannel) -> Plan:
    """Return the plan by which Knafka gives a KafkaChannel back to eventing-kafka-broker."""
    identity, about = seen.identity, f"KafkaChannel {seen.identity}: from Knafka to {PEER}"
    problems = list(running(seen.peers, "this KafkaChannel", dispatchers=False))
    problems += _other_kafka_problems(seen)
    finalizers = finalizers_of(seen.stored)
    steps = give_back(KAFKA_CHANNEL, identity, finalizers, PEERS_CHANNEL_FINALIZER)
    stays = recorded_topic_lines(seen.stored, seen.topic)
    for uid, entry in seen.entries.items():
        group = entries.entry_group(identity, uid)
        waiting = count_text(seen.groups.get(group, SeenGroup()).waiting, "event")
        stays.append(f"Subscription {_name(uid, entry)}  group {group}  {waiting} waiting")
    then = [
        "Knafka's operator ends its deliveries and deletes its functions; the channel's host leads "
        f"to {PEER}'s receiver",
        START_PEER,
    ]
    return Plan(about, stays, STARTS_LATER, problems, (), steps, then)


def topic_of_channel(channel: Document, naming: Naming) -> str:
    """Return the topic that a KafkaChannel has, or would have; raises `InvalidDocument`."""
    kept = annotations_of(channel).get(TOPIC_STATUS)
    return kept or naming.name(NameKind.CHANNEL_TOPIC, NamedObject.of(channel))


def _adoption_problems(seen: SeenChannel, topic: str) -> Iterator[str]:
    """Yield a sentence for each reason why the channel can't be adopted."""
    if not seen.served:
        yield (
            "this installation serves no KafkaChannels: set KNAFKA_CHANNELS=enabled "
            "(docs/how-to/use-channels.md)"
        )
    if seen.topic is None:
        yield f"topic {topic} isn't in the Kafka at {seen.servers}"
    if not seen.naming.is_own(NameKind.CHANNEL_TOPIC, topic, NamedObject.of(seen.stored)):
        yield unknown_name(f"topic {topic}:", NameKind.CHANNEL_TOPIC, "this KafkaChannel")
    yield from _other_kafka_problems(seen)
    if seen.claimed_by is not None:
        yield f"topic {topic} is in the status of KafkaChannel {seen.claimed_by}, too"
    for uid, problem in entries.read_entries(seen.stored).problems.items():
        yield f"the entry {uid or 'without uid'} of spec.subscribers: {problem}"


def _other_kafka_problems(seen: SeenChannel) -> Iterator[str]:
    """Yield a sentence if the other implementation keeps its channels in another Kafka than
    Knafka."""
    peers_servers = seen.peers_config.get(BOOTSTRAP_SERVERS, "")
    if peers_servers and seen.servers and servers_of(peers_servers) != servers_of(seen.servers):
        yield (
            f"{PEER} has all channels in the Kafka at {peers_servers}, and Knafka has this one at "
            f"{seen.servers}: set bootstrap.servers in ConfigMap kafka-channel-config of both"
        )


def _channel_differences(seen: SeenChannel) -> list[str]:
    """Return a sentence for each way in which Knafka serves the channel differently from
    eventing-kafka-broker."""
    channel_delivery = (seen.stored.get("spec") or {}).get("delivery") or {}
    by_entry = {}
    for uid, entry in seen.entries.items():
        own = entry.get("delivery") or {}
        sentences = list(delivery_differences(own or channel_delivery))
        if own and (rest := sorted(channel_delivery.keys() - own.keys())):
            sentences.append(
                f"{PEER} also applies the channel's {', '.join(rest)} to it, Knafka doesn't"
            )
        by_entry[_name(uid, entry)] = sentences
    differences = difference_sentences(by_entry, "all Subscriptions")
    peers_secret = seen.peers_config.get(SECRET_NAME_KEY, "")
    if peers_secret:
        namespace = seen.peers_config.get(SECRET_NAMESPACE) or "knative-eventing"
        ours = f"Secret {seen.secret} of its own namespace" if seen.secret else "none"
        differences.append(
            f"{PEER} shows Kafka the Secret {namespace}/{peers_secret}, and Knafka {ours}"
        )
    if KAFKA_SECRET in (seen.stored["metadata"].get("annotations") or {}):
        differences.append(
            f"it names a Kafka of its own ({KAFKA_SECRET}): there all have the same one"
        )
    return differences


def _is_claimed(seen: SeenChannel) -> bool:
    return is_claimed_by_peer(seen.stored, PEERS_CHANNEL_FINALIZER)


def _has_annotation(seen: SeenChannel, key: str, value: str) -> bool:
    return annotations_of(seen.stored).get(key) == value


def _reported(seen: SeenChannel) -> Sequence[Document]:
    reported: Sequence[Document] = (seen.stored.get("status") or {}).get("subscribers") or ()
    return reported


def _was_ready(seen: SeenChannel, uid: str) -> bool:
    """Whether it was promised all events, by either implementation."""
    ready = {entry.get("uid") for entry in _reported(seen) if entry.get("ready") == "True"}
    return uid in ready or entries.is_promised(seen.stored, uid)


def _name(uid: str, entry: Document) -> str:
    return str(entry.get("name") or uid)
