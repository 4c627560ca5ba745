"""Field errors: reports the problems of a declared document like Knative's FieldError, and reads
documents of any shape before they are validated.

Not here: the rules for each kind (its module `admission`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

# `parse` joins problems into one sentence; here each problem is a value.
from knafka.core.documents import MAX_PROBLEMS, Model, describe_error, more_problems, path_of
from knafka.core.errors import InvalidDocument
from knafka_operator.model.cluster import Document
from knafka_operator.model.maxima import Maxima
from knafka_operator.model.resources import annotation_path

IMMUTABLE_FIELDS: Final = "Immutable fields changed (-old +new)"
"""Message of the problem for forbidden changes; its details are `changed_values`."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One problem of a document, in the three parts of Knative's FieldError."""

    message: str
    """What is wrong, such as `invalid value: x`."""
    details: str
    """A second line, such as what is wanted; empty: there is none."""
    path: str
    """The field, such as `spec.delivery.retry`."""


def refuse_problems(
    find_problems: Callable[[Document], Iterator[Problem]],
    new: Document,
    old: Document | None,
    find_forbidden_changes: Callable[[Document, Document], Iterator[Problem]],
) -> None:
    """Raise `InvalidDocument` with the problems that `find_problems` yields for the document `new`;
    return if there are none.

    For an update (`old` isn't None), problems that `old` has, too, don't count; problems that
    `find_forbidden_changes` yields for the old and the new document do.
    """
    problems = set(find_problems(new))
    if old is not None:
        problems = (problems - set(find_problems(old))) | set(find_forbidden_changes(old, new))
    raise_all(problems)


def raise_all(problems: Collection[Problem]) -> None:
    """Raise the problems as one `InvalidDocument`, in FieldError's words: sorted, with the paths of
    equal problems together, and at most `MAX_PROBLEMS` of them. Does nothing without problems."""
    if not problems:
        return
    paths_by_text: dict[tuple[str, str], list[str]] = {}
    for problem in sorted(problems)[:MAX_PROBLEMS]:
        paths_by_text.setdefault((problem.message, problem.details), []).append(problem.path)
    text = "\n".join(
        f"{message}: {', '.join(paths)}" + (f"\n{details}" if details else "")
        for (message, details), paths in paths_by_text.items()
    )
    if len(problems) > MAX_PROBLEMS:
        text += f"\n{more_problems(len(problems))}"
    raise InvalidDocument(min(problems).path, text)


def changed_values(old: Mapping[str, object], new: Mapping[str, object]) -> str:
    """Return a text in Knative's format with the values that differ between `old` and `new`, both
    by path; empty if none does."""
    lines: list[str] = []
    for path in sorted({*old, *new}):
        if old.get(path) != new.get(path):
            lines.append(f"{path}:")
            if path in old:
                lines.append(f"\t-: {as_json(old[path])}")
            if path in new:
                lines.append(f"\t+: {as_json(new[path])}")
    return "\n".join(lines)


def leaf_values(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield path and value of everything in `value`, at any depth, that is neither a mapping nor
    None. `path` is the path of `value` itself, with which all paths begin."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from leaf_values(f"{path}.{name}", inner)
    elif value is not None:
        yield path, value


def schema_problems(model: type[Model], document: object, root: str = "") -> Iterator[Problem]:
    """Yield the problems for which `parse` would refuse a document of this model. `root` is the
    document's own path, which begins the path of each problem; empty: it is a whole object."""
    try:
        model.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        for schema_error in error.errors(include_url=False):
            yield from _problems_of_error(schema_error, root)


def _problems_of_error(error: ErrorDetails, root: str) -> Iterator[Problem]:
    """Yield the problems that a pydantic error stands for, in the words of Knative's webhooks: one
    for each field that the error names. `root` is the path of the validated document."""
    location, value = error["loc"], error["input"]
    path = path_of(root, location)
    _, description = describe_error(path, error)
    message, details = split_requirement(description)
    if error["type"] == "missing":
        yield Problem("missing field(s)", "", path)
    elif fields := error.get("ctx", {}).get("fields"):  # an error that `documents.problem` made
        for field in fields:
            yield Problem(error["msg"], "", path_of(path, (field,)))
    elif location and location[-1] == "[key]":  # pydantic's mark of a mapping's invalid key
        path = f"{path_of(root, location[:-2])}[{value}]"
        yield Problem(f"invalid key name {as_json(value)}", details, path)
    elif location and location[-1] == "cesql" and isinstance(value, str):
        # Upstream puts the parser's message into the details.
        yield Problem(f"invalid value: {value}", message, path)
    else:
        yield Problem(message, details, path)


def annotation_problems(check: Callable[[], object]) -> Iterator[Problem]:
    """Call `check`, which parses annotations and whose result is ignored. If it raises
    `InvalidDocument`, yield that error as the only problem; else yield nothing."""
    try:
        check()
    except InvalidDocument as error:
        message, details = split_requirement(error.problem)
        # With an empty key, the prefix that the paths of all annotations have.
        key = error.path.removeprefix(annotation_path(""))
        yield Problem(message, details, upstream_annotation_path(key))


def topic_maxima_problems(document: Document, maxima: Maxima) -> Iterator[Problem]:
    """Yield the problems of a KafkaChannel or KafkaSink that asks for more partitions or replicas
    than the installation allows."""
    spec = mapping_at(document, "spec")
    for name, check in (
        ("numPartitions", maxima.check_partitions),
        ("replicationFactor", maxima.check_replication),
    ):
        declared = spec.get(name)
        if isinstance(declared, int):
            try:
                check(declared, f"spec.{name}")
            except InvalidDocument as error:
                message, details = split_requirement(error.problem)
                yield Problem(message, details, error.path)


def split_requirement(text: str) -> tuple[str, str]:
    """Split a message such as `invalid value: x: want a number` into `invalid value: x` and the
    requirement, `want a number`. The requirement is empty if the message has none."""
    message, _, requirement = text.partition(": want ")
    return message, f"want {requirement}" if requirement else ""


def upstream_annotation_path(key: str) -> str:
    """Return the path of the annotation `key` as upstream writes it, with the key in brackets."""
    return f"metadata.annotations[{key}]"


def as_json(value: object) -> str:
    """Return a value as JSON, without escaping non-ASCII characters."""
    return json.dumps(value, ensure_ascii=False)


def mapping_at(document: Document | None, key: str) -> dict[str, Any]:
    """Return a copy of the mapping at `key` in a document; empty if the document is None, or has
    nothing or a value of another type there."""
    value = (document or {}).get(key)
    return dict(value) if isinstance(value, Mapping) else {}


def annotations_of(document: Document | None) -> dict[str, str]:
    """Return a document's annotations without those whose value isn't text; empty for None."""
    annotations = mapping_at(mapping_at(document, "metadata"), "annotations")
    return {key: value for key, value in annotations.items() if isinstance(value, str)}


def namespace_of(document: Document) -> str:
    """Return the namespace of a document, `default` if it has none."""
    return mapping_at(document, "metadata").get("namespace") or "default"


def set_default_sink_namespace(spec: dict[str, Any], namespace: str) -> None:
    """Set the namespace of the dead letter sink's reference in `spec`, in place. Does nothing if
    the reference has a namespace, or if `spec` has no sink with a reference."""
    delivery = mapping_at(spec, "delivery")
    if isinstance(sink := delivery.get("deadLetterSink"), Mapping):
        spec["delivery"] = {**delivery, "deadLetterSink": with_reference_namespace(sink, namespace)}


def with_reference_namespace(destination: Document, namespace: str) -> Document:
    """Return the destination with `namespace` in its reference, if it has a reference without a
    namespace; otherwise unchanged."""
    if isinstance(reference := destination.get("ref"), Mapping):
        return {**destination, "ref": with_namespace(reference, namespace)}
    return destination


def with_namespace(reference: Document, namespace: str) -> Document:
    """Return the reference with `namespace`; unchanged if it has a namespace already."""
    return reference if reference.get("namespace") else {**reference, "namespace": namespace}
