"""Manifests: reads Kubernetes objects from YAML and JSON files, and reads them again after changes.

A `ManifestProblem` names the file, document and field that can't be used. Meanwhile the object
keeps its last valid state, so that a typing error in an editor stops nothing: an object is removed
only when it disappears from its file, or the file disappears.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import yaml
from yaml.constructor import ConstructorError

from knafka.core import documents as decoding
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.model.channels import (
    KAFKA_CHANNEL,
    KAFKA_CHANNEL_VERSIONS,
    MESSAGING,
    SUBSCRIPTION,
    KafkaChannel,
    Subscription,
)
from knafka_operator.model.cluster import Document
from knafka_operator.model.event_policies import (
    POLICIES_VERSION,
    POLICY,
    EventPolicy,
    EventPolicySpec,
)
from knafka_operator.model.resources import Broker, ConfigMap, Service, Trigger, parse_resource

if TYPE_CHECKING:
    from knafka_operator.model.sensors import Sensor

KEPT_OBJECTS_NOTE: Final = "; until then, objects that are missing from this file stay"
"""Added to the problem of an object without a kind or a name: it may be any object that the file
had before."""
SUFFIXES: Final = (".yaml", ".yml", ".json")
"""Suffixes of files that are read in a folder; a file named by itself may have any suffix."""

Resource: TypeAlias = (
    "Broker | Trigger | ConfigMap | Service | KafkaChannel | Subscription | Sensor | EventPolicy"
)
"""A declared object of a kind that runs here."""
SENSOR_KIND: Final = ("knafka.dev/v1alpha1", "Sensor")
"""apiVersion and kind of a Sensor."""

_FURTHER_KINDS: Final[
    Mapping[tuple[object, object], type[KafkaChannel | Subscription | EventPolicy]]
] = {
    **{(version, KAFKA_CHANNEL): KafkaChannel for version in KAFKA_CHANNEL_VERSIONS},
    (MESSAGING, SUBSCRIPTION): Subscription,
    (POLICIES_VERSION, POLICY): EventPolicy,
}
"""Classes of the kinds that `parse_resource` doesn't know, by apiVersion and kind."""


class NoManifests(KnafkaError):
    """A path that the user named doesn't exist."""


class UnreadableFile(KnafkaError):
    """A file can't be read, or isn't YAML."""


class ObjectIdentity(NamedTuple):
    """Kind, namespace and name of an object; `str` gives `Trigger default/orders`."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ManifestPlace:
    """A file, and the number of a document in it, counted from 1; None stands for the whole
    file."""

    file: Path
    document: int | None = None

    def __str__(self) -> str:
        return str(self.file) if self.document is None else f"{self.file}, document {self.document}"


@dataclass(frozen=True, slots=True)
class ManifestProblem:
    """A document that can't be used as it is written."""

    place: ManifestPlace
    error: str

    def __str__(self) -> str:
        return f"{self.place}: {self.error}"


@dataclass(frozen=True, slots=True)
class DeclaredObjects:
    """All objects that the files declare, and the problems in the files."""

    resources: Mapping[ObjectIdentity, tuple[Resource, ManifestPlace]]
    """The objects, each with the place of its manifest."""
    problems: tuple[ManifestProblem, ...] = ()
    documents: Mapping[ObjectIdentity, tuple[Document, Path]] = field(default_factory=dict)
    """The documents as they are written, each with the folder of its file."""

    def of_type(self, kind: type[Any]) -> Iterator[Any]:
        """Yield all declared objects of the class `kind`, such as `Trigger`."""
        return (resource for resource, _ in self.resources.values() if isinstance(resource, kind))


class _ManifestEntry(NamedTuple):
    """One declared object, with its place and its document."""

    resource: Resource
    place: ManifestPlace
    document: Document


class Manifests:
    """The objects in files and folders; an object that becomes invalid keeps its last valid
    state."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """`paths` are files, and folders of files. Raises `NoManifests` if one doesn't exist."""
        for path in paths:
            if not os.path.exists(path):  # `Path.exists` raises `OSError`
                raise NoManifests(
                    f"{path} doesn't exist: give a YAML file, or a folder of them, with -f"
                )
        self.paths = [path.absolute() for path in paths]
        # An editor writes a new file and renames it: only a watch of the folder notices that.
        self.folders = {path if path.is_dir() else path.parent for path in self.paths}
        """The folders of all files: those to watch for changes."""
        self._valid_entries: dict[Path, dict[ObjectIdentity, _ManifestEntry]] = {}
        """The objects that `read` last returned for each file."""

    def read(self) -> DeclaredObjects:
        """Read all files again, and return their objects. An object that is invalid now is returned
        in its last valid state. If several files declare an object, the first one counts."""
        problems: list[ManifestProblem] = []
        entries_by_file = {}
        for file in self._existing_files():
            entries_by_file[file] = _read_file(file, self._valid_entries.get(file, {}), problems)
        self._valid_entries = entries_by_file
        all_entries: dict[ObjectIdentity, _ManifestEntry] = {}
        for entries in entries_by_file.values():
            for identity, entry in entries.items():
                if identity in all_entries:
                    first_place = all_entries[identity].place
                    message = f"{identity} is declared in {first_place} already"
                    problems.append(ManifestProblem(entry.place, message))
                else:
                    all_entries[identity] = entry
        return DeclaredObjects(
            {identity: (entry.resource, entry.place) for identity, entry in all_entries.items()},
            tuple(problems),
            {
                identity: (entry.document, entry.place.file.parent)
                for identity, entry in all_entries.items()
            },
        )

    async def read_settled(self, removal_delay: float) -> DeclaredObjects:
        """Read all files again after a change, as `read`, and return their objects.

        An object is left out only if two readings, `removal_delay` seconds apart, miss it: its file
        may be about to be written. If the file is back but invalid then, its objects are returned
        in the last valid state from before the first reading.
        """
        last_valid = self._valid_entries
        known = {identity for entries in last_valid.values() for identity in entries}
        declared = self.read()
        missing: Set[ObjectIdentity] = set()
        while not known - declared.resources.keys() <= missing:
            missing = known - declared.resources.keys()
            await asyncio.sleep(removal_delay)
            self._valid_entries = last_valid
            declared = self.read()
        return declared

    def _existing_files(self) -> Iterator[Path]:
        """Yield each file that exists now, once: files in `paths`, and manifests directly in
        folders in `paths`. A folder that can't be read is yielded itself, since reading it fails
        and says why, followed by the files that it had."""
        seen = set()
        for path in self.paths:
            try:
                candidates = sorted(path.iterdir())
            except (FileNotFoundError, NotADirectoryError):
                candidates = [path]
            except OSError:
                yield path
                candidates = [file for file in self._valid_entries if file.parent == path]
            for file in candidates:
                is_manifest = file == path or file.suffix in SUFFIXES
                if is_manifest and file not in seen and _may_be_file(file):
                    seen.add(file)
                    yield file

    def files(self) -> Sequence[Path]:
        """Return the manifest files that exist now."""
        return list(self._existing_files())

    def is_manifest_path(self, path: Path) -> bool:
        """Return whether a file in `folders` may be a manifest: it was named, or has the suffix of
        one."""
        return path in self.paths or path.suffix in SUFFIXES


def _may_be_file(path: Path) -> bool:
    """Return whether a path is a file, or can't be looked at: then reading it fails, too, and says
    why."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        return True


def _read_file(
    file: Path, previous: Mapping[ObjectIdentity, _ManifestEntry], problems: list[ManifestProblem]
) -> dict[ObjectIdentity, _ManifestEntry]:
    """Return one file's objects by identity.

    `previous` are the objects that the file had when it was last read. An invalid object is
    returned as it is in `previous`, and described in a new entry of `problems`. If the whole file
    can't be read, all of `previous` is returned. So it is if an object has no kind or no name, as
    it may be any of `previous`; objects that are valid now replace their previous state.
    """
    try:
        placed_documents = read_documents(file)
    except UnreadableFile as error:
        problems.append(ManifestProblem(ManifestPlace(file), str(error)))
        return dict(previous)
    entries: dict[ObjectIdentity, _ManifestEntry] = {}
    kept: dict[ObjectIdentity, _ManifestEntry] = {}
    for place, document in placed_documents:
        identity = identity_of(document)
        try:
            resource = parse_declared(document)
            if identity is None:
                raise InvalidDocument("metadata.name", "missing: give the object a name")
            if resource is None or not isinstance(document, dict):
                raise InvalidDocument("kind", "does not run here, so the object is left out")
            if identity in entries:
                raise InvalidDocument("metadata.name", "is declared in this file already")
            entries[identity] = _ManifestEntry(resource, place, document)
            if isinstance(resource, EventPolicy) and (problem := _policy_problem(resource)):
                # Keep the unreadable policy: it accepts nobody, while without any policy everybody
                # might be accepted.
                entries[identity] = previous.get(identity, entries[identity])
                problems.append(ManifestProblem(place, f"{identity}: {problem}"))
        except InvalidDocument as error:
            problems.append(
                ManifestProblem(
                    place, f"{identity}: {error}" if identity else f"{error}{KEPT_OBJECTS_NOTE}"
                )
            )
            if identity is None:
                kept |= previous
            elif identity in previous:
                kept[identity] = previous[identity]
    # The invalid object may be another product's of the same kind and name, beside a valid one.
    return kept | entries


def _policy_problem(policy: EventPolicy) -> str:
    """Return why a policy's spec can't be read, so that the policy accepts nobody; empty if it can
    be read."""
    try:
        decoding.parse(EventPolicySpec, policy.spec or {})
    except InvalidDocument as error:
        return f"spec.{error}"
    return ""


def parse_declared(document: object) -> Resource | None:
    """Parse a declared document. Returns None if its kind doesn't run here. Raises
    `InvalidDocument`."""
    if isinstance(document, dict):
        version_and_kind = document.get("apiVersion"), document.get("kind")
        # A file may have a list there, which isn't hashable.
        are_texts = all(isinstance(part, str) for part in version_and_kind)
        if are_texts and version_and_kind in _FURTHER_KINDS:
            return decoding.parse(_FURTHER_KINDS[version_and_kind], document)
        if version_and_kind == SENSOR_KIND:
            # Imported here: most files have no Sensor, and the import is slow.
            from knafka_operator.model.sensors import Sensor

            return decoding.parse(Sensor, document)
    return parse_resource(document)


def objects_in(document: object) -> Iterator[object]:
    """Yield the objects of one document: the document itself, or its items if it is a List that has
    some; none if the document is empty."""
    if isinstance(document, dict) and document.get("kind") == "List":
        items = document.get("items")
        yield from items if isinstance(items, list) else (document,)
    elif document is not None:
        yield document


def identity_of(document: object) -> ObjectIdentity | None:
    """Return kind, namespace (`default` unless it is set) and name of a document; None if it has no
    kind or name."""
    match document:
        case {"kind": str(kind), "metadata": {"name": str(name), **rest}}:
            namespace = rest.get("namespace") or "default"
            return ObjectIdentity(kind, str(namespace), name)
    return None


class ManifestLoader(yaml.SafeLoader):
    """Loads YAML as the API server's tools do, which read a date as text."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return a node's value. Raises `ConstructorError`, also where PyYAML raises other errors,
        such as for `0x_`."""
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int):
                str(value)  # Python can't print over 4,300 digits, which messages about it need
        except (ArithmeticError, AttributeError, LookupError, ValueError):
            kind = node.tag.rpartition(":")[2]
            raise ConstructorError(
                None, None, f"found a value that is no {kind}", node.start_mark
            ) from None
        return value


ManifestLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_documents(file: Path) -> list[tuple[ManifestPlace, object]]:
    """Return every object in a file as it is written, with its place. Raises `UnreadableFile`."""
    try:
        items = list(yaml.load_all(file.read_text(), ManifestLoader))
    except (yaml.YAMLError, UnicodeDecodeError, OSError, RecursionError) as error:
        raise UnreadableFile(f"can't be read: {' '.join(str(error).split())}") from None
    return [
        (ManifestPlace(file, number), item)
        for number, document in enumerate(items, start=1)
        for item in objects_in(document)
    ]
