"""Plans by which Knafka adopts a KafkaChannel from eventing-kafka-broker, or releases it. Pure.

    adopt     write the topic's id, and a promise to each entry of `spec.subscribers`, into the
              status -> remove eventing-kafka-broker's finalizer -> the operator takes the channel
    release   replace our finalizer by eventing-kafka-broker's -> the operator stops serving it

A Subscription's consumer group is named by its UID in both implementations. A promise is an
annotation in the channel's status, which says that the group of an entry exists. To an entry
without a promise, the operator delivers only events from then on, from the topic's end.
Subscriptions themselves aren't written: Knative Eventing adds them to the channel, also while
Knafka serves it.

Not here: Brokers (`broker_plan`) and KafkaSources (`source_plan`); reading the objects (`looking`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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
from knafka_operator.channels import entries
from knafka_operator.channels.observed import receivers_of
from knafka_operator.installation.naming import NamedObject, NameKind, Naming
from knafka_operator.kafka.credentials import KAFKA_SECRET, SECRET_NAMESPACE
from knafka_operator.kafka.desired import BOOTSTRAP_SERVERS, SECRET_NAME_KEY
from knafka_operator.kafka.topics import TOPIC_ID
from knafka_operator.model.channels import KAFKA_CHANNEL, PEERS_CHANNEL_FINALIZER, PROMISE
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import TOPIC_STATUS, finalizers_of, is_claimed_by_peer


@dataclass(frozen=True, slots=True)
class SeenChannel:
    """What was read about a KafkaChannel: its topic and groups in Kafka, and the installation of
    Knafka."""

    stored: Document
    """The KafkaChannel."""
    topic: TopicDescription | None = None
    """The channel's topic; None if Kafka doesn't have it."""
    groups: Mapping[str, SeenGroup] = field(default_factory=dict)
    """The Subscriptions' consumer groups, by name."""
    naming: Naming = field(default_factory=Naming)
    """The installation's templates for names of topics and groups."""
    servers: str = ""
    """Bootstrap servers of the Kafka in which Knafka would look for the topic."""
    secret: str = ""
    """Name of the Secret, in Knafka's own namespace, with which Knafka would connect to Kafka;
    empty: none."""
    peers_config: Mapping[str, str] = field(default_factory=dict)
    """The ConfigMap of all channels of eventing-kafka-broker; empty: it can't be seen."""
    served: bool = True
    """Whether the installation serves KafkaChannels."""
    peers: Sequence[Workload] = ()
    """eventing-kafka-broker's running workloads that may have to be stopped first, as they would
    serve the channel, too."""
    claimed_by: Identity | None = None
    """Another KafkaChannel whose status names the same topic."""
    unseen: Sequence[str] = ()
    """A sentence for each object that could not be read."""

    @property
    def identity(self) -> Identity:
        """The channel's namespace and name."""
        return Identity.of(self.stored)

    @property
    def valid_entries(self) -> Mapping[str, Document]:
        """The valid entries of `spec.subscribers`, each for a Subscription, by UID."""
        return entries.read_entries(self.stored).valid


def plan_channel_adoption(seen: SeenChannel) -> Plan:
    """Return the plan by which Knafka takes a KafkaChannel over. Raises `InvalidDocument` if the
    template gives its topic a name that Kafka doesn't accept."""
    topic, is_adopted = topic_of_channel(seen.stored, seen.naming), _is_adopted(seen)
    if is_adopted:
        about = f"KafkaChannel {seen.identity}: it is Knafka's already"
    else:
        about = f"KafkaChannel {seen.identity}: from {PEER} to Knafka"
    stays = [] if seen.topic is None else [topic_line(topic, seen.topic)]
    problems = [
        *running_peer_problems(seen.peers, "this KafkaChannel"),
        *_adoption_problems(seen, topic),
    ]
    waits: list[str] = []
    if _belongs_to_peer(seen) and receivers_of(status_annotations_of(seen.stored)):
        # The operator hasn't finished its release yet: it would remove annotations that are
        # written now.
        waits.append("Knafka's operator still has to release it: it was given back")
    for uid in seen.valid_entries:
        entry_plan = _plan_entry(seen, uid, is_adopted)
        stays += entry_plan.stays
        problems += entry_plan.problems
        waits += entry_plan.waits
    then = [
        "Knafka's operator takes it: receiver, dispatchers, the channel's host; then it is Ready "
        "with all Subscriptions",
        "senders go on at the same host, which then leads to Knafka's receiver; until then, "
        f"{PEER}'s receiver still writes their events to the same topic",
        f"{PEER}'s controller stays away while a KafkaChannel is Knafka's",
    ]
    steps = list(_adoption_steps(seen, topic, is_adopted))
    return Plan(
        about,
        stays=stays,
        differs=_channel_differences(seen),
        problems=problems,
        waits=waits,
        steps=steps,
        then=then,
    )


def _is_adopted(seen: SeenChannel) -> bool:
    """Whether the channel is Knafka's already: its status has the id of its present topic, and
    eventing-kafka-broker's finalizer is gone."""
    return (
        not _belongs_to_peer(seen)
        and seen.topic is not None
        and _has_annotation(seen, TOPIC_ID, seen.topic.id)
    )


def _adoption_steps(seen: SeenChannel, topic: str, is_adopted: bool) -> Iterator[Step]:
    """Yield the steps that adopt a channel: write the topic's name and id and the entries' promises
    into the status, unless they are there, then remove eventing-kafka-broker's finalizer.

    `topic` is the name of the channel's topic. `is_adopted` says whether the channel is Knafka's
    already; then its status isn't written.
    """
    if seen.topic is not None and not is_adopted:
        # A promise is JSON with an entry's annotations; an empty one promises only the group.
        promises = {PROMISE + uid: "{}" for uid in seen.valid_entries if _needs_promise(seen, uid)}
        recorded = {TOPIC_STATUS: topic, TOPIC_ID: seen.topic.id, **promises}
        is_incomplete = any(
            not _has_annotation(seen, key, value) for key, value in recorded.items()
        )
        # While the channel is eventing-kafka-broker's, so is the list `status.subscribers`, which
        # has to be emptied too.
        if is_incomplete or (_belongs_to_peer(seen) and _reported_entries(seen)):
            yield WriteAnnotations(KAFKA_CHANNEL, seen.identity, recorded, clears=["subscribers"])
    if PEERS_CHANNEL_FINALIZER in finalizers_of(seen.stored):
        yield SetFinalizers(KAFKA_CHANNEL, seen.identity, drop=[PEERS_CHANNEL_FINALIZER])


def _plan_entry(seen: SeenChannel, uid: str, is_adopted: bool) -> Plan:
    """Return a plan for one Subscription, whose parts are added to the plan to adopt its channel.
    The promise to the Subscription is written by a step of `_adoption_steps`.

    `uid` is the UID of the Subscription's entry in `spec.subscribers`. `is_adopted` says whether
    the channel is Knafka's already.
    """
    about = f"Subscription {_entry_name(uid, seen.valid_entries[uid])}"
    group = entries.entry_group(seen.identity, uid)
    group_state = seen.groups.get(group, SeenGroup())
    line = f"{about}  group {group}  {count_text(group_state.waiting, 'event')} waiting"
    if is_adopted:
        return Plan(about, stays=[line])
    waits = [members_sentence(group, group_state)] if group_state.members else []
    if not group_state.uncommitted:
        return Plan(about, stays=[line], waits=waits)
    if not _was_ready(seen, uid):
        line = f"{about}  was never Ready: it begins at the topic's end"
        return Plan(about, stays=[line], waits=waits)
    problem = (
        f"group {group} has no offset: {about} would get all events from their beginning: have "
        f"{PEER} make it Ready first, or delete the Subscription"
    )
    return Plan(about, stays=[line], problems=[problem], waits=waits)


def _needs_promise(seen: SeenChannel, uid: str) -> bool:
    """Whether the adoption must write a promise for the entry with this UID: the entry has none
    yet, and its group has offsets, or its Subscription was Ready once. Without a promise, the
    operator delivers from the topic's end on."""
    group = seen.groups.get(entries.entry_group(seen.identity, uid), SeenGroup())
    begins_at_end = bool(group.uncommitted) and not _was_ready(seen, uid)
    return not begins_at_end and not entries.is_promised(seen.stored, uid)


def plan_channel_release(seen: SeenChannel) -> Plan:
    """Return the plan by which Knafka gives a KafkaChannel back to eventing-kafka-broker."""
    identity = seen.identity
    about = f"KafkaChannel {identity}: from Knafka to {PEER}"
    problems = list(running_peer_problems(seen.peers, "this KafkaChannel", dispatchers=False))
    problems += _other_kafka_problems(seen)
    finalizers = finalizers_of(seen.stored)
    steps = release_steps(KAFKA_CHANNEL, identity, finalizers, PEERS_CHANNEL_FINALIZER)
    stays = recorded_topic_lines(seen.stored, seen.topic)
    for uid, entry in seen.valid_entries.items():
        group = entries.entry_group(identity, uid)
        waiting = count_text(seen.groups.get(group, SeenGroup()).waiting, "event")
        stays.append(f"Subscription {_entry_name(uid, entry)}  group {group}  {waiting} waiting")
    then = [
        "Knafka's operator ends its deliveries and deletes its functions; the channel's host leads "
        f"to {PEER}'s receiver",
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


def topic_of_channel(channel: Document, naming: Naming) -> str:
    """Return the name of a KafkaChannel's topic: the one in its status, or else the one that a
    template of `naming` gives it. Raises `InvalidDocument`."""
    recorded = status_annotations_of(channel).get(TOPIC_STATUS)
    return recorded or naming.name(NameKind.CHANNEL_TOPIC, NamedObject.of(channel))


def _adoption_problems(seen: SeenChannel, topic: str) -> Iterator[str]:
    """Yield a sentence for each reason why the channel can't be adopted. Left out are running
    workloads, and the groups of its entries. `topic` is the name of the channel's topic."""
    if not seen.served:
        yield (
            "this installation serves no KafkaChannels: set KNAFKA_CHANNELS=enabled "
            "(docs/how-to/use-channels.md)"
        )
    if seen.topic is None:
        yield f"topic {topic} isn't in the Kafka at {seen.servers}"
    if not seen.naming.is_own(NameKind.CHANNEL_TOPIC, topic, NamedObject.of(seen.stored)):
        yield unknown_name_sentence(f"topic {topic}:", NameKind.CHANNEL_TOPIC, "this KafkaChannel")
    yield from _other_kafka_problems(seen)
    if seen.claimed_by is not None:
        yield f"topic {topic} is in the status of KafkaChannel {seen.claimed_by}, too"
    for uid, problem in entries.read_entries(seen.stored).problems.items():
        yield f"the entry {uid or 'without uid'} of spec.subscribers: {problem}"


def _other_kafka_problems(seen: SeenChannel) -> Iterator[str]:
    """Yield a sentence if eventing-kafka-broker keeps its channels in another Kafka than Knafka;
    none if either Kafka isn't known."""
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
    sentences_by_entry = {}
    for uid, entry in seen.valid_entries.items():
        own_delivery = entry.get("delivery") or {}
        sentences = list(delivery_differences(own_delivery or channel_delivery))
        inherited = sorted(channel_delivery.keys() - own_delivery.keys())
        if own_delivery and inherited:
            sentences.append(
                f"{PEER} also applies the channel's {', '.join(inherited)} to it, Knafka doesn't"
            )
        sentences_by_entry[_entry_name(uid, entry)] = sentences
    differences = difference_sentences(sentences_by_entry, "all Subscriptions")
    peers_secret = seen.peers_config.get(SECRET_NAME_KEY, "")
    if peers_secret:
        namespace = seen.peers_config.get(SECRET_NAMESPACE) or "knative-eventing"
        own_secret = f"Secret {seen.secret} of its own namespace" if seen.secret else "none"
        differences.append(
            f"{PEER} connects to Kafka with the Secret {namespace}/{peers_secret}, Knafka with "
            f"{own_secret}"
        )
    if KAFKA_SECRET in (seen.stored["metadata"].get("annotations") or {}):
        differences.append(
            f"it names a Kafka of its own ({KAFKA_SECRET}); all channels of {PEER} use the same one"
        )
    return differences


def _belongs_to_peer(seen: SeenChannel) -> bool:
    """Whether the channel has eventing-kafka-broker's finalizer, and so belongs to it."""
    return is_claimed_by_peer(seen.stored, PEERS_CHANNEL_FINALIZER)


def _has_annotation(seen: SeenChannel, key: str, value: str) -> bool:
    """Whether the channel's status has this annotation with this value."""
    return status_annotations_of(seen.stored).get(key) == value


def _reported_entries(seen: SeenChannel) -> Sequence[Document]:
    """Return `status.subscribers`: the state of each entry of `spec.subscribers`."""
    reported: Sequence[Document] = (seen.stored.get("status") or {}).get("subscribers") or ()
    return reported


def _was_ready(seen: SeenChannel, uid: str) -> bool:
    """Whether the entry with this UID was Ready once, in either implementation. If so, its
    Subscription must miss no event from then on."""
    ready = {entry.get("uid") for entry in _reported_entries(seen) if entry.get("ready") == "True"}
    return uid in ready or entries.is_promised(seen.stored, uid)


def _entry_name(uid: str, entry: Document) -> str:
    """Return the name of an entry's Subscription; the UID if it has none."""
    return str(entry.get("name") or uid)
