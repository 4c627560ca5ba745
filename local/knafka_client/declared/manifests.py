"""Manifests: the YAML that `kubectl apply` takes, read from files and folders, and read again.

A `ManifestProblem` names the file, document and field that can't be used. The object's last good
state stays meanwhile, so that a typing error in an editor takes nothing down: only removing an
object from its file, or the file itself, removes the object.
Not here: what the objects mean together; that is the operator's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import yaml

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

SUFFIXES: Final = (".yaml", ".yml", ".json")
"""What is read in a folder; a file that is named itself may have any suffix."""

Resource: TypeAlias = (
    "Broker | Trigger | ConfigMap | Service | KafkaChannel | Subscription | Sensor | EventPolicy"
)
SENSOR_KIND: Final = ("knafka.dev/v1alpha1", "Sensor")
"""apiVersion and kind of a Sensor."""

_OTHERS: Final[Mapping[tuple[object, object], type[KafkaChannel | Subscription | EventPolicy]]] = {
    **{(version, KAFKA_CHANNEL): KafkaChannel for version in KAFKA_CHANNEL_VERSIONS},
    (MESSAGING, SUBSCRIPTION): Subscription,
    (POLICIES_VERSION, POLICY): EventPolicy,
}
"""By apiVersion and kind: what runs here beside the kinds of `parse_resource`."""


class NoManifests(KnafkaError):
    """A path that was asked for isn't there."""


class Unreadable(KnafkaError):
    """A file is no YAML, or can't be read at all."""


class ObjectIdentity(NamedTuple):
    """What an object is called; `str` is how people write it."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ManifestPlace:
    """Where a document stands; `document` counts from 1, as people do."""

    file: Path
    document: int | None = None

    def __str__(self) -> str:
        return str(self.file) if self.document is None else f"{self.file}, document {self.document}"


@dataclass(frozen=True, slots=True)
class ManifestProblem:
    """Something that can't be used as it is written."""

    place: ManifestPlace
    error: str

    def __str__(self) -> str:
        return f"{self.place}: {self.error}"


@dataclass(frozen=True, slots=True)
class DeclaredObjects:
    """All objects that the files declare, and the problems in the files."""

    resources: Mapping[ObjectIdentity, tuple[Resource, ManifestPlace]]
    problems: tuple[ManifestProblem, ...] = ()
    documents: Mapping[ObjectIdentity, tuple[Document, Path]] = field(default_factory=dict)
    """The same as they are written, each with the folder of its file."""

    def all(self, kind: type[Any]) -> Iterator[Any]:
        return (resource for resource, _ in self.resources.values() if isinstance(resource, kind))


class _ManifestEntry(NamedTuple):
    resource: Resource
    place: ManifestPlace
    document: Document


class Manifests:
    """Files and folders, as they are now and as they last were when they were good."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises `NoManifests` if one of them doesn't exist."""
        for path in paths:
            if not path.exists():
                raise NoManifests(f"{path} doesn't exist: -f wants a YAML file or a folder of them")
        self.paths = [path.absolute() for path in paths]
        self._good: dict[Path, dict[ObjectIdentity, _ManifestEntry]] = {}

    def read(self) -> DeclaredObjects:
        """Read everything anew; what is broken now is as it was when it was good."""
        problems: list[ManifestProblem] = []
        good = {}
        for file in self._files():
            good[file] = _read(file, self._good.get(file, {}), problems)
        self._good = good
        everything: dict[ObjectIdentity, _ManifestEntry] = {}
        for in_file in good.values():
            for identity, entry in in_file.items():
                if identity in everything:
                    first = everything[identity].place
                    message = f"{identity} is declared in {first} already"
                    problems.append(ManifestProblem(entry.place, message))
                else:
                    everything[identity] = entry
        return DeclaredObjects(
            {identity: (entry.resource, entry.place) for identity, entry in everything.items()},
            tuple(problems),
            {
                identity: (entry.document, entry.place.file.parent)
                for identity, entry in everything.items()
            },
        )

    def _files(self) -> Iterator[Path]:
        seen = set()
        for path in self.paths:
            inside = sorted(path.iterdir()) if path.is_dir() else [path]
            for file in inside:
                is_manifest = file == path or file.suffix in SUFFIXES
                if is_manifest and file not in seen and file.is_file():
                    seen.add(file)
                    yield file

    def files(self) -> Sequence[Path]:
        """The files that are there now."""
        return list(self._files())

    async def changes(self) -> AsyncIterator[None]:
        """Yields each time files may have changed, a moment after an editor has written them."""
        # Not above: what only reads documents, such as a console in a cluster, follows no file.
        from watchfiles import Change, awatch

        # Editors replace files, which only the folder tells.
        folders = {path if path.is_dir() else path.parent for path in self.paths}
        named = set(self.paths)

        def concerns_us(_: Change, path: str) -> bool:
            return Path(path) in named or Path(path).suffix in SUFFIXES

        async for _ in awatch(
            *folders,
            watch_filter=concerns_us,
            recursive=False,
            debounce=400,
            step=50,
        ):
            yield


def _read(
    file: Path, previous: Mapping[ObjectIdentity, _ManifestEntry], problems: list[ManifestProblem]
) -> dict[ObjectIdentity, _ManifestEntry]:
    try:
        there = documents(file)
    except Unreadable as error:
        problems.append(ManifestProblem(ManifestPlace(file), str(error)))
        return dict(previous)
    entries: dict[ObjectIdentity, _ManifestEntry] = {}
    for place, document in there:
        identity = identity_of(document)
        try:
            resource = parse(document)
            if identity is None:
                raise InvalidDocument("metadata.name", "missing: want a name")
            if resource is None or not isinstance(document, dict):
                raise InvalidDocument("kind", "does not run here, so the object is left out")
            if identity in entries:
                raise InvalidDocument("metadata.name", "is declared in this file already")
            entries[identity] = _ManifestEntry(resource, place, document)
            if isinstance(resource, EventPolicy) and (problem := _unreadable(resource)):
                # It stays all the same: what can't be read lets nobody through, and without any
                # policy everybody might be let through.
                entries[identity] = previous.get(identity, entries[identity])
                problems.append(ManifestProblem(place, f"{identity}: {problem}"))
        except InvalidDocument as error:
            problems.append(
                ManifestProblem(place, f"{identity}: {error}" if identity else str(error))
            )
            if identity is not None and identity in previous:
                entries.setdefault(identity, previous[identity])
    return entries


def _unreadable(policy: EventPolicy) -> str:
    """Why nobody can be let through by it; empty: it can be read."""
    try:
        decoding.parse(EventPolicySpec, policy.spec or {})
    except InvalidDocument as error:
        return f"spec.{error}"
    return ""


def parse(document: object) -> Resource | None:
    """Read one declared document; None: a kind that doesn't run here. Raises `InvalidDocument`."""
    if isinstance(document, dict):
        named = document.get("apiVersion"), document.get("kind")
        if all(isinstance(part, str) for part in named) and named in _OTHERS:
            return decoding.parse(_OTHERS[named], document)
        if named == SENSOR_KIND:
            # Not above: most files have none, and what reads its conditions takes a while.
            from knafka_operator.model.sensors import Sensor

            return decoding.parse(Sensor, document)
    return parse_resource(document)


def items_of(document: object) -> Iterator[object]:
    """The objects of one document: itself, those of a List, none of an empty one."""
    if isinstance(document, dict) and document.get("kind") == "List":
        items = document.get("items")
        yield from items if isinstance(items, list) else ()
    elif document is not None:
        yield document


def identity_of(document: object) -> ObjectIdentity | None:
    """The kind, namespace and name of a document, however broken its other fields are."""
    match document:
        case {"kind": str(kind), "metadata": {"name": str(name), **rest}}:
            namespace = rest.get("namespace") or "default"
            return ObjectIdentity(kind, str(namespace), name)
    return None


class _Loader(yaml.SafeLoader):
    """YAML as the API server's tools read it: what looks like a date is text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def documents(file: Path) -> list[tuple[ManifestPlace, object]]:
    """Every object in a file as it is written, with its place. Raises `Unreadable`."""
    try:
        items = list(yaml.load_all(file.read_text(), _Loader))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise Unreadable(f"can't be read: {' '.join(str(error).split())}") from None
    return [
        (ManifestPlace(file, number), item)
        for number, document in enumerate(items, start=1)
        for item in items_of(document)
    ]
