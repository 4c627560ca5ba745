"""Kafka settings: reads settings of clients, topics and delivery from ConfigMaps and annotations.
Pure.

    a Broker's ConfigMap     producer.NAME, consumer.NAME, default.topic.config.cleanup.policy
    a channel's annotations  knafka.dev/producer.NAME, knafka.dev/consumer.NAME,
                             knafka.dev/topic.NAME, over the ConfigMap of all channels
    a Trigger's annotations  knafka.dev/producer.NAME, knafka.dev/consumer.NAME,
                             knafka.dev/start-position, knafka.dev/delivery-semantics,
                             knafka.dev/rate-limit

Each check raises `InvalidDocument` with the key. Not here: the allowed client settings
(`knafka.core.kafka_settings.client_settings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from knafka.core.contract import Kafka, RateLimit, RateUnit
from knafka.core.errors import InvalidDocument
from knafka.core.kafka_settings import client_settings
from knafka.ports.log import Start
from knafka_operator.model.cluster import status_annotations
from knafka_operator.model.isolation import Isolation, declared_isolation
from knafka_operator.model.resources import (
    GROUP_STATUS,
    ISOLATION,
    KNAFKA_PREFIX,
    RATE_LIMIT,
    SEMANTICS,
    START,
    annotation_path,
    parse_whole_number,
)

CLEANUP: Final = "cleanup.policy"
RETENTION: Final = "retention.ms"
"""Topic settings, by their names in Kafka."""
TOPIC_PREFIX: Final = f"{KNAFKA_PREFIX}topic."
"""Prefix of a KafkaChannel's annotations that are settings of its topic."""
LATEST_POSITION: Final = "latest"
"""The start position of a Trigger that declares none: events from now on."""
AT_LEAST_ONCE: Final = "at-least-once"
AT_MOST_ONCE: Final = "at-most-once"
"""Values of the annotation `SEMANTICS`; the first is the default."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def with_config_settings(kafka: Kafka, data: Mapping[str, str]) -> Kafka:
    """Return `kafka` with the client settings in a ConfigMap's `data` merged over its own. Raises
    `InvalidDocument` for a setting that isn't allowed."""
    return _with_client_settings(kafka, client_settings.declared_settings(data, "", "data."))


def with_annotation_settings(kafka: Kafka, annotations: Mapping[str, str]) -> Kafka:
    """Return `kafka`, the Broker's or the installation's, with the client settings in annotations
    of a Trigger or KafkaChannel merged over its own. Raises `InvalidDocument` for a setting that
    isn't allowed."""
    return _with_client_settings(
        kafka, client_settings.declared_settings(annotations, KNAFKA_PREFIX, annotation_path(""))
    )


def channel_topic_settings(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Return the topic settings that a KafkaChannel's annotations declare, by their names in Kafka.
    Raises `InvalidDocument` for a setting that a channel may not declare."""
    config = {
        key.removeprefix(TOPIC_PREFIX): value.strip()
        for key, value in annotations.items()
        if key.startswith(TOPIC_PREFIX)
    }
    if RETENTION in config:
        raise InvalidDocument(
            annotation_path(f"{TOPIC_PREFIX}{RETENTION}"),
            "can't be set: how long a channel keeps events is its spec.retentionDuration",
        )
    check_cleanup_policy(config, annotation_path(TOPIC_PREFIX))
    return config


def check_channel_settings(annotations: Mapping[str, str]) -> None:
    """Refuse invalid client and topic settings in a KafkaChannel's annotations; raises
    `InvalidDocument`."""
    # Called only for the errors that they raise.
    client_settings.declared_settings(annotations, KNAFKA_PREFIX, annotation_path(""))
    channel_topic_settings(annotations)


def check_trigger_settings(annotations: Mapping[str, str]) -> None:
    """Refuse invalid annotations of a Trigger about start position, semantics, rate limit, client
    settings and isolation; raises `InvalidDocument`."""
    # Called only for the errors that they raise.
    start_position(annotations)
    required_isolation(annotations)


def required_isolation(annotations: Mapping[str, str]) -> Isolation | None:
    """Return the isolation (an own or a shared dispatcher) that a Trigger's annotations declare or
    require; None: neither.

    A shared dispatcher has one reader and one writer with the Broker's settings, and delivers at
    least once. So a Trigger with client settings, at-most-once semantics or a rate limit requires
    its own dispatcher. Raises `InvalidDocument`, also if such a Trigger declares a shared one.
    """
    declared = declared_isolation(annotations)
    conflict = _find_conflict_with_sharing(annotations)
    if conflict is None:
        return declared
    if declared is Isolation.SHARED:
        raise InvalidDocument(annotation_path(ISOLATION), f"can't be shared beside {conflict}")
    return Isolation.OWN


def _find_conflict_with_sharing(annotations: Mapping[str, str]) -> str | None:
    """Find an annotation of a Trigger that a shared dispatcher can't follow, and return it with the
    reason and the remedy, as the end of a message for users. None: there is none. Raises
    `InvalidDocument` for an invalid annotation."""
    client_annotations = [
        f"{KNAFKA_PREFIX}{client}.{name}"
        for client, settings in client_settings.declared_settings(
            annotations, KNAFKA_PREFIX, annotation_path("")
        ).items()
        for name in settings
    ]
    at_most_once = is_at_most_once(annotations)
    limit = rate_limit(annotations)  # parsed in any case, for its error
    if at_most_once:
        return (
            f"{SEMANTICS}: {AT_MOST_ONCE}: a shared dispatcher delivers at least once: "
            f"want own, or {AT_LEAST_ONCE}"
        )
    if limit is not None:
        return f"{RATE_LIMIT}: several pods would have that rate each: want own, or no limit"
    if client_annotations:
        return (
            f"{', '.join(client_annotations)}: a shared dispatcher has its Broker's settings: "
            "want own, or the settings in the Broker's ConfigMap"
        )
    return None


def is_at_most_once(annotations: Mapping[str, str]) -> bool:
    """Whether a Trigger's annotation declares at-most-once delivery (BUS-5). Raises
    `InvalidDocument` for an unknown value."""
    declared = annotations.get(SEMANTICS, AT_LEAST_ONCE)
    if declared not in (AT_LEAST_ONCE, AT_MOST_ONCE):
        raise InvalidDocument(
            annotation_path(SEMANTICS),
            f"invalid value: {declared:.80}: want {AT_LEAST_ONCE} or {AT_MOST_ONCE}",
        )
    return declared == AT_MOST_ONCE


def rate_limit(annotations: Mapping[str, str]) -> RateLimit | None:
    """Return the rate limit that a Trigger's annotations declare for its delivery attempts
    (BUS-S13); None: they declare none. Raises `InvalidDocument`."""
    declared = annotations.get(RATE_LIMIT)
    if declared is None:
        return None
    count, _, unit = declared.partition("/")
    if unit not in list(RateUnit):
        raise InvalidDocument(
            annotation_path(RATE_LIMIT),
            f"invalid value: {declared:.80}: want one as 10/Second, 10/Minute or 10/Hour",
        )
    number = parse_whole_number(count, annotation_path(RATE_LIMIT), 1, 2**31 - 1)
    return RateLimit(unit=RateUnit(unit), requests_per_unit=number)


def _with_client_settings(kafka: Kafka, overrides: Mapping[str, Mapping[str, str]]) -> Kafka:
    """Return a copy of `kafka` with the client settings in `overrides` merged over its own;
    `overrides` has them under the keys `consumer` and `producer`."""
    merged = {
        "consumer": {**kafka.consumer, **overrides["consumer"]},
        "producer": {**kafka.producer, **overrides["producer"]},
    }
    return kafka.model_copy(update=merged)


def check_cleanup_policy(config: Mapping[str, str], path: str) -> None:
    """Refuse a cleanup policy with compaction, which would lose events; `config` has a topic's
    settings, `path` is the prefix of their names in errors. Raises `InvalidDocument`."""
    if "compact" in config.get(CLEANUP, ""):
        raise InvalidDocument(
            f"{path}{CLEANUP}",
            f"can't be {config[CLEANUP]:.80}: compaction keeps the last event of each key only, "
            "and takes one without data for a tombstone, so events would be lost before they are "
            "delivered: want delete",
        )


def start_position(annotations: Mapping[str, str]) -> Start:
    """Return the position at which a new Trigger's group begins, by the Trigger's annotations:
    `latest`, `earliest`, or milliseconds since the Unix epoch. Raises `InvalidDocument`."""
    declared = annotations.get(START, LATEST_POSITION)
    if declared == "earliest":
        return "earliest"
    if declared == "latest":
        return "latest"
    moment: datetime | None
    try:
        moment = datetime.fromisoformat(declared)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or moment < _EPOCH:
        raise InvalidDocument(
            annotation_path(START),
            f"invalid value: {declared:.80}: want latest, earliest, or a time with its zone, such "
            "as 2026-01-31T12:00:00Z",
        )
    return int((moment - _EPOCH).total_seconds() * 1000)


def check_start_unchanged(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Refuse a change of the annotation `START` between a Trigger's documents `old` and `new` if
    the status in `old` names a consumer group: the group has offsets already, so the change would
    have no effect. Removing the annotation is allowed, and so is the position at which the group
    has begun. Raises `InvalidDocument`.
    """
    status = status_annotations(old)
    old_start, new_start = (
        ((document.get("metadata") or {}).get("annotations") or {}).get(START)
        for document in (old, new)
    )
    has_group = GROUP_STATUS in status
    if has_group and new_start not in (None, old_start, status.get(START)):
        raise InvalidDocument(
            annotation_path(START),
            f"can't be changed: this Trigger began at {status.get(START, LATEST_POSITION)}: want a "
            "new Trigger, or its group's offsets set back",
        )
