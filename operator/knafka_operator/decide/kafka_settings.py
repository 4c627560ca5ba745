"""Kafka settings: what a Broker and a Trigger declare of clients, topic and start. Pure.

    a Broker's ConfigMap     producer.NAME, consumer.NAME, default.topic.config.cleanup.policy
    a Trigger's annotations  knafka.dev/producer.NAME, knafka.dev/consumer.NAME,
                             knafka.dev/start-position

Each check raises `InvalidDocument` with the key. Not here: which names there are, and why others
are refused (`knafka.core.client_settings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from knafka.core import client_settings
from knafka.core.contract import Kafka
from knafka.core.errors import InvalidDocument
from knafka.ports.log import Start
from knafka_operator.model.isolation import Isolation, declared_isolation
from knafka_operator.model.resources import (
    GROUP_STATUS,
    ISOLATION,
    OURS,
    START,
    annotation_path,
)

CLEANUP: Final = "cleanup.policy"
LATEST: Final = "latest"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def of_broker(kafka: Kafka, data: Mapping[str, str]) -> Kafka:
    """With what a ConfigMap's `data` sets of the clients."""
    return _with(kafka, client_settings.given(data, "", "data."))


def of_trigger(kafka: Kafka, annotations: Mapping[str, str]) -> Kafka:
    """With what a Trigger's annotations set, over the Broker's."""
    return _with(kafka, client_settings.given(annotations, OURS, annotation_path("")))


def check_trigger(annotations: Mapping[str, str]) -> None:
    """Refuse what a Trigger's annotations can't mean."""
    start_position(annotations)
    isolation_of(annotations)


def isolation_of(annotations: Mapping[str, str]) -> Isolation | None:
    """What a Trigger's annotations say of sharing a dispatcher; None: nothing.

    A shared one has one reader and one writer for all, with the Broker's settings: a Trigger that
    sets its own has a dispatcher of its own.
    """
    declared = declared_isolation(annotations)
    given = client_settings.given(annotations, OURS, annotation_path(""))
    names = [f"{OURS}{side}.{name}" for side, found in given.items() for name in found]
    if not names:
        return declared
    if declared is Isolation.SHARED:
        raise InvalidDocument(
            annotation_path(ISOLATION),
            f"can't be shared beside {', '.join(names)}: a shared dispatcher has its Broker's "
            "settings: want own, or the settings in the Broker's ConfigMap",
        )
    return Isolation.OWN


def _with(kafka: Kafka, given: Mapping[str, Mapping[str, str]]) -> Kafka:
    merged = {
        "consumer": {**kafka.consumer, **given["consumer"]},
        "producer": {**kafka.producer, **given["producer"]},
    }
    return kafka.model_copy(update=merged)


def check_topic(config: Mapping[str, str], path: str) -> None:
    """Refuse what would lose events of a Broker's topic; `path` is that of the names."""
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
