"""Plans by which Knafka adopts a KafkaSource from eventing-kafka-broker, or releases it. Pure.

The source's `spec` names its topics and its group, and both implementations use these. So only the
finalizer changes.

Not here: Brokers (`broker_plan`) and KafkaChannels (`channel_plan`); reading the objects
(`looking`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from knafka_cli.adoption.plan import (
    PEER,
    START_PEER,
    Plan,
    SeenGroup,
    SetFinalizers,
    Step,
    give_back,
    members_left,
    running,
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

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SeenSource:
    """What was read about a KafkaSource: its topics and its group in Kafka, and the installation of
    Knafka."""

    stored: Document
    source: KafkaSource
    """The parsed `stored`."""
    group: SeenGroup = field(default_factory=SeenGroup)
    missing: Sequence[str] = ()
    """Topics that the source names and Kafka doesn't have."""
    served: bool = True
    """Whether the installation serves KafkaSources."""
    peers: Sequence[tuple[str, str, str]] = ()
    """Kind, namespace and name of eventing-kafka-broker's running workloads that would disturb."""
    unseen: Sequence[str] = ()
    """A sentence for each object that could not be read."""

    @property
    def identity(self) -> Identity:
        """The source's namespace and name."""
        return Identity.of(self.stored)


def plan_source_adoption(seen: SeenSource) -> Plan:
    """Return the plan by which Knafka takes a KafkaSource over; without steps if it has done so."""
    spec, group = seen.source.spec, consumer_group_of(seen.source)
    about = f"KafkaSource {seen.identity}: from {PEER} to Knafka"
    problems = list(running(seen.peers, "this KafkaSource"))
    if not seen.served:
        problems.append(
            "this installation serves no KafkaSources: set KNAFKA_SOURCES=enabled "
            "(docs/how-to/use-a-kafka-source.md)"
        )
    servers = ",".join(spec.bootstrap_servers)
    problems += [f"topic {topic} isn't in the Kafka at {servers}" for topic in seen.missing]
    if not spec.consumer_group:
        problems.append(f"it names no consumerGroup: set spec.consumerGroup to the one {PEER} has")
    is_peers = is_claimed_by_peer(seen.stored, PEERS_SOURCE_FINALIZER)
    if not is_peers:
        about = f"KafkaSource {seen.identity}: it is Knafka's already"
    waits = []
    if is_peers and seen.group.members:
        waits.append(members_left(group, seen.group))
    steps: list[Step] = []
    if PEERS_SOURCE_FINALIZER in finalizers_of(seen.stored):
        steps.append(SetFinalizers(KAFKA_SOURCE, seen.identity, drop=[PEERS_SOURCE_FINALIZER]))
    differs = []
    if seen.group.uncommitted:
        differs.append(f"the group has no offsets: it begins at {spec.initial_offset}, as there")
    if spec.delivery.dead_letter_sink is None:
        differs.append(
            "a record that fails for good goes to a topic of its own, and is dropped there"
        )
    if spec.consumers:
        differs.append(f"consumers: {spec.consumers} is the most there are, and the number there")
    then = ["Knafka's operator takes it: a dispatcher of its own; then it is Ready"]
    return Plan(about, _stays(seen), differs, problems, waits, steps, then)


def plan_source_release(seen: SeenSource) -> Plan:
    """Return the plan by which Knafka gives a KafkaSource back to eventing-kafka-broker."""
    finalizers = finalizers_of(seen.stored)
    about = f"KafkaSource {seen.identity}: from Knafka to {PEER}"
    steps = give_back(KAFKA_SOURCE, seen.identity, finalizers, PEERS_SOURCE_FINALIZER)
    then = [
        "Knafka's operator ends its deliveries and deletes its function",
        START_PEER,
    ]
    problems = list(running(seen.peers, "this KafkaSource", dispatchers=False))
    return Plan(about, _stays(seen), (), problems, (), steps, then)


def _stays(seen: SeenSource) -> list[str]:
    """Return lines for users about the topics and the group, which stay as they are."""
    waiting = f"{count_text(seen.group.waiting, 'event')} waiting"
    topics = ", ".join(seen.source.spec.topics)
    return [f"topics {topics}", f"group {consumer_group_of(seen.source)}  {waiting}"]
