"""Controller of the leading replica: gets changes of objects from watches, through the cache.

    watches -> cache, kinds -> work queue -> one object (`engine.controller`)

An object is reconciled again when any object changes that its reconciliation has read (ConfigMap,
Secret, subscriber, its own Service); the cache tracks the reads.

Not here: reconciling one object (`engine.controller`), and the watches themselves
(`kube_api.watches`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

from knafka_operator.archives.kind import Archives
from knafka_operator.archives.model import ARCHIVE
from knafka_operator.engine.controller import Controller
from knafka_operator.functions import services
from knafka_operator.kinds import kinds_of
from knafka_operator.kube_api import cache, watches
from knafka_operator.kube_api.cache import CachedCluster
from knafka_operator.kube_api.cluster import WatchSelection
from knafka_operator.kube_api.events import Events
from knafka_operator.kube_api.rest_mapper import RestMapper
from knafka_operator.kube_api.watches import Watch
from knafka_operator.model.cluster import Document
from knafka_operator.model.event_policies import POLICY_DEFINITION
from knafka_operator.model.identity import Key
from knafka_operator.model.resources import SERVING
from knafka_operator.operator import Operator
from knafka_operator.runtime.definitions import Definitions
from knafka_operator.runtime.function_keys import FunctionKeys
from knafka_operator.runtime.naming import FollowedNaming
from knafka_operator.runtime.selections import (
    CONFIG_MAPS,
    DEFINITIONS,
    JOBS,
    NAMESPACES,
    OTHER_SELECTIONS,
    PODS,
    POLICIES,
    SECRETS,
    UNWATCHED,
)
from knafka_operator.runtime.tracing import FollowedTracing

log = logging.getLogger(__name__)

SYNC_TIMEOUT: Final = 15.0
"""Seconds for which reconciliations wait for all watches; after that they start and read from the
API server."""
MAX_KINDS: Final = 32
"""Most kinds of subscribers that are watched; objects of further kinds are only re-read
periodically."""


class ControllerApi(cache.CachedApi, watches.WatchApi, Protocol):
    """The API client that the controller needs; implemented by `ApiCluster`."""

    kinds: RestMapper
    """Finds the REST path of each kind."""

    async def patch_metadata(self, document: Document, metadata: Document) -> Document | None:
        """Merge `metadata` into the metadata of the object that was read as `document`. Returns the
        stored object, None: it is gone. Raises `ClusterError`, also if it has changed since."""
        ...


class _Store:
    """The `Store` of `engine.controller`: the API server, and the cache in front of it."""

    def __init__(self, cluster: CachedCluster, api: ControllerApi) -> None:
        self._cluster = cluster
        self._api = api

    def tracking(self, key: Key) -> AbstractContextManager[None]:
        """Return a context in which each object that is read is noted as read for `key`: when the
        object changes, `key` is enqueued."""
        return self._cluster.tracking(key)

    def forget(self, key: Key) -> None:
        """Forget which objects were read for `key`, so that their changes don't enqueue it."""
        self._cluster.forget(key)

    async def set_finalizers(
        self, document: Document, finalizers: Sequence[str]
    ) -> Document | None:
        """Replace an object's finalizers, and keep the stored object in the cache. Returns the
        stored object; None: it is gone. Raises `ClusterError`, also if the object has changed since
        `document` was read."""
        stored = await self._api.patch_metadata(document, {"finalizers": list(finalizers)})
        if stored is not None:
            self._cluster.store_answer(stored)
        return stored


class ClusterController(Controller):
    """The controller of one term of leadership; created and run inside its event loop."""

    def __init__(
        self,
        operator: Operator,
        cluster: CachedCluster,
        api: ControllerApi,
        tracing: FollowedTracing | None = None,
        keys: FunctionKeys | None = None,
        naming: FollowedNaming | None = None,
    ) -> None:
        """`cluster` is the cache in front of `api` that all operators use. `tracing` and `naming`
        follow ConfigMaps; None: they are created. `keys` follows the Secret with the keys of
        functions' tokens; None: functions require no token."""
        self._events = Events(api, operator.settings.identity)
        """Posts Kubernetes Events."""
        super().__init__(
            kinds_of(operator),
            operator.queue,
            write_failure=operator.publishing.write_failure,
            settings=operator.settings,
            store=_Store(cluster, api),
            post=self._events.post,
        )
        self._operator = operator
        self._cluster = cluster
        self._api = api
        self._tracing = tracing or FollowedTracing(operator.settings, api)
        self._keys = keys
        self._naming = naming or FollowedNaming(operator.settings, api)
        self._kinds_by_selection = {
            WatchSelection(kind.api_version, name): kind for name, kind in self.kinds.items()
        }
        """The kinds that the operator reconciles, by the selection that watches their objects."""
        self._required_selections = (
            *self._kinds_by_selection,
            *OTHER_SELECTIONS,
            *((JOBS,) if ARCHIVE in self.kinds else ()),
        )
        """The selections whose objects must be known before anything is reconciled."""
        for family_operator in operator.all_operators:
            family_operator.moves.on_move = self._on_move
        for triggers in operator.delivering_kinds:
            triggers.dead_letters.on_first_dead_letters = self._on_dead_letters
        self._watches: dict[WatchSelection, Watch] = {}
        """The running watches."""
        self._synced: set[WatchSelection] = set()
        """Selections whose objects are all known and followed."""
        self._all_synced = asyncio.Event()
        """Set once all objects of the required selections are known."""
        self._definitions = Definitions(api.kinds, operator.all_operators)
        """Which CustomResourceDefinitions exist."""
        # Until `_follow_policies` has found out whether there are EventPolicies.
        operator.on_policies_known(False)
        self._pods: set[str] = set()
        """UIDs of the functions' pods that exist."""

    async def run(self) -> None:
        """Watch and reconcile everything until cancelled. Reconciliations begin once the objects of
        all required selections are known, or after `SYNC_TIMEOUT` seconds."""
        self._cluster.changed = self._operator.queue.enqueue
        self._cluster.on_unwatched_read = self._watch_kind
        enqueue = self._operator.queue.enqueue
        tracing = self._tracing.follow(self._operator, enqueue, self._events.post)
        naming = self._naming.follow(self._events.post)
        following_tasks = [asyncio.create_task(tracing), asyncio.create_task(naming)]
        if self._keys is not None:
            keys = self._keys.follow(self._operator, enqueue)
            following_tasks.append(asyncio.create_task(keys))
        try:
            for selection in self._required_selections:
                self._watch(selection)
            try:
                async with asyncio.timeout(SYNC_TIMEOUT):
                    await self._all_synced.wait()
            except TimeoutError:
                missing = ", ".join(
                    str(selection)
                    for selection in self._required_selections
                    if selection not in self._synced
                )
                log.warning("reconciling without watching %s", missing)
            await self._operator.queue.run(self.reconcile)
        finally:
            for task in following_tasks:
                task.cancel()
            await asyncio.wait(following_tasks)
            for watch in self._watches.values():
                watch.close()
            self._watches.clear()
            self._cluster.forget_all()
            await self._events.close()

    # -- changes of objects

    def on_objects(
        self, selection: WatchSelection, changed: Sequence[Document], gone: Sequence[Document]
    ) -> None:
        """Store changed and deleted objects in the cache, then pass them to the part that handles
        their selection (`watches.Listener`)."""
        self._cluster.on_objects(selection, changed, gone)
        if (kind := self._kinds_by_selection.get(selection)) is not None:
            for document in changed:
                self.on_change(kind, document, gone=False)
            for document in gone:
                self.on_change(kind, document, gone=True)
        elif selection is JOBS:
            archives = self.kinds[ARCHIVE]
            assert isinstance(archives, Archives)
            for job in (*changed, *gone):
                for key in archives.on_job(job):
                    self._operator.queue.enqueue(key)
        elif selection is PODS:
            self._on_pods(changed, gone)
        elif selection is NAMESPACES:
            self._on_namespaces(changed, gone)
        elif selection is CONFIG_MAPS:
            for document in (*changed, *gone):
                self._tracing.on_config_map(document)
                self._naming.on_config_map(document)
                self._operator.trust_bundles.on_config_map(document)
        elif selection is SECRETS and self._keys is not None:
            for document in (*changed, *gone):
                self._keys.on_secret(document)
        elif selection is DEFINITIONS:
            self._definitions.on_objects(changed, gone)
            self._follow_policies()
        elif selection is POLICIES:
            self._operator.on_policies(changed, gone)

    def set_synced(self, selection: WatchSelection, synced: bool) -> None:
        """Record whether all objects of a selection are known and followed (`watches.Listener`).
        Each time that all ConfigMaps or all Secrets become known, the parts that follow them read
        them again, since an interrupted watch may have missed a deletion."""
        self._cluster.set_synced(selection, synced)
        if selection is DEFINITIONS:
            self._definitions.set_synced(synced)
            self._follow_policies()
        elif selection is POLICIES and synced:
            # While the watch is interrupted, the policies in memory stay valid.
            self._operator.on_policies_known(True)
        elif selection is PODS:
            self._operator.states.receiver_pods_known = synced
        elif selection is CONFIG_MAPS and synced:
            self._tracing.reread_soon()
            self._naming.reread_soon()
            self._operator.trust_bundles.reread_soon()
        elif selection is SECRETS and synced and self._keys is not None:
            self._keys.reread_soon()
        if synced:
            self._synced.add(selection)
        else:
            self._synced.discard(selection)
        if self._synced.issuperset(self._required_selections):
            self._all_synced.set()

    def _on_pods(self, changed: Sequence[Document], gone: Sequence[Document]) -> None:
        """Handle functions' pods that have `changed` or are `gone`: report new and deleted receiver
        pods to the operator, and enqueue the objects whose reconciliation has read the Service of
        an ending or deleted pod."""
        for pod in changed:
            metadata = pod["metadata"]
            if metadata["uid"] not in self._pods:
                self._pods.add(metadata["uid"])
                if _is_receiver(pod):
                    self._operator.on_receiver(pod, new=PODS in self._synced)
            elif "deletionTimestamp" in metadata:
                self._wake_service_readers(pod)
        for pod in gone:
            self._pods.discard(pod["metadata"].get("uid", ""))
            if _is_receiver(pod):
                self._operator.on_receiver(pod, gone=True)
            self._wake_service_readers(pod)

    def _on_namespaces(self, changed: Sequence[Document], gone: Sequence[Document]) -> None:
        """Enqueue all objects of a namespace that is being deleted. Kubernetes deletes them only
        after all pods have ended, but functions' pods end only with their objects. Once it is gone,
        enqueue those of a new one of its name, which may have been reported before."""
        for namespace in changed:
            metadata = namespace["metadata"]
            deleted_at = metadata.get("deletionTimestamp")
            if deleted_at and metadata["name"] not in self.ending_namespaces:
                self.ending_namespaces[metadata["name"]] = deleted_at
                self._enqueue_namespace(metadata["name"])
        for namespace in gone:
            name = namespace["metadata"]["name"]
            if self.ending_namespaces.pop(name, None) is not None:
                self._enqueue_namespace(name)

    def _enqueue_namespace(self, name: str) -> None:
        """Enqueue all known objects of our kinds in a namespace."""
        for selection in self._kinds_by_selection:
            for identity in self._cluster.identities_in(selection, name):
                self._operator.queue.enqueue((selection.kind, *identity))

    def _wake_service_readers(self, pod: Document) -> None:
        """Enqueue the objects whose reconciliation has read the Service of this pod, which is
        ending or deleted."""
        metadata = pod["metadata"]
        if service := (metadata.get("labels") or {}).get("serving.knative.dev/service"):
            self._cluster.notify_readers((SERVING, "Service", metadata["namespace"], service))

    def _follow_policies(self) -> None:
        """Watch EventPolicies if their kind exists; if it doesn't, report that all policies are
        known: there are none. Do nothing while it isn't known whether the kind exists."""
        match self._definitions.exists(POLICY_DEFINITION):
            case True if POLICIES not in self._watches:
                self._operator.on_policies_known(False)
                self._watch(POLICIES)
            case False:
                self._operator.on_policies_known(True)

    def _watch_kind(self, api_version: str, kind: str) -> None:
        """Watch a kind after a reconciliation has read one of its objects, unless the kind doesn't
        exist, is never watched, or `MAX_KINDS` such kinds are watched."""
        selection = WatchSelection(api_version, kind, metadata_only=True)
        additional_count = len(self._watches) - len(self._required_selections)
        if selection in self._watches or (api_version, kind) in UNWATCHED:
            return
        # A kind that doesn't exist can't be watched; the watch of CustomResourceDefinitions reports
        # its creation.
        if additional_count < MAX_KINDS and self._api.kinds.is_known(api_version, kind):
            self._watch(selection)

    def _watch(self, selection: WatchSelection) -> None:
        """Start to watch a selection of objects."""
        self._watches[selection] = Watch(self._api, selection, self)

    def _on_move(self, trigger: Document, message: str) -> None:
        """Post the Event of a Trigger that moves to another dispatcher."""
        self._events.post(trigger, "Normal", "Moving", message)

    def _on_dead_letters(self, trigger: Document, message: str) -> None:
        """Post the Event of a Trigger's first dead letters."""
        self._events.post(trigger, "Warning", "DeadLetters", message)


def _is_receiver(pod: Document) -> bool:
    """Whether a pod is a receiver's, by its labels."""
    return (pod["metadata"].get("labels") or {}).get(services.ROLE_LABEL) == services.RECEIVER_ROLE
