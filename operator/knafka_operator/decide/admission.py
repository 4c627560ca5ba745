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

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from cryptography import x509
from pydantic import BeforeValidator, ValidationError
from pydantic_core import ErrorDetails

# `parse` joins what it finds into one sentence; here each problem stands by itself.
from knafka.core.documents import parse, path_of, told_of
from knafka.core.errors import InvalidDocument
from knafka.core.filters import never_true
from knafka.core.names import MAX_LENGTH, is_topic
from knafka_operator.decide import desired, kafka_settings
from knafka_operator.decide.external_topics import reserved
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.cluster import Document
from knafka_operator.model.isolation import declared_isolation
from knafka_operator.model.resources import (
    BROKER_CLASS,
    DELIVERY_ORDER,
    EXTERNAL_TOPIC,
    MAX_IN_FLIGHT,
    Broker,
    Given,
    Metadata,
    Namespace,
    Observed,
    Trigger,
    annotation_path,
    whole_number,
)

DEPENDENCY: Final = "knative.dev/dependency"
"""On a Trigger: an ObjectReference as JSON; the Trigger isn't Ready before that object is."""
INJECTION: Final = "eventing.knative.dev/injection"
"""On a Trigger: what made Knative make the Broker `default`; only its form is checked."""
BROKER_LABEL: Final = "eventing.knative.dev/broker"

_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?").fullmatch
_IMMUTABLE_FIELDS: Final = "Immutable fields changed (-old +new)"
_IMMUTABLE_ANNOTATIONS: Final = "Immutable annotations changed (-old +new)"


class Dependency(Observed):
    """The object that a Trigger waits for (KN-TRG-13); it is in the Trigger's namespace."""

    api_version: Given
    kind: Given
    name: Given
    namespace: Annotated[Namespace | None, BeforeValidator(lambda value: value or None)] = None


def dependency(metadata: Metadata) -> Dependency | None:
    """What the Trigger's annotation says it depends on. Raises `InvalidDocument`."""
    text = metadata.annotations.get(DEPENDENCY)
    if text is None:
        return None
    _raise(set(_wrong_with_dependency(text, metadata.namespace)))
    return parse(Dependency, json.loads(text))


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
    namespace = _namespace(document)
    spec = _mapping(document, "spec")
    config = spec.get("config") or _mapping(old, "spec").get("config")
    if isinstance(config, Mapping):
        spec["config"] = _in_namespace(config, namespace)
    _default_sink(spec, namespace)
    metadata = _mapping(document, "metadata")
    annotations = _mapping(metadata, "annotations")
    given = _annotations(old).get(BROKER_CLASS) if old else default_class
    if BROKER_CLASS not in annotations and given:
        metadata["annotations"] = {**annotations, BROKER_CLASS: given}
    return {**document, "metadata": metadata, "spec": spec}


def defaulted_trigger(document: Document) -> dict[str, Any]:
    """The Trigger with upstream's defaults (KN-TRG-12). Idempotent."""
    if not isinstance(document.get("spec"), Mapping | None):
        return dict(document)
    namespace = _namespace(document)
    spec = _mapping(document, "spec")
    if spec.get("filter") is None:
        spec["filter"] = {}
    if isinstance(subscriber := spec.get("subscriber"), Mapping):
        spec["subscriber"] = _resolvable(subscriber, namespace)
    _default_sink(spec, namespace)
    metadata = _mapping(document, "metadata")
    # A name that is no label's value is left for the check to refuse: its message is the better.
    if _LABEL_VALUE(broker := _broker_name(spec)):
        metadata["labels"] = {**_mapping(metadata, "labels"), BROKER_LABEL: broker}
    return {**document, "metadata": metadata, "spec": spec}


def check_broker(new: Document, old: Document | None = None) -> None:
    """Refuse what is wrong with a Broker, or may not change (KN-BRK-05, KN-BRK-06, KN-DLV-06).

    Raises `InvalidDocument` that tells all of it; its path is that of the first problem.
    """
    _refuse(_wrong_with_broker, new, old, _broker_changes)


def check_trigger(
    new: Document, old: Document | None = None, autoscaling: Autoscaling | None = None
) -> None:
    """Refuse what is wrong with a Trigger, or may not change (KN-TRG-05, 09, 10, 13, KN-DLV-06).

    `autoscaling` is what its annotations stand over, as for the scaler. Raises `InvalidDocument`
    that tells all of it; its path is that of the first problem.
    """

    def wrong(document: Document) -> Iterator[_Problem]:
        return _wrong_with_trigger(document, autoscaling or Autoscaling())

    _refuse(wrong, new, old, _trigger_changes)


def trigger_warnings(document: Document) -> list[str]:
    """What is allowed of a valid Trigger, but can't be meant: one sentence each."""
    try:
        trigger = parse(Trigger, {**document, "status": None})
    except InvalidDocument:
        return []
    found = never_true(trigger.spec.filters, "spec.filters")
    return [f"{path}: {problem}" for path, problem in found]


@dataclass(frozen=True, slots=True, order=True)
class _Problem:
    """One thing that is wrong, in the three parts of Knative's FieldError."""

    message: str
    details: str
    path: str


def _refuse(
    wrong: Callable[[Document], Iterator[_Problem]],
    new: Document,
    old: Document | None,
    changes: Callable[[Document, Document], Iterator[_Problem]],
) -> None:
    problems = set(wrong(new))
    if old is not None:
        problems = (problems - set(wrong(old))) | set(changes(old, new))
    _raise(problems)


def _raise(problems: Collection[_Problem]) -> None:
    """As FieldError words it: sorted, and what is said of several fields is said once."""
    if not problems:
        return
    paths: dict[tuple[str, str], list[str]] = {}
    for each in sorted(problems):
        paths.setdefault((each.message, each.details), []).append(each.path)
    text = "\n".join(
        f"{message}: {', '.join(where)}" + (f"\n{details}" if details else "")
        for (message, details), where in paths.items()
    )
    raise InvalidDocument(min(problems).path, text)


def _wrong_with_broker(document: Document) -> Iterator[_Problem]:
    yield from _misfits(Broker, {**document, "status": None})
    yield from _broken_certificates(document)
    yield from _caught(lambda: declared_isolation(_annotations(document)))
    topic = _annotations(document).get(EXTERNAL_TOPIC)
    if topic is not None and not is_topic(topic):
        yield _Problem(
            f"invalid value: {topic:.300}",
            f"want a topic's name, at most {MAX_LENGTH} of A-Z, a-z, 0-9, '.', '_' and '-'",
            _annotation(EXTERNAL_TOPIC),
        )
    elif topic is not None and (why := reserved(topic)) is not None:
        # A condition says whether any other is allowed, as the list may change.
        yield _Problem(f"invalid value: {topic}", why, _annotation(EXTERNAL_TOPIC))


def _wrong_with_trigger(document: Document, autoscaling: Autoscaling) -> Iterator[_Problem]:
    yield from _misfits(Trigger, {**document, "status": None})
    yield from _broken_certificates(document)
    annotations = _annotations(document)
    order = annotations.get(DELIVERY_ORDER, "key")
    if order not in desired.ORDERS:
        wanted = f"want {', '.join(desired.ORDERS)}"
        yield _Problem(f"invalid value: {order:.80}", wanted, _annotation(DELIVERY_ORDER))
    if (text := annotations.get(MAX_IN_FLIGHT)) is not None:
        path = annotation_path(MAX_IN_FLIGHT)
        yield from _caught(lambda: whole_number(text, path, 1, desired.MAX_MAX_IN_FLIGHT))
    yield from _caught(lambda: kafka_settings.check_trigger(annotations))
    yield from _caught(lambda: Autoscaling.from_annotations(annotations, autoscaling))
    if (reference := annotations.get(DEPENDENCY)) is not None:
        yield from _wrong_with_dependency(reference, _namespace(document))
    if (injection := annotations.get(INJECTION)) is not None:
        yield from _wrong_with_injection(injection, _broker_name(_mapping(document, "spec")))


def _wrong_with_injection(injection: str, broker: str) -> Iterator[_Problem]:
    if injection not in ("enabled", "disabled"):
        message = 'The provided injection annotation value can only be "enabled" or "disabled", not'
        yield _Problem(f"{message} {_quoted(injection)}", "", _annotation(INJECTION))
    elif broker != "default":
        message = (
            "The provided injection annotation is only used for default broker, but non-default "
            f"broker specified here: {_quoted(broker)}"
        )
        yield _Problem(message, "", _annotation(INJECTION))


def _wrong_with_dependency(text: str, namespace: str) -> Iterator[_Problem]:
    path = _annotation(DEPENDENCY)
    try:
        reference, broken = json.loads(text), "want an object"
    except (ValueError, RecursionError) as error:
        reference, broken = None, str(error)
    if not isinstance(reference, Mapping):
        message = "The provided annotation was not a corev1.ObjectReference"
        yield _Problem(f"{message}: {_quoted(text[:300])}", broken, path)
        return
    yield from _misfits(Dependency, reference, path)
    if reference.get("namespace") not in (None, "", namespace):
        message = f'Namespace must be empty or equal to the trigger namespace "{namespace}"'
        yield _Problem(message, "", f"{path}.namespace")


def _broken_certificates(document: Document) -> Iterator[_Problem]:
    spec = _mapping(document, "spec")
    destinations = {
        "spec.subscriber": _mapping(spec, "subscriber"),
        "spec.delivery.deadLetterSink": _mapping(_mapping(spec, "delivery"), "deadLetterSink"),
    }
    for path, destination in destinations.items():
        pem = destination.get("CACerts")
        if isinstance(pem, str) and pem:
            try:
                x509.load_pem_x509_certificates(pem.encode())
            except ValueError:
                message = "invalid value: CA Cert provided is invalid"
                yield _Problem(message, "", f"{path}.CACerts")


def _broker_changes(old: Document, new: Document) -> Iterator[_Problem]:
    if diff := _diff(_fixed_of_broker(old), _fixed_of_broker(new)):
        yield _Problem(_IMMUTABLE_FIELDS, diff, "spec")
    was, is_ = (_annotations(each).get(BROKER_CLASS, "") for each in (old, new))
    if diff := _diff({BROKER_CLASS: was}, {BROKER_CLASS: is_}):
        yield _Problem(_IMMUTABLE_ANNOTATIONS, diff, "annotations")


def _fixed_of_broker(document: Document) -> dict[str, object]:
    """The whole spec but its delivery; a namespace that is left out means the Broker's own."""
    spec = _mapping(document, "spec")
    spec.pop("delivery", None)
    if isinstance(config := spec.get("config"), Mapping):
        spec["config"] = _in_namespace(config, _namespace(document))
    return dict(_leaves("spec", spec))


def _trigger_changes(old: Document, new: Document) -> Iterator[_Problem]:
    was, is_ = (_broker_name(_mapping(each, "spec")) for each in (old, new))
    # Without a Broker it was never of use, and may be mended.
    if was and (diff := _diff({"spec.broker": was}, {"spec.broker": is_})):
        yield _Problem(_IMMUTABLE_FIELDS, diff, "spec, broker")
    yield from _caught(lambda: kafka_settings.check_start_stays(old, new))


def _diff(old: Mapping[str, object], new: Mapping[str, object]) -> str:
    lines: list[str] = []
    for path in sorted({*old, *new}):
        if old.get(path) != new.get(path):
            lines.append(f"{path}:")
            lines += [f"\t-: {_quoted(old[path])}"] if path in old else []
            lines += [f"\t+: {_quoted(new[path])}"] if path in new else []
    return "\n".join(lines)


def _leaves(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(f"{path}.{name}", inner)
    elif value is not None:
        yield path, value


def _misfits(
    model: type[Observed] | type[Broker] | type[Trigger], document: object, root: str = ""
) -> Iterator[_Problem]:
    """What `parse` would refuse of it."""
    try:
        model.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        for each in error.errors(include_url=False):
            yield from _told_apart(each, root)


def _told_apart(error: ErrorDetails, root: str) -> Iterator[_Problem]:
    location, given = error["loc"], error["input"]
    path = path_of(root, location)
    message, _, wanted = told_of(path, error)[1].partition(": want ")
    details = f"want {wanted}" if wanted else ""
    if error["type"] == "missing":
        yield _Problem("missing field(s)", "", path)
    elif fields := error.get("ctx", {}).get("fields"):
        for field in fields:
            yield _Problem(error["msg"], "", path_of(path, (field,)))
    elif location and location[-1] == "[key]":
        path = f"{path_of(root, location[:-2])}[{given}]"
        yield _Problem(f"invalid key name {_quoted(given)}", details, path)
    elif location and location[-1] == "cesql" and isinstance(given, str):
        yield _Problem(f"invalid value: {given}", message, path)
    else:
        yield _Problem(message, details, path)


def _caught(check: Callable[[], object]) -> Iterator[_Problem]:
    """What a reader of an annotation refuses."""
    try:
        check()
    except InvalidDocument as error:
        message, _, wanted = error.problem.partition(": want ")
        key = error.path.removeprefix(annotation_path(""))
        yield _Problem(message, f"want {wanted}", _annotation(key))


def _annotation(key: str) -> str:
    """Its path as upstream writes it, so that the dots of the key differ from those of the path."""
    return f"metadata.annotations[{key}]"


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _mapping(document: Document | None, key: str) -> dict[str, Any]:
    """A copy to change; empty for what isn't there, or is of another type."""
    value = (document or {}).get(key)
    return dict(value) if isinstance(value, Mapping) else {}


def _annotations(document: Document | None) -> dict[str, str]:
    annotations = _mapping(_mapping(document, "metadata"), "annotations")
    return {key: value for key, value in annotations.items() if isinstance(value, str)}


def _namespace(document: Document) -> str:
    return _mapping(document, "metadata").get("namespace") or "default"


def _broker_name(spec: Document) -> str:
    """Of the Broker that a Trigger names in either way; empty if it names none."""
    name = spec.get("broker") or _mapping(spec, "brokerRef").get("name")
    return name if isinstance(name, str) else ""


def _default_sink(spec: dict[str, Any], namespace: str) -> None:
    delivery = _mapping(spec, "delivery")
    if isinstance(sink := delivery.get("deadLetterSink"), Mapping):
        spec["delivery"] = {**delivery, "deadLetterSink": _resolvable(sink, namespace)}


def _resolvable(destination: Document, namespace: str) -> Document:
    if isinstance(reference := destination.get("ref"), Mapping):
        return {**destination, "ref": _in_namespace(reference, namespace)}
    return destination


def _in_namespace(reference: Document, namespace: str) -> Document:
    return reference if reference.get("namespace") else {**reference, "namespace": namespace}
