"""Controller: handles one object of any kind, from its first change to its deletion.

    change -> work queue -> one object: finalizer -> reconcile -> back-off
                                       deleted   -> delete what was created for it -> remove the
                                       finalizer

An object gets our finalizer before anything is created for it in Kafka; nothing else is written
outside its status. The leading replica (`runtime.controller`, which uses watches) and the local
mode share this controller.

Not here: what differs between kinds, and what reconciling does (`kind`).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from knafka_operator.decisions import status
from knafka_operator.engine.deletions import Deletions, Post
from knafka_operator.engine.kind import Kind, key_of
from knafka_operator.engine.work_queue import BACK_OFF, GONE, Requeue, Verdict, WorkQueue
from knafka_operator.installation.settings import Settings
from knafka_operator.model.cluster import ClusterError, Document
from knafka_operator.model.identity import Identity, Key
from knafka_operator.model.resources import FINALIZER, finalizers_of

log = logging.getLogger(__name__)

RESYNC_SECONDS: Final = 300.0
"""Seconds, ±20 %, until a Ready object is reconciled again, if nothing changes."""


@dataclass(frozen=True, slots=True)
class RetryPace:
    """How soon failed work is repeated. The defaults are a cluster's; the local mode repeats
    sooner."""

    not_ready: float | Literal[Verdict.BACK_OFF] = BACK_OFF
    """Seconds until an object that isn't Ready is reconciled again; `BACK_OFF`: after a delay that
    grows with each failure."""
    deletion: float = 2.0
    """Seconds until a failed deletion is tried again."""


class Store(Protocol):
    """The controller's access to stored objects, besides `Kind.get`."""

    def tracking(self, key: Key) -> AbstractContextManager[None]:
        """In this context, track which objects are read; their changes enqueue `key`."""
        ...

    def forget(self, key: Key) -> None:
        """Forget which objects were read for `key`, as its object is gone or not ours."""
        ...

    async def set_finalizers(
        self, document: Document, finalizers: Sequence[str]
    ) -> Document | None:
        """Replace an object's finalizers; returns the stored object, None: it is gone. Raises
        `ClusterError`."""
        ...


WriteFailure: TypeAlias = Callable[[Document, Exception], Awaitable[object]]
"""Reports an unexpected error, a bug, in an object's status."""


class _BugReported(Exception):
    """A reconciliation failed by a bug, which the object's status reports."""


class Controller:
    """Reconciles the objects of all kinds; belongs to one event loop."""

    def __init__(
        self,
        kinds: Mapping[str, Kind],
        queue: WorkQueue,
        write_failure: WriteFailure,
        settings: Settings,
        store: Store,
        post: Post,
        pace: RetryPace = RetryPace(),  # frozen
    ) -> None:
        """`kinds` are reconcilers by the name of their kind; `queue` gets the objects that have
        changed; `write_failure` reports a bug in an object's status; `post` posts Kubernetes
        Events."""
        self.kinds = kinds
        self._queue = queue
        self._write_failure = write_failure
        self._store = store
        self._post = post
        self._pace = pace
        self._deletions = Deletions(post, settings)
        self._gone: dict[Key, Document] = {}
        """Deleted objects that their kind hasn't forgotten yet."""
        self.ending_namespaces: dict[str, str] = {}
        """The namespaces that are being deleted, with all of their objects, and since when
        (`deletionTimestamp`)."""

    def on_change(self, kind: Kind, document: Document, *, gone: bool) -> None:
        """Handle an object of this kind that has changed or, with `gone`, was deleted; enqueue the
        objects that must be reconciled."""
        if gone:
            self._gone[key_of(document)] = document
        for key in kind.on_change(document, gone=gone):
            self._queue.enqueue(key)

    async def reconcile(self, key: Key) -> Requeue:
        """Handle the object of `key`, and return when to handle it again (`work_queue`). An object
        of ours is reconciled; an object that is being deleted is finalized (`_finalize`); an object
        that another implementation serves is handed over. Raises `ClusterError`."""
        kind, identity = self.kinds.get(key[0]), Identity(*key[1:])
        if kind is None:
            return GONE  # another controller's kind, whose object owns a Knative Service
        if (gone := self._gone.pop(key, None)) is not None:
            await kind.forget(gone)  # before a new object of its name is read
        document = await kind.get(key)
        if (released := await kind.object_to_release(key, document)) is not None:
            await self._remove_finalizers(kind, released)
        if document is None:
            self._store.forget(key)
            return await kind.on_absent(identity)
        if gone is not None:
            # A new object of the same name: `forget` has dropped what was known about it, too.
            kind.on_change(document, gone=False)
        if self._is_ending(document):
            return await self._finalize(kind, key, document)
        if not kind.is_ours(document):
            await kind.hand_over(document)
            self._store.forget(key)
            await self._remove_finalizers(kind, document)
            return GONE
        try:
            with self._store.tracking(key):
                marked = await self._ensure_finalizer(kind, document)
                return GONE if marked is None else await self._reconcile(kind, key, marked)
        # Caught outside of `tracking`, which keeps the earlier tracked reads if an error leaves it.
        except _BugReported:
            return self._pace.not_ready

    def _is_ending(self, document: Document) -> bool:
        """Whether an object is being deleted, by itself or with its namespace. An object that was
        created later than its namespace's deletion is in a new namespace of that name, of which
        the watch hasn't reported yet: its topic has events, and must stay."""
        metadata = document["metadata"]
        deleted_at = self.ending_namespaces.get(metadata.get("namespace", ""))
        return "deletionTimestamp" in metadata or (
            deleted_at is not None and metadata.get("creationTimestamp", "") <= deleted_at
        )

    async def _reconcile(self, kind: Kind, key: Key, document: Document) -> Requeue:
        """Reconcile one object, post its Event, and return when to reconcile it again. A bug is
        logged and reported in the object's status. Raises `_BugReported`, `ClusterError`."""
        try:
            new_status = await kind.reconcile(document)
        except ClusterError:
            raise
        except Exception as error:  # a bug; the object's status reports it
            log.exception("%s", " ".join(key))
            await self._write_failure(document, error)
            raise _BugReported from error
        if new_status is None:
            return RESYNC_SECONDS  # earlier, the event that the object waits for enqueues it
        if kind.has_ended(new_status):
            await self._remove_finalizers(kind, document)
        if (event_to_post := kind.event_to_post(document, new_status)) is not None:
            self._post(document, *event_to_post)
        requeue_after = kind.requeue_after(document, new_status)
        if requeue_after is not None:
            return requeue_after
        is_ready = (
            status.ready_condition(new_status.get("conditions") or ()).get("status") == "True"
        )
        return RESYNC_SECONDS * random.uniform(0.8, 1.2) if is_ready else self._pace.not_ready

    async def _finalize(self, kind: Kind, key: Key, document: Document) -> Requeue:
        """Delete what was made for an object that is being deleted, then remove its finalizer.
        Returns `GONE`, or, if that has failed, the seconds until it is tried again. Raises
        `ClusterError`."""
        if FINALIZER in finalizers_of(document) and kind.is_ours(document):
            if not await self._deletions.try_delete(
                key, document, kind.delete(document), kind.left_behind
            ):
                return self._pace.deletion
        await kind.forget(document)
        self._deletions.forget(key)
        self._store.forget(key)
        orphaned, warning = kind.orphaned_finalizers(document)
        if warning:
            self._post(document, "Warning", "FinalizerLeft", warning)
        await self._remove_finalizers(kind, document, *orphaned)
        return GONE

    # The finalizer.

    async def _ensure_finalizer(self, kind: Kind, document: Document) -> Document | None:
        """Add our finalizer to an object if it needs one. Returns the object with its present
        metadata; None: it is gone. Raises `ClusterError`."""
        finalizers = finalizers_of(document)
        if FINALIZER in finalizers or kind.has_ended(document.get("status") or {}):
            return document
        if not await kind.needs_finalizer(document):
            return document
        marked = await self._set_finalizers(kind, document, [*finalizers, FINALIZER])
        # Only metadata has changed, as the write was conditional on the version read. Keep what the
        # kind has added to the stored object: annotations that a channel keeps for a Subscription.
        return None if marked is None else {**document, "metadata": marked["metadata"]}

    async def _remove_finalizers(self, kind: Kind, document: Document, *orphaned: str) -> None:
        """Remove the operator's finalizer and the `orphaned` ones from an object, if it has any of
        them. Raises `ClusterError`."""
        finalizers = finalizers_of(document)
        remaining = [
            finalizer for finalizer in finalizers if finalizer not in (FINALIZER, *orphaned)
        ]
        if remaining != finalizers:
            await self._set_finalizers(kind, document, remaining)

    async def _set_finalizers(
        self, kind: Kind, document: Document, finalizers: Sequence[str]
    ) -> Document | None:
        """Replace an object's finalizers and return the stored object; None: the object is gone, or
        stands for a channel's entry, which has no finalizers. Raises `ClusterError`."""
        if await kind.drop_entry(document):
            return None
        return await self._store.set_finalizers(document, finalizers)
