"""Ownership: whose a topic or a group is that the statuses of two objects name.

Names join with dashes, so `a` with `b-c` and `a-b` with `c` can have the same ones. In memory the
first that is heard of has a name, and after a restart that may be one into whose status somebody
only wrote it. So where two claim a name Kafka is asked: for a topic's id, for a group's offsets on
the object's own topic. And nothing is deleted that another status names, too.

Not here: Sensors' (`sensor_ownership`); KafkaChannels' and Subscriptions' names never collide.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from knafka.core import names
from knafka.core.errors import LogError
from knafka_operator.decide.topics import TOPIC_ID
from knafka_operator.model.cluster import Cluster, Document
from knafka_operator.model.family import BROKERS, CHANNELS
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import GROUP_STATUS, TOPIC_STATUS
from knafka_operator.reconcile.state import (
    BrokerRecord,
    BrokerState,
    States,
    TriggerRecord,
    group_in_status,
    topic_in_status,
)


@dataclass(eq=False, slots=True)
class TopicOwnership:
    """Of Brokers' topics."""

    cluster: Cluster
    states: States

    async def prove(self, document: Document, record: BrokerRecord, taken: Container[str]) -> None:
        """Claim the topic of its status where another Broker has done so, and Kafka's id of it says
        that it is this one's: who came first after a restart says nothing."""
        topic, known = topic_in_status(document), annotations_of(document).get(TOPIC_ID)
        own = names.is_broker_topic(topic, *Identity.of(document))
        if topic is None or not own or not known or topic not in taken:
            return
        assert record.kafka is not None
        found = await record.kafka.topics.describe_topic(topic)
        if found is not None and found.id == known:
            self.states.claim_topic(record, topic)

    async def is_claimed(self, identity: Identity, topic: str) -> bool:
        """Whether another Broker's status names it, too."""
        kind = BROKERS.broker_version, BROKERS.broker
        joined = topic.removeprefix(names.BROKERS)
        return await _is_claimed(self.cluster, kind, joined, identity, TOPIC_STATUS, topic)


@dataclass(eq=False, slots=True)
class GroupOwnership:
    """Of Triggers' consumer groups."""

    cluster: Cluster
    states: States

    async def prove(
        self,
        document: Document,
        record: TriggerRecord,
        taken: Container[str],
        broker: BrokerState,
    ) -> None:
        """Claim the group of its status where another Trigger has done so, and offsets on its own
        Broker's topic say that it is this one's: who came first after a restart says nothing."""
        group = group_in_status(document)
        if group is None or group not in taken:
            return
        try:
            is_own = await broker.kafka.topics.has_committed(group, broker.topic.name)
        except LogError:
            is_own = True  # it goes on as it was: with another group it would miss events
        if is_own:
            self.states.claim_group(record, group)

    async def is_claimed(self, trigger: Identity, group: str) -> bool:
        """Whether another Trigger's status names this group, too. Raises `ClusterError`."""
        family = self.states.family
        if family is CHANNELS:
            return False  # it has the Subscription's UID
        kind, joined = (family.trigger_version, family.trigger), group.removeprefix(names.TRIGGERS)
        return await _is_claimed(self.cluster, kind, joined, trigger, GROUP_STATUS, group)


async def _is_claimed(
    cluster: Cluster, kind: tuple[str, str], joined: str, mine: Identity, key: str, name: str
) -> bool:
    """Whether the status of another object of this kind, whose namespace and name give `joined`
    too, names this topic or group under `key`. Raises `ClusterError`.

    Asked of what is stored: in memory is who came first, which is another one after a restart.
    """
    for of in names.parts_of(joined):
        if of != mine and (stored := await cluster.get(*kind, *of)) is not None:
            annotations = (stored.get("status") or {}).get("annotations") or {}
            if annotations.get(key) == name:
                return True
    return False


def annotations_of(document: Document) -> Mapping[str, str]:
    """Of its status."""
    return (document.get("status") or {}).get("annotations") or {}
