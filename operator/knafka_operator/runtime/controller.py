"""Controller: what the leading replica does with Brokers and Triggers on Kubernetes.

    watches -> cache, operator -> work queue -> one object: finalizer -> reconcile -> back-off
                                                            deleted   -> Kafka cleaned up -> gone

Whatever an object's reconciliation looked at (ConfigMap, Secret, subscriber, its own Service) has
it reconciled again when that changes: the cache knows who looked. Our finalizer is put on an object
before anything of it is made in Kafka, and nothing else is written outside its status.

Not here: decisions, and what reconciling does (`operator` and `reconcile`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from knafka_operator.decide import entries, services, status, subscription
from knafka_operator.model import operations
from knafka_operator.model.archives import ARCHIVE
from knafka_operator.model.cluster import ClusterError, Document
from knafka_operator.model.family import CHANNELS, family_of
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import FINALIZER, SERVING
from knafka_operator.model.sensors import SENSOR
from knafka_operator.operator import Operator
from knafka_operator.reconcile.state import broker_of
from knafka_operator.reconcile.work_queue import BACK_OFF, GONE, Key, Verdict
from knafka_operator.runtime import cache, watches
from knafka_operator.runtime.archives import ArchiveController
from knafka_operator.runtime.cache import CachedCluster
from knafka_operator.runtime.cluster import Selection
from knafka_operator.runtime.definitions import Definitions
from knafka_operator.runtime.deletions import DELETE_AGAIN, Deletions
from knafka_operator.runtime.events import Events
from knafka_operator.runtime.kinds import Kinds
from knafka_operator.runtime.operations import OperationController
from knafka_operator.runtime.selections import (
    ALWAYS,
    ARCHIVES,
    CONFIG_MAPS,
    DEFINITIONS,
    JOBS,
    KAFKA_CHANNELS,
    OPERATIONS,
    OWN,
    PODS,
    SENSORS,
    SUBSCRIPTIONS,
    UNWATCHED,
    finalizers_of,
    key_of,
)
from knafka_operator.runtime.sensors import SensorController
from knafka_operator.runtime.tracing import FollowedTracing
from knafka_operator.runtime.watches import Watch

log = logging.getLogger(__name__)

LEFT: Final = "Kafka still has its topic or group, which nobody will delete"
"""What a deletion that took too long says."""
RESYNC: Final = 300.0
"""Seconds until what is Ready is looked at again, a fifth more or less, should nothing change."""
SYNC_TIMEOUT: Final = 15.0
"""Seconds for which reconciling waits for the watches: without one of them it asks instead."""
MAX_KINDS: Final = 32
"""Kinds of subscribers that are watched; those beyond are looked at again now and then."""


class Api(cache.Api, watches.Api, Protocol):
    """What the controller asks of the API server; implemented by `ApiCluster`."""

    kinds: Kinds

    async def patch_metadata(self, document: Document, metadata: Document) -> Document | None: ...


class Controller:
    """One term of a leader; made and run inside its event loop."""

    def __init__(
        self,
        operator: Operator,
        cluster: CachedCluster,
        api: Api,
        channels: Operator | None = None,
        tracing: FollowedTracing | None = None,
    ) -> None:
        """`cluster` is what the operator asks, in front of `api`; `channels` is the one beside it
        that has KafkaChannels and Subscriptions. `tracing` follows ConfigMaps."""
        self._operator = operator
        self._operators = {each.family: each for each in (operator, channels) if each is not None}
        self._always = ALWAYS if channels is None else (*ALWAYS, KAFKA_CHANNELS, SUBSCRIPTIONS)
        if operator.sensors is not None:
            self._always = (*self._always, SENSORS)
        self._cluster = cluster
        self._api = api
        self._tracing = tracing or FollowedTracing(operator.settings, api)
        self._events = Events(api, operator.settings.identity)
        self._sensors = SensorController(operator, cluster, api, self._after, self._events)
        of = operator, cluster, api, self._after, self._events
        self.archives = ArchiveController(*of)
        self.operations = OperationController(*of[:3], self._events, self.archives)
        if self.archives.archives is not None:
            self._always = (*self._always, ARCHIVES, *OPERATIONS, JOBS)
        for each in self._operators.values():
            each.moves.on_move = self._on_move
            each.dead_letters.on_first = self._on_dead_letters
        self._watches: dict[Selection, Watch] = {}
        self._synced: set[Selection] = set()
        self._all_synced = asyncio.Event()
        self._gone: dict[Key, Document] = {}
        """What was deleted, and isn't forgotten yet."""
        self._deletions = Deletions(self._events, operator.settings)
        self._definitions = Definitions(api.kinds, self._operators.values())
        self._pods: set[str] = set()
        """UIDs of the functions' pods."""

    async def run(self) -> None:
        """Follow and reconcile everything until cancelled."""
        self._cluster.changed = self._operator.queue.enqueue
        self._cluster.looked_at = self._watch_kind
        enqueue = self._operator.queue.enqueue
        following = asyncio.create_task(
            self._tracing.follow(self._operator, enqueue, self._events.post)
        )
        try:
            for each in self._always:
                self._watch(each)
            try:
                async with asyncio.timeout(SYNC_TIMEOUT):
                    await self._all_synced.wait()
            except TimeoutError:
                missing = ", ".join(str(each) for each in self._always if each not in self._synced)
                log.warning("reconciling without watching %s", missing)
            await self._operator.queue.run(self.reconcile)
        finally:
            following.cancel()
            await asyncio.wait({following})
            for watch in self._watches.values():
                watch.close()
            self._watches.clear()
            self._cluster.unwatch()
            await self._events.close()

    # -- what changes

    def heard(self, of: Selection, changed: Sequence[Document], gone: Sequence[Document]) -> None:
        """See `watches.Listener`."""
        self._cluster.heard(of, changed, gone)
        if of in OWN:
            operator = self._operators[family_of(of.kind)]
            for document in changed:
                operator.on_change(document, gone=False)
            for document in gone:
                self._gone[key_of(document)] = document
                operator.on_change(document, gone=True)
        elif of is SENSORS:
            self._sensors.heard(changed, gone)
        elif of is ARCHIVES:
            self.archives.heard(changed, gone)
        elif of in OPERATIONS:
            self.operations.heard(changed, gone)
        elif of is JOBS:
            self.archives.heard_jobs(changed, gone)
        elif of is PODS:
            self._on_pods(changed, gone)
        elif of is CONFIG_MAPS:
            for document in (*changed, *gone):
                self._tracing.on_config_map(document)
        elif of is DEFINITIONS:
            self._definitions.heard(changed, gone)

    def is_synced(self, of: Selection, synced: bool) -> None:
        """See `watches.Listener`."""
        self._cluster.is_synced(of, synced)
        if of is DEFINITIONS:
            self._definitions.is_synced(synced)
        if of is PODS:
            self._operator.states.receivers_known = synced
        elif of is CONFIG_MAPS and synced:
            self._tracing.look()  # of one that went nobody hears later
        (self._synced.add if synced else self._synced.discard)(of)
        if self._synced.issuperset(self._always):
            self._all_synced.set()

    def _on_pods(self, changed: Sequence[Document], gone: Sequence[Document]) -> None:
        for pod in changed:
            metadata = pod["metadata"]
            if metadata["uid"] not in self._pods:
                self._pods.add(metadata["uid"])
                if _is_receiver(pod):
                    self._operator.on_receiver(pod, new=PODS in self._synced)
            elif "deletionTimestamp" in metadata:
                self._on_ending(pod)
        for pod in gone:
            self._pods.discard(pod["metadata"].get("uid", ""))
            if _is_receiver(pod):
                self._operator.on_receiver(pod, gone=True)
            self._on_ending(pod)

    def _on_ending(self, pod: Document) -> None:
        """A reconciliation may be waiting for this pod of its Service to end."""
        metadata = pod["metadata"]
        if service := (metadata.get("labels") or {}).get("serving.knative.dev/service"):
            self._cluster.tell((SERVING, "Service", metadata["namespace"], service))

    def _watch_kind(self, api_version: str, kind: str) -> None:
        """What a reconciliation looks at is of this kind: hear of its changes."""
        of = Selection(api_version, kind, metadata_only=True)
        watched = len(self._watches) - len(self._always)
        # One that doesn't exist has no watch: its CustomResourceDefinition is heard of.
        if of not in self._watches and watched < MAX_KINDS and (api_version, kind) not in UNWATCHED:
            if self._api.kinds.is_known(api_version, kind):
                self._watch(of)

    def _watch(self, of: Selection) -> None:
        self._watches[of] = Watch(self._api, of, self)

    def _on_move(self, trigger: Document, message: str) -> None:
        self._events.post(trigger, "Normal", "Moving", message)

    def _on_dead_letters(self, trigger: Document, message: str) -> None:
        self._events.post(trigger, "Warning", "DeadLetters", message)

    # -- one object

    async def reconcile(self, key: Key) -> float | Literal[Verdict.BACK_OFF, Verdict.GONE]:
        """Have one object as it is declared, see `work_queue`; raises `ClusterError`."""
        kind, namespace, name = key
        if kind == SENSOR:
            return await self._sensors.reconcile(key)
        if kind == ARCHIVE:
            return await self.archives.reconcile(key)
        if kind in operations.OPERATIONS:
            return await self.operations.reconcile(key)
        family = family_of(kind)
        if kind not in (family.broker, family.trigger) or family not in self._operators:
            return GONE  # something else that owns a Knative Service
        operator = self._operators[family]
        if (gone := self._gone.pop(key, None)) is not None:
            await self._forget(gone)
        version = family.broker_version if kind == family.broker else family.trigger_version
        document = await operator.cluster.get(version, kind, namespace, name)
        if operator.handles_entries and kind == family.trigger:
            await self._release(document, key)
        if gone is not None and document is not None:
            operator.on_change(document, gone=False)  # another one of its name, forgotten with it
        if document is None:
            self._cluster.forget(key)
            return GONE if kind == family.broker else await operator.rest(Identity(namespace, name))
        if "deletionTimestamp" in document["metadata"]:
            return await self._finalize(key, document)
        if not await self._is_ours(document):
            await self._leave(document)
            return GONE
        with self._cluster.tracking(key):
            marked = await self._with_finalizer(document)
            return GONE if marked is None else await self._reconcile(key, marked)

    async def _reconcile(
        self, key: Key, document: Document
    ) -> float | Literal[Verdict.BACK_OFF, Verdict.GONE]:
        operator = self._operators[family_of(key[0])]
        is_broker = key[0] == operator.family.broker
        reconcile = operator.reconcile_broker if is_broker else operator.triggers.reconcile
        try:
            now = await reconcile(document)
        except ClusterError:
            raise
        except Exception as error:  # a bug, which its status tells of
            log.exception("%s", " ".join(key))
            await operator.publishing.failure(document, error)
            return BACK_OFF
        if now is None:
            return RESYNC  # it is enqueued by what it waits for
        return self._after(document, now)

    async def _release(self, document: Document | None, key: Key) -> None:
        """Take our finalizer from a Subscription that Knative Eventing handles now."""
        if document is None or entries.is_entry(document):
            stored = await self._cluster.get(CHANNELS.trigger_version, *key)
            if stored is not None:
                await self._without_finalizer(stored)

    def _after(
        self, document: Document, now: Mapping[str, Any]
    ) -> float | Literal[Verdict.BACK_OFF]:
        before = status.summary((document.get("status") or {}).get("conditions") or ())
        ready = status.summary(now["conditions"])
        if before.get("status") != ready["status"] and not entries.is_entry(document):
            if ready["status"] == "True":
                message = f"{document['kind']} is Ready"
                self._events.post(document, "Normal", "Ready", message)
            elif ready["status"] == "False":
                self._events.post(document, "Warning", ready["reason"], ready["message"])
        return RESYNC * random.uniform(0.8, 1.2) if ready["status"] == "True" else BACK_OFF

    async def _is_ours(self, document: Document) -> bool:
        operator = self._operator_of(document)
        if document["kind"] == operator.family.broker:
            return bool(operator.brokers.is_ours(document))
        return bool(operator.may_be_ours(document))

    def _operator_of(self, document: Document) -> Operator:
        return self._operators[family_of(document["kind"])]

    async def _leave(self, document: Document) -> None:
        """It is another implementation's: nothing of ours stays with it."""
        operator = self._operator_of(document)
        if document["kind"] == operator.family.trigger:
            await operator.leave(document)
        self._cluster.forget(key_of(document))
        await self._without_finalizer(document)

    async def _finalize(self, key: Key, document: Document) -> float | Literal[Verdict.GONE]:
        """Let go of what it has in Kafka, then of the object itself."""
        operator = self._operators[family_of(key[0])]
        is_broker = key[0] == operator.family.broker
        if FINALIZER in finalizers_of(document) and await self._is_ours(document):
            delete = operator.delete_broker if is_broker else operator.triggers.delete
            if not await self._deletions.is_over(key, document, delete(document), LEFT):
                return DELETE_AGAIN
        await self._forget(document)
        self._deletions.forget(key)
        self._cluster.forget(key)
        await self._without_finalizer(document, *self._orphaned(document))
        return GONE

    def _orphaned(self, document: Document) -> tuple[str, ...]:
        """Finalizers of a Subscription that is deleted, whose controller is gone; an Event tells of
        those of which that isn't certain."""
        of_channels = self._operators.get(CHANNELS)
        if document["kind"] != CHANNELS.trigger or of_channels is None:
            return ()
        if of_channels.entries is None or not of_channels.may_be_ours(document):
            return ()
        finalizers, message = subscription.orphaned(document, of_channels.entries.handling)
        if message:
            self._events.post(document, "Warning", "FinalizerLeft", message)
        return finalizers

    async def _forget(self, document: Document) -> None:
        """Deliver nothing to what is gone, and keep nothing of it."""
        operator = self._operator_of(document)
        if document["kind"] == operator.family.trigger:
            await operator.triggers.abandon(Identity.of(document))
        operator.forget(document)

    # -- the finalizer

    async def _with_finalizer(self, document: Document) -> Document | None:
        """The object with our finalizer, which a Trigger without a Broker doesn't need; None: it is
        gone."""
        finalizers = finalizers_of(document)
        if FINALIZER in finalizers or not await self._makes_something(document):
            return document
        return await self._patch(document, {"finalizers": [*finalizers, FINALIZER]})

    async def _makes_something(self, document: Document) -> bool:
        operator = self._operator_of(document)
        family = operator.family
        if document["kind"] == family.broker:
            return True
        kind = family.broker_version, family.broker
        broker = await self._cluster.get(*kind, *broker_of(document))
        return broker is not None and bool(operator.brokers.is_ours(broker))

    async def _without_finalizer(self, document: Document, *orphaned: str) -> None:
        finalizers = finalizers_of(document)
        others = [each for each in finalizers if each not in (FINALIZER, *orphaned)]
        if others != list(finalizers):
            await self._patch(document, {"finalizers": others})

    async def _patch(self, document: Document, metadata: Document) -> Document | None:
        if entries.is_entry(document):
            operator = self._operator_of(document)
            assert operator.entries is not None
            await operator.entries.forget(document)
            return None
        stored = await self._api.patch_metadata(document, metadata)
        if stored is not None:
            self._cluster.keep(stored)
        return stored


def _is_receiver(pod: Document) -> bool:
    return (pod["metadata"].get("labels") or {}).get(services.ROLE) == services.RECEIVER
