"""Entries: shows the entries of channels' `spec.subscribers` as Subscriptions, next to the stored
Subscriptions:

    stored Subscription, handled by Knafka              as it is stored
    stored Subscription, handled by Knative Eventing    its entry, once there is one
    entry without a stored Subscription                 a Subscription named after the entry's UID
    missing entry                                       nothing; after `MISSING_ENTRY_SECONDS` a
                                                        Subscription under deletion, if no stored
                                                        one has its UID

So callers of this `Cluster` see Subscriptions only, which are delivered, moved and deleted in one
way. The status of an entry is written to its channel's status.

A missing entry keeps its consumer group for a while, since Knative Eventing's controller patches
the whole list as it last read it: if it adds two Subscriptions at once, one may be missing until
its next reconciliation, and must lose no events.

Not here: how entries are parsed (`channels.entries`) and how Knafka writes its own (`subscribers`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from knafka_operator.channels import entries
from knafka_operator.installation.handler import Handler, Handling
from knafka_operator.model.channels import ENTRY, MESSAGING, PROMISE, is_entry
from knafka_operator.model.cluster import Cluster, ClusterError, Document, status_annotations
from knafka_operator.model.family import CHANNELS, is_of_kafka_channel
from knafka_operator.model.identity import Identity

MISSING_ENTRY_SECONDS: Final = 300.0
"""Seconds for which a missing entry keeps its consumer group."""


@dataclass(frozen=True, slots=True)
class EntryPlace:
    """Where an entry is or was in the cluster: its channel, and its UID in `spec.subscribers`."""

    channel: Identity
    uid: str
    listed: bool
    """Whether the entry is in `spec.subscribers` now."""


_NO_ENTRIES: Final = entries.ListedEntries({}, {})


@dataclass(eq=False, slots=True)
class _AnnotationBatch:
    """Annotations of one channel's status that are to be written together."""

    values: dict[str, str | None] = field(default_factory=dict)
    """The annotations' new values by key; None removes an annotation."""
    writing: asyncio.Task[None] | None = None
    """The task that writes the annotations, awaited by everybody who added some; None: it hasn't
    been started."""


class ClusterWithEntries:
    """Wraps the `Cluster` `inner`, and shows channels' entries as Subscriptions."""

    def __init__(
        self,
        inner: Cluster,
        handling: Handling,
        now: Callable[[], float] = lambda: asyncio.get_running_loop().time(),
    ) -> None:
        """`handling` says which controller reconciles Subscriptions; `now` returns the time in
        seconds, by a clock that only goes forward."""
        self.handling = handling
        self._inner = inner
        self._now = now
        self._channels: dict[Identity, Document] = {}
        """Each channel's latest document, from its watch."""
        self._entries: dict[Identity, entries.ListedEntries] = {}
        """The parsed `spec.subscribers` of each channel."""
        self._subscriptions: dict[tuple[str, str], Document] = {}
        """Stored Subscriptions, by namespace and UID."""
        self._names: dict[Identity, dict[str, Identity]] = {}
        """The Subscription's name for each entry of a channel, by UID."""
        self._places: dict[Identity, EntryPlace] = {}
        """The place of the entry that is shown under each Subscription's name; also that of a
        promised entry that is missing."""
        self._missing: dict[tuple[Identity, str], float] = {}
        """Since when a promised entry has been missing, by its channel and UID."""
        self._leaving: dict[tuple[Identity, str], Identity] = {}
        """The previous name of a renamed entry, under which it may still be delivered, by its
        channel and UID."""
        self._batches: dict[Identity, _AnnotationBatch] = {}
        """Annotations of each channel that aren't being written yet."""
        self._write_locks: dict[Identity, asyncio.Lock] = {}
        """For each channel: held while a batch is written, so that batches are written in order."""

    # Changes.

    def on_channel(self, channel: Document, *, gone: bool) -> Collection[Identity]:
        """Record that a channel has changed or, with `gone`, was deleted. Returns the names of the
        Subscriptions that may be shown differently now."""
        identity = Identity.of(channel)
        previous = self._channels.pop(identity, None)
        previous_entries = self._entries.pop(identity, _NO_ENTRIES)
        if not gone:
            self._channels[identity] = channel
            if previous is not None and _entry_sources(previous) == _entry_sources(channel):
                self._entries[identity] = previous_entries
                return ()  # something else has changed, such as the channel's conditions
            self._entries[identity] = entries.read_entries(channel)
        current_entries = _NO_ENTRIES if gone else self._entries[identity]
        uids = set() if gone else current_entries.valid.keys() | entries.promised_uids(channel)
        changed = {
            name
            for uid, name in self._names.get(identity, {}).items()
            if previous_entries.valid.get(uid) != current_entries.valid.get(uid)
        }
        for uid in self._names.get(identity, {}).keys() | uids:
            changed |= self._assign_name(identity, uid, exists=uid in uids)
        return changed

    def on_subscription(self, subscription: Document, *, gone: bool) -> Collection[Identity]:
        """Record that a stored Subscription has changed or, with `gone`, was deleted. Returns the
        names of the Subscriptions that may be shown differently now."""
        identity, uid = Identity.of(subscription), str(subscription["metadata"].get("uid", ""))
        previous = self._subscriptions.pop((identity.namespace, uid), None)
        if not gone:
            self._subscriptions[identity.namespace, uid] = subscription
        channel_identity = CHANNELS.broker_of(subscription)
        channel = self._channels.get(channel_identity)
        has_come_or_gone = gone or previous is None  # else its entry keeps its name
        if channel is None or not has_come_or_gone:
            return {identity}
        if uid in self._entries[channel_identity].valid or entries.is_promised(channel, uid):
            return {identity} | self._assign_name(channel_identity, uid, exists=True)
        return {identity}

    def on_handling(self, installed: bool | None) -> Collection[Identity]:
        """Record whether Knative Eventing is installed (None: not known). Returns the names of the
        Subscriptions that may be shown differently now."""
        previous_handler = self.handling.handler
        self.handling.is_eventing_installed = installed
        if self.handling.handler is previous_handler:
            return ()
        changed = {Identity.of(subscription) for subscription in self._subscriptions.values()}
        for channel_identity, channel in self._channels.items():
            listed_uids = self._entries[channel_identity].valid.keys()
            for uid in listed_uids | entries.promised_uids(channel):
                changed |= self._assign_name(channel_identity, uid, exists=True)
        return changed | self._places.keys()

    def _assign_name(self, channel: Identity, uid: str, *, exists: bool) -> set[Identity]:
        """Choose again the name under which an entry is shown, and update `_names`, `_places`,
        `_missing` and `_leaving`. `exists`: whether the entry is in `spec.subscribers` or promised;
        otherwise it loses its name. Returns the names under which another Subscription, or none, is
        shown now."""
        names, key = self._names.setdefault(channel, {}), (channel, uid)
        previous_name = names.pop(uid, None)
        previous_place = None if previous_name is None else self._places.pop(previous_name)
        current_name = self._choose_name(channel, uid) if exists else None
        changed = {name for name in (previous_name, current_name) if name is not None}
        if current_name is None:
            self._missing.pop(key, None)
            self._leaving.pop(key, None)
            if not names:
                del self._names[channel]
            return changed
        place = EntryPlace(channel, uid, uid in self._entries[channel].valid)
        names[uid], self._places[current_name] = current_name, place
        if place.listed:
            self._missing.pop(key, None)
        else:
            self._missing.setdefault(key, self._now())
        if previous_name is not None and previous_name != current_name:
            self._leaving[key] = previous_name
        return set() if (previous_name, previous_place) == (current_name, place) else changed

    def _choose_name(self, channel: Identity, uid: str) -> Identity | None:
        """Return the name under which an entry is shown: that of the stored Subscription with the
        entry's UID, else a name made of the UID. None: the entry isn't shown, as Knafka itself
        wrote it for a Subscription that is gone by now."""
        stored = self._subscriptions.get((channel.namespace, uid))
        if stored is not None and CHANNELS.broker_of(stored) == channel:
            return Identity.of(stored)
        document, handler = self._channels[channel], self.handling.handler
        is_taken_over = handler is Handler.EVENTING and entries.is_promised(document, uid)
        if uid in entries.own_uids(document) and not is_taken_over:
            return None
        return Identity(channel.namespace, entries.entry_name(channel, uid))

    # Lookups.

    def find_subscription(self, identity: Identity) -> Document | None:
        """Return the Subscription to show under this name, by the latest watch events; no request
        is sent. None: there is none, or Knative Eventing handles it and its entry isn't there."""
        place = self._places.get(identity)
        channel = None if place is None else self._channels.get(place.channel)
        return self._choose_subscription(identity, self._find_stored(identity, place), channel)

    def _find_stored(self, identity: Identity, place: EntryPlace | None) -> Document | None:
        """Return the watched Subscription of this name; if the name has a `place`, only the one
        with the UID of the entry there. None: there is none."""
        candidates: Iterable[Document] = self._subscriptions.values()
        if place is not None:
            with_uid = self._subscriptions.get((identity.namespace, place.uid))
            candidates = () if with_uid is None else (with_uid,)
        return next((stored for stored in candidates if Identity.of(stored) == identity), None)

    def _choose_subscription(
        self, identity: Identity, stored: Document | None, channel: Document | None
    ) -> Document | None:
        """Return the Subscription to show under a name, by the rules in the module's docstring:
        `stored`, or the entry in the form of a Subscription, or None for nothing. `stored` is the
        stored Subscription of that name, `channel` the entry's channel; None: there is none."""
        place, handler = self._places.get(identity), self.handling.handler
        is_of_kafka_channel_kind = stored is not None and is_of_kafka_channel(stored)
        if place is None or channel is None:
            return None if is_of_kafka_channel_kind and handler is Handler.EVENTING else stored
        if stored is not None and stored["metadata"].get("uid") != place.uid:
            return stored  # another object took the name
        if is_of_kafka_channel_kind and handler is not Handler.EVENTING:
            assert stored is not None
            return entries.with_promise(stored, channel)
        entry = self._parse_entries(place.channel, channel).valid.get(place.uid)
        if entry is not None:
            return entries.as_subscription(channel, place.uid, identity.name, entry, stored)
        if stored is None and self._is_missing_too_long(place):
            return entries.as_subscription(channel, place.uid, identity.name, None, None)
        return None if is_of_kafka_channel_kind or stored is None else stored

    def _parse_entries(self, identity: Identity, channel: Document) -> entries.ListedEntries:
        """Return the parsed entries of `channel`; parses them only if they differ from those of the
        watched channel."""
        watched_channel = self._channels.get(identity)
        if watched_channel is not None and _list_entries(watched_channel) == _list_entries(channel):
            return self._entries[identity]
        return entries.read_entries(channel)

    def _is_missing_too_long(self, place: EntryPlace) -> bool:
        """Whether an entry has been missing for `MISSING_ENTRY_SECONDS`, so that it counts as
        deleted."""
        since = self._missing.get((place.channel, place.uid))
        return since is not None and self._now() - since >= MISSING_ENTRY_SECONDS

    def requeue_after(self, identity: Identity) -> float | None:
        """Return the seconds until the missing entry of this name counts as deleted, at least 1;
        None: no entry of this name is missing."""
        place = self._places.get(identity)
        since = None if place is None else self._missing.get((place.channel, place.uid))
        return None if since is None else max(since + MISSING_ENTRY_SECONDS - self._now(), 1.0)

    def release_name(self, identity: Identity) -> Collection[Identity]:
        """Record that nothing is delivered under this name any more. Returns the Subscriptions that
        have waited for that, since they stand for entries that had this name before."""
        released_entries = [
            entry_key for entry_key, name in self._leaving.items() if name == identity
        ]
        for entry_key in released_entries:
            del self._leaving[entry_key]
        return [
            self._names.get(channel, {}).get(uid, identity) for channel, uid in released_entries
        ]

    async def read_stored(self, identity: Identity) -> Document | None:
        """Return the stored Subscription of this name, regardless of its entry; None: there is
        none. Raises `ClusterError`."""
        return await self._inner.get(CHANNELS.trigger_version, CHANNELS.trigger, *identity)

    # As a Cluster.

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Document | None:
        """Return an object, None if it doesn't exist; a Subscription may stand for a channel's
        entry. Raises `ClusterError`, also for a Subscription while it isn't known who handles
        Subscriptions, or while its entry is still delivered under another name."""
        stored = await self._inner.get(api_version, kind, namespace, name)
        if (api_version, kind) != (MESSAGING, CHANNELS.trigger):
            return stored
        identity = Identity(namespace, name)
        place = self._places.get(identity)
        if self.handling.handler is None and (place is not None or stored is not None):
            raise ClusterError(
                f"can't reconcile {kind} {identity}: it isn't known yet whether Knative Eventing "
                "is here"
            )
        if place is None:
            return self._choose_subscription(identity, stored, None)
        if (previous_name := self._leaving.get((place.channel, place.uid))) is not None:
            raise ClusterError(
                f"can't reconcile {kind} {identity}: it is delivered as {previous_name} still"
            )
        channel_kind = CHANNELS.broker_version, CHANNELS.broker
        return self._choose_subscription(
            identity, stored, await self._inner.get(*channel_kind, *place.channel)
        )

    async def list(
        self,
        api_version: str,
        kind: str,
        labels: Mapping[str, str] | None = None,
        namespace: str | None = None,
    ) -> list[Document]:
        """Return all objects of a kind with these labels (None: any), in this namespace (None: in
        all); Subscriptions include those that stand for entries. Raises `ClusterError`."""
        stored = await self._inner.list(api_version, kind, labels, namespace)
        if (api_version, kind) != (MESSAGING, CHANNELS.trigger):
            return stored
        # Use a separate instance: if listed objects were recorded in this one, the watch event that
        # follows would look like no change, and what it affects would not be enqueued.
        snapshot = ClusterWithEntries(self._inner, self.handling, self._now)
        for document in stored:
            snapshot.on_subscription(document, gone=False)
        channel_kind = CHANNELS.broker_version, CHANNELS.broker
        for document in await self._inner.list(*channel_kind, namespace=namespace):
            snapshot.on_channel(document, gone=False)
        identities = {Identity.of(document) for document in stored} | snapshot._places.keys()
        return [
            document
            for document in map(snapshot.find_subscription, sorted(identities))
            if document is not None
        ]

    async def write_status(self, document: Document, status: Document) -> None:
        """Merge `status` into the stored status of an object. For an entry, only the annotations
        that are promised to the entry are written, to its channel's status; nothing is written if
        the channel is gone. Raises `ClusterError`."""
        if not _is_entry(document):
            await self._inner.write_status(document, status)
            return
        metadata = document["metadata"]
        channel = Identity(metadata["namespace"], metadata[ENTRY])
        channel_kind = CHANNELS.broker_version, CHANNELS.broker
        stored = await self._inner.get(*channel_kind, *channel)
        if stored is not None:
            previous_annotations = status_annotations(document)
            annotations = {**previous_annotations, **(status.get("annotations") or {})}
            if values := entries.promise_annotation(stored, metadata["uid"], annotations):
                await self._write_annotations(channel, values)

    async def forget(self, document: Document) -> None:
        """Remove the promise of a deleted entry, whose group was deleted, from its channel's
        status. Raises `ClusterError`."""
        metadata = document["metadata"]
        channel = Identity(metadata["namespace"], metadata[ENTRY])
        await self._write_annotations(channel, {PROMISE + metadata["uid"]: None})

    async def _write_annotations(self, channel: Identity, values: Mapping[str, str | None]) -> None:
        """Write annotations to a channel's status (None removes one); concurrent calls share one
        request. Raises `ClusterError`."""
        batch = self._batches.setdefault(channel, _AnnotationBatch())
        batch.values.update(values)
        if batch.writing is None:
            batch.writing = asyncio.create_task(self._write_batch(channel, batch))
        # A caller that is cancelled must not cancel the request that other callers share.
        await asyncio.shield(batch.writing)

    async def _write_batch(self, channel: Identity, batch: _AnnotationBatch) -> None:
        """Write a batch of annotations to the channel's status, after earlier batches of that
        channel. Raises `ClusterError`."""
        async with self._write_locks.setdefault(channel, asyncio.Lock()):
            del self._batches[channel]  # later annotations begin a new batch
            metadata = {"namespace": channel.namespace, "name": channel.name}
            kind = {"apiVersion": CHANNELS.broker_version, "kind": CHANNELS.broker}
            document = {**kind, "metadata": metadata}
            await self._inner.write_status(document, {"annotations": batch.values})
        # Once the channel is gone, and nobody waits for its lock.
        if channel not in self._batches and channel not in self._channels:
            self._write_locks.pop(channel, None)

    async def create(self, manifest: Document) -> bool:
        """Create an object; returns whether it was created (False: one of its name exists already).
        Raises `ClusterError`."""
        return await self._inner.create(manifest)

    async def apply(self, manifest: Document) -> Document:
        """Apply a manifest; returns the stored object. Raises `ClusterError`."""
        return await self._inner.apply(manifest)

    async def delete(self, api_version: str, kind: str, namespace: str, name: str) -> None:
        """Delete a stored object, if it exists. Raises `ClusterError`."""
        await self._inner.delete(api_version, kind, namespace, name)


def _is_entry(document: Document) -> bool:
    """Whether a document is a Subscription that stands for an entry."""
    return document["kind"] == CHANNELS.trigger and is_entry(document)


def _entry_sources(channel: Document) -> tuple[Any, ...]:
    """Return the parts of a channel that determine its entries, to compare two versions of it."""
    return _list_entries(channel), entries.promised_uids(channel), entries.own_uids(channel)


def _list_entries(channel: Document) -> Any:
    """Return a channel's `spec.subscribers` unchecked, so of any type; None if it is missing."""
    return (channel.get("spec") or {}).get("subscribers")
