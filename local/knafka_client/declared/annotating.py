"""Annotating: one annotation of an object, written into the YAML or JSON file that declares it.

Only that annotation's text changes, so comments and layout stay; the parser's marks say where.
Not here: reading what files declare (`manifests`), and what an annotation means.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from knafka.core.errors import KnafkaError
from knafka_client.declared.manifests import ObjectIdentity, identity_of, items_of

ANNOTATIONS_KEY: Final = "annotations"


class NotAnnotated(KnafkaError):
    """The file can't be changed so that only the annotation does; it is left as it is."""


def annotate(file: Path, identity: ObjectIdentity, key: str, value: str) -> None:
    """Write an annotation into the object in this file. Raises `NotAnnotated`."""
    file = file.resolve()
    text = file.read_text()
    try:
        changed = annotated(text, identity, key, value)
    except yaml.YAMLError as error:
        raise NotAnnotated(f"{file} can't be read: {' '.join(str(error).split())}") from None
    if changed is None:
        raise NotAnnotated(f"{file}: annotate {identity} by hand, with {key}: {json.dumps(value)}")
    unfinished = file.with_name(f".{file.name}.new")
    unfinished.write_text(changed)
    unfinished.chmod(file.stat().st_mode)
    unfinished.replace(file)


def annotated(text: str, identity: ObjectIdentity, key: str, value: str) -> str | None:
    """The text with the annotation; None: that can't be done by changing only it.

    Raises `yaml.YAMLError`.
    """
    metadata = next((entry for entry in _metadata(text) if entry[0] == identity), None)
    if metadata is None:
        return None
    changed = _inserted(text, metadata[1], key, json.dumps(value))
    previous, after = _documents(text), _documents(changed)
    for document in previous:
        if identity_of(document) == identity:
            given = document["metadata"].get(ANNOTATIONS_KEY) or {}
            document["metadata"][ANNOTATIONS_KEY] = {**given, key: value}
    return changed if previous == after else None


def _inserted(text: str, metadata: yaml.MappingNode, key: str, value: str) -> str:
    annotations = _value(metadata, ANNOTATIONS_KEY)
    if annotations is None:
        if metadata.flow_style:
            return _before_first(text, metadata, f'"{ANNOTATIONS_KEY}": {{"{key}": {value}}}')
        indent = " " * metadata.start_mark.column
        return _before_first(text, metadata, f"{ANNOTATIONS_KEY}:\n{indent}  {key}: {value}")
    if not isinstance(annotations, yaml.MappingNode):  # nothing behind the colon
        return _replaced(text, annotations, f' {{"{key}": {value}}}')
    if (there := _value(annotations, key)) is not None:
        return _replaced(text, there, value)
    if not annotations.value:
        return _replaced(text, annotations, f'{{"{key}": {value}}}')
    name = f'"{key}"' if annotations.flow_style else key
    return _before_first(text, annotations, f"{name}: {value}")


def _before_first(text: str, mapping: yaml.MappingNode, entry: str) -> str:
    """With one more entry, on the line above the first or before it."""
    first = mapping.value[0][0].start_mark
    between = ", " if mapping.flow_style else "\n" + " " * first.column
    return text[: first.index] + entry + between + text[first.index :]


def _replaced(text: str, node: yaml.Node, by: str) -> str:
    return text[: node.start_mark.index] + by + text[node.end_mark.index :]


def _metadata(text: str) -> Iterator[tuple[ObjectIdentity | None, yaml.MappingNode]]:
    """Every object's identity with its metadata, where that is a mapping with something in it."""
    loader = yaml.SafeLoader(text)
    try:
        while loader.check_node():
            for node in _objects(loader.get_node()):
                metadata = _value(node, "metadata")
                if isinstance(metadata, yaml.MappingNode) and metadata.value:
                    yield identity_of(loader.construct_document(node)), metadata
    finally:
        loader.dispose()


def _objects(node: yaml.Node | None) -> Iterator[yaml.MappingNode]:
    """The objects of one document: itself, and those of a List."""
    if isinstance(node, yaml.MappingNode):
        yield node
        items = _value(node, "items")
        for item in items.value if isinstance(items, yaml.SequenceNode) else ():
            yield from _objects(item)


def _value(mapping: yaml.MappingNode, key: str) -> yaml.Node | None:
    return next((value for name, value in mapping.value if name.value == key), None)


def _documents(text: str) -> list[Any]:
    return [item for document in yaml.safe_load_all(text) for item in items_of(document)]
