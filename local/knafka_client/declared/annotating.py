"""Annotating: writes an annotation into the YAML or JSON file that declares an object.

Only that annotation's text changes, at the place that the YAML parser reports, so comments, layout
and line breaks stay. Two processes that annotate objects of one file at once both succeed.

Not here: reading what files declare (`manifests`), and what an annotation means.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from knafka.core.errors import KnafkaError
from knafka_client.declared.manifests import (
    ManifestLoader,
    ObjectIdentity,
    identity_of,
    objects_in,
)

ANNOTATIONS_KEY: Final = "annotations"
"""Name of the field of an object's metadata with its annotations."""


class NotAnnotated(KnafkaError):
    """The annotation can't be written without changing anything else; the file is left as it is."""


def annotate(file: Path, identity: ObjectIdentity, key: str, value: str) -> None:
    """Write the annotation `key: value` into the text of this object in this file. Raises
    `NotAnnotated`, and leaves the file as it is, if it can't be read, written or edited safely."""
    file = file.resolve()
    try:
        with _lock_folder(file.parent):
            _annotate_in_locked_folder(file, identity, key, value)
    except (yaml.YAMLError, RecursionError) as error:
        raise NotAnnotated(f"{file} can't be read: {' '.join(str(error).split())}") from None
    except UnicodeDecodeError:
        raise NotAnnotated(f"{file} can't be read: it is not UTF-8") from None
    except OSError as error:
        raise NotAnnotated(f"{file} can't be read or written: {error.strerror}") from None


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder while the context is open, so that other threads and processes that annotate
    files in it wait. Does nothing where the file system has no locks.

    The folder is locked and not the file, as the file is replaced.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _annotate_in_locked_folder(file: Path, identity: ObjectIdentity, key: str, value: str) -> None:
    """Write an annotation into a file, whose folder the caller has locked. Raises `NotAnnotated`,
    `OSError`, `yaml.YAMLError`, `RecursionError` and `UnicodeDecodeError`."""
    # Read and written as bytes, since text mode would change the file's line breaks.
    changed = with_annotation(file.read_bytes().decode(), identity, key, value)
    if changed is None:
        raise NotAnnotated(f"{file}: annotate {identity} by hand, with {key}: {json.dumps(value)}")
    unfinished = file.with_name(f".{file.name}.{secrets.token_hex(4)}.new")
    try:
        unfinished.write_bytes(changed.encode())
        unfinished.chmod(file.stat().st_mode)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def with_annotation(text: str, identity: ObjectIdentity, key: str, value: str) -> str | None:
    """Return a file's text with the annotation `key: value` added to the object or changed in it.

    None if the text has no such object, or if anything else would change. Raises `yaml.YAMLError`.
    """
    matching_nodes = (
        node for node_identity, node in _metadata_nodes(text) if node_identity == identity
    )
    metadata = next(matching_nodes, None)
    if metadata is None:
        return None
    changed = _set_annotation(text, metadata, key, json.dumps(value))
    # An edit can change more than this object, as where YAML anchors repeat its text: so compare
    # the edited documents with what they should be.
    expected, actual = _parse_objects(text), _parse_objects(changed)
    for document in expected:
        if identity_of(document) == identity:
            annotations = document["metadata"].get(ANNOTATIONS_KEY) or {}
            document["metadata"][ANNOTATIONS_KEY] = {**annotations, key: value}
    return changed if expected == actual else None


def _set_annotation(text: str, metadata: yaml.MappingNode, key: str, value: str) -> str:
    """Return the text with the annotation `key` in an object's `metadata` node: added, or in place
    of an earlier one of this name.

    `value` is the JSON text of the annotation's value.
    """
    annotations = _value_of(metadata, ANNOTATIONS_KEY)
    if annotations is None:
        if metadata.flow_style:  # written in braces
            return _insert_entry(text, metadata, f'"{ANNOTATIONS_KEY}": {{"{key}": {value}}}')
        indent = " " * metadata.start_mark.column
        line_break = _line_break(text)
        return _insert_entry(
            text, metadata, f"{ANNOTATIONS_KEY}:{line_break}{indent}  {key}: {value}"
        )
    if not isinstance(annotations, yaml.MappingNode):  # `annotations:` without a value
        return _replace_node(text, annotations, f' {{"{key}": {value}}}')
    if (previous_value := _value_of(annotations, key)) is not None:
        return _replace_node(text, previous_value, value)
    if not annotations.value:  # `annotations: {}`
        return _replace_node(text, annotations, f'{{"{key}": {value}}}')
    name = f'"{key}"' if annotations.flow_style else key
    return _insert_entry(text, annotations, f"{name}: {value}")


def _insert_entry(text: str, mapping: yaml.MappingNode, entry: str) -> str:
    """Return the text with `entry` inserted before the first entry of a nonempty mapping."""
    first_key, _ = mapping.value[0]
    start = first_key.start_mark
    separator = ", " if mapping.flow_style else _line_break(text) + " " * start.column
    return text[: start.index] + entry + separator + text[start.index :]


def _line_break(text: str) -> str:
    """Return the text's line break: CRLF if it has any, else LF."""
    return "\r\n" if "\r\n" in text else "\n"


def _replace_node(text: str, node: yaml.Node, replacement: str) -> str:
    """Return the text with `replacement` in place of the text of a YAML node."""
    return text[: node.start_mark.index] + replacement + text[node.end_mark.index :]


def _metadata_nodes(text: str) -> Iterator[tuple[ObjectIdentity | None, yaml.MappingNode]]:
    """Yield the identity and the `metadata` node of each object in a YAML text. Objects without
    metadata, or with empty metadata, are left out."""
    loader = ManifestLoader(text)
    try:
        while loader.check_node():
            for node in _object_nodes(loader.get_node()):
                metadata = _value_of(node, "metadata")
                if isinstance(metadata, yaml.MappingNode) and metadata.value:
                    yield identity_of(loader.construct_document(node)), metadata
    finally:
        loader.dispose()


def _object_nodes(node: yaml.Node | None) -> Iterator[yaml.MappingNode]:
    """Yield the objects of one document: the document itself, and the items of a List."""
    if isinstance(node, yaml.MappingNode):
        yield node
        items = _value_of(node, "items")
        for item in items.value if isinstance(items, yaml.SequenceNode) else ():
            yield from _object_nodes(item)


def _value_of(mapping: yaml.MappingNode, key: str) -> yaml.Node | None:
    """Return the value of a key in a mapping node; None if the key is missing."""
    return next((value for name, value in mapping.value if name.value == key), None)


def _parse_objects(text: str) -> list[Any]:
    """Return every object in a text of YAML documents. Raises `yaml.YAMLError`."""
    return [
        item for document in yaml.load_all(text, ManifestLoader) for item in objects_in(document)
    ]
