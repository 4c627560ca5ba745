"""Kinds: the table of all kinds that the controller reconciles, by name.

    Broker, KafkaChannel      -> topic, receiver, address
    Trigger, Subscription     -> consumer group, dispatcher
    Sensor                    -> topics, function, Triggers
    DeadLetterArchive         -> Jobs
    DeadLetterReplay, -Purge  -> their turn in their archive's Jobs

A new kind is a `reconcile.kind.Reconciler`, and a line in `kinds_of`. An `Operator` has Brokers and
their Triggers together, or KafkaChannels and their Subscriptions: here they are two kinds.

Not here: when an object is reconciled (`controller`), and what that does (`reconcile`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from knafka_operator.decide import entries, subscription
from knafka_operator.model.archives import ARCHIVE
from knafka_operator.model.cluster import Document
from knafka_operator.model.family import CHANNELS
from knafka_operator.model.identity import Identity
from knafka_operator.model.operations import OPERATIONS
from knafka_operator.model.sensors import SENSOR
from knafka_operator.operator import Operator
from knafka_operator.reconcile.archives import Archives
from knafka_operator.reconcile.kind import Kind, News
from knafka_operator.reconcile.state import broker_of
from knafka_operator.reconcile.work_queue import Again, Key


class BrokerKind(Kind):
    """Brokers, or KafkaChannels."""

    def __init__(self, operator: Operator) -> None:
        self._operator, self.cluster = operator, operator.cluster
        self.api_version = operator.family.broker_version
        self.on_deleted: Callable[[Document], None] = lambda document: None
        """Called with each whose topic has gone with it."""

    def on_change(self, document: Document, *, gone: bool) -> Collection[Key]:
        self._operator.on_change(document, gone=gone)
        return ()

    def is_ours(self, document: Document) -> bool:
        return self._operator.brokers.is_ours(document)

    async def reconcile(self, document: Document) -> Mapping[str, Any] | None:
        return await self._operator.reconcile_broker(document)

    async def delete(self, document: Document) -> None:
        await self._operator.delete_broker(document)
        self.on_deleted(document)

    async def forget(self, document: Document) -> None:
        self._operator.forget(document)


class TriggerKind(Kind):
    """Triggers."""

    def __init__(self, operator: Operator) -> None:
        self._operator, self.cluster = operator, operator.cluster
        self.api_version = operator.family.trigger_version

    def on_change(self, document: Document, *, gone: bool) -> Collection[Key]:
        self._operator.on_change(document, gone=gone)
        return ()

    def is_ours(self, document: Document) -> bool:
        return self._operator.triggers.may_be_ours(document)

    async def makes_something(self, document: Document) -> bool:
        family = self._operator.family
        of = family.broker_version, family.broker
        broker = await self.cluster.get(*of, *broker_of(document))
        return broker is not None and self._operator.brokers.is_ours(broker)

    async def reconcile(self, document: Document) -> Mapping[str, Any] | None:
        return await self._operator.triggers.reconcile(document)

    async def delete(self, document: Document) -> None:
        await self._operator.triggers.delete(document)

    async def forget(self, document: Document) -> None:
        await self._operator.triggers.abandon(Identity.of(document))
        self._operator.forget(document)

    async def leave(self, document: Document) -> None:
        await self._operator.leave(document)

    async def absent(self, identity: Identity) -> Again:
        return await self._operator.rest(identity)


class SubscriptionKind(TriggerKind):
    """Subscriptions, among them the entries of `spec.subscribers` that others wrote."""

    async def released(self, key: Key, document: Document | None) -> Document | None:
        if not self._operator.handles_entries:
            return None
        if document is not None and not entries.is_entry(document):
            return None
        assert self._operator.entries is not None
        return await self._operator.entries.stored(Identity(*key[1:]))

    async def drop_entry(self, document: Document) -> bool:
        if not entries.is_entry(document):
            return False
        assert self._operator.entries is not None
        await self._operator.entries.forget(document)
        return True

    def orphaned(self, document: Document) -> tuple[Sequence[str], str]:
        if self._operator.entries is None or not self.is_ours(document):
            return (), ""
        return subscription.orphaned(document, self._operator.entries.handling)

    def news(self, document: Document, now: Mapping[str, Any]) -> News | None:
        return None if entries.is_entry(document) else super().news(document, now)


def kinds_of(operator: Operator) -> Mapping[str, Kind]:
    """The kinds that an operator, and the one beside it, reconcile, by name."""
    table: dict[str, Kind] = {}
    for beside in operator.all:
        family = beside.family
        trigger = SubscriptionKind if family is CHANNELS else TriggerKind
        table |= {family.broker: BrokerKind(beside), family.trigger: trigger(beside)}
    if operator.sensors is not None:
        table[SENSOR] = operator.sensors
    if operator.settings.jobs_image:
        of = operator.settings, operator.cluster, operator.states, operator.effects
        archives = Archives(*of, operator.brokers.is_ours)
        table |= {ARCHIVE: archives, **dict.fromkeys(OPERATIONS, archives.operations)}
    return table
