"""Broker admission: fills in a Broker's defaults, and checks the Broker.

    document -> the whole document with its defaults          (a mutating webhook)
    new and old document -> nothing, or an InvalidDocument    (a validating webhook)
    new document -> warnings                                  (a validating webhook)

The checks work without a webhook, too: without `old` the error is for a condition. Its text has the
form of Knative's own webhook, `message: paths` with details on the next line, all problems one
below the other; a webhook answers `validation failed: {error}`. A problem that existed before an
update is accepted, so that finalizers can still be added and removed.

Pure. Not here: reading other objects, and Brokers of other classes: callers check the class first,
of the old document if there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from difflib import get_close_matches
from typing import Any, Final

from knafka.core.names import MAX_LENGTH, is_topic
from knafka_operator.brokers.external_topics import reserved_reason
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
    upstream_annotation_path,
    with_namespace,
)
from knafka_operator.functions.receiver_services import check_receiver_scaling
from knafka_operator.kafka import dead_letter_topics
from knafka_operator.model.cluster import Document
from knafka_operator.model.isolation import declared_isolation
from knafka_operator.model.maxima import UNLIMITED_MAXIMA, Maxima
from knafka_operator.model.resources import (
    BROKER_CLASS,
    EXTERNAL_TOPIC,
    Broker,
    annotation_path,
)

CLASS_SIMILARITY: Final = 0.75
"""Least similarity (`difflib`'s ratio) of a class that counts as a misspelling of one of Knafka's:
`KAFKA`, `Kakfa` and `knafka` count, `KafkaNamespaced` doesn't."""

_IMMUTABLE_ANNOTATIONS: Final = "Immutable annotations changed (-old +new)"
"""Message of the problem of a changed class, in upstream's words."""


def with_broker_defaults(
    document: Document,
    old: Document | None = None,
    *,
    default_class: str = "",
) -> dict[str, Any]:
    """Return the Broker with upstream's defaults (KN-BRK-04). Idempotent. A document whose `spec`
    is no mapping is returned as it is; `check_broker` refuses that.

    `old` is the Broker before an update, None: it is being created. Class and config can't change,
    so an update that omits them keeps those of `old`, whatever the default is now. `default_class`
    is the installation's; empty: none is set.
    """
    if not isinstance(document.get("spec"), Mapping | None):
        return dict(document)
    namespace = namespace_of(document)
    spec = mapping_at(document, "spec")
    config = spec.get("config") or mapping_at(old, "spec").get("config")
    if isinstance(config, Mapping):
        spec["config"] = with_namespace(config, namespace)
    set_default_sink_namespace(spec, namespace)
    metadata = mapping_at(document, "metadata")
    annotations = mapping_at(metadata, "annotations")
    class_to_set = annotations_of(old).get(BROKER_CLASS) if old else default_class
    if BROKER_CLASS not in annotations and class_to_set:
        metadata["annotations"] = {**annotations, BROKER_CLASS: class_to_set}
    return {**document, "metadata": metadata, "spec": spec}


def check_broker(
    new: Document, old: Document | None = None, maxima: Maxima = UNLIMITED_MAXIMA
) -> None:
    """Refuse an invalid Broker, or a forbidden change (KN-BRK-05, KN-BRK-06, KN-DLV-06). `old` is
    the Broker before an update, whose own problems are accepted; None: it is being created, or
    there is no webhook. `maxima` has the installation's limits. Raises `InvalidDocument` with all
    problems, and the path of the first.
    """
    refuse_problems(
        lambda document: _broker_problems(document, maxima), new, old, _immutable_broker_changes
    )


def class_warnings(document: Document, classes: Set[str]) -> list[str]:
    """Return a list with a warning if the class of a Broker that Knafka doesn't serve is missing,
    or looks like a misspelling of one of `classes`, those that Knafka serves; else an empty list.
    """
    # Mutating webhooks have run by now: a Broker that still has no class stays without one.
    knafka_classes = " or ".join(sorted(classes - {""}))
    declared_class = annotations_of(document).get(BROKER_CLASS, "")
    path = annotation_path(BROKER_CLASS)
    remedy = "A class never changes: delete the Broker and make it anew"
    if not declared_class.strip():
        return [
            f"{path} is not set, so nobody serves this Broker: Knafka's are "
            f"{knafka_classes}. {remedy}"
        ]
    # Without regard to case, so that `KAFKA` counts as a misspelling of `Kafka`.
    folded_classes = {knafka_class.casefold() for knafka_class in classes}
    similar_classes = get_close_matches(
        declared_class.strip().casefold(), folded_classes, n=1, cutoff=CLASS_SIMILARITY
    )
    if similar_classes:
        return [
            f"{path}: {declared_class:.80} is no class of Knafka's, which are "
            f"{knafka_classes}. {remedy}"
        ]
    return []


def _broker_problems(document: Document, maxima: Maxima) -> Iterator[Problem]:
    """Yield each problem with a Broker's fields and annotations. `maxima` has the installation's
    limits, here for the number of the receiver's pods."""
    annotations = annotations_of(document)
    # Without the status: only operators write it.
    yield from schema_problems(Broker, {**document, "status": None})
    yield from annotation_problems(lambda: declared_isolation(annotations))
    yield from annotation_problems(
        lambda: dead_letter_topics.check_retention_annotation(annotations)
    )
    topic = annotations.get(EXTERNAL_TOPIC)
    if topic is not None and not is_topic(topic):
        yield Problem(
            f"invalid value: {topic:.300}",
            f"want a topic's name, at most {MAX_LENGTH} of A-Z, a-z, 0-9, '.', '_' and '-'",
            upstream_annotation_path(EXTERNAL_TOPIC),
        )
    elif topic is not None and (reason := reserved_reason(topic)) is not None:
        # Whether any other topic is on the list of allowed ones isn't checked here: the list may
        # change, so a condition reports it.
        yield Problem(f"invalid value: {topic}", reason, upstream_annotation_path(EXTERNAL_TOPIC))
    yield from annotation_problems(lambda: check_receiver_scaling(annotations, maxima))


def _immutable_broker_changes(old: Document, new: Document) -> Iterator[Problem]:
    """Yield a problem for changed immutable fields, and one for a changed Broker class."""
    if diff := changed_values(_immutable_broker_fields(old), _immutable_broker_fields(new)):
        yield Problem(IMMUTABLE_FIELDS, diff, "spec")
    old_class, new_class = (
        annotations_of(document).get(BROKER_CLASS, "") for document in (old, new)
    )
    if diff := changed_values({BROKER_CLASS: old_class}, {BROKER_CLASS: new_class}):
        yield Problem(_IMMUTABLE_ANNOTATIONS, diff, "annotations")


def _immutable_broker_fields(document: Document) -> dict[str, object]:
    """Return the fields of a Broker's spec that can't change, by path: all but its delivery. A
    missing namespace means the Broker's own."""
    spec = mapping_at(document, "spec")
    spec.pop("delivery", None)
    if isinstance(config := spec.get("config"), Mapping):
        spec["config"] = with_namespace(config, namespace_of(document))
    return dict(leaf_values("spec", spec))
