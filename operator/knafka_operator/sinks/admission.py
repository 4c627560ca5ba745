"""Sink admission: fills in a KafkaSink's defaults, and checks the KafkaSink.

As in `brokers.admission`, messages have upstream's wording, all problems are named at once, and an
update may keep problems that the object already had.

Pure. Not here: reading other objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from knafka_operator.decisions.field_errors import (
    IMMUTABLE_FIELDS,
    Problem,
    annotation_problems,
    annotations_of,
    changed_values,
    mapping_at,
    refuse_problems,
    schema_problems,
    topic_maxima_problems,
)
from knafka_operator.functions.receiver_services import check_receiver_scaling
from knafka_operator.model.cluster import Document
from knafka_operator.model.maxima import UNLIMITED_MAXIMA, Maxima
from knafka_operator.sinks.model import DEFAULT_MODE, KafkaSink

IMMUTABLE_SPEC_FIELDS: Final = ("topic", "numPartitions", "replicationFactor")
"""Fields of a sink's spec that can't change, as upstream."""


def with_sink_defaults(document: Document) -> dict[str, Any]:
    """Return the KafkaSink with upstream's defaults. Idempotent. A document whose `spec` is no
    mapping is returned as it is; `check_sink` refuses that."""
    if not isinstance(document.get("spec"), Mapping | None):
        return dict(document)
    spec = mapping_at(document, "spec")
    if spec.get("contentMode") in (None, ""):
        spec["contentMode"] = DEFAULT_MODE
    return {**document, "spec": spec}


def check_sink(
    new: Document, old: Document | None = None, maxima: Maxima = UNLIMITED_MAXIMA
) -> None:
    """Refuse an invalid KafkaSink, or a forbidden change. `old` is the KafkaSink before an update,
    whose own problems are accepted; None: it is being created, or there is no webhook. `maxima` are
    the installation's. Raises `InvalidDocument` with all problems, and the path of the first.
    """
    refuse_problems(partial(_sink_problems, maxima=maxima), new, old, _immutable_sink_changes)


def _sink_problems(document: Document, maxima: Maxima) -> Iterator[Problem]:
    """Yield each problem with a KafkaSink's fields and annotations, for the webhook's answer."""
    yield from schema_problems(KafkaSink, {**document, "status": None})
    annotations = annotations_of(document)
    yield from annotation_problems(lambda: check_receiver_scaling(annotations, maxima))
    yield from topic_maxima_problems(document, maxima)


def _immutable_sink_changes(old: Document, new: Document) -> Iterator[Problem]:
    """Yield one problem that names all immutable fields of a KafkaSink that have changed; none if
    none has."""
    if diff := changed_values(_immutable_sink_fields(old), _immutable_sink_fields(new)):
        yield Problem(IMMUTABLE_FIELDS, diff, "spec")


def _immutable_sink_fields(document: Document) -> dict[str, Any]:
    """Return the immutable fields that a KafkaSink declares, by path."""
    spec = mapping_at(document, "spec")
    return {
        f"spec.{name}": spec[name] for name in IMMUTABLE_SPEC_FIELDS if spec.get(name) is not None
    }
