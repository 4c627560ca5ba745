"""A Sensor's topics: what they are called, what its status keeps of them, and which are to be made.

What the status keeps of its topics and its group is written before they are made, so that a
deletion finds them. Pure.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from knafka.core import names
from knafka.ports.log import TopicDescription
from knafka_operator.decide import desired
from knafka_operator.decide.dead_letter_topics import LIMIT, MAX_INT
from knafka_operator.decide.desired import Topic
from knafka_operator.decide.effects import (
    CreateTopic,
)
from knafka_operator.decide.topics import (
    TOPIC_ID,
    TopicRefused,
    all_as_declared,
    topic_effects,
)
from knafka_operator.decide.trigger import BrokerState
from knafka_operator.model.conditions import Condition
from knafka_operator.model.maxima import Maxima
from knafka_operator.model.resources import GROUP_STATUS, TOPIC_STATUS
from knafka_operator.model.sensors import Sensor

TRIGGER: Final = "trigger"
CHANGELOG: Final = "changelog"
ACTION: Final = "action"
TOPICS: Final[Mapping[str, tuple[str, str]]] = {
    TRIGGER: ("knafka.dev/trigger-topic", "knafka.dev/trigger-topic-id"),
    CHANGELOG: ("knafka.dev/changelog-topic", "knafka.dev/changelog-topic-id"),
    ACTION: ("knafka.dev/action-topic", "knafka.dev/action-topic-id"),
}
"""What a Sensor's topics are, and the keys of `status.annotations` with name and id of each."""
ROOM: Final = 65_536
"""What a record may be larger than twice its event: attributes, names and a correlation key."""
MAX_ACTION_BYTES: Final = 64 * 1024 * 1024
"""No action gets larger by what its topic allows, unless one event of the bus would be."""

K = TypeVar("K")


def topics(
    sensor: Sensor,
    broker: BrokerState[K],
    annotations: Mapping[str, str],
    found: Mapping[str, TopicDescription | None],
    taken: Container[str],
) -> Mapping[str, Topic]:
    """A Sensor's topics as they should be, by what they are (BUS-9 to BUS-11, BUS-13).

    They have as many partitions as the Broker's topic had at first: the changelog's must be as many
    as the trigger topic's for ever.
    """
    counted = annotations.get(desired.PARTITIONS, "")
    partitions = int(counted) if counted.isdecimal() and int(counted) else broker.partitions
    limit = max(desired.record_limit(broker.topic), _limit_of(found.get(broker.topic.name)))
    one = 2 * limit + ROOM
    limits = {
        TRIGGER: one,
        CHANGELOG: one,
        ACTION: max(one, min(16 * limit, MAX_ACTION_BYTES)),
    }
    return {
        what: Topic(
            _name(sensor, what, annotations, found, taken),
            partitions,
            # How many replicas an external topic has isn't known here.
            -1 if broker.topic.external else broker.topic.replication,
            {
                **broker.topic.config,
                "cleanup.policy": "compact" if what == CHANGELOG else "delete",
                LIMIT: str(min(limits[what], MAX_INT)),
            },
        )
        for what in TOPICS
    }


def _limit_of(bus: TopicDescription | None) -> int:
    """The bytes of its largest record, by what is set on the topic: of an external one nothing is
    declared, and of any somebody may have raised it."""
    limit = "" if bus is None else bus.config.get(LIMIT, "")
    return int(limit) if limit.isdecimal() else 0


def candidates(sensor: Sensor, what: str) -> Sequence[str]:
    """What a topic may be called: the second if the first is somebody else's."""
    bus = sensor.bus
    own_name = bus.family.own_name(bus.who.name)
    of = sensor.metadata.namespace, own_name, sensor.metadata.name, what
    return names.sensor_topic(*of), names.distinct_sensor_topic(*of)


def recorded(sensor: Sensor, what: str, annotations: Mapping[str, str]) -> str | None:
    """The topic that its status names; None: none, or one that can't be its own."""
    name = annotations.get(TOPICS[what][0])
    return name if name in candidates(sensor, what) else None


def _name(
    sensor: Sensor,
    what: str,
    annotations: Mapping[str, str],
    found: Mapping[str, TopicDescription | None],
    taken: Container[str],
) -> str:
    usual, distinct = candidates(sensor, what)
    if (mine := recorded(sensor, what, annotations)) is not None:
        return mine
    return distinct if usual in taken or found.get(usual) is not None else usual


def to_record(
    wanted: Mapping[str, Topic],
    group: str,
    broker: BrokerState[K],
    annotations: Mapping[str, str],
    found: Mapping[str, TopicDescription | None],
) -> Mapping[str, str]:
    """What its status is to say before topics are made; empty: it says so."""
    news = {} if annotations.get(GROUP_STATUS) == group else {GROUP_STATUS: group}
    for what, topic in wanted.items():
        name, id_ = TOPICS[what]
        is_recorded = annotations.get(name) == topic.name
        if found[topic.name] is not None and not is_recorded:
            raise TopicRefused(
                "TopicNotOurs",
                f"topic {topic.name} exists and was not made for this object: delete it, or "
                "give this one another name",
            )
        if not is_recorded or (found[topic.name] is None and annotations.get(id_)):
            news |= {name: topic.name, id_: ""}
    if news:
        news[desired.PARTITIONS] = str(wanted[TRIGGER].partitions)
        news[desired.BOOTSTRAP_SERVERS] = broker.defaults.kafka.bootstrap_servers
    return news


def to_make(
    wanted: Mapping[str, Topic],
    annotations: Mapping[str, str],
    found: Mapping[str, TopicDescription | None],
    maxima: Maxima,
    disputed: Container[str],
) -> Sequence[CreateTopic]:
    """Raises `TopicRefused` for one that was made anew by somebody else, or is too large;
    `disputed` are topics of which an empty id says nothing (`topic_effects`)."""
    effects: list[CreateTopic] = []
    for what, topic in wanted.items():
        name_key, id_key = TOPICS[what]
        known = {TOPIC_STATUS: topic.name, TOPIC_ID: annotations.get(id_key, "")}
        is_disputed = topic.name in disputed
        needed = topic_effects(topic, found[topic.name], known, maxima, disputed=is_disputed)
        if any(isinstance(each, CreateTopic) for each in needed):
            effects.append(CreateTopic(topic, name_key, id_key))
    return effects


def check_partitions(
    wanted: Mapping[str, Topic], found: Mapping[str, TopicDescription | None]
) -> None:
    """What a partition of the trigger topic holds is in that of the changelog with its number."""
    counts = [
        each.partitions for what in (TRIGGER, CHANGELOG) if (each := found[wanted[what].name])
    ]
    if len(set(counts)) != 1:
        one, other = wanted[TRIGGER].name, wanted[CHANGELOG].name
        raise TopicRefused(
            "PartitionsDiffer",
            f"{one} and {other} have {' and '.join(map(str, counts))} partitions: want as many",
        )


def as_declared(
    wanted: Mapping[str, Topic], found: Mapping[str, TopicDescription | None]
) -> Condition:
    """A warning: what is smaller than its bus allows would stop it with a record too large."""
    return all_as_declared(
        (replace(each, replication=there.replication) if each.replication < 0 else each, there)
        for each in wanted.values()
        if (there := found[each.name]) is not None
    )


def id_of(found: TopicDescription | None) -> str:
    assert found is not None
    return found.id
