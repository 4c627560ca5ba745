"""Source admission: fills in a KafkaSource's defaults, and checks the KafkaSource. Pure.

As in `brokers.admission`, the messages are upstream's, an error names all problems, and a problem
that existed before an update is accepted.

Not here: reading other objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from knafka.core import names
from knafka_operator.decisions.field_errors import (
    IMMUTABLE_FIELDS,
    Problem,
    annotations_of,
    changed_values,
    mapping_at,
    namespace_of,
    refuse_problems,
    schema_problems,
    set_default_sink_namespace,
    with_reference_namespace,
)
from knafka_operator.kafka.admission import delivery_annotation_problems
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.cluster import Document
from knafka_operator.model.maxima import UNLIMITED_MAXIMA, Maxima
from knafka_operator.model.sources import (
    DEFAULT_OFFSET,
    DEFAULT_ORDER,
    KafkaSource,
)


def with_source_defaults(
    document: Document, old: Document | None = None, *, unique: str
) -> dict[str, Any]:
    """Return the KafkaSource with upstream's defaults. Idempotent. A document whose `spec` is no
    mapping is returned as it is; `check_source` refuses that.

    A missing consumer group becomes that of `old` (the source before an update; None: it is being
    created), else a new name that ends in `unique`, as upstream's ends in a random UUID. The field
    `consumers` gets no default: without it, a source scales like a Trigger.
    """
    if not isinstance(document.get("spec"), Mapping | None):
        return dict(document)
    spec, old_spec = mapping_at(document, "spec"), mapping_at(old, "spec")
    if not spec.get("consumerGroup"):
        spec["consumerGroup"] = old_spec.get("consumerGroup") or f"{names.SOURCES}{unique}"
    for name, value in (("initialOffset", DEFAULT_OFFSET), ("ordering", DEFAULT_ORDER)):
        if spec.get(name) in (None, ""):
            spec[name] = value
    namespace = namespace_of(document)
    if isinstance(sink := spec.get("sink"), Mapping):
        spec["sink"] = with_reference_namespace(sink, namespace)
    set_default_sink_namespace(spec, namespace)
    return {**document, "spec": spec}


def check_source(
    new: Document, old: Document | None = None, maxima: Maxima = UNLIMITED_MAXIMA
) -> None:
    """Refuse an invalid KafkaSource, or a forbidden change. `old` is the source before an update,
    whose own problems are accepted; None: it is being created, or there is no webhook. `maxima` are
    the installation's. Raises `InvalidDocument` with all problems, and the path of the first.
    """
    refuse_problems(partial(_source_problems, maxima=maxima), new, old, _immutable_source_changes)


def _source_problems(document: Document, maxima: Maxima) -> Iterator[Problem]:
    """Yield each problem with a KafkaSource's fields and annotations, for the webhook's answer."""
    yield from schema_problems(KafkaSource, {**document, "status": None})
    yield from delivery_annotation_problems(annotations_of(document), Autoscaling(), maxima)


def _immutable_source_changes(old: Document, new: Document) -> Iterator[Problem]:
    """Yield a problem if the consumer group of a KafkaSource has changed."""
    old_group, new_group = (
        mapping_at(document, "spec").get("consumerGroup") for document in (old, new)
    )
    # A group that no webhook has filled in may be set later.
    if old_group and (
        diff := changed_values({"spec.consumerGroup": old_group}, {"spec.consumerGroup": new_group})
    ):
        yield Problem(IMMUTABLE_FIELDS, diff, "spec")
