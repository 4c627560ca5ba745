"""Trigger admission: fills in a Trigger's defaults, and checks the Trigger. Pure.

Errors have the form that `brokers.admission` describes. Not here: reading other objects, and
Triggers of Brokers of other classes: callers check the class first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka.core.filters.predicates import never_true
from knafka_operator.decisions.field_errors import (
    IMMUTABLE_FIELDS,
    Problem,
    annotation_problems,
    annotations_of,
    as_json,
    changed_values,
    mapping_at,
    namespace_of,
    refuse_problems,
    schema_problems,
    set_default_sink_namespace,
    upstream_annotation_path,
    with_reference_namespace,
)
from knafka_operator.dispatchers.conditions import DEPENDENCY, dependency_problems
from knafka_operator.kafka import kafka_settings
from knafka_operator.kafka.admission import delivery_annotation_problems
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.cluster import Document
from knafka_operator.model.maxima import UNLIMITED_MAXIMA, Maxima
from knafka_operator.model.resources import Trigger

INJECTION: Final = "eventing.knative.dev/injection"
"""Annotation of a Trigger by which Knative once created the Broker `default`. Knafka only checks
its value and that the Trigger names that Broker."""
TRIGGER_BROKER_LABEL: Final = "eventing.knative.dev/broker"
"""Label of a Trigger, upstream's: the name of its Broker."""

_match_label_value = re.compile(r"[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?").fullmatch
"""Matches a text that Kubernetes accepts as the value of a label, except the empty one."""


def with_trigger_defaults(document: Document) -> dict[str, Any]:
    """Return the Trigger with upstream's defaults (KN-TRG-12). Idempotent. A document whose `spec`
    is no mapping is returned as it is; `check_trigger` refuses that."""
    if not isinstance(document.get("spec"), Mapping | None):
        return dict(document)
    namespace = namespace_of(document)
    spec = mapping_at(document, "spec")
    if spec.get("filter") is None:
        spec["filter"] = {}
    if isinstance(subscriber := spec.get("subscriber"), Mapping):
        spec["subscriber"] = with_reference_namespace(subscriber, namespace)
    set_default_sink_namespace(spec, namespace)
    metadata = mapping_at(document, "metadata")
    # Don't set the label if the Broker's name can't be a label value: the check then refuses the
    # name, with a better message.
    broker = _broker_name_of_spec(spec)
    if _match_label_value(broker):
        metadata["labels"] = {**mapping_at(metadata, "labels"), TRIGGER_BROKER_LABEL: broker}
    return {**document, "metadata": metadata, "spec": spec}


def check_trigger(
    new: Document,
    old: Document | None = None,
    autoscaling: Autoscaling | None = None,
    maxima: Maxima = UNLIMITED_MAXIMA,
) -> None:
    """Refuse an invalid Trigger, or a forbidden change (KN-TRG-05, 09, 10, 13, KN-DLV-06).

    `old` is the Trigger before an update, whose own problems are accepted; None: `new` is being
    created, or there is no webhook. `autoscaling` has the defaults that the Trigger's annotations
    override, as in the scaler; None: the built-in ones. `maxima` are the installation's limits.
    Raises `InvalidDocument` with all problems, and the path of the first.
    """

    def problems(document: Document) -> Iterator[Problem]:
        """Yield the problems of a document, new or old."""
        return _trigger_problems(document, autoscaling or Autoscaling(), maxima)

    refuse_problems(problems, new, old, _immutable_trigger_changes)


def trigger_warnings(document: Document) -> list[str]:
    """Return warnings, one sentence each, about filters of a Trigger that no event can pass. Empty:
    there are none, or the Trigger is invalid, which `check_trigger` reports."""
    try:
        trigger = parse(Trigger, {**document, "status": None})
    except InvalidDocument:
        return []
    impossible_filters = never_true(trigger.spec.filters, "spec.filters")
    return [f"{path}: {problem}" for path, problem in impossible_filters]


def _trigger_problems(
    document: Document, autoscaling: Autoscaling, maxima: Maxima
) -> Iterator[Problem]:
    """Yield each problem with a Trigger's fields and annotations, for the webhook's answer."""
    yield from schema_problems(Trigger, {**document, "status": None})
    annotations = annotations_of(document)
    yield from delivery_annotation_problems(annotations, autoscaling, maxima)
    if (reference := annotations.get(DEPENDENCY)) is not None:
        yield from dependency_problems(reference, namespace_of(document))
    if (injection := annotations.get(INJECTION)) is not None:
        yield from _injection_problems(
            injection, _broker_name_of_spec(mapping_at(document, "spec"))
        )


def _injection_problems(injection: str, broker: str) -> Iterator[Problem]:
    """Yield a problem with `injection`, the value of the annotation `INJECTION`: it is unknown, or
    the Trigger names another `broker` than `default`. The words are upstream's."""
    if injection not in ("enabled", "disabled"):
        message = 'The provided injection annotation value can only be "enabled" or "disabled", not'
        yield Problem(f"{message} {as_json(injection)}", "", upstream_annotation_path(INJECTION))
    elif broker != "default":
        message = (
            "The provided injection annotation is only used for default broker, but non-default "
            f"broker specified here: {as_json(broker)}"
        )
        yield Problem(message, "", upstream_annotation_path(INJECTION))


def _immutable_trigger_changes(old: Document, new: Document) -> Iterator[Problem]:
    """Yield a problem if a Trigger's Broker was changed, and one if its start position was."""
    old_broker, new_broker = (
        _broker_name_of_spec(mapping_at(document, "spec")) for document in (old, new)
    )
    # A Trigger that named no Broker never worked, so a Broker may still be added.
    if old_broker and (
        diff := changed_values({"spec.broker": old_broker}, {"spec.broker": new_broker})
    ):
        yield Problem(IMMUTABLE_FIELDS, diff, "spec, broker")
    yield from annotation_problems(lambda: kafka_settings.check_start_unchanged(old, new))


def _broker_name_of_spec(spec: Document) -> str:
    """Return the Broker that a Trigger's spec names, as `broker` or `brokerRef`; empty if it names
    none."""
    name = spec.get("broker") or mapping_at(spec, "brokerRef").get("name")
    return name if isinstance(name, str) else ""
