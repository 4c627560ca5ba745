"""Memory cluster: a `Cluster` in memory that keeps the API server's promises.

    resourceVersion   changes with every change; a write without changes keeps it
    generation        counts the changes of a spec
    apply             server-side apply by our one manager: fields that it no longer names are
                      removed, others' fields stay
    delete            waits for finalizers; deletes owned objects too
    watch             yields all existing objects, then every change
    refuse            makes requests fail with any error

`MemoryServing` imitates the part of Knative Serving that the operator uses. Both are for tests and
the bench; the local mode's cluster is derived from `MemoryCluster`. They pass the same contract
test as the Kubernetes API (tests/contract/test_cluster_contract).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from knafka_operator.model.cluster import ClusterError, Conflict, Document
from knafka_operator.model.resources import SERVING

Key: TypeAlias = tuple[str, str, str, str]
"""apiVersion, kind, namespace and name."""
Path: TypeAlias = tuple[str, ...]  # the keys from a document's root to a field

VERSION_PATH: Final = ("metadata", "resourceVersion")
CREATED_AT: Final = "2026-01-01T00:00:00Z"  # the time of all creations and deletions


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One event of a watch."""

    type: str
    """ADDED, MODIFIED or DELETED."""
    document: Document


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Which requests fail, and how; see `MemoryCluster.refuse`."""

    verb: str
    kind: str | None  # None: of any kind
    name: str | None  # None: of any name
    error: Exception | None  # None: a `ClusterError`

    def error_of(self, verb: str, kind: str, name: str) -> Exception | None:
        """Return the error of a request that this refusal matches; None: it doesn't match."""
        if self.verb != verb or self.kind not in (None, kind) or self.name not in (None, name):
            return None
        return self.error or ClusterError(f"can't {verb} {kind} {name}: it is refused")


class MemoryCluster:
    """A `Cluster` in memory, on a dictionary."""

    def __init__(self) -> None:
        self.objects: dict[Key, dict[str, Any]] = {}
        """The stored objects; watches don't see changes made here."""
        self.requests: Counter[str] = Counter()
        """How often each method of the Protocol was called."""
        self._refusals: list[_Refusal] = []
        """One for each call of `refuse` since the last `permit`."""
        self._applied: dict[Key, set[Path]] = {}
        """Paths of the fields that the last applied manifest of each object had."""
        self._watches: list[tuple[str, str, asyncio.Queue[WatchEvent]]] = []
        """apiVersion and kind of each watch, and the queue of its events."""
        self._version = 0
        """The resourceVersion of the last write."""

    # The operator's requests, as in `Cluster`.

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Document | None:
        """Return a copy of a stored object; None: it doesn't exist."""
        await self._begin_request("get", kind, name)
        stored = self.objects.get((api_version, kind, namespace, name))
        return None if stored is None else _copy_document(stored)

    async def list(
        self,
        api_version: str,
        kind: str,
        labels: Mapping[str, str] | None = None,
        namespace: str | None = None,
    ) -> list[Document]:
        """Return copies of the objects of a kind with these labels, in one or all namespaces."""
        await self._begin_request("list", kind, "")
        documents = self._select_stored(api_version, kind, labels)
        if namespace is not None:
            documents = [
                document
                for document in documents
                if document["metadata"].get("namespace") == namespace
            ]
        return [_copy_document(document) for document in documents]

    async def create(self, manifest: Document) -> bool:
        """Store a new object; returns False if one of its name exists already."""
        await self._begin_request("create", manifest["kind"], manifest["metadata"]["name"])
        if _key(manifest) in self.objects:
            return False
        self.put(manifest)
        return True

    async def apply(self, manifest: Document) -> Document:
        """Merge a manifest into the stored object, as server-side apply does: fields that the last
        manifest had and this one lacks are removed. Raises `Conflict` (`_check_version`)."""
        await self._begin_request("apply", manifest["kind"], manifest["metadata"]["name"])
        key = _key(manifest)
        merged = _copy_document(self.objects.get(key, {}))
        self._check_version(manifest, merged)
        leaves = dict(_yield_leaves(manifest))
        leaves.pop(VERSION_PATH, None)
        for path in self._applied.get(key, set()) - leaves.keys():
            _remove_field(merged, path)
        for path, value in leaves.items():
            _set_field(merged, path, value)
        self._applied[key] = set(leaves)
        return _copy_document(self._store(merged))

    async def write_status(self, document: Document, status: Document) -> None:
        """Merge a status into the stored object's; does nothing if the object is gone."""
        await self._begin_request("write_status", document["kind"], document["metadata"]["name"])
        if (stored := self.objects.get(_key(document))) is not None:
            self._store({**stored, "status": _merge_patch(stored.get("status") or {}, status)})

    async def delete(self, api_version: str, kind: str, namespace: str, name: str) -> None:
        """Delete an object, if it exists, once it has no finalizers."""
        await self._begin_request("delete", kind, name)
        self.remove(api_version, kind, namespace, name)

    async def watch(
        self, api_version: str, kind: str, labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[WatchEvent]:
        """Yield all objects of a kind that have these labels, in all namespaces; then yield every
        change of such objects, for ever."""
        queue: asyncio.Queue[WatchEvent] = asyncio.Queue()
        for document in self._select_stored(api_version, kind, labels):
            queue.put_nowait(WatchEvent("ADDED", _copy_document(document)))
        watch = api_version, kind, queue
        self._watches.append(watch)
        try:
            while True:
                event = await queue.get()
                if _has_labels(event.document, labels):
                    yield event
        finally:
            self._watches.remove(watch)

    # Changes by users and other controllers.

    def put(self, document: Document) -> dict[str, Any]:
        """Create or replace an object; its status stays, unless `document` has one. Returns the
        stored object. Raises `Conflict` if `document` has a `resourceVersion` that isn't the stored
        one."""
        previous = self.objects.get(_key(document), {})
        previous_metadata = previous.get("metadata", {})
        self._check_version(document, previous)
        stored = _copy_document(document)
        kept_metadata = {
            field_name: previous_metadata[field_name]
            for field_name in ("uid", "generation", "deletionTimestamp")
            if field_name in previous_metadata
        }
        stored["metadata"] = {**kept_metadata, **stored["metadata"]}
        if "status" in previous:
            stored.setdefault("status", previous["status"])
        return self._store(stored)

    def remove(self, api_version: str, kind: str, namespace: str, name: str) -> None:
        """Delete an object, or only set its `deletionTimestamp` while it has finalizers."""
        stored = self.objects.get((api_version, kind, namespace, name))
        if stored is None:
            return
        if stored["metadata"].get("finalizers"):
            metadata = {"deletionTimestamp": CREATED_AT, **stored["metadata"]}
            self._store({**stored, "metadata": metadata})
        else:
            self._drop(stored)

    def set_finalizers(
        self, api_version: str, kind: str, namespace: str, name: str, *finalizers: str
    ) -> None:
        """Replace an object's finalizers; a deleted object disappears with its last one."""
        current = self.objects[api_version, kind, namespace, name]
        metadata = {**current["metadata"], "finalizers": list(finalizers)}
        stored = self._store({**current, "metadata": metadata})
        if not finalizers and "deletionTimestamp" in metadata:
            self._drop(stored)

    def refuse(
        self,
        verb: str,
        kind: str | None = None,
        name: str | None = None,
        *,
        error: Exception | None = None,
    ) -> None:
        """Make matching requests fail with `error`, by default a `ClusterError`.

        `verb` is the name of a method of `Cluster`; without `kind` or `name`, any matches.
        """
        self._refusals.append(_Refusal(verb, kind, name, error))

    def permit(self) -> None:
        """Undo all calls of `refuse`."""
        self._refusals.clear()

    def of(self, kind: str) -> Iterator[Document]:
        """Return the stored objects of a kind, of any apiVersion; callers must not change them."""
        return (document for key, document in self.objects.items() if key[1] == kind)

    async def _begin_request(self, verb: str, kind: str, name: str) -> None:
        """Count a request by verb, and raise the error that `refuse` has set for it, if any."""
        self.requests[verb] += 1
        await asyncio.sleep(0)  # let other tasks run, as during a real request
        for refusal in self._refusals:
            if (error := refusal.error_of(verb, kind, name)) is not None:
                raise error

    def _check_version(self, document: Document, stored: Document) -> None:
        """Raise `Conflict` if `document` has a resourceVersion that isn't the `stored` one's."""
        version = document["metadata"].get("resourceVersion")
        if version not in (None, stored.get("metadata", {}).get("resourceVersion")):
            raise Conflict(f"conflict: {document['kind']} has changed since version {version}")

    def _select_stored(
        self, api_version: str, kind: str, labels: Mapping[str, str] | None
    ) -> Sequence[dict[str, Any]]:
        """Return the stored objects of a kind that have these labels; not copies."""
        return [
            document
            for key, document in self.objects.items()
            if key[:2] == (api_version, kind) and _has_labels(document, labels)
        ]

    def _store(self, document: dict[str, Any]) -> dict[str, Any]:
        """Store an object with the metadata that an API server sets, notify watches, and return it.
        An unchanged object keeps its version, and no watch is notified."""
        key = _key(document)
        previous = self.objects.get(key)
        metadata = document["metadata"] = dict(document["metadata"])
        if previous is None:
            metadata.setdefault("creationTimestamp", CREATED_AT)
        else:
            metadata.setdefault("creationTimestamp", previous["metadata"].get("creationTimestamp"))
            metadata["resourceVersion"] = previous["metadata"].get("resourceVersion")
            if document == previous:
                return previous
        self._version += 1
        metadata.setdefault("uid", f"uid-{self._version}")
        if previous is None:
            metadata.setdefault("generation", 1)
        elif document.get("spec") != previous.get("spec"):
            metadata["generation"] = previous["metadata"].get("generation", 0) + 1
        metadata["resourceVersion"] = str(self._version)
        self.objects[key] = document
        self._on_written(document)
        self._notify_watches("ADDED" if previous is None else "MODIFIED", document)
        return document

    def _on_written(self, document: dict[str, Any]) -> None:
        """Hook for subclasses: called after a write, before watches are notified."""

    def _drop(self, document: Document) -> None:
        """Delete an object and the objects that it owns, and notify watches."""
        del self.objects[_key(document)]
        self._applied.pop(_key(document), None)
        self._notify_watches("DELETED", document)
        uid = document["metadata"]["uid"]
        owned_keys = [
            key
            for key, stored in self.objects.items()
            if any(uid == owner["uid"] for owner in stored["metadata"].get("ownerReferences") or ())
        ]
        for key in owned_keys:
            self.remove(*key)

    def _notify_watches(self, type_: str, document: Document) -> None:
        """Send an event with a copy of the object to the watches of its kind."""
        for api_version, kind, queue in self._watches:
            if (api_version, kind) == (document["apiVersion"], document["kind"]):
                queue.put_nowait(WatchEvent(type_, _copy_document(document)))


class MemoryServing(MemoryCluster):
    """A `MemoryCluster` that imitates Knative Serving: Services are Ready as soon as they are
    applied.

    Each new template creates a Revision, and the latest Ready one serves. No function runs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unready: set[str] = set()
        """Names of Knative Services whose new Revisions never become Ready."""

    def services(self) -> set[str]:
        """Return the names of the stored Knative Services."""
        return {key[3] for key in self.objects if key[:2] == (SERVING, "Service")}

    def become_ready(self, namespace: str, name: str) -> None:
        """Make the newest Revision of a Knative Service Ready."""
        self.unready.discard(name)
        service = _copy_document(self.objects[SERVING, "Service", namespace, name])
        self._serve(service)
        self._store(service)

    def _on_written(self, document: dict[str, Any]) -> None:
        """Set the status of a Knative Service that was written."""
        if (document["apiVersion"], document["kind"]) == (SERVING, "Service"):
            self._serve(document)

    def _serve(self, service: dict[str, Any]) -> None:
        """Act as Knative Serving: create a Revision if the template has changed, and set the status
        in `service`."""
        template = (service.get("spec") or {}).get("template")
        if template is None:
            return  # a subscriber's Service, whose status the test sets
        metadata = service["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        previous_status = service.get("status") or {}
        revision = previous_status.get("latestCreatedRevisionName", f"{name}-00000")
        stored_revision = self.objects.get((SERVING, "Revision", namespace, revision))
        if stored_revision is None or stored_revision["spec"] != template["spec"]:
            revision = f"{name}-{int(revision[-5:]) + 1:05}"
            template_metadata = _copy_document(template.get("metadata") or {})
            labels = {**template_metadata.get("labels", {}), "serving.knative.dev/service": name}
            self.objects[SERVING, "Revision", namespace, revision] = {
                "apiVersion": SERVING,
                "kind": "Revision",
                "metadata": {
                    **template_metadata,
                    "namespace": namespace,
                    "name": revision,
                    "uid": f"uid-{revision}",
                    "labels": labels,
                    "ownerReferences": [{"kind": "Service", "uid": metadata["uid"]}],
                },
                "spec": _copy_document(template["spec"]),
                "status": {},
            }
        is_ready = name not in self.unready
        service["status"] = {
            "observedGeneration": metadata["generation"],
            "conditions": [{"type": "Ready", "status": "True" if is_ready else "Unknown"}],
            "latestCreatedRevisionName": revision,
        }
        if "address" in previous_status:
            service["status"]["address"] = previous_status["address"]
        ready_revision = revision if is_ready else previous_status.get("latestReadyRevisionName")
        if ready_revision:
            service["status"]["latestReadyRevisionName"] = ready_revision


def _key(document: Document) -> Key:
    """Return apiVersion, kind, namespace and name of an object."""
    metadata = document["metadata"]
    return document["apiVersion"], document["kind"], metadata["namespace"], metadata["name"]


def _has_labels(document: Document, labels: Mapping[str, str] | None) -> bool:
    """Whether an object has all of `labels`; True for any object if `labels` is None."""
    return (labels or {}).items() <= (document["metadata"].get("labels") or {}).items()


_IMMUTABLE: Final = frozenset((str, int, float, bool, type(None)))


def _copy_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of decoded JSON; much faster than `copy.deepcopy`."""
    return {
        key: inner if type(inner) in _IMMUTABLE else _copy_value(inner)
        for key, inner in document.items()
    }


def _copy_value(value: Any) -> Any:
    """Return a deep copy of a JSON value."""
    # The most frequent types come first: a check for an abstract class takes ten times as long.
    if type(value) in _IMMUTABLE:
        return value
    if isinstance(value, list | tuple):
        return [_copy_value(inner) for inner in value]
    if isinstance(value, Mapping):
        return _copy_document(value)
    return value


def _yield_leaves(value: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield path and value of each field of a document, at any depth; a list is one field."""
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            yield from _yield_leaves(inner, (*path, key))
        else:
            yield (*path, key), _copy_value(inner)


def _set_field(document: dict[str, Any], path: Path, value: Any) -> None:
    """Set the field at a path; on the way, whatever isn't an object is replaced by an empty one."""
    for key in path[:-1]:
        if not isinstance(document.get(key), dict):
            document[key] = {}
        document = document[key]
    document[path[-1]] = value


def _remove_field(document: dict[str, Any], path: Path) -> None:
    """Remove the field at a path, if it is there, and the objects around it that are empty then."""
    inner = document.get(path[0])
    if len(path) > 1 and isinstance(inner, dict):
        _remove_field(inner, path[1:])
    if len(path) == 1 or inner == {}:
        document.pop(path[0], None)


def _merge_patch(stored: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return `stored` with a JSON merge patch (RFC 7386) applied."""
    merged = dict(stored)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            current = merged.get(key)
            merged[key] = _merge_patch(current if isinstance(current, Mapping) else {}, value)
        else:
            merged[key] = _copy_value(value)
    return merged
