"""Kinds: what the controller asks of the objects of each kind, and the table of all kinds.

    Broker, KafkaChannel      -> topic, receiver, address
    Trigger, Subscription     -> consumer group, dispatcher
    Sensor                    -> topics, function, Triggers
    DeadLetterArchive         -> Jobs
    DeadLetterReplay, -Purge  -> their turn in their archive's Jobs

`Kind` has what holds for most of them. A new kind is a class here, and a line in `kinds_of`.

Not here: when an object is reconciled (`controller`), and what that does (`reconcile`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

from knafka_operator.decide import entries, status, subscription
from knafka_operator.decide import operation as deciding
from knafka_operator.model.archives import ARCHIVE, OF_ARCHIVE
from knafka_operator.model.cluster import Document
from knafka_operator.model.family import CHANNELS
from knafka_operator.model.identity import Identity
from knafka_operator.model.operations import OF_OPERATION, OPERATIONS
from knafka_operator.model.sensors import KNAFKA, SENSOR
from knafka_operator.operator import Operator
from knafka_operator.reconcile.archives import Archives
from knafka_operator.reconcile.operations import Operations, archive_of
from knafka_operator.reconcile.sensors import Sensors
from knafka_operator.reconcile.state import broker_of, declared_of
from knafka_operator.reconcile.work_queue import GONE, Key, Verdict

Again: TypeAlias = float | Literal[Verdict.BACK_OFF, Verdict.GONE]
"""What follows a reconciliation, see `work_queue`."""

IN_KAFKA: Final = "Kafka still has its topic or group, which nobody will delete"
AT_WORK: Final = ("Queued", "Running", "Ending", "Failing")
"""Phases of an archive that is looked at in its own time, though it isn't Ready."""


class News(NamedTuple):
    """What a Kubernetes Event of an object says."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class Kind:
    """All objects of one kind."""

    left: ClassVar[str] = IN_KAFKA
    """What may be left of an object whose deletion took too long."""

    def __init__(self, operator: Operator, api_version: str, name: str) -> None:
        self.operator = operator
        self.api_version = api_version
        self.name = name
        self._declared: dict[Key, Document] = {}
        """Each as it was last heard of, without its status."""

    # What is heard.

    def on_change(self, document: Document, *, gone: bool) -> None:
        """An object as it is now, or was last: it is reconciled unless only its status differs."""
        key, declared = key_of(document), None if gone else declared_of(document)
        if not gone:
            self.remember(document)
        previous = self._declared.pop(key, None)
        if declared is not None:
            self._declared[key] = declared
        if gone or previous != declared:
            self.operator.queue.enqueue(key)

    def remember(self, document: Document) -> None:
        """Keep in mind what others must know of an object before it is reconciled."""

    # What is asked of one object.

    async def get(self, identity: Identity) -> Document | None:
        """The object as it is stored."""
        return await self.operator.cluster.get(self.api_version, self.name, *identity)

    def is_ours(self, document: Document) -> bool:
        """Whether it isn't another implementation's."""
        return True

    async def makes_something(self, document: Document) -> bool:
        """Whether there is, or will be, something to delete before the object goes."""
        return True

    def has_ended(self, status: Mapping[str, Any]) -> bool:
        """Whether nothing is left to delete, so that the object may go without us."""
        return False

    async def reconcile(self, document: Document) -> Mapping[str, Any] | None:
        """Reconcile it; returns its new status, None if it waits for something that enqueues it."""
        raise NotImplementedError

    async def delete(self, document: Document) -> None:
        """Delete what was made for it; raises `KnafkaError` while something stands in the way."""
        raise NotImplementedError

    async def forget(self, document: Document) -> None:
        """Do nothing more for it, and keep nothing of it in memory: it is gone."""
        raise NotImplementedError

    async def leave(self, document: Document) -> None:
        """Take back what is ours of it: it is another implementation's."""

    async def absent(self, identity: Identity) -> Again:
        """There is no such object; returns when to look again."""
        return GONE

    async def released(self, identity: Identity, document: Document | None) -> Document | None:
        """A stored object that needs our finalizer no more, whatever `document` says instead."""
        return None

    async def drop_entry(self, document: Document) -> bool:
        """Whether it is no object of its own, whose finalizers could be written: then what was
        noted of it elsewhere is dropped."""
        return False

    def orphaned(self, document: Document) -> tuple[Sequence[str], str]:
        """Finalizers whose controller is gone, and a warning of those of which that isn't known."""
        return (), ""

    # What follows.

    def news(self, document: Document, now: Mapping[str, Any]) -> News | None:
        """What its new status says that `document` doesn't; None: no Event."""
        previous = status.summary((document.get("status") or {}).get("conditions") or ())
        ready = status.summary(now["conditions"])
        if previous.get("status") == ready["status"]:
            return None
        if ready["status"] == "True":
            return News("Normal", "Ready", f"{document['kind']} is Ready")
        if ready["status"] == "False":
            return News("Warning", ready["reason"], ready["message"])
        return None

    def again(self, document: Document, now: Mapping[str, Any]) -> float | None:
        """Seconds until it is looked at again; None: as usual, by whether it is Ready."""
        return None


class BrokerKind(Kind):
    """Brokers, or KafkaChannels."""

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator, operator.family.broker_version, operator.family.broker)
        self.on_deleted: Callable[[Document], None] = lambda document: None
        """Called with each whose topic has gone with it."""

    def on_change(self, document: Document, *, gone: bool) -> None:
        self.operator.on_change(document, gone=gone)

    def is_ours(self, document: Document) -> bool:
        return self.operator.brokers.is_ours(document)

    async def reconcile(self, document: Document) -> Mapping[str, Any] | None:
        return await self.operator.reconcile_broker(document)

    async def delete(self, document: Document) -> None:
        await self.operator.delete_broker(document)
        self.on_deleted(document)

    async def forget(self, document: Document) -> None:
        self.operator.forget(document)


class TriggerKind(Kind):
    """Triggers."""

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator, operator.family.trigger_version, operator.family.trigger)

    def on_change(self, document: Document, *, gone: bool) -> None:
        self.operator.on_change(document, gone=gone)

    def is_ours(self, document: Document) -> bool:
        return self.operator.may_be_ours(document)

    async def makes_something(self, document: Document) -> bool:
        family = self.operator.family
        of = family.broker_version, family.broker
        broker = await self.operator.cluster.get(*of, *broker_of(document))
        return broker is not None and self.operator.brokers.is_ours(broker)

    async def reconcile(self, document: Document) -> Mapping[str, Any] | None:
        return await self.operator.triggers.reconcile(document)

    async def delete(self, document: Document) -> None:
        await self.operator.triggers.delete(document)

    async def forget(self, document: Document) -> None:
        await self.operator.triggers.abandon(Identity.of(document))
        self.operator.forget(document)

    async def leave(self, document: Document) -> None:
        await self.operator.leave(document)

    async def absent(self, identity: Identity) -> Again:
        return await self.operator.rest(identity)


class SubscriptionKind(TriggerKind):
    """Subscriptions, among them the entries of `spec.subscribers` that others wrote."""

    async def released(self, identity: Identity, document: Document | None) -> Document | None:
        if not self.operator.handles_entries:
            return None
        if document is not None and not entries.is_entry(document):
            return None
        assert self.operator.entries is not None
        return await self.operator.entries.stored(identity)

    async def drop_entry(self, document: Document) -> bool:
        if not entries.is_entry(document):
            return False
        assert self.operator.entries is not None
        await self.operator.entries.forget(document)
        return True

    def orphaned(self, document: Document) -> tuple[Sequence[str], str]:
        if self.operator.entries is None or not self.is_ours(document):
            return (), ""
        return subscription.orphaned(document, self.operator.entries.handling)

    def news(self, document: Document, now: Mapping[str, Any]) -> News | None:
        return None if entries.is_entry(document) else super().news(document, now)


class SensorKind(Kind):
    """Sensors."""

    left = "Kafka still has its topics or group, which nobody will delete"

    def __init__(self, operator: Operator, sensors: Sensors) -> None:
        super().__init__(operator, KNAFKA, SENSOR)
        self._sensors = sensors

    def remember(self, document: Document) -> None:
        self._sensors.remember(document)

    async def reconcile(self, document: Document) -> Mapping[str, Any] | None:
        return await self._sensors.reconcile(document)

    async def delete(self, document: Document) -> None:
        await self._sensors.delete(document)

    async def forget(self, document: Document) -> None:
        await self._sensors.forget(document)


class ArchiveKind(Kind):
    """DeadLetterArchives; also one that isn't Ready is looked at in its own time, as what waits
    for it grows."""

    left = "its Job, its Lease or its group in Kafka may be there still"

    def __init__(self, operator: Operator, archives: Archives) -> None:
        super().__init__(operator, KNAFKA, ARCHIVE)
        self.archives = archives

    def remember(self, document: Document) -> None:
        self.archives.remember(document)

    async def reconcile(self, document: Document) -> Mapping[str, Any] | None:
        return await self.archives.reconcile(document)

    async def delete(self, document: Document) -> None:
        await self.archives.delete(document)

    async def forget(self, document: Document) -> None:
        await self.archives.forget(document)

    def again(self, document: Document, now: Mapping[str, Any]) -> float | None:
        ready = status.summary(now["conditions"]).get("status") == "True"
        waits = not ready and now.get("phase") not in AT_WORK
        return None if waits else self.archives.again(document)

    def on_job(self, job: Document) -> None:
        """A Job as it is now, or was last: its archive and its operation are reconciled."""
        labels = job["metadata"].get("labels") or {}
        if (archive := self.archives.on_job(labels.get(OF_ARCHIVE, ""))) is not None:
            self.operator.queue.enqueue((ARCHIVE, *archive))
        if (key := self.archives.operations.on_job(labels.get(OF_OPERATION, ""))) is not None:
            self.operator.queue.enqueue(key)


class OperationKind(Kind):
    """DeadLetterReplays, or DeadLetterPurges; a change of one concerns its archive, too."""

    left = "its Job may be there still"

    def __init__(self, operator: Operator, name: str, operations: Operations) -> None:
        super().__init__(operator, KNAFKA, name)
        self._operations = operations

    def on_change(self, document: Document, *, gone: bool) -> None:
        super().on_change(document, gone=gone)
        archive = archive_of(document)
        if archive.name:
            self.operator.queue.enqueue((ARCHIVE, *archive))

    def remember(self, document: Document) -> None:
        self._operations.remember(document)

    def has_ended(self, status: Mapping[str, Any]) -> bool:
        return deciding.is_finished(status)

    async def reconcile(self, document: Document) -> Mapping[str, Any] | None:
        return await self._operations.reconcile(document)

    async def delete(self, document: Document) -> None:
        await self._operations.delete(document)

    async def forget(self, document: Document) -> None:
        await self._operations.forget(document)

    def news(self, document: Document, now: Mapping[str, Any]) -> News | None:
        if self.has_ended(document.get("status") or {}) or not self.has_ended(now):
            return None
        if now["phase"] == "Succeeded":
            return News("Normal", "Succeeded", f"{document['kind']} is done")
        return News("Warning", "Failed", now["message"])

    def again(self, document: Document, now: Mapping[str, Any]) -> float | None:
        return self._operations.again(document)


def kinds_of(operator: Operator) -> Mapping[str, Kind]:
    """The kinds that an operator, and the one beside it, reconcile, by name."""
    table: list[Kind] = []
    for beside in operator.all:
        trigger = SubscriptionKind if beside.family is CHANNELS else TriggerKind
        table += [BrokerKind(beside), trigger(beside)]
    if operator.sensors is not None:
        table.append(SensorKind(operator, operator.sensors))
    if operator.settings.jobs_image:
        of = operator.settings, operator.cluster, operator.states, operator.brokers.is_ours
        archives = Archives(*of)
        table.append(ArchiveKind(operator, archives))
        table += (OperationKind(operator, name, archives.operations) for name in OPERATIONS)
    return {kind.name: kind for kind in table}


def key_of(document: Document) -> Key:
    metadata = document["metadata"]
    return document["kind"], metadata["namespace"], metadata["name"]
