"""Subscriptions: reconciles Subscriptions of KafkaChannels, and entries that other writers added
there.

Not here: their delivery (`triggers`), and the entries of channels (`entries`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from knafka_operator.channels import subscription_status as subscription
from knafka_operator.channels.entry_cluster import ClusterWithEntries
from knafka_operator.channels.subscribers import explain_unserved_channel
from knafka_operator.decisions.status import ConditionSet
from knafka_operator.engine.kind import EventNews
from knafka_operator.installation.handler import Handler
from knafka_operator.model.channels import is_entry
from knafka_operator.model.cluster import Document
from knafka_operator.model.identity import Identity, Key
from knafka_operator.records.state import TriggerRecord, broker_of
from knafka_operator.triggers.kind import Observed, Triggers


@dataclass(eq=False)
class Subscriptions(Triggers):
    """Reconciles all Subscriptions of KafkaChannels, as Triggers."""

    entries: ClusterWithEntries = field(kw_only=True)
    """Shows the entries of channels as Subscriptions."""

    def translate_to_kind(
        self, observed: Observed, conditions: ConditionSet, status: dict[str, Any]
    ) -> tuple[ConditionSet, dict[str, Any]]:
        """Translate the conditions and status that were decided as a Trigger's to a Subscription's;
        return both. Also report the Subscription's state to its channel."""
        conditions = subscription.subscription_conditions(conditions)
        document = observed.document
        self._report_to_channel(document, self.ensure_record(document), conditions)
        return conditions, subscription.subscription_status(status)

    def _report_to_channel(
        self, document: Document, record: TriggerRecord, conditions: ConditionSet
    ) -> None:
        """Put a Subscription's entries in its channel into the Subscription's `record`. If they
        have changed, enqueue the channel, whose reconciliation writes them."""
        egress = None if record.watched is None else record.watched.egress
        entry = subscription.channel_entry(document, egress, conditions)
        if record.subscribed != entry:
            record.subscribed = entry
            self.enqueue((self.states.family.broker, *broker_of(document)))

    async def hand_over(self, document: Document) -> None:
        """Hand over a Subscription whose channel another implementation serves, like
        `Triggers.hand_over`. For an entry, only end its delivery and delete its functions. If the
        Subscription refers to a Channel that nobody serves, report that in its status."""
        if is_entry(document):
            # `super().hand_over` deletes functions only if annotations name them, and an entry's
            # annotations, which come from the channel's status, may be gone already.
            await self.stop_delivery(Identity.of(document))
            await self._delete_functions(document)
            return
        await super().hand_over(document)
        await explain_unserved_channel(self.cluster, document, self.entries.handling, self.now())

    async def object_to_release(self, key: Key, document: Document | None) -> Document | None:
        """Return the stored Subscription from which Knafka must remove its finalizer, as Knative
        Eventing handles Subscriptions by now. None: Knative Eventing doesn't handle them,
        `document` is the stored Subscription itself, or none is stored. Raises `ClusterError`."""
        if self.entries.handling.handler is not Handler.EVENTING:
            return None
        if document is not None and not is_entry(document):
            return None
        return await self.entries.read_stored(Identity(*key[1:]))

    async def drop_entry(self, document: Document) -> bool:
        """If `document` is a channel's entry, remove what the entry was promised (`entries`) from
        the channel's status, provided that Knafka serves the channel, and return True. Return False
        for a stored Subscription. Raises `ClusterError`."""
        if not is_entry(document):
            return False
        if self.is_ours(document):
            await self.entries.forget(document)
        # Else keep what the entry was promised: `knafka adopt` may have just written it, while
        # another implementation still serves the channel.
        return True

    def orphaned_finalizers(self, document: Document) -> tuple[Sequence[str], str]:
        """Return the finalizers of Knative Eventing to remove together with ours, and a warning for
        users, as `Kind.orphaned_finalizers` describes. Both are empty for a Subscription that isn't
        ours."""
        if not self.is_ours(document):
            return (), ""
        return subscription.orphaned_finalizers(document, self.entries.handling)

    def event_to_post(self, document: Document, new_status: Mapping[str, Any]) -> EventNews | None:
        """Return the Event to post for the change of a Subscription's status, as
        `Kind.event_to_post` does; None for an entry, as no object is stored for it."""
        return None if is_entry(document) else super().event_to_post(document, new_status)
