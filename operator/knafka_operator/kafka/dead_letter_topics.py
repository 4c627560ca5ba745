"""Dead-letter topics: decides the settings and retention of a Trigger's dead-letter topic, and
whether Knafka may alter an existing topic. Pure.

    annotation of the Trigger, else of its Broker, else the ConfigMap's key, else 30 days

The dispatcher creates the topic with the first dead letter. Kafka records no owner of a topic: a
topic with the settings that dispatchers use counts as ours, and from then on the Trigger's status
keeps its id and the retention that we set. A topic or retention by somebody else is never altered.

Not here: looking at the topics of a Kafka (`dispatchers.dead_letter_monitor`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from knafka.core.contract import DEAD_LETTER_TOPIC_CONFIG, TopicSettings
from knafka.core.documents import Duration, Model, parse
from knafka.core.errors import InvalidDocument
from knafka.ports.log import TopicDescription
from knafka_operator.model.resources import KNAFKA_PREFIX, annotation_path

DEAD_LETTER_TOPIC: Final = "knafka.dev/dead-letter-topic"
"""Key of `status.annotations`: the Trigger's dead-letter topic."""
RETENTION_ANNOTATION: Final = f"{KNAFKA_PREFIX}dead-letter-retention"
"""Annotation of a Trigger, or of its Broker for Triggers without one; in a Trigger's status, the
`retention.ms` that its topic got."""
RETENTION_KEY: Final = "dead.letter.topic.retention"
"""Key of a Broker's ConfigMap: the default retention."""
DEAD_LETTER_TOPIC_ID: Final = f"{KNAFKA_PREFIX}dead-letter-topic-id"
"""Key of a Trigger's `status.annotations`: Kafka's id of the topic that Knafka may alter."""

RETAIN_FOR_EVER: Final = "forever"
"""A declared retention without an end."""
DEFAULT_RETENTION: Final = 30 * 86_400.0
MIN_RETENTION: Final = 60.0
MAX_DEAD_LETTER_RETENTION: Final = 36_500 * 86_400.0
"""In seconds: the default, the shortest and the longest retention that may be declared."""

DEAD_LETTER_PARTITIONS: Final = 1
"""One partition, as dead letters are few, and partitions for a thousand Triggers cost Kafka
resources."""
FAILURE_ATTRIBUTES_BYTES: Final = 16_384
"""Bytes by which a dead letter may exceed its event: the attributes that describe its failure."""
MAX_INT: Final = 2**31 - 1
"""Largest value of a topic setting that is an int."""

# Kafka's topic settings, and values of them.
MAX_MESSAGE_BYTES: Final = "max.message.bytes"
RETENTION_MS: Final = "retention.ms"
UNLIMITED_RETENTION: Final = "-1"
"""The value of `retention.ms` that keeps records for ever."""
TIMESTAMP_TYPE: Final = "message.timestamp.type"
LOG_APPEND_TIME: Final = "LogAppendTime"


class _Declared(Model):
    """Parses and checks a declared retention."""

    retention: Annotated[Duration, Field(ge=MIN_RETENTION, le=MAX_DEAD_LETTER_RETENTION)]


def parse_retention(text: str, path: str) -> float | None:
    """Return the seconds of a declared retention such as `P30D`; None: `forever`. Raises
    `InvalidDocument` with `path`, the field that holds `text`."""
    text = text.strip()
    if text == RETAIN_FOR_EVER:
        return None
    try:
        return parse(_Declared, {"retention": text}).retention
    except InvalidDocument:
        requirement = f"want P30D, PT12H or the like, from PT1M to P36500D, or {RETAIN_FOR_EVER}"
        raise InvalidDocument(path, f"invalid value: {text:.80}: {requirement}") from None


def check_retention_annotation(annotations: Mapping[str, str]) -> None:
    """Raise `InvalidDocument` if there is a retention annotation and its value is invalid."""
    if RETENTION_ANNOTATION in annotations:
        parse_retention(annotations[RETENTION_ANNOTATION], annotation_path(RETENTION_ANNOTATION))


def effective_retention(default: float | None, *declared: Mapping[str, str]) -> float | None:
    """Return the retention in seconds; None: for ever. `declared` has the annotations of several
    objects: the first object with `RETENTION_ANNOTATION` decides; if none has it, `default` does.
    Raises `InvalidDocument` for an invalid annotation."""
    path = annotation_path(RETENTION_ANNOTATION)
    for object_annotations in declared:
        if RETENTION_ANNOTATION in object_annotations:
            return parse_retention(object_annotations[RETENTION_ANNOTATION], path)
    return default


def dead_letter_topic_settings(
    config: Mapping[str, str], replication: int, max_event_bytes: int, retention: float | None
) -> TopicSettings:
    """Return the settings of a new dead-letter topic: those of the Broker's topic (`config`,
    `replication`), but without compaction or a limit of the topic's size, and with the time of the
    append as timestamp. A record may have `max_event_bytes` bytes, the size of the largest event,
    plus `FAILURE_ATTRIBUTES_BYTES`. The topic keeps records for `retention` seconds; None: for
    ever."""
    max_message_bytes = str(min(max_event_bytes + FAILURE_ATTRIBUTES_BYTES, MAX_INT))
    expiry = {} if retention is None else {RETENTION_MS: str(round(retention * 1000))}
    return TopicSettings(
        partitions=DEAD_LETTER_PARTITIONS,
        replication=replication,
        # Records get the time at which they are appended, since Spark's Kafka source can't read
        # some timestamps that senders set.
        config={
            **config,
            TIMESTAMP_TYPE: LOG_APPEND_TIME,
            **DEAD_LETTER_TOPIC_CONFIG,
            **expiry,
            MAX_MESSAGE_BYTES: max_message_bytes,
        },
    )


@dataclass(frozen=True, slots=True)
class Ownership:
    """A Trigger's claim to its dead-letter topic, kept in the Trigger's status."""

    id: str
    """Kafka's id of the topic that Knafka may alter."""
    retention: str
    """The `retention.ms` that Knafka has given the topic."""

    @classmethod
    def of(cls, annotations: Mapping[str, str]) -> Ownership | None:
        """Return the claim that the `annotations` of a Trigger's status keep; None: they keep
        none."""
        id_ = annotations.get(DEAD_LETTER_TOPIC_ID)
        retention = annotations.get(RETENTION_ANNOTATION)
        return cls(id_, retention) if id_ and retention else None

    def annotations(self) -> dict[str, str]:
        """Return the annotations that keep the claim in the Trigger's status; `of` reads them."""
        return {DEAD_LETTER_TOPIC_ID: self.id, RETENTION_ANNOTATION: self.retention}


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """What is decided about the retention of an existing dead-letter topic."""

    retention: float | None
    """Seconds for which the topic keeps a record; None: for ever, or unknown."""
    owned: Ownership | None
    """The Trigger's claim to the topic, for its status. None: the Trigger has no claim, as somebody
    else made the topic or set its retention, or as `would_expire` is True."""
    altered_settings: Mapping[str, str]
    """The new `retention.ms`; empty: it stays."""
    would_expire: bool = False
    """Whether the topic goes on keeping records for ever, since the declared retention would delete
    its oldest dead letter at once."""


def decide_retention(
    desired: TopicSettings, existing: TopicDescription, claim: Ownership | None, oldest_age: float
) -> RetentionDecision:
    """Decide whether Knafka alters the retention of the topic `existing` to that of the settings
    `desired`.

    With a `claim` to the topic, Knafka may alter the retention that it has set itself. Without one
    (None), the topic must look as a dispatcher creates it, with unlimited retention. In both cases
    the topic may also have the desired retention already. `oldest_age` is the age of the topic's
    oldest record in seconds.
    """
    current_retention = existing.config.get(RETENTION_MS, "")
    desired_retention = desired.config[RETENTION_MS]
    if claim is not None and claim.id == existing.id:
        may_alter = current_retention in (claim.retention, desired_retention)
    else:
        is_expected = current_retention in (UNLIMITED_RETENTION, desired_retention)
        may_alter = is_expected and _is_made_by_dispatcher(existing)
    if not may_alter:
        return unaltered_retention(existing)
    retention_seconds = _retention_seconds(desired_retention)
    owned = Ownership(existing.id, desired_retention)
    if current_retention == desired_retention:
        return RetentionDecision(retention_seconds, owned, {})
    would_expire = retention_seconds is not None and oldest_age > retention_seconds
    if current_retention == UNLIMITED_RETENTION and would_expire:
        return RetentionDecision(None, None, {}, would_expire=True)
    return RetentionDecision(retention_seconds, owned, {RETENTION_MS: desired_retention})


def unaltered_retention(existing: TopicDescription) -> RetentionDecision:
    """Return the decision that Knafka doesn't alter the topic `existing`, and has no claim to
    it."""
    return RetentionDecision(_retention_seconds(existing.config.get(RETENTION_MS, "")), None, {})


def _is_made_by_dispatcher(existing: TopicDescription) -> bool:
    """Whether a topic has the settings with which dispatchers create dead-letter topics; its
    retention may differ."""
    dispatcher_settings = {
        key: value for key, value in DEAD_LETTER_TOPIC_CONFIG.items() if key != RETENTION_MS
    }
    # Dispatchers always set `MAX_MESSAGE_BYTES`, too, but its value depends on the Broker.
    return (
        MAX_MESSAGE_BYTES in existing.config
        and dispatcher_settings.items() <= existing.config.items()
    )


def _retention_seconds(retention_ms: str) -> float | None:
    """Return the seconds of a topic's `retention.ms`; None: for ever (-1), or not a number."""
    return int(retention_ms) / 1000 if retention_ms.isdecimal() else None
