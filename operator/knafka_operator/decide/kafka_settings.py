"""Kafka settings: what Brokers, channels and Triggers declare of clients, topic and start. Pure.

    a Broker's ConfigMap     producer.NAME, consumer.NAME, default.topic.config.cleanup.policy
    a channel's annotations  knafka.dev/producer.NAME, knafka.dev/consumer.NAME,
                             knafka.dev/topic.NAME, over the ConfigMap of all channels
    a Trigger's annotations  knafka.dev/producer.NAME, knafka.dev/consumer.NAME,
                             knafka.dev/start-position, knafka.dev/delivery-semantics,
                             knafka.dev/rate-limit

Each check raises `InvalidDocument` with the key. Not here: which names there are, and why others
are refused (`knafka.core.client_settings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from knafka.core import client_settings
from knafka.core.contract import Kafka, RateLimit, RateUnit
from knafka.core.errors import InvalidDocument
from knafka.ports.log import Start
from knafka_operator.model.isolation import Isolation, declared_isolation
from knafka_operator.model.resources import (
    GROUP_STATUS,
    ISOLATION,
    OURS,
    RATE_LIMIT,
    SEMANTICS,
    START,
    annotation_path,
    whole_number,
)

CLEANUP: Final = "cleanup.policy"
RETENTION: Final = "retention.ms"
TOPIC: Final = f"{OURS}topic."
"""Begins an annotation of a KafkaChannel that is a setting of its topic."""
LATEST: Final = "latest"
AT_LEAST_ONCE: Final = "at-least-once"
AT_MOST_ONCE: Final = "at-most-once"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def of_broker(kafka: Kafka, data: Mapping[str, str]) -> Kafka:
    """With what a ConfigMap's `data` sets of the clients."""
    return _with(kafka, client_settings.given(data, "", "data."))


def of_annotations(kafka: Kafka, annotations: Mapping[str, str]) -> Kafka:
    """With what a Trigger's annotations set, over the Broker's, or a KafkaChannel's, over those of
    all channels."""
    return _with(kafka, client_settings.given(annotations, OURS, annotation_path("")))


def topic_of_channel(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """What a KafkaChannel's annotations set of its topic."""
    config = {
        key.removeprefix(TOPIC): value.strip()
        for key, value in annotations.items()
        if key.startswith(TOPIC)
    }
    if RETENTION in config:
        raise InvalidDocument(
            annotation_path(f"{TOPIC}{RETENTION}"),
            "can't be set: how long a channel keeps events is its spec.retentionDuration",
        )
    check_topic(config, annotation_path(TOPIC))
    return config


def check_channel(annotations: Mapping[str, str]) -> None:
    """Refuse what a KafkaChannel's annotations can't mean."""
    client_settings.given(annotations, OURS, annotation_path(""))
    topic_of_channel(annotations)


def check_trigger(annotations: Mapping[str, str]) -> None:
    """Refuse what a Trigger's annotations can't mean."""
    start_position(annotations)
    isolation_of(annotations)


def isolation_of(annotations: Mapping[str, str]) -> Isolation | None:
    """What a Trigger's annotations say of sharing a dispatcher; None: nothing.

    A shared one has one reader and one writer for all, with the Broker's settings, and commits what
    is settled: a Trigger that sets its own, is delivered at most once or has a rate limit, has a
    dispatcher of its own.
    """
    declared = declared_isolation(annotations)
    given = client_settings.given(annotations, OURS, annotation_path(""))
    names = [f"{OURS}{side}.{name}" for side, found in given.items() for name in found]
    if at_most_once(annotations):
        if declared is Isolation.SHARED:
            raise InvalidDocument(
                annotation_path(ISOLATION),
                f"can't be shared beside {SEMANTICS}: {AT_MOST_ONCE}: a shared dispatcher delivers "
                f"at least once: want own, or {AT_LEAST_ONCE}",
            )
        return Isolation.OWN
    if rate_limit(annotations) is not None:
        if declared is Isolation.SHARED:
            raise InvalidDocument(
                annotation_path(ISOLATION),
                f"can't be shared beside {RATE_LIMIT}: several pods would have that rate each: "
                "want own, or no limit",
            )
        return Isolation.OWN
    if not names:
        return declared
    if declared is Isolation.SHARED:
        raise InvalidDocument(
            annotation_path(ISOLATION),
            f"can't be shared beside {', '.join(names)}: a shared dispatcher has its Broker's "
            "settings: want own, or the settings in the Broker's ConfigMap",
        )
    return Isolation.OWN


def at_most_once(annotations: Mapping[str, str]) -> bool:
    """Whether a Trigger's events are begun at most once (BUS-5)."""
    declared = annotations.get(SEMANTICS, AT_LEAST_ONCE)
    if declared not in (AT_LEAST_ONCE, AT_MOST_ONCE):
        raise InvalidDocument(
            annotation_path(SEMANTICS),
            f"invalid value: {declared:.80}: want {AT_LEAST_ONCE} or {AT_MOST_ONCE}",
        )
    return declared == AT_MOST_ONCE


def rate_limit(annotations: Mapping[str, str]) -> RateLimit | None:
    """How many attempts its subscriber gets at most (BUS-S13)."""
    declared = annotations.get(RATE_LIMIT)
    if declared is None:
        return None
    count, _, unit = declared.partition("/")
    if unit not in list(RateUnit):
        raise InvalidDocument(
            annotation_path(RATE_LIMIT),
            f"invalid value: {declared:.80}: want one as 10/Second, 10/Minute or 10/Hour",
        )
    number = whole_number(count, annotation_path(RATE_LIMIT), 1, 2**31 - 1)
    return RateLimit(unit=RateUnit(unit), requests_per_unit=number)


def _with(kafka: Kafka, given: Mapping[str, Mapping[str, str]]) -> Kafka:
    merged = {
        "consumer": {**kafka.consumer, **given["consumer"]},
        "producer": {**kafka.producer, **given["producer"]},
    }
    return kafka.model_copy(update=merged)


def check_topic(config: Mapping[str, str], path: str) -> None:
    """Refuse what would lose events of a topic; `path` is that of the names."""
    if "compact" in config.get(CLEANUP, ""):
        raise InvalidDocument(
            f"{path}{CLEANUP}",
            f"can't be {config[CLEANUP]:.80}: compaction keeps the last event of each key only, "
            "and takes one without data for a tombstone, so events would be lost before they are "
            "delivered: want delete",
        )


def start_position(annotations: Mapping[str, str]) -> Start:
    """Where a new Trigger begins."""
    declared = annotations.get(START, LATEST)
    if declared == "earliest":
        return "earliest"
    if declared == "latest":
        return "latest"
    moment: datetime | None = None
    try:
        moment = datetime.fromisoformat(declared)
    except ValueError:
        pass
    if moment is None or moment.tzinfo is None or moment < _EPOCH:
        raise InvalidDocument(
            annotation_path(START),
            f"invalid value: {declared:.80}: want latest, earliest, or a time with its zone, such "
            "as 2026-01-31T12:00:00Z",
        )
    return int((moment - _EPOCH).total_seconds() * 1000)


def check_start_stays(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Refuse another start for a Trigger that has begun: it would look like having an effect.

    The same one, or none any more, is let pass.
    """
    status = (old.get("status") or {}).get("annotations") or {}
    was, is_ = (
        ((each.get("metadata") or {}).get("annotations") or {}).get(START) for each in (old, new)
    )
    if GROUP_STATUS in status and is_ not in (None, was, status.get(START)):
        raise InvalidDocument(
            annotation_path(START),
            f"can't be changed: this Trigger began at {status.get(START, LATEST)}: want a new "
            "Trigger, or its group's offsets set back",
        )
