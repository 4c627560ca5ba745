"""Dead-letter topics: how a Trigger's is made, how long it keeps, and what of one that is there is
ours to alter. Pure.

    annotation of the Trigger, else of its Broker, else the ConfigMap's key, else 30 days

The dispatcher makes it with the first dead letter. Kafka keeps no owner with a topic: one that is
as dispatchers make them is taken for ours, and from then on its id is in the Trigger's status,
with the retention that we have given it. What somebody else has made or set is never altered.

Not here: looking at the topics of a Kafka (`reconcile.dead_letters`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from knafka.core.contract import KEPT_FOR_EVER, TopicSettings
from knafka.core.documents import Duration, Model, parse
from knafka.core.errors import InvalidDocument
from knafka.ports.log import TopicDescription
from knafka_operator.model.resources import OURS, annotation_path

RETENTION_ANNOTATION: Final = f"{OURS}dead-letter-retention"
"""On a Trigger, or on its Broker for all that declare none; in a Trigger's status what its topic
has been given, as Kafka's `retention.ms`."""
RETENTION_KEY: Final = "dead.letter.topic.retention"
"""In a Broker's ConfigMap."""
TOPIC_ID: Final = f"{OURS}dead-letter-topic-id"
"""Key of a Trigger's `status.annotations`: Kafka's id of the topic that is ours to alter."""

FOR_EVER: Final = "forever"
DEFAULT_RETENTION: Final = 30 * 86_400.0
"""Seconds."""
MIN_RETENTION: Final = 60.0
MAX_RETENTION: Final = 36_500 * 86_400.0

PARTITIONS: Final = 1
"""Dead letters are few, and each partition of a thousand Triggers costs Kafka something."""
STORY_BYTES: Final = 16_384
"""What a dead letter may be larger than its event: the attributes that tell how it failed."""
MAX_INT: Final = 2**31 - 1

LIMIT: Final = "max.message.bytes"
RETENTION_MS: Final = "retention.ms"
UNLIMITED: Final = "-1"
TIMESTAMP_TYPE: Final = "message.timestamp.type"
LOG_TIME: Final = "LogAppendTime"


class _Declared(Model):
    retention: Annotated[Duration, Field(ge=MIN_RETENTION, le=MAX_RETENTION)]


def parse_retention(text: str, path: str) -> float | None:
    """Seconds; None: for ever. Raises `InvalidDocument`."""
    text = text.strip()
    if text == FOR_EVER:
        return None
    try:
        return parse(_Declared, {"retention": text}).retention
    except InvalidDocument:
        wanted = f"want P30D, PT12H or the like, from PT1M to P36500D, or {FOR_EVER}"
        raise InvalidDocument(path, f"invalid value: {text:.80}: {wanted}") from None


def check(annotations: Mapping[str, str]) -> None:
    """Refuse a retention that can't be meant; raises `InvalidDocument`."""
    if RETENTION_ANNOTATION in annotations:
        parse_retention(annotations[RETENTION_ANNOTATION], annotation_path(RETENTION_ANNOTATION))


def retention(default: float | None, *declared: Mapping[str, str]) -> float | None:
    """Seconds, by the first of these annotations that say so; None: for ever."""
    path = annotation_path(RETENTION_ANNOTATION)
    for each in declared:
        if RETENTION_ANNOTATION in each:
            return parse_retention(each[RETENTION_ANNOTATION], path)
    return default


def settings(
    config: Mapping[str, str], replication: int, limit: int, kept: float | None
) -> TopicSettings:
    """How a dead-letter topic is made: with the Broker's topic's `config`, but neither compacted
    nor bounded in size, with the log's own time, and with room for the largest event (`limit`,
    bytes) and the story of its failure."""
    room = str(min(limit + STORY_BYTES, MAX_INT))
    expiry = {} if kept is None else {RETENTION_MS: str(round(kept * 1000))}
    return TopicSettings(
        partitions=PARTITIONS,
        replication=replication,
        # A sender's time may be one that Spark's Kafka source fails at, whichever topics it reads.
        config={**config, TIMESTAMP_TYPE: LOG_TIME, **KEPT_FOR_EVER, **expiry, LIMIT: room},
    )


@dataclass(frozen=True, slots=True)
class Ownership:
    """What is known of a Trigger's dead-letter topic, as its status keeps it."""

    id: str
    """Kafka's, of the topic that is ours to alter."""
    retention: str
    """What it was given: `retention.ms`."""

    @classmethod
    def of(cls, annotations: Mapping[str, str]) -> Ownership | None:
        id_, given = annotations.get(TOPIC_ID), annotations.get(RETENTION_ANNOTATION)
        return cls(id_, given) if id_ and given else None

    def annotations(self) -> dict[str, str]:
        return {TOPIC_ID: self.id, RETENTION_ANNOTATION: self.retention}


@dataclass(frozen=True, slots=True)
class Found:
    """A dead-letter topic that is there, beside what is wanted of it."""

    retention: float | None
    """Seconds for which it keeps a record now; None: for ever, or that isn't known."""
    owned: Ownership | None
    """None: it is somebody else's, or somebody has set its retention."""
    alter: Mapping[str, str]
    """What is to be set; empty: nothing."""
    would_expire: bool = False
    """It keeps for ever, as earlier releases have made it, and isn't altered, as its oldest dead
    letter would be deleted at once."""


def judge(
    wanted: TopicSettings, found: TopicDescription, known: Ownership | None, oldest_age: float
) -> Found:
    """Whose a topic is, and what is to be altered; `known` is what the Trigger's status keeps, and
    `oldest_age` the age of its oldest record in seconds."""
    has, asked = found.config.get(RETENTION_MS, ""), wanted.config[RETENTION_MS]
    if known is not None and known.id == found.id:
        ours = has in (known.retention, asked)
    else:
        known, ours = None, has in (UNLIMITED, asked) and _as_dispatchers_make_it(found)
    if not ours:
        return unaltered(found)
    if has == asked:
        return Found(_seconds(has), Ownership(found.id, asked), {})
    kept = _seconds(asked)
    if has == UNLIMITED and kept is not None and oldest_age > kept:
        return Found(None, None, {}, would_expire=True)
    return Found(kept, Ownership(found.id, asked), {RETENTION_MS: asked})


def unaltered(found: TopicDescription) -> Found:
    """A topic that stays as it is."""
    return Found(_seconds(found.config.get(RETENTION_MS, "")), None, {})


def _as_dispatchers_make_it(found: TopicDescription) -> bool:
    made = {key: each for key, each in KEPT_FOR_EVER.items() if key != RETENTION_MS}
    return LIMIT in found.config and made.items() <= found.config.items()


def _seconds(retention_ms: str) -> float | None:
    return int(retention_ms) / 1000 if retention_ms.isdecimal() else None
