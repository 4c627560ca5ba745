"""What the controller does with Sensors: finalizer, reconciling and back-off, deletion.

Not here: what reconciling does (`reconcile.sensors`), and everything that a Sensor has in common
with others: the queue, the cache and what hears of changes (`controller`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from knafka_operator.model.cluster import ClusterError, Document
from knafka_operator.model.resources import FINALIZER
from knafka_operator.model.sensors import KNAFKA
from knafka_operator.operator import Operator
from knafka_operator.reconcile.state import declared_of
from knafka_operator.reconcile.work_queue import BACK_OFF, GONE, Key, Verdict
from knafka_operator.runtime.cache import CachedCluster
from knafka_operator.runtime.deletions import DELETE_AGAIN, Deletions
from knafka_operator.runtime.events import Events
from knafka_operator.runtime.selections import finalizers_of, key_of

log = logging.getLogger(__name__)

After: TypeAlias = Callable[[Document, Mapping[str, Any]], float | Literal[Verdict.BACK_OFF]]
"""When it is looked at again, by what it was and its new status."""


class Api(Protocol):
    """What is asked of the API server beside `Cluster`."""

    async def patch_metadata(self, document: Document, metadata: Document) -> Document | None: ...


class Reconciled(Protocol):
    """All objects of one kind; implemented by `Sensors` and `Archives`."""

    def remember(self, document: Document) -> object: ...

    async def forget(self, document: Document) -> None: ...

    async def reconcile(self, document: Document) -> Mapping[str, Any]: ...

    async def delete(self, document: Document) -> None: ...


class SensorController:
    """One term of a leader; without Sensors in its operator it does nothing."""

    LEFT: ClassVar = "Kafka still has its topics or group, which nobody will delete"
    """What a deletion that took too long says."""

    def __init__(
        self, operator: Operator, cluster: CachedCluster, api: Api, after: After, events: Events
    ) -> None:
        self._operator = operator
        self._cluster = cluster
        self._api = api
        self._after = after
        self._events = events
        self._declared: dict[Key, Document] = {}
        """Each as it was last heard of, without its status."""
        self._gone: dict[Key, Document] = {}
        """What was deleted, and isn't forgotten yet."""
        self._deletions = Deletions(events, operator.settings)

    @property
    def _objects(self) -> Reconciled | None:
        return self._operator.sensors

    def _has_ended(self, status: Mapping[str, Any]) -> bool:
        """Whether nothing is left to let go of, so that it may go without us."""
        return False

    def heard(self, changed: Sequence[Document], gone: Sequence[Document]) -> None:
        """Sensors as they are now, and those that went."""
        sensors = self._objects
        assert sensors is not None
        for document in changed:
            sensors.remember(document)
            declared = declared_of(document)
            if self._declared.get(key_of(document)) != declared:
                self._declared[key_of(document)] = declared
                self._operator.queue.enqueue(key_of(document))
        for document in gone:
            self._declared.pop(key_of(document), None)
            self._gone[key_of(document)] = document
            self._operator.queue.enqueue(key_of(document))

    async def reconcile(self, key: Key) -> float | Literal[Verdict.BACK_OFF, Verdict.GONE]:
        """Have one Sensor as it is declared, see `work_queue`; raises `ClusterError`."""
        sensors = self._objects
        if sensors is None:
            return GONE
        if (gone := self._gone.pop(key, None)) is not None:
            await sensors.forget(gone)
        document = await self._cluster.get(KNAFKA, *key)
        if document is None:
            self._cluster.forget(key)
            return GONE
        if "deletionTimestamp" in document["metadata"]:
            return await self._finalize(key, document)
        with self._cluster.tracking(key):
            finalizers = finalizers_of(document)
            if FINALIZER not in finalizers and not self._has_ended(document.get("status") or {}):
                marked = await self._patch(document, [*finalizers, FINALIZER])
                if marked is None:
                    return GONE
                document = marked
            try:
                now = await sensors.reconcile(document)
            except ClusterError:
                raise
            except Exception as error:  # a bug, which its status tells of
                log.exception("%s", " ".join(key))
                await self._operator.publishing.failure(document, error)
                return BACK_OFF
        if self._has_ended(now):
            await self._without_finalizer(document)
        return self._after(document, now)

    async def _finalize(self, key: Key, document: Document) -> float | Literal[Verdict.GONE]:
        """Let go of what it has, then of the object itself."""
        sensors = self._objects
        assert sensors is not None
        if FINALIZER in finalizers_of(document):
            deletion = sensors.delete(document)
            if not await self._deletions.is_over(key, document, deletion, self.LEFT):
                return DELETE_AGAIN
        await sensors.forget(document)
        self._deletions.forget(key)
        self._cluster.forget(key)
        await self._without_finalizer(document)
        return GONE

    async def _without_finalizer(self, document: Document) -> None:
        if FINALIZER in (finalizers := finalizers_of(document)):
            await self._patch(document, [each for each in finalizers if each != FINALIZER])

    async def _patch(self, document: Document, finalizers: Sequence[str]) -> Document | None:
        stored = await self._api.patch_metadata(document, {"finalizers": list(finalizers)})
        if stored is not None:
            self._cluster.keep(stored)
        return stored
