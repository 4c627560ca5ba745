"""Field errors: what is wrong with a declared document, as Knative's FieldError words it; and how
a document of any shape is read, before it is known to be right.

Not here: what is right for a kind (`admission`, `channel_admission`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

# `parse` joins what it finds into one sentence; here each problem stands by itself.
from knafka.core.documents import MAX_PROBLEMS, Model, more_problems, path_of, told_of
from knafka.core.errors import InvalidDocument
from knafka_operator.model.cluster import Document
from knafka_operator.model.maxima import Maxima
from knafka_operator.model.resources import annotation_path

IMMUTABLE_FIELDS: Final = "Immutable fields changed (-old +new)"


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong, in the three parts of Knative's FieldError."""

    message: str
    details: str
    path: str


def refuse(
    wrong: Callable[[Document], Iterator[Problem]],
    new: Document,
    old: Document | None,
    changes: Callable[[Document, Document], Iterator[Problem]],
) -> None:
    """Raise what `wrong` and `changes` find; what was wrong of `old` already is let pass."""
    problems = set(wrong(new))
    if old is not None:
        problems = (problems - set(wrong(old))) | set(changes(old, new))
    raise_all(problems)


def raise_all(problems: Collection[Problem]) -> None:
    """As FieldError words it: sorted, and what is said of several fields is said once."""
    if not problems:
        return
    paths: dict[tuple[str, str], list[str]] = {}
    for each in sorted(problems)[:MAX_PROBLEMS]:
        paths.setdefault((each.message, each.details), []).append(each.path)
    text = "\n".join(
        f"{message}: {', '.join(where)}" + (f"\n{details}" if details else "")
        for (message, details), where in paths.items()
    )
    if len(problems) > MAX_PROBLEMS:
        text += f"\n{more_problems(len(problems))}"
    raise InvalidDocument(min(problems).path, text)


def changed(old: Mapping[str, object], new: Mapping[str, object]) -> str:
    """The values that differ, by path, as Knative shows them; empty if none does."""
    lines: list[str] = []
    for path in sorted({*old, *new}):
        if old.get(path) != new.get(path):
            lines.append(f"{path}:")
            lines += [f"\t-: {quoted(old[path])}"] if path in old else []
            lines += [f"\t+: {quoted(new[path])}"] if path in new else []
    return "\n".join(lines)


def leaves(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Each value that is no object, with its path."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from leaves(f"{path}.{name}", inner)
    elif value is not None:
        yield path, value


def misfits(model: type[Model], document: object, root: str = "") -> Iterator[Problem]:
    """What `parse` would refuse of it."""
    try:
        model.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        for each in error.errors(include_url=False):
            yield from _told_apart(each, root)


def _told_apart(error: ErrorDetails, root: str) -> Iterator[Problem]:
    location, given = error["loc"], error["input"]
    path = path_of(root, location)
    message, _, wanted = told_of(path, error)[1].partition(": want ")
    details = f"want {wanted}" if wanted else ""
    if error["type"] == "missing":
        yield Problem("missing field(s)", "", path)
    elif fields := error.get("ctx", {}).get("fields"):
        for field in fields:
            yield Problem(error["msg"], "", path_of(path, (field,)))
    elif location and location[-1] == "[key]":
        path = f"{path_of(root, location[:-2])}[{given}]"
        yield Problem(f"invalid key name {quoted(given)}", details, path)
    elif location and location[-1] == "cesql" and isinstance(given, str):
        yield Problem(f"invalid value: {given}", message, path)
    else:
        yield Problem(message, details, path)


def caught(check: Callable[[], object]) -> Iterator[Problem]:
    """What a reader of an annotation refuses."""
    try:
        check()
    except InvalidDocument as error:
        message, _, wanted = error.problem.partition(": want ")
        key = error.path.removeprefix(annotation_path(""))
        yield Problem(message, f"want {wanted}" if wanted else "", annotation_key(key))


def beyond(document: Document, maxima: Maxima) -> Iterator[Problem]:
    """What of a KafkaChannel's or KafkaSink's topic is more than an installation allows."""
    spec = mapping(document, "spec")
    for name, check in (
        ("numPartitions", maxima.check_partitions),
        ("replicationFactor", maxima.check_replication),
    ):
        asked = spec.get(name)
        if isinstance(asked, int):
            try:
                check(asked, f"spec.{name}")
            except InvalidDocument as error:
                message, _, wanted = error.problem.partition(": want ")
                yield Problem(message, f"want {wanted}", error.path)


def annotation_key(key: str) -> str:
    """Its path as upstream writes it, so that the dots of the key differ from those of the path."""
    return f"metadata.annotations[{key}]"


def quoted(value: object) -> str:
    """As JSON, any script as it is."""
    return json.dumps(value, ensure_ascii=False)


def mapping(document: Document | None, key: str) -> dict[str, Any]:
    """A copy to change; empty for what isn't there, or is of another type."""
    value = (document or {}).get(key)
    return dict(value) if isinstance(value, Mapping) else {}


def annotations_of(document: Document | None) -> dict[str, str]:
    """Those that are text."""
    annotations = mapping(mapping(document, "metadata"), "annotations")
    return {key: value for key, value in annotations.items() if isinstance(value, str)}


def namespace_of(document: Document) -> str:
    """That of the object; what a reference without one means."""
    return mapping(document, "metadata").get("namespace") or "default"


def default_sink(spec: dict[str, Any], namespace: str) -> None:
    """Fill in the namespace of the dead letter sink in `spec`."""
    delivery = mapping(spec, "delivery")
    if isinstance(sink := delivery.get("deadLetterSink"), Mapping):
        spec["delivery"] = {**delivery, "deadLetterSink": resolvable(sink, namespace)}


def resolvable(destination: Document, namespace: str) -> Document:
    """The destination with the namespace of its reference."""
    if isinstance(reference := destination.get("ref"), Mapping):
        return {**destination, "ref": in_namespace(reference, namespace)}
    return destination


def in_namespace(reference: Document, namespace: str) -> Document:
    """The reference with its namespace, or else this one."""
    return reference if reference.get("namespace") else {**reference, "namespace": namespace}
