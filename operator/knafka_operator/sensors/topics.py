"""Sensor topics: decides the names and settings of a Sensor's topics, their records in its status,
and which topics to create. Names of topics and group are recorded in the status before topics and
group are created, so that a deletion finds them. Pure.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from knafka.core import names
from knafka.ports.log import TopicDescription
from knafka_operator.decisions.effects import CreateTopic
from knafka_operator.kafka import desired
from knafka_operator.kafka.dead_letter_topics import MAX_INT, MAX_MESSAGE_BYTES
from knafka_operator.kafka.topics import TOPIC_ID, all_as_declared_condition, topic_effects
from knafka_operator.model.conditions import Condition
from knafka_operator.model.maxima import Maxima
from knafka_operator.model.resources import GROUP_STATUS, TOPIC_STATUS
from knafka_operator.model.sensors import ACTION, CHANGELOG, TOPICS, TRIGGER, Sensor
from knafka_operator.model.topics import Topic, TopicRefused
from knafka_operator.records.delivery import BrokerState
from knafka_operator.sensors.limits import ACTION_EVENTS

RECORD_OVERHEAD_BYTES: Final = 65_536
"""Bytes by which a record may exceed twice its event: attributes, names and a correlation key. The
event itself is held as JSON, for which twice its size is reserved."""
MAX_ACTION_BYTES: Final = 64 * 1024 * 1024
"""Largest `max.message.bytes` of an action topic, unless one event of the bus needs more."""

K = TypeVar("K")
"""The type of a connection to Kafka, which is never used here."""


def desired_topics(
    sensor: Sensor,
    broker: BrokerState[K],
    annotations: Mapping[str, str],
    existing_topics: Mapping[str, TopicDescription | None],
    names_of_others: Container[str],
) -> Mapping[str, Topic]:
    """Return a Sensor's desired topics, by their use: `ACTION`, `CHANGELOG` and `TRIGGER` (BUS-9 to
    BUS-11, BUS-13). `broker` is the state of its bus, and `annotations` are those of its status.
    `existing_topics` describes topics in Kafka by name, None: there is no such topic.
    `names_of_others` has the topics of other Sensors.

    The topics keep the number of partitions that the bus's topic had at first, since changelog and
    trigger topic must always have equally many.
    """
    recorded_partitions = annotations.get(desired.PARTITIONS_KEY, "")
    partitions = (
        int(recorded_partitions)
        if recorded_partitions.isdecimal() and int(recorded_partitions)
        else broker.partitions
    )
    max_event_bytes = desired.max_record_bytes(broker.topic.config)
    event_record_bytes = 2 * max_event_bytes + RECORD_OVERHEAD_BYTES
    max_bytes_by_use = {
        TRIGGER: event_record_bytes,
        CHANGELOG: event_record_bytes,
        ACTION: max(event_record_bytes, min(ACTION_EVENTS * max_event_bytes, MAX_ACTION_BYTES)),
    }
    return {
        use: Topic(
            _topic_name(sensor, use, annotations, existing_topics, names_of_others),
            partitions,
            # How many replicas an external topic has isn't known here.
            -1 if broker.topic.external else broker.topic.replication,
            {
                **broker.topic.config,
                "cleanup.policy": "compact" if use == CHANGELOG else "delete",
                MAX_MESSAGE_BYTES: str(min(max_bytes_by_use[use], MAX_INT)),
            },
        )
        for use in TOPICS
    }


def candidate_names(sensor: Sensor, use: str) -> Sequence[str]:
    """Return the two names that a Sensor's topic for this use may have; the second is used if the
    first is taken."""
    bus = sensor.bus
    own_name = bus.family.own_name(bus.identity.name)
    name_parts = sensor.metadata.namespace, own_name, sensor.metadata.name, use
    return names.sensor_topic(*name_parts), names.distinct_sensor_topic(*name_parts)


def recorded_topic(sensor: Sensor, use: str, annotations: Mapping[str, str]) -> str | None:
    """Return the topic for this use that the status of the Sensor names by its `annotations`. None:
    they name none, or one that can't be the Sensor's own."""
    name = annotations.get(TOPICS[use][0])
    return name if name in candidate_names(sensor, use) else None


def _topic_name(
    sensor: Sensor,
    use: str,
    annotations: Mapping[str, str],
    existing_topics: Mapping[str, TopicDescription | None],
    names_of_others: Container[str],
) -> str:
    """Return the name of a Sensor's topic for this use: the one in the status (`annotations`), else
    the first of `candidate_names`. If that one is in `names_of_others`, or if such a topic exists,
    it is somebody else's, and the second name is returned."""
    usual_name, distinct_name = candidate_names(sensor, use)
    if (recorded_name := recorded_topic(sensor, use, annotations)) is not None:
        return recorded_name
    is_taken = usual_name in names_of_others or existing_topics.get(usual_name) is not None
    return distinct_name if is_taken else usual_name


def annotations_to_record(
    topics_by_use: Mapping[str, Topic],
    group: str,
    broker: BrokerState[K],
    annotations: Mapping[str, str],
    existing_topics: Mapping[str, TopicDescription | None],
) -> Mapping[str, str]:
    """Return the annotations that name the topics and the consumer `group`, to write to the status
    before topics are created. Empty: `annotations`, those of the status, are up to date. Raises
    `TopicRefused` for a topic that exists though the status doesn't name it: somebody else created
    it."""
    annotations_to_write = {} if annotations.get(GROUP_STATUS) == group else {GROUP_STATUS: group}
    for use, topic in topics_by_use.items():
        name_key, id_key = TOPICS[use]
        is_recorded = annotations.get(name_key) == topic.name
        if existing_topics[topic.name] is not None and not is_recorded:
            raise TopicRefused(
                "TopicNotOurs",
                f"topic {topic.name} exists and was not made for this object: delete it, or "
                "give this one another name",
            )
        was_deleted = existing_topics[topic.name] is None and bool(annotations.get(id_key))
        # A topic that was deleted is created again with another id, so its recorded id is cleared.
        if not is_recorded or was_deleted:
            annotations_to_write |= {name_key: topic.name, id_key: ""}
    if annotations_to_write:
        annotations_to_write[desired.PARTITIONS_KEY] = str(topics_by_use[TRIGGER].partitions)
        annotations_to_write[desired.BOOTSTRAP_SERVERS] = broker.defaults.kafka.bootstrap_servers
    return annotations_to_write


def topics_to_create(
    topics_by_use: Mapping[str, Topic],
    annotations: Mapping[str, str],
    existing_topics: Mapping[str, TopicDescription | None],
    maxima: Maxima,
    disputed: Container[str],
) -> Sequence[CreateTopic]:
    """Return the effects that create missing topics. `annotations` are those of the Sensor's
    status: a topic's name there without its id was written before the Sensor created it, which
    proves that the topic is its own, unless others claim it, too (`disputed`). Raises
    `TopicRefused` for a topic that somebody else has recreated, or that is too large."""
    effects: list[CreateTopic] = []
    for use, topic in topics_by_use.items():
        name_key, id_key = TOPICS[use]
        # `topic_effects` uses a Broker's keys of the status; a Sensor's topics have their own.
        recorded = {TOPIC_STATUS: topic.name, TOPIC_ID: annotations.get(id_key, "")}
        is_disputed = topic.name in disputed
        broker_effects = topic_effects(
            topic, existing_topics[topic.name], recorded, maxima, disputed=is_disputed
        )
        if any(isinstance(effect, CreateTopic) for effect in broker_effects):
            effects.append(CreateTopic(topic, name_key, id_key))
    return effects


def check_partitions(
    topics_by_use: Mapping[str, Topic], existing_topics: Mapping[str, TopicDescription | None]
) -> None:
    """Check that trigger topic and changelog, which exist, have equally many partitions, since
    partitions of the same number belong together. Raises `TopicRefused`."""
    counts = [
        description.partitions
        for use in (TRIGGER, CHANGELOG)
        if (description := existing_topics[topics_by_use[use].name])
    ]
    if len(set(counts)) != 1:
        trigger_topic, changelog_topic = topics_by_use[TRIGGER].name, topics_by_use[CHANGELOG].name
        raise TopicRefused(
            "PartitionsDiffer",
            f"{trigger_topic} and {changelog_topic} have "
            f"{' and '.join(map(str, counts))} partitions: want the same number",
        )


def as_declared_condition(
    topics_by_use: Mapping[str, Topic], existing_topics: Mapping[str, TopicDescription | None]
) -> Condition:
    """Return the condition `TopicAsDeclared` of a Sensor's topics: a warning if one differs. If no
    number of replicas is desired (-1), every number is right."""
    return all_as_declared_condition(
        (
            replace(topic, replication=existing.replication) if topic.replication < 0 else topic,
            existing,
        )
        for topic in topics_by_use.values()
        if (existing := existing_topics[topic.name]) is not None
    )


def topic_id(existing: TopicDescription | None) -> str:
    """Return Kafka's id of a topic that must exist."""
    assert existing is not None
    return existing.id
