"""Cache: a `Cluster` that answers from watched objects, and requests only unwatched ones from the
API server.

    whole objects are watched    a read costs no request
    their metadata is watched    a request for each version of an object that is read
    nothing is watched           a request for each read

It writes only differences: no request is made for an apply whose manifest was applied before (an
annotation has its digest) and is still stored unchanged, or for a status that is stored already.

It also tracks readers: `tracking` registers each object that a reconciliation reads, before the
read; when one of them changes, `changed` is called for each object whose reconciliation read it.
Belongs to one event loop.

Not here: watching (`watches`), reacting to a change (`controller`), and what a write would change
(`differences`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from knafka_operator.kube_api.cluster import WatchSelection
from knafka_operator.kube_api.differences import changes_nothing, contains
from knafka_operator.model.cluster import Cluster, Document
from knafka_operator.model.identity import Key

APPLIED: Final = "knafka.dev/applied"
"""Annotation of applied objects: the digest of the manifest."""

MAX_GONE: Final = 1000
"""Number of deleted objects whose UID each selection remembers."""

KindKey: TypeAlias = tuple[str, str]
"""apiVersion and kind."""
Identity: TypeAlias = tuple[str, str]
"""Namespace and name."""
Reference: TypeAlias = tuple[str, str, str, str]
"""apiVersion, kind, namespace and name."""


class CachedApi(Cluster, Protocol):
    """The API client that the cache wraps; implemented by `ApiCluster`."""

    async def patch_status(self, document: Document, status: Document) -> Document | None:
        """Merge `status` into the object's stored status, by one request to the API server. Returns
        the stored object; None: it doesn't exist any more. Raises `ClusterError`."""
        ...


@dataclass(eq=False, slots=True)
class _Reads:
    """The objects that one running reconciliation has read."""

    reader: Key
    """The object that is reconciled."""
    objects: set[Reference] = field(default_factory=set)
    """What was read so far."""
    ended: bool = False
    """Whether the reconciliation has ended; reads of tasks that outlive it don't count."""


@dataclass(eq=False, slots=True)
class _WatchedObjects:
    """The cached objects of one selection."""

    selection: WatchSelection
    synced: bool = False
    """Whether all objects of the selection are known, and their changes followed."""
    versions: dict[Identity, str] = field(default_factory=dict)
    """The resourceVersion of each object of the selection."""
    documents: dict[Identity, Document] = field(default_factory=dict)
    """The whole objects; of a metadata-only selection, only those that were read."""
    gone: dict[Identity, Document] = field(default_factory=dict)
    """Metadata of recently deleted objects, so that a late answer brings none of them back."""

    def current(self, identity: Identity) -> Document | None:
        """Return the cached object; None: it isn't cached, or may be outdated."""
        document = self.documents.get(identity)
        if document is None or not self.synced:
            return None
        if self.selection.metadata_only and _version(document) != self.versions.get(identity):
            return None  # outdated: the watch, which sends no documents, has reported a new version
        return document

    def is_absent(self, identity: Identity) -> bool:
        """Whether the object certainly doesn't exist: all objects of its kind are watched, and it
        isn't among them."""
        # Not by `documents`: `CachedCluster.delete` drops an object there while finalizers keep it.
        return self.synced and self.selection.is_everything and identity not in self.versions

    def is_gone(self, document: Document) -> bool:
        """Whether `document` is an object that was deleted, or older than a deleted one of its
        name."""
        deleted = self.gone.get(_identity(document))
        if deleted is None:
            return False
        return _uid(deleted) == _uid(document) or _is_older(document, deleted)

    def remove(self, document: Document) -> None:
        """Remove a deleted object, unless a new one of its name is known already."""
        identity = _identity(document)
        known = self.documents.get(identity)
        if known is not None and not self.selection.metadata_only and _uid(known) != _uid(document):
            return  # an answer of the API server was ahead of the watch
        self.versions.pop(identity, None)
        self.documents.pop(identity, None)
        self.gone[identity] = {"metadata": document["metadata"]}
        if len(self.gone) > MAX_GONE:
            del self.gone[next(iter(self.gone))]  # the oldest

    def store(self, document: Document) -> bool:
        """Store an object, unless a newer version is known. Returns True if the version is new: its
        readers must be notified now, as the watch's later report will notify nobody. Always False
        for a metadata-only selection, as there the watch's report notifies the readers."""
        identity = _identity(document)
        previous = self.documents.get(identity)
        if previous is not None and _is_older(document, previous):
            return False
        self.documents[identity] = document
        if self.selection.metadata_only:
            return False
        known_version = self.versions.get(identity)
        self.versions[identity] = _version(document)
        return known_version != self.versions[identity]


class CachedCluster:
    """A `Cluster` that answers from watched objects, and asks the API server for all others."""

    def __init__(self, api: CachedApi) -> None:
        """Begin without watched objects: all requests go to `api`."""
        self._api = api
        self._watched: dict[KindKey, list[_WatchedObjects]] = {}
        """The cached objects of each selection, by apiVersion and kind."""
        self._references: dict[Key, set[Reference]] = {}
        """By key of a reconciled object: the objects that its last finished reconciliation has
        read, and those that the running one has read so far."""
        self._referrers: dict[Reference, set[Key]] = {}
        """The reverse of `_references`: who has read each object."""
        self._tracked: ContextVar[_Reads | None] = ContextVar("tracked", default=None)
        self.changed: Callable[[Key], None] = lambda key: None
        """Called with the key of each object whose reconciliation has read an object that has
        changed or is gone."""
        self.on_unwatched_read: Callable[[str, str], None] = lambda api_version, kind: None
        """Called with apiVersion and kind of an object that a reconciliation has read, if that kind
        isn't watched."""

    # -- changes from watches

    def on_objects(
        self, selection: WatchSelection, changed: Sequence[Document], gone: Sequence[Document]
    ) -> None:
        """Store the changed objects, drop the deleted ones, and notify their readers. A watch calls
        this (`watches.Listener`). A stored object that is newer than the watch's stays: the API
        server's answer to a write may be ahead of the watch. Of a metadata-only selection only
        versions are stored; they come from its watch alone, which reports them in order."""
        watched = self._ensure_watched_objects(selection)
        for document in changed:
            identity = _identity(document)
            watched.gone.pop(identity, None)
            known_version, version = watched.versions.get(identity), _version(document)
            if selection.metadata_only:
                watched.versions[identity] = version
            else:
                watched.store(document)
            if known_version != version:
                self.notify_readers((selection.api_version, selection.kind, *identity))
        for document in gone:
            identity = _identity(document)
            watched.remove(document)
            self.notify_readers((selection.api_version, selection.kind, *identity))

    def set_synced(self, selection: WatchSelection, synced: bool) -> None:
        """Record whether all objects of a selection are known and their changes followed; as long
        as they aren't, reads go to the API server. A watch calls this (`watches.Listener`)."""
        self._ensure_watched_objects(selection).synced = synced

    def forget_all(self) -> None:
        """Drop all objects and references, as nothing is watched any more."""
        self._watched.clear()
        self._references.clear()
        self._referrers.clear()

    def _ensure_watched_objects(self, selection: WatchSelection) -> _WatchedObjects:
        """Return the cached objects of a selection; creates an empty cache for a new one."""
        watched_of_kind = self._watched.setdefault((selection.api_version, selection.kind), [])
        for watched in watched_of_kind:
            if watched.selection == selection:
                return watched
        watched_of_kind.append(_WatchedObjects(selection))
        return watched_of_kind[-1]

    def _look_up(self, reference: Reference) -> Document | None:
        """Return the cached object; None: it isn't cached, or may be outdated."""
        kind, identity = reference[:2], reference[2:]
        for watched in self._watched.get(kind, ()):
            if (document := watched.current(identity)) is not None:
                return document
        return None

    def store_answer(self, document: Document) -> None:
        """Store an object from the API server's answer if a selection includes it, and notify its
        readers, except the object whose reconciliation made the request."""
        kind = document["apiVersion"], document["kind"]
        for watched in self._watched.get(kind, ()):
            if (
                watched.synced
                and watched.selection.matches(document)
                and not watched.is_gone(document)
                and watched.store(_without_managed_fields(document))
            ):
                tracked = self._tracked.get()
                writer = None if tracked is None else tracked.reader
                self.notify_readers((*kind, *_identity(document)), writer)

    # -- tracking readers

    @contextmanager
    def tracking(self, key: Key) -> Iterator[None]:
        """In this context, track the objects that are read: when one changes later, `changed` is
        called with `key`. When the context ends without an error, its reads replace those that were
        tracked for `key` before."""
        reads = _Reads(key)
        token = self._tracked.set(reads)
        try:
            yield
            # Not after an error: not everything was read then, so earlier reads stay registered.
            self._set_references(key, reads.objects)
        finally:
            reads.ended = True
            self._tracked.reset(token)

    def _register_read(self, reads: _Reads, reference: Reference) -> None:
        """Register a read of the running reconciliation. Call it before the read, so that a change
        during the read or later notifies the reader."""
        reads.objects.add(reference)
        self._references.setdefault(reads.reader, set()).add(reference)
        self._referrers.setdefault(reference, set()).add(reads.reader)

    def forget(self, key: Key) -> None:
        """Forget which objects were read for `key`, whose object is gone."""
        self._set_references(key, set())

    def _set_references(self, key: Key, new_references: set[Reference]) -> None:
        """Replace the references of `key`, the objects that its reconciliation has read. An object
        that nobody refers to any more is dropped from the cache if only its metadata is watched."""
        previous_references = self._references.pop(key, set())
        if new_references:
            self._references[key] = new_references
        for reference in new_references - previous_references:
            self._referrers.setdefault(reference, set()).add(key)
        for reference in previous_references - new_references:
            referrers = self._referrers[reference]
            referrers.discard(key)
            if not referrers:
                del self._referrers[reference]
                self._drop_unread(reference)

    def _drop_unread(self, reference: Reference) -> None:
        """Drop an object without readers from the cache, if only its metadata is watched."""
        for watched in self._watched.get(reference[:2], ()):
            if watched.selection.metadata_only:
                watched.documents.pop(reference[2:], None)

    def identities_in(self, selection: WatchSelection, namespace: str) -> list[Identity]:
        """Return namespace and name of each known object of a selection that is in `namespace`."""
        versions = self._ensure_watched_objects(selection).versions
        return [identity for identity in versions if identity[0] == namespace]

    def notify_readers(self, reference: Reference, writer: Key | None = None) -> None:
        """Call `changed` with the key of every object whose reconciliation has read this one,
        except `writer`, whose reconciliation wrote it (None: somebody else wrote it)."""
        for key in list(self._referrers.get(reference, ())):
            if key != writer:
                self.changed(key)

    # -- Cluster

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Document | None:
        """Return an object from the cache if possible, else from the API server; None: it doesn't
        exist. In a context of `tracking`, the read is registered."""
        reference = api_version, kind, namespace, name
        tracked = self._tracked.get()
        if tracked is not None and not tracked.ended:
            self._register_read(tracked, reference)
        if (cached := self._look_up(reference)) is not None:
            return cached
        watched_of_kind = self._watched.get((api_version, kind), ())
        if any(watched.is_absent((namespace, name)) for watched in watched_of_kind):
            return None
        stored = await self._api.get(*reference)
        if tracked is not None and not watched_of_kind:
            self.on_unwatched_read(api_version, kind)
        if tracked is not None and stored is not None:
            self.store_answer({**stored, "apiVersion": api_version, "kind": kind})
        return stored

    async def list(
        self,
        api_version: str,
        kind: str,
        labels: Mapping[str, str] | None = None,
        namespace: str | None = None,
    ) -> list[Document]:
        """Return all objects of a kind with these labels, in one namespace or in all (None); always
        asks the API server."""
        return await self._api.list(api_version, kind, labels, namespace)

    async def create(self, manifest: Document) -> bool:
        """Create an object; returns False if one of its name exists already."""
        return await self._api.create(manifest)

    async def apply(self, manifest: Document) -> Document:
        """Apply a manifest, with a request only if something differs; returns the stored object."""
        metadata = manifest["metadata"]
        if "data" not in manifest:  # a Secret gets no digest: it would be a digest of a password
            digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:32]
            annotations = {**(metadata.get("annotations") or {}), APPLIED: digest}
            manifest = {**manifest, "metadata": {**metadata, "annotations": annotations}}
        cached = self._look_up((manifest["apiVersion"], manifest["kind"], *_identity(manifest)))
        # `contains` shows that nobody has changed the object by hand. The digest (of a Secret, the
        # comparison of `data`) shows that no field was removed from the manifest.
        if (
            cached
            and contains(cached, manifest)
            and ("data" not in manifest or cached.get("data") == manifest["data"])
        ):
            return cached
        stored = await self._api.apply(manifest)
        self.store_answer(stored)
        return stored

    async def write_status(self, document: Document, status: Document) -> None:
        """Merge `status` into an object's stored one; make no request if nothing would change."""
        cached = self._look_up((document["apiVersion"], document["kind"], *_identity(document)))
        if cached is not None and changes_nothing(cached.get("status") or {}, status):
            return
        stored = await self._api.patch_status(document, status)
        if stored is not None:
            self.store_answer(stored)

    async def delete(self, api_version: str, kind: str, namespace: str, name: str) -> None:
        """Delete an object, if it exists. After a successful request it is dropped from the cache,
        so that reads go to the API server until the watch reports it again. An object that was
        created under its name meanwhile stays cached."""
        identity = namespace, name
        cached = [
            (watched.documents, document)
            for watched in self._watched.get((api_version, kind), ())
            if (document := watched.documents.get(identity)) is not None
        ]
        await self._api.delete(api_version, kind, namespace, name)
        for documents, document in cached:
            if _uid(documents.get(identity, document)) == _uid(document):
                documents.pop(identity, None)


def _without_managed_fields(document: Document) -> Document:
    """Return a document without `managedFields`, which no code reads."""
    metadata = document["metadata"]
    if "managedFields" not in metadata:
        return document
    return {**document, "metadata": {k: v for k, v in metadata.items() if k != "managedFields"}}


def _identity(document: Document) -> Identity:
    """Return an object's namespace and name; a cluster-scoped one has the namespace ""."""
    metadata = document["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _version(document: Document) -> str:
    """Return an object's resourceVersion; "" if it has none."""
    return str(document["metadata"].get("resourceVersion", ""))


def _uid(document: Document) -> str:
    """Return an object's UID; "" if it has none."""
    return str(document["metadata"].get("uid", ""))


def _is_older(document: Document, other_version: Document) -> bool:
    """Whether a document is older than another one of its name, by resourceVersion: these numbers
    increase over all objects of a kind (KEP-5504). False if a version isn't a number."""
    try:
        return int(_version(document)) < int(_version(other_version))
    except ValueError:
        return False
