"""Kind: what the controller asks of the objects of one kind; and how each of them is reconciled.

    observe --> decide --> effects --run, one after another, until one fails--> decide anew
                       `-> none: conditions, status

A `Reconciler` says how its objects are observed and what is decided of them (a pure function); the
rest is here, once. Of effects that a decision asks for, the first that fails ends the list; the
next decision knows why.

Not here: what each effect does (`effects`); when an object is reconciled, its finalizer and its end
(`engine.controller`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

from knafka_operator.decide import status as statuses
from knafka_operator.decide.effects import Effect
from knafka_operator.decide.observed import Observed
from knafka_operator.decide.status import EXPECTED, ConditionSet
from knafka_operator.model.cluster import Cluster, Document
from knafka_operator.model.identity import Identity
from knafka_operator.reconcile.effects import Effects
from knafka_operator.reconcile.state import BrokerRecord, States, without_status
from knafka_operator.reconcile.work_queue import GONE, Key, Requeue
from knafka_operator.scale.kafka_clusters import KafkaCluster

MAX_DECISIONS: Final = 32
"""Times that one reconciliation decides, should others change what it looks at all the time: the
next goes on."""


class EventNews(NamedTuple):
    """What a Kubernetes Event of an object says."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class Kind:
    """All objects of one kind, or of several that are alike; what holds for most stands here."""

    api_version: str
    left: str = "Kafka still has its topics or group, which nobody will delete"
    """What may be left of an object whose deletion took too long."""

    cluster: Cluster

    @cached_property
    def _declared(self) -> dict[Key, Document]:
        """Each as it was last heard of, without its status."""
        return {}

    # What is heard.

    def on_change(self, document: Document, *, gone: bool) -> Collection[Key]:
        """An object as it is now, or was last; returns what is to be reconciled, which it isn't if
        only its status has changed."""
        key, declared = key_of(document), None if gone else without_status(document)
        if not gone:
            self.remember(document)
        previous = self._declared.pop(key, None)
        if declared is not None:
            self._declared[key] = declared
        return [key] if gone or previous != declared else []

    def remember(self, document: Document) -> object:
        """Keep in mind what others must know of an object before it is reconciled."""
        return None

    # What is asked of one object.

    async def get(self, key: Key) -> Document | None:
        """The object as it is stored."""
        return await self.cluster.get(self.api_version, *key)

    def is_ours(self, document: Document) -> bool:
        """Whether it isn't another implementation's."""
        return True

    async def needs_finalizer(self, document: Document) -> bool:
        """Whether there is, or will be, something to delete before the object goes."""
        return True

    def has_ended(self, status: Mapping[str, Any]) -> bool:
        """Whether nothing is left to delete, so that the object may go without us."""
        return False

    async def reconcile(self, document: Document) -> Mapping[str, Any] | None:
        """Reconcile one; returns its new status. Raises `ClusterError`.

        None: it is another implementation's, or waits for something that enqueues it; nothing was
        written.
        """
        raise NotImplementedError

    async def delete(self, document: Document) -> None:
        """Delete what was made for it; raises `KnafkaError` while something stands in the way."""
        raise NotImplementedError

    async def forget(self, document: Document) -> None:
        """Do nothing more for it, and keep nothing of it in memory: it is gone."""
        raise NotImplementedError

    async def leave(self, document: Document) -> None:
        """Take back what is ours of it: it is another implementation's."""

    async def on_absent(self, identity: Identity) -> Requeue:
        """There is no such object; returns when to look again."""
        return GONE

    async def object_to_release(self, key: Key, document: Document | None) -> Document | None:
        """A stored object that needs our finalizer no more, whatever `document` says instead."""
        return None

    async def drop_entry(self, document: Document) -> bool:
        """Whether it is no object of its own, whose finalizers could be written: then what was
        noted of it elsewhere is dropped."""
        return False

    def orphaned_finalizers(self, document: Document) -> tuple[Sequence[str], str]:
        """Finalizers whose controller is gone, and a warning of those of which that isn't known."""
        return (), ""

    # What follows.

    def event_news(self, document: Document, now: Mapping[str, Any]) -> EventNews | None:
        """What its new status says that `document` doesn't; None: no Event."""
        previous = statuses.ready_condition((document.get("status") or {}).get("conditions") or ())
        ready = statuses.ready_condition(now["conditions"])
        if previous.get("status") == ready["status"]:
            return None
        if ready["status"] == "True":
            return EventNews("Normal", "Ready", f"{document['kind']} is Ready")
        if ready["status"] == "False":
            return EventNews("Warning", ready["reason"], ready["message"])
        return None

    def requeue_after(self, document: Document, now: Mapping[str, Any]) -> float | None:
        """Seconds until it is looked at again; None: as usual, by whether it is Ready."""
        return None


class Neighbours(Protocol):
    """Whom an object of a family concerns besides itself (`operator.Operator`)."""

    def on_change(self, document: Document, *, gone: bool) -> None:
        """An object as it is now, or was last: what is to be reconciled is enqueued."""
        ...

    def forget(self, document: Document) -> None:
        """It is gone, whatever is left of it in Kafka."""
        ...

    def wake_triggers(self, broker: Identity) -> None:
        """Have the Triggers and Sensors that read a Broker reconciled."""
        ...

    async def stop_triggers(self, broker: Identity) -> None:
        """Deliver nothing to the Triggers and Sensors of a Broker; raises `KnafkaError` while
        drains go on."""
        ...

    async def delete_broker(self, document: Document) -> None:
        """Delete what was made for a Broker, once nobody reads it any more."""
        ...

    async def suspend_absent(self, identity: Identity) -> Requeue:
        """Deliver nothing for a Trigger that there is no more, or not for now; returns when to look
        again."""
        ...


class Decision(Protocol):
    """What is to be done next; the status counts once that is nothing."""

    @property
    def effects(self) -> Sequence[Effect]: ...

    @property
    def status(self) -> Mapping[str, Any]: ...


S = TypeVar("S", bound=Observed)
D = TypeVar("D", bound=Decision)
R = TypeVar("R")
"""What is kept of an object beyond what is stored of it."""


class Reconciler(Generic[S, D, R]):
    """Observes objects of one kind, decides upon them and acts."""

    cluster: Cluster
    effects: Effects
    now: Callable[[], Any]

    def timestamp(self) -> str:
        """The time, RFC 3339."""
        return str(self.now())

    def ensure_record(self, document: Document) -> R:
        raise NotImplementedError

    async def observe(self, document: Document, record: R) -> S | None:
        """All that is decided upon; None: as `reconcile`. Raises `ClusterError`."""
        raise NotImplementedError

    def decide(self, seen: S, record: R) -> D:
        raise NotImplementedError

    def kafka_of(self, seen: S, record: R) -> KafkaCluster | None:
        """Where effects in Kafka are run."""
        return None

    async def follow_up(self, effect: Effect, seen: S, record: R) -> S:
        """What is observed anew once an effect has run; raises as `Effects.run`."""
        return seen

    async def start_delivery(self, document: Document, watched: Any, *, replaces: bool) -> Any:
        raise TypeError(f"nothing of {type(self).__name__} is delivered")

    async def end_delivery(self, document: Document) -> None:
        raise TypeError(f"nothing of {type(self).__name__} is delivered")

    async def leave_receiver(self, document: Document, receiver: str) -> None:
        raise TypeError(f"none of {type(self).__name__} shares a receiver")

    def stored_status(self, seen: S) -> Mapping[str, Any]:
        """Its status as it is stored by now."""
        return seen.document.get("status") or {}

    def status_of(self, seen: S, decision: D, record: R) -> Mapping[str, Any]:
        """The status that the last decision comes to, if its own has no conditions."""
        conditions: ConditionSet = getattr(decision, "conditions")  # noqa: B009
        return {**decision.status, "conditions": self.conditions(seen, conditions)}

    def conditions(self, seen: S, found: ConditionSet) -> list[dict[str, Any]]:
        """With their times, and their summary."""
        return found.merged_into(self.stored_status(seen).get("conditions") or (), self.timestamp())

    async def write(self, seen: S, status: Mapping[str, Any]) -> None:
        """Write what has changed of its status."""
        if patch := statuses.merge_patch(self.stored_status(seen), status):
            await self.cluster.write_status(seen.document, patch)

    async def finish(self, seen: S, record: R) -> None:
        """What is done once the status is written."""

    async def reconcile(self, document: Document) -> Mapping[str, Any] | None:
        """As `Kind.reconcile`."""
        record = self.ensure_record(document)
        seen = await self.observe(document, record)
        if seen is None:
            return None
        decision = self.decide(seen, record)
        for _ in range(MAX_DECISIONS):
            if not decision.effects:
                break
            seen = await self.run_effects(decision.effects, seen, record)
            decision = self.decide(seen, record)
        status = self.status_of(seen, decision, record)
        await self.write(seen, status)
        await self.finish(seen, record)
        return status

    async def run_effects(self, effects: Iterable[Effect], seen: S, record: R) -> S:
        """Run these until one fails."""
        for effect in effects:
            try:
                result = await self.effects.run(effect, seen, self.kafka_of(seen, record), self)
                seen = await self.follow_up(effect, seen.after(effect, result), record)
            except EXPECTED as error:
                return seen.with_failure(effect, error)
        return seen


class BrokerReconciler(Reconciler[S, D, BrokerRecord], Kind):
    """Brokers, or KafkaChannels: what Triggers, Subscriptions and Sensors read."""

    states: States
    neighbours: Neighbours
    on_deleted: Callable[[Document], None] | None = None
    """Called with each whose topic has gone with it."""

    def ensure_record(self, document: Document) -> BrokerRecord:
        return self.states.ensure_broker(document)

    def kafka_of(self, seen: S, record: BrokerRecord) -> KafkaCluster | None:
        return record.kafka

    def on_change(self, document: Document, *, gone: bool) -> Collection[Key]:
        self.neighbours.on_change(document, gone=gone)
        return ()

    async def reconcile(self, document: Document) -> Mapping[str, Any] | None:
        """Reconcile one, and its Triggers if what they go by has changed."""
        record = self.ensure_record(document)
        before = record.inputs_of_triggers()
        try:
            return await super().reconcile(document)
        finally:
            record.reconciled = True
            if before != record.inputs_of_triggers():
                self.neighbours.wake_triggers(Identity.of(document))

    async def delete(self, document: Document) -> None:
        await self.neighbours.delete_broker(document)
        if self.on_deleted is not None:
            self.on_deleted(document)

    async def forget(self, document: Document) -> None:
        self.neighbours.forget(document)


def rfc3339_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def key_of(document: Document) -> Key:
    metadata = document["metadata"]
    return document["kind"], metadata["namespace"], metadata["name"]
