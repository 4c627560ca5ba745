"""Plans by which Knafka adopts a KafkaSource from eventing-kafka-broker, or releases it. Pure.

The source's `spec` names its topics and its group, and both implementations use these. So only the
finalizer changes.

Not here: Brokers (`broker_plan`) and KafkaChannels (`channel_plan`); reading the objects
(`looking`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from knafka_cli.adoption.plan import (
    PEER,
    START_PEER,
    Document,
    Plan,
    SeenGroup,
    SetFinalizers,
    Step,
    Workload,
    members_sentence,
    release_steps,
    running_peer_problems,
)
from knafka_cli.shared.counts import count_text
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import finalizers_of, is_claimed_by_peer
from knafka_operator.model.sources import (
    KAFKA_SOURCE,
    PEERS_SOURCE_FINALIZER,
    KafkaSource,
    consumer_group_of,
)


@dataclass(frozen=True, slots=True)
class SeenSource:
    """What was read about a KafkaSource: its topics and its group in Kafka, and the installation of
    Knafka."""

    stored: Document
    """The KafkaSource's object."""
    source: KafkaSource
    """The object `stored`, parsed."""
    group: SeenGroup = field(default_factory=SeenGroup)
    """The source's consumer group."""
    missing: Sequence[str] = ()
    """Topics that the source names and Kafka doesn't have."""
    served: bool = True
    """Whether the installation serves KafkaSources."""
    peers: Sequence[Workload] = ()
    """eventing-kafka-broker's running workloads that may have to be stopped first."""
    unseen: Sequence[str] = ()
    """A sentence for each object that could not be read."""

    @property
    def identity(self) -> Identity:
        """The source's namespace and name."""
        return Identity.of(self.stored)


def plan_source_adoption(seen: SeenSource) -> Plan:
    """Return the plan by which Knafka takes a KafkaSource over. The plan has no steps if the source
    is Knafka's already."""
    belongs_to_peer = is_claimed_by_peer(seen.stored, PEERS_SOURCE_FINALIZER)
    if belongs_to_peer:
        about = f"KafkaSource {seen.identity}: from {PEER} to Knafka"
    else:
        about = f"KafkaSource {seen.identity}: it is Knafka's already"
    waits = []
    if belongs_to_peer and seen.group.members:
        waits.append(members_sentence(consumer_group_of(seen.source), seen.group))
    steps: list[Step] = []
    if PEERS_SOURCE_FINALIZER in finalizers_of(seen.stored):
        steps.append(SetFinalizers(KAFKA_SOURCE, seen.identity, drop=[PEERS_SOURCE_FINALIZER]))
    then = ["Knafka's operator takes it: a dispatcher of its own; then it is Ready"]
    return Plan(
        about,
        stays=_topic_and_group_lines(seen),
        differs=list(_source_differences(seen)),
        problems=list(_adoption_problems(seen)),
        waits=waits,
        steps=steps,
        then=then,
    )


def _adoption_problems(seen: SeenSource) -> Iterator[str]:
    """Yield a sentence for each reason why the source can't be adopted."""
    spec = seen.source.spec
    yield from running_peer_problems(seen.peers, "this KafkaSource")
    if not seen.served:
        yield (
            "this installation serves no KafkaSources: set KNAFKA_SOURCES=enabled "
            "(docs/how-to/use-a-kafka-source.md)"
        )
    servers = ",".join(spec.bootstrap_servers)
    for topic in seen.missing:
        yield f"topic {topic} isn't in the Kafka at {servers}"
    if not spec.consumer_group:
        yield f"it names no consumerGroup: set spec.consumerGroup to the one {PEER} has"


def _source_differences(seen: SeenSource) -> Iterator[str]:
    """Yield a sentence for each way in which Knafka serves the source differently from
    eventing-kafka-broker, and where the group begins if it has no offsets."""
    spec = seen.source.spec
    if seen.group.uncommitted:
        yield f"the group has no offsets: it begins at {spec.initial_offset}, as with {PEER}"
    if spec.delivery.dead_letter_sink is None:
        yield f"a record that fails for good goes to a dead-letter topic; {PEER} drops it"
    if spec.consumers:
        yield f"consumers: there are at most {spec.consumers}; {PEER} always has that number"


def plan_source_release(seen: SeenSource) -> Plan:
    """Return the plan by which Knafka gives a KafkaSource back to eventing-kafka-broker."""
    finalizers = finalizers_of(seen.stored)
    about = f"KafkaSource {seen.identity}: from Knafka to {PEER}"
    steps = release_steps(KAFKA_SOURCE, seen.identity, finalizers, PEERS_SOURCE_FINALIZER)
    then = [
        "Knafka's operator ends its deliveries and deletes its function",
        START_PEER,
    ]
    problems = list(running_peer_problems(seen.peers, "this KafkaSource", dispatchers=False))
    stays = _topic_and_group_lines(seen)
    return Plan(about, stays=stays, problems=problems, steps=steps, then=then)


def _topic_and_group_lines(seen: SeenSource) -> list[str]:
    """Return lines for users about the source's topics and group, which stay as they are."""
    waiting = f"{count_text(seen.group.waiting, 'event')} waiting"
    topics = ", ".join(seen.source.spec.topics)
    return [f"topics {topics}", f"group {consumer_group_of(seen.source)}  {waiting}"]
