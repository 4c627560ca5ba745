"""Channel admission: fills in defaults of KafkaChannels and Subscriptions, and refuses invalid
ones.

    document -> the whole document with its defaults             (for a mutating webhook)
    new and old document -> accepted, or an InvalidDocument      (for a validating webhook)

As in `brokers.admission`, messages are upstream's, all problems are reported at once, and problems
that existed before an update are accepted.

Pure. Not here: reading other objects, and Subscriptions to channels of other kinds: callers check
`may_be_ours` first, of the old document if there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka_operator.decisions.field_errors import (
    IMMUTABLE_FIELDS,
    Problem,
    annotation_problems,
    annotations_of,
    changed_values,
    leaf_values,
    mapping_at,
    namespace_of,
    refuse_problems,
    schema_problems,
    set_default_sink_namespace,
    split_requirement,
    topic_maxima_problems,
    with_reference_namespace,
)
from knafka_operator.kafka import dead_letter_topics, kafka_settings
from knafka_operator.kafka.admission import delivery_annotation_problems, order_problems
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.channels import (
    DEFAULT_CHANNEL_PARTITIONS,
    DEFAULT_CHANNEL_REPLICATION,
    DEFAULT_CHANNEL_RETENTION,
    KAFKA_CHANNEL,
    SUBSCRIBABLE,
    KafkaChannel,
    KafkaChannelSpec,
    Subscription,
)
from knafka_operator.model.cluster import Document
from knafka_operator.model.isolation import declared_isolation
from knafka_operator.model.maxima import UNLIMITED_MAXIMA, Maxima

_IMMUTABLE_FIELD_DEFAULTS: Final[Mapping[str, object]] = {
    "numPartitions": DEFAULT_CHANNEL_PARTITIONS,
    "replicationFactor": DEFAULT_CHANNEL_REPLICATION,
    "retentionDuration": DEFAULT_CHANNEL_RETENTION,
}
"""The fields of a KafkaChannel that may not change (KN-CHN-10), with their defaults."""
_RETENTION_PATH: Final = "spec.retentionDuration"

_MISSING: Final[Mapping[str, str]] = {
    "spec.channel": "the Subscription must reference a channel",
    "spec.subscriber": "the Subscription must reference a subscriber",
}
"""Upstream's explanation for each missing field, by its path."""


def may_be_ours(subscription: Document) -> bool:
    """Whether Knafka may have to serve a Subscription: its channel is a KafkaChannel, or its kind
    is missing. Other kinds of channels have webhooks of their own."""
    kind = mapping_at(mapping_at(subscription, "spec"), "channel").get("kind")
    return not kind or kind == KAFKA_CHANNEL


def with_channel_defaults(document: Document) -> dict[str, Any]:
    """Return the KafkaChannel with upstream's defaults (KN-CHN-07, KN-CHN-10); a copy without
    changes if its spec is no mapping. Idempotent."""
    if not isinstance(document.get("spec"), Mapping | None):
        return dict(document)
    spec = mapping_at(document, "spec")
    # As upstream, 0 and "" count as not set.
    spec |= {
        name: value
        for name, value in _IMMUTABLE_FIELD_DEFAULTS.items()
        if spec.get(name) in (None, "", 0)
    }
    set_default_sink_namespace(spec, namespace_of(document))
    metadata = mapping_at(document, "metadata")
    metadata["annotations"] = {SUBSCRIBABLE: "v1", **mapping_at(metadata, "annotations")}
    return {**document, "metadata": metadata, "spec": spec}


def with_subscription_defaults(document: Document) -> dict[str, Any]:
    """Return the Subscription with upstream's defaults: the namespaces of its references; a copy
    without changes if its spec is no mapping. Idempotent."""
    if not isinstance(document.get("spec"), Mapping | None):
        return dict(document)
    namespace = namespace_of(document)
    spec = mapping_at(document, "spec")
    for name in ("subscriber", "reply"):
        if isinstance(destination := spec.get(name), Mapping):
            spec[name] = with_reference_namespace(destination, namespace)
    set_default_sink_namespace(spec, namespace)
    return {**document, "spec": spec}


def check_channel(
    new: Document, old: Document | None = None, maxima: Maxima = UNLIMITED_MAXIMA
) -> None:
    """Refuse an invalid KafkaChannel, or a forbidden change (KN-CHN-05, KN-CHN-10). `old` is the
    channel before an update, whose own problems are accepted (None: the channel is new). `maxima`
    has the installation's limits. Raises `InvalidDocument` with all problems, and the path of the
    first."""

    def find_problems(document: Document) -> Iterator[Problem]:
        """Yield the problems of a document, new or old."""
        yield from _channel_problems(document)
        yield from topic_maxima_problems(document, maxima)

    refuse_problems(find_problems, new, old, _immutable_channel_changes)


def check_subscription(
    new: Document,
    old: Document | None = None,
    autoscaling: Autoscaling | None = None,
    maxima: Maxima = UNLIMITED_MAXIMA,
) -> None:
    """Refuse an invalid Subscription, or a forbidden change (KN-SUB-01, 02, 04). `old` is the
    Subscription before an update, whose own problems are accepted (None: it is new). `autoscaling`
    has the defaults for its scaling annotations (None: the built-in ones), `maxima` the
    installation's limits. Raises `InvalidDocument` with all problems, and the path of the first."""

    def find_problems(document: Document) -> Iterator[Problem]:
        """Yield the problems of a document, new or old."""
        return _subscription_problems(document, autoscaling or Autoscaling(), maxima)

    refuse_problems(find_problems, new, old, _immutable_subscription_changes)


def _channel_problems(document: Document) -> Iterator[Problem]:
    """Yield each problem with a KafkaChannel's fields and annotations, for the webhook's answer.
    The status is left out: others write it."""
    yield from schema_problems(KafkaChannel, {**document, "status": None})
    annotations = annotations_of(document)
    yield from order_problems(annotations)
    yield from annotation_problems(lambda: declared_isolation(annotations))
    yield from annotation_problems(lambda: kafka_settings.check_channel_settings(annotations))
    yield from annotation_problems(
        lambda: dead_letter_topics.check_retention_annotation(annotations)
    )


def _subscription_problems(
    document: Document, autoscaling: Autoscaling, maxima: Maxima
) -> Iterator[Problem]:
    """Yield each problem with a Subscription's fields and annotations, where possible in the words
    of upstream's webhook."""
    for problem in schema_problems(Subscription, {**document, "status": None}):
        if problem.message == "missing field(s)":
            yield replace(problem, details=_MISSING.get(problem.path, ""))
        elif problem.path == "spec.channel.namespace":
            message, requirement = split_requirement(problem.message)
            yield replace(problem, message=message, details=requirement or problem.details)
        else:
            yield problem
    yield from delivery_annotation_problems(annotations_of(document), autoscaling, maxima)


def _immutable_channel_changes(old: Document, new: Document) -> Iterator[Problem]:
    """Yield at most one problem, which shows all forbidden changes of a KafkaChannel's immutable
    fields. Allowed: to correct a field whose old value is invalid, to declare a retention where
    none was, and to write the retention in another form, such as PT60M for PT1H."""
    old_fields, new_fields = (_immutable_channel_fields(document) for document in (old, new))
    may_change = {
        problem.path for problem in schema_problems(KafkaChannel, {**old, "status": None})
    }
    # As upstream: a channel from before the field existed may get a retention.
    old_retention, new_retention = (
        _retention_seconds(fields[_RETENTION_PATH]) for fields in (old_fields, new_fields)
    )
    if not mapping_at(old, "spec").get("retentionDuration") or old_retention == new_retention:
        may_change.add(_RETENTION_PATH)
    for path in may_change:
        old_fields.pop(path, None)
        new_fields.pop(path, None)
    if diff := changed_values(old_fields, new_fields):
        yield Problem(IMMUTABLE_FIELDS, diff, "spec")


def _immutable_channel_fields(document: Document) -> dict[str, object]:
    """Return the values of the immutable fields of a KafkaChannel's spec, by path; a field that
    isn't set has its default."""
    spec = mapping_at(document, "spec")
    return {
        f"spec.{name}": spec.get(name) or default
        for name, default in _IMMUTABLE_FIELD_DEFAULTS.items()
    }


def _retention_seconds(retention: object) -> float | None:
    """Return the seconds of a declared retention; None: the value isn't a valid duration."""
    try:
        return parse(KafkaChannelSpec, {"retentionDuration": retention}).retention_duration
    except InvalidDocument:
        return None


def _immutable_subscription_changes(old: Document, new: Document) -> Iterator[Problem]:
    """Yield at most one problem, which shows all changes of a Subscription's immutable
    fields."""
    old_fields, new_fields = (_immutable_subscription_fields(document) for document in (old, new))
    # A Subscription without a channel never worked, and may be corrected.
    if old_fields and (diff := changed_values(old_fields, new_fields)):
        yield Problem(IMMUTABLE_FIELDS, diff, "spec")


def _immutable_subscription_fields(document: Document) -> dict[str, object]:
    """Return the fields of a Subscription's reference to its channel, which may not change, by
    path. A namespace that is empty or the Subscription's own is left out."""
    channel = mapping_at(mapping_at(document, "spec"), "channel")
    if channel.get("namespace") in ("", namespace_of(document)):
        del channel["namespace"]
    return dict(leaf_values("spec.channel", channel))
