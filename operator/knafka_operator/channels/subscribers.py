"""Subscribers: writes the Subscriptions of a KafkaChannel into the channel's spec and status.

    status.subscribers    all that are delivered, and invalid entries (DSP-10)
    spec.subscribers      only Subscriptions that Knafka handles, not Knative Eventing (KN-CHN-05)

Only our own entries of `spec.subscribers` are written, at the version that was read, so that no
other writer's entry is lost. The UIDs of our entries are recorded first: after a crash in between,
none of them is taken for another writer's once its Subscription is gone.

Not here: reconciling a Subscription (`subscriptions`), and the texts of its status
(`subscription_status`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from knafka_operator.channels import entries
from knafka_operator.decisions.status import (
    CHANNEL_READY,
    SUBSCRIPTION_CONDITIONS,
    ConditionSet,
    NotReady,
    merge_patch,
)
from knafka_operator.installation.handler import Handler, Handling
from knafka_operator.model.channels import CHANNEL, DECLARED, KAFKA_CHANNEL, ChannelEntry, is_entry
from knafka_operator.model.cluster import Cluster, Conflict, Document
from knafka_operator.model.family import CHANNELS
from knafka_operator.model.identity import Identity
from knafka_operator.records.state import States

WRITE_ATTEMPTS: Final = 5
"""Attempts to write a channel that other writers change at the same time."""


@dataclass(eq=False)
class Subscribers:
    """Writes Subscriptions into the spec and status of their channels."""

    cluster: Cluster
    states: States
    handling: Handling
    """Whether Knafka or Knative Eventing reconciles Subscriptions."""

    def build_status(self, channel: Document) -> list[Mapping[str, Any]]:
        """Return the list `status.subscribers` for a channel, sorted by UID: its Subscriptions, and
        each invalid entry of `spec.subscribers` with its problem."""
        reported_by_uid = {
            entry.reported["uid"]: entry.reported for entry in self._collect_entries(channel)
        }
        for uid, problem in entries.read_entries(channel).problems.items():
            reported_by_uid[uid] = {"uid": uid, "ready": "False", "message": problem}
        return [reported_by_uid[uid] for uid in sorted(reported_by_uid)]

    async def write_spec_entries(self, channel: Document) -> None:
        """Write our entries into a channel's `spec.subscribers` (KN-CHN-05), if Knafka itself
        handles Subscriptions. If another writer has changed the channel meanwhile, read and write
        it again, up to `WRITE_ATTEMPTS` times in all; write nothing once the channel is gone.
        Raises `ClusterError`; after the last attempt `Conflict`."""
        if self.handling.handler is not Handler.OWN:
            return
        desired_entries = {
            str(entry.reported["uid"]): entry.declared
            for entry in self._collect_entries(channel)
            if entry.declared is not None
        }
        for attempts_left in reversed(range(WRITE_ATTEMPTS)):
            try:
                await self._write_entries_once(channel, desired_entries)
                return
            except Conflict:
                if not attempts_left:
                    raise
                kind = CHANNELS.broker_version, CHANNELS.broker
                stored = await self.cluster.get(*kind, *Identity.of(channel))
                if stored is None:
                    return
                channel = stored

    async def _write_entries_once(
        self, channel: Document, desired_entries: Mapping[str, Document]
    ) -> None:
        """Write the desired entries, given by UID, to the channel's `spec.subscribers`, and record
        their UIDs in its status. Raises `Conflict` if another writer has changed the channel
        meanwhile, and other `ClusterError`s."""
        listed = entries.listed_subscribers(channel)
        recorded_uids = entries.own_uids(channel)
        # Stored Subscriptions that this operator knows: their entries are ours to replace or remove
        # even if they aren't recorded.
        handled_uids = {
            record.uid
            for trigger in self.states.triggers_of(Identity.of(channel))
            if (record := self.states.triggers.get(trigger)) is not None
            and record.document is not None
            and not is_entry(record.document)
        }
        merged = entries.merge_subscribers(listed, recorded_uids | handled_uids, desired_entries)
        if merged != list(listed):
            # Before the entries are written: if we crash in between, one of ours mustn't look
            # foreign.
            if not desired_entries.keys() <= recorded_uids:
                await self._record_own_uids(channel, recorded_uids | desired_entries.keys())
                channel = await self._read_channel(channel)  # it has a new resourceVersion
            kind = {"apiVersion": channel["apiVersion"], "kind": channel["kind"]}
            metadata_keys = ("namespace", "name", "uid", "resourceVersion")
            identity = {
                key: channel["metadata"][key] for key in metadata_keys if key in channel["metadata"]
            }
            spec = {"subscribers": merged}
            # With the resourceVersion, the API server refuses the write after another writer's.
            await self.cluster.apply({**kind, "metadata": identity, "spec": spec})
        # Entries that were removed just now needn't be recorded any more.
        if desired_entries.keys() != entries.own_uids(channel):
            await self._record_own_uids(channel, desired_entries.keys())

    async def _read_channel(self, channel: Document) -> Document:
        """Return the channel as it is stored now. Raises `Conflict` if it is gone or its list of
        subscribers has changed, and other `ClusterError`s."""
        kind = CHANNELS.broker_version, CHANNELS.broker
        stored = await self.cluster.get(*kind, *Identity.of(channel))
        listed = (channel.get("spec") or {}).get("subscribers")
        if stored is None or (stored.get("spec") or {}).get("subscribers") != listed:
            raise Conflict(f"{channel['kind']} {Identity.of(channel)} has changed meanwhile")
        return stored

    async def _record_own_uids(self, channel: Document, uids: Iterable[str]) -> None:
        """Record in the channel's status the `uids` of all entries that Knafka may have written.
        Raises `ClusterError`."""
        annotations = {DECLARED: " ".join(sorted(uids)) or None}
        await self.cluster.write_status(channel, {"annotations": annotations})

    def _collect_entries(self, channel: Document) -> list[ChannelEntry]:
        """Return the entries of a channel's Subscriptions in its spec and status, sorted by UID, as
        the last reconciliation of each Subscription reported them. For a Subscription that this
        operator hasn't reconciled yet, return the entries stored in the channel; leave it out if
        the channel's status has no entry for it."""
        declared = _entries_by_uid((channel.get("spec") or {}).get("subscribers"))
        reported = _entries_by_uid((channel.get("status") or {}).get("subscribers"))
        entry_by_uid = dict[str, ChannelEntry]()
        for trigger in self.states.triggers_of(Identity.of(channel)):
            record = self.states.triggers.get(trigger)
            if record is None or record.gone:
                continue
            if record.subscribed is not None:
                entry_by_uid[record.uid] = record.subscribed
            elif record.uid in reported:
                # The entry of `spec.subscribers` is ours only if a stored Subscription is known.
                is_foreign = record.document is None or is_entry(record.document)
                declared_entry = None if is_foreign else declared.get(record.uid)
                entry_by_uid[record.uid] = ChannelEntry(declared_entry, reported[record.uid])
        return [entry_by_uid[uid] for uid in sorted(entry_by_uid)]


async def explain_unserved_channel(
    cluster: Cluster, subscription: Document, handling: Handling, timestamp: str
) -> None:
    """Write to a Subscription's status that nobody serves its channel, if that is of the kind
    Channel, which needs Knative Eventing, and Knative Eventing isn't installed (`handling`). Does
    nothing for any other Subscription. `timestamp` is the present time (RFC 3339). Raises
    `ClusterError`."""
    channel = (subscription.get("spec") or {}).get("channel")
    kind = channel.get("kind") if isinstance(channel, Mapping) else None
    if kind != CHANNEL or handling.is_eventing_installed is not False:
        return
    conditions = ConditionSet(SUBSCRIPTION_CONDITIONS)
    message = (
        f"a {CHANNEL} is made into a channel by Knative Eventing, which is not here: name the "
        f"{KAFKA_CHANNEL} itself, or install Knative Eventing"
    )
    conditions.fail(CHANNEL_READY, NotReady("ChannelNotServed", message))
    previous_status = subscription.get("status") or {}
    status = {
        "observedGeneration": subscription["metadata"].get("generation", 0),
        "conditions": conditions.merge_into(previous_status.get("conditions") or (), timestamp),
    }
    if patch := merge_patch(previous_status, status):
        await cluster.write_status(subscription, patch)


def _entries_by_uid(subscribers: object) -> dict[str, Mapping[str, Any]]:
    """Return the entries of `subscribers`, a list of a channel's spec or status, by UID; empty if
    it is no list. Elements that are no mappings are left out."""
    listed_entries = subscribers if isinstance(subscribers, list | tuple) else ()
    return {str(entry.get("uid")): entry for entry in listed_entries if isinstance(entry, Mapping)}
