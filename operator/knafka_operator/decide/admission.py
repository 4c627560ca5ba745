"""Admission: what a Broker or Trigger is filled in with, and what is refused of it.

    document -> the whole document with its defaults          (a mutating webhook)
    new and old document -> nothing, or an InvalidDocument    (a validating one)
    new document -> warnings                                  (the same)

The checks need no webhook: without `old` they say what a condition has to say. `str` of the error
reads the way Knative's own webhook puts it, `message: paths` and its details on the next line, all
problems one below the other; a webhook answers `validation failed: {error}`. What was wrong before
an update already is let pass, so that a finaliser can still be put on and taken off.

Pure. Not here: looking anything up, and judging Brokers of other classes: the caller asks
`resources.is_ours` first, of the old document if there is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from difflib import get_close_matches
from typing import Any, Final

from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka.core.filters import never_true
from knafka.core.names import MAX_LENGTH, is_topic
from knafka_operator.decide import dead_letter_topics, desired, kafka_settings
from knafka_operator.decide.external_topics import reserved_reason
from knafka_operator.decide.field_errors import (
    IMMUTABLE_FIELDS,
    Problem,
    annotation_key,
    annotation_problems,
    annotations_of,
    as_json,
    changed_values,
    default_sink_namespace,
    leaf_values,
    mapping_at,
    namespace_of,
    refuse_problems,
    schema_problems,
    with_namespace,
    with_reference_namespace,
)
from knafka_operator.decide.receiver_scaling import check_receiver_scaling
from knafka_operator.decide.trigger_conditions import DEPENDENCY, dependency_problems
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.cluster import Document
from knafka_operator.model.isolation import declared_isolation
from knafka_operator.model.maxima import UNLIMITED, Maxima
from knafka_operator.model.resources import (
    BROKER_CLASS,
    DELIVERY_ORDER,
    EXTERNAL_TOPIC,
    MAX_IN_FLIGHT,
    Broker,
    Trigger,
    annotation_path,
    whole_number,
)

INJECTION: Final = "eventing.knative.dev/injection"
"""On a Trigger: what made Knative make the Broker `default`; only its form is checked."""
BROKER_LABEL: Final = "eventing.knative.dev/broker"

CLASS_SIMILARITY: Final = 0.75
"""Ratio of `difflib` from which a class is taken for a misspelt one of Knafka's: `KAFKA`, `Kakfa`
and `knafka` are, `KafkaNamespaced` isn't."""

_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?").fullmatch
_IMMUTABLE_ANNOTATIONS: Final = "Immutable annotations changed (-old +new)"


def defaulted_broker(
    document: Document,
    old: Document | None = None,
    *,
    default_class: str = "",
) -> dict[str, Any]:
    """The Broker with upstream's defaults (KN-BRK-04); `default_class` is the installation's.

    Class and config can't change, so on an update what is left out stays as in `old`, whatever the
    default is by now. Idempotent.
    """
    if not isinstance(document.get("spec"), Mapping | None):
        return dict(document)
    namespace = namespace_of(document)
    spec = mapping_at(document, "spec")
    config = spec.get("config") or mapping_at(old, "spec").get("config")
    if isinstance(config, Mapping):
        spec["config"] = with_namespace(config, namespace)
    default_sink_namespace(spec, namespace)
    metadata = mapping_at(document, "metadata")
    annotations = mapping_at(metadata, "annotations")
    given = annotations_of(old).get(BROKER_CLASS) if old else default_class
    if BROKER_CLASS not in annotations and given:
        metadata["annotations"] = {**annotations, BROKER_CLASS: given}
    return {**document, "metadata": metadata, "spec": spec}


def defaulted_trigger(document: Document) -> dict[str, Any]:
    """The Trigger with upstream's defaults (KN-TRG-12). Idempotent."""
    if not isinstance(document.get("spec"), Mapping | None):
        return dict(document)
    namespace = namespace_of(document)
    spec = mapping_at(document, "spec")
    if spec.get("filter") is None:
        spec["filter"] = {}
    if isinstance(subscriber := spec.get("subscriber"), Mapping):
        spec["subscriber"] = with_reference_namespace(subscriber, namespace)
    default_sink_namespace(spec, namespace)
    metadata = mapping_at(document, "metadata")
    # A name that is no label's value is left for the check to refuse: its message is the better.
    if _LABEL_VALUE(broker := _broker_name_of_spec(spec)):
        metadata["labels"] = {**mapping_at(metadata, "labels"), BROKER_LABEL: broker}
    return {**document, "metadata": metadata, "spec": spec}


def check_broker(new: Document, old: Document | None = None, maxima: Maxima = UNLIMITED) -> None:
    """Refuse what is wrong with a Broker, or may not change (KN-BRK-05, KN-BRK-06, KN-DLV-06).

    `maxima` are the installation's. Raises `InvalidDocument` that tells all of it; its path is that
    of the first problem.
    """

    def problems(document: Document) -> Iterator[Problem]:
        yield from _broker_problems(document)
        annotations = annotations_of(document)
        yield from annotation_problems(lambda: check_receiver_scaling(annotations, maxima))

    refuse_problems(problems, new, old, _immutable_broker_changes)


def check_trigger(
    new: Document,
    old: Document | None = None,
    autoscaling: Autoscaling | None = None,
    maxima: Maxima = UNLIMITED,
) -> None:
    """Refuse what is wrong with a Trigger, or may not change (KN-TRG-05, 09, 10, 13, KN-DLV-06).

    `autoscaling` is what its annotations stand over, as for the scaler, and `maxima` are the
    installation's. Raises `InvalidDocument` that tells all of it; its path is that of the first
    problem.
    """

    def problems(document: Document) -> Iterator[Problem]:
        return _trigger_problems(document, autoscaling or Autoscaling(), maxima)

    refuse_problems(problems, new, old, _immutable_trigger_changes)


def trigger_warnings(document: Document) -> list[str]:
    """Warnings, one sentence each, about filters of a valid Trigger that no event can pass."""
    try:
        trigger = parse(Trigger, {**document, "status": None})
    except InvalidDocument:
        return []
    found = never_true(trigger.spec.filters, "spec.filters")
    return [f"{path}: {problem}" for path, problem in found]


def class_warnings(document: Document, classes: Set[str]) -> list[str]:
    """A warning if the class of a Broker that isn't Knafka's is missing or looks misspelt; else
    an empty list.

    All mutating webhooks have run by now, so nobody serves a Broker without a class.
    """
    ours = " or ".join(sorted(classes - {""}))
    given, path = annotations_of(document).get(BROKER_CLASS, ""), annotation_path(BROKER_CLASS)
    anew = "A class never changes: delete the Broker and make it anew"
    if not given.strip():
        return [f"{path} is not set, so nobody serves this Broker: Knafka's are {ours}. {anew}"]
    known = {each.casefold() for each in classes}
    if get_close_matches(given.strip().casefold(), known, n=1, cutoff=CLASS_SIMILARITY):
        return [f"{path}: {given:.80} is no class of Knafka's, which are {ours}. {anew}"]
    return []


def _broker_problems(document: Document) -> Iterator[Problem]:
    yield from schema_problems(Broker, {**document, "status": None})
    yield from annotation_problems(lambda: declared_isolation(annotations_of(document)))
    yield from annotation_problems(
        lambda: dead_letter_topics.check_retention_annotation(annotations_of(document))
    )
    topic = annotations_of(document).get(EXTERNAL_TOPIC)
    if topic is not None and not is_topic(topic):
        yield Problem(
            f"invalid value: {topic:.300}",
            f"want a topic's name, at most {MAX_LENGTH} of A-Z, a-z, 0-9, '.', '_' and '-'",
            annotation_key(EXTERNAL_TOPIC),
        )
    elif topic is not None and (why := reserved_reason(topic)) is not None:
        # A condition says whether any other is allowed, as the list may change.
        yield Problem(f"invalid value: {topic}", why, annotation_key(EXTERNAL_TOPIC))


def _trigger_problems(
    document: Document, autoscaling: Autoscaling, maxima: Maxima
) -> Iterator[Problem]:
    yield from schema_problems(Trigger, {**document, "status": None})
    annotations = annotations_of(document)
    yield from delivery_annotation_problems(annotations, autoscaling, maxima)
    if (reference := annotations.get(DEPENDENCY)) is not None:
        yield from dependency_problems(reference, namespace_of(document))
    if (injection := annotations.get(INJECTION)) is not None:
        yield from _injection_problems(
            injection, _broker_name_of_spec(mapping_at(document, "spec"))
        )


def delivery_annotation_problems(
    annotations: Mapping[str, str], autoscaling: Autoscaling, maxima: Maxima
) -> Iterator[Problem]:
    """Yield the problems of a Trigger's or Subscription's annotations about delivery."""
    yield from order_problems(annotations)
    if (text := annotations.get(MAX_IN_FLIGHT)) is not None:
        path = annotation_path(MAX_IN_FLIGHT)
        yield from annotation_problems(
            lambda: whole_number(text, path, 1, desired.MAX_MAX_IN_FLIGHT)
        )
    yield from annotation_problems(lambda: kafka_settings.check_trigger_settings(annotations))
    yield from annotation_problems(
        lambda: dead_letter_topics.check_retention_annotation(annotations)
    )
    yield from annotation_problems(
        lambda: Autoscaling.from_annotations(annotations, autoscaling, maxima)
    )


def order_problems(annotations: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the problem of the annotation `delivery.order`, if it has one."""
    order = annotations.get(DELIVERY_ORDER, "key")
    if order not in desired.ORDERS:
        wanted = f"want {', '.join(desired.ORDERS)}"
        yield Problem(f"invalid value: {order:.80}", wanted, annotation_key(DELIVERY_ORDER))


def _injection_problems(injection: str, broker: str) -> Iterator[Problem]:
    if injection not in ("enabled", "disabled"):
        message = 'The provided injection annotation value can only be "enabled" or "disabled", not'
        yield Problem(f"{message} {as_json(injection)}", "", annotation_key(INJECTION))
    elif broker != "default":
        message = (
            "The provided injection annotation is only used for default broker, but non-default "
            f"broker specified here: {as_json(broker)}"
        )
        yield Problem(message, "", annotation_key(INJECTION))


def _immutable_broker_changes(old: Document, new: Document) -> Iterator[Problem]:
    if diff := changed_values(_immutable_broker_fields(old), _immutable_broker_fields(new)):
        yield Problem(IMMUTABLE_FIELDS, diff, "spec")
    was, is_ = (annotations_of(each).get(BROKER_CLASS, "") for each in (old, new))
    if diff := changed_values({BROKER_CLASS: was}, {BROKER_CLASS: is_}):
        yield Problem(_IMMUTABLE_ANNOTATIONS, diff, "annotations")


def _immutable_broker_fields(document: Document) -> dict[str, object]:
    """The fields of a Broker's spec that can't change, by path: all but its delivery. A missing
    namespace means the Broker's own."""
    spec = mapping_at(document, "spec")
    spec.pop("delivery", None)
    if isinstance(config := spec.get("config"), Mapping):
        spec["config"] = with_namespace(config, namespace_of(document))
    return dict(leaf_values("spec", spec))


def _immutable_trigger_changes(old: Document, new: Document) -> Iterator[Problem]:
    was, is_ = (_broker_name_of_spec(mapping_at(each, "spec")) for each in (old, new))
    # Without a Broker it was never of use, and may be mended.
    if was and (diff := changed_values({"spec.broker": was}, {"spec.broker": is_})):
        yield Problem(IMMUTABLE_FIELDS, diff, "spec, broker")
    yield from annotation_problems(lambda: kafka_settings.check_start_unchanged(old, new))


def _broker_name_of_spec(spec: Document) -> str:
    """The Broker that a Trigger's spec names, as `broker` or `brokerRef`; empty if it names
    none."""
    name = spec.get("broker") or mapping_at(spec, "brokerRef").get("name")
    return name if isinstance(name, str) else ""
