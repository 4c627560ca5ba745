"""Topics: decides who owns a Broker's topic, and reports differences between the topic and its
declaration.

Kafka records no owner of a topic, but gives each topic an id. So a Broker's status keeps the name
and the id of its topic; a name with an empty id means that the topic didn't exist and is about to
be created. Any other topic was created by somebody else. Others may write an empty id into a
status, too. So with an empty id a topic is only accepted as just created if it never had records,
and no other status names it. The id is written as soon as the topic is created.

Not here: changing an existing topic; differences are reported, as repairing them could lose data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from knafka.core.errors import InvalidDocument
from knafka.ports.log import TopicDescription
from knafka_operator.decisions.effects import Annotate, CreateTopic
from knafka_operator.decisions.steps import Step
from knafka_operator.kafka import desired
from knafka_operator.kafka.desired import Defaults
from knafka_operator.model.conditions import Condition, Severity, Status
from knafka_operator.model.maxima import UNLIMITED_MAXIMA, Maxima
from knafka_operator.model.resources import EXTERNAL_TOPIC, TOPIC_STATUS
from knafka_operator.model.topics import REPLICATION_KEY, Topic, TopicRefused

TOPIC_AS_DECLARED: Final = "TopicAsDeclared"
"""Type of the condition that reports differences between a topic and its declaration."""
TOPIC_ID: Final = "knafka.dev/topic-id"
"""Key of a Broker's `status.annotations`: Kafka's id of the Broker's own topic."""


def topic_effects(
    desired_topic: Topic,
    existing: TopicDescription | None,
    annotations: Mapping[str, str],
    maxima: Maxima = UNLIMITED_MAXIMA,
    other_partitions: int = 0,
    *,
    disputed: bool = True,
    recorded: Mapping[str, str] | None = None,
    accepts_records: bool = False,
) -> tuple[Annotate | CreateTopic, ...]:
    """Return the effects (actions for the caller to carry out) that record a Broker's topic in its
    status and create it; empty if it exists and is the Broker's own, or is external.

    `existing` is the topic in Kafka (None: it doesn't exist), `annotations` are those of the
    Broker's status. A new topic must be within `maxima`; `other_partitions` is the number of
    partitions of the namespace's other topics. `disputed`: whether the topic has records or another
    object's status names it, so that an empty id doesn't prove ownership. `recorded` are
    annotations to write with the topic's name. `accepts_records`: whether a topic that somebody
    else creates meanwhile may have records. Raises `TopicRefused`.
    """
    if desired_topic.external:
        if existing is None:
            raise TopicRefused(
                "TopicNotFound",
                f"topic {desired_topic.name} does not exist: {EXTERNAL_TOPIC} names one that does",
            )
        return ()
    known_id = _known_id(desired_topic, existing, annotations)
    if existing is not None:
        _check_ownership(desired_topic.name, existing, known_id, disputed=disputed)
        if known_id:
            return ()
    else:
        _check_new_topic(desired_topic, maxima, other_partitions)
    # Also for an existing topic without an id in the status: the effect records the id.
    create_topic = CreateTopic(desired_topic, TOPIC_STATUS, TOPIC_ID, accepts_records)
    if known_id is not None:
        return (create_topic,)
    annotations_to_write = {TOPIC_STATUS: desired_topic.name, TOPIC_ID: "", **(recorded or {})}
    return Annotate(Step.RECORD_TOPIC, annotations_to_write), create_topic


@dataclass(frozen=True, slots=True)
class ObservedTopic:
    """A Broker's topic as declared, and as it exists in Kafka."""

    desired: Topic
    existing: TopicDescription | None = None
    """The topic as Kafka describes it; None: it doesn't exist."""
    other_partitions: int = 0
    """Partitions of the namespace's other topics."""
    disputed: bool = True
    """Whether an empty id in the status doesn't prove that the topic is the Broker's own, as the
    topic has records or another object's status names it."""

    def partitions_to_create(self, maxima: Maxima) -> int:
        """Return the number of partitions of a topic that is to be created; 0: it exists, is
        external, or is refused by `maxima`."""
        if self.existing is not None or self.desired.external:
            return 0
        try:
            _check_new_topic(self.desired, maxima, self.other_partitions)
        except TopicRefused:
            return 0
        return self.desired.partitions

    def effects(
        self,
        annotations: Mapping[str, str],
        maxima: Maxima,
        recorded: Mapping[str, str],
        *,
        accepts_records: bool = False,
    ) -> tuple[Annotate | CreateTopic, ...]:
        """Return the effects that record and create the topic. For parameters, result and errors
        see `topic_effects`."""
        return topic_effects(
            self.desired,
            self.existing,
            annotations,
            maxima,
            self.other_partitions,
            disputed=self.disputed,
            recorded=recorded,
            accepts_records=accepts_records,
        )


def _check_new_topic(topic: Topic, maxima: Maxima, other_partitions: int) -> None:
    """Check a new topic against the installation's maxima; `other_partitions` is the number of
    partitions of the namespace's other topics. Raises `TopicRefused`."""
    try:
        maxima.check_partitions(topic.partitions, "partitions")
        maxima.check_replication(topic.replication, "replicas")
    except InvalidDocument as error:
        raise TopicRefused("TopicTooLarge", f"topic {topic.name} is not made: {error}") from error
    if topic.partitions + other_partitions > maxima.namespace_partitions:
        raise TopicRefused(
            "NamespacePartitions",
            f"topic {topic.name} is not made: its {topic.partitions} partitions and the "
            f"{other_partitions} of its namespace's other topics are more than the "
            f"{maxima.namespace_partitions} that a namespace may have "
            "(KNAFKA_MAX_NAMESPACE_PARTITIONS): declare less, or delete others",
        )


def _check_ownership(
    name: str, existing: TopicDescription, known_id: str | None, *, disputed: bool
) -> None:
    """Raise `TopicRefused` unless the existing topic `name` is the Broker's own. `known_id` is the
    topic's id in the status: empty if the topic was about to be created, None if the status doesn't
    name the topic. `disputed` as in `topic_effects`."""
    if known_id is None or (not known_id and disputed):
        raise TopicRefused(
            "TopicNotOurs",
            f"topic {name} exists and was not made for this object: delete it, or give "
            "this one another name",
        )
    if known_id and existing.id != known_id:
        raise TopicRefused(
            "TopicReplaced",
            f"topic {name} was deleted and made again by somebody else: delete it",
        )


def _known_id(
    desired_topic: Topic, existing: TopicDescription | None, annotations: Mapping[str, str]
) -> str | None:
    """Return the id of the desired topic in the status `annotations`: empty if the topic was about
    to be created. None: the status has no id, or another topic's. `existing` is the topic of that
    name in Kafka; None: it doesn't exist."""
    recorded_id = annotations.get(TOPIC_ID)
    if annotations.get(TOPIC_STATUS) in (None, desired_topic.name):
        return recorded_id
    # The status names another topic, such as an external one. If the id is this topic's, the
    # Broker had this topic before; an empty id belongs to the other name.
    return recorded_id if existing is not None and existing.id == recorded_id else None


def may_delete_topic(
    existing: TopicDescription | None, known_id: str | None, *, used: bool, claimed: bool
) -> bool:
    """Whether the `existing` topic (None: there is none) was created for an object, and so may be
    deleted with the object. `known_id`, from the object's status (None: it has none), must be the
    topic's id, or empty for a topic that has never had records (not `used`). A topic that another
    object's status names, too (`claimed`), may never be deleted."""
    if existing is None or known_id is None or claimed:
        return False
    return known_id == existing.id or (not known_id and not used)


def as_declared_condition(topic: Topic, existing: TopicDescription) -> Condition:
    """Return the condition `TopicAsDeclared` of one topic: False, as a warning, if the topic
    differs from its declaration."""
    return all_as_declared_condition([(topic, existing)])


def all_as_declared_condition(topics: Iterable[tuple[Topic, TopicDescription]]) -> Condition:
    """Return the condition `TopicAsDeclared` of several topics: False, as a warning, if one of them
    differs from its declaration."""
    drifted = [
        f"topic {topic.name} is left as it is: {'; '.join(differences)}"
        for topic, existing in topics
        if (differences := drift(topic, existing))
    ]
    if not drifted:
        return Condition(TOPIC_AS_DECLARED, Status.TRUE, severity=Severity.WARNING)
    return Condition(
        TOPIC_AS_DECLARED, Status.FALSE, "TopicDrifted", "; ".join(drifted), Severity.WARNING
    )


def drift(desired_topic: Topic, existing: TopicDescription) -> Sequence[str]:
    """Return the differences between the `existing` topic and its declaration, each as a text for
    users, such as `partitions: 3, declared 10`; empty if there are none, and for an external topic.
    """
    if desired_topic.external:
        return ()
    counts = (
        ("partitions", desired_topic.partitions, existing.partitions),
        ("replicas", desired_topic.replication, existing.replication),
    )
    differences = [
        f"{aspect}: {actual}, declared {declared}"
        for aspect, declared, actual in counts
        if declared != actual
    ]
    for key, declared_value in sorted(desired_topic.config.items()):
        value = existing.config.get(key)
        if value is None and key in desired.LOG_APPEND_TIME_CONFIG:
            continue  # the topic may be from before Knafka set this option
        if value != declared_value:
            shown_value = "not set" if value is None else value
            differences.append(f"{key}: {shown_value}, declared {declared_value}")
    return differences


def topic_annotations(
    topic: Topic, existing: TopicDescription, defaults: Defaults
) -> Mapping[str, str]:
    """Return the annotations of a Broker's status that record its topic (KN-BRK-19): `topic`, which
    exists as `existing`, at the Kafka servers of `defaults`."""
    return {
        TOPIC_STATUS: topic.name,
        desired.PARTITIONS_KEY: str(existing.partitions),
        REPLICATION_KEY: str(existing.replication),
        desired.BOOTSTRAP_SERVERS: defaults.kafka.bootstrap_servers,
        **({} if topic.external else {TOPIC_ID: existing.id}),
    }
